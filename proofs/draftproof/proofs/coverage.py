"""Is anything proved about nothing? Every antecedent has a reachable witness, in every mode it can occur in.

`implies(premise, conclusion)` is true for free where the premise is false. So each premise inside an
invariant, an effect, a theorem, a guard or a decision's relation, and each transition's guard as a whole,
must be seen true in a state that a request really reaches: from its arrival, over the exact queue, with the
real floor. And once is not enough: an implication that only ever meets synchronous decoding says nothing
about a preempted asynchronous prefill.

The call sites of `implies` are read from the source (`draftproof.proofs.antecedents`). Then reachable runs
are explored, breadth first, with a recording `implies` in its place. A mode in which an antecedent cannot
occur is argued for in `draftproof.proofs.modes`; a pair of antecedent and mode that is neither witnessed nor
argued is missing, and so is an argument that a witness contradicts. The same for a drafter's fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

from draftproof.impl import decisions as code_of
from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs.antecedents import Call, Position, Site, calls, met, recording
from draftproof.proofs.modes import IMPOSSIBLE, MODES, NEEDS_NO_FENCE, Impossible, Mode, mode_of
from draftproof.proofs.samples import samples
from draftproof.spec import decisions, effects, guards, invariants, queue, theorems
from draftproof.spec.events import EVENTS, Event, Output, Preempt, event_name
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Run
from draftproof.spec.theorems import STEP_THEOREMS, StepTheorem
from draftproof.spec.walks import Sizes, choices

MODULES: tuple[ModuleType, ...] = (guards, invariants, effects, theorems, decisions)
ARRIVALS = tuple(
    (num_prompt_tokens, Rules(2, block_size, asynchronous, fence))
    # Blocks of one token too: there a short text fills several.
    for num_prompt_tokens, block_size, fence in ((1, 2, 0), (3, 2, 0), (2, 1, 1))
    for asynchronous in (False, True)
)
"""Requests to begin with: prompt and rules."""
SIZES = Sizes(max_num_tokens=9, max_num_chunk_tokens=3, max_num_steps_in_flight=3)
MAX_NUM_EVENTS = 100_000
"""When to give up: some seconds. Ordinarily the exploration ends by itself, much earlier."""


class Witness(NamedTuple):
    """A run from a request's arrival whose last event makes the antecedent true; for a decision's, asked
    with these inputs right after it."""

    num_prompt_tokens: int
    rules: Rules
    events: tuple[Event, ...]
    inputs: Any = None


class Coverage(NamedTuple):
    """What was witnessed: the first, and so a short, run for each antecedent and mode."""

    antecedents: tuple[Site, ...]
    witnesses: dict[tuple[str, Mode], Witness]
    impossible: dict[tuple[str, Mode], str]
    """Why the antecedent cannot occur in the mode."""
    idle_arguments: tuple[str, ...]
    """Patterns of impossibility that concern no antecedent."""
    with_fence: frozenset[str]
    """Antecedents that were seen true under rules with a drafter's fence."""
    needs_no_fence: frozenset[str]
    """Antecedents that cannot be: their premise asks for rules without one."""
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
            if (site.name in self.with_fence) == (site.name in self.needs_no_fence):
                is_seen = "argued impossible, yet seen" if site.name in self.with_fence else "not seen"
                found.append(f"{site.name}: {is_seen} with a drafter's fence")
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
        + (f", asked {witness.inputs}" if witness.inputs is not None else "")
    )


# ---- exploring -------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A run with its past."""

    run: Run
    witness: Witness
    trimmed: bool
    preempted: bool


class Step(NamedTuple):
    """An event with all that a predicate may ask, and the circumstances."""

    before: State
    rules: Rules
    event: Event
    after: State
    mode: Mode
    """What the event comes into: phase and preemptions before it, trims including its own."""
    mode_after: Mode
    witness: Witness
    asks: bool
    """Decisions are asked in the state after it."""


def _likeness(node: Node) -> tuple[Any, ...]:
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
        min(ledger.num_tokens - 1 - invariants.frontier(node.run.state), 3),
        ghosts.num_awaited_samples > 0,
        ghosts.completes_prompt,
        tuple((step.samples, step.prefill, step.num_drafts > 0) for step in steps),
        ledger.num_stale_tokens > 0,
        ledger.num_stale_tokens == ledger.num_in_flight_tokens,
    )


