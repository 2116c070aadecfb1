"""Does the look-up find what is published, and only that? The search loop, cut from its own source.

The loop's invariant: the node is in the chain of the asked digest, and any published block that matches is
this one or an older one, hence still ahead. Serials descend along a chain, so the search ends. The same walk
shows that a chain holds exactly the published blocks of its digests (P4).

Injectivity of the digest (equal digests come from equal parents and contents) is assumed in one obligation
only, about ancestors; that the tokens found are the tokens asked never depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import ROW_EQUAL, Loop, code, sources
from draftproof.proofs.pool_instances import chain_facts, of_any_state, size_facts
from draftproof.proofs.pool_setting import CONTENTS, SIZES, symbolic_call, symbolic_state, watched
from draftproof.proofs.symbolic_arrays import Access, symbolic_array
from draftproof.proofs.terms import function, integer
from draftproof.spec.pool import (
    PoolState,
    chain_of,
    is_block,
    is_in_a_chain,
    is_published,
    is_sentinel,
    sentinel_of,
)
from draftproof.spec.pool_invariants import INVARIANTS

NODE, CANDIDATE, COUNT, OFFSET = (
    integer(name) for name in ("node", "candidate", "num_query_tokens", "query_offset")
)
"""The node the search is at; any block that may match; the query's length; any offset in it."""
START = integer("walk_start")
DIFFERS: Any = function("differing_offset", 1)
"""For a block whose row is not the query: an offset at which they differ."""
ZERO = z3.IntVal(0)

Facts = dict[str, Any]


def _invariants_at(state: PoolState, terms: Iterable[Any]) -> Facts:
    """Every invariant at every combination of the terms, and the chains of their digests."""
    nodes = list(terms)
    facts = size_facts() | of_any_state().everywhere(INVARIANTS, nodes)
    words = [symbolic_call().digest_first, *[state.pool.digest_first[node] for node in nodes]]
    return facts | {"chains": chain_facts(words)}


def search_obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """The loop of `look_up`: start, step, end, what is returned, and memory."""
    state, call = symbolic_state(), symbolic_call()
    query = symbolic_array("query", COUNT)
    run = code(changes)
    loop = Loop((sources() | dict(changes or {}))["look_up"], run)
    first_accesses: list[Access] = []
    accesses: list[Access] = []

    def given(noted: list[Access]) -> dict[str, Any]:
        return {
            "pool": watched(state.pool, noted),
            "digest_first": call.digest_first,
            "digest_second": call.digest_second,
            "tokens": query.watched(noted),
            "num_tokens": COUNT,
        }

    start = loop.before(**given(first_accesses))["node"]
    goes_on = loop.test(node=NODE, **given(accesses))
    following = loop.body(node=NODE, **given(accesses))["node"]
    result = loop.after(node=NODE, **given(accesses))
    sentinel = sentinel_of(state, call.digest_first)
    terms = [ZERO, NODE, CANDIDATE, sentinel, following, start]

    def row_equal_says(block: Any) -> Any:
        """The contract of `row_equal`: one offset if true, a differing one if false."""
        inside = z3.And(OFFSET >= 0, OFFSET < COUNT)
        differs = DIFFERS(block)
        agrees = z3.Implies(
            z3.And(ROW_EQUAL(block), inside), state.pool.token_ids[block, OFFSET] == query[OFFSET]
        )
        disagrees = z3.And(
            differs >= 0, differs < COUNT, state.pool.token_ids[block, differs] != query[differs]
        )
        return z3.And(agrees, z3.Or(ROW_EQUAL(block), disagrees))

    def asked(block: Any) -> Any:
        """The specification's words for a match, not the code's."""
        pool = state.pool
        return z3.And(
            pool.digest_first[block] == call.digest_first,
            pool.digest_second[block] == call.digest_second,
            pool.num_tokens[block] == COUNT,
            ROW_EQUAL(block),
        )

    def loop_invariant(node: Any) -> Any:
        ahead = z3.And(is_published(state, node), state.ghosts.serial[node] >= state.ghosts.serial[CANDIDATE])
        return z3.And(
            is_in_a_chain(state, node),
            chain_of(state, node) == sentinel,
            z3.Implies(z3.And(is_published(state, CANDIDATE), asked(CANDIDATE)), ahead),
        )

    serial = state.ghosts.serial
    assumed = _invariants_at(state, terms) | {
        "query": z3.And(COUNT >= 0, SIZES.block_size >= COUNT),
        "row_equal": z3.And([row_equal_says(term) for term in terms]),
    }
    at_node = assumed | {"loop": loop_invariant(NODE)}
    stepping, ended = at_node | {"goes_on": goes_on}, at_node | {"ended": z3.Not(goes_on)}
    hit = ended | {"hit": result != 0}
    published = ended | {"published": is_published(state, CANDIDATE)}
    of_content = _query_of_content(call, query, terms)
    ancestors = [state.ghosts.parent_first, state.ghosts.parent_second, state.ghosts.content]
    wanted = [call.parent_first, call.parent_second, call.content]

    def same_ancestors(block: Any) -> Any:
        return z3.And([field[block] == value for field, value in zip(ancestors, wanted, strict=True)])

    inside = z3.And(OFFSET >= 0, OFFSET < COUNT)
    found_tokens = z3.Implies(inside, state.pool.token_ids[result, OFFSET] == query[OFFSET])
    found = z3.And(result != 0, is_published(state, result), asked(result))
    injective = _injective(state, call, result)
    return [
        _claim("starts", "P4", assumed, loop_invariant(start)),
        _claim("step", "P4", stepping, loop_invariant(following)),
        _claim(
            "descends",
            "P4",
            stepping,
            z3.And(serial[NODE] > 0, z3.Or(is_sentinel(state, following), serial[following] < serial[NODE])),
        ),
        _claim("sound", "P4", hit, z3.And(is_published(state, result), asked(result), found_tokens)),
        _claim("complete", "P4", published | {"asked": asked(CANDIDATE)}, found),
        _claim(
            "published_content_is_found",
            "P6",
            published | of_content | {"same_ancestors": same_ancestors(CANDIDATE)},
            found,
        ),
        _claim("same_ancestors", "P6", hit | of_content | {"injective": injective}, same_ancestors(result)),
        _claim("in_bounds_before", "memory", assumed, z3.And([one.in_bounds for one in first_accesses])),
        _claim("in_bounds", "memory", at_node, z3.And([one.in_bounds for one in accesses])),
    ]


