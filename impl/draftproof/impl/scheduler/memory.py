"""How does a scheduler's memory begin? Sized from the configuration, all blocks free, all rows unused."""

from __future__ import annotations

import contextlib
import functools
import mmap
import secrets
from typing import Any

import numpy as np

from draftproof.impl import pool
from draftproof.impl.digest import block_digest, signed
from draftproof.impl.scheduler.config import KINDS, ConfigError, KVGroup, SchedulerConfig
from draftproof.impl.scheduler.kv_events import initialise
from draftproof.impl.scheduler.layout import (
    NUM_IDLE,
    NUM_SETTINGS,
    Settings,
    memory_sizes,
    recurrent_memory_size,
    views,
)


def hash_key(config: SchedulerConfig) -> tuple[int, int]:
    """The cache's key, two signed words: drawn, or derived from the seed."""
    if config.hash_seed is None:
        return signed(secrets.randbits(64)), signed(secrets.randbits(64))
    words = [config.hash_seed >> 32 * place & 0xFFFFFFFF for place in range(4)]
    return block_digest(0, 0, 0, 0, words, len(words))


@functools.lru_cache(maxsize=1024)
def salt_words(key_first: int, key_second: int, cache_salt: str) -> tuple[int, int]:
    """The parent of a salted request's first block: requests with different salts share nothing."""
    if not cache_salt:
        return 0, 0
    data = list(cache_salt.encode("utf-8", "surrogatepass"))
    return block_digest(key_first, key_second, -1, -1, data, len(data))


def settings_for(config: SchedulerConfig, num_kv_events: int) -> Settings:
    """The configuration as integers."""
    block_sizes = [group.block_size for group in config.groups]
    hash_lookahead = config.num_prefill_lookahead_tokens if config.lookahead == "hash" else 0
    attention = [group.block_size for group in config.groups if group.kind != "recurrent"]
    # A row publishes what one step and the output before it complete, and what the fence had kept back.
    per_row = 1 + config.num_speculative_tokens + config.registration_fence + config.rules_block_size
    num_published = sum(
        config.max_num_batched_tokens // size + config.max_num_seqs * (per_row // size + 2)
        for size in block_sizes
    )
    key_first, key_second = hash_key(config)
    return Settings(
        num_rows=config.max_num_requests,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_step_tokens=config.long_prefill_token_threshold or config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        num_blocks=config.num_blocks,
        num_chains=1 << (config.num_blocks.bit_length() - 1),
        rules_block_size=config.rules_block_size,
        hash_block_size=config.hash_block_size,
        num_groups=len(config.groups),
        max_blocks=max(table_width(config, group) for group in config.groups),
        # A state is known by the tokens of its last hash block.
        pool_block_size=max([*attention, config.hash_block_size]) + hash_lookahead,
        num_speculative_tokens=config.num_speculative_tokens,
        asynchronous=int(config.asynchronous),
        registration_fence=config.registration_fence,
        max_in_flight_steps=config.max_in_flight_steps,
        num_lookahead_tokens=config.num_lookahead_tokens,
        num_prefill_lookahead_tokens=config.num_prefill_lookahead_tokens,
        num_hash_lookahead_tokens=hash_lookahead,
        drops_block=int(config.drops_block),
        chunk_alignment=config.chunk_alignment,
        by_priority=int(config.policy == "priority"),
        caching=int(config.enable_prefix_caching),
        drop_stale_output=int(config.drop_stale_output),
        release_at_once=int(config.release == "at_once"),
        max_stop_token_ids=config.max_stop_token_ids,
        vocab_size=config.vocab_size,
        max_num_published=num_published,
        num_kv_events=num_kv_events,
        key_first=key_first,
        key_second=key_second,
        num_recurrent_groups=sum(group.kind == "recurrent" for group in config.groups),
    )


def table_width(config: SchedulerConfig, group: KVGroup) -> int:
    """Blocks of one row in the group's table: all of the longest request's, or working slots and targets."""
    if group.kind == "recurrent":
        return 1 + config.num_speculative_tokens + config.max_model_len // group.block_size
    return -(-config.max_model_len // group.block_size)


MOST_BYTES_WRITTEN = 2**28
"""Of what a scheduler starts with: long token tables of many rows are hardly ever used to their ends."""


def zeros(num_cells: int, dtype: Any) -> Any:
    """So many zeros from the beginning of a page on, on huge pages where Linux has them.

    The first of them are written, not only asked for: else a step would wait for the operating system at each
    page it is the first to touch, up to a tenth of a millisecond. Raises ConfigError if they cannot be had.
    """
    num_bytes = max(num_cells, 1) * np.dtype(dtype).itemsize
    # Private: a process that is forked has a scheduler of its own.
    private: dict[str, Any] = {}
    if hasattr(mmap, "MAP_PRIVATE"):
        private["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, num_bytes, **private)
    except (OSError, OverflowError, ValueError) as problem:
        raise ConfigError(
            f"{num_bytes:,} bytes for the scheduler's state cannot be had: lower max_num_requests, "
            "max_model_len or num_blocks"
        ) from problem
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype, num_cells)
    array[: MOST_BYTES_WRITTEN // array.itemsize].fill(0)
    return array


def new_memory(config: SchedulerConfig, settings: Settings) -> tuple[Any, Any, Any]:
    """The arrays of a scheduler that knows no request yet: int64, int32, and int64 for recurrent groups, None
    without them."""
    size64, size32 = memory_sizes(settings)
    memory64, memory32 = zeros(size64, np.int64), zeros(size32, np.int32)
    memory64[:NUM_SETTINGS] = settings
    recurrent_memory = None
    if settings.num_recurrent_groups > 0:
        recurrent_memory = np.zeros(recurrent_memory_size(settings), np.int64)
    state = views(memory64, memory32, recurrent_memory)
    if state.recurrent is not None:
        state.recurrent.published_in_step[:] = -1
    nodes, blocks = np.arange(state.pool.next_in_chain.size), np.arange(settings.num_blocks + 1)
    for chain in (state.pool.previous_in_chain, state.pool.next_in_chain):
        chain[:] = pool.initial_in_chain(nodes, settings.num_blocks)  # type: ignore[arg-type]
    state.pool.previous_free[:] = pool.initial_previous_free(blocks, settings.num_blocks)  # type: ignore[arg-type]
    state.pool.next_free[:] = pool.initial_next_free(blocks, settings.num_blocks)  # type: ignore[arg-type]
    state.pool.num_free_blocks[0] = settings.num_blocks
    initialise(state.kv_events, settings.pool_block_size)
    for place, group in enumerate(config.groups):
        state.groups.kind[place] = KINDS[group.kind]
        state.groups.block_size[place] = group.block_size
        state.groups.window[place] = group.window
        state.groups.num_hashes[place] = group.block_size // config.hash_block_size
    # The sentinel of the waiting ring is the node after the last row.
    state.queues.previous_waiting[settings.num_rows] = settings.num_rows
    state.queues.next_waiting[settings.num_rows] = settings.num_rows
    state.queues.idle[:] = np.arange(settings.num_rows)[::-1]
    state.counts[NUM_IDLE] = settings.num_rows
    return memory64, memory32, recurrent_memory
