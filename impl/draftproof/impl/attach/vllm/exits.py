"""Was anything settled thrown away? At every exit the published blocks are held against what was settled.

The core says how many tokens must be published when a request gives its blocks back (T4), and T13 what a
repeat then hits: so each of those blocks must be found under its hash. At a finish and an abort nothing has
been allocated since, so a block that cannot be found was lost. At a preemption others take blocks in the same
call: a block that has a new owner may have been published and evicted, and nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.content import Mismatch, Shadow
from draftproof.impl.attach.vllm.watched import Watched


class Loss(NamedTuple):
    """What a look-up finds of what was settled, in tokens."""

    num_settled: int
    num_findable: int


def loss(scheduler: Any, watched: Watched, num_settled: int, block_size: int) -> Loss:
    """What is still findable of a request that has just left."""
    hashes = watched.request.block_hashes
    count = min(num_settled // block_size, len(hashes))
    for index in range(count):
        if engine_view.findable(scheduler, hashes[index]) is None:
            return Loss(num_settled, index * block_size)
    return Loss(num_settled, num_settled)


def loss_at_preemption(
    scheduler: Any, watched: Watched, table: Sequence[Any], num_settled: int, block_size: int
) -> Loss:
    """The same for a preempted request and the blocks it held; a block in other hands counts as findable."""
    hashes = watched.request.block_hashes
    for index in range(min(num_settled // block_size, len(hashes), len(table))):
        block = table[index]
        idle = block.ref_cnt == 0 and block.block_hash is None
        if idle and engine_view.findable(scheduler, hashes[index]) is None:
            return Loss(num_settled, index * block_size)
    return Loss(num_settled, num_settled)


def wrongly_published(
    scheduler: Any, watched: Watched, table: Sequence[Any], shadow: Shadow
) -> Mismatch | None:
    """The first slot of a block that this request leaves findable under its tokens and that holds others."""
    size = shadow.block_size
    hashes = watched.request.block_hashes
    for index in range(min(len(hashes), len(table), len(watched.digests) // size)):
        found = engine_view.findable(scheduler, hashes[index])
        if found is None:
            return None
        if found is not table[index]:
            continue
        wrong = shadow.mismatch([found], 0, watched.digests[index * size : (index + 1) * size])
        if wrong is not None:
            return wrong._replace(position=index * size + wrong.position)
    return None
