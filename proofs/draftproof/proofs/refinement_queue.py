"""Do the sums that the ledger and its ghosts keep follow from the exact queue of steps in flight? (R1)

For a queue of any depth: every transition keeps the relation of `queue_model`, and the relation implies
the queue facts that guards state. So no proof rests on a fact about returning steps that the queue
itself does not give. Steps are proved from the control conditions alone; those of them that speak about
what is in flight (`FROM_HEAD`) follow from the queue too, once the head is of the life they speak about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import (
    EVERY_DEPTH,
    Queue,
    Scope,
    advanced,
    pins,
    relation,
    returning,
    symbolic_queue,
)
from draftproof.proofs.terms import integer
from draftproof.spec import guards
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Ledger, Rules

Facts = dict[str, Any]
Code = Callable[..., Ledger]


def assumed(
    name: str, state: State, rules: Rules, event: Any, queue: Queue, scope: Scope = EVERY_DEPTH
) -> Facts:
    """Rules, invariants, the relation, the control conditions, and an event that the head agrees with."""
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts |= {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    facts |= {f"queue:{key}": fact for key, fact in relation(state, rules, queue, scope).items()}
    facts |= {f"guard:{key}": fact for key, fact in guards.CONTROL[name](state, rules, event).items()}
    return facts | returning(queue, state, event)


def _transition_obligations(
    name: str, scope: Scope = EVERY_DEPTH, code: Code | None = None, extra: Facts | None = None
) -> list[Obligation]:
    """The relation kept by one transition, and its queue facts; `code` replaces the running function."""
    before, rules, event, queue = symbolic_state(), symbolic_rules(), symbolic_event(name), symbolic_queue()
    facts = assumed(name, before, rules, event, queue, scope) | (extra or {})
    after = step(name, before, rules, event, code)
    claims = {
        f"relation/{key}": goal
        for key, goal in relation(after, rules, advanced(name, queue, before, event), scope).items()
    }
    if name in guards.QUEUE_FACTS:
        queue_facts = guards.QUEUE_FACTS[name](before, rules, event)
        claims |= {f"queue_fact/{key}": goal for key, goal in queue_facts.items()}
    if name in ("chunk_output", "output", "stale_output"):
        live = queue.oldest_live == queue.head
        claims["queue_fact/head_is_live_iff_nothing_stale"] = live == (before.ledger.num_stale_tokens == 0)
    group = f"R1/{name}"
    return [
        Obligation(f"{group}/{path}", "refinement", "R1", facts, goal, group) for path, goal in claims.items()
    ]


FROM_HEAD = {
    "chunk_output": ("head_is_live", "head_is_prefill"),
    "output": ("head_is_live", "sample_awaited"),
    "stale_output": ("head_is_stale",),
}
"""Control conditions about what is in flight, by transition."""


def _from_head(name: str, scope: Scope = EVERY_DEPTH) -> tuple[Facts, Facts]:
    """What is assumed without those conditions, of a head of the right life, and the conditions."""
    before, rules, event, queue = symbolic_state(), symbolic_rules(), symbolic_event(name), symbolic_queue()
    facts = assumed(name, before, rules, event, queue, scope)
    claims = {condition: facts.pop(f"guard:{condition}") for condition in FROM_HEAD[name]}
    live = queue.head >= queue.first_live
    facts["head:life"] = z3.Not(live) if name == "stale_output" else live
    return facts, claims


def _from_head_obligations() -> list[Obligation]:
    """The conditions follow from the step at the head."""
    found = []
    for name in FROM_HEAD:
        facts, claims = _from_head(name)
        group = f"R1/{name}/from_head"
        found += [
            Obligation(f"{group}/{key}", "refinement", "R1", facts, goal, group)
            for key, goal in claims.items()
        ]
    return found


def _base_obligations() -> list[Obligation]:
    """A request that has just arrived has an empty queue."""
    num_prompt_tokens = integer("num_prompt_tokens")
    rules, queue = symbolic_rules(), symbolic_queue()
    start = initial_state(num_prompt_tokens)
    state = State(as_terms(start.ledger), as_terms(start.ghosts))
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts["prompt_is_not_empty"] = num_prompt_tokens >= 1
    facts["nothing_in_flight"] = z3.And(queue.head == queue.tail, queue.first_live == queue.tail)
    return [
        Obligation(f"R1/initial/relation/{key}", "refinement", "R1", facts, goal, "R1/initial")
        for key, goal in relation(state, rules, queue).items()
    ]


def obligations(codes: dict[str, Code] | None = None) -> list[Obligation]:
    """R1 through all eleven transitions; `codes` replaces running functions by name (planted faults)."""
    found = _base_obligations()
    for name in EVENTS:
        found += _transition_obligations(name, code=(codes or {}).get(name))
    return found + _from_head_obligations()


DEPTHS = {"chunk_output": 2, "output": 2, "stale_output": 2}
"""How many steps the pinned queue of a witness holds, where it must hold some; otherwise 1."""


def _pinned(name: str) -> Facts:
    """The hypotheses of one transition over a small pinned queue, written out."""
    depth = 0 if name == "draft" else DEPTHS.get(name, 1)
    queue = symbolic_queue()
    facts = assumed(name, symbolic_state(), symbolic_rules(), symbolic_event(name), queue, Scope(depth))
    return facts | pins(queue, depth)


def witnesses() -> dict[str, Facts]:
    """For each group a small queue that must be satisfiable: the hypotheses do not contradict each other."""
    found = {f"R1/{name}": _pinned(name) for name in EVENTS}
    for name in FROM_HEAD:
        facts = _from_head(name, Scope(DEPTHS[name]))[0]
        found[f"R1/{name}/from_head"] = facts | pins(symbolic_queue(), DEPTHS[name])
    return found


def refuted_by_pinning(name: str, code: Code) -> list[Obligation]:
    """The obligations of one transition under other code, over a small queue where z3 finds models."""
    depth = DEPTHS.get(name, 1)
    return _transition_obligations(name, Scope(depth), code, pins(symbolic_queue(), depth))


def controls() -> list[Control]:
    """Results out of order, and control conditions that do not suffice without the queue."""
    found = []
    for name in ("chunk_output", "output", "stale_output"):
        dropped = [
            obligation._replace(
                name=f"R1/control/{obligation.name}",
                hypotheses={
                    key: fact for key, fact in obligation.hypotheses.items() if not key.startswith("head:")
                },
            )
            for obligation in _transition_obligations(
                name, Scope(DEPTHS[name]), None, pins(symbolic_queue(), DEPTHS[name])
            )
            if "/queue_fact/" in obligation.name and not obligation.name.endswith("nothing_stale")
        ]
        found.append(
            Control(
                f"R1/{name}_of_any_step",
                f"The queue facts of {name} hold for any step, not only for the one at the head.",
                "assumption",
                dropped,
            )
        )
    return found + [_of_any_life(name) for name in FROM_HEAD]


def _of_any_life(name: str) -> Control:
    """The conditions about the head, claimed of a head of any life."""
    facts, claims = _from_head(name, Scope(DEPTHS[name]))
    facts = {key: fact for key, fact in facts.items() if key != "head:life"}
    facts |= pins(symbolic_queue(), DEPTHS[name])
    path = f"R1/control/{name}/from_head"
    return Control(
        f"R1/{name}_of_any_life",
        f"The step at the head is of the life that {name} speaks about, whichever life it belongs to.",
        "assumption",
        [Obligation(path, "refinement", "R1", facts, z3.And(list(claims.values())), path)],
    )
