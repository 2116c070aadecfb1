"""Do the small pieces keep the contracts that the pool's proofs use? Row loops, low bits, and a new pool.

`row_copy` and `row_equal` are proved by their own loop invariants on the bodies cut from their source, for
any number of rows and tokens; `low_bits` on 64-bit words; the base case on the functions that `new_pool`
fills its arrays with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import Loop, code, contract_row_copy, sources
from draftproof.proofs.pool_instances import chain_facts, size_facts
from draftproof.proofs.pool_setting import FIRST, SECOND, SIZES, symbolic_state, watched
from draftproof.proofs.symbolic_arrays import Access, SymbolicArray, symbolic_array
from draftproof.proofs.terms import integer
from draftproof.spec.pool import PoolState, is_block, is_published, is_writable
from draftproof.spec.pool_invariants import INVARIANTS

ROUND, COUNT = integer("round"), integer("num_row_tokens")
ROWS, LENGTH = integer("num_rows"), integer("row_length")
BLOCK, TARGET = integer("source_block"), integer("target_block")
CONDITION, EQUAL = z3.Bool("copies"), z3.Bool("equal_so_far")
ZERO = z3.IntVal(0)


def _sizes() -> dict[str, Any]:
    """What callers of the row loops have shown: the contract's own access condition."""
    return {
        "rows": z3.And(ROWS >= 1, LENGTH >= 1, COUNT >= 0, COUNT <= LENGTH),
        "block": z3.And(BLOCK >= 0, BLOCK < ROWS),
        "target": z3.And(TARGET >= 0, TARGET < ROWS),
    }


def _inside(accesses: list[Access]) -> Any:
    return z3.And([access.in_bounds for access in accesses])


def _loop(name: str, changes: Mapping[str, str] | None) -> Loop:
    """The loop of one of the two functions; its own name means its source here, not its contract."""
    text = (sources() | dict(changes or {}))[name]
    return Loop(text, code(changes))


def row_copy_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """After i rounds exactly the cells [0, i) of the target's row are the source's."""
    loop, rows = _loop("row_copy", changes), symbolic_array("row", ROWS, LENGTH)

    def after(rounds: Any) -> SymbolicArray:
        """The array that the invariant describes: the contract for that many tokens."""
        array = rows.copy()
        contract_row_copy(array, TARGET, BLOCK, rounds, CONDITION)
        return array

    def cell(array: SymbolicArray) -> Any:
        return array[FIRST, SECOND]

    given = {"target": TARGET, "source": BLOCK, "num_tokens": COUNT, "condition": CONDITION}
    bound = loop.bound(token_ids=rows, **given)
    accesses: list[Access] = []
    moved = after(ROUND)
    loop.body(token_ids=moved.watched(accesses), offset=ROUND, **given)
    assumed = _sizes()
    running = assumed | {"round": z3.And(ROUND >= 0, bound > ROUND)}
    return [
        _claim("row_copy/starts", "P5", assumed, cell(after(ZERO)) == cell(rows)),
        _claim("row_copy/ends", "P5", assumed, bound == COUNT),
        _claim("row_copy/round", "P5", running, cell(moved) == cell(after(ROUND + 1))),
        _claim("row_copy/in_bounds", "memory", running, _inside(accesses)),
    ]


def row_equal_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """After i rounds the answer is whether the cells [0, i) agree."""
    loop, rows = _loop("row_equal", changes), symbolic_array("row", ROWS, LENGTH)
    query = symbolic_array("query", COUNT)
    offset = integer("offset")

    def agree(rounds: Any) -> Any:
        inside = z3.And(offset >= 0, offset < rounds)
        return z3.ForAll([offset], z3.Implies(inside, rows[BLOCK, offset] == query[offset]))

    given: dict[str, Any] = {"block": BLOCK, "num_tokens": COUNT}
    start = loop.before(token_ids=rows, tokens=query, **given)["equal"]
    bound = loop.bound(token_ids=rows, tokens=query, **given)
    accesses: list[Access] = []
    watched = {"token_ids": rows.watched(accesses), "tokens": query.watched(accesses)}
    moved = loop.body(equal=EQUAL, offset=ROUND, **watched, **given)["equal"]
    result = loop.after(equal=EQUAL, token_ids=rows, tokens=query, **given)
    assumed = _sizes()
    running = assumed | {"round": z3.And(ROUND >= 0, bound > ROUND), "so_far": agree(ROUND) == EQUAL}
    ended = assumed | {"so_far": agree(bound) == EQUAL}
    return [
        _claim("row_equal/starts", "P4", assumed, agree(ZERO) == start),
        _claim("row_equal/round", "P4", running, agree(ROUND + 1) == moved),
        _claim("row_equal/ends", "P4", ended, agree(COUNT) == result),
        _claim("row_equal/in_bounds", "memory", running, _inside(accesses)),
    ]


