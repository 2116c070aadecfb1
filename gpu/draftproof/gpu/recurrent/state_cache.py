"""Where do recurrent states lie? One in each block; block 0 is the null block, whose state stays zero.

Block ids are the scheduler's, and the same as the KV cache's: a block holds keys and values, or a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.gpu.attention.kv_cache import MAX_BYTES, NULL_BLOCK, chosen_blocks
from draftproof.gpu.errors import ModelError

STATE_DTYPE = torch.float32
"""A state takes in one token after another, and would take in their rounding too."""


class StateCache:
    """The states of every recurrent layer, for `num_blocks` blocks and the null block.

    `states` is float32[num_layers, num_blocks + 1, state_size], zero at first. Raises ModelError if a size is
    not a positive integer, or memory does not suffice.
    """

    def __init__(self, num_layers: int, num_blocks: int, state_size: int, device: Any = "cpu") -> None:
        block_bytes = bytes_per_block(num_layers, state_size)
        _check_size("num_blocks", num_blocks)
        size = (num_blocks + 1) * block_bytes
        if size > MAX_BYTES:
            raise ModelError(f"{num_blocks} recurrent states would take {size} bytes: lower num_blocks")
        try:
            self.states: Any = torch.zeros(
                (num_layers, num_blocks + 1, state_size), dtype=STATE_DTYPE, device=device
            )
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"no memory for {num_blocks} recurrent states ({size} bytes) on {device}: lower num_blocks"
            ) from error
        self.num_layers, self.num_blocks, self.state_size = num_layers, num_blocks, state_size
        self.device = self.states.device

    @property
    def num_bytes(self) -> int:
        """Bytes that all states take, the null block's included."""
        return int(self.states.numel()) * int(self.states.element_size())

    def copy_blocks(self, sources: Any, targets: Any) -> None:
        """Copy states in every layer: int64[n] each, on the cache's device. Only enqueues.

        All sources are read before a target is written. Targets differ from each other, but for pairs of
        null blocks, which may fill up the arrays.
        """
        self.states.index_copy_(1, targets, self.states.index_select(1, sources))

    def write(self, layer: int, targets: Any, states: Any) -> None:
        """Put states, float32[n, state_size], into blocks, int64[n]; those for the null block are dropped."""
        self.states[layer].index_copy_(0, targets, states)
        self.states[layer, NULL_BLOCK].zero_()

    def poison(self, block_ids: Sequence[int] | Any) -> None:
        """Fill blocks with NaN, so that whoever still reads them shows it. For debug mode, between steps.

        `block_ids` are integers on the host. The caller leaves out blocks that the prefix cache may still
        hand out. Raises IndexError for the null block, and for blocks that there are not.
        """
        chosen = chosen_blocks(block_ids, self.num_blocks, "poisoned")
        if not chosen:
            return
        self.states.index_fill_(1, torch.tensor(chosen, device=self.device), float("nan"))


def bytes_per_block(num_layers: int, state_size: int) -> int:
    """Bytes of one block's states in all layers. Raises ModelError for sizes that cannot be."""
    _check_size("num_layers", num_layers)
    _check_size("state_size", state_size)
    return int(num_layers * state_size * STATE_DTYPE.itemsize)


def _check_size(name: str, size: Any) -> None:
    if type(size) is not int or not 1 <= size < 2**31:
        raise ModelError(f"{name} of recurrent states must be an integer from 1 to 2**31 - 1, got {size!r}")
