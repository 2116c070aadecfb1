"""Do the pool's invariants determine every link? Two pools that agree in all else have the same lists.

The effects of a primitive determine owners, what is published, and digests (`pool_completeness`). The ghosts
are the specification's function of those, so they are the same as well: the stamps by which free blocks are
ordered, and the serials by which chains are. Then so are the links of the free list and of the chains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_instances import Facts, Instances, chain_facts, size_facts
from draftproof.proofs.pool_setting import FIRST, symbolic_state
from draftproof.spec.pool import PoolState, is_in_a_chain, is_in_free_list, is_published
from draftproof.spec.pool_invariants import LAYERS

POOLS = ("first", "second")
ZERO = z3.IntVal(0)


class Links(NamedTuple):
    """The links of one kind of list."""

    belongs: Callable[[PoolState, Any], Any]
    """Whether a node is in a list of this kind."""
    following: str
    previous: str


LISTS: dict[str, Links] = {
    "free_list": Links(is_in_free_list, "next_free", "previous_free"),
    "index": Links(is_in_a_chain, "next_in_chain", "previous_in_chain"),
}
"""By the layer of invariants that orders them."""


def pools() -> tuple[PoolState, PoolState]:
    """Two pools with one set of ghosts."""
    ghosts = symbolic_state().ghosts
    one, two = (symbolic_state(f"{name}.")._replace(ghosts=ghosts) for name in POOLS)
    return one, two


def facts_at(layer: str, terms: Sequence[Any], without: Collection[str] = ()) -> Facts:
    """Both pools keep the invariants of the layer, and agree in all but their links, at the terms."""
    one, two = pools()
    published = [(is_published(one, term), is_published(two, term)) for term in terms]
    facts = size_facts() | {
        "same:owners": z3.And([one.pool.ref_count[term] == two.pool.ref_count[term] for term in terms]),
        "same:published": z3.And([first == second for first, second in published]),
        "same:digest": z3.And(
            [
                z3.Implies(first, one.pool.digest_first[term] == two.pool.digest_first[term])
                for term, (first, _) in zip(terms, published, strict=True)
            ]
        ),
        "chains": chain_facts(state.pool.digest_first[term] for state in (one, two) for term in terms),
    }
    used = [name for name in (*LAYERS[layer], "null_block_stays_out") if name not in without]
    for name, state in zip(POOLS, (one, two), strict=True):
        facts |= {f"{name}:{key}": fact for key, fact in Instances(state).everywhere(used, terms).items()}
    return facts


def same_link(layer: str, field: str) -> Any:
    """A node that is in a list has the same neighbour in both pools."""
    one, two = pools()
    return z3.Implies(
        LISTS[layer].belongs(one, FIRST),
        getattr(one.pool, field)[FIRST] == getattr(two.pool, field)[FIRST],
    )


def obligations() -> list[Obligation]:
    """Both links of both kinds of lists."""
    found = []
    for layer, (_, following, previous) in LISTS.items():
        fields = (following, previous)
        neighbours = [getattr(state.pool, field)[FIRST] for state in pools() for field in fields]
        facts = facts_at(layer, [ZERO, FIRST, *neighbours])
        found += [
            Obligation(
                f"pool/links/{field}",
                "completeness",
                "determined",
                facts,
                same_link(layer, field),
                f"pool/links/{layer}",
            )
            for field in fields
        ]
    return found
