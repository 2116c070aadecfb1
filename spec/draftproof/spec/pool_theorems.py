"""The pool's theorems P1 to P7, memory safety and completeness: what each says, for an engineer."""

from __future__ import annotations

from draftproof.spec.theorems import Theorem

POOL_THEOREMS: dict[str, Theorem] = {
    "P1": Theorem(
        "conservation",
        "Free and held blocks together are all blocks but the null block, which is never handed out; the "
        "free list holds exactly the free ones.",
        "vLLM's block pool",
    ),
    "P2": Theorem(
        "counts are owners",
        "A block's reference count is its number of owners; nothing is freed twice.",
        "vLLM's block pool",
    ),
    "P3": Theorem(
        "published content never changes",
        "While a block is published its tokens, digest, parent and serial stay, and are those it was "
        "published as.",
        "automatic prefix caching",
    ),
    "P4": Theorem(
        "the index is complete",
        "Every published block is in exactly the chain of its digest and nothing else is; a look-up "
        "returns a block with the asked digest and tokens exactly if one is published.",
        "automatic prefix caching",
    ),
    "P5": Theorem(
        "who writes is alone",
        "A block that is written has one owner and is not published; a copy holds the tokens kept.",
        "copy on write, PagedAttention, Kwon et al. 2023",
    ),
    "P6": Theorem(
        "published as asked, withdrawn at once",
        "A block is published under the digest it was given and found with the same ancestors only; a "
        "withdrawn block, or a list of them, is found no more and keeps its owners. That only settled or "
        "enqueued content is asked for is T3.",
        "the block hash chain of vLLM",
    ),
    "P7": Theorem(
        "least recently used goes first",
        "Only a block without owners is evicted, the least recently freed first; a block that nobody can "
        "hit goes before all others. Blocks released from the last to the first go tails before heads, and "
        "an acquired hit never goes.",
        "vLLM's free block queue",
    ),
    "memory": Theorem(
        "memory safety",
        "Every access of a primitive and of the look-up is within its array: compiled code does not check.",
        "Numba's bounds checks are off in production",
    ),
    "determined": Theorem(
        "the effects say everything",
        "Two results of a primitive that have its effects agree in every cell that anybody can read, and "
        "then the invariants leave one choice for every link.",
        "draftproof.spec.pool_effects",
    ),
}
