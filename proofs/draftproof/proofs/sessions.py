"""Does speculation leave a trace in the ledger of a session? (T8)

Two requests with equal committed tokens, each with its own K, mode and history, end their turn. No
relation between the two histories is assumed beyond their invariants.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.impl.accounting import registrable
from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.spec.algebra import floor_to_block, maximum
from draftproof.spec.events import EndTurn
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import RUNNING, Rules
from draftproof.spec.structural import turns_end_equal

Claims = dict[str, Any]

OTHER_FIELDS = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_draft_tokens",
    "num_trimmed_tokens",
    "stop_pending",
    "num_prompt_tokens",
    "status",
    "drop_stale",
)


def _two_runs() -> tuple[State, State, Rules, Claims]:
    """Two stopped requests with equal tokens on one engine's pool; their K and mode are their own."""
    pool = symbolic_rules()
    assumed: Claims = {}
    states = []
    for name in ("first", "second"):
        state = symbolic_state(f"{name}.")
        own = symbolic_rules(f"{name}.")
        rules = own._replace(block_size=pool.block_size, registration_fence=pool.registration_fence)
        facts = hypotheses("end_turn", state, rules, EndTurn())
        assumed |= {f"{name}:{key}": fact for key, fact in facts.items()}
        states.append(state)
    first, second = states
    assumed["equal_tokens"] = first.ledger.num_tokens == second.ledger.num_tokens
    assumed["equal_prompts"] = first.ledger.num_prompt_tokens == second.ledger.num_prompt_tokens
    return first, second, pool, assumed


def _unpreempted(first: State, second: State) -> Claims:
    return {
        "first:unpreempted": first.ledger.status == RUNNING,
        "second:unpreempted": second.ledger.status == RUNNING,
    }


def _others_equal(first: State, second: State) -> Any:
    """Every field of T8 but R, and status, drop and the ghosts V and W."""
    return z3.And(
        *[getattr(first.ledger, field) == getattr(second.ledger, field) for field in OTHER_FIELDS],
        first.ghosts.num_valid_tokens == second.ghosts.num_valid_tokens,
        first.ghosts.num_settled_tokens == second.ghosts.num_settled_tokens,
    )


def obligations() -> list[Obligation]:
    """T8 at the end of the turn, and after an equal next chunk.

    Without a fence R is equal too. With one, a prefix-cache hit counts in R although it may reach above
    what a step would publish; then R differs by no more than what was registered before the turn ended.
    """
    first, second, rules, assumed = _two_runs()
    assumed |= _unpreempted(first, second)
    ended = [step("end_turn", state, rules, EndTurn()) for state in (first, second)]
    fold = symbolic_event("fold")
    folded = [step("fold", state, rules, fold) for state in ended]
    registered = [state.ledger.num_registered_tokens for state in (first, second)]
    publishable = registrable(first.ledger.num_tokens - 1, rules)
    no_hit_above = z3.And(*[number <= publishable for number in registered])
    found = []
    for moment, (one, other), facts in (
        ("end_turn", ended, assumed),
        ("fold", folded, assumed | {"chunk_is_not_empty": fold.num_chunk_tokens >= 1}),
    ):
        now = [state.ledger.num_registered_tokens for state in (one, other)]
        claims = {
            "equal_without_fence": z3.Implies(
                rules.registration_fence == 0, turns_end_equal(one.ledger, other.ledger)
            ),
            "equal_unless_a_hit_reached_above": z3.Implies(
                no_hit_above, turns_end_equal(one.ledger, other.ledger)
            ),
            "all_but_registered_equal": _others_equal(one, other),
            "registered_differs_by_what_was": maximum(now[0], registered[1])
            == maximum(now[1], registered[0]),
            "registered_in_bounds": z3.And(
                *[publishable <= number for number in now],
                *[number <= floor_to_block(first.ledger.num_tokens - 1, rules.block_size) for number in now],
            ),
        }
        group = f"T8/{moment}"
        found += [
            Obligation(f"{group}/{name}", "theorem", "T8", facts, goal, group)
            for name, goal in claims.items()
        ]
    return found


def controls() -> list[Control]:
    """What T8 does not say, and must not: each of these has a counterexample."""
    first, second, rules, assumed = _two_runs()
    unpreempted = assumed | _unpreempted(first, second)
    one, other = (step("end_turn", state, rules, EndTurn()) for state in (first, second))
    no_fence = {"no_fence": rules.registration_fence == 0}

    def control(name: str, sentence: str, kind: str, facts: Claims, goal: Any) -> Control:
        path = f"T8/control/{name}"
        return Control(f"T8/{name}", sentence, kind, [Obligation(path, "theorem", "T8", facts, goal, path)])

    return [
        control(
            "in_flight_equal_too",
            "The runs agree on F and S as well.",
            "statement",
            unpreempted | no_fence,
            z3.And(
                one.ledger.num_in_flight_tokens == other.ledger.num_in_flight_tokens,
                one.ledger.num_stale_tokens == other.ledger.num_stale_tokens,
            ),
        ),
        control(
            "one_was_preempted",
            "The runs agree even if one of them stopped while it was preempted.",
            "assumption",
            assumed | no_fence,
            turns_end_equal(one.ledger, other.ledger),
        ),
        control(
            "fence_without_hit_condition",
            "With a fence R is equal whatever the prefix cache gave each run.",
            "assumption",
            unpreempted,
            turns_end_equal(one.ledger, other.ledger),
        ),
    ]
