"""Is anything proved about nothing? Every antecedent has a reachable witness, in every mode it can occur in.

`implies(premise, conclusion)` is true for free where the premise is false. So each premise inside an
invariant, an effect or a theorem, and each transition's guard, must be seen true in a state that a request
really reaches: from its arrival, over the exact queue, with the real floor. And once is not enough: an
implication that only ever meets synchronous decoding says nothing about a preempted asynchronous prefill.

The call sites of `implies` are read from the source, so none can be forgotten. Then reachable runs are
explored, breadth first, with a recording `implies` in its place. A mode in which an antecedent cannot occur
is argued for in `draftproof.proofs.modes`; a pair of antecedent and mode that is neither witnessed nor argued
is missing, and so is an argument that a witness contradicts.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs.modes import IMPOSSIBLE, MODES, Impossible, Mode, mode_of
from draftproof.spec import algebra, effects, guards, invariants, queue, theorems
from draftproof.spec.events import EVENTS, Event, Output, Preempt, event_name
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Run
from draftproof.spec.theorems import STEP_THEOREMS, StepTheorem
from draftproof.spec.walks import Sizes, choices

RULES = tuple(Rules(2, 2, asynchronous, 0) for asynchronous in (False, True))
PROMPTS = (1, 3)
SIZES = Sizes(max_num_tokens=9, max_num_chunk_tokens=2, max_num_steps_in_flight=3)
MAX_NUM_EVENTS = 100_000
"""When to give up: some seconds. Ordinarily the exploration ends by itself, much earlier."""


class Site(NamedTuple):
    """One call of `implies` in the specification, or a transition's guard."""

    name: str
    """`invariants/stop_pending_shape`, `theorems/something_to_do`, `guards/fold`; `#2` for a second call."""
    premise: str
    """The source of the premise, together with those of the calls around it."""


class Witness(NamedTuple):
    """A run from a request's arrival whose last event makes the antecedent true."""

    num_prompt_tokens: int
    rules: Rules
    events: tuple[Event, ...]


class Coverage(NamedTuple):
    """What was witnessed: the first, and so a short, run for each antecedent and mode."""

    antecedents: tuple[Site, ...]
    witnesses: dict[tuple[str, Mode], Witness]
    impossible: dict[tuple[str, Mode], str]
    """Why the antecedent cannot occur in the mode."""
    idle_arguments: tuple[str, ...]
    """Patterns of impossibility that concern no antecedent."""
    num_events: int
    """Events explored."""

    @property
    def missing(self) -> list[str]:
        """What keeps this from being a pass; empty if nothing does."""
        found = [f"the argument about {pattern} concerns no antecedent" for pattern in self.idle_arguments]
        for site in self.antecedents:
            seen = [mode for mode in MODES if (site.name, mode) in self.witnesses]
            argued = [mode for mode in MODES if (site.name, mode) in self.impossible]
            if not seen:
                found.append(f"{site.name}: no reachable state makes `{site.premise}` true")
                continue
            found += [f"{site.name}: not seen when {mode}" for mode in MODES if mode not in (*seen, *argued)]
            found += [
                f"{site.name}: argued impossible when {mode}, yet seen" for mode in argued if mode in seen
            ]
        return found

    @property
    def table(self) -> list[dict[str, str]]:
        """One row per antecedent and mode, for the report: the witness's events, or why there is none."""
        rows = []
        for site in self.antecedents:
            for mode in MODES:
                witness = self.witnesses.get((site.name, mode))
                row = {"antecedent": site.name, "premise": site.premise, "mode": str(mode)}
                if witness:
                    row |= {"verdict": "witnessed", "detail": format_witness(witness)}
                elif (site.name, mode) in self.impossible:
                    row |= {"verdict": "impossible", "detail": self.impossible[site.name, mode]}
                else:
                    row |= {"verdict": "missing", "detail": ""}
                rows.append(row)
        return rows


def format_witness(witness: Witness) -> str:
    """`prompt 2, K=1, B=2, f=0, asynchronous: admit(0), schedule(2), ...`."""
    rules = witness.rules
    steps = ", ".join(
        f"{event_name(event)}({', '.join(str(int(value)) for value in event)})" for event in witness.events
    )
    return (
        f"prompt {witness.num_prompt_tokens}, K={rules.num_speculative_tokens}, B={rules.block_size}, "
        f"f={rules.registration_fence}, {'a' if rules.asynchronous else ''}synchronous: {steps}"
    )


