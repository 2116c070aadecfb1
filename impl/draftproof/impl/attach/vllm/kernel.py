"""How is a whole step replayed and compared? In one compiled pass: nothing is made for each request.

The functions of `draftproof.impl.accounting` and the ghosts of `draftproof.spec.ghosts` move the reference
ledgers, one column of an int64 table each. What a pass finds and what it leaves for later goes into `work`,
int64[WIDTH, n], a line for each thing and a column for each request of the step: the event, the state before
it, the engine's own counters, and a verdict, bit by bit. It is put into words elsewhere (`accounts`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import (
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_FIELDS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_LINES,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_REGISTERED_TOKENS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
    load_plain,
    store_plain,
)
from draftproof.impl.traces import conditions
from draftproof.spec.events import EVENTS, Event, Schedule
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import FINISHED, Rules
from draftproof.spec.queue import dispatched

NAMES = tuple(EVENTS)
"""An event's code is its place here; `NOTHING` happened to a request that stands in a step all the same."""
NOTHING = -1
(
    ADMIT,
    SCHEDULE,
    DRAFT,
    CHUNK_OUTPUT,
    OUTPUT,
    PREEMPT,
    STALE_OUTPUT,
    END_TURN,
    FOLD,
    FINISH,
    ABORT,
) = range(len(NAMES))
NUM_ARGUMENTS = max(len(event._fields) for event in EVENTS.values())

CODE = 0
FIRST_ARGUMENT = 1
"""The event's integers follow, in its own order."""
FIRST_BEFORE = FIRST_ARGUMENT + NUM_ARGUMENTS
"""The state before the event follows: ledger and ghosts, in the table's order."""
VERDICT = FIRST_BEFORE + NUM_LINES
MOVE_WIDTH = VERDICT + 1
"""Lines that every pass fills."""
FIRST_FOUND = MOVE_WIDTH
NUM_FOUND = 7
"""The engine's N, C, P, F, S, D and status follow, the status as the specification's number."""
FIRST_OF_STEP = FIRST_FOUND + NUM_FOUND
NUM_DRAFTS, SAMPLES, START, END, FIRST_BLOCK, LAST_BLOCK = range(FIRST_OF_STEP, FIRST_OF_STEP + 6)
"""Of a step that is dispatched: drafts it verifies; whether it samples; the positions it writes, the last one
exclusive, and the blocks these lie in."""
WIDTH = LAST_BLOCK + 1

DIFFERS, PUBLISHED, DRAFTS_DIFFER, TOO_MANY, ENDING, UNFIT, FLYING, MOVES_ON = 1, 2, 4, 8, 16, 32, 64, 128
"""Verdicts: a counter is another than the core's; more is published than may be; a step verifies other drafts
than its size says; it is larger than what there is; a request stops; what a step brought cannot be; drafts
changed while a step was in flight; a step writes into another block than the last one, or into several."""
AWAITED, PREFILL, COMPLETES, VALID, SETTLED = range(NUM_FIELDS, NUM_LINES)
"""Lines of the table behind the ledger's: the ghosts."""


def rules_of(words: Any) -> Rules:
    """The rules from int64[4]: passed as a tuple they would cost as much as a small step."""
    return Rules(words[0], words[1], words[2] != 0, words[3])


def load_state(table: Any, row: int) -> State:
    """A request's ledger and ghosts."""
    ghosts = Ghosts(
        table[AWAITED, row],
        table[PREFILL, row],
        table[COMPLETES, row],
        table[VALID, row],
        table[SETTLED, row],
    )
    return State(load_plain(table, row), ghosts)


def store_ghosts(table: Any, row: int, ghosts: Ghosts) -> None:
    """A request's ghosts into its column."""
    table[AWAITED, row] = ghosts.num_awaited_samples
    table[PREFILL, row] = ghosts.num_prefill_in_flight
    table[COMPLETES, row] = ghosts.completes_prompt
    table[VALID, row] = ghosts.num_valid_tokens
    table[SETTLED, row] = ghosts.num_settled_tokens


def happening(name: str) -> Callable[..., None]:
    """What the event of this name does to a request. Compiled, each has machine code of its own."""
    transition, ghosts_after = plain(TRANSITIONS[name]), conditions.ghosts_after(name)
    kind = cast(Callable[..., Event], EVENTS[name])

    def happens(table: Any, rules: Rules, row: int, *integers: int) -> None:
        state = load_state(table, row)
        store_plain(table, row, transition(state.ledger, rules, *integers))
        store_ghosts(table, row, ghosts_after(state, rules, kind(*integers)))

    return happens


admit = happening("admit")
schedule = happening("schedule")
draft = happening("draft")
chunk_output = happening("chunk_output")
output = happening("output")
preempt = happening("preempt")
stale_output = happening("stale_output")
end_turn = happening("end_turn")
fold = happening("fold")
finish = happening("finish")
abort = happening("abort")


