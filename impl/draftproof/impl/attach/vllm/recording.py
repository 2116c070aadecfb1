"""How does a checked vLLM write a trace? The events that are replayed are also handed to a trace writer.

A request's last event in a call carries the engine's own counters after it; in between the engine cannot be
asked. What is in the prefix cache when a request leaves goes into an `exit` record. Compiled code writes the
records of a whole step at once (`rows`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view, rows
from draftproof.impl.attach.vllm.kernel import NAMES, NUM_FOUND
from draftproof.spec.events import EVENTS

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.engine_view import View
    from draftproof.impl.attach.vllm.settings import Settings
    from draftproof.impl.attach.vllm.watched import Watched

TOLD = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_tokens",
    "num_draft_tokens",
    "status",
)
"""In the order of `engine_view.counters`."""
DEFAULT_PATH = "draftproof-vllm-{pid}.ndjson"
NUM_LEFT = 5
"""Of a request that has left, only N, C, P, F and S are told."""


class Recording:
    """The trace of one scheduler."""

    def __init__(
        self,
        view: View,
        codes: dict[Any, int],
        settings: Settings,
        version: str,
        num_lookahead_tokens: int,
    ) -> None:
        """Begins the trace. Raises TraceError, in one sentence, where it cannot be written, and RuntimeError
        without the extra `traces`. `codes`: the specification's status for each of the engine's."""
        try:
            from draftproof.impl.traces import columns, format, recorder
        except ImportError as error:
            raise RuntimeError(
                f"nothing is recorded: a trace needs {error.name} (pip install 'draftproof[traces]')"
            ) from None
        rules = view.rules
        self.view, self.codes = view, codes
        self.trace = recorder.TraceWriter(
            (settings.trace_path or DEFAULT_PATH).replace("{pid}", str(os.getpid())),
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
            max_bytes=settings.trace_bytes,
        )
        self._passes = rows.passes()
        self._layout = layout(columns, format)
        self._rows = np.empty((256, columns.NUM_LINES), np.int32)
        self._count = 0
        self._numbers = np.full(72, -1, np.int64)
        """By row of the reference ledgers: the request's number in the trace, or -1."""
        self._last = np.full(72, -1, np.int64)
        """By row: where its last event of this call is, as long as the engine's counters are to be added."""
        self._watched: dict[int, Watched] = {}
        self._exits: list[tuple[int, dict[str, int]]] = []
        """Records of exits, each with the number of events before it."""

    def arrive(self, watched: Watched, num_prompt_tokens: int, step: int) -> None:
        """A request has arrived, and its beginning was seen."""
        self.flush()
        while watched.row >= self._numbers.shape[0]:
            self._numbers = np.concatenate([self._numbers, np.full_like(self._numbers, -1)])
            self._last = np.concatenate([self._last, np.full_like(self._last, -1)])
        self._numbers[watched.row] = self.trace.request(watched.request_id, num_prompt_tokens, step=step)
        self._watched[watched.row] = watched

    def note(self, rows: Any, work: Any, step: int) -> None:
        """Events have come to these rows of the ledgers."""
        while self._count + rows.shape[0] > self._rows.shape[0]:
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._count = self._passes.write(
            self._rows, self._count, rows, work, self._numbers, self._last, self._layout, step
        )

    def tell(self, rows: Any, found: Any, *, published: Any = None, left: bool = False) -> None:
        """The engine's counters after these rows' last events, int64[7, n] in the order of `TOLD`; and how
        many tokens it has published."""
        tokens = _NOTHING if published is None else published
        self._passes.tell(
            self._rows, rows, found, tokens, self._last, self._layout, NUM_LEFT if left else NUM_FOUND
        )

    def exit(self, scheduler: Any, watched: Watched, table: Sequence[Any], step: int) -> None:
        """A request has left: which of its blocks are published, and what a look-up of its tokens finds."""
        if not self.view.caching or self.view.rules.registration_fence or self._numbers[watched.row] < 0:
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
        number = int(self._numbers[watched.row])
        record = {"request": number, "num_registered_tokens": own * size, "look_up": hit * size, "step": step}
        self._exits.append((self._count, record))

    def leave(self, watched: Watched) -> None:
        """Nothing more comes of a request: its row may become another's."""
        if watched.row < self._numbers.shape[0]:
            self._numbers[watched.row] = self._last[watched.row] = -1
            self._watched.pop(watched.row, None)

    def flush(self) -> None:
        """A call is over: its events go into the trace."""
        if not self._count and not self._exits:
            return
        (untold,) = np.nonzero(self._last >= 0)
        if untold.size:
            requests = [self._watched[row].request for row in untold.tolist()]
            found = [engine_view.counters(request, self.codes) for request in requests]
            self.tell(untold, np.ascontiguousarray(np.array(found, np.int64).T))
        begin = 0
        for end, record in self._exits:
            self._emit(begin, end)
            self.trace.exit(**record)
            begin = end
        self._emit(begin, self._count)
        self._exits.clear()
        self._count = 0

    def _emit(self, begin: int, end: int) -> None:
        if begin < end:
            self.trace.emit_rows(self._rows[begin:end])

    def close(self) -> None:
        """The trace ends. Raises TraceError where it could not be written."""
        self.trace.close()


_NOTHING = np.zeros(0, np.int64)


def layout(columns: Any, format: Any) -> Any:
    """Where things lie in a record, int64: see `rows`. A trace has one column for each name of an integer."""
    words = [columns.CODE, columns.REQUEST_NUMBER, columns.STEP, format.ABSENT]
    words += [
        columns.FIRST_COUNTER + format.COUNTERS.index(name) for name in (*TOLD, "num_registered_tokens")
    ]
    for name in NAMES:
        fields = EVENTS[name]._fields
        places = [columns.FIRST_ARGUMENT + format.ARGUMENTS.index(field) for field in fields]
        words += [format.EVENT_NAMES.index(name), *places, *[-1] * (rows.MOST_ARGUMENTS - len(places))]
    return np.array(words, np.int64)
