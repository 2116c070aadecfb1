"""What do the letters and the prover's words mean, for a reader who never used a prover?

The theorems' own sentences stand in `draftproof.spec.theorems`; here is what one would *see* if a
theorem did not hold, how the theorems are grouped, and what each letter of a ledger counts.
"""

from __future__ import annotations

LETTERS: dict[str, str] = {
    "L": "tokens of the prompt; in a session, of all its chunks so far",
    "N": "known tokens: the prompt and what was generated and kept",
    "C": "tokens counted as computed, optimistically: steps still running are included",
    "P": "sampled positions that running steps will return (asynchronous scheduling only)",
    "F": "tokens in steps whose output has not come back yet",
    "S": "the part of F that belongs to an earlier life of the request and will not be counted again",
    "D": "drafts that wait to be verified by the next step",
    "R": "tokens published to the prefix cache, always whole blocks",
    "T": "generated tokens that a stop cut off again, until the stop has been handled",
    "E": "1 between an output that stopped and its handling",
    "X": "what was published just before the last preemption",
    "status": "waiting, running, preempted, paused (a session between turns) or finished",
    "drop": "whether late output of an earlier life is thrown away",
    "Q": "sampled positions that are really awaited",
    "G": "prefill tokens that are really under way",
    "q": "1 if the step that completes the prompt is among them",
    "V": "leading positions whose KV is that of the kept tokens, counting steps under way",
    "W": "settled: the same, counting only steps that have returned",
}

GHOSTS = ("Q", "G", "q", "V", "W")
"""Letters that no engine stores: the truth, kept beside the ledger in proofs and in debug mode."""

CONSEQUENCES: dict[str, str] = {
    "T1": "A request counts KV it does not have. The next message of a session skips its own first tokens.",
    "T2": "The next token is written at the wrong position: text that repeats, skips or derails.",
    "T3": "A later turn, or somebody else's cache hit, reads KV of tokens nobody received. Nothing reports "
    "it.",
    "T4": "A finished block is thrown away, and the next request with the same prefix computes it again.",
    "T5": "A counter goes negative: an assertion stops the engine, or a step gets a senseless size.",
    "T6": "A request hangs: never scheduled, waiting for output that nobody will send.",
    "T7": "The second message of a session loses or doubles a token at the seam.",
    "T8": "The same conversation goes on differently, depending on how well the drafter guessed.",
    "T9": "Host and device lose each other's count, or must wait for each other in every step.",
    "T10": "A step writes into a slot that was never reserved, or belongs to another request.",
    "T11": "The counters on the device wrap around and turn negative under long run-ahead.",
    "T12": "A drafter's cache hit reads entries that were still going to change.",
    "T13": "A stored prefix is not found again, or more of it is used than may be.",
    "effects": "A transition does something that nobody asked for, or leaves a part of its work undone.",
    "invariants": "Some state would be possible in which the theorems above need not hold.",
    "decisions": "A step is too long, a limit is passed, a cache hit is too short, or a metric is wrong.",
    "R1": "The sums would say that work is under way which is not, or the other way round.",
    "R2": "“Valid” and “settled” would be words only, and everything that is measured against them with "
    "them.",
    "T14": "Blocks are freed twice, and two requests write into the same memory.",
    "P1": "A block is lost for good, or the null block is handed out.",
    "P2": "A block is given to another request while somebody still reads it.",
    "P3": "A cache hit reads tokens that are not the ones it asked for.",
    "P4": "A cached prefix is not found, or the search never ends.",
    "P5": "Two requests write into one block.",
    "P6": "After a failed step a look-up still finds KV that was never computed.",
    "P7": "A prefix in use is evicted, or a hot one before a cold one.",
    "memory": "Compiled code writes over somebody else's memory. Nothing reports it.",
    "determined": "A primitive could do something that no claim speaks about.",
}
"""By theorem: what somebody would see if it did not hold."""

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Nothing wrong is counted or read", ("T1", "T2", "T3", "T5", "T12")),
    ("Nothing is lost", ("T4", "T7", "T13")),
    ("Every request ends, once", ("T6", "T14")),
    ("The same with speculation or without, on host and device", ("T8", "T9", "T10", "T11")),
    (
        "The block pool",
        ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "memory", "determined"),
    ),
    ("What the rest stands on", ("effects", "invariants", "decisions", "R1", "R2", "recurrent", "axioms")),
)

OTHER_GROUPS: dict[str, str] = {
    "R": "The ledger stands for the real queue of steps",
    "M": "Recurrent state",
}
"""By first letter, for theorems that are in none of `GROUPS`."""

PROVER_WORDS: tuple[tuple[str, str], ...] = (
    (
        "theorem",
        "A sentence about the counters that holds in every state a request can reach, for every prompt "
        "length, number of drafts and block size.",
    ),
    (
        "invariant",
        "A fact that the first state has and that every transition keeps. Theorems follow from invariants.",
    ),
    (
        "effect",
        "What one transition changes, and by how much. Together the effects fix every counter, so that "
        "no other result is allowed.",
    ),
    (
        "obligation",
        "One small claim about the code: assuming these facts before, this holds after. Two solvers are "
        "asked for a counterexample. Proved means that both say there is none; where only one was asked, it "
        "says so.",
    ),
    (
        "unknown",
        "A solver gave up within its resources. Unknown, and two solvers that contradict each other, count "
        "as "
        "failed.",
    ),
    (
        "witness",
        "A concrete run that reaches the case a claim speaks about, so that nothing is proved only because "
        "the "
        "case cannot occur.",
    ),
    (
        "control",
        "A claim made wrong on purpose. It must be refuted, or the proofs beside it would prove anything.",
    ),
    (
        "confirmed over all paths",
        "CrossHair ran the real Python function on symbolic integers, followed every path, and found no "
        "difference from a plain textbook version.",
    ),
)

PROVED = (
    "Every number is a symbol: the length of the prompt, the drafts per step, the block size, how many "
    "steps run ahead. A proved theorem holds for all of them, not for those that were tried.",
    "The functions that were proved are the functions that run: one source, called on solver terms here, "
    "on integers in the engine.",
)

BOUNDED = (
    "Where a check enumerates cases it is listed at the top of this page as explored, with its bound. "
    "Beyond the bound nothing is claimed.",
    "A trace of a fault is the shortest one found within the search's bound.",
)

TESTED = (
    "That the same source gives the same numbers on every carrier (integers, compiled code, columns, "
    "tensors) "
    "is tested on random inputs, not proved.",
    "What the device really wrote into the KV cache is tested, not proved.",
)
