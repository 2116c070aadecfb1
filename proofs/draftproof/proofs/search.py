"""What is the shortest way from a new request to a state in which a statement is false?

Bounded model checking: the very functions (faulty ones, as a rule) are unrolled step by step on z3 terms,
with the exact queue of steps in flight and the guards' control conditions only; a ledger fact in a guard
would block the very states that a fault produces. The block size is fixed, so rounding is the real one.
The first depth with an answer is the shortest; then the sum of all numbers is made smallest. Not finding
a trace up to a depth proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import as_terms, symbolic_state
from draftproof.proofs.decisions import symbolic_inputs
from draftproof.proofs.faults.fault import Decision
from draftproof.proofs.faults.patching import Code
from draftproof.proofs.faults.predicates import is_about_decision, of_decision, of_step
from draftproof.proofs.faults.trace import Trace
from draftproof.spec import ghosts
from draftproof.spec.decision_inputs import DECISIONS, Metrics
from draftproof.spec.decisions import ASSUMPTIONS
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Schedule
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Step, dispatched

NAMES = tuple(EVENTS)
SEARCH_RESOURCES = 60_000_000
"""z3 `rlimit` units for one question of the search."""

Progress = Callable[[str], None]


class Limits(NamedTuple):
    """Where the search looks. Counts are tokens; `depth` is events."""

    depth: int = 8
    asynchronous: bool | None = None
    num_speculative_tokens: int = 3
    """At most; chosen by the search."""
    block_size: int = 2
    registration_fence: int = 0
    query_after: str = ""
    """The event that a decision must be asked after; empty: any, or none."""
    passes: str = ""
    """An event that must come somewhere before the last one; empty: any, or none."""
    chunk_alignment: int = 1
    """What a decision is asked with: like the block size it divides, so it must be a number."""


class Unanswered(RuntimeError):
    """The solver gave up on a question of the search: there may or may not be a trace."""


class _Queue(NamedTuple):
    """Steps in flight as z3 arrays by serial number: `head` returns next, `tail` is dispatched next."""

    head: Any
    tail: Any
    num_tokens: Any
    num_drafts: Any
    samples: Any


class _Level(NamedTuple):
    """One unrolled event: which it is, and its arguments."""

    chosen: Any
    integers: list[Any]
    drop: Any


def _new_queue() -> _Queue:
    zero = z3.K(z3.IntSort(), z3.IntVal(0))
    return _Queue(z3.IntVal(0), z3.IntVal(0), zero, zero, z3.K(z3.IntSort(), z3.BoolVal(False)))


def _queue_symbols(prefix: str) -> _Queue:
    numbers = z3.ArraySort(z3.IntSort(), z3.IntSort())
    return _Queue(
        z3.Int(f"{prefix}head"),
        z3.Int(f"{prefix}tail"),
        z3.Const(f"{prefix}num_tokens", numbers),
        z3.Const(f"{prefix}num_drafts", numbers),
        z3.Const(f"{prefix}samples", z3.ArraySort(z3.IntSort(), z3.BoolSort())),
    )


def _event(name: str, level: _Level) -> Any:
    """The event `name` with this level's arguments."""
    integers = iter(level.integers)
    kind: Any = EVENTS[name]
    return kind(*[level.drop if field in BOOLEAN_ARGUMENTS else next(integers) for field in kind._fields])


def agrees_with_head(name: str, state: State, head: Step, event: Any) -> list[Any]:
    """`draftproof.spec.queue.head_agrees` on terms: an event that returns a step returns the step `head`."""
    if name not in ("chunk_output", "output", "stale_output"):
        return []
    facts = [event.num_returned == head.num_tokens]
    if name == "chunk_output":
        return [*facts, z3.Not(head.samples)]
    if name == "output":
        return [*facts, head.samples, event.num_drafts == head.num_drafts]
    return [
        *facts,
        event.num_kept <= z3.If(head.samples, 1 + head.num_drafts, 0),
        z3.Or(event.num_kept >= 1, z3.Not(head.samples), state.ledger.drop_stale),
    ]


def _queue_allows(name: str, state: State, queue: _Queue, event: Any) -> list[Any]:
    """A returning event needs a step in flight, and speaks about the oldest."""
    head = Step(
        queue.num_tokens[queue.head],
        queue.num_drafts[queue.head],
        queue.samples[queue.head],
        prefill=False,  # no event is asked about it
    )
    facts = agrees_with_head(name, state, head, event)
    return [queue.head < queue.tail, *facts] if facts else []


def _queue_after(name: str, state: State, queue: _Queue, event: Any) -> _Queue:
    """The queue after an event, as `draftproof.spec.queue.advance` has it."""
    if name in ("chunk_output", "output", "stale_output"):
        return queue._replace(head=queue.head + 1)
    if name != "schedule":
        return queue
    step = dispatched(state, Schedule(*event))
    return _Queue(
        queue.head,
        queue.tail + 1,
        z3.Store(queue.num_tokens, queue.tail, step.num_tokens),
        z3.Store(queue.num_drafts, queue.tail, step.num_drafts),
        z3.Store(queue.samples, queue.tail, step.samples),
    )


