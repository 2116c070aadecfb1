"""The ledger beside a `Recurrent` record: do the two move together, and do the guards' facts follow?

A scheduler calls a transition of the ledger and one of the record for one event. `beside` relates the two of
a running request; every such pair keeps it, and with it the ledger's invariants give what the record's
events assume: which step is a chunk and which verifies drafts, that a sample follows all that is known, and
that what is offered for publication is known and dispatched. What is left to the exact queue is marked so:
that the steps in flight add up to what their sums say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.impl import recurrent as running
from draftproof.impl.dispatch import num_drafts_in_step, samples_in_step
from draftproof.proofs.carrier_z3 import as_terms, symbolic_event, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import choose, integer
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import RUNNING, Rules
from draftproof.spec.recurrent import NO_STATE, Recurrent, RecurrentRules, num_certain_tokens
from draftproof.spec.recurrent_events import Dispatch, EndTurn, Leave, Publish, Settle, Start
from draftproof.spec.recurrent_ghosts import NO_ROLE, RecurrentGhosts, RecurrentState, StateBlock
from draftproof.spec.recurrent_guards import RECURRENT_CONTROL, num_settled_states, recurrent_facts
from draftproof.spec.recurrent_invariants import recurrent_invariants

Facts = dict[str, Any]
FAMILY = "recurrent"


class Beside(NamedTuple):
    """A ledger with its ghosts, the record beside it, and how many steps that sample are in flight."""

    ledger: State
    recurrent: RecurrentState
    num_sampling_steps: Any


def beside(pair: Beside) -> Facts:
    """How ledger and record belong together while the request runs."""
    (ledger, ghosts), (recurrent, of_record, _), sampling = (
        pair.ledger,
        pair.recurrent,
        pair.num_sampling_steps,
    )
    num_live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
    return {
        "holds_state": recurrent.holds_state == 1,
        "same_known_tokens": of_record.num_known_tokens == ledger.num_tokens,
        "same_work_in_flight": recurrent.num_in_flight_tokens == num_live,
        "state_is_what_returned": recurrent.num_state_tokens == ledger.num_computed_tokens - num_live,
        "same_trim": recurrent.num_trimmed_tokens == ledger.num_trimmed_tokens,
        "drafts_are_awaited": recurrent.num_in_flight_drafts == ghosts.num_awaited_samples - sampling,
        "sampling_steps": z3.And(sampling >= 0, (sampling == 0) == (ghosts.num_awaited_samples == 0)),
        "targets_ahead_in_decode_only": z3.Implies(
            recurrent.num_reserved_tokens > num_certain_tokens(recurrent),
            ledger.num_computed_tokens - ghosts.num_awaited_samples == ledger.num_tokens - 1,
        ),
    }


def symbolic_pair() -> tuple[Beside, RecurrentRules]:
    """Any ledger and record."""
    record = RecurrentState(
        symbols(Recurrent, "record."), symbols(RecurrentGhosts, "record."), symbols(StateBlock, "block.")
    )
    return Beside(symbolic_state(), record, integer("num_sampling_steps")), symbols(RecurrentRules, "group.")


def assumed(name: str, pair: Beside, rules: Rules, group: RecurrentRules, event: Any) -> Facts:
    """What a pair of events may assume: both sides' invariants, the ledger's guard, and the relation."""
    facts = hypotheses(name, pair.ledger, rules, event)
    facts |= {f"beside:{key}": fact for key, fact in beside(pair).items()}
    facts |= {f"record:{key}": fact for key, fact in recurrent_invariants(pair.recurrent, group).items()}
    return facts | {
        "running": pair.ledger.ledger.status == RUNNING,
        "group:drafts": group.num_speculative_tokens == rules.num_speculative_tokens,
        "group:block": group.block_size >= 1,
    }


def _claims(name: str, assumed_facts: Facts, goals: Facts) -> list[Obligation]:
    path = f"recurrent/ledger/{name}"
    return [
        Obligation(f"{path}/{key}", "refinement", FAMILY, assumed_facts, goal, path)
        for key, goal in goals.items()
    ]


def _moved(pair: Beside, ledger: State, recurrent: Recurrent, known: Any, sampling: Any) -> Beside:
    ghosts = pair.recurrent.ghosts._replace(num_known_tokens=known)
    return Beside(ledger, pair.recurrent._replace(recurrent=recurrent, ghosts=ghosts), sampling)


def schedule_obligations(drop: str = "") -> list[Obligation]:
    """`schedule` with `dispatch`: the record's guard allows the step, and the two stay together."""
    (pair, group), rules, event = symbolic_pair(), symbolic_rules(), symbolic_event("schedule")
    facts = assumed("schedule", pair, rules, group, event)
    facts.pop(drop, None)
    ledger = pair.ledger.ledger
    num_drafts = num_drafts_in_step(ledger, event.num_new_tokens)
    accepted = integer("num_accepted")
    facts["device:accepted"] = z3.And(accepted >= 0, accepted <= num_drafts)
    asked = Dispatch(event.num_new_tokens, num_drafts, ledger.num_tokens, accepted)
    guard = RECURRENT_CONTROL["dispatch"](pair.recurrent, group, asked, NO_ROLE)
    guard.pop("was_offered")  # the protocol's: publication is asked after every dispatch and output
    record = running.dispatch(
        pair.recurrent.recurrent, group, event.num_new_tokens, num_drafts, ledger.num_tokens
    )
    after = _moved(
        pair,
        step("schedule", pair.ledger, rules, event),
        as_terms(record),
        ledger.num_tokens,
        pair.num_sampling_steps + choose(samples_in_step(ledger, event.num_new_tokens), 1, 0),
    )
    offered = Publish(running.registrable_in_service(after.ledger.ledger))
    goals = {f"guard/{key}": goal for key, goal in guard.items()}
    goals |= {f"beside/{key}": goal for key, goal in beside(after).items()}
    return _claims("schedule", facts, goals | _may_be_published(after, group, offered))