def _query_of_content(call: Any, query: Any, terms: list[Any]) -> Facts:
    """The caller asks for a content after a parent: its tokens, its length, its digest."""
    parent = call.parent_first, call.parent_second
    tokens = "tokens_are_of_the_content"
    offsets = [OFFSET, *[DIFFERS(term) for term in terms]]
    return {
        "query_length": CONTENTS.length(call.content) == COUNT,
        "query_digest": z3.And(
            call.digest_first == CONTENTS.digest_first(*parent, call.content),
            call.digest_second == CONTENTS.digest_second(*parent, call.content),
        ),
        "query_tokens": z3.And(
            [
                z3.Implies(
                    z3.And(offset >= 0, offset < COUNT),
                    query[offset] == CONTENTS.token(call.content, offset),
                )
                for offset in offsets
            ]
        ),
        f"invariant:{tokens}:at_offsets": of_any_state().over(tokens, (terms, offsets)),
    }


def _injective(state: PoolState, call: Any, result: Any) -> Any:
    """The digest can be undone, at the two places that matter: inverse functions exist."""
    ghosts = state.ghosts
    places = [
        (call.parent_first, call.parent_second, call.content),
        (ghosts.parent_first[result], ghosts.parent_second[result], ghosts.content[result]),
    ]
    inverses = [function(f"undone_{index}", 2) for index in range(3)]
    return z3.And(
        [
            inverse(CONTENTS.digest_first(*place), CONTENTS.digest_second(*place)) == value
            for place in places
            for inverse, value in zip(inverses, place, strict=True)
        ]
    )


def walk_obligations() -> list[Obligation]:
    """From a sentinel, following the links meets a block exactly if it is published in that chain."""
    state = symbolic_state()
    following, serial = state.pool.next_in_chain, state.ghosts.serial
    terms = [ZERO, NODE, CANDIDATE, START, following[NODE], following[START]]
    belongs = z3.And(
        is_published(state, CANDIDATE), sentinel_of(state, state.pool.digest_first[CANDIDATE]) == START
    )

    def ahead(node: Any) -> Any:
        reached = z3.And(is_published(state, node), serial[node] >= serial[CANDIDATE])
        return z3.And(
            is_in_a_chain(state, node), chain_of(state, node) == START, z3.Implies(belongs, reached)
        )

    assumed = _invariants_at(state, terms) | {"start": is_sentinel(state, START)}
    walking = assumed | {"walk": ahead(NODE)}
    at_block = walking | {"block": is_block(state, NODE)}
    descends = z3.Or(is_sentinel(state, following[NODE]), serial[following[NODE]] < serial[NODE])
    here = z3.And(is_published(state, NODE), sentinel_of(state, state.pool.digest_first[NODE]) == START)
    ended = walking | {
        "ended": z3.Or(z3.Not(is_block(state, NODE)), NODE == CANDIDATE),
        "belongs": belongs,
    }
    return [
        _claim("walk_starts", "P4", assumed, ahead(following[START])),
        _claim(
            "walk_step",
            "P4",
            at_block | {"not_yet": NODE != CANDIDATE},
            z3.And(ahead(following[NODE]), descends),
        ),
        _claim("walk_meets_the_published", "P4", ended, NODE == CANDIDATE),
        _claim("walk_meets_nothing_else", "P4", at_block, here),
    ]


def _claim(path: str, theorem: str, assumed: Facts, goal: Any) -> Obligation:
    return Obligation(f"pool/look_up/{path}", "invariant", theorem, assumed, goal, f"pool/look_up/{path}")


def obligations(changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """The search and the walk."""
    return search_obligations(changes) + walk_obligations()
