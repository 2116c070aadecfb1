"""Which block does each request write into? Looked up when it changes, so that a step asks the blocks alone.

A request that decodes writes into the same block for many steps. Most steps write into blocks that have one
owner and are not published: that all of them are so is asked at once, and only if not, one by one.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from draftproof.impl.attach.vllm.kernel import FIRST_BLOCK, LAST_BLOCK
from draftproof.impl.attach.vllm.watched import Party

_owners_of, _hash_of = attrgetter("ref_cnt"), attrgetter("block_hash")
_ONE, _UNPUBLISHED = {1}, {None}


class Tails:
    """The last block that each request wrote into, by row of the reference ledgers."""

    def __init__(self) -> None:
        self.indices = np.full(72, -1, np.int64)
        """Where the block is in the request's table; -1 if that is not known."""
        self._blocks: list[Any] = [None] * 72
        self._party: Party | None = None
        self._of_party: list[Any] = []

    def forget(self, row: int) -> None:
        """The request has given its blocks back."""
        if row < self.indices.shape[0]:
            self.indices[row] = -1

    def suspects(self, party: Party, work: Any, moves_on: bool) -> list[int]:
        """Places of the requests whose written blocks must be looked at closely: not those that write into
        one block which is theirs alone and unpublished. `moves_on`: some write into another than before."""
        beyond = self._move_on(party, work) if moves_on else set()
        if moves_on or self._party is not party:
            self._party, self._of_party = party, [self._blocks[row] for row in party.rows.tolist()]
        blocks = self._of_party
        others = [block for place, block in enumerate(blocks) if place not in beyond] if beyond else blocks
        if set(map(_owners_of, others)) <= _ONE and set(map(_hash_of, others)) <= _UNPUBLISHED:
            return sorted(beyond)
        return [
            place
            for place, block in enumerate(blocks)
            if place in beyond or block.ref_cnt != 1 or block.block_hash is not None
        ]

    def _move_on(self, party: Party, work: Any) -> set[int]:
        """Look up who writes where now. Returns the places of those that write into several blocks, or into
        none that they have."""
        rows, firsts, lasts = party.rows, work[FIRST_BLOCK], work[LAST_BLOCK]
        while int(rows.max()) >= self.indices.shape[0]:
            self._blocks += [None] * self.indices.shape[0]
            self.indices = np.concatenate([self.indices, np.full_like(self.indices, -1)])
        beyond = set((firsts != lasts).nonzero()[0].tolist())
        for place in (self.indices[rows] != lasts).nonzero()[0].tolist():
            row, last = int(rows[place]), int(lasts[place])
            table = party.watched[place].table
            if last < len(table):
                self._blocks[row], self.indices[row] = table[last], last
            else:
                self.indices[row] = -1
                beyond.add(place)
        return beyond
