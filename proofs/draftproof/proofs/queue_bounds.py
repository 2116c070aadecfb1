"""How large can the sums over the queue become? What T11 (machine integers) takes from the queue.

With at most J undelivered steps over all lives, each of at most `max_num_batched_tokens` tokens and K
drafts: F <= J * max_num_batched_tokens, Q + T <= J(1 + K) and T <= K; and with fewer than J undelivered
there is room for one more step in each. A finished request keeps its last Q, whose bound T11 carries on
(`integers`). The queue is of any depth; the products stay outside the quantifiers, as functions of the
number of steps that are known by their step equations only. The multiplications themselves are settled
once, in the `arithmetic` obligations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import EVERY_DEPTH, Queue, Scope, advanced, pins, symbolic_queue
from draftproof.proofs.refinement_queue import assumed
from draftproof.proofs.terms import function, integer, integers
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import FINISHED, Ledger, Rules

Facts = dict[str, Any]
Code = Callable[..., Ledger]

MAX_STEPS = integer("max_undelivered_steps")
"""J: how many steps may be undelivered at once, over all lives of the request."""
MAX_BATCHED = integer("max_num_batched_tokens")
TOKENS_OF_STEPS = function("tokens_of_steps", 1)
"""Stands for `steps * max_num_batched_tokens`."""
SAMPLES_OF_STEPS = function("samples_of_steps", 1)
"""Stands for `steps * (1 + K)`."""


def within_bounds(state: State, rules: Rules, queue: Queue, scope: Scope = EVERY_DEPTH) -> Facts:
    """The bounds as they are kept: per step, per stretch of the queue, and for a stop that trimmed."""
    num_trimmed = state.ledger.num_trimmed_tokens
    num_undelivered = queue.tail - queue.head

    def step_size(number: Any) -> Any:
        return z3.Implies(
            queue.in_flight(number),
            z3.And(
                queue.num_tokens[number] <= MAX_BATCHED,
                queue.num_drafts[number] <= rules.num_speculative_tokens,
            ),
        )

    def stretch(before: Any, bound: Any) -> Callable[[Any, Any], Any]:
        return lambda first, second: z3.Implies(
            z3.And(first >= queue.head, second <= queue.tail),
            before[second] - before[first] <= bound(second) - bound(first),
        )

    return {
        "steps": scope.each(step_size),
        "tokens_of_stretches": scope.pairs(stretch(queue.tokens_before, TOKENS_OF_STEPS)),
        "samples_of_stretches": scope.pairs(stretch(queue.samples_before, SAMPLES_OF_STEPS)),
        "undelivered": num_undelivered <= MAX_STEPS,
        "trimmed": num_trimmed <= rules.num_speculative_tokens,
        # The step that was trimmed has returned, and a stopped request is not scheduled again.
        "trimmed_leaves_room": z3.Implies(num_trimmed > 0, num_undelivered <= MAX_STEPS - 1),
    }


def step_equations(rules: Rules, queue: Queue) -> Facts:
    """One step more is one step's worth more."""
    tail = queue.tail
    return {
        "bounds:max_batched": MAX_BATCHED >= 1,
        "bounds:max_steps": MAX_STEPS >= 1,
        "bounds:tokens_of_steps": TOKENS_OF_STEPS(tail + 1) == TOKENS_OF_STEPS(tail) + MAX_BATCHED,
        "bounds:samples_of_steps": SAMPLES_OF_STEPS(tail + 1)
        == SAMPLES_OF_STEPS(tail) + 1 + rules.num_speculative_tokens,
    }


def _hypotheses(name: str, scope: Scope, limits: bool = True) -> tuple[State, Rules, Any, Queue, Facts]:
    """One transition's hypotheses of R1, the bounds before it, and the host's two limits on a dispatch."""
    before, rules, event, queue = symbolic_state(), symbolic_rules(), symbolic_event(name), symbolic_queue()
    facts = assumed(name, before, rules, event, queue, scope) | step_equations(rules, queue)
    facts |= {f"bounds:{key}": fact for key, fact in within_bounds(before, rules, queue, scope).items()}
    if name == "schedule" and limits:
        facts["limit:step"] = event.num_new_tokens <= MAX_BATCHED
        facts["limit:undelivered"] = queue.tail - queue.head < MAX_STEPS
    return before, rules, event, queue, facts


def _transition_obligations(
    name: str, scope: Scope = EVERY_DEPTH, code: Code | None = None, limits: bool = True
) -> list[Obligation]:
    before, rules, event, queue, facts = _hypotheses(name, scope, limits)
    if scope.depth is not None:
        facts |= pins(queue, scope.depth)
    after = step(name, before, rules, event, code)
    group = f"R1/bounds/{name}"
    kept = within_bounds(after, rules, advanced(name, queue, before, event), scope)
    return [
        Obligation(f"{group}/{key}", "refinement", "R1", facts, goal, group) for key, goal in kept.items()
    ]


