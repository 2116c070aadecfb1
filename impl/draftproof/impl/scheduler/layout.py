"""Where does the scheduler keep everything? In two blocks of memory, int64 and int32, seen as named arrays.

Two arrays cross from Python into compiled code instead of fifty: each one costs there. A third is there for
recurrent groups; without them it is None, and code that asks for it first is not even compiled. `views` lays
the named arrays over the memory, in Python once and in compiled code at every call. Interpreted code works on
memoryviews of the same arrays, which give Python integers: the same functions, the same bytes.

One row is one request. Counts are tokens unless said; `g` groups, `r` rows, `n` blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.impl.ledger_table import NUM_LINES, padded
from draftproof.impl.scheduler.kv_events import buffer_size
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ledger import Rules
from draftproof.spec.pool import Pool
from draftproof.spec.recurrent import Recurrent


class Settings(NamedTuple):
    """The configuration as integers, in the order in which they lie at the start of the memory."""

    num_rows: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_step_tokens: int
    """What one request may get of a step: `long_prefill_token_threshold`, or the whole budget."""
    max_model_len: int
    num_blocks: int
    num_chains: int
    rules_block_size: int
    hash_block_size: int
    num_groups: int
    max_blocks: int
    """Blocks of one row in a group's table."""
    pool_block_size: int
    """Tokens that a block's row in the pool has room for."""
    num_speculative_tokens: int
    asynchronous: int
    registration_fence: int
    max_in_flight_steps: int
    num_lookahead_tokens: int
    num_prefill_lookahead_tokens: int
    num_hash_lookahead_tokens: int
    """Tokens behind a block that its digest covers too."""
    drops_block: int
    chunk_alignment: int
    by_priority: int
    caching: int
    drop_stale_output: int
    release_at_once: int
    max_stop_token_ids: int
    vocab_size: int
    max_num_published: int
    """Room for the blocks that one step publishes."""
    num_kv_events: int
    """Room for KV events between two readings; 0 for no stream."""
    key_first: int
    key_second: int
    num_recurrent_groups: int


NUM_SETTINGS = len(Settings._fields)

NUM_RUNNING, NUM_WAITING, NUM_IDLE, NUM_ARRIVED, NUM_DISPATCHED, NUM_SETTLED = range(6)
"""Indices of `State.counts`: rows running, waiting, unused; requests ever added; steps ever dispatched and
settled. The difference of the last two is what is in flight."""
(
    TOTAL_LOOKED_UP_TOKENS,
    TOTAL_HIT_TOKENS,
    TOTAL_PREEMPTIONS,
    TOTAL_DRAFTS,
    TOTAL_ACCEPTED_DRAFTS,
    TOTAL_KEPT_TOKENS,
    TOTAL_STOPPED,
) = range(6, 13)
CLEARED_AT = 13
"""Index: steps dispatched before the cache was last emptied."""
"""Further indices: what happened since the start, over all requests (`statistics`)."""
NUM_COUNTS = 16
BLOCK_CELLS = 8
"""Cells for each block of the pool: what is kept of it, but for its links in the index, is one line of the
processor's cache: the memory starts with one, and what comes before the blocks fills whole lines. Six are
used. The links, two cells a node, are apart: a sentinel has nothing else."""
NUM_METRICS = len(Metrics._fields)
NUM_COLUMNS = 18
"""Lines of `Requests` that are int64[r]."""
NUM_RECORD_FIELDS = len(Recurrent._fields)


class Requests(NamedTuple):
    """One row for each request: int64[r] unless said."""

    ledgers: Any
    """int64[lines, >= r], see `draftproof.impl.ledger_table`."""
    metrics: Any
    """int64[fields of `Metrics`, >= r]"""
    max_num_tokens: Any
    """N at which the request stops."""
    min_num_tokens: Any
    """N below which no stop token counts."""
    eos_token_id: Any
    """-1 for none."""
    num_stop_token_ids: Any
    resumable: Any
    """1 for a session: a stop ends its turn."""
    priority: Any
    arrival: Any
    num_awaited_outputs: Any
    """Live steps in flight that sample."""
    was_in_prefill: Any
    """1 if the row's last step was a prefill chunk."""
    num_invalid_drafts: Any
    """Of the drafts that wait, how many are certain to be rejected."""
    paused_at: Any
    """Steps settled before the row's last turn ended."""
    started_at: Any
    """The step with which the row's present life began."""
    num_hashed_blocks: Any
    """Leading hash blocks whose digest is known."""
    finish_reason: Any
    max_tokens: Any
    """Output tokens of one turn at most, for the next chunk of a session."""
    min_tokens: Any
    salt_first: Any
    """Parent of the first block: the digest of the request's cache salt, 0 without."""
    salt_second: Any
    digest_first: Any
    """int64[r, hash blocks]: digest of all tokens up to the end of a hash block."""
    digest_second: Any
    token_ids: Any
    """int32[r, >= max_model_len]"""
    draft_token_ids: Any
    """int32[r, >= K]"""
    stop_token_ids: Any
    """int32[r, >= max_stop_token_ids]"""


