"""What a failed obligation looks like to someone who has never used a prover: a step that goes wrong.

A counterexample names a state and an event. Running the transition on those integers shows what it
does there, which is easier to read than a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftproof.impl import accounting
from draftproof.impl.contracts import format_changes, format_event, format_state, plain
from draftproof.proofs.results import theorem_text
from draftproof.spec import ghosts
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import STATUS_NAMES, Ledger, Rules


def _value(counterexample: dict[str, str], name: str, boolean: bool) -> Any:
    text = counterexample.get(name, "False" if boolean else "0")
    return text == "True" if boolean else int(text)


def _record(kind: Any, counterexample: dict[str, str], prefix: str = "") -> Any:
    return kind(
        *[
            _value(
                counterexample,
                prefix + field,
                field in BOOLEAN_ARGUMENTS or field in ("drop_stale", "asynchronous"),
            )
            for field in kind._fields
        ]
    )


def concrete_step(
    path: str, model: dict[str, str], transitions: Mapping[str, Callable[..., Ledger]] | None = None
) -> str | None:
    """The counterexample of a transition's obligation as one step on integers; None for other claims.

    `transitions` is the code to run, by default the running one.
    """
    transition, *rest = path.split("/")
    if transition not in EVENTS or not rest or not model:
        return None
    before = State(_record(Ledger, model), _record(Ghosts, model))
    rules = _record(Rules, model)
    event = _record(EVENTS[transition], model, "event.")
    if rules.block_size < 1:
        return None
    code = plain((transitions or accounting.TRANSITIONS)[transition])
    after = State(
        Ledger(*code(before.ledger, rules, *event)), getattr(ghosts, transition)(before, rules, event)
    )
    mode = "asynchronous" if rules.asynchronous else "synchronous"
    return (
        f"{STATUS_NAMES[before.ledger.status]} request, {mode}, K {rules.num_speculative_tokens}, "
        f"B {rules.block_size}, fence {rules.registration_fence}\n"
        f"before: {format_state(before)}\n"
        f"event:  {format_event(event, transition)}\n"
        f"change: {format_changes(before, after)}"
    )


def describe(verdict: Any) -> str:
    """One failed obligation in a few lines: what is claimed, where, and a step that breaks it."""
    name, meaning, _ = theorem_text(verdict.theorem)
    lines = [f"{verdict.name}: {verdict.outcome}", f"  {verdict.theorem}, {name}: {meaning}"]
    if verdict.outcome == "unknown":
        lines.append(
            f"  z3 says {verdict.z3}, cvc5 says {verdict.cvc5}: the resource limit was reached. "
            "Not decided is not proved."
        )
    elif verdict.outcome == "disagreement":
        lines.append(f"  z3 says {verdict.z3}, cvc5 says {verdict.cvc5}: one of the solvers is wrong.")
    step = concrete_step(verdict.name, verdict.counterexample)
    if step:
        lines += [f"    {line}" for line in step.splitlines()]
    elif verdict.counterexample:
        values = ", ".join(f"{key} {value}" for key, value in verdict.counterexample.items())
        lines.append(f"    for example {values}")
    return "\n".join(lines)


def order(verdict: Any) -> tuple[int, str]:
    """Theorems first, then effects, then invariants and the rest: the most telling failure on top."""
    kinds = ("theorem", "effect", "decision", "invariant")
    rank = kinds.index(verdict.kind) if verdict.kind in kinds else len(kinds)
    return rank, verdict.name
