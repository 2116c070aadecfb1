"""Is every slot that a step writes in a block the request holds? (T10)

The host reserves every position below C + n when it schedules n tokens, whatever is still in flight.
First in the ledger alone, where the device may be anywhere from the frontier to the optimistic C; then
with the device's real positions from the token-level model (R2), for a queue of any depth. The second
needs one more fact about the queue, proved inductive here: between any two steps the device generates
at most what the host has counted as awaited. Last, what a stop leaves in flight: it still writes, above all
that is settled and published, and no block goes to others before it has returned.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.impl.decisions import may_release
from draftproof.proofs.carrier_z3 import rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import EVERY_DEPTH, Queue, Scope, pins, relation, symbolic_queue
from draftproof.proofs.refinement_tokens import TRANSITIONS, Setting, depth_of, setting
from draftproof.proofs.terms import choose, integer, integers
from draftproof.proofs.token_model import Tokens, symbolic_tokens
from draftproof.spec.events import Finish
from draftproof.spec.invariants import frontier, invariants
from draftproof.spec.ledger import PAUSED, RUNNING, WAITING
from draftproof.spec.queue import dispatched
from draftproof.spec.structural import writes_above, writes_within_reservation

Facts = dict[str, Any]


def generated_within_awaited(queue: Queue, tokens: Tokens, scope: Scope = EVERY_DEPTH) -> Any:
    """Over any stretch of live steps the device generates at most what the host awaits."""

    def stretch(first: Any, second: Any) -> Any:
        made = tokens.generated_before[second] - tokens.generated_before[first]
        awaited = queue.samples_before[second] - queue.samples_before[first]
        return z3.Implies(z3.And(first >= queue.oldest_live, second <= queue.tail), made <= awaited)

    return scope.pairs(stretch)


def _setting(name: str, depth: int | None = None) -> Setting:
    """A transition of the token-level model, with the fact above among its hypotheses."""
    this = setting(name, complete=False, depth=depth)
    lag = {
        "capacity:generated_within_awaited": generated_within_awaited(this.queue, this.tokens, Scope(depth))
    }
    return this._replace(facts=this.facts | lag)


def _state_only(this: Setting) -> Facts:
    """The hypotheses about a state, without those about an event."""
    about_state = ("rules:", "invariant:", "queue:", "tokens:", "capacity:", "pin:")
    return {key: fact for key, fact in this.facts.items() if key.startswith(about_state)}


def _inductive() -> list[Obligation]:
    queue, tokens = symbolic_queue(), symbolic_tokens()
    empty = {"nothing_in_flight": z3.And(queue.head == queue.tail, queue.first_live == queue.tail)}
    group = "T10/initial"
    goal = generated_within_awaited(queue, tokens)
    found = [Obligation(f"{group}/generated_within_awaited", "refinement", "T10", empty, goal, group)]
    for name in TRANSITIONS:
        this = _setting(name)
        goal = generated_within_awaited(this.queue_after, this.tokens_after)
        group = f"T10/{name}"
        path = f"{group}/generated_within_awaited"
        found.append(Obligation(path, "refinement", "T10", this.facts, goal, group))
    return found


def _in_the_ledger() -> tuple[Facts, Facts, Facts]:
    """Hypotheses, claims, and claims that are one slot too strong, without a device."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    ledger, ghosts = before
    num_new, drafts = event.num_new_tokens, rules.num_speculative_tokens
    # J steps in flight await at most J(1 + K) samples (`queue_bounds`); the product stays one symbol.
    awaited_at_most = integer("awaited_at_most")
    num_generated = integer("num_generated_in_flight")
    facts = hypotheses("schedule", before, rules, event)
    facts["device:generated"] = z3.And(num_generated >= 0, num_generated <= ghosts.num_awaited_samples)
    facts["queue:awaited"] = ghosts.num_awaited_samples <= awaited_at_most
    decoding = ledger.num_computed_tokens >= ledger.num_tokens - 1
    end = frontier(before) + num_generated + num_new
    reserved = ledger.num_computed_tokens + num_new
    limit = ledger.num_tokens + awaited_at_most + drafts
    claims = {
        "slots_below_reserved": writes_within_reservation(
            frontier(before) + num_generated, num_new, reserved
        ),
        "slots_below_known_and_awaited": z3.Implies(decoding, end <= limit),
        "reserved_below_known_and_awaited": z3.Implies(decoding, reserved <= limit),
    }
    too_strong = {
        "one_slot_less": end <= reserved - 1,
        "one_known_slot_less": z3.Implies(decoding, end <= limit - 1),
        "placeholders_forgotten": end <= ledger.num_tokens + num_new,
    }
    return facts, claims, too_strong


