"""Does paged attention, over any mix of rows, attend to what dense attention would?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import (  # noqa: E402
    DEVICE,
    HEAD_DIM,
    MIX,
    TOLERANCE,
    Backend,
    World,
    backends,
    batch_of,
    difference,
    gather,
    kernel,
)

from draftproof.gpu.attention import (  # noqa: E402
    BlockTableError,
    GatherAttention,
    KVCache,
    StepRows,
    at_lengths,
    blocks_for_budget,
    rows_of,
)
from draftproof.gpu.errors import ModelError  # noqa: E402


@backends
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_every_row_of_a_mix_attends_as_dense_attention_does(
    backend: Backend, block_size: int, group_size: int
) -> None:
    world = World(MIX, block_size, group_size)
    for row, result in enumerate(world.step(backend)):
        assert difference(result, world.dense(row)) < TOLERANCE


@backends
def test_a_chunk_of_several_tiles_attends_as_dense_attention_does(backend: Backend) -> None:
    world = World(((1, 2), (300, 77)), 16, 2)
    for row, result in enumerate(world.step(backend)):
        assert difference(result, world.dense(row)) < TOLERANCE


@backends
def test_long_contexts_are_joined_from_their_parts(backend: Backend) -> None:
    world = World(((1, 511), (1, 512), (4, 1022), (2, 5)), 16, 2)
    for row, result in enumerate(world.step(backend)):
        assert difference(result, world.dense(row)) < TOLERANCE


@backends
@pytest.mark.parametrize("chosen", [[2], [5, 4, 3, 2, 1, 0], [8]])
def test_a_row_does_not_depend_on_its_neighbours(backend: Backend, chosen: list[int]) -> None:
    """Bit for bit with the kernel; within rounding with the reference, which promises no more."""
    world = World((*MIX, (4, 540), (1, 900)), 4, 2)
    together, apart = world.step(backend), world.step(backend, chosen)
    for row, result in zip(chosen, apart, strict=True):
        if backend is kernel:
            assert torch.equal(result, together[row])
        assert difference(result, together[row]) < TOLERANCE


@backends
@pytest.mark.parametrize("padding_query_length", [1, 4, 20])
def test_padding_rows_attend_to_nothing_and_change_only_the_null_block(
    backend: Backend, padding_query_length: int
) -> None:
    world = World(MIX, 4, 2)
    plain = world.step(backend)
    before = world.cache.storage.clone()
    padded = world.step(
        backend, num_padding_rows=3, padding_query_length=padding_query_length, table_width=30
    )
    assert torch.equal(world.cache.storage[:, :, 1:].nan_to_num(7.0), before[:, :, 1:].nan_to_num(7.0))
    assert len(padded[-1]) == 3 * padding_query_length
    assert torch.equal(padded[-1], torch.zeros_like(padded[-1]))
    for first, second in zip(plain, padded, strict=False):
        assert difference(first, second) < TOLERANCE
        assert backend is not kernel or torch.equal(first, second)


@backends
def test_a_prompt_in_chunks_attends_as_the_whole_does(backend: Backend) -> None:
    length, block_size = 61, 4
    whole = World(((length, 0),), block_size, 2)
    expected = whole.step(backend)[0]
    for sizes in ((16, 16, 16, 13), (1, 4, 4, 52), (60, 1), (17, 3, 40, 1)):
        computed, parts = 0, []
        world = World(((length, 0),), block_size, 2)
        for size in sizes:
            batch = batch_of([(size, computed)], [0], world.num_blocks)
            rows = rows_of(batch, world.block_ids, block_size, DEVICE)
            drawn = [part[0][computed : computed + size] for part in world.drawn]
            parts.append(backend(world.cache, rows, 2)(0, *drawn))
            computed += size
        assert difference(torch.cat(parts), expected) < TOLERANCE


@backends
def test_a_poisoned_block_shows_in_the_row_that_reads_it_and_in_no_other(backend: Backend) -> None:
    world = World(MIX, 4, 2)
    world.cache.poison([int(world.block_ids[0, 4, 2])])
    results = world.step(backend)
    assert bool(results[4].isnan().all())
    assert not any(bool(result.isnan().any()) for row, result in enumerate(results) if row != 4)


@backends
@pytest.mark.parametrize("what", ["slot", "length", "table"])
def test_a_wrong_slot_length_or_table_is_seen(backend: Backend, what: str) -> None:
    world = World(MIX, 4, 2)
    expected = World(MIX, 4, 2).step(backend)
    rows = world.rows(range(len(MIX)))
    if what == "slot":
        rows.slot_mapping[0] += 1  # its own slot stays NaN
    if what == "length":
        rows.sequence_lengths[0] -= 1
    if what == "table":
        rows.block_tables[0, :2] = rows.block_tables[0, :2].flip(0)
        rows.block_tables[0, 1] = rows.block_tables[2, 1]
    drawn = [torch.cat([part[row][MIX[row][1] :] for row in range(len(MIX))]) for part in world.drawn]
    result = backend(world.cache, rows, 2)(0, *drawn)
    assert not difference(result[:1], expected[0]) < 1e-3
    assert difference(result[1:], torch.cat(expected[1:])) < TOLERANCE


@backends
@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 0.03), (torch.float16, 0.005)])
def test_half_precision_is_near_dense_attention(backend: Backend, dtype: Any, near: float) -> None:
    if backend is kernel and dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16")
    world = World(MIX, 4, 2, dtype)
    for row, result in enumerate(world.step(backend)):
        assert result.dtype == dtype
        assert difference(result, world.dense(row)) < near


def test_lengths_known_on_the_device_move_positions_and_slots() -> None:
    """As in asynchronous mode: the host takes drafts in flight for accepted, the device knows better."""
    world = World(MIX, 4, 2)
    optimistic = world.rows(range(len(MIX)), num_padding_rows=2, padding_query_length=3)
    same = at_lengths(optimistic, optimistic.sequence_lengths, 4)
    assert all(torch.equal(getattr(same, name), getattr(optimistic, name)) for name in StepRows._fields[:5])
    rejected = [0, 0, 5, 0, 3, 1, 0, 2]
    known = [(tokens, computed - less) for (tokens, computed), less in zip(MIX, rejected, strict=True)]
    settled = rows_of(
        batch_of(known, range(len(MIX)), world.num_blocks), world.block_ids, 4, DEVICE,
        num_padding_rows=2, padding_query_length=3,
    )  # fmt: skip
    moved = at_lengths(optimistic, settled.sequence_lengths, 4)
    assert torch.equal(moved.slot_mapping, settled.slot_mapping)
    assert torch.equal(moved.positions, settled.positions)
    drawn = [torch.randn(moved.num_tokens, heads, HEAD_DIM, device=DEVICE) for heads in (4, 2, 2)]
    expected = gather(world.cache, settled, 2)(0, *drawn)
    assert difference(gather(world.cache, moved, 2)(0, *drawn), expected) < TOLERANCE


def test_rows_come_from_the_batch_in_its_order() -> None:
    block_ids = np.array([[[9, 8, 7], [0, 0, 0], [3, 5, 0]]], np.int32)
    rows = rows_of(batch_of([(3, 2), (1, 8)], [2, 0], [2, 3]), block_ids, 4, DEVICE, num_padding_rows=1)
    assert rows.block_tables.tolist() == [[3, 5, 0], [9, 8, 7], [0, 0, 0]]
    assert rows.query_starts.tolist() == [0, 3, 4, 5]
    assert rows.sequence_lengths.tolist() == [5, 9, 0]
    assert rows.positions.tolist() == [2, 3, 4, 8, 0]
    assert rows.slot_mapping.tolist() == [14, 15, 20, 28, 0]
    kinds = [getattr(rows, name).dtype for name in StepRows._fields[:5]]
    assert kinds == [torch.int32, torch.int32, torch.int32, torch.int64, torch.int64]


def test_rows_of_different_lengths_are_attended_apart() -> None:
    """Cut where padding would cost more; the parts are the rows again, in their order."""
    num_computed = [300, 310, 20, 25, 22, 900, 30]
    block_ids = np.arange(1, 1 + 7 * 240, dtype=np.int32).reshape(1, 7, 240)
    rows = rows_of(batch_of([(2, one) for one in num_computed], range(7), [240] * 7), block_ids, 4, DEVICE)
    assert [(part.first_row, part.last_row) for part in rows.parts] == [(0, 2), (2, 5), (5, 6), (6, 7)]
    assert [part.max_sequence_length for part in rows.parts] == [312, 27, 902, 32]
    assert len(rows.spans) == 1
    cache = KVCache(1, 7 * 240, 4, 2, HEAD_DIM, device=DEVICE)
    cache.storage.normal_()
    drawn = [torch.randn(rows.num_tokens, heads, HEAD_DIM, device=DEVICE) for heads in (4, 2, 2)]
    apart = GatherAttention(cache, rows, 2)(0, *drawn)
    together = GatherAttention(cache, rows._replace(parts=()), 2)(0, *drawn)
    assert difference(apart, together) < TOLERANCE


def test_a_row_without_a_block_for_its_token_is_refused() -> None:
    block_ids = np.array([[[9, 0, 0]]], np.int32)
    with pytest.raises(BlockTableError, match=r"row 0 has 5 tokens .* room for 4"):
        rows_of(batch_of([(1, 4)], [0], [1]), block_ids, 4)
    with pytest.raises(BlockTableError, match="row 0 computes position 4"):
        rows_of(batch_of([(2, 3)], [0], [2]), block_ids, 4)


def test_copies_read_all_sources_first() -> None:
    cache = KVCache(2, 3, 2, 1, 4, device=DEVICE)
    cache.storage.copy_(torch.arange(cache.storage.numel(), device=DEVICE).view(cache.storage.shape))
    before = cache.storage.clone()
    cache.copy_blocks(torch.tensor([1, 2], device=DEVICE), torch.tensor([2, 3], device=DEVICE))
    assert torch.equal(cache.storage, before[:, :, [0, 1, 1, 2]])


def test_sizes_and_budgets() -> None:
    cache = KVCache(3, 7, 16, 2, 8, torch.bfloat16)
    assert cache.key.shape == cache.value.shape == (3, 8, 16, 2, 8)
    assert cache.num_bytes == 2 * 3 * 8 * 16 * 2 * 8 * 2
    shape = (3, 16, 2, 8, torch.bfloat16)
    assert blocks_for_budget(cache.num_bytes, *shape) == 7
    assert blocks_for_budget(cache.num_bytes - 1, *shape, max_model_len=96) == 6
    with pytest.raises(ModelError, match="needs 24576 bytes"):
        blocks_for_budget(cache.num_bytes - 1, *shape, max_model_len=97)
    for impossible in (0, -5, 3071):
        with pytest.raises(ModelError, match="does not hold one request of 1 tokens"):
            blocks_for_budget(impossible, *shape)
    with pytest.raises(ModelError, match=r"num_kv_heads .* got 0"):
        KVCache(1, 1, 1, 0, 8)
    with pytest.raises(ModelError, match="16 bits or more"):
        KVCache(1, 1, 1, 1, 8, torch.int32)
    for num_blocks in (2**31 - 1, 2**20):
        with pytest.raises(ModelError, match="lower num_blocks"):
            KVCache(2**10, num_blocks, 2**10, 2**6, 2**8)
    for block in (0, 8, -1):
        with pytest.raises(IndexError, match="1 to 7"):
            cache.poison([1, block])
