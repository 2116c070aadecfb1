"""Do the host's order of events and the device's lead to the same ledger? (T9)

Scheduled ahead, the host schedules step i + 1 and then processes the output of step i; on the device
the output comes first. Both orders are run on one symbolic ledger, so that one adjacent swap is proved
at any depth of run-ahead. A fence of 0 is the plain case; `registrable` states the rest for any fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.impl import accounting
from draftproof.impl.accounting import registrable
from draftproof.impl.contracts import plain
from draftproof.proofs.carrier_z3 import rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer
from draftproof.spec import guards
from draftproof.spec.algebra import floor_to_block, maximum, minimum
from draftproof.spec.events import Draft, EndTurn, Event, Finish, Output, StaleOutput
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.invariants import frontier, invariants
from draftproof.spec.ledger import RUNNING, Ledger, Rules
from draftproof.spec.structural import equal, orders_agree, registered_between

Code = Callable[..., Ledger]
Claims = dict[str, Any]

SHARED_AFTER_A_TURN = tuple(
    field for field in Ledger._fields if field not in ("num_in_flight_tokens", "num_stale_tokens")
)


class Orders(NamedTuple):
    """One ledger, moved in both orders by the same output and the same next step."""

    before: State
    rules: Rules
    schedule: Any
    output: Output
    scheduled: State
    """After the schedule alone."""
    settled: State
    """After the output alone."""
    host: State
    """Schedule, then output."""
    device: State
    """Output, then schedule."""


def _orders(name: str, codes: dict[str, Code] | None = None) -> Orders:
    """Both orders of `schedule` and the returning transition `name`; `codes` replaces running code."""
    code = codes or {}
    before, rules = symbolic_state(), symbolic_rules()
    schedule, returned = symbolic_event("schedule"), symbolic_event(name)
    scheduled = step("schedule", before, rules, schedule, code.get("schedule"))
    settled = step(name, before, rules, returned, code.get(name))
    return Orders(
        before,
        rules,
        schedule,
        returned,
        scheduled,
        settled,
        host=step(name, scheduled, rules, returned, code.get(name)),
        device=step("schedule", settled, rules, schedule, code.get("schedule")),
    )


def guard(name: str, state: State, rules: Rules, event: Event) -> Any:
    """Every condition of the transition, as one formula."""
    return z3.And(*guards.conditions(name, state, rules, event).values())


def _assumed(name: str, orders: Orders) -> Claims:
    """Invariants before, and both guards before: the step is scheduled while the output is on its way."""
    sides = (("schedule", orders.schedule), (name, orders.output))
    return {
        f"{side}:{key}" if key.startswith("guard:") else key: fact
        for side, event in sides
        for key, fact in hypotheses(side, orders.before, orders.rules, event).items()
    }


def _claims_of_output(orders: Orders) -> Claims:
    """What holds of host and device after an output that did not stop and the next step."""
    before, rules, host, device = orders.before, orders.rules, orders.host, orders.device
    num_tokens, registered = host.ledger.num_tokens, before.ledger.num_registered_tokens
    low, high = registrable(num_tokens - 1, rules), registrable(num_tokens, rules)
    on_host, on_device = host.ledger.num_registered_tokens, device.ledger.num_registered_tokens
    return {
        "host_order_enabled": guard("output", orders.scheduled, rules, orders.output),
        "device_order_enabled": guard("schedule", orders.settled, rules, orders.schedule),
        "all_but_registered_equal": orders_agree(host, device),
        "frontier_is_last_known": z3.And(
            frontier(host) == num_tokens - 1, frontier(device) == device.ledger.num_tokens - 1
        ),
        # `registered` is what a hit or an earlier step had published; with a fence it may lie above `low`.
        "registered_between": registered_between(
            host.ledger, device.ledger, maximum(registered, low), maximum(registered, high)
        ),
        "registered_between_without_fence": z3.Implies(
            rules.registration_fence == 0,
            registered_between(
                host.ledger,
                device.ledger,
                floor_to_block(num_tokens - 1, rules.block_size),
                floor_to_block(num_tokens, rules.block_size),
            ),
        ),
        "registered_at_most_a_block_apart": on_device - on_host <= rules.block_size,
        "registered_equal_within_a_block": z3.Implies(low == high, on_host == on_device),
    }


def _not_stopped(orders: Orders) -> Claims:
    return {
        "asynchronous": orders.rules.asynchronous,
        "all_kept": orders.output.num_kept == orders.output.num_accepted + 1,
        "not_stopped": orders.output.stopped == 0,
    }


def _output_obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    orders = _orders("output", codes)
    assumed = {**_assumed("output", orders), **_not_stopped(orders)}
    return [
        Obligation(f"T9/output/{name}", "theorem", "T9", assumed, goal, "T9/output")
        for name, goal in _claims_of_output(orders).items()
    ]


def _device_implies_host() -> list[Obligation]:
    """Whatever the device can do next, the host may already have scheduled."""
    orders = _orders("output")
    before, rules = orders.before, orders.rules
    assumed = {
        **hypotheses("output", before, rules, orders.output),
        **_not_stopped(orders),
        "host_may_schedule": guards.schedulable(before, rules),
        "enabled_on_device": guard("schedule", orders.settled, rules, orders.schedule),
    }
    goal = z3.And(
        guard("schedule", before, rules, orders.schedule),
        guard("output", orders.scheduled, rules, orders.output),
    )
    group = "T9/enabled_on_device"
    return [Obligation(f"{group}/host_order_enabled", "theorem", "T9", assumed, goal, group)]


def _other_returns() -> list[Obligation]:
    """Chunk outputs and stale outputs of a running request commute with a schedule in every field."""
    found = []
    for name in ("chunk_output", "stale_output"):
        orders = _orders(name)
        assumed = _assumed(name, orders)
        if name == "stale_output":
            returned: StaleOutput = symbolic_event(name)
            assumed |= {
                "running": orders.before.ledger.status == RUNNING,
                "not_stopped": returned.stopped == 0,
            }
        claims = {
            "host_order_enabled": guard(name, orders.scheduled, orders.rules, orders.output),
            "device_order_enabled": guard("schedule", orders.settled, orders.rules, orders.schedule),
            "all_equal": z3.And(
                equal(orders.host.ledger, orders.device.ledger, Ledger._fields),
                equal(orders.host.ghosts, orders.device.ghosts, Ghosts._fields),
            ),
        }
        group = f"T9/{name}"
        found += [
            Obligation(f"{group}/{claim}", "theorem", "T9", assumed, goal, group)
            for claim, goal in claims.items()
        ]
    return found


def _past_a_stop(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """The host scheduled one step too many, since it could not know of the stop: no trace remains."""
    orders = _orders("output", codes)
    rules = orders.rules
    assumed = {
        **_assumed("output", orders),
        "asynchronous": rules.asynchronous,
        "stopped": orders.output.stopped == 1,
    }
    code = codes or {}
    extra = orders.schedule.num_new_tokens
    ahead, alone = (
        step("end_turn", state, rules, EndTurn(), code.get("end_turn"))
        for state in (orders.host, orders.settled)
    )
    finished_ahead, finished_alone = (
        step("finish", state, rules, Finish(), code.get("finish")) for state in (orders.host, orders.settled)
    )
    claims = {
        "end_turn_differs_in_flight_only": z3.And(
            equal(ahead.ledger, alone.ledger, SHARED_AFTER_A_TURN),
            equal(ahead.ghosts, alone.ghosts, Ghosts._fields),
            ahead.ledger.num_in_flight_tokens == alone.ledger.num_in_flight_tokens + extra,
            ahead.ledger.num_stale_tokens == alone.ledger.num_stale_tokens + extra,
        ),
        "settled_before_finish_equal": z3.And(
            equal(orders.host.ledger, orders.settled.ledger, ("num_tokens", "num_trimmed_tokens")),
            orders.host.ghosts.num_settled_tokens == orders.settled.ghosts.num_settled_tokens,
        ),
        # What finish adds is the same; the extra step may have published a block at its dispatch.
        "finish_settles_the_same": finished_ahead.ledger.num_registered_tokens
        == maximum(orders.host.ledger.num_registered_tokens, finished_alone.ledger.num_registered_tokens),
    }
    group = "T9/past_a_stop"
    return [
        Obligation(f"{group}/{claim}", "theorem", "T9", assumed, goal, group)
        for claim, goal in claims.items()
    ]


def _settled_round() -> list[Obligation]:
    """With nothing in flight, one asynchronous round is one synchronous round with K drafts proposed."""
    before, rules = symbolic_state(), symbolic_rules()
    schedule, returned = symbolic_event("schedule"), symbolic_event("output")
    asynchronous = rules._replace(asynchronous=z3.BoolVal(True))
    synchronous = rules._replace(asynchronous=z3.BoolVal(False))
    redraft = Draft(rules.num_speculative_tokens)
    sent = {mode: step("schedule", before, mode, schedule) for mode in (asynchronous, synchronous)}
    ahead = step("output", sent[asynchronous], asynchronous, returned)
    undrafted = step("output", sent[synchronous], synchronous, returned)
    settled = step("draft", undrafted, synchronous, redraft)
    assumed: Claims = {
        **{f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))},
        **{f"asynchronous:{key}": fact for key, fact in invariants(before, asynchronous).items()},
        **{f"synchronous:{key}": fact for key, fact in invariants(before, synchronous).items()},
        "nothing_awaited": before.ghosts.num_awaited_samples == 0,
        "no_prefill_in_flight": before.ghosts.num_prefill_in_flight == 0,
        "decoding": before.ledger.num_computed_tokens == before.ledger.num_tokens - 1,
        "scheduled": guard("schedule", before, synchronous, schedule),
        "returned": guard("output", sent[synchronous], synchronous, returned),
        "drafts_as_dispatched": returned.num_drafts == schedule.num_new_tokens - 1,
        "not_stopped": returned.stopped == 0,
    }
    claims = {
        "asynchronous_output_enabled": guard("output", sent[asynchronous], asynchronous, returned),
        "draft_enabled": guard("draft", undrafted, synchronous, redraft),
        "all_but_registered_equal": orders_agree(ahead, settled),
        "registered_at_output": ahead.ledger.num_registered_tokens
        == maximum(settled.ledger.num_registered_tokens, registrable(ahead.ledger.num_tokens - 1, rules)),
        "nothing_awaited_after": z3.And(
            ahead.ghosts.num_awaited_samples == 0,
            ahead.ledger.num_computed_tokens == ahead.ledger.num_tokens - 1,
        ),
    }
    group = "T9/settled_round"
    return [
        Obligation(f"{group}/{claim}", "theorem", "T9", assumed, goal, group)
        for claim, goal in claims.items()
    ]


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """All of T9; `codes` replaces running transitions by name (planted faults)."""
    return [
        *_output_obligations(codes),
        *_device_implies_host(),
        *_other_returns(),
        *_past_a_stop(codes),
        *_settled_round(),
    ]


def _schedule_forgetting_placeholders(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """A fault: a step samples once it reaches the known tokens, samples on their way not counted."""
    forgetful = ledger._replace(num_output_placeholders=0)
    after: Ledger = plain(accounting.schedule)(forgetful, rules, num_new_tokens)
    return after._replace(
        num_output_placeholders=ledger.num_output_placeholders + after.num_output_placeholders
    )


def _end_turn_forgetting_placeholders(ledger: Ledger, rules: Rules) -> Ledger:
    """A fault: samples on their way stay computed when the turn ends."""
    after: Ledger = plain(accounting.end_turn)(ledger._replace(num_output_placeholders=0), rules)
    return after


def _finish_forgetting_in_flight(ledger: Ledger, rules: Rules) -> Ledger:
    """A fault: steps in flight count as settled when the request finishes."""
    after: Ledger = plain(accounting.finish)(ledger._replace(num_in_flight_tokens=0), rules)
    return after._replace(num_in_flight_tokens=ledger.num_in_flight_tokens)


def controls() -> list[Control]:
    """What must not be provable: one thing too much, or a planted fault."""
    orders = _orders("output")
    assumed = {**_assumed("output", orders), **_not_stopped(orders)}
    max_model_len = integer("max_model_len")

    def own_clamp(state: State) -> Any:
        room = max_model_len - 1 - state.ledger.num_computed_tokens
        return minimum(num_schedulable(state.ledger), room)

    def stated(name: str, goal: Any, facts: Claims) -> list[Obligation]:
        return [Obligation(f"T9/control/{name}", "theorem", "T9", facts, goal, f"T9/control/{name}")]

    before_scheduling = {
        **hypotheses("output", orders.before, orders.rules, orders.output),
        **_not_stopped(orders),
        "host_may_schedule": guards.schedulable(orders.before, orders.rules),
    }
    return [
        Control(
            "T9/registered_equal_too",
            "Host and device agree on R as well.",
            "statement",
            stated(
                "registered_equal_too",
                equal(orders.host.ledger, orders.device.ledger, ("num_registered_tokens",)),
                assumed,
            ),
        ),
        Control(
            "T9/each_clamps_for_itself",
            "Host and device choose the same step size when each clamps to max_model_len by itself.",
            "statement",
            stated(
                "each_clamps_for_itself",
                own_clamp(orders.before) == own_clamp(orders.settled),
                before_scheduling,
            ),
        ),
        Control(
            "T9/placeholders_forgotten_by_schedule",
            "The orders commute although schedule forgets the samples on their way.",
            "statement",
            _output_obligations({"schedule": _schedule_forgetting_placeholders}),
        ),
        Control(
            "T9/placeholders_forgotten_by_end_turn",
            "A step past a stop leaves no trace although end_turn keeps samples on their way as computed.",
            "statement",
            _past_a_stop({"end_turn": _end_turn_forgetting_placeholders}),
        ),
        Control(
            "T9/in_flight_forgotten_by_finish",
            "A step past a stop leaves no trace although finish counts it as settled.",
            "statement",
            _past_a_stop({"finish": _finish_forgetting_in_flight}),
        ),
    ]
