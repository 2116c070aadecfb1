"""How is a workload run on one side? The same loop for both schedulers; they only speak through records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vllm.record import Aborted, Event, Row, Scheduled, Settled
from tests.vllm.workloads import Arrival, Device, Workload

MOST_STEPS = 20_000


class Side(ABC):
    """One scheduler under comparison, and what its clients know."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.token_ids: dict[int, list[int]] = {}
        """Every request that has arrived: its prompt and what came back so far."""
        self.live: set[int] = set()
        """Requests that have arrived and not finished."""

    @abstractmethod
    def add(self, arrival: Arrival) -> None:
        """A request arrives."""

    @abstractmethod
    def abort(self, number: int) -> Aborted:
        """A live request is given up."""

    @abstractmethod
    def schedule(self) -> tuple[Any, Scheduled]:
        """The next step, in the scheduler's own form and as a record."""

    @abstractmethod
    def settle(self, step: Any, scheduled: Scheduled, sampled: Mapping[int, tuple[int, ...]]) -> Settled:
        """A step has returned with these tokens."""

    @abstractmethod
    def propose(self, drafts: Mapping[int, tuple[int, ...]]) -> None:
        """The drafter's proposals for the next step."""


def events(side: Side) -> Iterator[Event]:
    """Run the side's workload to its end and tell what happened, call by call.

    Synchronously a step returns before the next is scheduled; asynchronously one step runs ahead.
    """
    workload, settings = side.workload, side.workload.settings
    arrivals, in_flight = deque(workload.arrivals), deque[tuple[Any, Scheduled]]()
    for step in range(MOST_STEPS):
        while arrivals and arrivals[0].step <= step:
            _arrive(side, arrivals.popleft())
        for abort in workload.aborts:
            if abort.step == step and abort.number in side.live:
                side.live.discard(abort.number)
                yield side.abort(abort.number)
        native, scheduled = side.schedule()
        yield scheduled
        if scheduled.rows:
            in_flight.append((native, scheduled))
            if settings.asynchronous and len(in_flight) < 2:
                continue
        if in_flight:
            yield _settle(side, *in_flight.popleft())
        elif not arrivals and not side.live:
            return
    raise AssertionError(f"requests {sorted(side.live)} have not finished after {MOST_STEPS} steps")


def _arrive(side: Side, arrival: Arrival) -> None:
    side.add(arrival)
    side.token_ids[arrival.number] = list(arrival.prompt_token_ids)
    side.live.add(arrival.number)


def _settle(side: Side, native: Any, scheduled: Scheduled) -> Settled:
    """Let the device answer, keep what the clients got, and let the drafter propose."""
    device = side.workload.device
    sampled = {row.number: answer(side, device, row) for row in scheduled.rows if row.samples}
    settled = side.settle(native, scheduled, sampled)
    for output in settled.outputs:
        side.token_ids[output.number] += output.token_ids
        if output.finish_reason:
            side.live.discard(output.number)
    settings = side.workload.settings
    if settings.num_speculative_tokens and not settings.asynchronous:
        side.propose(
            {
                number: device.drafts(number, len(side.token_ids[number]))
                for number in sampled
                if number in side.live
            }
        )
    return settled


def answer(side: Side, device: Device, row: Row) -> tuple[int, ...]:
    """What the step samples for a row. Drafts of a step that admits are padding, which no model accepts."""
    num_drafts = 0 if row.admitted else len(row.draft_token_ids)
    return device.sampled(row.number, len(side.token_ids[row.number]), num_drafts)
