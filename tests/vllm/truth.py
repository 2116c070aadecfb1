"""Which of a request's tokens have their KV, and what was settled when it gave its blocks back?

Told from the records of a run and the device alone, without a look at any scheduler's counters: a chunk that
returned computed its tokens, a verification step the last known token and the drafts that were accepted.
This is W, and what T4 says must stay findable at an exit is its whole blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tests.vllm.record import Event, Row, Scheduled, Settled
from tests.vllm.workloads import Workload


class Exit(NamedTuple):
    """A request gave its blocks back: by `finish`, `preemption` or `abort`."""

    kind: str
    settled: tuple[int, ...]
    """The tokens of its settled whole blocks."""


class Truth:
    """What is so, after the records seen so far."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._text = {arrival.number: list(arrival.prompt_token_ids) for arrival in workload.arrivals}
        self._num_computed: dict[int, int] = {}
        """Of running requests: leading tokens computed by steps that have returned."""
        self._lives: dict[int, int] = {}
        """How often a request was preempted; steps of an earlier life compute nothing for this one."""
        self._in_flight: deque[tuple[Scheduled, dict[int, int]]] = deque()
        self.exits: list[Exit] = []
        self.num_stale_outputs = 0
        """Steps that brought tokens to a request that had been preempted in the meantime."""

    def see(self, events: Iterable[Event]) -> None:
        """Take in further records of the same run."""
        for event in events:
            if isinstance(event, Scheduled):
                self._dispatch(event)
            elif isinstance(event, Settled):
                self._settle(event)
            else:
                self._leave("abort", event.number)

    def _dispatch(self, event: Scheduled) -> None:
        for number in event.preempted:
            self._leave("preemption", number)
            self._lives[number] = self._lives.get(number, 0) + 1
        for row in event.rows:
            if row.admitted:
                self._num_computed[row.number] = row.num_computed_tokens
        if event.rows:
            self._in_flight.append((event, dict(self._lives)))

    def _settle(self, event: Settled) -> None:
        scheduled, lives = self._in_flight.popleft()
        outputs = {output.number: output for output in event.outputs}
        for row in scheduled.rows:
            output = outputs.get(row.number)
            num_known = len(self._text[row.number])
            if output is not None:
                self._text[row.number] += output.token_ids
            if row.number not in self._num_computed or lives.get(row.number) != self._lives.get(row.number):
                self.num_stale_outputs += output is not None
                continue
            self._num_computed[row.number] = min(self._end(row, num_known), len(self._text[row.number]))
            if output is not None and output.finish_reason:
                self._leave("finish", row.number)

    def _end(self, row: Row, num_known: int) -> int:
        """How many leading tokens of the row have their KV once the step has returned, if nothing is cut."""
        if not row.samples:
            return row.num_computed_tokens + row.num_scheduled_tokens
        num_drafts = 0 if row.admitted else len(row.draft_token_ids)
        return num_known + len(self._workload.device.sampled(row.number, num_known, num_drafts)) - 1

    def _leave(self, kind: str, number: int) -> None:
        num_computed = self._num_computed.pop(number, 0)
        size = self._workload.settings.block_size
        self.exits.append(Exit(kind, tuple(self._text[number][: num_computed // size * size])))

    def exits_of(self, token_ids: tuple[int, ...]) -> frozenset[str]:
        """At which kinds of exits these tokens were settled."""
        return frozenset(one.kind for one in self.exits if one.settled[: len(token_ids)] == token_ids)

    def is_backed(self, token_ids: tuple[int, ...]) -> bool:
        """Whether KV of these tokens exists, or will once the steps in flight have run."""
        ends = dict(self._num_computed)
        for scheduled, lives in self._in_flight:
            for row in scheduled.rows:
                if row.number in ends and lives.get(row.number) == self._lives.get(row.number):
                    ends[row.number] = max(
                        ends[row.number], row.num_computed_tokens + row.num_scheduled_tokens
                    )
        count = len(token_ids)
        return bool(self.exits_of(token_ids)) or any(
            end >= count and tuple(self._text[number][:count]) == token_ids for number, end in ends.items()
        )

    def text(self, number: int) -> tuple[int, ...]:
        """A request's tokens so far."""
        return tuple(self._text[number])
