"""The scheduler with a canary beside it: every step is checked, and what a fault must be called is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from draftproof.gpu.attention import StepRows, at_lengths, rows_of  # noqa: E402
from draftproof.gpu.canary import Canary, CanaryError  # noqa: E402
from draftproof.impl.contracts import DEBUG, MIDDLE  # noqa: E402
from draftproof.impl.ledger_table import NUM_TOKENS  # noqa: E402
from draftproof.impl.scheduler import Scheduler, SchedulerConfig  # noqa: E402
from draftproof.impl.scheduler.batch import NUM_PREEMPTED, RUNNING, Batch  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE, NUM_DRAFTS = 4, 14, 40, 3


@contextmanager
def no_host_reads() -> Iterator[None]:
    """On CUDA, raises where the host waits for the device."""
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def next_token(tokens: Sequence[int]) -> int:
    """The text that follows is a function of what is before: a repeated request says the same again."""
    return int(sum(tokens[-3:]) * 7 + len(tokens)) % VOCAB_SIZE


class Engine:
    """The real scheduler, interpreted, over nobody: what is fed and sampled, but no keys and values.

    Blocks move now and then to spare ones, as in copy on write: `places` says where a block of the
    scheduler is. `tamper` sees every batch before its step, and may spoil something.
    """

    def __init__(self, seed: int = 0, **options: Any) -> None:
        config = SchedulerConfig(
            max_model_len=64, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=4,
            max_num_batched_tokens=24, long_prefill_token_threshold=9, num_speculative_tokens=NUM_DRAFTS,
            vocab_size=VOCAB_SIZE, **options,
        )  # fmt: skip
        self.random = np.random.default_rng(seed)
        self.scheduler = Scheduler(config, compiled=False)
        self.state = self.scheduler.state
        self.canary = Canary(config.max_num_requests, 64, NUM_BLOCKS + 2, BLOCK_SIZE, DEVICE)
        self.places = np.arange(NUM_BLOCKS + 1, dtype=np.int32)
        self.spare = [NUM_BLOCKS + 1, NUM_BLOCKS + 2]
        self.num_observed: dict[int, int] = {}
        self.tamper: Callable[[Batch], None] = lambda batch: None
        self.before_wave: Callable[[int], None] = lambda wave: None
        self.fed_shift = 0
        self.expected: tuple[int, str, int, int] | None = None
        """Step, request, position and block of the first read of a wrong slot, once something was spoiled."""
        self.did: Counter[str] = Counter()

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        self.scheduler.add(name, prompt, max_tokens=max_tokens)

    def run(self) -> None:
        """Until all is done. Raises CanaryError."""
        while self.scheduler.has_unfinished_requests():
            batch = self.scheduler.schedule()
            self.did["preempted"] += int(batch.counts[NUM_PREEMPTED])
            if batch.num_requests:
                self.forget()
                self.move()
                self.tamper(batch)
                self.step(batch)
                self.forget()

    def run_waves(self) -> None:
        """Requests that share beginnings; each wave repeats the requests before, and adds to them."""
        shared = [int(token) for token in self.random.integers(0, VOCAB_SIZE, 21)]
        for wave in range(5):
            self.before_wave(wave)
            for index in range(3):
                self.add(f"{wave} {index}", [*shared, *range(index, index + 1 + 2 * wave)], 8 + 3 * index)
            self.run()

    def forget(self) -> None:
        """Blocks that nobody holds and the prefix cache does not know."""
        pool = self.state.pool
        free = (pool.ref_count[1:] == 0) & (pool.num_tokens[1:] == 0)
        self.canary.forget(self.places[1 + np.flatnonzero(free)])

    def move(self) -> None:
        """One block in three steps goes to a spare one."""
        self.did["steps"] += 1
        if self.did["steps"] % 3 == 0:
            block = int(self.random.integers(1, NUM_BLOCKS + 1))
            source, target = int(self.places[block]), self.spare.pop(0)
            self.places[block] = target
            self.spare.append(source)
            self.canary.copy_blocks(*torch.tensor([[source], [target]], device=DEVICE))
            self.canary.forget([source])
            self.did["copied"] += 1

    def step(self, batch: Batch) -> None:
        texts = [self.text(batch, place) for place in range(batch.num_requests)]
        self.compute(batch, self.rows(batch), texts, batch.num_computed_tokens)
        self.settle(batch, texts)

    def rows(self, batch: Batch) -> StepRows:
        tables = self.places[self.state.tables.block_ids]
        return rows_of(batch, tables, BLOCK_SIZE, DEVICE, num_padding_rows=1)

    def compute(self, batch: Batch, rows: StepRows, texts: list[list[int]], computed: Any) -> None:
        """What stands for the model: the texts from `computed` on are fed."""
        count = batch.num_requests
        self.observe(batch, texts)
        fed = []
        for place, text in enumerate(texts):
            begin = int(computed[place])
            fed += text[begin : begin + int(batch.num_scheduled_tokens[place])]
        row_ids = torch.from_numpy(batch.rows[:count].astype(np.int64)).to(DEVICE)
        given = (torch.tensor([*fed, 0]) + self.fed_shift).to(DEVICE)
        with no_host_reads():
            mismatches = self.canary.check(rows, row_ids, given)
        names = [self.scheduler.request_ids[row] for row in batch.rows[:count]]
        problem = self.canary.problem(mismatches, batch.step, names)
        if problem is not None:
            raise problem

    def text(self, batch: Batch, place: int) -> list[int]:
        """What the row's tokens are, drafts of this step at the end."""
        row, num_drafts = batch.rows[place], int(batch.num_draft_tokens[place])
        num_tokens = int(self.state.requests.ledgers[NUM_TOKENS, row])
        known = self.state.requests.token_ids[row, :num_tokens].tolist()
        return [*known, *batch.draft_token_ids[place, :num_drafts].tolist()]

    def observe(self, batch: Batch, texts: list[list[int]]) -> None:
        """The tokens that became known since a row's last step, and its drafts."""
        starts = []
        for place, text in enumerate(texts):
            row, begin = int(batch.rows[place]), int(batch.num_computed_tokens[place])
            if batch.kind[place] != RUNNING:
                self.num_observed[row] = 0
                self.did["hits"] += begin
            self.did["chunks"] += int(batch.samples[place] == 0)
            starts.append(self.num_observed[row])
            self.num_observed[row] = len(text) - int(batch.num_draft_tokens[place])
        news = [text[start:] for text, start in zip(texts, starts, strict=True)]
        tokens = np.zeros((len(news), 1 + max(len(new) for new in news)), np.int64)
        for place, new in enumerate(news):
            tokens[place, : len(new)] = new
        counts = [len(new) for new in news]
        arrays = (batch.rows[: len(news)].astype(np.int64), np.array(starts), tokens, np.array(counts))
        tensors = [torch.from_numpy(array).to(DEVICE) for array in arrays]
        with no_host_reads():
            self.canary.observe_tokens(*tensors)

    def settle(self, batch: Batch, texts: list[list[int]]) -> None:
        sampled, num_sampled = self.outcome(batch, texts)
        held = batch.rows[: len(texts)].copy()
        self.scheduler.settle(batch, sampled, num_sampled)
        self.draft(held)

    def outcome(self, batch: Batch, texts: list[list[int]]) -> tuple[Any, Any]:
        """int32[requests, 1 + K] and int32[requests]: the drafts that the text goes on with, and one more."""
        sampled = np.zeros((len(texts), 1 + NUM_DRAFTS), np.int32)
        num_sampled = np.zeros(len(texts), np.int32)
        for place, text in enumerate(texts):
            if batch.samples[place]:
                num_drafts = int(batch.num_draft_tokens[place])
                known, num_kept = len(text) - num_drafts, 0
                while num_kept < num_drafts and text[known + num_kept] == next_token(
                    text[: known + num_kept]
                ):
                    num_kept += 1
                self.did.update(accepted=num_kept, rejected=num_drafts - num_kept)
                answer = [*text[known : known + num_kept], next_token(text[: known + num_kept])]
                sampled[place, : num_kept + 1], num_sampled[place] = answer, num_kept + 1
        return sampled, num_sampled

    def draft(self, held: Any) -> None:
        drafts = np.zeros((len(held), NUM_DRAFTS), np.int32)
        for place, row in enumerate(held):
            num_tokens = int(self.state.requests.ledgers[NUM_TOKENS, row])
            text = self.state.requests.token_ids[row, :num_tokens].tolist()
            drafts[place] = self.drafts(text, NUM_DRAFTS)
        self.scheduler.take_drafts(held, drafts, np.full(len(held), NUM_DRAFTS, np.int32))

    def drafts(self, text: list[int], count: int) -> list[int]:
        """Every draft goes on with what is before it, and is wrong three times in ten."""
        text = list(text)
        for _ in range(count):
            text.append((next_token(text) + int(self.random.random() < 0.3)) % VOCAB_SIZE)
        return text[len(text) - count :]

    def blocks_of(self, row: int) -> Any:
        """The scheduler's ids of the row's blocks; a view that can be written."""
        return self.state.tables.block_ids[0, row, : int(self.state.tables.num_blocks[0, row])]

    def computed(self, batch: Batch) -> list[tuple[int, int]]:
        """(row, tokens computed) of the batch's rows."""
        count = batch.num_requests
        return list(zip(batch.rows[:count].tolist(), batch.num_computed_tokens[:count].tolist(), strict=True))

    def expect(self, batch: Batch, row: int, position: int) -> None:
        """The batch's step will read a wrong slot."""
        block = int(self.places[self.blocks_of(row)[position // BLOCK_SIZE]])
        self.expected = batch.step, self.scheduler.request_ids[row], position, block


class AsynchronousEngine(Engine):
    """A step is dispatched before the last one is settled: only the device knows where its rows are."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, asynchronous=True)
        self.known: dict[int, list[int]] = {}
        """By row: what the device has sampled, not settled yet, included."""
        self.waiting: list[tuple[Batch, Any, Any]] = []
        self.trusts_host_lengths = False

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            batch = self.scheduler.schedule()
            self.did["preempted"] += int(batch.counts[NUM_PREEMPTED])
            if batch.num_requests:
                self.forget()
                self.move()
                self.step(batch)
            if self.waiting and (len(self.waiting) == 2 or not batch.num_requests):
                self.scheduler.settle(*self.waiting.pop(0))

    def step(self, batch: Batch) -> None:
        texts = [self.text(batch, place) for place in range(batch.num_requests)]
        ends = batch.num_computed_tokens[: len(texts)] + batch.num_scheduled_tokens[: len(texts)]
        lengths = np.array(
            [
                len(text) if samples else end
                for text, samples, end in zip(texts, batch.samples, ends, strict=False)
            ]
        )
        self.did["behind the host"] += int((ends - lengths).sum())
        rows = self.rows(batch)
        if not self.trusts_host_lengths:
            padded = torch.from_numpy(np.append(lengths, 0).astype(np.int32)).to(DEVICE)
            rows = at_lengths(rows, padded, BLOCK_SIZE)
        elif not self.expected:
            wrong = np.flatnonzero(ends > lengths)
            if len(wrong):
                place = int(wrong[0])
                computed = int(lengths[place] - batch.num_scheduled_tokens[place])
                self.expect(batch, int(batch.rows[place]), computed)
        self.compute(batch, rows, texts, lengths - batch.num_scheduled_tokens[: len(texts)])
        sampled, num_sampled = self.outcome(batch, texts)
        for place, row in enumerate(batch.rows[: len(texts)].tolist()):
            self.known[row] += sampled[place, : num_sampled[place]].tolist()
        self.waiting.append((batch, sampled, num_sampled))

    def text(self, batch: Batch, place: int) -> list[int]:
        """Drafts are made on the device, too; those that only pad a step are -1."""
        row = int(batch.rows[place])
        if batch.kind[place] != RUNNING:
            num_tokens = int(self.state.requests.ledgers[NUM_TOKENS, row])
            self.known[row] = self.state.requests.token_ids[row, :num_tokens].tolist()
        known = self.known[row]
        num_invalid = int(batch.num_invalid_drafts[place])
        return [
            *known,
            *self.drafts(known, int(batch.num_draft_tokens[place]) - num_invalid),
            *[-1] * num_invalid,
        ]


def named(engine: Engine) -> CanaryError:
    """Run until the first read of what was spoiled, and no further."""
    with pytest.raises(CanaryError) as info:
        engine.run_waves()
    error = info.value
    assert (error.step, error.request, error.position, error.block) == engine.expected
    for part in (f"step {error.step} ", f"position {error.position} ", error.request, f"block {error.block}"):
        assert part in str(error)
    assert error.expected != error.found
    return error


seeds = pytest.mark.parametrize("seed", range(3))
without_other_checks = pytest.mark.skipif(
    DEBUG or MIDDLE,
    reason="with DRAFTPROOF_DEBUG the scheduler finds the fault itself, before any slot is read",
)