def _may_be_published(pair: Beside, group: RecurrentRules, event: Publish) -> Facts:
    """What is offered is within the record's guard."""
    conditions = RECURRENT_CONTROL["publish"](pair.recurrent, group, event, NO_ROLE)
    conditions |= recurrent_facts("publish", pair.recurrent, group, event, NO_ROLE)
    return {f"offered/{key}": goal for key, goal in conditions.items()}


def output_obligations(name: str) -> list[Obligation]:
    """`output` or `chunk_output` with `settle`."""
    (pair, group), rules, event = symbolic_pair(), symbolic_rules(), symbolic_event(name)
    facts = assumed(name, pair, rules, group, event)
    ledger, ghosts = pair.ledger
    samples = name == "output"
    asked = (
        Settle(event.num_returned, event.num_drafts, event.num_accepted, event.num_kept)
        if samples
        else Settle(event.num_returned, 0, 0, 0)
    )
    sampling = pair.num_sampling_steps - (1 if samples else 0)
    if samples:
        rest = ghosts.num_awaited_samples - 1 - event.num_drafts
        facts["queue:sums"] = z3.And(
            pair.num_sampling_steps >= 1, (sampling == 0) == (rest == 0), rest >= sampling
        )
    record = as_terms(running.settle(pair.recurrent.recurrent, group, *asked))
    after = _moved(
        pair, step(name, pair.ledger, rules, event), record, ledger.num_tokens + asked.num_kept, sampling
    )
    told = recurrent_facts("settle", pair.recurrent, group, asked, NO_ROLE)
    by_queue_only = {
        "rest_as_dispatched",
        "every_step_has_a_token_beside_its_drafts",
        "last_step_left_the_state",
    }
    goals = {f"fact/{key}": goal for key, goal in told.items() if key not in by_queue_only}
    guard = RECURRENT_CONTROL["settle"](pair.recurrent, group, asked, NO_ROLE)
    goals |= {f"guard/{key}": goal for key, goal in guard.items()}
    goals |= {f"beside/{key}": goal for key, goal in beside(after).items()}
    goes_on = after.ledger.ledger.stop_pending == 0
    left = after.recurrent.recurrent
    facts["queue:rest"] = z3.Or(
        z3.And(left.num_in_flight_tokens == 0, left.num_in_flight_drafts == 0),
        z3.And(left.num_in_flight_drafts >= 0, left.num_in_flight_tokens > left.num_in_flight_drafts),
    )
    offered = Publish(running.registrable_in_service(after.ledger.ledger))
    goals |= {
        key: z3.Implies(goes_on, goal) for key, goal in _may_be_published(after, group, offered).items()
    }
    return _claims(name, facts, goals)