class Unrolling:
    """Every run of the code from a new request, one event deeper with each `deepen`."""

    def __init__(self, code: Code, limits: Limits) -> None:
        self.code = code
        drafts: Any = z3.Int("K")
        asynchronous: Any = z3.Bool("asynchronous")
        mode: Any = asynchronous if limits.asynchronous is None else z3.BoolVal(limits.asynchronous)
        self.rules = Rules(drafts, limits.block_size, mode, limits.registration_fence)
        self.num_prompt_tokens: Any = z3.Int("num_prompt_tokens")
        start = initial_state(self.num_prompt_tokens)
        self.states = [State(as_terms(start.ledger), as_terms(start.ghosts))]
        self.queues = [_new_queue()]
        self.levels: list[_Level] = []
        self.solver = z3.Solver()
        self.solver.set("random_seed", 0)
        self.solver.set("rlimit", SEARCH_RESOURCES)
        self.solver.add(self.num_prompt_tokens >= 1, drafts >= 0, drafts <= limits.num_speculative_tokens)

    def deepen(self) -> None:
        """One more event."""
        depth = len(self.levels)
        level = _Level(
            z3.Int(f"chosen{depth}"),
            [z3.Int(f"argument{depth}.{index}") for index in range(5)],
            z3.Bool(f"drop{depth}"),
        )
        after = symbolic_state(f"{depth + 1}.")
        queue = _queue_symbols(f"{depth + 1}.")
        self.solver.add(level.chosen >= 0, level.chosen < len(NAMES))
        for index, name in enumerate(NAMES):
            self.solver.add(z3.Implies(level.chosen == index, z3.And(*self._step(name, level, after, queue))))
        self.levels.append(level)
        self.states.append(after)
        self.queues.append(queue)

    def _step(self, name: str, level: _Level, after: State, queue: _Queue) -> list[Any]:
        """That the event `name` leads from the last state to `after`, and may come."""
        before, old_queue = self.states[-1], self.queues[-1]
        event = _event(name, level)
        ledger = as_terms(self.code.transitions[name](before.ledger, self.rules, *event))
        truth = as_terms(getattr(ghosts, name)(before, self.rules, event))
        facts: list[Any] = list(self.code.control[name](before, self.rules, event).values())
        facts += _queue_allows(name, before, old_queue, event)
        facts += [new == value for new, value in zip(after.ledger, ledger, strict=True)]
        facts += [new == value for new, value in zip(after.ghosts, truth, strict=True)]
        expected = _queue_after(name, before, old_queue, event)
        facts += [new == value for new, value in zip(queue, expected, strict=True)]
        num_used = len([field for field in EVENTS[name]._fields if field not in BOOLEAN_ARGUMENTS])
        facts += [unused == 0 for unused in level.integers[num_used:]]
        if num_used == len(EVENTS[name]._fields):
            facts.append(z3.Not(level.drop))
        return facts

    def size(self) -> Any:
        """What is made smallest: all arguments, the prompt and the drafts counting more."""
        arguments = [argument for level in self.levels for argument in level.integers]
        mode = self.rules.asynchronous
        extra = z3.If(mode, 1, 0) if not (z3.is_true(mode) or z3.is_false(mode)) else z3.IntVal(0)
        drops = [z3.If(level.drop, 1, 0) for level in self.levels]
        return z3.Sum(
            4 * self.num_prompt_tokens, 4 * self.rules.num_speculative_tokens, extra, *arguments, *drops
        )


class _Goal(NamedTuple):
    """What the last level must satisfy, and the inputs of the decision it asks, if any."""

    facts: list[Any]
    inputs: Any


def _step_goal(unrolling: Unrolling, path: str) -> _Goal | None:
    """The last event is the path's transition and breaks its statement."""
    if not unrolling.levels:
        return None
    name = path.partition("/")[0]
    level = unrolling.levels[-1]
    event = _event(name, level)
    holds = of_step(path, unrolling.states[-2], unrolling.rules, event, unrolling.states[-1])
    return _Goal([level.chosen == NAMES.index(name), z3.Not(holds)], None)


def _way(unrolling: Unrolling, limits: Limits) -> list[Any]:
    """The event that the way must pass is among those before the last."""
    if not limits.passes:
        return []
    passed = NAMES.index(limits.passes)
    return [z3.Or(*[level.chosen == passed for level in unrolling.levels[:-1]])]


