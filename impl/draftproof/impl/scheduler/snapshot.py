"""What was there before a call? Copies of the arrays that debug mode compares, under their own names.

Not copied are the requests' tokens and digests: they are large, and checked where something else has changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.scheduler.layout import NUM_COLUMNS, Requests, State

COLUMNS = Requests._fields[2 : 2 + NUM_COLUMNS]
"""The fields of `Requests` that are int64[r]."""
OF_ROWS = ("ledgers", "metrics", *COLUMNS)
"""The fields of `Requests` that are copied."""


def copy_of(state: State) -> State:
    """The same state; what it does not copy is the array itself."""
    requests = {name: getattr(state.requests, name).copy() for name in OF_ROWS}
    return state._replace(
        counts=state.counts.copy(),
        requests=state.requests._replace(**requests),
        tables=type(state.tables)(*[array.copy() for array in state.tables]),
        queues=type(state.queues)(*[array.copy() for array in state.queues]),
        pool=type(state.pool)(*[array.copy() for array in state.pool]),
    )


def pairs(now: State, before: State) -> list[tuple[Any, Any]]:
    """Every array that is copied, with its copy."""
    named = [(getattr(now.requests, name), getattr(before.requests, name)) for name in OF_ROWS]
    parts = [(now.tables, before.tables), (now.queues, before.queues), (now.pool, before.pool)]
    return [
        (now.counts, before.counts),
        *named,
        *[pair for part in parts for pair in zip(*part, strict=True)],
    ]


def has_changed(now: State, before: State) -> bool:
    """Whether anything differs."""
    return not all(np.array_equal(*pair) for pair in pairs(now, before))


def changed_rows(now: State, before: State) -> list[int]:
    """The rows of which anything differs: counters, records, metrics, tables."""
    num_rows = now.tables.block_ids.shape[1]
    changed = (now.tables.block_ids != before.tables.block_ids).any(axis=(0, 2))
    changed |= (now.tables.num_blocks != before.tables.num_blocks)[:, :num_rows].any(axis=0)
    for name in OF_ROWS:
        differs = (getattr(now.requests, name) != getattr(before.requests, name))[..., :num_rows]
        changed |= differs if differs.ndim == 1 else differs.any(axis=0)
    return np.flatnonzero(changed).tolist()  # type: ignore[no-any-return]


def changed_blocks(now: State, before: State) -> list[int]:
    """The blocks of which anything differs: owners, links, content."""
    count = now.pool.ref_count.shape[0]
    changed = (now.pool.token_ids != before.pool.token_ids).any(axis=1)
    for name, array in now.pool._asdict().items():
        if name not in ("token_ids", "num_free_blocks"):
            changed |= array[:count] != getattr(before.pool, name)[:count]
    return np.flatnonzero(changed).tolist()  # type: ignore[no-any-return]


def published_blocks(state: State) -> Any:
    """bool[num_blocks + 1]"""
    return state.pool.next_in_chain[: state.pool.ref_count.shape[0]] != 0


def rewritten_blocks(now: State, before: State) -> Any:
    """bool[num_blocks + 1]: whether a block's tokens or digest differ."""
    changed = (now.pool.token_ids != before.pool.token_ids).any(axis=1)
    for name in ("digest_first", "digest_second", "num_tokens"):
        changed |= getattr(now.pool, name) != getattr(before.pool, name)
    return changed
