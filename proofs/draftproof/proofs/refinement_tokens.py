"""Do the ghosts mean what they say? V and W are what the token-level model really holds valid. (R2)

For one arbitrary position, all sizes and a queue of any depth: every transition keeps the relation of
`token_model`, soundly and, under two further assumptions, completely. With it the chain from "this slot
holds the KV of that token in that context" to the counters is closed; the ghosts are no assumption.
Finish and abort are left out, and so is what returns after them: the relation is about unfinished
requests. What those two register is measured against V and W by T3 and T4, and nothing that returns later
changes N, C, R, V or W (T14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.device import ASSUMPTIONS, moved
from draftproof.proofs.induction import step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import Queue, Scope, advanced, pins, symbolic_queue
from draftproof.proofs.refinement_queue import assumed
from draftproof.proofs.terms import integer
from draftproof.proofs.token_model import (
    NO_KV,
    POSITION,
    SHARPER_WHEN_COMPLETE,
    Tokens,
    relation,
    symbolic_tokens,
)
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import FINISHED, Ledger, Rules

Facts = dict[str, Any]
Code = Callable[..., Ledger]
Alteration = Callable[[State], State]

TRANSITIONS = tuple(name for name in EVENTS if name not in ("finish", "abort"))
STRENGTHS = {"sound": False, "complete": True}


class Setting(NamedTuple):
    """One transition of the model: before, after, and everything that is assumed."""

    before: State
    rules: Rules
    event: Any
    queue: Queue
    tokens: Tokens
    facts: Facts
    after: State
    queue_after: Queue
    tokens_after: Tokens


def setting(
    name: str,
    *,
    complete: bool,
    depth: int | None = None,
    code: Code | None = None,
    alter: Alteration | None = None,
    dropped: str | None = None,
) -> Setting:
    """The hypotheses and the step of one transition.

    `depth` pins the queue. `code` replaces the running function, `alter` spoils the state after it, and
    `dropped` leaves out one assumption on the device: the means of controls.
    """
    scope = Scope(depth)
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    queue, tokens = symbolic_queue(), symbolic_tokens()
    after = step(name, before, rules, event, code)
    move = moved(name, before, event, after, queue, tokens, scope)
    facts = assumed(name, before, rules, event, queue, scope)
    related = relation(before, queue, tokens, scope, complete=complete)
    facts |= {f"tokens:{key}": fact for key, fact in related.items()}
    facts["tokens:position"] = POSITION >= 0
    facts["tokens:unfinished"] = before.ledger.status != FINISHED
    facts |= {
        f"device:{key}": fact
        for key, fact in move.assumed.items()
        if key != dropped and (complete or name not in ASSUMPTIONS[key].completeness_only)
    }
    facts |= {f"device:possible:{key}": fact for key, fact in move.possible.items()}
    if depth is not None:
        facts |= pins(queue, depth)
    return Setting(
        before,
        rules,
        event,
        queue,
        tokens,
        facts,
        alter(after) if alter is not None else after,
        advanced(name, queue, before, event),
        move.tokens,
    )


def transition_obligations(
    name: str,
    *,
    complete: bool,
    depth: int | None = None,
    code: Code | None = None,
    alter: Alteration | None = None,
    dropped: str | None = None,
) -> list[Obligation]:
    """The relation kept by one transition; the arguments are those of `setting`."""
    this = setting(name, complete=complete, depth=depth, code=code, alter=alter, dropped=dropped)
    kept = relation(this.after, this.queue_after, this.tokens_after, Scope(depth), complete=complete)
    return _claimed(f"R2/{'complete' if complete else 'sound'}/{name}", this.facts, kept, complete=complete)


def _base_obligations(*, complete: bool) -> list[Obligation]:
    """A request that has just arrived: nothing is written, nothing is in flight."""
    num_prompt_tokens = integer("num_prompt_tokens")
    rules, queue, tokens = symbolic_rules(), symbolic_queue(), symbolic_tokens()
    start = initial_state(num_prompt_tokens)
    state = State(as_terms(start.ledger), as_terms(start.ghosts))
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts |= {
        "position": POSITION >= 0,
        "prompt_is_not_empty": num_prompt_tokens >= 1,
        "nothing_in_flight": z3.And(
            queue.head == 0, queue.tail == 0, queue.first_live == 0, tokens.first_unfreed == 0
        ),
        "nothing_written": z3.And(
            tokens.enqueued_kv == NO_KV, tokens.returned_kv == NO_KV, tokens.valid_before[0] == 0
        ),
        "device_is_given_the_prompt": z3.Implies(
            num_prompt_tokens > POSITION, tokens.committed_identity == tokens.true_identity
        ),
    }
    if complete:
        facts["true_is_written"] = tokens.true_identity != NO_KV
    group = f"R2/{'complete' if complete else 'sound'}/initial"
    return _claimed(group, facts, relation(state, queue, tokens, complete=complete), complete=complete)


def _claimed(group: str, facts: Facts, kept: Facts, *, complete: bool) -> list[Obligation]:
    """What completeness does not sharpen is proved without its assumptions, in the sound half only."""
    return [
        Obligation(f"{group}/{key}", "refinement", "R2", facts, goal, group)
        for key, goal in kept.items()
        if not complete or key in SHARPER_WHEN_COMPLETE
    ]


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """R2, sound and complete, with its base case; `codes` replaces running functions."""
    found = []
    for complete in STRENGTHS.values():
        found += _base_obligations(complete=complete)
        for name in TRANSITIONS:
            found += transition_obligations(name, complete=complete, code=(codes or {}).get(name))
    return found


def depth_of(name: str) -> int:
    """How many steps a pinned queue needs for the transition to be interesting."""
    return {"draft": 0, "chunk_output": 2, "output": 2, "stale_output": 2}.get(name, 1)


def witnesses() -> dict[str, Facts]:
    """For each group a small pinned queue that must be satisfiable, and again in each mode."""
    found = {}
    for strength, complete in STRENGTHS.items():
        for name in TRANSITIONS:
            this = setting(name, complete=complete, depth=depth_of(name))
            found[f"R2/{strength}/{name}"] = this.facts
            asynchronous = this.rules.asynchronous
            if complete:
                found[f"R2/synchronous/{name}"] = this.facts | {"mode": z3.Not(asynchronous)}
            if complete:
                found[f"R2/asynchronous/{name}"] = this.facts | {"mode": asynchronous}
    return found


def refuted_by_pinning(
    names: tuple[str, ...],
    *,
    complete: bool = False,
    code: Code | None = None,
    alter: Alteration | None = None,
    dropped: str | None = None,
) -> list[Obligation]:
    """The obligations of some transitions over a small pinned queue, where z3 finds counterexamples."""
    return [
        obligation._replace(name=f"R2/control/{obligation.name}")
        for name in names
        for obligation in transition_obligations(
            name, complete=complete, depth=depth_of(name), code=code, alter=alter, dropped=dropped
        )
    ]


def _one_more(field: str) -> Alteration:
    """The state after with one ghost a token too large."""

    def alter(state: State) -> State:
        ghosts = state.ghosts._replace(**{field: getattr(state.ghosts, field) + 1})
        return State(state.ledger, ghosts)

    return alter


def _valid_is(value: Callable[[State], Any]) -> Alteration:
    """The state after with another V."""
    return lambda state: State(state.ledger, state.ghosts._replace(num_valid_tokens=value(state)))


def _placeholders_kept(ledger: Ledger, rules: Rules) -> Ledger:
    """A fault: the end of a turn does not take back what is still awaited."""
    after: Ledger = plain(accounting.end_turn)(ledger, rules)
    return after._replace(num_computed_tokens=ledger.num_computed_tokens)


def controls() -> list[Control]:
    """Each assumption dropped, and ghosts or counters that are wrong by a little. Decided by z3 alone."""
    found = [
        Control(
            f"R2/assumption/{name}/{transition}",
            f"Dropped in {transition}: {assumption.sentence}",
            "assumption",
            refuted_by_pinning(
                (transition,), complete=transition in assumption.completeness_only, dropped=name
            ),
        )
        for name, assumption in ASSUMPTIONS.items()
        for transition in assumption.transitions
    ]
    wrong: dict[str, tuple[str, str, Alteration]] = {
        "settled_one_too_far": (
            "W is one too far after an output.",
            "output",
            _one_more("num_settled_tokens"),
        ),
        "valid_one_too_far": ("V is one too far after an output.", "output", _one_more("num_valid_tokens")),
        "valid_is_known": (
            "V is always N after an output.",
            "output",
            _valid_is(lambda state: state.ledger.num_tokens),
        ),
        "valid_is_computed": (
            "V is C after a schedule.",
            "schedule",
            _valid_is(lambda state: state.ledger.num_computed_tokens),
        ),
        "fold_keeps_one_more": (
            "A fold keeps one more valid position.",
            "fold",
            _one_more("num_valid_tokens"),
        ),
    }
    found += [
        Control(f"R2/{name}", sentence, "statement", refuted_by_pinning((transition,), alter=alter))
        for name, (sentence, transition, alter) in wrong.items()
    ]
    sentence = "C stays where it was when a turn ends, samples on their way included."
    faulty = refuted_by_pinning(("end_turn",), code=_placeholders_kept)
    return [*found, Control("R2/placeholders_kept_by_end_turn", sentence, "statement", faulty)]
