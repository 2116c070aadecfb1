"""Does an engine tell the accounting's numbers? Its counters after an event, what is registered at exits."""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.columns import FIRST_COUNTER, LOOK_UP, REGISTERED, STATUS_LINE
from draftproof.impl.traces.format import ABSENT, COUNTERS, EVENT_NAMES
from draftproof.impl.traces.request_table import (
    C_PLACE,
    D_PLACE,
    F_PLACE,
    N_PLACE,
    P_PLACE,
    R_PLACE,
    S_PLACE,
    STATUS_PLACE,
    X_PLACE,
)
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.ledger import Rules

NUM_COUNTERS = len(COUNTERS)
_PREEMPT = EVENT_NAMES.index("preempt")


def told_mask(lines: Any, row: int) -> int:
    """Which counters came with the event, a bit each."""
    mask = 0
    for offset in range(NUM_COUNTERS):
        if lines[FIRST_COUNTER + offset, row] != ABSENT:
            mask |= 1 << offset
    return mask


def differs(told: int, expected: int) -> bool:
    """Whether the engine tells another number."""
    return told != ABSENT and told != expected


def agrees(requests: Any, slot: int, lines: Any, row: int) -> bool:
    """Whether what the engine tells are the accounting's numbers."""
    return not (
        differs(lines[FIRST_COUNTER, row], requests[slot, N_PLACE])
        or differs(lines[FIRST_COUNTER + 1, row], requests[slot, C_PLACE])
        or differs(lines[FIRST_COUNTER + 2, row], requests[slot, P_PLACE])
        or differs(lines[FIRST_COUNTER + 3, row], requests[slot, D_PLACE])
        or differs(lines[FIRST_COUNTER + 4, row], requests[slot, F_PLACE])
        or differs(lines[FIRST_COUNTER + 5, row], requests[slot, S_PLACE])
        or differs(lines[FIRST_COUNTER + 6, row], requests[slot, R_PLACE])
        or differs(lines[STATUS_LINE, row], requests[slot, STATUS_PLACE])
    )


def exit_agrees(rules: Rules, requests: Any, slot: int, lines: Any, row: int, code: int) -> bool:
    """Whether the engine registered what the accounting did, and finds it again (T4, T13)."""
    expected = requests[slot, R_PLACE]
    if code == _PREEMPT:
        expected = requests[slot, X_PLACE]
    if lines[REGISTERED, row] != expected:
        return False
    if lines[LOOK_UP, row] == ABSENT or code == _PREEMPT:
        return True
    findable = min(expected, floor_to_block(requests[slot, N_PLACE] - 1, rules.block_size))
    return lines[LOOK_UP, row] >= findable  # type: ignore[no-any-return]