def _decision_goal(unrolling: Unrolling, path: str, limits: Limits) -> _Goal | None:
    """In the last state the path's decision is asked as assumed, and its result breaks its relation."""
    facts = []
    if limits.query_after:
        if not unrolling.levels:
            return None
        facts.append(unrolling.levels[-1].chosen == NAMES.index(limits.query_after))
    name = path.partition("/")[0]
    state, rules, inputs = unrolling.states[-1], unrolling.rules, symbolic_inputs(name)
    if name == "tokens_to_schedule":
        inputs = inputs._replace(chunk_alignment=z3.IntVal(limits.chunk_alignment))
        facts += _as_a_host_asks(unrolling, inputs)
    result = unrolling.code.decisions[name](state.ledger, rules, *inputs)
    if isinstance(result, Metrics):
        result = as_terms(result)
    facts += list(ASSUMPTIONS[name](state, rules, inputs).values())
    holds = of_decision(path, state, rules, inputs, result)
    facts += [value >= 0 for value in _numbers(inputs)]
    return _Goal([*facts, z3.Not(holds)], inputs)


def _as_a_host_asks(unrolling: Unrolling, inputs: Any) -> list[Any]:
    """A host counts the outputs it awaits, and a running request is short of its limit."""
    state, queue = unrolling.states[-1], unrolling.queues[-1]
    awaited = [
        z3.If(z3.And(queue.head <= serial, serial < queue.tail, queue.samples[serial]), 1, 0)
        for serial in range(len(unrolling.levels))
    ]
    return [
        inputs.num_awaited_outputs == z3.Sum(awaited) if awaited else inputs.num_awaited_outputs == 0,
        state.ledger.num_stale_tokens == 0,
        state.ledger.num_tokens < inputs.max_num_tokens,
        inputs.max_num_tokens <= inputs.max_model_len,
    ]


def _numbers(inputs: Any) -> list[Any]:
    """The integers among a decision's inputs, those of its metrics included."""
    if inputs is None:
        return []
    flat = [part for value in inputs for part in (value if isinstance(value, Metrics) else (value,))]
    return [value for value in flat if z3.is_int(value)]


def shortest(
    code: Code, path: str, limits: Limits | None = None, progress: Progress | None = None
) -> Trace | None:
    """The shortest, then smallest, trace at whose end the statement `path` is false; None if no trace of up
    to `limits.depth` events is. Raises Unanswered if the solver gives up before that is known.
    """
    limits = limits or Limits()
    say = progress or (lambda text: None)
    unrolling = Unrolling(code, limits)
    for depth in range(limits.depth + 1):
        if depth:
            unrolling.deepen()
        goal = (
            _decision_goal(unrolling, path, limits)
            if is_about_decision(path)
            else _step_goal(unrolling, path)
        )
        if goal is None:
            continue
        unrolling.solver.push()
        unrolling.solver.add(*goal.facts, *_way(unrolling, limits))
        verdict = str(unrolling.solver.check())
        if verdict == "sat":
            say(f"{path}: a trace of {depth} events")
            return _read(_smallest(unrolling, goal), unrolling, goal, path)
        if verdict != "unsat":
            raise Unanswered(f"{path}: no answer at {depth} events; raise SEARCH_RESOURCES or lower a limit")
        unrolling.solver.pop()
        say(f"{path}: none of {depth} events")
    return None


def _smallest(unrolling: Unrolling, goal: _Goal) -> Any:
    """A model with the smallest sum of numbers, by bisection."""
    solver = unrolling.solver
    size = z3.Sum(unrolling.size(), *_numbers(goal.inputs))
    model = solver.model()
    low, high = 0, _value(model, size)
    while low < high:
        middle = (low + high) // 2
        solver.push()
        solver.add(size <= middle)
        verdict = str(solver.check())
        if verdict == "sat":
            model = solver.model()
            high = _value(model, size)
        elif verdict == "unsat":
            low = middle + 1
        else:
            raise Unanswered("the solver gave up while making the trace's numbers small")
        solver.pop()
    return model


def _value(model: Any, term: Any) -> Any:
    """A term's value in a model, as a Python integer or truth value."""
    if isinstance(term, int):
        return term
    value = model.eval(term, model_completion=True)
    return value.as_long() if z3.is_int(value) else z3.is_true(value)


def _read(model: Any, unrolling: Unrolling, goal: _Goal, path: str) -> Trace:
    """The trace that a model describes."""
    events = []
    for level in unrolling.levels:
        name = NAMES[_value(model, level.chosen)]
        event = _event(name, level)
        events.append(type(event)(*[_value(model, argument) for argument in event]))
    decision = None
    if goal.inputs is not None:
        name = path.partition("/")[0]
        values = [
            Metrics(*[_value(model, part) for part in value])
            if isinstance(value, Metrics)
            else _value(model, value)
            for value in goal.inputs
        ]
        decision = Decision(name, DECISIONS[name](*values))
    return Trace(
        Rules(*[_value(model, rule) for rule in unrolling.rules]),
        _value(model, unrolling.num_prompt_tokens),
        tuple(events),
        decision,
        path,
    )
