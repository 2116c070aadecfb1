"""Does the scheduler drive attention to what dense recomputation gives, hits and preemptions included?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE, HEAD_DIM, NUM_KV_HEADS, Backend, backends, dense, difference  # noqa: E402

from draftproof.gpu.attention import KVCache, rows_of  # noqa: E402
from draftproof.impl.ledger_table import NUM_PROMPT_TOKENS  # noqa: E402
from draftproof.impl.scheduler import Scheduler, SchedulerConfig  # noqa: E402
from draftproof.impl.scheduler.batch import NEW, NUM_PREEMPTED, Batch  # noqa: E402

VOCAB_SIZE, NUM_LAYERS, NUM_DRAFTS = 40, 2, 2


class ToyModel:
    """Attention and nothing else: what a layer attends to, projected, is the next one's input."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        hidden_size, kv_size = 2 * NUM_KV_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
        sizes = (hidden_size, kv_size, kv_size)
        self.embedding = torch.randn(VOCAB_SIZE, hidden_size, generator=generator).to(DEVICE)
        self.places = torch.randn(100, hidden_size, generator=generator).to(DEVICE)
        self.weights = [
            [torch.randn(hidden_size, size, generator=generator).to(DEVICE) / 6 for size in sizes]
            for _ in range(NUM_LAYERS)
        ]

    def forward(self, token_ids: Any, positions: Any, attend: Any) -> Any:
        """`[T, hidden_size]`"""
        hidden = self.embedding[token_ids] + self.places[positions]
        for layer, weights in enumerate(self.weights):
            query, key, value = [(hidden @ weight).unflatten(1, (-1, HEAD_DIM)) for weight in weights]
            hidden = hidden / 2 + attend(layer, query, key, value).flatten(1).to(hidden.dtype)
        return hidden

    def sampled(self, hidden: Any) -> Any:
        """The greedy tokens."""
        return (hidden @ self.embedding.T).argmax(-1)

    def dense(self, token_ids: Sequence[int]) -> Any:
        """What every token of a sequence comes to, all computed anew, without a cache."""

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            return dense(query, key, value, 2)

        tokens = torch.tensor(token_ids, device=DEVICE)
        return self.forward(tokens, torch.arange(len(token_ids), device=DEVICE), attend)

    def text(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The prompt and what follows it."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.sampled(self.dense(tokens)[-1:])[0]))
        return tokens


class Engine:
    """The real scheduler, interpreted, over the toy model: two drafts a step, one in three of them wrong."""

    def __init__(self, backend: Backend) -> None:
        config = SchedulerConfig(
            max_model_len=64, num_blocks=14, block_size=4, max_num_seqs=4, max_num_batched_tokens=24,
            long_prefill_token_threshold=9, num_speculative_tokens=NUM_DRAFTS, vocab_size=VOCAB_SIZE,
        )  # fmt: skip
        self.backend, self.model = backend, ToyModel()
        self.scheduler = Scheduler(config, compiled=False)
        self.cache = KVCache(NUM_LAYERS, config.num_blocks, 4, NUM_KV_HEADS, HEAD_DIM, device=DEVICE)
        self.texts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.did: Counter[str] = Counter()
        self.largest = 0.0
        self.poison()

    def add(self, name: str, prompt: list[int], max_tokens: int) -> int:
        row = self.scheduler.add(name, prompt, max_tokens=max_tokens)
        self.texts[row], self.outputs[row] = self.model.text(prompt, max_tokens + NUM_DRAFTS), []
        return row

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            batch = self.scheduler.schedule()
            self.did["preempted"] += int(batch.counts[NUM_PREEMPTED])
            if batch.num_requests:
                self.step(batch)
                self.poison()

    def poison(self) -> None:
        """Blocks that nobody holds and the prefix cache does not know."""
        pool = self.scheduler.state.pool
        free = (pool.ref_count[1:] == 0) & (pool.num_tokens[1:] == 0)
        self.cache.poison(1 + np.flatnonzero(free))

    def step(self, batch: Batch) -> None:
        rows = rows_of(batch, self.scheduler.state.tables.block_ids, 4, DEVICE, num_padding_rows=1)
        tokens = [self.token_ids(batch, place) for place in range(batch.num_requests)]
        given = torch.tensor([*[token for part in tokens for token in part], 0], device=DEVICE)
        hidden = self.model.forward(given, rows.positions, self.backend(self.cache, rows, 2))
        parts = torch.split(hidden[:-1], [len(part) for part in tokens])
        sampled = np.zeros((len(parts), 1 + NUM_DRAFTS), np.int32)
        num_sampled = np.zeros(len(parts), np.int32)
        for place, part in enumerate(parts):
            self.compare(batch, place, tokens[place], part)
            if batch.samples[place]:
                num_drafts = int(batch.num_draft_tokens[place])
                answers = self.model.sampled(part[-1 - num_drafts :]).tolist()
                drafts = tokens[place][len(part) - num_drafts :]
                agree = [draft == answer for draft, answer in zip(drafts, answers, strict=False)]
                kept = (*agree, False).index(False)
                self.did.update(accepted=kept, rejected=num_drafts - kept)
                sampled[place, : kept + 1], num_sampled[place] = answers[: kept + 1], kept + 1
        held = batch.rows[: len(parts)].copy()
        self.scheduler.settle(batch, sampled, num_sampled)
        for place, row in enumerate(held):
            self.outputs[row] += sampled[place, : batch.num_kept_tokens[place]].tolist()
        self.draft(held)

    def token_ids(self, batch: Batch, place: int) -> list[int]:
        row, num_drafts = batch.rows[place], int(batch.num_draft_tokens[place])
        begin, count = int(batch.num_computed_tokens[place]), int(batch.num_scheduled_tokens[place])
        self.did["hits"] += int(batch.kind[place] == NEW and begin > 0)
        self.did["chunks"] += int(batch.samples[place] == 0)
        known = self.scheduler.state.requests.token_ids[row, begin : begin + count - num_drafts]
        return [*known.tolist(), *batch.draft_token_ids[place, :num_drafts].tolist()]

    def compare(self, batch: Batch, place: int, tokens: list[int], hidden: Any) -> None:
        """With all tokens before, computed anew."""
        begin = int(batch.num_computed_tokens[place])
        before = self.scheduler.state.requests.token_ids[batch.rows[place], :begin].tolist()
        self.largest = np.maximum(self.largest, difference(hidden, self.model.dense(before + tokens)[begin:]))

    def draft(self, held: Any) -> None:
        drafts = np.zeros((len(held), NUM_DRAFTS), np.int32)
        for place, row in enumerate(held):
            begin = int(self.scheduler.state.requests.ledgers[NUM_PROMPT_TOKENS, row]) + len(
                self.outputs[row]
            )
            drafts[place] = (self.texts[row][begin:] + [0] * NUM_DRAFTS)[:NUM_DRAFTS]
            # One in three is another token than the text's.
            for index in range(NUM_DRAFTS):
                self.did["drafts"] += 1
                drafts[place, index] += self.did["drafts"] % 3 == 0
        self.scheduler.take_drafts(held, drafts % VOCAB_SIZE, np.full(len(held), NUM_DRAFTS, np.int32))


@backends
def test_the_scheduler_drives_attention_to_what_dense_recomputation_gives(backend: Backend) -> None:
    """Prefill in chunks, drafts kept and rejected, prefix-cache hits, preemptions, freed blocks poisoned."""
    engine = Engine(backend)
    shared = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB_SIZE, 21)]
    for wave in range(3):
        for index in range(3):
            engine.add(f"{wave} {index}", [*shared, *range(index, index + 2 * wave)], 8 + 3 * index)
        expected = {row: text[:-NUM_DRAFTS] for row, text in engine.texts.items()}
        engine.run()
        for row, text in expected.items():
            assert engine.outputs[row] == text[len(text) - len(engine.outputs[row]) :]
        engine.texts.clear()
        engine.outputs.clear()
    assert engine.largest < 1e-4
    for what in ("chunks", "hits", "accepted", "rejected", "preempted"):
        assert engine.did[what] > 0, what
