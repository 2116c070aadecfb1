"""What do routers get to know about the prefix cache? Blocks stored and removed, in the shape they know.

An optional stream. The scheduler notes what happens in a buffer of int64 words: four for all, then for each
event eight and, behind them, the tokens of the block that was stored. The block itself may be in other use
before anybody reads. `read` empties the buffer and gives objects under the names of vLLM's events
(`vllm/distributed/kv_events.py`): `BlockStored`, `BlockRemoved`, `AllBlocksCleared`.

Nothing is lost in silence. What finds no room is counted, and the batch in which that happened ends with
`AllBlocksCleared`: a router then forgets what it knew, instead of believing what may have changed. Every
batch also carries the number of its first event, so that a lost batch shows as a gap.

A block's hash is its digest as 16 bytes, the first word before the second, both little endian. Routers
compare hashes of several engines, so these must share a seed (`SchedulerConfig.hash_seed`).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

STORED, REMOVED, CLEARED = 1, 2, 3

NUM_EVENTS, NUM_LOST, SEQUENCE, ROOM_FOR_TOKENS = range(4)
"""The words for all: events in the buffer, events that found no room, events ever read or lost before these,
and how many tokens an event has room for."""
NUM_HEADER_WORDS = 4

KIND, BLOCK, DIGEST_FIRST, DIGEST_SECOND, PARENT_FIRST, PARENT_SECOND, GROUP, NUM_TOKENS = range(8)
"""The words of an event. The parent of a sequence's first block is 0, 0."""
NUM_EVENT_WORDS = 8


def buffer_size(num_events: int, block_size: int) -> int:
    """How many words a buffer for that many events has, with blocks of up to `block_size` tokens."""
    return NUM_HEADER_WORDS + num_events * (NUM_EVENT_WORDS + block_size)


def initialise(events: Any, block_size: int) -> None:
    """Make an empty buffer of zeros, int64[buffer_size(...)]. A buffer of zeros alone keeps no tokens."""
    events[ROOM_FOR_TOKENS] = block_size


def place_of(events: Any, number: int) -> int:
    """Where the words of an event start; beyond the last place there is no room for it."""
    return NUM_HEADER_WORDS + number * (NUM_EVENT_WORDS + events[ROOM_FOR_TOKENS])  # type: ignore[no-any-return]


def note(
    events: Any,
    kind: int,
    block: int,
    first: int,
    second: int,
    parent_first: int,
    parent_second: int,
    group: int,
) -> None:
    """Append an event, or count it as lost when the buffer is full. Runs interpreted and compiled."""
    place = place_of(events, events[NUM_EVENTS])
    if place_of(events, events[NUM_EVENTS] + 1) > events.shape[0]:
        events[NUM_LOST] += 1
        return
    events[place + KIND] = kind
    events[place + BLOCK] = block
    events[place + DIGEST_FIRST] = first
    events[place + DIGEST_SECOND] = second
    events[place + PARENT_FIRST] = parent_first
    events[place + PARENT_SECOND] = parent_second
    events[place + GROUP] = group
    events[place + NUM_TOKENS] = 0
    events[NUM_EVENTS] += 1


def note_tokens(events: Any, token_ids: Any, row: int, start: int, count: int) -> None:
    """Add the tokens `start` to `start + count` of a row to the event noted last, unless it found no room."""
    if events[NUM_LOST] > 0:
        return
    place = place_of(events, events[NUM_EVENTS] - 1)
    for offset in range(min(count, events[ROOM_FOR_TOKENS])):
        events[place + NUM_EVENT_WORDS + offset] = token_ids[row, start + offset]
        events[place + NUM_TOKENS] = offset + 1


@dataclass(frozen=True)
class BlockStored:
    """These blocks, each the next one's parent, can be hit from now on. Counts are tokens."""

    block_hashes: tuple[bytes, ...]
    parent_block_hash: bytes | None
    """The block before the first of these; None at the start of a sequence."""
    token_ids: tuple[int, ...]
    """Of all these blocks, in their order."""
    block_size: int
    lora_id: int | None = None
    """There are no adapters here yet."""
    medium: str = "GPU"
    group_idx: int = 0
    """The KV cache group. Equal tokens have different hashes in different groups."""


