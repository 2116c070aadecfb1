"""Does every primitive of the pool keep every invariant, have its effects, and stay inside its arrays?

For any number of blocks, chains and owners, and any block size. Quantifiers never reach the solver: an
invariant holds for all indices, so its instances at the terms a primitive touches may be assumed, and each
goal speaks about arbitrary indices. Fewer instances are weaker hypotheses, so a missing one can only make
a proof fail. What is left are arrays and linear arithmetic, decided in milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import Code, code
from draftproof.proofs.pool_instances import chain_facts, of_any_state, size_facts
from draftproof.proofs.pool_setting import (
    FIRST,
    SECOND,
    Setting,
    setting,
    symbolic_call,
    symbolic_state,
)
from draftproof.spec.pool import PoolState, sentinel_of
from draftproof.spec.pool_calls import PRIMITIVES, Call
from draftproof.spec.pool_effects import EFFECTS
from draftproof.spec.pool_invariants import INVARIANTS, LAYERS

_LIST_HEAD = ("null_block_stays_out", "free_list_is_a_ring", "free_list_has_ends")

USED: dict[str, tuple[str, ...]] = {
    "owners": (*LAYERS["owners"], *_LIST_HEAD),
    "free_count": (*LAYERS["free_count"], *_LIST_HEAD, "links_are_in_range"),
    "free_list": (*LAYERS["free_list"], "free_count_is_not_negative"),
    "index": (*LAYERS["index"], *_LIST_HEAD, "links_are_in_range"),
    "content": (
        *LAYERS["content"],
        *_LIST_HEAD,
        "links_are_in_range",
        "chains_are_rings",
        "publications_are_counted",
        "serials_are_bounded",
        "serials_differ",
    ),
    "memory": (
        *LAYERS["free_list"],
        *LAYERS["index"],
        "free_count_is_not_negative",
        "rows_hold_their_tokens",
    ),
}
"""The invariants that the proofs of a layer may use."""

_IN_MEMORY_LAYER = ("null_block_stays_out", "links_are_in_range")
"""Their proofs need both the free list and the index."""

ZERO = z3.IntVal(0)


class Claim(NamedTuple):
    """A goal about one primitive, and the layer of its proof."""

    path: str
    kind: str
    theorem: str
    layer: str
    goal: Any


def layer_of(invariant: str) -> str:
    """Which hypotheses the proof of an invariant gets."""
    if invariant in _IN_MEMORY_LAYER:
        return "memory"
    return next(layer for layer, names in LAYERS.items() if invariant in names)


def claims(primitive: str, this: Setting, only: str | None = None) -> Iterator[Claim]:
    """Everything claimed about one call, or the claim of one path."""
    for name, invariant in INVARIANTS.items():
        if only in (None, f"invariant/{name}"):
            goal = invariant.predicate(this.after, *(FIRST, SECOND)[: len(invariant.indices)])
            yield Claim(f"invariant/{name}", "invariant", invariant.theorem, layer_of(name), goal)
    for name, effect in EFFECTS.items():
        if primitive in effect.primitives and only in (None, f"effect/{name}"):
            goal = effect.predicate(this.before, this.after, this.call, FIRST, SECOND)
            yield Claim(f"effect/{name}", "effect", effect.theorem, effect.layer, goal)
    for array in dict.fromkeys(access.array for access in this.accesses):
        if only in (None, f"in_bounds/{array}"):
            inside = [access.in_bounds for access in this.accesses if access.array == array]
            yield Claim(f"in_bounds/{array}", "memory", "memory", "memory", z3.And(inside))


def _owner_terms(state: PoolState, call: Call) -> list[Any]:
    pool, ghosts = state.pool, state.ghosts
    last = pool.ref_count[call.block] - 1
    return [
        *(ZERO, call.block, call.handle, call.new_handle, pool.next_free[0], FIRST, SECOND),
        *(ghosts.handle_block[FIRST], ghosts.handle_position[FIRST], ghosts.handle_position[call.handle]),
        *(last, ghosts.handle_at[call.block, last], ghosts.handle_at[FIRST, SECOND]),
    ]


def _free_count_terms(state: PoolState, call: Call) -> list[Any]:
    pool, ghosts, block = state.pool, state.ghosts, call.block
    first, count = pool.next_free[0], pool.num_free_blocks[0]
    return [
        *(ZERO, first, block, FIRST, count, count - 1),
        *(ghosts.free_position[first], ghosts.free_position[block], ghosts.free_position[FIRST]),
        *(ghosts.free_at[count - 1], ghosts.free_at[FIRST]),
    ]


def _free_list_terms(state: PoolState, call: Call) -> list[Any]:
    pool, block = state.pool, call.block
    following, previous = pool.next_free, pool.previous_free
    first = following[0]
    return [
        *(ZERO, first, block, FIRST, SECOND, following[FIRST], previous[FIRST], following[first]),
        *(following[block], previous[block], previous[0]),
    ]


def _index_terms(state: PoolState, call: Call) -> list[Any]:
    pool, block = state.pool, call.block
    following, previous = pool.next_in_chain, pool.previous_in_chain
    first, sentinel = pool.next_free[0], sentinel_of(state, call.digest_first)
    return [
        *(ZERO, first, block, sentinel, FIRST, SECOND, following[FIRST], previous[FIRST]),
        *(following[first], previous[first], following[block], previous[block], following[sentinel]),
    ]


def _content_terms(state: PoolState, call: Call) -> list[Any]:
    pool, block = state.pool, call.block
    following, previous = pool.next_in_chain, pool.previous_in_chain
    first, sentinel = pool.next_free[0], sentinel_of(state, call.digest_first)
    return [
        *(ZERO, first, block, sentinel, FIRST, SECOND),
        *(following[first], previous[first], following[block], previous[block]),
    ]


def _memory_terms(state: PoolState, call: Call) -> list[Any]:
    return [*_free_list_terms(state, call), sentinel_of(state, call.digest_first)]


TERMS: dict[str, Callable[[PoolState, Call], list[Any]]] = {
    "owners": _owner_terms,
    "free_count": _free_count_terms,
    "free_list": _free_list_terms,
    "index": _index_terms,
    "content": _content_terms,
    "memory": _memory_terms,
}
"""The terms at which a layer's invariants are instantiated."""