CODE = {name: plain(function) for name, function in TRANSITIONS.items()}


def advanced(node: Node, event: Event) -> tuple[Node, Step]:
    """A run with its past after a possible event, and the event as a step."""
    rules = node.witness.rules
    after = queue.advance(node.run, rules, event, CODE)
    trims = isinstance(event, Output) and event.num_kept <= event.num_accepted
    trimmed = node.trimmed or trims
    preempted = node.preempted or isinstance(event, Preempt)
    witness = node.witness._replace(events=(*node.witness.events, event))
    mode = mode_of(node.run.state, rules, trimmed, node.preempted)
    mode_after = mode_of(after.state, rules, trimmed, preempted)
    step = Step(node.run.state, rules, event, after.state, mode, mode_after, witness, True)
    return Node(after, witness, trimmed, preempted), step


def start(num_prompt_tokens: int, rules: Rules) -> Node:
    """A request that has just arrived."""
    return Node(queue.start(num_prompt_tokens), Witness(num_prompt_tokens, rules, ()), False, False)


def _explored(max_num_events: int) -> Iterator[Step]:
    """Steps of reachable runs, breadth first, so that the first witness of anything is a short one.

    Of a run's next events of one kind that lead to runs alike, only the first is told.
    """
    frontier = [start(prompt, rules) for prompt, rules in ARRIVALS]
    seen = {_likeness(node) for node in frontier}
    asked: set[tuple[Any, ...]] = set()
    num_events = 0
    while frontier:
        reached = []
        for node in frontier:
            alike: set[tuple[Any, ...]] = set()
            for event in choices(node.run, node.witness.rules, SIZES):
                child, step = advanced(node, event)
                likeness = _likeness(child)
                num_events += 1
                if num_events > max_num_events:
                    return
                if (type(event), likeness) in alike:
                    continue
                alike.add((type(event), likeness))
                if likeness not in seen:
                    seen.add(likeness)
                    reached.append(child)
                query = _query_likeness(step)
                yield step._replace(asks=query not in asked)
                asked.add(query)
        frontier = reached


def _query_likeness(step: Step) -> tuple[Any, ...]:
    """What a decision could depend on in the state after a step: of states alike, one is asked about."""
    ledger, ghosts = step.after
    return (
        step.rules,
        step.mode_after,
        ledger.status,
        ledger.stop_pending,
        min(ledger.num_tokens, 4),
        min(num_schedulable(ledger), 2),
        ghosts.num_awaited_samples > 0,
        ledger.num_in_flight_tokens > 0,
    )


class _Evaluation(NamedTuple):
    """Something to compute while `implies` records."""

    compute: Callable[[Step], Any]
    concerns_after: bool = False
    """It is about the state after the event alone."""


def _evaluations(step_theorems: Sequence[StepTheorem]) -> dict[str, list[_Evaluation]]:
    """What is claimed of each transition, each apart."""

    def of_state(step: Step) -> Any:
        return invariants.invariants(step.after, step.rules)

    def of_effects(step: Step) -> Any:
        return effects.EFFECTS[event_name(step.event)](step.before, step.rules, step.event, step.after)

    def of_theorem(theorem: StepTheorem) -> Callable[[Step], Any]:
        return lambda step: theorem.predicate(step.before, step.rules, step.event, step.after)

    claims: dict[str, list[_Evaluation]] = {}
    for name in EVENTS:
        claims[name] = [_Evaluation(of_state, concerns_after=True), _Evaluation(of_effects)]
        claims[name] += [
            _Evaluation(of_theorem(claim)) for claim in step_theorems if name in claim.transitions
        ]
    return claims


Seen = tuple[str, Mode, Witness]
"""An antecedent that was true, the mode, and where."""


