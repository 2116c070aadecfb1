"""The queue as solver terms is the queue that runs: compared step by step along random runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import z3

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs import queue_model
from draftproof.proofs.carrier_z3 import as_terms
from draftproof.proofs.queue_model import Queue, Scope
from draftproof.spec import queue
from draftproof.spec.events import ChunkOutput, Event, Output, StaleOutput, event_name
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import FINISHED, Rules
from draftproof.spec.queue import Run, Step
from draftproof.spec.walks import Sizes, choices, pick

CODE = {name: plain(code) for name, code in TRANSITIONS.items()}
SIZES = Sizes(max_num_tokens=14, max_num_chunk_tokens=3, max_num_steps_in_flight=4)
RETURNING = ChunkOutput | Output | StaleOutput


def term(value: int) -> Any:
    return z3.IntVal(int(value))


def array(values: list[int]) -> Any:
    found = z3.K(z3.IntSort(), term(0))
    for index, value in enumerate(values):
        found = z3.Store(found, index, term(value))
    return found


def model_of(steps: tuple[Step, ...], num_stale: int) -> Queue:
    """The steps in flight, numbered from 0, with their sums; the first `num_stale` are of an earlier life."""

    def before(count: Callable[[Step], int]) -> Any:
        return array([0, *itertools.accumulate(map(count, steps))])

    return Queue(
        num_tokens=array([step.num_tokens for step in steps]),
        num_drafts=array([step.num_drafts for step in steps]),
        prefill=array([step.prefill for step in steps]),
        completes_prompt=array([step.prefill and step.samples for step in steps]),
        tokens_before=before(lambda step: step.num_tokens),
        samples_before=before(lambda step: step.num_generated_at_most),
        prefill_before=before(lambda step: step.num_tokens if step.prefill else 0),
        completions_before=before(lambda step: int(step.prefill and step.samples)),
        head=term(0),
        first_live=term(num_stale),
        tail=term(len(steps)),
    )


def holds(formula: Any) -> bool:
    """The truth of a formula without variables; anything that does not fold to one is no truth."""
    folded = z3.simplify(z3.BoolVal(formula) if isinstance(formula, bool) else formula)
    assert z3.is_true(folded) or z3.is_false(folded), folded
    return bool(z3.is_true(folded))


def number(expression: Any) -> int:
    value: int = z3.simplify(expression).as_long()
    return value


def terms_of(state: State) -> State:
    return State(as_terms(state.ledger), as_terms(state.ghosts))


class Moment(NamedTuple):
    """A run between two events, and the model of it."""

    rules: Rules
    run: Run
    model: Queue
    event: Event
    after: Run
    advanced: Queue
    """The model moved by itself."""
    num_stale: int
    """Steps in flight after the event that belong to an earlier life: the model's own word."""

    @property
    def model_after(self) -> Queue:
        """The model built anew from the exact queue."""
        return model_of(self.after.queue, self.num_stale)


def moments(seed: int, num_events: int) -> Iterator[Moment]:
    """Random runs, one after the other, until so many events have happened."""
    chosen = random.Random(seed)
    while num_events > 0:
        rules = Rules(chosen.randint(0, 2), chosen.randint(1, 3), chosen.random() < 0.6, 0)
        run, model = queue.start(chosen.randint(1, 5)), model_of((), 0)
        for _ in range(25):
            possible = choices(run, rules, SIZES)
            if not possible:
                break
            event = pick(possible, chosen.randrange(10_000), lambda option: option)
            after = queue.advance(run, rules, event, CODE)
            advanced = queue_model.advanced(event_name(event), model, run.state, event)
            num_stale = max(number(advanced.first_live) - number(advanced.head), 0)
            moment = Moment(rules, run, model, event, after, advanced, num_stale)
            yield moment
            run, model, num_events = after, moment.model_after, num_events - 1


@pytest.fixture(scope="module")
def walked() -> list[Moment]:
    return list(moments(seed=3, num_events=250))


