"""How does a checked vLLM write a trace? The events that are replayed are also handed to a trace writer.

A request's last event in a call carries the engine's own counters after it; in between the engine cannot be
asked. What is in the prefix cache when a request leaves goes into an `exit` record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.engine_view import View
from draftproof.impl.attach.vllm.watched import Watched

NUM_LEFT = 5
"""Of a request that has left, only N, C, P, F and S are told."""


class Recording:
    """The trace of one scheduler."""

    def __init__(self, view: View, path: str | None, version: str, num_lookahead_tokens: int) -> None:
        """Begins the trace. Raises TraceError, in one sentence, where it cannot be written, and without the
        extra `traces`."""
        try:
            from draftproof.impl.traces import columns, format, recorder
        except ImportError as error:
            raise RuntimeError(
                f"nothing is recorded: a trace needs {error.name} (pip install 'draftproof[traces]')"
            ) from None
        self._columns, self._names = columns, format.EVENT_NAMES
        self._arguments: dict[str, int] = {
            name: columns.FIRST_ARGUMENT + place for place, name in enumerate(format.ARGUMENTS)
        }
        counters = [columns.FIRST_COUNTER + format.COUNTERS.index(name) for name in _TOLD]
        self._counters, self._registered = (
            np.array(counters),
            _place(columns, format, "num_registered_tokens"),
        )
        self._absent = format.ABSENT
        rules = view.rules
        self.view = view
        self.trace = recorder.TraceWriter(
            path or f"draftproof-vllm-{os.getpid()}.ndjson",
            recorder.header(
                engine="vllm",
                engine_version=version,
                num_speculative_tokens=rules.num_speculative_tokens,
                block_size=rules.block_size,
                asynchronous=rules.asynchronous,
                registration_fence=rules.registration_fence,
                max_model_len=view.max_model_len,
                num_lookahead_tokens=num_lookahead_tokens,
            ),
        )
        self._numbers: dict[int, int] = {}
        self._pending: list[tuple[str, list[Watched], Any]] = []
        self._blocks: list[Any] = []

    def arrive(self, watched: Watched, num_prompt_tokens: int, step: int) -> None:
        """A request has arrived, and its beginning was seen."""
        self._numbers[id(watched)] = self.trace.request(watched.request_id, num_prompt_tokens, step=step)

    def note(self, name: str, several: Sequence[Watched], event: Any) -> None:
        """An event has come to these requests."""
        self._pending.append((name, list(several), event))

    def exit(self, scheduler: Any, watched: Watched, table: Sequence[Any]) -> None:
        """A request has left: which of its blocks are published, and what a look-up of its tokens finds."""
        if not self.view.caching or self.view.rules.registration_fence:
            return
        size = self.view.rules.block_size
        hashes = watched.request.block_hashes
        run = 0
        while run < len(hashes) and engine_view.findable(scheduler, hashes[run]) is not None:
            run += 1
        hit = min(run, (watched.request.num_tokens - 1) // size)
        own = 0  # a prefix that others have published is found, too, and is not this request's doing
        while own < min(len(hashes), len(table)) and table[own].block_hash is not None:
            own += 1
        self._pending.append(("exit", [watched], (own * size, hit * size)))

    def flush(self, scheduler: Any, step: int, codes: dict[Any, int]) -> None:
        """A call is over: its events go into the trace."""
        pending, self._pending = self._pending, []
        last: dict[int, int] = {}
        for place, (name, several, _) in enumerate(pending):
            if name not in ("exit", "finish", "abort"):
                last.update((id(watched), place) for watched in several)
        for place, (name, several, event) in enumerate(pending):
            known = [index for index, watched in enumerate(several) if id(watched) in self._numbers]
            if not known:
                continue
            if name == "exit":
                self._emit()
                registered, hit = event
                number = self._numbers[id(several[0])]
                self.trace.exit(number, step=step, num_registered_tokens=registered, look_up=hit)
                continue
            lines = self._lines(name, [several[index] for index in known], known, event, step)
            tells = [index for index, which in enumerate(known) if last.get(id(several[which])) == place]
            if tells:
                self._tell(scheduler, name, lines, tells, [several[known[index]] for index in tells], codes)
            self._blocks.append(lines)
        self._emit()
        for name, several, _ in pending:
            if name in ("finish", "abort"):
                for watched in several:
                    self._numbers.pop(id(watched), None)

    def _lines(self, name: str, several: list[Watched], known: list[int], event: Any, step: int) -> Any:
        lines = np.full((len(several), self._columns.NUM_LINES), self._absent, np.int32)
        lines[:, self._columns.CODE] = self._names.index(name)
        lines[:, self._columns.STEP] = step
        lines[:, self._columns.REQUEST_NUMBER] = [self._numbers[id(watched)] for watched in several]
        for field, values in event._asdict().items():
            lines[:, self._arguments[field]] = values[known] if isinstance(values, np.ndarray) else values
        return lines

    def _tell(
        self, scheduler: Any, name: str, lines: Any, tells: list[int], several: list[Watched], codes: Any
    ) -> None:
        found = np.array([engine_view.counters(watched.request, codes) for watched in several])
        found[[watched.row < 0 for watched in several], NUM_LEFT:] = self._absent
        lines[np.array(tells)[:, None], self._counters] = found
        if name == "schedule" and self.view.caching:
            blocks = engine_view.num_registered_blocks(scheduler, [watched.request_id for watched in several])
            lines[tells, self._registered] = np.array(blocks) * self.view.rules.block_size

    def _emit(self) -> None:
        blocks, self._blocks = self._blocks, []
        if blocks:
            self.trace.emit_rows(np.concatenate(blocks))

    def close(self) -> None:
        """The trace ends. Raises TraceError where it could not be written."""
        self.trace.close()


_TOLD = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_tokens",
    "num_draft_tokens",
    "status",
)
"""In the order of `engine_view.counters`."""


def _place(columns: Any, format: Any, name: str) -> int:
    place: int = columns.FIRST_COUNTER + format.COUNTERS.index(name)
    return place
