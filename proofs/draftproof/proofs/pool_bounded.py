"""A pool of two blocks, two chains and two tokens a block, with every invariant written out.

Unbounded proofs answer `unsat`; a faulty pool, or a state worth showing, needs a `sat` that means something.
Here every quantifier is expanded over the whole small pool, so that a model is a real state of it. The same
expansions show that the hypotheses of the proofs can be met.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import z3

from draftproof.proofs import pool_proof, pool_search
from draftproof.proofs.pool_code import ROW_EQUAL, Code, code
from draftproof.proofs.pool_proof import Claim, chain_facts, claims
from draftproof.proofs.pool_setting import CONTENTS, FIRST, SECOND, SIZES, Setting, setting, symbolic_state
from draftproof.proofs.symbolic_arrays import symbolic_array
from draftproof.proofs.terms import function
from draftproof.spec.pool import PoolState, is_published
from draftproof.spec.pool_calls import PRIMITIVES
from draftproof.spec.pool_effects import EFFECTS
from draftproof.spec.pool_invariants import INVARIANTS

NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE = 2, 2, 2
MAX_OWNERS = 3
HANDLES = range(5)
BLOCKS = range(NUM_BLOCKS + 1)
RANGES: dict[str, range] = {
    "block": BLOCKS,
    "node": range(1, NUM_BLOCKS + 1 + NUM_CHAINS),
    "sentinel": range(NUM_BLOCKS + 1, NUM_BLOCKS + 1 + NUM_CHAINS),
    "handle": HANDLES,
    "position": range(MAX_OWNERS + 1),
    "offset": range(BLOCK_SIZE),
}
"""Every value that an index of each kind can have in the small pool."""

Facts = dict[str, Any]


def expanded(state: PoolState) -> Facts:
    """The sizes, every invariant at every index, and bounds on what the ranges cannot reach."""
    facts: Facts = {
        "sizes": z3.And(
            SIZES.num_blocks == NUM_BLOCKS,
            SIZES.num_chains == NUM_CHAINS,
            SIZES.block_size == BLOCK_SIZE,
        )
    }
    for name, invariant in INVARIANTS.items():
        indices = itertools.product(*[RANGES[kind] for kind in invariant.indices])
        facts[f"every:{name}"] = z3.And(
            [invariant.predicate(state, *map(z3.IntVal, some)) for some in indices]
        )
    facts["every:owners"] = z3.And([state.pool.ref_count[block] <= MAX_OWNERS for block in BLOCKS])
    facts["every:handle"] = z3.And(
        [
            z3.And(state.ghosts.handle_at[block, position] >= 0, state.ghosts.handle_at[block, position] < 5)
            for block in BLOCKS
            for position in RANGES["position"]
        ]
    )
    words = [word[block] for word in (state.pool.digest_first, state.pool.digest_second) for block in BLOCKS]
    return facts | {"every:chains": chain_facts(words)}


@functools.cache
def _any_state() -> tuple[tuple[str, Any], ...]:
    return tuple(expanded(symbolic_state()).items())


def pinned(primitive: str, this: Setting) -> Facts:
    """The small pool before a call, and everything that the call requires."""
    call = this.call
    facts = dict(_any_state())
    for offset in range(BLOCK_SIZE):
        for name, fact in this.requires(z3.IntVal(offset)).items():
            facts[f"requires:{name}:{offset}"] = fact
    facts["handles"] = z3.And(
        [z3.And(handle >= 0, handle < len(HANDLES)) for handle in (call.handle, call.new_handle)]
    )
    return facts | {"call_chains": chain_facts([call.digest_first, call.digest_second])}


def _within(claim: Claim) -> Any:
    """The arbitrary indices of a goal, kept to the small pool."""
    name = claim.path.rpartition("/")[2]
    if claim.kind == "invariant":
        kinds: tuple[str, ...] = INVARIANTS[name].indices
    elif claim.kind == "effect":
        kinds = ("handle" if EFFECTS[name].layer == "owners" else "block", "offset")
    else:
        kinds = ()
    return z3.And(
        [
            z3.And(index >= RANGES[kind].start, index < RANGES[kind].stop)
            for index, kind in zip((FIRST, SECOND), kinds, strict=False)
        ]
    )


def bounded_claims(primitive: str, used: Code | None = None) -> tuple[Facts, dict[str, Any]]:
    """The facts about a call in the small pool, and each goal about it, within the pool's indices."""
    this = setting(primitive, code() if used is None else used)
    goals = {claim.path: z3.Implies(_within(claim), claim.goal) for claim in claims(primitive, this)}
    return pinned(primitive, this), goals


