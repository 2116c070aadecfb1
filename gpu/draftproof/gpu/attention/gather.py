"""What do the queries attend to? The reference: gather each row's keys and values, then attend to them.

Keys and values of a span of rows are gathered through the block tables into `[rows, keys]`, padded to the
longest, and attended with torch's scaled_dot_product_attention. Which slots those are and who may see what
is worked out once a step, for all layers. Works on every device, in every floating dtype.

What this backend promises of a row beside other neighbours is equality within rounding, not bit for bit:
the shapes of the products follow the longest row of a span. The Triton kernel promises the latter.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional

from draftproof.gpu.attention.kv_cache import NULL_SLOT, KVCache
from draftproof.gpu.attention.step_rows import RowSpan, StepRows

QUERY_TILE = 256
"""Queries of a long chunk that are attended at a time: bounds the mask, and skips keys nobody sees yet."""


class _Tile(NamedTuple):
    """Queries `first` to `last` of every row of a span, and the keys that they may see."""

    first: int
    last: int
    num_keys: int
    mask: Any
    """[rows, 1, heads of a group * queries, keys] in the cache's dtype: 0, or -inf for hidden keys"""


class _Span(NamedTuple):
    """How one span is attended."""

    first_token: int
    last_token: int
    num_rows: int
    num_queries: int
    slots: Any
    """int64[rows * keys]"""
    padded_tokens: Any
    """int64[rows * queries]: the token at each padded query; None if no row is shorter than the longest"""
    padded_queries: Any
    """int64[tokens]: the padded query of each token; None likewise"""
    tiles: tuple[_Tile, ...]


class GatherAttention:
    """The backend for one step. `group_size` is query heads for each head of keys and values."""

    def __init__(self, cache: KVCache, rows: StepRows, group_size: int) -> None:
        self.cache, self.rows, self.group_size = cache, rows, group_size
        self.spans = [_plan(cache, rows, span, group_size) for span in rows.parts or rows.spans]

    def __call__(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """Write keys and values `[T, num_kv_heads, head_dim]` to the cache and attend to it.

        `query` is `[T, num_heads, head_dim]`, in the dtype of the cache, as is the result. What tokens of
        padding rows attend to is exactly 0.
        """
        self.cache.write(layer, key, value, self.rows.slot_mapping)
        self.cache.clear_null_slot(layer)
        parts = [self._attend(layer, span, query[span.first_token : span.last_token]) for span in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, layer: int, span: _Span, query: Any) -> Any:
        """One span: `[its tokens, num_heads, head_dim]` in and out."""
        num_heads, head_dim = query.shape[1:]
        keys, values = [self._gathered(lines, span, head_dim) for lines in self.cache.lines(layer)]
        padded = query if span.padded_tokens is None else query[span.padded_tokens]
        # The heads that share keys become further queries, so that no key is repeated in memory.
        grouped = padded.reshape(span.num_rows, span.num_queries, -1, self.group_size, head_dim)
        attended = [self._tile(tile, grouped, keys, values) for tile in span.tiles]
        result = attended[0] if len(attended) == 1 else torch.cat(attended, 1)
        flat = result.reshape(-1, num_heads, head_dim)
        return flat if span.padded_queries is None else flat[span.padded_queries]

    def _gathered(self, lines: Any, span: _Span, head_dim: int) -> Any:
        """`[rows, num_kv_heads, keys, head_dim]`, from a layer's slots `[slots, num_kv_heads * head_dim]`."""
        gathered = lines.index_select(0, span.slots)
        return gathered.view(span.num_rows, -1, lines.shape[1] // head_dim, head_dim).transpose(1, 2)

    def _tile(self, tile: _Tile, grouped: Any, keys: Any, values: Any) -> Any:
        """`[rows, queries of the tile, num_kv_heads, group_size, head_dim]`"""
        if grouped.shape[1] == 1:  # decoding: there is nothing to reorder
            single: Any = torch.nn.functional.scaled_dot_product_attention(
                grouped[:, 0], keys, values, attn_mask=tile.mask
            )
            return single[:, None]
        query = grouped[:, tile.first : tile.last].permute(0, 2, 3, 1, 4)
        attended: Any = torch.nn.functional.scaled_dot_product_attention(
            query.flatten(2, 3),
            keys[:, :, : tile.num_keys],
            values[:, :, : tile.num_keys],
            attn_mask=tile.mask,
        )
        return attended.reshape(*attended.shape[:2], self.group_size, -1, attended.shape[3]).permute(
            0, 3, 1, 2, 4
        )


def _plan(cache: KVCache, rows: StepRows, span: RowSpan, group_size: int) -> _Span:
    """Slots, masks and padding of a span. Shapes from the host's integers, contents on the device."""
    lengths = rows.sequence_lengths[span.first_row : span.last_row].to(torch.int64)
    starts = rows.query_starts[span.first_row : span.last_row + 1].to(torch.int64) - span.first_token
    num_rows, num_queries = span.last_row - span.first_row, span.max_query_length
    places = torch.arange(max(1, span.max_sequence_length), device=cache.device)
    blocks = rows.block_tables[span.first_row : span.last_row, places // cache.block_size].to(torch.int64)
    slots = blocks * cache.block_size + places % cache.block_size
    slots = torch.where(places < lengths[:, None], slots, NULL_SLOT)
    offsets = torch.arange(num_queries, device=cache.device)
    query_lengths = starts[1:] - starts[:-1]
    # Whoever has no position, in a padding row, sees key 0: there that is the null slot, and so 0.
    positions = (lengths - query_lengths)[:, None] + offsets
    positions = positions.clamp_min(0)
    padded_tokens = padded_queries = None
    if num_rows * num_queries != span.last_token - span.first_token:
        padded_tokens = torch.minimum(starts[:-1, None] + offsets, starts[1:, None] - 1).flatten()
        tokens = torch.arange(span.last_token - span.first_token, device=cache.device)
        token_rows = torch.searchsorted(starts[1:], tokens, right=True)
        padded_queries = token_rows * num_queries + tokens - starts[token_rows]
    edges = [*range(0, num_queries, QUERY_TILE), num_queries]
    tiles = []
    for first, last in pairwise(edges):
        # The span's last query sees its last key; one tile further up, as many keys fewer.
        num_keys = len(places) if num_rows > 1 else max(1, len(places) - (num_queries - last))
        hidden = places[:num_keys] > positions[:, first:last, None]
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device)
        mask = mask.masked_fill(hidden, float("-inf"))[:, None].expand(-1, group_size, -1, -1)
        tiles.append(_Tile(first, last, num_keys, mask.flatten(1, 2)[:, None]))
    return _Span(
        span.first_token, span.last_token, num_rows, num_queries,
        slots.flatten(), padded_tokens, padded_queries, tuple(tiles),
    )  # fmt: skip
