"""Do 32-bit integers suffice for a ledger on a device? (T11)

Every integer sub-term of every transition's result is taken from the formula that the running code
yields: the code has no branches, so a machine computes each of them. None leaves int32 if
`max_model_len + J(1 + K)` and `J * max_num_batched_tokens` are below 2^31, where J steps may be
undelivered over all lives. The products are symbols of their own here; that the sums stay below them, and
leave room for a step to be dispatched, is proved from the queue (`queue_bounds`). On a device all rows are
computed and the wrong ones masked, so rows whose guard does not hold have bounds of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import FLOOR, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integers
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.invariants import invariants, num_live_in_flight
from draftproof.spec.ledger import FINISHED, Ledger, Rules
from draftproof.spec.structural import INT32_LIMIT as LIMIT
from draftproof.spec.structural import fits_in_32_bits

Facts = dict[str, Any]
Code = Callable[..., Ledger]

MAX_MODEL_LEN, MAX_BATCHED = integers("max_model_len max_num_batched_tokens")
SAMPLES, TOKENS = integers("samples_of_max_steps tokens_of_max_steps")
"""J(1 + K) and J * max_num_batched_tokens."""


def subterms(formula: Any, known: dict[int, Any]) -> None:
    """Add every sub-term of a formula to `known`, by its identity: the conditions' operands too."""
    pending = [formula]
    while pending:
        term = pending.pop()
        if z3.is_expr(term) and term.get_id() not in known:
            known[term.get_id()] = term
            pending.extend(term.children())


def integer_terms(formula: Any) -> list[Any]:
    """The integer sub-terms of a formula that are not constants."""
    known: dict[int, Any] = {}
    subterms(formula, known)
    return [term for term in known.values() if z3.is_int(term) and not z3.is_int_value(term)]


def fits(terms: list[Any]) -> Any:
    """Every term is an int32, and what is rounded to blocks is not negative.

    A machine rounds by way of the number of blocks, which then lies between 0 and what is rounded
    (`floor`, `number_of_blocks_within_tokens`).
    """
    claims = [fits_in_32_bits(term) for term in terms]
    claims += [term.arg(0) >= 0 for term in terms if z3.is_app(term) and term.decl().eq(FLOOR)]
    return z3.And(claims)


def state_bounds(state: State, rules: Rules) -> Facts:
    """What bounds a row before an event: the length limit, and the queue's sums (`queue_bounds`)."""
    ledger, ghosts = state
    return {
        "bound:known": ledger.num_tokens <= MAX_MODEL_LEN,
        "bound:in_flight": ledger.num_in_flight_tokens <= TOKENS,
        "bound:awaited": ghosts.num_awaited_samples + ledger.num_trimmed_tokens <= SAMPLES,
        "bound:prefill_in_flight": ghosts.num_prefill_in_flight <= TOKENS,
        "bound:trimmed": ledger.num_trimmed_tokens <= rules.num_speculative_tokens,
        "bound:settled": ghosts.num_settled_tokens >= -TOKENS,
        "bound:registered_at_preemption": z3.And(
            ledger.num_registered_at_preemption >= 0, ledger.num_registered_at_preemption <= MAX_MODEL_LEN
        ),
    }


def engine_bounds(rules: Rules, *size: Any) -> Facts:
    """What bounds an engine: at least one step in flight, and the sizes given."""
    return {
        "engine:model_len": MAX_MODEL_LEN >= 2,
        "engine:batched": MAX_BATCHED >= 1,
        "engine:samples": 1 + rules.num_speculative_tokens <= SAMPLES,
        "engine:tokens": TOKENS >= MAX_BATCHED,
        "engine:block_size": rules.block_size < LIMIT,
        "engine:fence": rules.registration_fence <= rules.num_speculative_tokens,
        **{f"engine:size:{index}": fact for index, fact in enumerate(size)},
    }


FENCE, DRAFTS = symbolic_rules().registration_fence, symbolic_rules().num_speculative_tokens
DESIGN = (MAX_MODEL_LEN + SAMPLES < LIMIT, TOKENS + FENCE < LIMIT)
"""The bound of T11. The fence, at most K, counts because exits subtract it from what is settled."""


