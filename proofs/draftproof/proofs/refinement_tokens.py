"""Do the ghosts mean what they say? V and W are what the token-level model really holds valid. (R2)

For one arbitrary position, all sizes and a queue of any depth: every transition keeps the relation of
`token_model`, soundly and, under two further assumptions, completely. With it the chain from "this slot
holds the KV of that token in that context" to the counters is closed; the ghosts are no assumption.
Finish and abort are left out: the relation is about unfinished requests, and what those two register
is measured against V and W by T3 and T4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.device import ASSUMPTIONS, moved
from draftproof.proofs.induction import step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import (
    EVERY_DEPTH,
    Queue,
    Scope,
    advanced,
    pins,
    symbolic_queue,
)
from draftproof.proofs.refinement_queue import assumed
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
from draftproof.spec.ledger import FINISHED, PAUSED, RUNNING, Ledger, Rules

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
    facts |= {
        f"device:{key}": fact
        for key, fact in move.assumed.items()
        if key != dropped and (complete or not ASSUMPTIONS[key].completeness_only)
    }
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
    """The relation kept by one transition.

    What completeness does not sharpen is proved without its assumptions, in the sound half only.
    """
    this = setting(name, complete=complete, depth=depth, code=code, alter=alter, dropped=dropped)
    kept = relation(this.after, this.queue_after, this.tokens_after, Scope(depth), complete=complete)
    group = f"R2/{'complete' if complete else 'sound'}/{name}"
    return [
        Obligation(f"{group}/{key}", "refinement", "R2", this.facts, goal, group)
        for key, goal in kept.items()
        if not complete or key in SHARPER_WHEN_COMPLETE
    ]


def _base_obligations() -> list[Obligation]:
    """A request that has just arrived: nothing is written, nothing is in flight."""
    num_prompt_tokens = z3.Int("num_prompt_tokens")
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
        "true_is_written": tokens.true_identity != NO_KV,
        "device_is_given_the_prompt": z3.Implies(
            num_prompt_tokens > POSITION, tokens.committed_identity == tokens.true_identity
        ),
    }
    group = "R2/complete/initial"
    return [
        Obligation(f"{group}/{key}", "refinement", "R2", facts, goal, group)
        for key, goal in relation(state, queue, tokens, complete=True).items()
    ]


def _consequences() -> list[Obligation]:
    """What the relation says about KV, in the terms of the theorems."""
    any_step = z3.Int("any_step")
    found = []
    for strength, complete in STRENGTHS.items():
        this = setting("schedule", complete=complete)
        (ledger, ghosts), queue, tokens = this.before, this.queue, this.tokens
        group = f"R2/{strength}/schedule"
        reads = {
            "reads_valid_kv": z3.Implies(
                z3.Int("device.start") > POSITION, tokens.enqueued_kv == tokens.true_identity
            )
        }
        claims = {} if complete else reads
        found += [
            Obligation(f"{group}/{key}", "refinement", "R2", this.facts, goal, group)
            for key, goal in claims.items()
        ]
        facts = {
            key: fact
            for key, fact in this.facts.items()
            if key.startswith(("rules:", "invariant:", "queue:", "tokens:"))
        }
        unfinished = ledger.status != FINISHED
        valid, settled = ghosts.num_valid_tokens, ghosts.num_settled_tokens
        if complete:
            between_turns = z3.And(ledger.status == PAUSED, ledger.num_computed_tokens > 0)
            exact = z3.And(unfinished, ledger.status != PAUSED)
            claims = {
                "valid_is_all": z3.Implies(
                    z3.And(exact, valid == POSITION, valid < ledger.num_tokens),
                    tokens.enqueued_kv != tokens.committed_identity,
                ),
                "settled_is_all": z3.Implies(
                    z3.And(exact, settled == POSITION, settled < ledger.num_tokens),
                    tokens.returned_kv != tokens.committed_identity,
                ),
                "one_missing_between_turns": z3.Implies(
                    between_turns,
                    z3.And(valid >= ledger.num_tokens - 1, settled >= ledger.num_tokens - 1),
                ),
            }
        else:
            still_writes = z3.And(
                any_step >= queue.head, any_step >= tokens.first_unfreed, any_step < queue.tail
            )
            claims = {
                "valid_is_valid": z3.Implies(
                    z3.And(unfinished, valid > POSITION),
                    tokens.enqueued_kv == tokens.committed_identity,
                ),
                "settled_is_valid": z3.Implies(
                    z3.And(unfinished, settled > POSITION),
                    tokens.returned_kv == tokens.committed_identity,
                ),
                "settled_is_not_written_again": z3.Implies(
                    z3.And(unfinished, still_writes), tokens.write_start[any_step] >= settled
                ),
                "device_ahead_by_trimmed": z3.Implies(
                    z3.And(ledger.status == RUNNING, queue.oldest_live < queue.tail),
                    tokens.length_before[queue.oldest_live] == ledger.num_tokens + ledger.num_trimmed_tokens,
                ),
            }
        group = f"R2/{strength}/state"
        found += [
            Obligation(f"{group}/{key}", "refinement", "R2", facts, goal, group)
            for key, goal in claims.items()
        ]
    return found


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """R2, sound and complete, its base case and consequences; `codes` replaces running functions."""
    found = _base_obligations()
    for complete in STRENGTHS.values():
        for name in TRANSITIONS:
            found += transition_obligations(name, complete=complete, code=(codes or {}).get(name))
    return found + _consequences()


def depth_of(name: str) -> int:
    """How many steps a pinned queue needs for the transition to be interesting."""
    return {"draft": 0, "chunk_output": 2, "output": 2, "stale_output": 2}.get(name, 1)


def witnesses() -> dict[str, Facts]:
    """For each group a small pinned queue that must be satisfiable, and some states worth meeting."""
    found = {}
    for strength, complete in STRENGTHS.items():
        for name in TRANSITIONS:
            found[f"R2/{strength}/{name}"] = setting(name, complete=complete, depth=depth_of(name)).facts
        found[f"R2/{strength}/state"] = found[f"R2/{strength}/schedule"]
    return found
