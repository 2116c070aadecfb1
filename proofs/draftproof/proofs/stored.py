"""Is what was stored found again, and all of it stored? T13, and T4 where it is exact.

T13 composes pieces of running code: a request stops and finishes, then another one that begins with its
tokens looks them up. What is claimed is in `draftproof.spec.lookups`. What the finished request had itself
hit when its life began is followed through all transitions by an induction of its own, for no counter keeps
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.impl import decisions as code_of
from draftproof.proofs.carrier_z3 import (
    as_terms,
    rules_hold,
    symbolic_event,
    symbolic_rules,
    symbolic_state,
)
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import Code, hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer
from draftproof.spec import lookups
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.events import EVENTS, Finish
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import RUNNING, Rules
from draftproof.spec.lookups import LookUp

Facts = dict[str, Any]
Decide = Callable[..., Any]


class _Stored(NamedTuple):
    """A running request that finishes, and a look-up afterwards."""

    before: State
    rules: Rules
    after: State
    look_up: LookUp
    facts: Facts
    """The hypotheses of the finish, and what any look-up is."""

    @property
    def chain(self) -> Facts:
        """Assumed where something must be found: no eviction in between."""
        fact = lookups.chain_is_found_whole(self.after, self.rules, self.look_up)
        return {"assumed:chain_is_found_whole": fact}

    @property
    def only(self) -> Facts:
        """Assumed where nothing else may be found."""
        fact = lookups.only_the_chain_is_found(self.after, self.rules, self.look_up)
        return {"assumed:only_the_chain_is_found": fact}

    @property
    def no_fence(self) -> Facts:
        return {"no_fence": self.rules.registration_fence == 0}

    @property
    def longer(self) -> Facts:
        return {"look_up:is_longer": self.look_up.num_tokens > self.before.ledger.num_tokens}


def _stored(finish: Code | None = None, lookup_hit: Decide | None = None) -> _Stored:
    before, rules, event = symbolic_state(), symbolic_rules(), Finish()
    after = step("finish", before, rules, event, finish)
    find: Decide = lookup_hit or code_of.lookup_hit
    other, matching = symbolic_state("other.").ledger, integer("num_matching_tokens")
    keeps: Any = z3.BoolVal(False)
    drops: Any = z3.BoolVal(True)
    look_up = LookUp(
        other.num_tokens,
        matching,
        find(other, rules, matching, keeps),
        find(other, rules, matching, drops),
    )
    facts = hypotheses("finish", before, rules, event) | {
        "running": before.ledger.status == RUNNING,
        "look_up:knows_a_token": other.num_tokens >= 1,
        "look_up:matches_whole_blocks": z3.And(
            matching >= 0, matching == floor_to_block(matching, rules.block_size)
        ),
    }
    return _Stored(before, rules, after, look_up, facts)


def _since_hit(state: State, rules: Rules, num_hit_tokens: Any) -> Facts:
    """The induction's hypothesis: what was published since the request's own hit (`follow_the_hit`)."""
    found = lookups.published_since_hit(state, rules, num_hit_tokens)
    return {f"hit:{name}": fact for name, fact in found.items()}


def _named(group: str, theorem: str, facts: Facts, goals: Facts) -> list[Obligation]:
    return [
        Obligation(f"{group}/{name}", "theorem", theorem, facts, goal, group) for name, goal in goals.items()
    ]


def store_then_look_up(finish: Code | None = None, lookup_hit: Decide | None = None) -> list[Obligation]:
    """T13, and T4 where it is exact; `finish` and `lookup_hit` replace the running functions."""
    this = _stored(finish, lookup_hit)
    before, rules, after, look_up, facts = this
    exact = facts | this.no_fence
    registered, settled = after.ledger.num_registered_tokens, before.ghosts.num_settled_tokens
    num_hit_tokens = integer("num_hit_tokens")
    closed = lookups.hit_is_closed_form(before, rules, look_up, num_hit_tokens)
    every = lookups.longer_finds_every_settled_block(before, rules, look_up)
    return [
        *_named(
            "T4/finish",
            "T4",
            facts,
            {"registers_the_settled": lookups.registers_the_settled(before, rules, after)},
        ),
        *_named(
            "T4/finish_without_fence",
            "T4",
            exact,
            {"registered_is_exact": registered == floor_to_block(settled, rules.block_size)},
        ),
        *_named(
            "T13/any_cache",
            "T13",
            facts,
            {"drop_costs_one_block": lookups.drop_costs_one_block(before, rules, look_up)},
        ),
        *_named("T13/may_be_used", "T13", facts | this.only, lookups.may_be_used(before, rules, look_up)),
        *_named("T13/is_found", "T13", facts | this.chain, lookups.is_found(before, rules, look_up)),
        *_named(
            "T13/longer_look_up",
            "T13",
            exact | this.chain | this.longer,
            {"finds_every_settled_block": every},
        ),
        *_named(
            "T13/exact",
            "T13",
            facts | this.chain | this.only | _since_hit(before, rules, num_hit_tokens),
            {"hit_is_closed_form": closed},
        ),
        *_named(
            "T13/exact_without_fence",
            "T13",
            exact | this.chain | this.only,
            {"hit_is_closed_form": lookups.hit_is_closed_form(before, rules, look_up, 0)},
        ),
    ]


def stop_then_finish(finish: Code | None = None) -> list[Obligation]:
    """T13 in terms of N: a running output stops the request, the running finish follows. Nothing but an
    `end_turn` could come in between: every other guard asks for no stop, or for another status."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("output")
    stopped = step("output", before, rules, event)
    after = step("finish", stopped, rules, Finish(), finish)
    known = lookups.num_settled_at_stop(event, stopped)
    facts = hypotheses("output", before, rules, event) | {"stops": event.stopped == 1}
    exact = facts | {"no_fence": rules.registration_fence == 0}
    settled = {"settled_is_all_if_the_last_kept_was_a_draft": stopped.ghosts.num_settled_tokens == known}
    stored = after.ledger.num_registered_tokens == floor_to_block(known, rules.block_size)
    return [
        *_named("T13/stop", "T13", facts, settled),
        *_named("T13/stop_without_fence", "T13", exact, {"stored_is_closed_form_of_known": stored}),
    ]


