"""The compiled passes around a vLLM step do what the proven functions do, and say what is different."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.attach.vllm import kernel, recording, rows
from draftproof.impl.attach.vllm.kernel import FIRST_FOUND, NUM_FOUND, VERDICT, WIDTH
from draftproof.impl.attach.vllm.ledgers import Ledgers
from draftproof.impl.attach.vllm.naming import COMPARED
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import (
    DROP_STALE,
    NUM_DRAFT_TOKENS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_LINES,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
    padded,
)
from draftproof.spec import ghosts
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Output, Schedule
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import FINISHED, PREEMPTED, RUNNING, Ledger, Rules
from draftproof.spec.queue import dispatched

RULES = Rules(num_speculative_tokens=3, block_size=4, asynchronous=True, registration_fence=1)
NUM_STATES = 200
CODES = np.arange(10)
"""The engine's numbers for statuses are the specification's here."""
NOTHING = np.zeros(0, np.int64)
NO_SESSIONS = np.zeros((2, 0), np.int64)


def random_ledgers(seed: int) -> Ledgers:
    """Numbers of all kinds, but that each request wants tokens; the accounting is total."""
    rng = np.random.default_rng(seed)
    ledgers = Ledgers(RULES)
    while ledgers.table.shape[1] < NUM_STATES:
        ledgers.table = np.concatenate([ledgers.table, ledgers.table], axis=1)
    ledgers.table = rng.integers(0, 30, (NUM_LINES, padded(NUM_STATES)))
    ledgers.table[NUM_TOKENS] += 30
    ledgers.table[STATUS] = rng.integers(0, 5, ledgers.table.shape[1])
    ledgers.table[DROP_STALE] = rng.integers(0, 2, ledgers.table.shape[1])
    ledgers.judged = np.ones(ledgers.table.shape[1], np.bool_)
    return ledgers


def after(name: str, state: State, event: Any) -> State:
    """The functions as they are proved."""
    ledger = plain(TRANSITIONS[name])(state.ledger, RULES, *event)
    return State(ledger, getattr(ghosts, name)(state, RULES, event))


def of_engine(ledger: Ledger) -> list[int]:
    """What an engine says that agrees."""
    return [int(getattr(ledger, field)) for field in COMPARED]


def told(states: list[State]) -> tuple[Any, Any]:
    """What engines say that agree, as `engine_view.read` gives it."""
    found = np.array([of_engine(state.ledger) for state in states])
    return found[:, [0, 1, 2, 3, 4, 6]].reshape(-1), found[:, 5].copy()


@pytest.mark.parametrize("name", EVENTS)
def test_a_pass_moves_as_the_proven_functions_do(name: str) -> None:
    ledgers, rng = random_ledgers(1), np.random.default_rng(2)
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    fields = EVENTS[name]._fields
    columns = [rng.integers(0, 2 if field in BOOLEAN_ARGUMENTS else 6, NUM_STATES) for field in fields]
    order = rng.permutation(NUM_STATES)
    ledgers.move(name, order, *columns)
    for place, row in enumerate(order.tolist()):
        values = [
            bool(column[place]) if field in BOOLEAN_ARGUMENTS else int(column[place])
            for field, column in zip(fields, columns, strict=True)
        ]
        make: Any = EVENTS[name]
        assert ledgers.one(row) == after(name, before[row], make(*values))
        (happened,) = ledgers.happenings(row)
        assert happened == (name, make(*values), before[row])


def dispatch(ledgers: Ledgers, num_tokens: Any, **given: Any) -> tuple[int, Any, list[State]]:
    """A step of all rows on engines that agree but for what is given; the states they must have then."""
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    events = [Schedule(int(count)) for count in num_tokens]
    expected = [after("schedule", *pair) for pair in zip(before, events, strict=True)]
    steps = [dispatched(*pair) for pair in zip(before, events, strict=True)]
    numbers, drafts = told(expected)
    arguments = {
        "num_tokens": num_tokens,
        "num_drafts": np.array([step.num_drafts for step in steps]),
        "numbers": numbers,
        "drafts": drafts,
        "published": NOTHING,
        "tails": NOTHING,
    } | given
    work = np.full((WIDTH, NUM_STATES), 99, np.int64)
    verdicts = ledgers.passes.dispatch(
        ledgers.table,
        ledgers.judged,
        ledgers.words,
        CODES,
        np.arange(NUM_STATES),
        *arguments.values(),
        work,
        bool(given),
    )
    return verdicts, work, expected


def wanted(ledgers: Ledgers) -> Any:
    """As many tokens for each request as there are."""
    return np.array([num_schedulable(ledgers.one(row).ledger) for row in range(NUM_STATES)])


def test_a_dispatch_is_the_proven_one() -> None:
    ledgers = random_ledgers(3)
    num_tokens = wanted(ledgers) - np.random.default_rng(3).integers(0, 30, NUM_STATES)
    num_tokens = np.maximum(num_tokens, 1)
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    verdicts, work, expected = dispatch(ledgers, num_tokens)
    assert verdicts == 0
    assert [ledgers.one(row) for row in range(NUM_STATES)] == expected
    steps = [dispatched(state, Schedule(int(count))) for state, count in zip(before, num_tokens, strict=True)]
    assert work[kernel.NUM_DRAFTS].tolist() == [step.num_drafts for step in steps]
    assert work[kernel.SAMPLES].tolist() == [int(step.samples) for step in steps]
    assert len({step.samples for step in steps}) == 2 and len({step.num_drafts for step in steps}) > 2
    ends = [
        state.ledger.num_computed_tokens + int(count) for state, count in zip(before, num_tokens, strict=True)
    ]
    assert work[kernel.END].tolist() == ends
    starts = [
        state.ledger.num_computed_tokens - max(state.ghosts.num_awaited_samples - 1, 0) for state in before
    ]
    assert work[kernel.START].tolist() == starts  # each awaited step brings a token at least
    assert work[kernel.LAST_BLOCK].tolist() == [(end - 1) // RULES.block_size for end in ends]


@pytest.mark.parametrize("counter", range(NUM_FOUND))
def test_every_counter_that_differs_is_noticed(counter: int) -> None:
    ledgers = random_ledgers(4)
    clean, work, expected = dispatch(random_ledgers(4), wanted(ledgers), tails=NOTHING)
    assert clean == 0
    numbers, drafts = told(expected)
    for place in (7, 50):
        if counter == 5:
            drafts[place] += 1
        else:
            line = min(counter, 5)
            numbers[6 * place + line] = (numbers[6 * place + line] + 1) % 5 if line == 5 else 77
    ledgers.judged[50] = False
    verdicts, work, _ = dispatch(ledgers, wanted(random_ledgers(4)), numbers=numbers, drafts=drafts)
    assert verdicts == kernel.DIFFERS
    assert np.nonzero(work[VERDICT])[0].tolist() == [7]
    assert work[FIRST_FOUND + counter, 7] != of_engine(expected[7].ledger)[counter]


def test_more_tokens_than_there_are_move_nothing() -> None:
    ledgers = random_ledgers(5)
    before, num_tokens = ledgers.table.copy(), wanted(ledgers)
    num_tokens[3] += 1
    verdicts, work, _ = dispatch(ledgers, num_tokens)
    assert verdicts == kernel.TOO_MANY
    assert np.nonzero(work[VERDICT])[0].tolist() == [3]
    assert (ledgers.table == before).all()


def test_other_drafts_other_blocks_and_too_much_published_are_noticed() -> None:
    ledgers, other = random_ledgers(6), random_ledgers(6)
    num_tokens = np.random.default_rng(6).integers(1, 4, NUM_STATES)
    for both in (ledgers, other):
        both.table[kernel.AWAITED] = 0
    _, known, expected = dispatch(other, num_tokens, tails=NOTHING)
    drafts = known[kernel.NUM_DRAFTS].copy()
    drafts[1] += 1
    same = known[kernel.FIRST_BLOCK] == known[kernel.LAST_BLOCK]
    assert same.any() and not same.all()
    tails = np.full(ledgers.table.shape[1], -1, np.int64)
    tails[:NUM_STATES] = known[kernel.LAST_BLOCK]
    tails[2] = -1
    allowed = [state.ghosts.num_valid_tokens - RULES.registration_fence for state in expected]
    registered = [state.ledger.num_registered_tokens for state in expected]
    published = np.maximum(np.maximum(allowed, registered), 0) // RULES.block_size
    published[4] += 1
    verdicts, work, _ = dispatch(ledgers, num_tokens, num_drafts=drafts, published=published, tails=tails)
    bits = work[VERDICT]
    assert verdicts & (kernel.DRAFTS_DIFFER | kernel.MOVES_ON | kernel.PUBLISHED)
    assert np.nonzero(bits & kernel.DRAFTS_DIFFER)[0].tolist() == [1]
    assert np.nonzero(bits & kernel.PUBLISHED)[0].tolist() == [4]
    moves_on = set(np.nonzero(bits & kernel.MOVES_ON)[0].tolist())
    assert moves_on == {*np.nonzero(~same)[0].tolist(), 2}


def settle(
    ledgers: Ledgers, steps: Any, brought: Any, numbers: Any, drafts: Any, turns: Any
) -> tuple[int, Any]:
    """A step of all rows returns."""
    work = np.full((WIDTH, NUM_STATES), 99, np.int64)
    verdicts = ledgers.passes.settle(
        ledgers.table, ledgers.judged, ledgers.words, CODES, np.arange(NUM_STATES), steps, NOTHING, brought,
        turns, numbers, drafts, NOTHING, work,
    )  # fmt: skip
    return verdicts, work


def test_what_a_step_brought_is_told_apart() -> None:
    """Samples, chunks, late outputs; kept tokens are what the engine's N has grown by; who stops ends."""
    ledgers, rng = random_ledgers(7), np.random.default_rng(8)
    ledgers.table[STATUS] = RUNNING
    stale = np.arange(NUM_STATES) % 5 == 0
    ledgers.table[NUM_STALE_TOKENS, :NUM_STATES] = np.where(stale, 3, 0)
    steps = np.full((WIDTH, NUM_STATES), 99, np.int64)
    steps[kernel.FIRST_ARGUMENT], steps[kernel.NUM_DRAFTS] = 4, 3
    steps[kernel.SAMPLES] = rng.integers(0, 2, NUM_STATES)
    brought = rng.integers(1, 5, NUM_STATES)
    kept = rng.integers(1, brought + 1)
    ends = rng.integers(0, 4, NUM_STATES) == 0
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    expected, names = [], []
    for place, state in enumerate(before):
        samples, stop = steps[kernel.SAMPLES, place] != 0, int(ends[place])
        name = "stale_output" if stale[place] else "output" if samples else "chunk_output"
        arguments = {
            "stale_output": (4, int(kept[place]), stop),
            "output": tuple(Output(4, 3, int(brought[place]) - 1, int(kept[place]), stop)),
            "chunk_output": (4,),
        }[name]
        make: Any = EVENTS[name]
        expected.append(after(name, state, make(*arguments)))
        names.append(name)
    numbers, drafts = told(expected)
    numbers = numbers.reshape(-1, 6)
    numbers[:, 0] = [state.ledger.num_tokens + int(more) for state, more in zip(before, kept, strict=True)]
    numbers[:, 5] = np.where(ends, FINISHED, numbers[:, 5])
    verdicts, work = settle(ledgers, steps, brought, numbers.reshape(-1), drafts, NO_SESSIONS)
    assert [kernel.NAMES[code] for code in work[kernel.CODE]] == names
    assert set(names) == {"stale_output", "output", "chunk_output"}
    assert [ledgers.one(row) for row in range(NUM_STATES)] == expected
    chunks = np.array(names) == "chunk_output"
    assert ((work[VERDICT] & kernel.ENDING) != 0).tolist() == (ends & ~chunks).tolist()
    assert verdicts & kernel.ENDING and not verdicts & kernel.UNFIT