# ---- the calls of `implies`, from the source ------------------------------------------------------------

Position = tuple[str, int, int, int, int]
"""File, first line, last line, first column, last column: of a call, as the compiler records it."""


class _Call(NamedTuple):
    site: Site
    enclosing: tuple[Position, ...]
    """The calls whose conclusion this one is part of: it counts only where their premises hold too."""


def _calls(module: ModuleType) -> dict[Position, _Call]:
    """Every call of `implies` in a module, by position."""
    file = inspect.getsourcefile(module) or ""
    found: dict[Position, _Call] = {}
    counts: dict[str, int] = {}

    def visit(node: ast.AST, name: str, around: tuple[tuple[Position, str], ...]) -> None:
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                labelled = isinstance(key, ast.Constant) and isinstance(key.value, str)
                label = str(key.value) if labelled and isinstance(key, ast.Constant) else ""
                visit(value, f"{name}/{label}" if label else name, around)
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "implies":
            position = (file, node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
            premise, conclusion = node.args
            counts[name] = counts.get(name, 0) + 1
            ordinal = f"#{counts[name]}" if counts[name] > 1 else ""
            words = [text for _, text in around] + [ast.unparse(premise)]
            full_name = f"{module.__name__.rpartition('.')[2]}/{name}{ordinal}"
            site = Site(full_name.replace("invariants/invariants/", "invariants/"), " and ".join(words))
            found[position] = _Call(site, tuple(outer for outer, _ in around))
            visit(premise, name, around)
            visit(conclusion, name, (*around, (position, ast.unparse(premise))))
            return
        for child in ast.iter_child_nodes(node):
            visit(child, name, around)

    visit(ast.parse(inspect.getsource(module)), "", ())
    return found


@contextmanager
def _recording(modules: Sequence[ModuleType], premises: dict[Position, bool]) -> Iterator[None]:
    """While active, `implies` in these modules notes its premise under the position of the call."""
    positions: dict[tuple[Any, int], Position] = {}

    def implies(premise: bool, conclusion: bool) -> bool:
        frame = sys._getframe(1)
        where = (frame.f_code, frame.f_lasti)
        position = positions.get(where)
        if position is None:
            line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
            file = frame.f_code.co_filename
            position = (file, line or 0, end_line or 0, column or 0, end_column or 0)
            positions[where] = position
        premises[position] = bool(premise)
        return algebra.implies(premise, conclusion)

    originals: list[tuple[ModuleType, Any]] = [(module, vars(module)["implies"]) for module in modules]
    for module, _ in originals:
        module.implies = implies  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in originals:
            module.implies = original  # type: ignore[attr-defined]


# ---- exploring -------------------------------------------------------------------------------------------


class _Node(NamedTuple):
    """A run with its past."""

    run: Run
    witness: Witness
    trimmed: bool
    preempted: bool


class _Step(NamedTuple):
    """An event with all that a predicate may ask, and the circumstances."""

    before: State
    rules: Rules
    event: Event
    after: State
    mode: Mode
    """What the event comes into: phase and preemptions before it, trims including its own."""
    mode_after: Mode
    witness: Witness


def _likeness(node: _Node) -> tuple[Any, ...]:
    """What makes a run worth exploring: of runs alike in all this, only the first is."""
    (ledger, ghosts), steps = node.run.state, node.run.queue
    return (
        node.witness.rules,
        node.trimmed,
        node.preempted,
        ledger.status,
        ledger.stop_pending,
        ledger.drop_stale,
        ledger.num_trimmed_tokens > 0,
        ledger.num_draft_tokens > 0,
        ledger.num_computed_tokens > 0,
        min(ledger.num_tokens - 1 - invariants.frontier(node.run.state), 2),
        ghosts.num_awaited_samples > 0,
        ghosts.completes_prompt,
        tuple((step.samples, step.prefill, step.num_drafts > 0) for step in steps),
        ledger.num_stale_tokens > 0,
        ledger.num_stale_tokens == ledger.num_in_flight_tokens,
    )


def _explored(max_num_events: int) -> Iterator[_Step]:
    """Steps of reachable runs, breadth first, so that the first witness of anything is a short one."""
    code = {name: plain(function) for name, function in TRANSITIONS.items()}
    frontier = [
        _Node(queue.start(prompt), Witness(prompt, rules, ()), False, False)
        for rules in RULES
        for prompt in PROMPTS
    ]
    seen = {_likeness(node) for node in frontier}
    num_events = 0
    while frontier:
        reached = []
        for node in frontier:
            rules = node.witness.rules
            for event in choices(node.run, rules, SIZES):
                after = queue.advance(node.run, rules, event, code)
                trims = isinstance(event, Output) and event.num_kept <= event.num_accepted
                trimmed = node.trimmed or trims
                preempted = node.preempted or isinstance(event, Preempt)
                witness = node.witness._replace(events=(*node.witness.events, event))
                mode = mode_of(node.run.state, rules, trimmed, node.preempted)
                mode_after = mode_of(after.state, rules, trimmed, preempted)
                yield _Step(node.run.state, rules, event, after.state, mode, mode_after, witness)
                child = _Node(after, witness, trimmed, preempted)
                likeness = _likeness(child)
                if likeness not in seen:
                    seen.add(likeness)
                    reached.append(child)
                num_events += 1
                if num_events >= max_num_events:
                    return
        frontier = reached


Evaluation = Callable[[_Step], Any]


def _evaluations(step_theorems: Sequence[StepTheorem]) -> dict[str, list[tuple[bool, Evaluation]]]:
    """What is claimed of each transition, each apart, and whether it concerns the state after alone."""

    def of_state(step: _Step) -> Any:
        return invariants.invariants(step.after, step.rules)

    def of_effects(step: _Step) -> Any:
        return effects.EFFECTS[event_name(step.event)](step.before, step.rules, step.event, step.after)

    def of_theorem(theorem: StepTheorem) -> Evaluation:
        return lambda step: theorem.predicate(step.before, step.rules, step.event, step.after)

    claims: dict[str, list[tuple[bool, Evaluation]]] = {}
    for name in EVENTS:
        claims[name] = [(True, of_state), (False, of_effects)]
        claims[name] += [(False, of_theorem(claim)) for claim in step_theorems if name in claim.transitions]
    return claims


def cover(
    modules: Sequence[ModuleType] = (invariants, effects, theorems),
    step_theorems: Sequence[StepTheorem] = STEP_THEOREMS,
    impossible: Sequence[Impossible] = IMPOSSIBLE,
    max_num_events: int = MAX_NUM_EVENTS,
) -> Coverage:
    """Explore, and note which antecedents of the modules, and which guards, held in which modes.

    The modules' functions are reached through the invariants, the effects and `step_theorems`; a call of
    `implies` that is never reached counts as one whose premise never holds.
    """
    calls: dict[Position, _Call] = {}
    for module in modules:
        calls |= _calls(module)
    guarded = [Site(f"guards/{name}", f"{name} is enabled") for name in EVENTS]
    sites = (*[call.site for call in calls.values()], *guarded)
    argued = {
        (site.name, mode): reason.why
        for reason in reversed(impossible)
        for site in sites
        for mode in MODES
        if reason.concerns(site.name) and reason.excludes(mode)
    }
    idle = tuple(
        pattern
        for reason in impossible
        for pattern in reason.patterns
        if not any(reason._replace(patterns=(pattern,)).concerns(site.name) for site in sites)
    )
    evaluations = _evaluations(step_theorems)
    witnesses: dict[tuple[str, Mode], Witness] = {}
    premises: dict[Position, bool] = {}
    num_events = 0

    with _recording(modules, premises):
        for step in _explored(max_num_events):
            num_events += 1
            name = event_name(step.event)
            seen = []
            if all(guards.conditions(name, step.before, step.rules, step.event).values()):
                seen.append((f"guards/{name}", step.mode))
            for concerns_after, evaluate in evaluations[name]:
                premises.clear()
                evaluate(step)
                mode = step.mode_after if concerns_after else step.mode
                seen += [
                    (call.site.name, mode)
                    for position, holds in premises.items()
                    if holds
                    and (call := calls.get(position))
                    and all(premises[outer] for outer in call.enclosing)
                ]
            for pair in seen:
                witnesses.setdefault(pair, step.witness)
    return Coverage(sites, witnesses, argued, idle, num_events)
