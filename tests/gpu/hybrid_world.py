"""The real scheduler over a small hybrid model, a device that goes on by itself, and the truth beside them.

A step is launched under a guard that lets nothing be read from the device; in asynchronous mode the next one
is launched before its outcome is read. The device keeps texts, lengths and accepted slots. Drafts follow a
script: the greedy text, computed densely beforehand, with one token in three replaced by a wrong one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE, difference  # noqa: E402
from tests.gpu.host_reads import no_host_reads  # noqa: E402
from tests.gpu.hybrid_truth import MAX_LENGTH, NUM_DRAFTS, VOCAB_SIZE, Model, Truth  # noqa: E402

from draftproof.gpu.attention import GatherAttention, KVCache, StepRows, at_lengths, rows_of  # noqa: E402
from draftproof.gpu.attention.step_rows import to_device  # noqa: E402
from draftproof.gpu.recurrent import (  # noqa: E402
    Recurrence,
    StateCache,
    StateMoves,
    StateRows,
    host_states,
    note_accepted,
    state_moves,
    state_rows,
)
from draftproof.impl.scheduler import KVGroup, Scheduler, SchedulerConfig  # noqa: E402
from draftproof.impl.scheduler.batch import NUM_COPIES, NUM_PAUSED, NUM_PREEMPTED, RUNNING, Batch  # noqa: E402

BLOCK_SIZE = 4
RECURRENT = 1
"""The second of the groups."""
TOLERANCE = 1e-4


class WrongState(AssertionError):
    """What a row computed is not what its own tokens give."""


class Arrival(NamedTuple):
    """A request that is added before the scheduler's turn of this number."""

    turn: int
    prompt: list[int]
    max_tokens: int
    chunks: tuple[list[int], ...] = ()
    """What a session says in its further turns."""


class Pending(NamedTuple):
    """A step whose outcome nobody has read."""

    batch: Batch
    truths: list[Truth]
    rows: StepRows
    fed_token_ids: Any
    hidden: Any
    sampled: Any
    num_sampled: Any


class DeviceTables:
    """What the device knows of every row by itself; line `num_rows` is for padding rows."""

    def __init__(self, num_rows: int) -> None:
        def numbers(*size: int) -> Any:
            return torch.zeros(size, dtype=torch.int64, device=DEVICE)

        self.num_rows = num_rows
        # Room behind the end for tokens sampled beyond it.
        self.texts = numbers(num_rows + 1, MAX_LENGTH + 2 * NUM_DRAFTS + 2)
        self.script = numbers(num_rows + 1, MAX_LENGTH + 2 * NUM_DRAFTS + 2)
        self.num_tokens = numbers(num_rows + 1)
        self.accepted_slots = numbers(num_rows + 1)