@pytest.mark.parametrize(("brought", "kept"), [(0, 1), (5, 1), (2, 0), (2, 3)])
def test_what_cannot_have_been_brought_is_not_believed(brought: int, kept: int) -> None:
    ledgers = random_ledgers(9)
    ledgers.table[STATUS], ledgers.table[NUM_STALE_TOKENS] = RUNNING, 0
    steps = np.zeros((WIDTH, NUM_STATES), np.int64)
    steps[kernel.FIRST_ARGUMENT], steps[kernel.NUM_DRAFTS], steps[kernel.SAMPLES] = 4, 3, 1
    turns = np.full((2, NUM_STATES), -1, np.int64)
    turns[:, 5] = kept, 0
    amounts = np.ones(NUM_STATES, np.int64)
    amounts[5] = brought
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    numbers, drafts = told([after("output", state, Output(4, 3, 0, 1, 0)) for state in before])
    _, work = settle(ledgers, steps, amounts, numbers, drafts, turns)
    assert np.nonzero(work[VERDICT])[0].tolist() == [5]
    assert work[VERDICT, 5] == kernel.UNFIT


def test_drafts_are_told_from_what_has_changed() -> None:
    ledgers = random_ledgers(10)
    ledgers.table[NUM_IN_FLIGHT_TOKENS] = ledgers.table[NUM_STALE_TOKENS]
    ledgers.table[NUM_IN_FLIGHT_TOKENS][1] += 1
    ledgers.judged[2] = False
    table: Any = ledgers.table
    drafts = table[NUM_DRAFT_TOKENS, :NUM_STATES].copy()
    drafts[:4] += 1
    before = [ledgers.one(row) for row in range(NUM_STATES)]
    work = np.full((kernel.MOVE_WIDTH, NUM_STATES), 99, np.int64)
    verdicts = ledgers.passes.propose(
        ledgers.table, ledgers.judged, ledgers.words, np.arange(NUM_STATES), drafts, work
    )
    assert verdicts == kernel.FLYING and np.nonzero(work[VERDICT])[0].tolist() == [1]
    changed = [row for row in range(NUM_STATES) if ledgers.one(row) != before[row]]
    assert changed == [0, 3]
    assert ledgers.one(3).ledger.num_draft_tokens == drafts[3]