def happen(table: Any, rules: Rules, row: int, work: Any, place: int) -> None:
    """The event in this place of `work` comes to the request; the state before it is kept there."""
    for line in range(NUM_LINES):
        work[FIRST_BEFORE + line, place] = table[line, row]
    code, first = work[CODE, place], work[FIRST_ARGUMENT, place]
    second, third = work[FIRST_ARGUMENT + 1, place], work[FIRST_ARGUMENT + 2, place]
    if code == SCHEDULE:
        schedule(table, rules, row, first)
    elif code == OUTPUT:
        kept, stopped = work[FIRST_ARGUMENT + 3, place], work[FIRST_ARGUMENT + 4, place]
        output(table, rules, row, first, second, third, kept, stopped)
    elif code == DRAFT:
        draft(table, rules, row, first)
    elif code == CHUNK_OUTPUT:
        chunk_output(table, rules, row, first)
    elif code == STALE_OUTPUT:
        stale_output(table, rules, row, first, second, third)
    elif code == ADMIT:
        admit(table, rules, row, first)
    elif code == PREEMPT:
        preempt(table, rules, row, first != 0)
    elif code == FOLD:
        fold(table, rules, row, first)
    elif code == END_TURN:
        end_turn(table, rules, row)
    elif code == FINISH:
        finish(table, rules, row)
    elif code == ABORT:
        abort(table, rules, row)


def read_counters(numbers: Any, drafts: Any, codes: Any, work: Any, place: int) -> None:
    """The engine's counters of one request into `work`: see `engine_view.read`."""
    for line in range(5):
        work[FIRST_FOUND + line, place] = numbers[6 * place + line]
    work[FIRST_FOUND + 5, place] = drafts[place] if drafts.shape[0] else 0
    work[FIRST_FOUND + 6, place] = codes[numbers[6 * place + 5]]


def compare_counters(table: Any, row: int, work: Any, place: int) -> bool:
    """Whether the engine's counters are the core's."""
    return (  # type: ignore[no-any-return]
        work[FIRST_FOUND, place] == table[NUM_TOKENS, row]
        and work[FIRST_FOUND + 1, place] == table[NUM_COMPUTED_TOKENS, row]
        and work[FIRST_FOUND + 2, place] == table[NUM_OUTPUT_PLACEHOLDERS, row]
        and work[FIRST_FOUND + 3, place] == table[NUM_IN_FLIGHT_TOKENS, row]
        and work[FIRST_FOUND + 4, place] == table[NUM_STALE_TOKENS, row]
        and work[FIRST_FOUND + 5, place] == table[NUM_DRAFT_TOKENS, row]
        and work[FIRST_FOUND + 6, place] == table[STATUS, row]
    )


def too_much_published(table: Any, rules: Rules, row: int, num_blocks: int) -> bool:
    """Whether blocks are published that are not valid, or that the drafter's fence keeps back (T3, T12)."""
    found = num_blocks * rules.block_size
    allowed = table[VALID, row] - rules.registration_fence
    return found > table[NUM_REGISTERED_TOKENS, row] and found > allowed  # type: ignore[no-any-return]


def move(table: Any, words: Any, rows: Any, work: Any) -> None:
    """The events in `work` come to these rows: int64[n], each at most once."""
    rules = rules_of(words)
    for place in range(rows.shape[0]):
        if work[CODE, place] != NOTHING:
            happen(table, rules, rows[place], work, place)


def propose(table: Any, judged: Any, words: Any, rows: Any, drafts: Any, work: Any) -> int:
    """What a drafter has left with each request since the last call; returns all verdicts together.

    `drafts`: int64[n], how many wait now. A request with as many as before gets no event.
    """
    rules, verdicts = rules_of(words), 0
    for place in range(rows.shape[0]):
        row = rows[place]
        work[CODE, place], work[VERDICT, place] = NOTHING, 0
        if not judged[row] or drafts[place] == table[NUM_DRAFT_TOKENS, row]:
            continue
        if table[NUM_IN_FLIGHT_TOKENS, row] > table[NUM_STALE_TOKENS, row]:
            work[VERDICT, place] = FLYING
            verdicts |= FLYING
            continue
        work[CODE, place], work[FIRST_ARGUMENT, place] = DRAFT, drafts[place]
        happen(table, rules, row, work, place)
    return verdicts