class Engine:
    """The scheduler, interpreted; the device; and every difference from the truth raised at once."""

    num_padding_rows = 2

    def __init__(
        self, model: Model, *, asynchronous: bool, num_blocks: int = 26, group_block_size: int = 8
    ) -> None:
        self.group_block_size = group_block_size
        config = SchedulerConfig(
            max_model_len=MAX_LENGTH, num_blocks=num_blocks, max_num_seqs=4, max_num_batched_tokens=24,
            long_prefill_token_threshold=20, num_speculative_tokens=NUM_DRAFTS, vocab_size=VOCAB_SIZE,
            groups=(KVGroup(BLOCK_SIZE), KVGroup(self.group_block_size, "recurrent")),
            asynchronous=asynchronous,
        )  # fmt: skip
        self.model, self.config = model, config
        self.scheduler = Scheduler(config, compiled=False)
        shape = model.decoder.shape
        sizes = (shape.num_kv_heads, shape.head_dim)
        self.cache = KVCache(len(shape.attention_layers), num_blocks, BLOCK_SIZE, *sizes, device=DEVICE)
        self.states = StateCache(shape.num_recurrent_layers, num_blocks, shape.recurrent_size, DEVICE)
        self.device = DeviceTables(config.max_num_requests)
        self.truths: dict[int, Truth] = {}
        self.outputs: dict[int, list[int]] = {}
        """By row, as the following."""
        self.chunks: dict[int, deque[list[int]]] = {}
        self.in_flight: deque[Pending] = deque()
        self.did: Counter[str] = Counter()
        self.largest = 0.0
        self.poison()

    def add(self, name: str, prompt: list[int], max_tokens: int, chunks: tuple[list[int], ...]) -> None:
        if self.config.asynchronous:  # the scheduler refuses sessions of hybrid models then
            chunks = ()
        row = self.scheduler.add(name, prompt, max_tokens=max_tokens, resumable=bool(chunks))
        self.chunks[row] = deque(chunks)
        self.expect(row, prompt, max_tokens)

    def expect(self, row: int, prompt: list[int], max_tokens: int) -> None:
        """A request, or a session's turn, begins."""
        self.truths[row] = self.model.truth(prompt, max_tokens)
        text, self.outputs[row] = self.truths[row].text, []
        places = np.arange(len(text))
        # One in three is another token than the text's.
        script = (np.array(text) + (places % 3 == row % 3)) % VOCAB_SIZE
        self.device.script[row].zero_()
        self.device.script[row, : len(text)] = torch.from_numpy(script).to(DEVICE)

    def next_turn(self, row: int) -> None:
        """A session has answered: it keeps all but the last token, and says its next chunk."""
        request_id, truth = self.scheduler.request_ids[row], self.truths[row]
        if not self.chunks[row]:
            self.scheduler.close_session(request_id)
            return
        chunk = self.chunks[row].popleft()
        self.did["turns"] += 1
        kept = truth.text[: truth.num_prompt_tokens + len(self.outputs[row]) - 1]
        self.scheduler.append_chunk(request_id, chunk, max_tokens=truth.max_tokens)
        self.expect(row, [*kept, *chunk], truth.max_tokens)

    def run(self, arrivals: Sequence[Arrival]) -> None:
        """Until nobody waits and nothing is in flight. Asynchronously a step ahead of what is settled."""
        waiting, num_turns = deque(arrivals), 0
        while waiting or self.scheduler.has_unfinished_requests() or self.in_flight:
            while waiting and waiting[0].turn <= num_turns:
                self.add(f"request {len(waiting)}", *waiting.popleft()[1:])
            num_turns += 1
            batch = self.scheduler.schedule()
            self.did["preemptions"] += int(batch.counts[NUM_PREEMPTED])
            if batch.num_requests:
                self.note(batch)
                self.poison()
                self.in_flight.append(self.launch(batch))
            if self.in_flight and (
                batch.num_requests == 0 or len(self.in_flight) == self.config.max_in_flight_steps
            ):
                self.settle(self.in_flight.popleft())

    def poison(self) -> None:
        """Blocks that nobody holds and the prefix cache does not know."""
        pool = self.scheduler.state.pool
        free = 1 + np.flatnonzero((pool.ref_count[1:] == 0) & (pool.num_tokens[1:] == 0))
        self.cache.poison(free)
        self.states.poison(free)

    def note(self, batch: Batch) -> None:
        """What kinds of things happen."""
        count = batch.num_requests
        source, drafts = batch.source_slot[:count], batch.num_draft_tokens[:count]
        first, kind = batch.num_computed_tokens[:count], batch.kind[:count]
        self.did["steps"] += 1
        self.did["hits"] += int(((kind != RUNNING) & (first > 0)).sum())
        self.did["chunks"] += int((batch.samples[:count] == 0).sum())
        self.did["copies"] += int(batch.counts[NUM_COPIES])
        self.did["another slot"] += int((source > 0).sum())
        self.did["another slot, no drafts"] += int(((source > 0) & (drafts == 0)).sum())
        self.did["slot of the device"] += int((source < 0).sum())
        self.did["ahead of the host"] += int((batch.num_output_placeholders[:count] > 0).sum())

    # ---- a step on the device

    def launch(self, batch: Batch) -> Pending:
        """Enqueue a step: nothing is read from the device."""
        tables, num_padding = self.scheduler.state.tables.block_ids, self.num_padding_rows
        truths = [self.truths[int(row)] for row in batch.rows[: batch.num_requests]]
        with no_host_reads():
            rows = rows_of(
                batch, tables, BLOCK_SIZE, DEVICE, num_padding_rows=num_padding, padding_query_length=2
            )
            states = host_states(
                batch, tables, RECURRENT, num_rows=self.device.num_rows, num_padding_rows=num_padding
            )
            lines, copies = to_device(states, DEVICE)
            self.copy(copies)
            states_of_rows = self.state_rows(lines)
            rows = self.at_lengths(rows, self.lengths(batch, states_of_rows))
            moves = self.moves(states_of_rows, rows)
            fed = self.fed_token_ids(rows, states_of_rows)
            hidden = self.model.decoder.forward(
                fed,
                rows.positions,
                GatherAttention(self.cache, rows, self.model.group_size),
                Recurrence(self.states, rows, moves),
            )
            sampled, num_sampled = self.verify(batch, rows, states_of_rows, fed, hidden)
            self.note_accepted(states_of_rows, num_sampled)
        return Pending(batch, truths, rows, fed, hidden, sampled, num_sampled)

    def state_rows(self, lines: Any) -> StateRows:
        return state_rows(lines)

    def at_lengths(self, rows: StepRows, lengths: Any) -> StepRows:
        return at_lengths(rows, lengths, BLOCK_SIZE)

    def moves(self, states: StateRows, rows: StepRows) -> StateMoves:
        slots = self.device.accepted_slots
        return state_moves(states, rows, slots, self.group_block_size, NUM_DRAFTS)

    def copy(self, copies: Any) -> None:
        self.states.copy_blocks(copies[0], copies[1])

    def note_accepted(self, states: StateRows, num_sampled: Any) -> None:
        note_accepted(self.device.accepted_slots, states, num_sampled)

    def on_device(self, values: Any, fill: int = 0) -> Any:
        """int64[R]: the batch's, and for padding rows `fill`."""
        padded = [*np.asarray(values).tolist(), *[fill] * self.num_padding_rows]
        return torch.tensor(padded, dtype=torch.int64, device=DEVICE)

    def lengths(self, batch: Batch, states: StateRows) -> Any:
        """int32[R]: tokens in the cache after the step. The device goes on by itself where the host waits."""
        count, requests, device = batch.num_requests, self.scheduler.state.requests, self.device
        host = batch.num_computed_tokens[:count] + batch.num_scheduled_tokens[:count]
        waits = batch.num_output_placeholders[:count] > 0
        for place in np.flatnonzero(~waits):
            # What the host knows of the row's text.
            row, known = int(batch.rows[place]), int(host[place] - batch.num_draft_tokens[place])
            text = torch.from_numpy(requests.token_ids[row, :known].astype(np.int64))
            device.texts[row, :known] = text.to(DEVICE)
            device.num_tokens[row] = known
        own = device.num_tokens[states.row_ids] + states.num_drafts
        lengths = torch.where(self.on_device(waits) != 0, own, self.on_device(host))
        return lengths.to(torch.int32)

    def token_places(self, rows: StepRows) -> tuple[Any, Any]:
        """int64[T] each: the row of every token, and how many tokens of the row follow it."""
        ends = rows.query_starts[1:].to(torch.int64)
        tokens = torch.arange(rows.num_tokens, device=DEVICE)
        token_rows = torch.searchsorted(ends, tokens, right=True)
        return token_rows, ends[token_rows] - 1 - tokens

    def fed_token_ids(self, rows: StepRows, states: StateRows) -> Any:
        """int64[T]: known tokens, then drafts."""
        token_rows, followers = self.token_places(rows)
        lines = states.row_ids[token_rows]
        is_draft = followers < states.num_drafts[token_rows]
        drafts = self.device.script[lines, rows.positions]
        return torch.where(is_draft, drafts, self.device.texts[lines, rows.positions])

    def verify(
        self, batch: Batch, rows: StepRows, states: StateRows, fed: Any, hidden: Any
    ) -> tuple[Any, Any]:
        """int64[R, 1 + K] and int64[R]: the greedy tokens, and how many of them there are."""
        device, slots = self.device, torch.arange(NUM_DRAFTS + 1, device=DEVICE)
        drafts = states.num_drafts
        last_known = rows.query_starts[1:].to(torch.int64) - 1 - drafts
        places = last_known[:, None] + torch.minimum(slots, drafts[:, None])
        answers = self.model.decoder.logits(hidden)[places.flatten()].argmax(-1).view(places.shape)
        # A row that is resumed may bring padding for drafts, which must not be accepted.
        num_valid = drafts - self.on_device(batch.num_invalid_drafts[: batch.num_requests])
        agree = (fed[places[:, 1:]] == answers[:, :-1]) & (slots[1:] <= num_valid[:, None])
        samples = self.on_device(batch.samples[: batch.num_requests])
        num_sampled = samples * (1 + agree.to(torch.int64).cumprod(1).sum(1))
        first = rows.sequence_lengths.to(torch.int64) - drafts
        # Beyond what is sampled lies nothing that counts; rows that did not sample keep their text.
        lines = torch.where(samples != 0, states.row_ids, device.num_rows)
        device.texts[lines[:, None], first[:, None] + slots] = answers
        device.num_tokens[lines] = first + num_sampled
        return answers, num_sampled

    # ---- its outcome

    def settle(self, pending: Pending) -> None:
        """Read it, compare it, and tell the scheduler."""
        batch = pending.batch
        count = batch.num_requests
        held = batch.rows[:count].copy()
        num_sampled = pending.num_sampled.cpu().numpy().astype(np.int32)[:count]
        sampled = pending.sampled.cpu().numpy().astype(np.int32)[:count]
        for place in range(count):
            self.compare(pending, place, int(num_sampled[place]))
        samples = batch.samples[:count].copy()
        self.scheduler.settle(batch, np.ascontiguousarray(sampled), np.ascontiguousarray(num_sampled))
        for place, row in enumerate(held.tolist()):
            said, expected = self.outputs[row], self.truths[row].output
            num_kept = int(batch.num_kept_tokens[place])
            said += sampled[place, :num_kept].tolist()
            stops = bool(batch.finish_reason[place])
            self.did["stop inside an accepted run"] += bool(stops and num_kept < num_sampled[place])
            if said != expected[: len(said)] or (stops and len(said) < len(expected)):
                raise WrongState(f"row {row} says {said}, must say {expected}")
        for row in batch.paused[: batch.counts[NUM_PAUSED]].tolist():
            self.next_turn(row)
        if not self.config.asynchronous:
            self.draft(held[(samples != 0) & (batch.finish_reason[:count] == 0)])

    def compare(self, pending: Pending, place: int, num_sampled: int) -> None:
        """A row's right tokens with the dense truth: hidden states and log-probabilities."""
        first, last = pending.rows.query_starts[place : place + 2].tolist()
        num_drafts = int(pending.batch.num_draft_tokens[place])
        num_accepted = max(num_sampled - 1, 0)
        self.did.update(accepted=num_accepted, rejected=num_drafts - num_accepted)
        truth, right = pending.truths[place], slice(first, last - num_drafts + num_accepted)
        positions = pending.rows.positions[right]
        # Steps ahead of a stop go beyond the text.
        right = slice(first, first + int((positions < len(truth.text)).sum()))
        positions = pending.rows.positions[right]
        fed = pending.fed_token_ids[right].tolist()
        expected = [truth.text[position] for position in positions.tolist()]
        if fed != expected:
            raise WrongState(f"row {place} is fed {fed} from position {positions[:1].tolist()}: {expected}")
        if not fed:
            return
        hidden = pending.hidden[right]
        logprobs = self.model.logprobs(hidden)
        largest = max(
            difference(hidden, truth.hidden[positions]), difference(logprobs, truth.logprobs[positions])
        )
        if not largest < TOLERANCE:  # nor for NaN
            raise WrongState(f"row {place} differs by {largest} from position {positions[0]} on")
        self.largest = max(self.largest, largest)

    def draft(self, held: Any) -> None:
        """The script's next tokens; as many as the position says, sometimes none."""
        drafts, counts = np.zeros((len(held), NUM_DRAFTS), np.int32), np.zeros(len(held), np.int32)
        for place, row in enumerate(held.tolist()):
            first = self.truths[row].num_prompt_tokens + len(self.outputs[row])
            drafts[place] = self.device.script[row, first : first + NUM_DRAFTS].tolist()
            counts[place] = first * 7 % (NUM_DRAFTS + 1)
        if len(held):
            self.scheduler.take_drafts(held, drafts, counts)
