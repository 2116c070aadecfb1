"""Does every invariant and every effect of the pool carry something? What breaks when one is left out.

On a small pool with every quantifier written out, so that what breaks, breaks in a real state of it. Three
kinds of invariants come out differently, and each is in one of the tables here:

- most are needed: without one, some other claim fails (`NEEDED`);
- those that say how a list is ordered are needed together (`TOGETHER`). Any one of them follows from the
  others in every finite pool, by induction along the list; solvers do no induction, so the proofs over
  pools of any size need each of them stated (`IN_PROOFS`);
- `counted_is_free` is half of what P1 says, and serves nothing else (`STATEMENTS`).

Some effects say again, for a reader, what the others imply (`RESTATED`). Without any other one, two results
of a call could differ in a cell that can be read.
"""

from __future__ import annotations

from collections.abc import Collection

import z3

from draftproof.proofs import pool_completeness, pool_links, pool_loops
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_bounded import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_CHAINS,
    in_the_pool,
    pinned,
    size_of_the_small_pool,
    small_pool,
)
from draftproof.proofs.pool_code import code
from draftproof.proofs.pool_instances import Facts
from draftproof.proofs.pool_mutants import claims_about
from draftproof.proofs.pool_setting import FIRST, setting
from draftproof.spec.pool_effects import EFFECTS

NEEDED: dict[str, str] = {
    "null_block_stays_out": "acquire/invariant/owner_is_counted",
    "owner_is_counted": "release/effect/owned_has_an_owner",
    "count_is_owned": "release/invariant/owner_is_counted",
    "free_is_counted": "take/invariant/free_count_is_not_negative",
    "free_count_is_not_negative": "release/invariant/free_is_counted",
    "free_list_is_a_ring": "take/effect/takes_the_least_recent",
    "links_are_in_range": "acquire/in_bounds/next_free",
    "stamps_are_bounded": "release_all/round/tail_before_head",
    "chains_are_rings": "look_up/starts",
    "publications_are_counted": "publish/invariant/serials_are_bounded",
    "serials_are_bounded": "look_up/descends",
    "rows_hold_their_tokens": "append/in_bounds/token_ids",
    "digest_is_of_the_content": "look_up/same_ancestors",
    "tokens_are_of_the_content": "look_up/published_content_is_found",
}
"""By invariant: a claim, other than its own, that fails without it."""

_ORDER = ("stamps_differ", "stamps_ascend", "no_stamp_is_skipped", "free_list_has_ends")
_AGE = ("serials_differ", "serials_descend", "no_serial_is_skipped", "chain_starts_with_the_newest")

TOGETHER: dict[tuple[str, ...], tuple[str, ...]] = {
    _ORDER: ("take/effect/takes_the_least_recent", "links/next_free", "links/previous_free"),
    _AGE: ("look_up/starts", "look_up/step", "links/next_in_chain", "links/previous_in_chain"),
}
"""By invariants: claims that fail without all of them."""

IN_PROOFS: dict[str, str] = {
    "stamps_differ": "take/determines/result",
    "stamps_ascend": "links/next_free",
    "no_stamp_is_skipped": "take/invariant/free_list_has_ends",
    "free_list_has_ends": "take/effect/takes_the_least_recent",
    "serials_differ": "look_up/step",
    "serials_descend": "look_up/descends",
    "no_serial_is_skipped": "look_up/step",
    "chain_starts_with_the_newest": "look_up/starts",
}
"""By invariant: a claim that, for pools of any size, is not proved any more without it."""

STATEMENTS = ("counted_is_free",)
"""Invariants that nothing else uses: they are what is to be shown."""

_NOTHING_ELSE = ("held_content_is_kept", "nothing_happens_unasked")
_OWNED = ("evicted_without_owners", "owned_has_an_owner")

