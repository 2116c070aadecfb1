"""Where do keys and values lie? In blocks of slots; block 0 is the null block, which belongs to nobody.

Block ids are the scheduler's: it hands out 1 to `num_blocks`. Slot `block_id * block_size + offset` holds
one token. Rows that only pad a batch are written to slot 0, and reads beyond a row's end are pointed at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.gpu.errors import ModelError

NULL_BLOCK, NULL_SLOT = 0, 0
MAX_BYTES = 2**62
"""Beyond this a size is a mistake, and would not fit the allocator's own arithmetic."""


class KVCache:
    """Keys and values of every layer, for `num_blocks` blocks and the null block.

    `key` and `value` are `[num_layers, num_blocks + 1, block_size, num_kv_heads, head_dim]`, zero at first.
    Raises ModelError if a size is not a positive integer, `dtype` holds no NaN, or memory does not suffice.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: Any = torch.float32,
        device: Any = "cpu",
    ) -> None:
        block_bytes = bytes_per_block(num_layers, block_size, num_kv_heads, head_dim, dtype)
        _check_size("num_blocks", num_blocks)
        size = (num_blocks + 1) * block_bytes
        if size > MAX_BYTES:
            raise ModelError(f"a KV cache of {num_blocks} blocks would take {size} bytes: lower num_blocks")
        shape = (2, num_layers, num_blocks + 1, block_size, num_kv_heads, head_dim)
        try:
            self.storage: Any = torch.zeros(shape, dtype=dtype, device=device)
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"no memory for a KV cache of {num_blocks} blocks ({size} bytes) on {device}: lower "
                "num_blocks, or give the cache less of the memory"
            ) from error
        self.key: Any = self.storage[0]
        self.value: Any = self.storage[1]
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_layers, self.num_kv_heads, self.head_dim = num_layers, num_kv_heads, head_dim
        self.dtype, self.device = dtype, self.storage.device
        # Views are made once: a step needs them in every layer.
        self._slots = [(self.key[layer].flatten(0, 1), self.value[layer].flatten(0, 1))
                       for layer in range(num_layers)]  # fmt: skip
        self._lines = [(key.flatten(1), value.flatten(1)) for key, value in self._slots]
        self._null_slots = [self.storage[:, layer, NULL_BLOCK, NULL_SLOT] for layer in range(num_layers)]

    @property
    def num_bytes(self) -> int:
        """Bytes that keys and values take, the null block included."""
        return int(self.storage.numel()) * int(self.storage.element_size())

    def slots(self, layer: int) -> tuple[Any, Any]:
        """A layer's keys and values, one row a slot: two views `[slots, num_kv_heads, head_dim]`."""
        return self._slots[layer]

    def lines(self, layer: int) -> tuple[Any, Any]:
        """The same as two views `[slots, num_kv_heads * head_dim]`."""
        return self._lines[layer]

    def write(self, layer: int, key: Any, value: Any, slot_mapping: Any) -> None:
        """Put each token's key and value `[T, num_kv_heads, head_dim]` into its slot (int64[T]).

        A slot that is outside the cache is an IndexError on the CPU and a device assertion on CUDA.
        """
        keys, values = self.slots(layer)
        keys.index_copy_(0, slot_mapping, key)
        values.index_copy_(0, slot_mapping, value)

    def clear_null_slot(self, layer: int) -> None:
        """Make the null slot zero again, whatever padding rows left in it.

        A masked key has weight 0, and 0 times an infinity would be NaN.
        """
        self._null_slots[layer].zero_()

    def poison(self, block_ids: Sequence[int] | Any) -> None:
        """Fill blocks with NaN, so that whoever still reads them shows it. For debug mode, between steps.

        `block_ids` are integers on the host. The caller leaves out blocks that the prefix cache may still
        hand out. Raises IndexError for the null block, and for blocks that there are not.
        """
        chosen = chosen_blocks(block_ids, self.num_blocks, "poisoned")
        if not chosen:
            return
        self.storage.index_fill_(2, torch.tensor(chosen, device=self.device), float("nan"))

    def copy_blocks(self, sources: Any, targets: Any) -> None:
        """Copy whole blocks in every layer, for copy on write: int64[n] each, on the cache's device.

        All sources are read before a target is written, so a block may be source of one copy and target of
        another. Targets differ from each other.
        """
        self.storage.index_copy_(2, targets, self.storage.index_select(2, sources))


def chosen_blocks(block_ids: Sequence[int] | Any, num_blocks: int, what: str) -> list[int]:
    """Blocks that something is to happen to, ascending. Raises IndexError for what is none."""
    chosen = sorted({int(block_id) for block_id in block_ids})
    if chosen and (chosen[0] <= NULL_BLOCK or chosen[-1] > num_blocks):
        raise IndexError(f"blocks that can be {what} are 1 to {num_blocks}, got {chosen}")
    return chosen


def bytes_per_block(num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Any) -> int:
    """Bytes of one block in all layers, keys and values. Raises ModelError for sizes that cannot be."""
    sizes = (num_layers, block_size, num_kv_heads, head_dim)
    for name, size in zip(("num_layers", "block_size", "num_kv_heads", "head_dim"), sizes, strict=True):
        _check_size(name, size)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ModelError(f"a KV cache holds numbers of 16 bits or more with a NaN, such as torch.bfloat16, "
                         f"got {dtype!r}")  # fmt: skip
    return int(2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize)


def blocks_for_budget(
    num_bytes: int,
    num_layers: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: Any = torch.float32,
    max_model_len: int = 1,
) -> int:
    """How many blocks (the scheduler's `num_blocks`) fit into so many bytes, beside the null block.

    Raises ModelError if not even one request of `max_model_len` tokens fits.
    """
    block_bytes = bytes_per_block(num_layers, block_size, num_kv_heads, head_dim, dtype)
    return blocks_within(num_bytes, block_bytes, block_size, max_model_len)


def blocks_within(num_bytes: int, block_bytes: int, block_size: int, max_model_len: int) -> int:
    """The same for blocks of so many bytes: of several caches, for example. Raises ModelError."""
    _check_size("max_model_len", max_model_len)
    if type(num_bytes) is not int:
        raise ModelError(f"the KV cache's memory budget must be a whole number of bytes, got {num_bytes!r}")
    least = -(-max_model_len // block_size)
    num_blocks = num_bytes // block_bytes - 1
    if num_blocks < least:
        raise ModelError(
            f"a memory budget of {num_bytes} bytes does not hold one request of {max_model_len} tokens: the "
            f"KV cache needs {(least + 1) * block_bytes} bytes ({least} blocks of {block_bytes} and the null "
            "block), so raise the budget or lower max_model_len"
        )
    return num_blocks


def _check_size(name: str, size: Any) -> None:
    if type(size) is not int or not 1 <= size < 2**31:
        raise ModelError(f"{name} of a KV cache must be an integer from 1 to 2**31 - 1, got {size!r}")
