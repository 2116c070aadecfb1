"""A pool of two blocks, two chains and two tokens a block, with every invariant written out.

Unbounded proofs answer `unsat`; a faulty pool, or a state worth showing, needs a `sat` that means something.
Here every quantifier is expanded over the whole small pool, so that a model is a real state of it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import z3

from draftproof.proofs import pool_search
from draftproof.proofs.pool_code import ROW_EQUAL, Code, code
from draftproof.proofs.pool_instances import chain_facts, of_any_state
from draftproof.proofs.pool_proof import Claim, claims
from draftproof.proofs.pool_setting import (
    FIRST,
    SECOND,
    SIZES,
    Setting,
    setting,
    symbolic_call,
    symbolic_state,
)
from draftproof.proofs.symbolic_arrays import symbolic_array
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


def size_of_the_small_pool() -> Facts:
    """Two of everything."""
    wanted = (NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE)
    return {"sizes": z3.And([size == number for size, number in zip(SIZES, wanted, strict=True)])}


@functools.cache
def _any_state() -> tuple[tuple[str, Any], ...]:
    """The sizes, every invariant at every index, and bounds on what the ranges cannot reach."""
    state = symbolic_state()
    facts = size_of_the_small_pool()
    for name, invariant in INVARIANTS.items():
        ranges = [[z3.IntVal(index) for index in RANGES[kind]] for kind in invariant.indices]
        facts[f"every:{name}"] = of_any_state().over(name, ranges)
    facts["every:owners"] = z3.And([state.pool.ref_count[block] <= MAX_OWNERS for block in BLOCKS])
    facts["every:handle"] = z3.And(
        [
            z3.And(state.ghosts.handle_at[block, position] >= 0, state.ghosts.handle_at[block, position] < 5)
            for block in BLOCKS
            for position in RANGES["position"]
        ]
    )
    words = [word[block] for word in (state.pool.digest_first, state.pool.digest_second) for block in BLOCKS]
    facts["every:chains"] = chain_facts(words)
    return tuple(facts.items())


def small_pool(without: Collection[str] = ()) -> Facts:
    """Any state of the small pool; some invariants may be left out."""
    return {name: fact for name, fact in _any_state() if name.removeprefix("every:") not in without}


def pinned(this: Setting, without: Collection[str] = ()) -> Facts:
    """The small pool before a call, and everything that the call requires."""
    call = this.call
    facts = small_pool(without)
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


def bounded_claims(
    primitive: str, used: Code | None = None, only: str | None = None, without: Collection[str] = ()
) -> tuple[Facts, dict[str, Any]]:
    """The facts about a call in the small pool, and each goal (or one) about it, for the pool's indices."""
    this = setting(primitive, code() if used is None else used)
    goals = {claim.path: z3.Implies(_within(claim), claim.goal) for claim in claims(primitive, this, only)}
    return pinned(this, without), goals


def search_facts(without: Collection[str] = ()) -> Facts:
    """The small pool at some point of a search, with what `row_equal` says about each block."""
    state = symbolic_state()
    query = symbolic_array("query", pool_search.COUNT)
    facts = small_pool(without)
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


def in_the_pool() -> Facts:
    """The arbitrary indices and the arguments of a call are those of the small pool."""
    call = symbolic_call()
    indices = [(index, NUM_BLOCKS) for index in (FIRST, SECOND, call.block)]
    indices += [(handle, len(HANDLES) - 1) for handle in (call.handle, call.new_handle)]
    return {"indices": z3.And([z3.And(index >= 0, index <= highest) for index, highest in indices])}