def _base_obligations() -> list[Obligation]:
    """A request that has just arrived has no step in flight."""
    start, rules, queue = initial_state(integer("num_prompt_tokens")), symbolic_rules(), symbolic_queue()
    state = State(as_terms(start.ledger), as_terms(start.ghosts))
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts |= step_equations(rules, queue)
    facts["nothing_in_flight"] = queue.head == queue.tail
    group = "R1/bounds/initial"
    return [
        Obligation(f"{group}/{key}", "refinement", "R1", facts, goal, group)
        for key, goal in within_bounds(state, rules, queue).items()
    ]


def _consequences() -> list[Obligation]:
    """What the bounds say about the ledger's own sums, in every state."""
    before, queue, facts = _state_only(EVERY_DEPTH)
    head, tail = queue.head, queue.tail
    awaited = before.ghosts.num_awaited_samples <= SAMPLES_OF_STEPS(tail) - SAMPLES_OF_STEPS(head)
    group = "R1/bounds/state"
    claims = {
        "in_flight": before.ledger.num_in_flight_tokens <= TOKENS_OF_STEPS(tail) - TOKENS_OF_STEPS(head),
        "awaited": z3.Implies(before.ledger.status != FINISHED, awaited),
    }
    return [
        Obligation(f"{group}/sum_{name}", "refinement", "R1", facts, goal, group)
        for name, goal in claims.items()
    ]


def _state_only(scope: Scope) -> tuple[State, Queue, Facts]:
    """The hypotheses about a state, without those about an event."""
    before, _, _, queue, facts = _hypotheses("draft", scope)
    about_state = ("rules:", "invariant:", "queue:", "bounds:")
    return before, queue, {key: fact for key, fact in facts.items() if key.startswith(about_state)}


def _arithmetic() -> list[Obligation]:
    """The two functions are products, and products grow with the number of steps."""
    steps, undelivered, size, total, trimmed, drafts = integers(
        "steps undelivered size total num_trimmed_tokens num_speculative_tokens"
    )
    some = {"undelivered": z3.And(undelivered >= 0, undelivered <= MAX_STEPS), "size": size >= 1}
    lemmas: dict[str, tuple[Facts, Any]] = {
        "products_meet_the_step_equations": ({}, (steps + 1) * size == steps * size + size),
        "sum_within_product": (
            {**some, "sum": total <= (steps + undelivered) * size - steps * size},
            total <= MAX_STEPS * size,
        ),
        # What a dispatch finds: fewer than J undelivered, and so at most J - 1.
        "sum_leaves_room_for_one_step": (
            {**some, "fewer": undelivered < MAX_STEPS, "sum": total <= undelivered * size},
            total <= MAX_STEPS * size - size,
        ),
        "sum_and_trimmed_within_product": (
            {
                **some,
                "sum": total <= undelivered * (1 + drafts),
                "drafts": z3.And(drafts >= 0, trimmed <= drafts),
                "trimmed": z3.Implies(trimmed > 0, undelivered <= MAX_STEPS - 1),
            },
            total + trimmed <= MAX_STEPS * (1 + drafts),
        ),
    }
    return [
        Obligation(f"R1/bounds/arithmetic/{name}", "refinement", "R1", facts, goal, f"R1/bounds/{name}")
        for name, (facts, goal) in lemmas.items()
    ]


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """The bounds through all transitions, their consequences, and the arithmetic behind them."""
    found = _base_obligations()
    for name in EVENTS:
        found += _transition_obligations(name, code=(codes or {}).get(name))
    return found + _consequences() + _arithmetic()


def witnesses() -> dict[str, Facts]:
    """For each group a small pinned queue that must be satisfiable."""
    found = {}
    for name in EVENTS:
        depth = 0 if name == "draft" else 1
        queue, facts = _hypotheses(name, Scope(depth))[3:]
        found[f"R1/bounds/{name}"] = facts | pins(queue, depth)
    queue, facts = _state_only(Scope(1))[1:]
    return found | {"R1/bounds/state": facts | pins(queue, 1)}


def controls() -> list[Control]:
    """The bounds rest on the host's limits."""
    room = next(claim for claim in _arithmetic() if claim.name.endswith("leaves_room_for_one_step"))
    full = {key: fact for key, fact in room.hypotheses.items() if key != "fewer"}
    return [
        Control(
            "R1/bounds_without_room",
            "There is room for one step more although J steps are undelivered.",
            "assumption",
            [room._replace(name="R1/control/room", hypotheses=full)],
        ),
        Control(
            "R1/bounds_without_limits",
            "The queue's sums stay bounded although the host limits neither step size nor steps in flight.",
            "assumption",
            [
                obligation._replace(name=f"R1/control/{obligation.name}")
                for obligation in _transition_obligations("schedule", Scope(1), limits=False)
            ],
        ),
    ]
