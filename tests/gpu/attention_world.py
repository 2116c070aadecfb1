"""Ragged rows over a paged cache, and what they must attend to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from draftproof.gpu.attention import GatherAttention, KVCache, StepRows, rows_of  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD_DIM, NUM_KV_HEADS = 16, 2
TOLERANCE = 1e-6 if DEVICE == "cpu" else 1e-5
MIX = ((1, 20), (4, 0), (23, 18), (1, 0), (4, 31), (2, 3), (17, 0), (1, 40))
"""Rows as (tokens of the step, tokens computed before): decoding, 1 + 3, chunks of 23 and 17."""
Backend = Callable[[KVCache, StepRows, int], Any]


def gather(cache: KVCache, rows: StepRows, group_size: int) -> Any:
    return GatherAttention(cache, rows, group_size)


def kernel(cache: KVCache, rows: StepRows, group_size: int) -> Any:
    pytest.importorskip("triton", reason="Triton is not installed")
    from draftproof.gpu.attention.triton_kernel import TritonAttention

    return TritonAttention(cache, rows, group_size)


backends = pytest.mark.parametrize("backend", [gather, kernel])


def batch_of(mix: Sequence[tuple[int, int]], rows: Sequence[int], num_blocks: Sequence[int]) -> Any:
    """A batch's arrays, as far as `rows_of` reads them."""
    return SimpleNamespace(
        num_requests=len(mix),
        rows=np.array(rows, np.int32),
        num_scheduled_tokens=np.array([tokens for tokens, _ in mix], np.int32),
        num_computed_tokens=np.array([computed for _, computed in mix], np.int32),
        num_blocks=np.array([num_blocks], np.int32),
    )


class World:
    """Requests with random keys and values, of which the beginnings lie in a shuffled cache already."""

    def __init__(
        self, mix: Sequence[tuple[int, int]], block_size: int, group_size: int, dtype: Any = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.mix, self.block_size, self.group_size = mix, block_size, group_size
        num_heads = NUM_KV_HEADS * group_size

        def drawn(length: int, heads: int) -> Any:
            return torch.randn(length, heads, HEAD_DIM, generator=generator).to(DEVICE, dtype)

        lengths = [tokens + computed for tokens, computed in mix]
        self.keys = [drawn(length, NUM_KV_HEADS) for length in lengths]
        self.values = [drawn(length, NUM_KV_HEADS) for length in lengths]
        self.queries = [drawn(length, num_heads) for length in lengths]
        needs = [-(-length // block_size) for length in lengths]
        self.cache = KVCache(1, sum(needs) + 2, block_size, NUM_KV_HEADS, HEAD_DIM, dtype, DEVICE)
        # What nobody has written is NaN: a read beyond the end of a row would show.
        self.cache.storage.fill_(float("nan"))
        order = np.random.default_rng(0).permutation(np.arange(1, self.cache.num_blocks + 1))
        self.block_ids = np.zeros((1, len(mix), max(needs) + 1), np.int32)
        for row, need in enumerate(needs):
            self.block_ids[0, row, :need], order = order[:need], order[need:]
        self.num_blocks = needs
        for row, (_, computed) in enumerate(mix):
            places = torch.arange(computed)
            blocks = torch.from_numpy(self.block_ids[0, row])[places // block_size].long()
            slots = (blocks * block_size + places % block_size).to(DEVICE)
            self.cache.write(0, self.keys[row][:computed], self.values[row][:computed], slots)

    def rows(self, chosen: Sequence[int], **options: Any) -> StepRows:
        batch = batch_of([self.mix[row] for row in chosen], chosen, [self.num_blocks[row] for row in chosen])
        return rows_of(batch, self.block_ids, self.block_size, DEVICE, **options)

    def step(self, backend: Backend, chosen: Sequence[int] | None = None, **padding: Any) -> list[Any]:
        """What each chosen row's queries attend to; behind them, what padding rows do."""
        chosen = range(len(self.mix)) if chosen is None else chosen
        rows = self.rows(chosen, **padding)
        parts = [[drawn[row][self.mix[row][1] :] for row in chosen] for drawn in self.drawn]
        joined = [torch.cat(part) for part in parts]
        extra = rows.num_tokens - len(joined[0])
        # Padding rows bring whatever a model makes of them: here, something large.
        filled = [torch.cat([part, part.new_full((extra, *part.shape[1:]), 1e4)]) for part in joined]
        result = backend(self.cache, rows, self.group_size)(0, *filled)
        lengths = [len(part) for part in parts[0]]
        return list(torch.split(result, [*lengths, extra] if extra else lengths))

    @property
    def drawn(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.queries, self.keys, self.values

    def dense(self, row: int) -> Any:
        """What the row's tokens of the step attend to, written down as it is defined, in float64."""
        query, key, value = [drawn[row] for drawn in self.drawn]
        return dense(query, key, value, self.group_size)[self.mix[row][1] :]


def dense(query: Any, key: Any, value: Any, group_size: int) -> Any:
    """Causal attention of a whole sequence `[length, heads, head_dim]`, in float64."""
    keys, values = [part.double().repeat_interleave(group_size, 1) for part in (key, value)]
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * query.shape[-1] ** -0.5
    places = torch.arange(len(query), device=query.device)
    scores = scores.masked_fill(places[None, :] > places[:, None], float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


def difference(first: Any, second: Any) -> float:
    """The largest; NaN if there is one."""
    return float((first.double() - second.double()).abs().max())