class Tables(NamedTuple):
    """Which blocks a row holds."""

    num_blocks: Any
    """int64[g, r]"""
    block_ids: Any
    """int32[g, r, >= max_blocks]; 0 where nothing is needed any more (the null block)."""


class Groups(NamedTuple):
    """The KV cache groups: int64[g]."""

    kind: Any
    block_size: Any
    window: Any
    num_hashes: Any
    """Hash blocks in one of the group's blocks; of recurrent groups, in what one state covers."""


class Queues(NamedTuple):
    """Which rows run, wait, or are unused."""

    running: Any
    """int64[r], in the order in which they are served."""
    previous_waiting: Any
    """int64[r + 1]: a ring through the waiting rows; row r is its sentinel."""
    next_waiting: Any
    idle: Any
    """int64[r], a stack."""


class RecurrentRows(NamedTuple):
    """What the scheduler keeps for recurrent groups."""

    records: Any
    """int64[NUM_RECORD_FIELDS, >= r]: `draftproof.spec.recurrent.Recurrent`"""
    published_in_step: Any
    """int64[n + 1]: the last step dispatched when a state was published; -1 for other blocks."""


class State(NamedTuple):
    """Everything."""

    settings: Settings
    rules: Rules
    counts: Any
    """int64[NUM_COUNTS]"""
    requests: Requests
    tables: Tables
    groups: Groups
    queues: Queues
    pool: Pool
    window: Any
    """int32[pool_block_size]: the tokens of the block at hand."""
    kv_events: Any
    """What `draftproof.impl.scheduler.kv_events` notes."""
    recurrent: RecurrentRows | None
    """None without recurrent groups."""


def wide(cell: int) -> int:
    """A cell of 32 bits as a number of 64: compiled code is made anew for each width of its arguments."""
    return cell + 0


def settings_of(memory64: Any) -> Settings:
    """The settings at the start of the memory."""
    return Settings(
        memory64[0], memory64[1], memory64[2], memory64[3], memory64[4], memory64[5],
        memory64[6], memory64[7], memory64[8], memory64[9], memory64[10], memory64[11],
        memory64[12], memory64[13], memory64[14], memory64[15], memory64[16], memory64[17],
        memory64[18], memory64[19], memory64[20], memory64[21], memory64[22], memory64[23],
        memory64[24], memory64[25], memory64[26], memory64[27], memory64[28], memory64[29],
        memory64[30], memory64[31],
    )  # fmt: skip


