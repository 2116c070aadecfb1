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
from draftproof.spec import ghosts, textbook
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENT_SYMBOLS, EVENTS
from draftproof.spec.ghosts import GHOST_SYMBOLS, Ghosts, State
from draftproof.spec.ledger import STATUS_NAMES, SYMBOLS, Ledger, Rules

MOST_VALUES = 24
RULE_SYMBOLS = {
    "num_speculative_tokens": "K",
    "block_size": "B",
    "asynchronous": "asynchronous",
    "registration_fence": "fence",
}
LEGEND = (
    "L prompt, N known tokens, C computed, P placeholders, F in flight, S stale, D drafts, R registered, "
    "T trimmed, E stop pending, X registered at the last preemption; what is really so: Q samples awaited, "
    "G prefill in flight, q prompt completes, V valid KV, W settled KV. Events: n tokens of the step, "
    "d drafts, a accepted, k kept. K drafts at most, B block size."
)


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
    lines = [
        f"{STATUS_NAMES[before.ledger.status]} request, {mode}, K {rules.num_speculative_tokens}, "
        f"B {rules.block_size}, fence {rules.registration_fence}",
        f"before: {format_state(before)}",
        f"event:  {format_event(event, transition)}",
        f"change: {format_changes(before, after)}",
    ]
    expected = getattr(textbook, transition)(before.ledger, rules, *event)
    wrong = [
        f"{symbol} is {getattr(after.ledger, field)}, the textbook version says {getattr(expected, field)}"
        for field, symbol in SYMBOLS.items()
        if getattr(after.ledger, field) != getattr(expected, field)
    ]
    if wrong:
        lines.append(f"wrong:  {'; '.join(wrong)}")
    return "\n".join(lines)


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
        lines.append(f"    for example {in_symbols(verdict.counterexample)}")
    return "\n".join(lines)


def in_symbols(counterexample: dict[str, str]) -> str:
    """A counterexample that is no single step, in the letters of the tables: `first N 2, first C 3, ...`."""
    letters = SYMBOLS | GHOST_SYMBOLS | EVENT_SYMBOLS | RULE_SYMBOLS
    words = []
    for name, value in counterexample.items():
        prefix, _, field = name.rpartition(".")
        words.append(f"{prefix} {letters.get(field, field)} {value}".strip())
    shown = ", ".join(words[:MOST_VALUES])
    return shown + (f", and {len(words) - MOST_VALUES} more" if len(words) > MOST_VALUES else "")


def order(verdict: Any) -> tuple[int, str]:
    """Effects first, then theorems about one step, invariants, the rest: the most telling failure on top."""
    kinds = ("effect", "theorem", "decision", "invariant")
    is_a_step = verdict.name.partition("/")[0] in EVENTS or verdict.kind == "decision"
    rank = kinds.index(verdict.kind) if is_a_step and verdict.kind in kinds else len(kinds)
    return rank, verdict.name