def _at_dispatch(this: Setting) -> tuple[Facts, Facts]:
    """Claims, and claims one slot too strong, about where the step just scheduled writes on the device."""
    ledger, ghosts = this.before
    num_new, drafts = this.event.num_new_tokens, this.rules.num_speculative_tokens
    step = dispatched(this.before, this.event)
    awaited_at_most = integer("awaited_at_most")
    start, accepted = integers("device.start device.accepted")
    end = start + num_new
    reserved = ledger.num_computed_tokens + num_new
    next_start = choose(step.prefill, end, start + 1 + accepted)
    limit = ledger.num_tokens + awaited_at_most + drafts
    decoding = z3.And(
        ghosts.num_awaited_samples <= awaited_at_most,
        ledger.num_computed_tokens >= ledger.num_tokens - 1,
    )
    claims = {
        "slots_below_reserved": writes_within_reservation(start, num_new, reserved),
        # So a drafter that writes K positions from there needs K slots more, and r further rounds that
        # the host has not scheduled stay below C + n + r(1 + K).
        "next_start_within_reserved": next_start <= reserved,
        "slots_below_known_and_awaited": z3.Implies(decoding, end <= limit),
    }
    too_strong = {
        "device_one_slot_less": end <= reserved - 1,
        "look_ahead_one_slot_less": z3.Implies(drafts >= 1, next_start + drafts <= reserved + drafts - 1),
        "look_ahead_not_reserved": next_start + drafts <= reserved,
        "device_one_known_slot_less": z3.Implies(decoding, end <= limit - 1),
        "device_placeholders_forgotten": end <= ledger.num_tokens + num_new,
    }
    return claims, too_strong


def _in_flight(this: Setting) -> tuple[Facts, Facts]:
    """The same about steps in flight, in every running state."""
    ledger, queue = this.before.ledger, this.queue
    any_step = integer("any_step")
    held = z3.And(ledger.status == RUNNING, queue.live(any_step))
    start, num_tokens = this.tokens.write_start[any_step], queue.num_tokens[any_step]
    end = start + num_tokens
    reach = ledger.num_computed_tokens + ledger.num_trimmed_tokens
    return (
        {
            "in_flight_below_computed_and_trimmed": z3.Implies(
                held, writes_within_reservation(start, num_tokens, reach)
            )
        },
        {
            "in_flight_below_computed": z3.Implies(held, end <= ledger.num_computed_tokens),
            "in_flight_one_slot_less": z3.Implies(held, end <= reach - 1),
        },
    )


def _stopped(this: Setting) -> tuple[Facts, Facts, Facts]:
    """A running request has stopped, trimmed or not: hypotheses, claims about what its later steps still
    write, and a claim that is one slot too strong. `this` is a setting of `end_turn`, whose guard a finish
    shares."""
    (ledger, ghosts), queue = this.before, this.queue
    any_step = integer("any_step")
    still_writes = z3.And(ledger.status == RUNNING, queue.live(any_step))
    start = this.tokens.write_start[any_step]
    finished = step("finish", this.before, this.rules, Finish()).ledger
    last_generated = ledger.num_tokens + ledger.num_trimmed_tokens - 1
    kept = {
        "stopped_writes_above_settled": ghosts.num_settled_tokens,
        "stopped_writes_above_published": ledger.num_registered_tokens,
        "finished_writes_above_published": finished.num_registered_tokens,
        # The trimmed tokens are on the device still, and later steps follow them.
        "stopped_writes_above_trimmed": last_generated,
    }
    facts = _state_only(this) | {"guard:stop_pending": this.facts["guard:stop_pending"]}
    return (
        facts,
        {name: z3.Implies(still_writes, writes_above(start, number)) for name, number in kept.items()},
        {"stopped_writes_one_slot_above": z3.Implies(still_writes, writes_above(start, last_generated + 1))},
    )