def max_hash_blocks(settings: Settings) -> int:
    """Hash blocks of the longest request, padded."""
    return padded(settings.max_model_len // settings.hash_block_size + 1)


def num_nodes(settings: Settings) -> int:
    """Nodes of the prefix index: the null block, the blocks, and the sentinels."""
    return settings.num_blocks + 1 + settings.num_chains


def memory_sizes(settings: Settings) -> tuple[int, int]:
    """How many int64 and int32 cells `views` lays its arrays over."""
    rows, stride, blocks = settings.num_rows, padded(settings.num_rows), settings.num_blocks + 1
    cells64 = (
        *(NUM_SETTINGS, NUM_COUNTS),
        BLOCK_CELLS * blocks + 2 * num_nodes(settings),
        (NUM_LINES + NUM_METRICS + NUM_COLUMNS + settings.num_groups) * stride,
        2 * rows * max_hash_blocks(settings),
        4 * settings.num_groups,
        *(rows, 2 * (rows + 1), rows),
        1,
        buffer_size(settings.num_kv_events, settings.pool_block_size),
    )
    cells32 = (
        (blocks + 1) * settings.pool_block_size,
        rows * padded(settings.max_model_len),
        rows * padded(settings.num_speculative_tokens),
        rows * padded(settings.max_stop_token_ids),
        settings.num_groups * rows * padded(settings.max_blocks),
    )
    return sum(cells64), sum(cells32)


def recurrent_memory_size(settings: Settings) -> int:
    """How many int64 cells `recurrent_views` lays its arrays over."""
    return NUM_RECORD_FIELDS * padded(settings.num_rows) + settings.num_blocks + 1


def recurrent_views(memory: Any, settings: Settings) -> RecurrentRows | None:
    """The named arrays of recurrent groups; None without them."""
    if memory is None:
        return None
    num_cells = NUM_RECORD_FIELDS * padded(settings.num_rows)
    records = memory[:num_cells].reshape(NUM_RECORD_FIELDS, padded(settings.num_rows))
    return RecurrentRows(records, memory[num_cells : num_cells + settings.num_blocks + 1])


def views(memory64: Any, memory32: Any, recurrent_memory: Any) -> State:
    """The named arrays over the memory. Runs in Python on numpy arrays, and compiled."""
    settings = settings_of(memory64)
    rows, groups, blocks = settings.num_rows, settings.num_groups, settings.num_blocks + 1
    stride, hashes, nodes = padded(rows), max_hash_blocks(settings), num_nodes(settings)
    place = NUM_SETTINGS
    counts = memory64[place : place + NUM_COUNTS]
    place += NUM_COUNTS
    of_blocks = memory64[place : place + BLOCK_CELLS * blocks].reshape(blocks, BLOCK_CELLS)
    place += BLOCK_CELLS * blocks
    links = memory64[place : place + 2 * nodes].reshape(nodes, 2)
    place += 2 * nodes
    num_lines = NUM_LINES + NUM_METRICS + NUM_COLUMNS + groups
    lines = memory64[place : place + num_lines * stride].reshape(num_lines, stride)
    place += num_lines * stride
    columns = lines[NUM_LINES + NUM_METRICS : num_lines - groups]
    digests = memory64[place : place + 2 * rows * hashes].reshape(2 * rows, hashes)
    place += 2 * rows * hashes
    kind = memory64[place : place + groups]
    block_size = memory64[place + groups : place + 2 * groups]
    group_window = memory64[place + 2 * groups : place + 3 * groups]
    num_hashes = memory64[place + 3 * groups : place + 4 * groups]
    place += 4 * groups
    running = memory64[place : place + rows]
    place += rows
    previous_waiting = memory64[place : place + rows + 1]
    next_waiting = memory64[place + rows + 1 : place + 2 * (rows + 1)]
    place += 2 * (rows + 1)
    idle = memory64[place : place + rows]
    place += rows
    num_free = memory64[place : place + 1]
    place += 1
    kv_events = memory64[place : place + buffer_size(settings.num_kv_events, settings.pool_block_size)]
    length, drafts = padded(settings.max_model_len), padded(settings.num_speculative_tokens)
    stops, width = padded(settings.max_stop_token_ids), padded(settings.max_blocks)
    size = settings.pool_block_size
    pool_token_ids = memory32[: blocks * size].reshape(blocks, size)
    window = memory32[blocks * size : (blocks + 1) * size]
    place = (blocks + 1) * size
    token_ids = memory32[place : place + rows * length].reshape(rows, length)
    place += rows * length
    draft_token_ids = memory32[place : place + rows * drafts].reshape(rows, drafts)
    place += rows * drafts
    stop_token_ids = memory32[place : place + rows * stops].reshape(rows, stops)
    place += rows * stops
    block_ids = memory32[place : place + groups * rows * width].reshape(groups, rows, width)
    return State(
        settings=settings,
        rules=Rules(
            num_speculative_tokens=settings.num_speculative_tokens,
            block_size=settings.rules_block_size,
            asynchronous=settings.asynchronous != 0,
            registration_fence=settings.registration_fence,
        ),
        counts=counts,
        requests=Requests(
            ledgers=lines[:NUM_LINES],
            metrics=lines[NUM_LINES : NUM_LINES + NUM_METRICS],
            max_num_tokens=columns[0],
            min_num_tokens=columns[1],
            eos_token_id=columns[2],
            num_stop_token_ids=columns[3],
            resumable=columns[4],
            priority=columns[5],
            arrival=columns[6],
            num_awaited_outputs=columns[7],
            was_in_prefill=columns[8],
            num_invalid_drafts=columns[9],
            num_hashed_blocks=columns[10],
            finish_reason=columns[11],
            max_tokens=columns[12],
            min_tokens=columns[13],
            salt_first=columns[14],
            salt_second=columns[15],
            paused_at=columns[16],
            started_at=columns[17],
            digest_first=digests[:rows],
            digest_second=digests[rows:],
            token_ids=token_ids,
            draft_token_ids=draft_token_ids,
            stop_token_ids=stop_token_ids,
        ),
        tables=Tables(lines[num_lines - groups :], block_ids),
        groups=Groups(kind, block_size, group_window, num_hashes),
        queues=Queues(running, previous_waiting, next_waiting, idle),
        pool=Pool(
            ref_count=of_blocks[:, 0],
            previous_free=of_blocks[:, 1],
            next_free=of_blocks[:, 2],
            num_free_blocks=num_free,
            previous_in_chain=links[:, 0],
            next_in_chain=links[:, 1],
            digest_first=of_blocks[:, 3],
            digest_second=of_blocks[:, 4],
            num_tokens=of_blocks[:, 5],
            token_ids=pool_token_ids,
        ),
        window=window,
        kv_events=kv_events,
        recurrent=recurrent_views(recurrent_memory, settings),
    )


def interpreted(value: Any) -> Any:
    """The same structure over memoryviews, whose elements are Python integers."""
    if isinstance(value, tuple):
        return type(value)(*[interpreted(part) for part in value])
    if hasattr(value, "dtype"):
        return memoryview(value) if value.ndim > 0 else value.item()
    return value
