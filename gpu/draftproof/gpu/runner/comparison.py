"""Do host and device count alike? Held against each other at every step (T9), when the host comes to it.

The host has dispatched step i + 1 before it settles step i, the device the other way round. So the device's
counters after its dispatch of a step are those of the host once all steps before it have been settled; and
where a row has no further step in flight, both must agree after the outcome, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.gpu.device_ledger import differences
from draftproof.gpu.runner.outcome import Outcome
from draftproof.gpu.runner.requests import Request
from draftproof.impl.ledger_table import STATUS, STOP_PENDING
from draftproof.impl.scheduler import Batch
from draftproof.spec.ledger import RUNNING


class LedgerError(RuntimeError):
    """The device counts otherwise than the host."""

    trace = ""
    """The file with the trace; empty if none was written."""

    def __init__(self, request: str, step: int, counter: str, on_host: int, on_device: int) -> None:
        super().__init__(
            f"step {step}, request {request}: {counter} is {on_host} on the host and {on_device} on the "
            "device"
        )
        self.request, self.step, self.counter = request, step, counter
        self.on_host, self.on_device = on_host, on_device


@dataclass
class Flight:
    """A step that has been launched and not been settled."""

    batch: Batch
    launched: Any
    requests: list[Request]
    rows: Any
    """int64[R]: a copy, for the batch is used again"""
    expected: Any = None
    """int64[fields, R]: the host's counters once all steps before it have been settled"""


def compare_dispatch(flight: Flight, outcome: Outcome, is_here: Any) -> int:
    """The counters after the step's dispatch; returns how many rows were compared. `is_here`, bool[R]: rows
    whose request has not finished since. Raises LedgerError."""
    if flight.expected is None:
        return 0
    chosen = np.flatnonzero(is_here & (flight.expected[STATUS] == RUNNING))
    return _compare(flight, chosen, flight.expected, outcome.ledgers_at_dispatch)


def compare_end(flight: Flight, outcome: Outcome, ledgers: Any, later: Any) -> int:
    """The counters after the step's outcome, and what was kept of it; returns how many rows were compared.

    `ledgers`, int64[fields, R]: the host's, now that it has settled the step. `later`, int64[n]: rows with a
    further step in flight. Raises LedgerError.
    """
    running = ledgers[STATUS] == RUNNING
    chosen = np.flatnonzero(running & ~np.isin(flight.rows, later))
    num_compared = _compare(flight, chosen, ledgers, outcome.ledgers_at_end)
    batch, count = flight.batch, len(flight.rows)
    stopped = batch.finish_reason[:count] != 0
    # A row that had stopped there before is of an earlier turn, and its outcome means nothing.
    is_live = (outcome.ledgers_at_dispatch[STOP_PENDING] == 0) & (running | stopped)
    for counter, on_host, on_device in (
        ("num_kept_tokens", batch.num_kept_tokens[:count], outcome.num_kept_tokens),
        ("stopped", stopped, outcome.stopped != 0),
    ):
        for place in np.flatnonzero(is_live & (on_host != on_device)).tolist():
            request = flight.requests[place].request_id
            raise LedgerError(request, batch.step, counter, int(on_host[place]), int(on_device[place]))
    return num_compared


def _compare(flight: Flight, chosen: Any, host: Any, device: Any) -> int:
    for place, counter, on_host, on_device in differences(host[:, chosen], device[:, chosen]):
        request = flight.requests[int(chosen[place])]
        raise LedgerError(request.request_id, flight.batch.step, counter, on_host, on_device)
    return len(chosen)