def follow_the_hit(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """Of what a request publishes only its own hit may lie behind the fence: from its arrival through every
    transition. `codes` replaces running functions."""
    num_hit_tokens = integer("num_hit_tokens")
    rules, start = symbolic_rules(), initial_state(integer("num_prompt_tokens"))
    arrived = State(as_terms(start.ledger), as_terms(start.ghosts))
    facts: Facts = {"rules": z3.And(*rules_hold(rules)), "prompt_is_not_empty": start.ledger.num_tokens >= 1}
    found = _named("T13/hit/initial", "T13", facts, lookups.published_since_hit(arrived, rules, 0))
    for name in EVENTS:
        before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
        after = step(name, before, rules, event, (codes or {}).get(name))
        facts = hypotheses(name, before, rules, event) | _since_hit(before, rules, num_hit_tokens)
        followed = lookups.hit_of_life(before, event, num_hit_tokens)
        kept = lookups.published_since_hit(after, rules, followed)
        found += _named(f"T13/hit/{name}", "T13", facts, kept)
    return found


def obligations() -> list[Obligation]:
    """What was stored is found, in terms of W and of N, and the hit that came first."""
    return store_then_look_up() + stop_then_finish() + follow_the_hit()


def controls() -> list[Control]:
    """Each assumption of T13 dropped, and claims that go too far."""
    this = _stored()
    before, rules, after, look_up, facts = this
    settled, hit = before.ghosts.num_settled_tokens, look_up.num_hit_tokens
    closed = lookups.hit_is_closed_form(before, rules, look_up, 0)
    registered = after.ledger.num_registered_tokens
    exact = registered == floor_to_block(settled, rules.block_size)
    found = facts | this.chain | this.only
    uses_all = z3.Implies(settled >= look_up.num_tokens, look_up.num_tokens - hit < rules.block_size)
    assumptions = {
        "evicted": (
            "A look-up finds what was stored, evicted or not.",
            facts,
            lookups.is_found(before, rules, look_up)["less_than_a_block_is_missed"],
        ),
        "stored_by_others": (
            "What a look-up finds was settled by the request that finished, whoever stored it.",
            facts,
            lookups.may_be_used(before, rules, look_up)["was_settled"],
        ),
        "closed_form_without_the_hit": (
            "The closed form holds behind a fence too, whatever the finished request had hit.",
            found,
            closed,
        ),
        "exact_with_fence": ("A finish registers floor_B(W) whatever the fence.", facts, exact),
        "as_long": (
            "A look-up of just the finished tokens finds every settled block.",
            found | this.no_fence | {"as_long": look_up.num_tokens == before.ledger.num_tokens},
            lookups.longer_finds_every_settled_block(before, rules, look_up),
        ),
    }
    statements = {
        "all_tokens_are_used": (
            "A look-up may use all of its own tokens.",
            found | this.no_fence,
            uses_all,
        ),
        "drop_is_free": (
            "The drop rule costs nothing.",
            found | this.no_fence,
            look_up.num_hit_tokens_with_drop == hit,
        ),
    }
    return [
        Control(f"T13/{name}", sentence, kind, _named(f"T13/control/{name}", "T13", assumed, {"goal": goal}))
        for kind, table in (("assumption", assumptions), ("statement", statements))
        for name, (sentence, assumed, goal) in table.items()
    ]