class Observer:
    """Tells of each step which antecedents held. Only while its recording is active.

    The modules' functions are reached through the guards, the invariants, the effects, the theorems about
    steps and the decisions; a call of `implies` that is never reached counts as one whose premise never
    holds.
    """

    def __init__(
        self,
        modules: Sequence[ModuleType] = MODULES,
        step_theorems: Sequence[StepTheorem] = STEP_THEOREMS,
    ) -> None:
        self.modules = modules
        self.known: dict[Position, Call] = {}
        for module in modules:
            self.known |= calls(module)
        self._evaluations = _evaluations(step_theorems)
        self._premises: dict[Position, bool] = {}

    def recording(self) -> AbstractContextManager[None]:
        """The time in which to ask."""
        return recording(self.modules, self._premises)

    def _met(self, wanted: Callable[[str], bool]) -> Iterator[str]:
        """The antecedents just met in one kind of module: a guard that a theorem asks is not its claim."""
        names = met(self.known, self._premises)
        return (name for name in names if wanted(name.partition("/")[0]))

    def seen(self, step: Step) -> list[Seen]:
        """Antecedents that were true of the step, and its guard if it is enabled."""
        name = event_name(step.event)
        self._premises.clear()
        found: list[Seen] = []
        if all(guards.conditions(name, step.before, step.rules, step.event).values()):
            of_guard = [f"guards/{name}", *self._met("guards".__eq__)]
            found += [(site, step.mode, step.witness) for site in of_guard]
        for evaluation in self._evaluations[name]:
            self._premises.clear()
            evaluation.compute(step)
            mode = step.mode_after if evaluation.concerns_after else step.mode
            claims = self._met(lambda kind: kind not in ("guards", "decisions"))
            found += [(site, mode, step.witness) for site in claims]
        return found + self._decided(step) if step.asks else found

    def _decided(self, step: Step) -> list[Seen]:
        found: list[Seen] = []
        for name, inputs in samples(step.after, step.rules):
            result = code_of.FUNCTIONS[name](step.after.ledger, step.rules, *inputs)
            self._premises.clear()
            decisions.RELATIONS[name](step.after, step.rules, inputs, result)
            witness = step.witness._replace(inputs=inputs)
            found += [(site, step.mode_after, witness) for site in self._met("decisions".__eq__)]
        return found


def argued_impossible(
    names: Sequence[str], impossible: Sequence[Impossible] = IMPOSSIBLE
) -> dict[tuple[str, Mode], str]:
    """The pairs of antecedent and mode that an argument rules out, each with the first that does."""
    return {
        (name, mode): reason.why
        for reason in reversed(impossible)
        for name in names
        for mode in MODES
        if reason.concerns(name) and reason.excludes(mode)
    }


def idle_arguments(names: Sequence[str], impossible: Sequence[Impossible] = IMPOSSIBLE) -> tuple[str, ...]:
    """The patterns of impossibility that concern none of the antecedents."""
    return tuple(
        pattern
        for reason in impossible
        for pattern in reason.patterns
        if not any(reason._replace(patterns=(pattern,)).concerns(name) for name in names)
    )


def cover(
    modules: Sequence[ModuleType] = MODULES,
    step_theorems: Sequence[StepTheorem] = STEP_THEOREMS,
    impossible: Sequence[Impossible] = IMPOSSIBLE,
    max_num_events: int = MAX_NUM_EVENTS,
) -> Coverage:
    """Explore, and note which antecedents of the modules, and which guards, held in which modes."""
    observer = Observer(modules, step_theorems)
    sites = (
        *[call.site for call in observer.known.values()],
        *[Site(f"guards/{name}", f"{name} is enabled") for name in EVENTS],
    )
    names = [site.name for site in sites]
    witnesses: dict[tuple[str, Mode], Witness] = {}
    with_fence: set[str] = set()
    num_events = 0
    with observer.recording():
        for step in _explored(max_num_events):
            num_events += 1
            for name, mode, witness in observer.seen(step):
                witnesses.setdefault((name, mode), witness)
                if step.rules.registration_fence > 0:
                    with_fence.add(name)
    return Coverage(
        antecedents=sites,
        witnesses=witnesses,
        impossible=argued_impossible(names, impossible),
        idle_arguments=idle_arguments(names, impossible),
        with_fence=frozenset(with_fence),
        needs_no_fence=frozenset(name for name in names if name in NEEDS_NO_FENCE),
        num_events=num_events,
    )