def low_bits_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """On 64-bit words: at least 0 and below the count, whatever the word and any count of at least 1."""
    word, count = z3.BitVecs("word count", 64)
    namespace: dict[str, Any] = {}
    exec((sources() | dict(changes or {}))["low_bits"], namespace)
    result = namespace["low_bits"](word, count)
    return [_claim("low_bits/in_range", "memory", {"count": count >= 1}, z3.And(result >= 0, result < count))]


def predicate_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """What callers ask of a block is what the specification means by it."""
    state, run = symbolic_state(), code(changes)
    accesses: list[Access] = []
    pool = watched(state.pool, accesses)
    assumed = size_facts() | {"block": is_block(state, FIRST)}
    return [
        _claim(
            "predicates/writable", "P5", assumed, run["writable"](pool, FIRST) == is_writable(state, FIRST)
        ),
        _claim(
            "predicates/published", "P4", assumed, run["published"](pool, FIRST) == is_published(state, FIRST)
        ),
        _claim("predicates/in_bounds", "memory", assumed, _inside(accesses)),
    ]


def new_pool_state(changes: Mapping[str, str] | None = None) -> PoolState:
    """A new pool: links by its own functions, everything else 0; free blocks are numbered in their order."""
    state, run = symbolic_state(), code(changes)
    pool, ghosts, num_blocks = state.pool, state.ghosts, SIZES.num_blocks
    pool.previous_free.fill(lambda block: run["initial_previous_free"](block, num_blocks))
    pool.next_free.fill(lambda block: run["initial_next_free"](block, num_blocks))
    for chain in (pool.previous_in_chain, pool.next_in_chain):
        chain.fill(lambda node: run["initial_in_chain"](node, num_blocks))
    pool.num_free_blocks.fill(lambda index: num_blocks)
    for zeros in (pool.ref_count, pool.num_tokens, ghosts.handle_block, ghosts.num_publications):
        zeros.fill(lambda index: ZERO)
    ghosts.lowest_stamp.fill(lambda index: ZERO)
    ghosts.highest_stamp.fill(lambda index: num_blocks)
    ghosts.freed_stamp.fill(lambda block: block)
    ghosts.free_position.fill(lambda block: block - 1)
    ghosts.free_at.fill(lambda position: position + 1)
    return state


def new_pool_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """The base case: a new pool satisfies every invariant."""
    state = new_pool_state(changes)
    words = [state.pool.digest_first[FIRST], state.pool.digest_first[SECOND]]
    assumed = size_facts() | {"chains": chain_facts(words)}
    return [
        _claim(
            f"new_pool/invariant/{name}",
            invariant.theorem,
            assumed,
            invariant.predicate(state, *(FIRST, SECOND)[: len(invariant.indices)]),
        )
        for name, invariant in INVARIANTS.items()
    ]


def _claim(path: str, theorem: str, assumed: dict[str, Any], goal: Any) -> Obligation:
    return Obligation(f"pool/{path}", "invariant", theorem, assumed, goal, f"pool/{path.partition('/')[0]}")


PIECES: dict[str, Callable[[Mapping[str, str]], list[Obligation]]] = {
    "row_copy": row_copy_obligations,
    "row_equal": row_equal_obligations,
    "low_bits": low_bits_obligations,
    "predicates": predicate_obligations,
    "new_pool": new_pool_obligations,
}
"""What is claimed about each small piece, given changed texts (none: the running source)."""


def obligations() -> list[Obligation]:
    """Loops, bits and base case."""
    return [claim for claims_about in PIECES.values() for claim in claims_about({})]