RESTATED: dict[str, tuple[str, ...]] = {
    "take": ("evicted_without_owners",),
    "acquire": (*_NOTHING_ELSE, "evicted_without_owners"),
    "release": (*_NOTHING_ELSE, *_OWNED, "freed_goes_to_its_end"),
    "publish": (*_NOTHING_ELSE, *_OWNED),
    "withdraw": (*_NOTHING_ELSE, "withdrawn_is_writable"),
    "append": (*_OWNED, "writer_is_sole_owner"),
    "own_copy": (*_OWNED, "handle_moves", "nothing_happens_unasked"),
}
"""By primitive: effects that the others, the ghosts and the invariants imply."""


def _claim_without(path: str, dropped: Collection[str]) -> list[Obligation]:
    subject, _, claim = path.partition("/")
    if subject == "links":
        return [_links_without(claim, dropped)]
    found = claims_about(subject, {}, claim, dropped)
    return [one for one in found if one.name == f"pool/{path}"]


def _links_without(field: str, dropped: Collection[str]) -> Obligation:
    """The links in two small pools with every index written out."""
    layer = next(layer for layer, links in pool_links.LISTS.items() if field in links)
    nodes = [z3.IntVal(node) for node in range(NUM_BLOCKS + NUM_CHAINS + 1)]
    facts = size_of_the_small_pool() | pool_links.facts_at(layer, nodes, dropped)
    facts["node"] = z3.And(FIRST >= 0, len(nodes) > FIRST)
    return Obligation(
        f"pool/links/{field}", "control", "determined", facts, pool_links.same_link(layer, field)
    )


def _words(names: Collection[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def invariant_controls() -> list[Control]:
    """Without an invariant, or without those that order a list, a claim fails in a small pool."""
    dropped: list[tuple[str, tuple[str, ...], str]] = [(name, (name,), path) for name, path in NEEDED.items()]
    dropped += [(f"{names[0]}_and_more", names, path) for names, paths in TOGETHER.items() for path in paths]
    return [
        Control(
            f"pool/without_{title}/{path}",
            f"{path} holds without: {_words(names)}.",
            "assumption",
            _claim_without(path, names),
        )
        for title, names, path in dropped
    ]


def effect_facts(primitive: str) -> Facts:
    """Two results of a call in the small pool, with every effect at every index."""
    blocks, offsets = [[z3.IntVal(index) for index in range(count)] for count in (NUM_BLOCKS + 1, BLOCK_SIZE)]
    results = [call.result for _, call in pool_completeness.results()]
    inside = {"results": z3.And([z3.And(result >= 0, result <= NUM_BLOCKS) for result in results])}
    facts = pinned(setting(primitive, code())) | in_the_pool() | inside
    return facts | pool_completeness.effect_facts(primitive, blocks, offsets)


def effect_controls(primitive: str) -> list[Control]:
    """Every effect that is not said again is needed: without it the results may differ in some cell."""
    facts = effect_facts(primitive)
    goal = z3.And(list(pool_completeness.agreement(primitive).values()))
    name = f"pool/{primitive}/determines"
    return [
        Control(
            f"pool/{primitive}_without_{effect}",
            f"The effects of {primitive} determine every cell without: {_words([effect])}.",
            "assumption",
            [Obligation(name, "control", "determined", without_effect(facts, effect), goal)],
        )
        for effect, one in EFFECTS.items()
        if primitive in one.primitives and effect not in RESTATED[primitive]
    ]


def without_effect(facts: Facts, effect: str) -> Facts:
    """The same facts without one effect on either result."""
    dropped = {f"{result}:{effect}" for result in pool_completeness.RESULTS}
    return {name: fact for name, fact in facts.items() if name not in dropped}


def order_controls() -> list[Control]:
    """A take before the hits are acquired may evict one."""
    claim = pool_loops.take_before_acquire()
    facts = small_pool() | in_the_pool() | claim.hypotheses
    return [
        Control(
            "pool/take_before_acquire",
            "A hit that nobody has acquired yet survives a take.",
            "statement",
            [claim._replace(hypotheses=facts)],
        )
    ]