@functools.cache
def _shared_facts(layer: str) -> tuple[tuple[str, Any], ...]:
    """What the proofs of a layer may assume about any call: the same state and call for all primitives."""
    state, call = symbolic_state(), symbolic_call()
    terms = TERMS[layer](state, call)
    words = [call.digest_first, *[state.pool.digest_first[term] for term in terms]]
    facts = size_facts() | of_any_state().everywhere(USED[layer], terms) | {"chains": chain_facts(words)}
    return tuple(facts.items())


def hypotheses(layer: str, this: Setting) -> dict[str, Any]:
    """What the proofs of a layer may assume about one call."""
    facts = dict(_shared_facts(layer))
    facts |= {f"requires:{name}": fact for name, fact in this.requires(SECOND).items()}
    if layer != "owners" and "requires:handle_owns_block" in facts:
        # Proved in the layer of owners (`owned_has_an_owner`), used in the others.
        facts["lemma:owned_has_an_owner"] = this.before.pool.ref_count[this.call.block] >= 1
    return facts


def primitive_obligations(primitive: str, used: Code | None = None) -> list[Obligation]:
    """Everything claimed about one primitive; `used` replaces the running code (faults)."""
    this = setting(primitive, code() if used is None else used)
    assumed = {layer: hypotheses(layer, this) for layer in USED}
    found = sorted(claims(primitive, this), key=lambda claim: list(USED).index(claim.layer))
    return [
        Obligation(
            f"pool/{primitive}/{claim.path}",
            claim.kind,
            claim.theorem,
            assumed[claim.layer],
            claim.goal,
            f"pool/{primitive}/{claim.layer}",
        )
        for claim in found
    ]


def obligations() -> list[Obligation]:
    """All primitives."""
    return [claim for primitive in PRIMITIVES for claim in primitive_obligations(primitive)]