def event_bounds(name: str, before: State, rules: Rules, event: Any, after: State) -> Facts:
    """What the host sees to: step sizes, and a length that a stop keeps within the model's.

    It also dispatches only while fewer than J steps are undelivered. Then the queue leaves room for one
    step more (`queue_bounds`, `sum_leaves_room_for_one_step`).
    """
    ledger, ghosts = before
    if name == "schedule":
        one_step = 1 + rules.num_speculative_tokens
        return {
            "host:step": event.num_new_tokens <= MAX_BATCHED,
            "queue:room_for_samples": ghosts.num_awaited_samples <= SAMPLES - one_step,
            "queue:room_for_tokens": ledger.num_in_flight_tokens <= TOKENS - MAX_BATCHED,
        }
    facts = {}
    if name in ("output", "stale_output", "fold"):
        facts["host:length"] = after.ledger.num_tokens <= MAX_MODEL_LEN
    if name == "output":
        facts["queue:drafts"] = event.num_drafts <= rules.num_speculative_tokens
    return facts


def any_arguments(name: str, event: Any, rules: Rules) -> Facts:
    """Masked rows: arguments of the right size, whatever the state of the row."""
    most = {
        "num_new_tokens": MAX_BATCHED,
        "num_returned": MAX_BATCHED,
        "num_hit_tokens": MAX_MODEL_LEN,
        "num_chunk_tokens": MAX_MODEL_LEN,
        "stopped": z3.IntVal(1),
    }
    return {
        f"masked:{field}": z3.And(value >= 0, value <= most.get(field, rules.num_speculative_tokens + 1))
        for field, value in event._asdict().items()
        if field not in BOOLEAN_ARGUMENTS
    }


def zero_arguments(name: str, event: Any, rules: Rules) -> Facts:
    """Masked rows: the wrapper passes zeros."""
    return {
        f"masked:{field}": value == 0
        for field, value in event._asdict().items()
        if field not in BOOLEAN_ARGUMENTS
    }


class Rows(NamedTuple):
    """Which rows are computed, under which bound of the engine."""

    name: str
    size: tuple[Any, ...]
    arguments: Callable[[str, Any, Rules], Facts] | None
    """None: the guard holds and the host's limits too."""


GUARDED = Rows("guarded", DESIGN, None)
MASKED_ZERO = Rows(
    "masked_zero",
    (MAX_MODEL_LEN + SAMPLES + DRAFTS + 1 < LIMIT, 2 * SAMPLES + 1 < LIMIT, TOKENS + FENCE < LIMIT),
    zero_arguments,
)
MASKED_ANY = Rows(
    "masked_any",
    (
        2 * MAX_MODEL_LEN + SAMPLES + MAX_BATCHED + DRAFTS + 2 < LIMIT,
        MAX_MODEL_LEN + SAMPLES + TOKENS + MAX_BATCHED < LIMIT,
    ),
    any_arguments,
)


