"""Who owns each block? Owners are counted from the block tables, and held against the reference counts.

Only what a step touches is looked at in that step; a sweep now and then looks at everything. Sources: pool
theorems P2 (reference count = owners), P3 (published content never changes) and P5 (a writable block has one
owner and is unpublished), and T10 (what a step writes was reserved).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from draftproof.impl.attach.vllm.watched import Watched


class Problem(NamedTuple):
    """What is wrong with a block, and which theorem says so."""

    theorem: str
    rule: str
    message: str


class Owners:
    """How many requests hold each block, by block id."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._touched: dict[int, Any] = {}

    def take(self, watched: Watched, table: list[Any]) -> None:
        """A request's table has grown to this."""
        for block in table[len(watched.table) :]:
            self.counts[block.block_id] = self.counts.get(block.block_id, 0) + 1
            self._touched[block.block_id] = block
            watched.table.append(block)

    def give(self, watched: Watched) -> None:
        """A request has given all its blocks back."""
        for block in watched.table:
            self.counts[block.block_id] -= 1
            self._touched[block.block_id] = block
        watched.table = []  # not cleared: steps in flight still write into the old one

    def problems(self) -> list[Problem]:
        """Of the blocks touched since the last question: those whose reference count is not their owners'."""
        if not self._touched:
            return []
        found = [problem for block in self._touched.values() if (problem := self._count(block)) is not None]
        self._touched.clear()
        return found

    def _count(self, block: Any) -> Problem | None:
        owners = self.counts.get(block.block_id, 0)
        if block.ref_cnt == owners or block.is_null:
            return None
        return Problem(
            "P2",
            "reference_count_is_owners",
            f"block {block.block_id} is counted {block.ref_cnt} times and has {owners} owners",
        )

    def sweep(self, scheduler: Any, watched: Iterable[Watched]) -> list[Problem]:
        """Everything with everything: tables as the manager has them, reference counts of all blocks."""
        manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        found = []
        for one in watched:
            table = manager.req_to_blocks.get(one.request_id, [])
            if [block.block_id for block in table] != [block.block_id for block in one.table]:
                found.append(
                    Problem(
                        "P2",
                        "table_is_what_was_told",
                        f"the manager's table of {one.request_id} has {len(table)} blocks, its messages told "
                        f"{len(one.table)}, or others",
                    )
                )
        pool = scheduler.kv_cache_manager.block_pool
        return found + [problem for block in pool.blocks if (problem := self._count(block)) is not None]

    def written(
        self, watched: Watched, start: int, end: int, num_published_before: int, num_known: int, size: int
    ) -> Problem | None:
        """What is wrong with the blocks that a step will write from position `start` to `end` (exclusive).

        `num_published_before`: tokens that were published before this step; `num_known`: known tokens.
        """
        table = watched.table
        if (end - 1) // size >= len(table):
            return Problem(
                "T10",
                "written_slots_are_reserved",
                f"a step writes up to position {end - 1}, and {len(table)} blocks are reserved",
            )
        for index in range(start // size, (end - 1) // size + 1):
            block = table[index]
            last = (index + 1) * size
            # A block that this step fills is published at once: others may share it in the same step.
            filled_now = num_published_before < last <= min(end, num_known)
            if self.counts.get(block.block_id, 0) > 1 and not filled_now:
                return Problem(
                    "P5",
                    "writable_block_has_one_owner",
                    f"block {block.block_id} is written at positions {start} to {end - 1} and has "
                    f"{self.counts[block.block_id]} owners",
                )
            if block.block_hash is not None and not filled_now:
                return Problem(
                    "P3",
                    "published_block_is_not_written",
                    f"block {block.block_id} is published up to position {last - 1} and written at {start}",
                )
        return None
