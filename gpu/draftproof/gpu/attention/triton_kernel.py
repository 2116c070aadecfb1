"""How does the device attend without gathering? One kernel for all ragged rows, reading blocks in place.

A program takes 16 queries (tokens of one row times the heads that share keys) and goes through the keys in
tiles of 64. Short rows are also split along the keys, every 512, and a second kernel joins the parts in
their order: one row alone can so keep the whole device busy. Tile and split sizes are fixed, and so is the
order of every sum; hence a row's result does not depend on the batch around it, not in a single bit.

With TRITON_INTERPRET=1, set before this is imported, it runs on the CPU. Online softmax: Milakov and
Gimelshein 2018; splitting along the keys: Flash-Decoding, Dao et al. 2023.
"""

# Triton may be missing, and its decorator has no types.

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from draftproof.gpu.attention.kv_cache import KVCache
from draftproof.gpu.attention.step_rows import MAX_SHORT_QUERY, RowSpan, StepRows

QUERY_TILE = 16
"""Queries of a program: the least that a tensor core multiplies."""
KEY_TILE = 64
KEY_SPLIT = 512
"""Keys of a part; a multiple of KEY_TILE. Chunks are not split: they have programs enough."""
NOTHING = -1e30
"""A maximum over no key. Not an infinity: the difference of two of those is NaN."""
COUNTS = ("table_width", "num_splits", "num_tokens")
ROWS = ("tables", "starts", "lengths")
"""What differs from batch to batch compiles no further variant, whose sums might differ."""


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=ROWS)
def _attend_tile(
    out, part_values, part_maxima, part_sums, query, keys, values, tables, starts, lengths, scale,
    table_width, num_splits, num_tokens, block_size: tl.constexpr, head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr, num_heads: tl.constexpr, num_kv_heads: tl.constexpr,
    padded_group: tl.constexpr,
    tile_tokens: tl.constexpr, key_tile: tl.constexpr, key_split: tl.constexpr, nothing: tl.constexpr,
):  # fmt: skip
    """16 queries of one row and one head of keys, over one part of the keys, or all with key_split = 0."""
    row, tile, split = tl.program_id(0), tl.program_id(1) // num_splits, tl.program_id(1) % num_splits
    kv_head = tl.program_id(2)
    first = tl.load(starts + row)
    query_length = tl.load(starts + row + 1) - first
    if tile * tile_tokens >= query_length:
        return
    num_computed = tl.load(lengths + row) - query_length
    lane = tl.arange(0, tile_tokens * padded_group)
    token, head_in_group = tile * tile_tokens + lane // padded_group, lane % padded_group
    group: tl.constexpr = num_heads // num_kv_heads
    is_query = (token < query_length) & (head_in_group < group)
    position = num_computed + token
    begin = 0
    end = num_computed + tl.minimum((tile + 1) * tile_tokens, query_length)  # what the last query sees
    if key_split > 0:
        begin = split * key_split
        if begin >= end:
            return
        end = tl.minimum(end, begin + key_split)
    element = tl.arange(0, padded_head_dim)
    head = kv_head * group + head_in_group
    line = (first + token).to(tl.int64) * num_heads + head
    mine = is_query[:, None] & (element < head_dim)[None, :]
    place = line[:, None] * head_dim + element[None, :]
    lines = tl.load(query + place, mask=mine, other=0.0)
    summed = tl.zeros((tile_tokens * padded_group, padded_head_dim), tl.float32)
    maximum = tl.full((tile_tokens * padded_group,), nothing, tl.float32)
    total = tl.zeros((tile_tokens * padded_group,), tl.float32)
    for at in range(begin, end, key_tile):
        key_position = at + tl.arange(0, key_tile)
        is_key = key_position < end
        block = tl.load(tables + row * table_width + key_position // block_size, mask=is_key, other=0)
        slot = block.to(tl.int64) * block_size + key_position % block_size
        key_place = (slot * num_kv_heads + kv_head)[:, None] * head_dim + element[None, :]
        # Beyond the end lies what nobody has written, or NaN: it must not even be multiplied by 0.
        readable = is_key[:, None] & (element < head_dim)[None, :]
        key = tl.load(keys + key_place, mask=readable, other=0.0)
        value = tl.load(values + key_place, mask=readable, other=0.0)
        sees = key_position[None, :] <= position[:, None]
        score = tl.where(sees, tl.dot(lines, tl.trans(key), input_precision="ieee") * scale, nothing)
        higher = tl.maximum(maximum, tl.max(score, 1))
        weight = tl.where(sees, tl.exp(score - higher[:, None]), 0.0)
        fading = tl.exp(maximum - higher)
        total = total * fading + tl.sum(weight, 1)
        summed = summed * fading[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        maximum = higher
    if key_split > 0:
        part = split.to(tl.int64) * num_tokens * num_heads + line
        tl.store(part_values + part[:, None] * head_dim + element[None, :], summed, mask=mine)
        tl.store(part_maxima + part, maximum, mask=is_query)
        tl.store(part_sums + part, total, mask=is_query)
    else:
        result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=mine)


@triton.jit(do_not_specialize=COUNTS[2:], do_not_specialize_on_alignment=ROWS[1:])
def _join_parts(
    out, part_values, part_maxima, part_sums, starts, lengths, num_tokens, head_dim: tl.constexpr,
    padded_head_dim: tl.constexpr, num_heads: tl.constexpr, key_split: tl.constexpr, nothing: tl.constexpr,
):  # fmt: skip
    """One token and one head: its parts, first to last; as many as its own position says."""
    row, token, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(starts + row)
    query_length = tl.load(starts + row + 1) - first
    if token >= query_length:
        return
    position = tl.load(lengths + row) - query_length + token
    num_parts = tl.where(position < 0, 0, position // key_split + 1)
    element = tl.arange(0, padded_head_dim)
    line = (first + token).to(tl.int64) * num_heads + head
    maximum, total = tl.full((1,), nothing, tl.float32), tl.zeros((1,), tl.float32)
    summed = tl.zeros((padded_head_dim,), tl.float32)
    part = line
    for _ in range(0, num_parts):
        part_maximum = tl.load(part_maxima + part)
        higher = tl.maximum(maximum, part_maximum)
        fading, weight = tl.exp(maximum - higher), tl.exp(part_maximum - higher)
        value = tl.load(part_values + part * head_dim + element, mask=element < head_dim, other=0.0)
        total = total * fading + tl.load(part_sums + part) * weight
        summed = summed * fading + value * weight
        maximum = higher
        part += num_tokens * num_heads
    result = summed / tl.where(total == 0.0, 1.0, total)
    tl.store(out + line * head_dim + element, result.to(out.dtype.element_ty), mask=element < head_dim)


class TritonAttention:
    """The backend for one step. `group_size` is query heads for each head of keys and values.

    Launches of one span depend on its shape on the host only, so a step can be captured in a graph.
    """

    def __init__(self, cache: KVCache, rows: StepRows, group_size: int) -> None:
        self.cache, self.rows, self.group_size = cache, rows, group_size

    def __call__(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """Write keys and values `[T, num_kv_heads, head_dim]` to the cache and attend to it.

        `query` is `[T, num_heads, head_dim]`, in the dtype of the cache, as is the result. What tokens of
        padding rows attend to is exactly 0.
        """
        self.cache.write(layer, key, value, self.rows.slot_mapping)
        query = query.contiguous()
        out = torch.empty_like(query)
        for span in self.rows.spans:
            if span.max_query_length > MAX_SHORT_QUERY:
                self._attend(layer, span, query, out, 1, (out, out, out))
            else:
                # By the length that the batch has room for, not by what it holds: bounds only the launch.
                num_splits = max(1, -(-span.max_sequence_length // KEY_SPLIT))
                parts = self._parts(query, num_splits)
                self._attend(layer, span, query, out, num_splits, parts)
                self._join(span, out, parts)
        return out

    def _parts(self, query: Any, num_splits: int) -> tuple[Any, Any, Any]:
        """Room for sums `[splits, T, num_heads, head_dim]`, maxima and totals, in float32."""
        lines = (num_splits, *query.shape[:2])
        values = torch.empty((*lines, query.shape[2]), dtype=torch.float32, device=query.device)
        maxima = torch.empty((2, *lines), dtype=torch.float32, device=query.device)
        return values, maxima[0], maxima[1]

    def _attend(
        self, layer: int, span: RowSpan, query: Any, out: Any, num_splits: int, parts: tuple[Any, Any, Any]
    ) -> None:
        padded_group = triton.next_power_of_2(self.group_size)
        tile_tokens = max(1, QUERY_TILE // padded_group)
        num_tiles = -(-span.max_query_length // tile_tokens)
        grid = (span.last_row - span.first_row, num_tiles * num_splits, self.cache.num_kv_heads)
        is_short = span.max_query_length <= MAX_SHORT_QUERY
        tables = self.rows.block_tables
        kernel: Any = _attend_tile
        kernel[grid](
            out, *parts, query, self.cache.key[layer], self.cache.value[layer],
            tables[span.first_row :], self.rows.query_starts[span.first_row :],
            self.rows.sequence_lengths[span.first_row :], self.cache.head_dim**-0.5, tables.shape[1],
            num_splits, query.shape[0], self.cache.block_size, self.cache.head_dim,
            max(16, triton.next_power_of_2(self.cache.head_dim)), query.shape[1], self.cache.num_kv_heads,
            padded_group, tile_tokens, KEY_TILE, KEY_SPLIT if is_short else 0, NOTHING,
        )  # fmt: skip

    def _join(self, span: RowSpan, out: Any, parts: tuple[Any, Any, Any]) -> None:
        num_tokens, num_heads, head_dim = out.shape
        kernel: Any = _join_parts
        kernel[(span.last_row - span.first_row, span.max_query_length, num_heads)](
            out, *parts, self.rows.query_starts[span.first_row :],
            self.rows.sequence_lengths[span.first_row :], num_tokens, head_dim,
            triton.next_power_of_2(head_dim), num_heads, KEY_SPLIT, NOTHING,
        )  # fmt: skip
