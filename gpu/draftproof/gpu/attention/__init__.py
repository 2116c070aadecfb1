"""Where do keys and values lie, and how does a step attend to them? Paged, through block tables.

A backend is made for one step, from the cache and the step's rows, and is then called once for each layer:
`attend(layer, query, key, value)`. It writes the step's keys and values into their slots and returns what the
queries attend to, causally, over everything their rows have in the cache. There are two: `GatherAttention`,
the reference, and `draftproof.gpu.attention.triton_kernel.TritonAttention` where Triton is installed.
"""

from __future__ import annotations

from draftproof.gpu.attention.gather import GatherAttention
from draftproof.gpu.attention.kv_cache import KVCache, blocks_for_budget
from draftproof.gpu.attention.step_rows import (
    BlockTableError,
    HostRows,
    RowSpan,
    StepRows,
    at_lengths,
    host_rows,
    rows_of,
    step_rows,
)

__all__ = [
    "BlockTableError",
    "GatherAttention",
    "HostRows",
    "KVCache",
    "RowSpan",
    "StepRows",
    "at_lengths",
    "blocks_for_budget",
    "host_rows",
    "rows_of",
    "step_rows",
]