def test_the_model_moves_as_the_queue_does(walked: list[Moment]) -> None:
    for moment in walked:
        advanced, event = moment.advanced, moment.event
        head, tail = number(advanced.head), number(advanced.tail)
        assert head == isinstance(event, RETURNING), moment
        assert tail - head == len(moment.after.queue), moment
        for index, step in enumerate(moment.after.queue, start=head):
            kept = (
                number(advanced.num_tokens[index]),
                number(advanced.num_drafts[index]),
                number(advanced.completes_prompt[index]) == 1 or number(advanced.prefill[index]) == 0,
                number(advanced.prefill[index]) == 1,
            )
            assert Step(*kept) == step, moment


def relation_failures(moment: Moment, state: State) -> list[str]:
    """What the model relates to the exact queue of the moment and is false of the state."""
    scope = Scope(len(moment.after.queue))
    facts = queue_model.relation(terms_of(state), as_terms(moment.rules), moment.model_after, scope)
    return [name for name, fact in facts.items() if not holds(fact)]


def test_the_relation_holds_of_the_exact_queue(walked: list[Moment]) -> None:
    assert {event_name(moment.event) for moment in walked} == set(TRANSITIONS)
    for moment in walked:
        assert relation_failures(moment, moment.after.state) == [], moment


def test_stale_steps_are_those_whose_tokens_the_ledger_counts_as_stale(walked: list[Moment]) -> None:
    seen = 0
    for moment in walked:
        stale = sum(step.num_tokens for step in moment.after.queue[: moment.num_stale])
        assert stale == moment.after.state.ledger.num_stale_tokens, moment
        seen += stale > 0
    assert seen > 10


def test_model_and_queue_agree_which_events_speak_about_the_head(walked: list[Moment]) -> None:
    agreed = {True: 0, False: 0}
    for moment in walked:
        state = terms_of(moment.run.state)
        head = moment.run.queue[0] if moment.run.queue else Step(1, 0, True, False)
        for event in claims_about(head):
            is_so = queue.head_agrees(moment.run, event)
            facts = queue_model.returning(moment.model, state, as_terms(event))
            assert all(holds(fact) for fact in facts.values()) == is_so, (moment, event)
            agreed[is_so] += 1
    assert min(agreed.values()) > 150, agreed


def claims_about(head: Step) -> Iterator[Event]:
    """Returning events, the step's own and ones that are off by one."""
    num_generated = head.num_generated_at_most
    for num_tokens in (head.num_tokens, head.num_tokens + 1):
        yield ChunkOutput(num_tokens)
        for num_drafts in (head.num_drafts, head.num_drafts + 1):
            yield Output(num_tokens, num_drafts, 0, 1, 0)
        for num_kept in {0, num_generated, num_generated + 1}:
            yield StaleOutput(num_tokens, num_kept, 0)


def test_a_sum_that_is_off_breaks_the_relation(walked: list[Moment]) -> None:
    broken: set[str] = set()
    for moment in walked[:40]:
        ledger, ghosts = moment.after.state
        if ledger.status == FINISHED:
            continue  # its ghosts stay as they were
        wrong = (
            State(ledger._replace(num_in_flight_tokens=ledger.num_in_flight_tokens + 1), ghosts),
            State(ledger._replace(num_stale_tokens=ledger.num_stale_tokens + 1), ghosts),
            State(ledger, ghosts._replace(num_awaited_samples=ghosts.num_awaited_samples + 1)),
            State(ledger, ghosts._replace(num_prefill_in_flight=ghosts.num_prefill_in_flight + 1)),
            State(ledger, ghosts._replace(completes_prompt=ghosts.completes_prompt + 1)),
        )
        for state in wrong:
            failing = relation_failures(moment, state)
            assert failing, state
            broken |= set(failing)
    assert broken >= {"in_flight", "stale", "awaited", "prefill_in_flight", "completes_prompt"}


def test_a_model_that_keeps_a_life_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_model, "ended_life", lambda queue: queue)
    stale = [m for m in moments(seed=3, num_events=250) if m.after.state.ledger.num_stale_tokens > 0]
    assert stale
    for moment in stale:
        assert "stale" in relation_failures(moment, moment.after.state), moment