def search_facts() -> Facts:
    """The small pool at some point of a search, with what `row_equal` says about each block."""
    state = symbolic_state()
    query = symbolic_array("query", pool_search.COUNT)
    facts = dict(_any_state())
    facts["every:row"] = z3.And(
        [
            ROW_EQUAL(z3.IntVal(block))
            == z3.And(
                [
                    z3.Implies(
                        offset < pool_search.COUNT, state.pool.token_ids[block, offset] == query[offset]
                    )
                    for offset in range(BLOCK_SIZE)
                ]
            )
            for block in BLOCKS
        ]
    )
    node, candidate = pool_search.NODE, pool_search.CANDIDATE
    facts["every:index"] = z3.And(
        node >= 0, node <= NUM_BLOCKS + NUM_CHAINS, candidate >= 0, candidate <= NUM_BLOCKS
    )
    return facts


def witnesses() -> dict[str, Facts]:
    """For each group of hypotheses a small pool in which they hold; z3 must find one."""
    found: dict[str, Facts] = {}
    for primitive in PRIMITIVES:
        this = setting(primitive, code())
        small = pinned(primitive, this)
        for layer in pool_proof.USED:
            found[f"pool/{primitive}/{layer}"] = pool_proof.hypotheses(layer, this) | small
    for obligation in pool_search.obligations():
        found[obligation.assumption_group] = obligation.hypotheses | search_facts()
    return found | shown_states()


def shown_states() -> dict[str, Facts]:
    """States that must be possible: without them the theorems would be about less than they seem."""
    state = symbolic_state()
    one: Any = z3.IntVal(1)
    two: Any = z3.IntVal(2)
    pool = state.pool
    facts = dict(_any_state())
    both_published = z3.And(is_published(state, one), is_published(state, two))
    twins = z3.And(
        both_published,
        pool.digest_first[one] == pool.digest_first[two],
        pool.digest_second[one] == pool.digest_second[two],
    )
    full = z3.And(pool.num_tokens[one] == BLOCK_SIZE, pool.num_tokens[two] == BLOCK_SIZE)
    other_tokens = z3.And(twins, full, pool.token_ids[one, 0] != pool.token_ids[two, 0])
    shown = {
        "duplicates_one_free_one_held": z3.And(twins, pool.ref_count[one] == 0, pool.ref_count[two] == 1),
        "one_digest_other_tokens": other_tokens,
        "published_partial_tail": z3.And(both_published, pool.num_tokens[one] == 1),
        "shared_and_not_published": z3.And(pool.ref_count[one] == 2, pool.next_in_chain[one] == 0),
    }
    return {f"pool/shown/{name}": facts | {"shown": fact} for name, fact in shown.items()}


def colliding_with_an_injective_digest() -> Facts:
    """One digest for other tokens is impossible once the digest is injective: must be unsatisfiable."""
    ghosts = symbolic_state().ghosts
    inverses = [function(f"undone_{index}", 2) for index in range(3)]
    facts = shown_states()["pool/shown/one_digest_other_tokens"]
    for block in (1, 2):
        place = (ghosts.parent_first[block], ghosts.parent_second[block], ghosts.content[block])
        digest = CONTENTS.digest_first(*place), CONTENTS.digest_second(*place)
        facts[f"injective:{block}"] = z3.And(
            [inverse(*digest) == value for inverse, value in zip(inverses, place, strict=True)]
        )
    return facts