@dataclass(frozen=True)
class BlockRemoved:
    """No copy of these blocks can be hit any more."""

    block_hashes: tuple[bytes, ...]
    medium: str = "GPU"


@dataclass(frozen=True)
class AllBlocksCleared:
    """Nothing that was stored before can be relied on."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True)
class KVEventBatch:
    """What happened since the last reading."""

    ts: float
    """Seconds since 1970."""
    events: tuple[KVCacheEvent, ...]
    sequence: int
    """How many single events, of one block each, were noted before these, lost ones included."""
    num_lost: int
    """Events after these that found no room; then the last event is `AllBlocksCleared`."""


def block_hash(first: int, second: int) -> bytes:
    """A digest's two signed words as 16 bytes."""
    return first.to_bytes(8, "little", signed=True) + second.to_bytes(8, "little", signed=True)


def read(events: Any, ts: float | None = None) -> KVEventBatch:
    """Take all events out of the buffer. `ts` is the time to put on the batch, by default now."""
    num_lost, sequence = int(events[NUM_LOST]), int(events[SEQUENCE])
    num_events = int(events[NUM_EVENTS])
    found: list[KVCacheEvent] = []
    for number in range(num_events):
        start, end = int(place_of(events, number)), int(place_of(events, number + 1))
        event = _event([int(word) for word in events[start:end]])
        joined = _joined(found[-1], event) if found else None
        found[len(found) - (joined is not None) :] = [joined or event]
    if num_lost > 0:
        found.append(AllBlocksCleared())
    events[NUM_EVENTS] = events[NUM_LOST] = 0
    events[SEQUENCE] = sequence + num_events + num_lost
    return KVEventBatch(time.time() if ts is None else ts, tuple(found), sequence, num_lost)


def _event(words: list[int]) -> KVCacheEvent:
    """One event as an object."""
    hashes = (block_hash(words[DIGEST_FIRST], words[DIGEST_SECOND]),)
    if words[KIND] == REMOVED:
        return BlockRemoved(hashes)
    if words[KIND] == CLEARED:
        return AllBlocksCleared()
    parent = words[PARENT_FIRST], words[PARENT_SECOND]
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if parent == (0, 0) else block_hash(*parent),
        token_ids=tuple(words[NUM_EVENT_WORDS : NUM_EVENT_WORDS + words[NUM_TOKENS]]),
        block_size=words[NUM_TOKENS],
        group_idx=words[GROUP],
    )


def _joined(last: KVCacheEvent, event: KVCacheEvent) -> KVCacheEvent | None:
    """Both as one event, if they say the same of blocks that follow each other; else None."""
    if isinstance(last, BlockRemoved) and isinstance(event, BlockRemoved):
        return BlockRemoved(last.block_hashes + event.block_hashes)
    if (
        isinstance(last, BlockStored)
        and isinstance(event, BlockStored)
        and event.parent_block_hash == last.block_hashes[-1]
        and (event.group_idx, event.block_size) == (last.group_idx, last.block_size)
    ):
        return BlockStored(
            block_hashes=last.block_hashes + event.block_hashes,
            parent_block_hash=last.parent_block_hash,
            token_ids=last.token_ids + event.token_ids,
            block_size=last.block_size,
            group_idx=last.group_idx,
        )
    return None


def as_json(batch: KVEventBatch) -> str:
    """The batch on one line: each event an object with its `type`, hashes in hexadecimal digits."""

    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else value

    events = []
    for event in batch.events:
        fields = {
            name: [plain(part) for part in value] if isinstance(value, tuple) else plain(value)
            for name, value in asdict(event).items()
        }
        events.append({"type": type(event).__name__, **fields})
    return json.dumps({**asdict(batch), "events": events}, separators=(",", ":"))