def row_obligations(
    name: str,
    rows: Rows,
    code: Code | None = None,
    bounds: Callable[[State, Rules], Facts] = state_bounds,
    limits: Callable[[str, State, Rules, Any, State], Facts] = event_bounds,
) -> list[Obligation]:
    """Every sub-term of one transition, field by field, fits; so does what goes in."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    after = step(name, before, rules, event, code)
    facts = bounds(before, rules) | engine_bounds(rules, *rows.size)
    if rows.arguments is None:
        facts |= hypotheses(name, before, rules, event) | limits(name, before, rules, event, after)
    else:
        facts |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
        facts |= {f"invariant:{key}": fact for key, fact in invariants(before, rules).items()}
        facts |= rows.arguments(name, event, rules)
    given = [*before.ledger, *before.ghosts, *event, rules.block_size]
    claims = {"given": fits([value for value in given if z3.is_int(value)])}
    results = {**after.ledger._asdict(), **after.ghosts._asdict()}
    if name == "schedule":
        results["num_schedulable"] = num_schedulable(before.ledger)
    for field, formula in results.items():
        terms = integer_terms(formula)
        if any(term.children() for term in terms):
            claims[field] = fits(terms)
    group = f"T11/{rows.name}/{name}"
    return [
        Obligation(f"{group}/{field}", "integers", "T11", facts, goal, group)
        for field, goal in claims.items()
    ]


def _kept_bounds() -> list[Obligation]:
    """The bounds of a row that the queue does not give are kept by every transition.

    Of what is awaited it gives none for a finished request, which keeps its last Q and G.
    """
    found = []
    for name in EVENTS:
        before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
        after = step(name, before, rules, event)
        kept = state_bounds(after, rules)
        facts = hypotheses(name, before, rules, event) | state_bounds(before, rules)
        facts |= {f"after:{key}": kept[key] for key in ("bound:known", "bound:in_flight")}
        group = f"T11/bound/{name}"
        found += [
            Obligation(f"{group}/{key.removeprefix('bound:')}", "integers", "T11", facts, kept[key], group)
            for key in ("bound:registered_at_preemption", "bound:settled", "bound:prefill_in_flight")
        ]
        awaited = z3.Implies(after.ledger.status == FINISHED, kept["bound:awaited"])
        path = f"{group}/awaited_when_finished"
        found.append(Obligation(path, "integers", "T11", facts, awaited, group))
    return found


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """Live rows, masked rows, and the bounds of a row kept; `codes` replaces running functions."""
    found = []
    for rows in (GUARDED, MASKED_ZERO, MASKED_ANY):
        for name in EVENTS:
            found += row_obligations(name, rows, (codes or {}).get(name))
    return found + _kept_bounds()


def _one_life_bounds(state: State, rules: Rules) -> Facts:
    """A bound that forgets earlier lives: only the present life's steps are counted."""
    facts = state_bounds(state, rules)
    facts["bound:in_flight"] = num_live_in_flight(state.ledger) <= TOKENS
    facts["bound:representable"] = state.ledger.num_in_flight_tokens < LIMIT
    return facts


def _one_life_limits(name: str, before: State, rules: Rules, event: Any, after: State) -> Facts:
    facts = event_bounds(name, before, rules, event, after)
    if name == "schedule":
        facts["queue:room_for_tokens"] = num_live_in_flight(before.ledger) <= TOKENS - MAX_BATCHED
    return facts


def _controlled(rows: Rows, **replaced: Any) -> list[Obligation]:
    return [
        obligation._replace(name=f"T11/control/{obligation.name}")
        for name in EVENTS
        for obligation in row_obligations(name, rows, **replaced)
    ]


def controls() -> list[Control]:
    """Without the bound, with one too weak, or with a bound for live rows on masked ones: overflow."""
    representable = (MAX_MODEL_LEN < LIMIT, SAMPLES < LIMIT, MAX_BATCHED < LIMIT)
    cases = {
        "no_bound_on_samples": (
            "max_model_len + J(1 + K) needs no bound.",
            _controlled(Rows("no_bound_on_samples", (*representable, TOKENS + FENCE < LIMIT), None)),
        ),
        "no_bound_on_tokens": (
            "J * max_num_batched_tokens needs no bound.",
            _controlled(Rows("no_bound_on_tokens", (*representable, MAX_MODEL_LEN + SAMPLES < LIMIT), None)),
        ),
        "one_too_weak": (
            "max_model_len + J(1 + K) = 2^31 is small enough.",
            _controlled(
                Rows(
                    "one_too_weak",
                    (*representable, MAX_MODEL_LEN + SAMPLES <= LIMIT, TOKENS + FENCE < LIMIT),
                    None,
                )
            ),
        ),
        "fence_forgotten": (
            "J * max_num_batched_tokens below 2^31 is enough whatever the fence.",
            _controlled(Rows("fence_forgotten", (MAX_MODEL_LEN + SAMPLES < LIMIT, TOKENS < LIMIT), None)),
        ),
        "steps_of_one_life": (
            "It is enough to count undelivered steps of the present life.",
            _controlled(
                Rows("steps_of_one_life", DESIGN, None), bounds=_one_life_bounds, limits=_one_life_limits
            ),
        ),
        "masked_zero_as_live": (
            "The bound for live rows is enough for masked rows with zero arguments.",
            _controlled(Rows("masked_zero_as_live", DESIGN, zero_arguments)),
        ),
        "masked_any_as_live": (
            "The bound for live rows is enough for masked rows with any arguments.",
            _controlled(Rows("masked_any_as_live", DESIGN, any_arguments)),
        ),
    }
    return [
        Control(f"T11/{name}", sentence, "statement", claims) for name, (sentence, claims) in cases.items()
    ]
