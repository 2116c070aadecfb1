"""What can be wrong with a scheduler's state, in words? Every check by name, with its theorem."""

from __future__ import annotations

from typing import NamedTuple

from draftproof.impl.pool_checks import PROBLEMS as POOL_SENTENCES
from draftproof.impl.scheduler import queue_sweep, sweep


class Check(NamedTuple):
    """A named check."""

    name: str
    theorem: str
    """The theorem whose subject it is, or `queues`, `tables`, `records` where none speaks about it."""
    sentence: str


class Problem(NamedTuple):
    """A check that failed, and where."""

    check: Check
    row: int = -1
    block: int = -1


_QUEUES = {
    queue_sweep.QUEUE_COUNT: Check(
        "queue_count", "queues", "a queue does not hold as many rows as are counted"
    ),
    queue_sweep.QUEUE_ENTRY: Check("queue_entry", "queues", "a queue holds what is no row"),
    queue_sweep.TWO_QUEUES: Check("two_queues", "queues", "the row is in two queues, or twice in one"),
    queue_sweep.IDLE_ROW_IN_USE: Check(
        "idle_row_in_use", "queues", "an unused row has tokens, work or blocks"
    ),
    queue_sweep.RUNNING_STATUS: Check(
        "running_status", "queues", "a row in the list of running ones is not running"
    ),
    queue_sweep.WAITING_STATUS: Check(
        "waiting_status", "queues", "a row in the ring of waiting ones is neither waiting nor preempted"
    ),
    queue_sweep.WAITING_LINKS: Check(
        "waiting_links", "queues", "the ring of waiting rows does not link back"
    ),
    queue_sweep.WAITING_ORDER: Check("waiting_order", "queues", "a waiting row is out of turn"),
    queue_sweep.NO_QUEUE: Check(
        "no_queue", "queues", "the row is in no queue, and neither paused nor leaving"
    ),
}
_TABLES = {
    sweep.TABLE_LENGTH: Check("table_length", "tables", "a block table is longer than there is room"),
    sweep.TABLE_ENTRY: Check("table_entry", "tables", "a block table holds what is no block"),
    sweep.NULL_BLOCK: Check("null_block", "P1", "a block that is still read is the null block"),
    sweep.HELD_TWICE: Check("held_twice", "P2", "the row holds one block in two places"),
    sweep.HELD_WITHOUT_KV: Check(
        "held_without_kv", "T10", "the row counts nothing as computed and holds blocks"
    ),
    sweep.TOO_FEW_BLOCKS: Check(
        "too_few_blocks", "T10", "the row's blocks do not cover what it counts as computed"
    ),
    sweep.REFERENCE_COUNT: Check("reference_count", "P2", "the reference count is not the number of owners"),
    sweep.PUBLISHED_EMPTY: Check("published_empty", "P6", "a published block holds no tokens"),
}
_CONTENTS = {
    sweep.UNKNOWN_TOKEN: Check(
        "unknown_token", "records", "a known token is outside the vocabulary, or none is known"
    ),
    sweep.HASHED_TOO_FAR: Check("hashed_too_far", "P6", "digests of unknown tokens are kept"),
    sweep.DIGEST: Check("digest", "P6", "a digest is not that of the row's tokens"),
    sweep.CONTENT_BEYOND_KNOWN: Check(
        "content_beyond_known", "T3", "a block holds more tokens than the row knows"
    ),
    sweep.CONTENT_TOKENS: Check("content_tokens", "P3", "a block does not hold the row's tokens"),
    sweep.CONTENT_DIGEST: Check("content_digest", "P6", "a block's digest is not the row's"),
    sweep.REGISTERED_NOT_HELD: Check(
        "registered_not_held", "T3", "more is registered than the row holds blocks for"
    ),
    sweep.REGISTERED_NOT_WRITTEN: Check(
        "registered_not_written", "T4", "a block counts as registered and was never published"
    ),
    sweep.PUBLISHED_TOO_FAR: Check(
        "published_too_far", "T3", "a block is published that does not count as registered"
    ),
}
_POOL_NAMES = (
    ("fine", ""),
    ("reference_count", "P2"),
    ("free_count", "P1"),
    ("free_list_entry", "P1"),
    ("free_list_links", "P1"),
    ("free_list_incomplete", "P1"),
    ("chain_entry", "P4"),
    ("chain_links", "P4"),
    ("chain_incomplete", "P4"),
    ("null_block_in_use", "P1"),
    ("too_many_tokens", "memory"),
)
_POOL = {
    sweep.POOL + number: Check(name, theorem, sentence)
    for number, ((name, theorem), sentence) in enumerate(zip(_POOL_NAMES, POOL_SENTENCES, strict=True))
}

BY_NUMBER: dict[int, Check] = _QUEUES | _TABLES | _CONTENTS | _POOL
"""What a sweep finds, by its number."""

STEP_OF_BATCH = Check("step_of_batch", "records", "a batch in flight is not that of its step")
ROWS_OF_BATCH = Check("rows_of_batch", "records", "a batch in flight names a row twice, or what is no row")
STEPS_IN_FLIGHT = Check(
    "steps_in_flight", "records", "more steps are in flight than may be, or fewer than none"
)
IN_FLIGHT_TOKENS = Check("in_flight_tokens", "T10", "F is not what the steps in flight hold of the row")
STALE_TOKENS = Check("stale_tokens", "T5", "S is not what the row's oldest steps in flight hold")
AWAITED_OUTPUTS = Check(
    "awaited_outputs", "T6", "the awaited outputs are not the live steps in flight that sample"
)
GHOSTS = Check("ghosts", "R1", "what the ghosts await is not what the steps in flight bring")
STOP_LEFT = Check("stop_left", "T14", "a stop was noted and not handled")
LENGTH_LIMIT = Check("length_limit", "records", "more tokens are known than the request may have")
LEAVING = Check("leaving", "T14", "a finished request still has drafts or live work")
INVALID_DRAFTS = Check("invalid_drafts", "records", "more drafts are certain to be rejected than wait")
METRICS = Check(
    "metrics", "records", "more drafts count as accepted than as verified, or a count is negative"
)
REQUEST_IDS = Check("request_ids", "records", "the ids that are known are not those of the live rows")
WAITING_CHUNKS = Check("waiting_chunks", "records", "chunks wait for a row that is no live session")

STRAY_WRITE = Check("stray_write", "records", "a ledger was changed, and no transition did it")
LOST_UPDATE = Check("lost_update", "records", "a ledger was overwritten that somebody had changed meanwhile")
REFUSED = Check("refused", "records", "a call that was refused has changed something")
BOUNDS = Check("bounds", "memory", "an index was outside its array")
CONTENT_CHANGED = Check("content_changed", "P3", "a block was written to while it was published")
WITHDRAWN = Check("withdrawn", "P6", "a block that somebody holds is published no more, and no step failed")
LOST = Check("lost", "T4", "a block that counts as registered was given back, and cannot be found")
FAILED_STEP = Check(
    "failed_step", "P6", "a step failed, and what was published at its dispatch can still be found"
)
EVICTION_ORDER = Check("eviction_order", "P7", "blocks are not in the order in which they are to be evicted")


def invariant(name: str) -> Check:
    """An invariant of the specification."""
    return Check(name, "invariant", "an invariant of the specification does not hold")
