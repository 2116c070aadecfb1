"""Whose KV does each slot hold? A shadow of the KV cache, one digest of a token prefix for every slot.

The device runs steps in the order in which they were dispatched, and they return in that order, so a step's
writes are put into the shadow when it returns: then the tokens it computed are known. What it read is looked
at just before: every slot below its first position must hold the KV of the request's own tokens, whoever
wrote it. Slots that were seen to be right are not looked at again, as any later write to them is a violation
of its own (`draftproof.impl.attach.vllm.blocks`).

A digest is Python's hash of the digest before and the token: it tells honest prefixes apart, and is no
defence against chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from draftproof.impl.attach.vllm.watched import Chunk, Life

NEVER, UNKNOWN_TOKEN = -1, -1


class Mismatch(NamedTuple):
    """A slot that does not hold what its reader believes."""

    position: int
    block_id: int
    token_id: int
    """The token whose KV is there; -1 if nobody knows, or nothing was ever written there."""
    written: bool


def chain(digest: int, token_ids: Sequence[int]) -> list[int]:
    """The digests after each of the tokens, from the digest before them."""
    found = []
    for token_id in token_ids:
        digest = hash((digest, token_id))
        found.append(digest)
    return found


class Shadow:
    """The digests of all slots that were written since the watch began."""

    def __init__(self, block_size: int, *, complete: bool) -> None:
        self.block_size = block_size
        self.complete = complete
        """Whether the watch began with the engine: then a slot that is not known was never written."""
        self._digests: dict[int, list[int | None]] = {}
        self._token_ids: dict[int, list[int]] = {}
        self._num_rejected = 0

    def write(
        self, table: Sequence[Any], start: int, digests: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        """A step has written these positions into the blocks of a table; what lies beyond it is nowhere."""
        size = self.block_size
        place = 0
        while place < len(digests):
            index, offset = divmod(start + place, size)
            if index >= len(table):
                return
            count = min(size - offset, len(digests) - place)
            block_id = table[index].block_id
            slots = self._digests.get(block_id)
            if slots is None:
                slots = self._digests[block_id] = [None] * size
                self._token_ids[block_id] = [UNKNOWN_TOKEN] * size
            slots[offset : offset + count] = digests[place : place + count]
            self._token_ids[block_id][offset : offset + count] = token_ids[place : place + count]
            place += count

    def forget(self, table: Sequence[Any], end: int) -> None:
        """Somebody else may have written what is there before position `end`."""
        self.complete = False
        for block in table[: -(-end // self.block_size)]:
            self._digests.pop(block.block_id, None)

    def mismatch(self, table: Sequence[Any], start: int, expected: Sequence[int]) -> Mismatch | None:
        """The first position from `start` on whose slot does not hold the expected digest."""
        size = self.block_size
        place = 0
        while place < len(expected):
            index, offset = divmod(start + place, size)
            if index >= len(table):
                return Mismatch(start + place, NEVER, UNKNOWN_TOKEN, written=False)
            count = min(size - offset, len(expected) - place)
            block_id = table[index].block_id
            slots = self._digests.get(block_id)
            found: Sequence[int | None] = [None] * size if slots is None else slots
            if found[offset : offset + count] != expected[place : place + count]:
                for step in range(count):
                    slot = found[offset + step]
                    if slot != expected[place + step] and (self.complete or slot is not None):
                        token_id = (
                            UNKNOWN_TOKEN if slots is None else self._token_ids[block_id][offset + step]
                        )
                        return Mismatch(start + place + step, block_id, token_id, written=slot is not None)
            place += count
        return None

    def unlike_any(self, count: int) -> list[int]:
        """Digests of rejected drafts, which asynchronously nobody on the host knows: equal to no other."""
        self._num_rejected += count
        return [-(2**62) - self._num_rejected + place for place in range(count)]

    def returned(
        self, life: Life, chunk: Chunk | None, num_tokens: int, sampled: Sequence[int], drafts: Sequence[int]
    ) -> None:
        """Put what a step has written into the shadow, and move the device's sequence on.

        `drafts`: the proposals where the host knows them, for what a mismatch says.
        """
        if chunk is not None:
            self.write(life.table, chunk.start, chunk.digests, chunk.token_ids)
            if not sampled:
                return
            life.num_device_tokens = chunk.start + num_tokens
            life.digest = chunk.digests[-1]
        else:
            accepted = chain(life.digest, sampled[:-1])
            num_rejected = num_tokens - 1 - len(accepted)
            rejected = list(drafts[len(accepted) :])[:num_rejected]
            rejected += [UNKNOWN_TOKEN] * (num_rejected - len(rejected))
            self.write(
                life.table,
                life.num_device_tokens - 1,
                [life.digest, *accepted, *self.unlike_any(num_rejected)],
                [life.token_id, *sampled[:-1], *rejected],
            )
        for token_id in sampled:
            life.digest = hash((life.digest, token_id))
        if sampled:
            life.token_id = sampled[-1]
        life.num_device_tokens += len(sampled)