def _between_turns(this: Setting) -> Facts:
    """The same in every state between a turn's end and the next turn's first step."""
    ledger, queue, tokens = this.before.ledger, this.queue, this.tokens
    any_step = integer("any_step")
    still_writes = z3.And(
        z3.Or(ledger.status == PAUSED, ledger.status == WAITING),
        queue.in_flight(any_step),
        any_step >= tokens.first_unfreed,
        any_step < queue.first_live,
    )
    start = tokens.write_start[any_step]
    return {
        "between_turns_written_from_computed": z3.Implies(
            still_writes, writes_above(start, ledger.num_computed_tokens)
        ),
        "between_turns_written_above_published": z3.Implies(
            still_writes, writes_above(start, ledger.num_registered_tokens)
        ),
    }


def _released(scope: Scope = EVERY_DEPTH) -> tuple[Facts, Facts, Facts]:
    """When blocks may go to others, in every state, finished ones too: hypotheses, claims, and a claim that
    is too strong."""
    state, rules, queue = symbolic_state(), symbolic_rules(), symbolic_queue()
    transfers, any_step = integer("num_pending_transfers"), integer("any_step")
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts |= {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    facts |= {f"queue:{key}": fact for key, fact in relation(state, rules, queue, scope).items()}
    released = may_release(state.ledger, rules, transfers)
    no_step = queue.head == queue.tail
    return (
        facts,
        {
            "released_only_without_steps": z3.Implies(released, z3.Not(queue.in_flight(any_step))),
            "released_once_all_have_returned": z3.Implies(z3.And(no_step, transfers == 0), released),
        },
        {"released_once_nothing_is_live": z3.Implies(queue.oldest_live == queue.tail, released)},
    )


def _stale(this: Setting) -> tuple[Facts, Facts]:
    """After a turn has ended, its steps still write, at C and above, and so above all that is published:
    those blocks are not free yet."""
    queue, tokens = this.queue_after, this.tokens_after
    ledger = this.after.ledger
    any_step = integer("any_step")
    still_writes = z3.And(
        queue.in_flight(any_step), any_step >= tokens.first_unfreed, any_step < queue.first_live
    )
    start = tokens.write_start[any_step]
    end = start + queue.num_tokens[any_step]
    return (
        {
            "ended_turn_written_from_computed": z3.Implies(
                still_writes, writes_above(start, ledger.num_computed_tokens)
            ),
            "ended_turn_written_above_published": z3.Implies(
                still_writes, writes_above(start, ledger.num_registered_tokens)
            ),
        },
        {"ended_turn_writes_nothing_above": z3.Implies(still_writes, end <= ledger.num_computed_tokens)},
    )


def _block_arithmetic() -> list[Obligation]:
    """Positions to blocks: enough blocks, and no more than needed."""
    size, reserved, slot, blocks = integers("block_size reserved slot num_blocks")
    some = {"block_size": size >= 1, "reserved": reserved >= 1}
    needed = (reserved + size - 1) / size
    lemmas: dict[str, tuple[Facts, Any]] = {
        "slot_is_in_a_held_block": (
            {**some, "held": blocks * size >= reserved, "slot": z3.And(slot >= 0, slot < reserved)},
            z3.And(slot / size >= 0, slot / size < blocks),
        ),
        "rounding_up_is_enough": (some, needed * size >= reserved),
        "rounding_up_is_least": (some, (needed - 1) * size < reserved),
    }
    return [
        Obligation(f"T10/blocks/{name}", "theorem", "T10", facts, goal, f"T10/blocks/{name}")
        for name, (facts, goal) in lemmas.items()
    ]


def obligations() -> list[Obligation]:
    """T10: at ledger level, on the device, for steps in flight, and in blocks."""
    facts, claims, _ = _in_the_ledger()
    scheduling, ending = _setting("schedule"), _setting("end_turn")
    sources = [
        ("T10/ledger", facts, claims),
        ("T10/state", _state_only(scheduling), _in_flight(scheduling)[0]),
        ("T10/schedule", scheduling.facts, _at_dispatch(scheduling)[0]),
        ("T10/end_turn", ending.facts, _stale(ending)[0]),
        ("T10/state", _state_only(scheduling), _between_turns(scheduling)),
        ("T10/stopped", *_stopped(ending)[:2]),
        ("T10/release", *_released()[:2]),
    ]
    found = [
        Obligation(f"{group}/{name}", "theorem", "T10", facts, goal, group)
        for group, facts, claims in sources
        for name, goal in claims.items()
    ]
    return found + _inductive() + _block_arithmetic()


SENTENCES = {
    "one_slot_less": "Reserving one slot less than C + n is enough, seen from the ledger.",
    "one_known_slot_less": "A step stays one slot below N + J(1 + K) + K, seen from the ledger.",
    "placeholders_forgotten": "Reserving N + n is enough, seen from the ledger.",
    "device_one_slot_less": "Reserving one slot less than C + n is enough.",
    "look_ahead_one_slot_less": "A drafter that looks K ahead needs less than K slots more.",
    "look_ahead_not_reserved": "A drafter that looks K ahead needs no slots of its own.",
    "device_one_known_slot_less": "A step stays one slot below N + J(1 + K) + K.",
    "device_placeholders_forgotten": "Reserving N + n, known tokens and new ones, is enough.",
    "in_flight_below_computed": "After a trimmed stop, steps in flight write below C.",
    "in_flight_one_slot_less": "Steps in flight stay one slot below C + T.",
    "ended_turn_writes_nothing_above": "Once a turn has ended, nothing is written above C.",
    "stopped_writes_one_slot_above": "After a trimmed stop, steps in flight write above N + T - 1 only.",
    "released_once_nothing_is_live": "Blocks may go to others although stale steps are in flight.",
}


def controls() -> list[Control]:
    """One slot less is refuted everywhere; counterexamples over a small pinned queue."""
    facts, _, too_strong = _in_the_ledger()
    scheduling, ending = _setting("schedule", 2), _setting("end_turn", 2)
    stopped, _, one_slot_above = _stopped(ending)
    any_state, _, too_early = _released(Scope(1))
    sources = [
        (facts, too_strong),
        (scheduling.facts, _at_dispatch(scheduling)[1]),
        (ending.facts, _in_flight(ending)[1] | _stale(ending)[1]),
        (stopped, one_slot_above),
        (any_state | pins(symbolic_queue(), 1), too_early),
    ]
    return [
        Control(
            f"T10/{name}",
            SENTENCES[name],
            "statement",
            [Obligation(f"T10/control/{name}", "theorem", "T10", facts, goal, f"T10/control/{name}")],
        )
        for facts, claims in sources
        for name, goal in claims.items()
    ] + _exactly_in_known_tokens(facts, too_strong["one_known_slot_less"])


def _exactly_in_known_tokens(facts: Facts, goal: Any) -> list[Control]:
    """N + J(1 + K) + K is reached exactly: K = 3 and 0, 1 or 2 steps in flight."""
    before, rules = symbolic_state(), symbolic_rules()
    found = []
    for num_steps in (0, 1, 2):
        drafts = 3
        path = f"T10/known_slot_less_with_{num_steps}_steps"
        exact = facts | {
            "drafts": rules.num_speculative_tokens == drafts,
            "awaited": integer("awaited_at_most") == num_steps * (1 + drafts),
            "known": before.ledger.num_tokens == 8,
        }
        sentence = f"With K = 3 and {num_steps} steps in flight a step stays below N + {4 * num_steps} + 2."
        claim = Obligation(path, "theorem", "T10", exact, goal, path)
        found.append(Control(path, sentence, "statement", [claim]))
    return found


def witnesses() -> dict[str, Facts]:
    """A pinned witness for each group over the queue."""
    found = {f"T10/{name}": _setting(name, depth_of(name)).facts for name in TRANSITIONS}
    return found | {
        "T10/state": _state_only(_setting("schedule", 1)),
        "T10/stopped": _stopped(_setting("end_turn", 1))[0],
        "T10/release": _released(Scope(1))[0] | pins(symbolic_queue(), 1),
    }