def exit_obligations(name: str, limit: Callable[..., Any]) -> list[Obligation]:
    """What is offered when the row leaves is settled, all of it, and within the record's guard."""
    (pair, group), rules, event = symbolic_pair(), symbolic_rules(), symbolic_event(name)
    facts = assumed(name, pair, rules, group, event)
    offered = Publish(limit(pair.ledger.ledger))
    goals = _may_be_published(pair, group, offered)
    num_replaced = 0
    if name == "end_turn":
        num_replaced = 1
        told = recurrent_facts("end_turn", pair.recurrent, group, EndTurn(), NO_ROLE)
        goals |= {f"fact/{key}": goal for key, goal in told.items()}
    settled = num_settled_states(pair.recurrent, Leave(num_replaced).num_replaced)
    goals["offers_everything_settled"] = offered.num_registrable_tokens >= settled
    return _claims(name, facts, goals)


def admit_obligations() -> list[Obligation]:
    """`admit` of a request that starts from nothing, with `start`."""
    (pair, group), rules, event = symbolic_pair(), symbolic_rules(), symbolic_event("admit")
    facts = hypotheses("admit", pair.ledger, rules, event)
    ledger = pair.ledger.ledger
    checkpoint = integer("num_checkpoint_tokens")
    facts |= {
        "starts_from_nothing": ledger.num_computed_tokens == 0,
        "checkpoint": z3.And(checkpoint >= 0, checkpoint <= ledger.num_prompt_tokens - 1),
        "group:block": group.block_size >= 1,
    }
    asked = Start(event.num_hit_tokens, checkpoint)
    idle = RecurrentState(
        as_terms(NO_STATE),
        pair.recurrent.ghosts._replace(num_known_tokens=ledger.num_tokens),
        pair.recurrent.block,
    )
    guard = RECURRENT_CONTROL["start"](idle, group, asked, NO_ROLE)
    guard.pop("one_role")  # about the watched block, which takes no part here
    record = as_terms(running.start(idle.recurrent, group, *asked))
    after = _moved(pair, step("admit", pair.ledger, rules, event), record, ledger.num_tokens, z3.IntVal(0))
    goals = {f"guard/{key}": goal for key, goal in guard.items()}
    return _claims("admit", facts, goals | {f"beside/{key}": goal for key, goal in beside(after).items()})


def obligations() -> list[Obligation]:
    """Every pair of events of a running request."""
    return [
        *admit_obligations(),
        *schedule_obligations(),
        *output_obligations("chunk_output"),
        *output_obligations("output"),
        *exit_obligations("finish", running.registrable_at_exit),
        *exit_obligations("preempt", running.registrable_at_exit),
        *exit_obligations("abort", running.registrable_at_exit),
        *exit_obligations("end_turn", running.registrable_at_turn_end),
    ]


def controls() -> list[Control]:
    """Parts of the relation that a step needs."""
    return [
        Control(
            f"recurrent/ledger/without_{key}",
            f"The relation of ledger and record without `{key}`.",
            "assumption",
            schedule_obligations(f"beside:{key}"),
        )
        for key in ("targets_ahead_in_decode_only", "same_trim", "state_is_what_returned")
    ]
