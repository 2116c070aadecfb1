"""Who is served before whom? The order in which requests run and wait, kept in plain lists.

First come first served: who arrives waits behind all others; who was preempted, or goes on with a session's
KV, waits in front, but not before sessions that hold KV already. By priority: the lower number first, then
the earlier arrival. Who starts runs behind those that run.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.impl.request_truth import Request


class ServiceOrder:
    """The two lists."""

    def __init__(self, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.running: list[Request] = []
        self.waiting: list[Request] = []

    def arrives(self, request: Request) -> None:
        """Behind all others."""
        self.wait(request, len(self.waiting))

    def goes_on(self, request: Request) -> None:
        """A session's next turn waits: in front if it still holds KV."""
        front = request.ledger.num_computed_tokens > 0
        self.wait(request, self._num_holders() if front else len(self.waiting))

    def is_preempted(self, request: Request) -> None:
        """Back to the front; it holds no KV any more."""
        self.running.remove(request)
        self.wait(request, self._num_holders())

    def starts(self, request: Request) -> None:
        """Only those may be passed over whose late output is still to come, and will be delivered."""
        for other in self.waiting:
            if other is request:
                break
            ledger = other.ledger
            assert ledger.num_stale_tokens > 0 and not ledger.drop_stale, (
                f"request {request.request_id!r} starts before {other.request_id!r}"
            )
        self.waiting.remove(request)
        self.running.append(request)

    def leaves(self, request: Request) -> None:
        """Neither runs nor waits."""
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def check(self, running: Sequence[int], waiting: Sequence[int]) -> None:
        """The rows that run and wait, in the scheduler's order."""
        expected = [one.row for one in self.running], [one.row for one in self.waiting]
        assert (list(running), list(waiting)) == expected, (
            f"rows {running} run and {waiting} wait, must be {expected[0]} and {expected[1]}"
        )

    def wait(self, request: Request, place: int) -> None:
        """At this place; by priority at its own."""
        if self.by_priority:
            key = request.priority, request.number
            place = sum((one.priority, one.number) < key for one in self.waiting)
        self.waiting.insert(place, request)

    def _num_holders(self) -> int:
        """Leading requests that wait with KV."""
        for place, request in enumerate(self.waiting):
            if request.ledger.num_computed_tokens == 0:
                return place
        return len(self.waiting)