def test_records_carry_names_integers_and_counters_where_a_trace_has_them() -> None:
    """Each event's integers lie in its own columns; counters go to the last event of each request."""
    columns = pytest.importorskip("draftproof.impl.traces.columns")
    format = pytest.importorskip("draftproof.impl.traces.format")
    layout, passes = recording.layout(columns, format), rows.passes()
    numbers, last = np.array([40, -1, 42]), np.full(3, -1, np.int64)
    records = np.zeros((64, columns.NUM_LINES), np.int32)
    count = 0
    for code, (name, kind) in enumerate(EVENTS.items()):
        work = np.full((kernel.MOVE_WIDTH, 3), 99, np.int64)
        work[kernel.CODE] = code
        work[kernel.CODE, 2] = kernel.NOTHING
        for place, _ in enumerate(kind._fields):
            work[kernel.FIRST_ARGUMENT + place] = 1 if name == "preempt" else 10 + place
        end = passes.write(records, count, np.arange(3), work, numbers, last, layout, 7)
        assert end == count + 1
        chunk = columns.Chunk(np.ascontiguousarray(records[:end].T), np.arange(end), np.zeros(end, np.bool_))
        found, event = columns.event_at(chunk, count)
        expected: list[Any] = [True] if name == "preempt" else list(range(10, 10 + len(kind._fields)))
        assert (found, list(event)) == (name, expected)
        assert chunk.lines[columns.REQUEST_NUMBER, count] == 40 and chunk.lines[columns.STEP, count] == 7
        assert columns.counters_at(chunk, count) == {}
        assert (last[0] >= 0) == (name not in ("finish", "abort"))
        counters = np.arange(100, 107)[:, None]
        counters[6] = PREEMPTED
        passes.tell(records, np.array([0]), counters, np.array([64]), last, layout, NUM_FOUND)
        chunk.lines[:] = records[:end].T
        if name not in ("finish", "abort"):
            told_now = columns.counters_at(chunk, count)
            assert [told_now[field] for field in recording.TOLD] == [*range(100, 106), PREEMPTED]
            assert ("num_registered_tokens" in told_now) == (name == "schedule")
        assert last[0] == -1
        count = end