def dispatch(
    table: Any,
    judged: Any,
    words: Any,
    codes: Any,
    rows: Any,
    num_tokens: Any,
    num_drafts: Any,
    numbers: Any,
    drafts: Any,
    published: Any,
    tails: Any,
    work: Any,
    may_be_too_many: bool,
) -> int:
    """A step takes these requests; returns all verdicts together.

    `num_tokens`, `num_drafts`: int64[n], of each request in the step; `numbers`, `drafts`: the engine's
    counters (`engine_view.read`), with `codes` for its statuses; `published`: int64[n], blocks; `tails`:
    int64, by row, the block that the last step wrote into. `num_drafts`, `drafts`, `published` and `tails`
    may have no entries: there are no drafts, nothing is published, nobody asks. If a request gets more tokens
    than there are, nothing has happened, unless that was allowed.
    """
    rules, verdicts = rules_of(words), 0
    if not may_be_too_many:
        for place in range(rows.shape[0]):
            work[VERDICT, place] = 0
            if num_tokens[place] > num_schedulable(load_plain(table, rows[place])):
                work[VERDICT, place] = TOO_MANY
                verdicts = TOO_MANY
        if verdicts:
            return verdicts
    for place in range(rows.shape[0]):
        row, verdict = rows[place], 0
        state = load_state(table, row)
        step = dispatched(state, Schedule(num_tokens[place]))
        awaited, computed = state.ghosts.num_awaited_samples, state.ledger.num_computed_tokens
        # Each step that is awaited brings at least one token, so the device starts at least that far.
        start = computed - awaited + (1 if awaited > 0 else 0)
        end = computed + num_tokens[place]
        work[NUM_DRAFTS, place], work[SAMPLES, place] = step.num_drafts, step.samples
        work[START, place], work[END, place] = start, end
        work[FIRST_BLOCK, place] = start // rules.block_size
        work[LAST_BLOCK, place] = (end - 1) // rules.block_size
        if tails.shape[0]:
            last = work[LAST_BLOCK, place]
            if row >= tails.shape[0] or tails[row] != last or work[FIRST_BLOCK, place] != last:
                verdict |= MOVES_ON
        work[CODE, place], work[FIRST_ARGUMENT, place] = SCHEDULE, num_tokens[place]
        happen(table, rules, row, work, place)
        read_counters(numbers, drafts, codes, work, place)
        if judged[row]:
            if (num_drafts[place] if num_drafts.shape[0] else 0) != step.num_drafts:
                verdict |= DRAFTS_DIFFER
            if not compare_counters(table, row, work, place):
                verdict |= DIFFERS
            if published.shape[0] and too_much_published(table, rules, row, published[place]):
                verdict |= PUBLISHED
        work[VERDICT, place] = verdict
        verdicts |= verdict
    return verdicts


def settle(
    table: Any,
    judged: Any,
    words: Any,
    codes: Any,
    rows: Any,
    step: Any,
    places: Any,
    brought: Any,
    told: Any,
    numbers: Any,
    drafts: Any,
    published: Any,
    work: Any,
) -> int:
    """A step has returned and the engine has settled it; returns all verdicts together.

    `step`: the `work` of its dispatch, and `places` of these rows in it, or none if all are there; `brought`:
    int64[n], tokens that the runner brought; `told`: int64[2, n], for sessions tokens kept and whether the
    turn ended, -1 for all others, of which the counters say it; or of length 0 without sessions. The others
    as in `dispatch`. A request that stops is not compared here.
    """
    rules, verdicts = rules_of(words), 0
    for place in range(rows.shape[0]):
        row, verdict = rows[place], 0
        origin = places[place] if places.shape[0] else place
        read_counters(numbers, drafts, codes, work, place)
        kept = work[FIRST_FOUND, place] - table[NUM_TOKENS, row]
        stopped = 1 if work[FIRST_FOUND + 6, place] == FINISHED else 0
        if told.shape[1] and told[0, place] >= 0:
            kept, stopped = told[0, place], told[1, place]
        num_drafts, samples = step[NUM_DRAFTS, origin], step[SAMPLES, origin] != 0
        stale = table[NUM_STALE_TOKENS, row] > 0
        work[FIRST_ARGUMENT, place] = step[FIRST_ARGUMENT, origin]
        if stale:
            work[CODE, place] = STALE_OUTPUT
            work[FIRST_ARGUMENT + 1, place], work[FIRST_ARGUMENT + 2, place] = kept, stopped
        elif samples:
            if not (kept >= 1 and kept <= brought[place] and brought[place] <= num_drafts + 1):
                verdict |= UNFIT
                kept = max(kept, 1)
            work[CODE, place] = OUTPUT
            work[FIRST_ARGUMENT + 1, place] = num_drafts
            work[FIRST_ARGUMENT + 2, place] = max(brought[place] - 1, 0)
            work[FIRST_ARGUMENT + 3, place], work[FIRST_ARGUMENT + 4, place] = kept, stopped
        else:
            work[CODE, place] = CHUNK_OUTPUT
        happen(table, rules, row, work, place)
        if stopped > 0 and (samples or stale):
            verdict |= ENDING
        elif judged[row] and not verdict:
            if not compare_counters(table, row, work, place):
                verdict |= DIFFERS
            if published.shape[0] and too_much_published(table, rules, row, published[place]):
                verdict |= PUBLISHED
        work[VERDICT, place] = verdict
        verdicts |= verdict
    return verdicts
