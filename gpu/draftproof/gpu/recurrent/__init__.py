"""Where does recurrent state lie, and how does a step move it? In blocks, one state a block.

A row has a state for each number of drafts that may be accepted, so that a rejected draft is undone by
starting the next step from another one; nothing is computed again. A step: `host_states` of the batch, and on
the device `StateCache.copy_blocks`, `state_rows`, `state_moves`, the model with a `Recurrence`, and
`note_accepted`.
"""

from __future__ import annotations

from draftproof.gpu.recurrent.recurrence import Recurrence
from draftproof.gpu.recurrent.state_cache import StateCache, bytes_per_block
from draftproof.gpu.recurrent.state_rows import (
    HostStates,
    StateMoves,
    StateRows,
    host_states,
    note_accepted,
    state_moves,
    state_rows,
)

__all__ = [
    "HostStates",
    "Recurrence",
    "StateCache",
    "StateMoves",
    "StateRows",
    "bytes_per_block",
    "host_states",
    "note_accepted",
    "state_moves",
    "state_rows",
]
