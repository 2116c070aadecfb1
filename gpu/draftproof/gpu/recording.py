"""What is left of a violation on the device? A trace, with which the run happens again without a model.

In debug mode the engine notes what was asked of it and what the model answered: requests with their tokens,
chunks, aborts, steps, and of each step its rows, sampled tokens and drafts. A violation (a CanaryError or a
LedgerError) writes that down: NDJSON, one record a line; `draftproof.gpu.replay` runs it again.

Everything is kept since the start, up to `MAX_TRACE_BYTES`. Beyond that only the last events are, which can
be read but not run again: where they begin nobody knows what the caches hold. As soon as nothing is in
flight, known or cached the state is known again, and a new recording begins.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections import deque
from pathlib import Path
from typing import Any

from draftproof.gpu.canary import CanaryError, hash_text
from draftproof.gpu.runner.comparison import Flight, LedgerError
from draftproof.gpu.runner.engine import Engine
from draftproof.gpu.runner.outcome import Outcome
from draftproof.gpu.runner.requests import Request, RequestOutput, RequestResult, Turn
from draftproof.gpu.sampling.parameters import SamplingParameters
from draftproof.impl.scheduler import Batch, SchedulerConfig
from draftproof.impl.scheduler.layout import NUM_DISPATCHED
from draftproof.impl.scheduler.violation import trace_path

SCHEMA = 1
MAX_TRACE_BYTES = 64 * 2**20
"""Of the events' lines."""
TOO_LONG = "the run was longer than a trace may be"
AFTER_A_VIOLATION = "another violation came before"


class Recording:
    """The lines of a trace, oldest first."""

    def __init__(self, config: SchedulerConfig, eos_token_ids: tuple[int, ...], max_bytes: int) -> None:
        self.config, self.eos_token_ids, self.max_bytes = config, eos_token_ids, max_bytes
        self.begin(0)

    def begin(self, first_step: int) -> None:
        """The state is known: nothing is in flight, known or cached, and this is the next step."""
        self.first_step, self.why_incomplete = first_step, ""
        self._lines: deque[str] = deque()
        self._num_bytes = 0

    def note(self, kind: str, **fields: Any) -> None:
        """One event more."""
        line = json.dumps({"kind": kind} | fields, separators=(",", ":")) + "\n"
        self._lines.append(line)
        self._num_bytes += len(line)
        if self._num_bytes > self.max_bytes:
            self.why_incomplete = self.why_incomplete or TOO_LONG
            while self._num_bytes > self.max_bytes // 2:
                self._num_bytes -= len(self._lines.popleft())

    def write(self, problem: CanaryError | LedgerError) -> Path:
        """The trace of a violation. Raises OSError."""
        path = trace_path(problem.request, problem.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            field.name: getattr(self.config, field.name)
            for field in dataclasses.fields(self.config)
            if field.init and field.name not in ("groups", "hash_seed")
        }
        run = {
            "kind": "run",
            "schema": SCHEMA,
            "version": importlib.metadata.version("draftproof"),
            "config": settings,
            "num_groups": len(self.config.groups),
            "eos_token_ids": list(self.eos_token_ids),
            "first_step": self.first_step,
            "why_incomplete": self.why_incomplete,
        }
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
            file.writelines(self._lines)
            file.write(json.dumps({"kind": "violation"} | fields_of(problem)) + "\n")
        return path


def fields_of(problem: CanaryError | LedgerError) -> dict[str, Any]:
    """What a violation names."""
    fields: dict[str, Any] = {
        "error": type(problem).__name__,
        "request": problem.request,
        "step": problem.step,
        "sentence": str(problem),
    }
    if isinstance(problem, CanaryError):
        hashes = {"expected": hash_text(problem.expected), "found": hash_text(problem.found)}
        return fields | {"position": problem.position, "block": problem.block} | hashes
    values = {"on_host": problem.on_host, "on_device": problem.on_device}
    return fields | {"counter": problem.counter} | values


class RecordingEngine(Engine):
    """An engine in debug mode: its violations name a trace."""

    def __init__(self, *arguments: Any, max_trace_bytes: int = MAX_TRACE_BYTES, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.recording = Recording(self.config, self.eos_token_ids, max_trace_bytes)

    def add(self, request: Request) -> None:
        """See `Engine.add`."""
        if self.recording.why_incomplete and self._is_empty():
            self.recording.begin(int(self.scheduler.state.counts[NUM_DISPATCHED]))
        super().add(request)
        self.recording.note(
            "add",
            request=request.request_id,
            is_session=request.is_session,
            token_ids=list(request.prompt_token_ids),
            **_limits(request.parameters),
        )

    def append(self, request_id: str, turn: Turn) -> None:
        """See `Engine.append`."""
        super().append(request_id, turn)
        self.recording.note(
            "append", request=request_id, token_ids=list(turn.token_ids), **_limits(turn.parameters)
        )

    def close(self, request_id: str) -> None:
        """See `Engine.close`."""
        super().close(request_id)
        self.recording.note("close", request=request_id)

    def abort(self, request_id: str) -> RequestResult:
        """See `Engine.abort`."""
        result = super().abort(request_id)
        self.recording.note("abort", request=request_id)
        return result

    def step(self) -> list[RequestOutput]:
        """See `Engine.step`. A violation is raised with the path of its trace in the message."""
        self.recording.note("step")
        try:
            return super().step()
        except (CanaryError, LedgerError) as problem:
            try:
                problem.trace = str(self.recording.write(problem))
                ending = f"Trace: {problem.trace}"
            except OSError as failure:
                ending = f"No trace: {failure}"
            self.recording.why_incomplete = self.recording.why_incomplete or AFTER_A_VIOLATION
            problem.args = (f"{problem}. {ending}",)
            raise

    def _is_empty(self) -> bool:
        """Whether nothing is in flight, known or cached."""
        if self.requests or self._in_flight:
            return False
        return not self.scheduler.state.pool.next_in_chain[1 : self.config.num_blocks + 1].any()

    def _enqueue(self, batch: Batch, requests: list[Request]) -> Any:
        count = batch.num_requests
        numbers = zip(
            batch.num_scheduled_tokens[:count].tolist(), batch.num_draft_tokens[:count].tolist(), strict=True
        )
        names = [request.request_id for request in requests]
        rows = [[name, *pair] for name, pair in zip(names, numbers, strict=True)]
        self.recording.note("launch", step=batch.step, rows=rows)
        try:
            return super()._enqueue(batch, requests)
        except BaseException:
            self.recording.note("failed", step=batch.step, where="launch")
            raise

    def _read(self, flight: Flight) -> Outcome:
        try:
            outcome = super()._read(flight)
        except CanaryError:
            raise
        except BaseException:
            self.recording.note("failed", step=flight.batch.step, where="read")
            raise
        self.recording.note(
            "outcome",
            step=flight.batch.step,
            sampled=_cut(outcome.sampled_token_ids, outcome.num_sampled_tokens),
            drafts=_cut(outcome.draft_token_ids, outcome.num_draft_tokens),
        )
        return outcome

    def _after_end(self, row: int, request: Request, *, is_over: bool, is_turn: bool) -> list[RequestOutput]:
        if not is_over and not is_turn:  # a stop string, or logits that are no numbers
            self.recording.note("abort", request=request.request_id)
        return super()._after_end(row, request, is_over=is_over, is_turn=is_turn)


def _limits(parameters: SamplingParameters) -> dict[str, Any]:
    """What of the parameters decides when a request ends; stop strings end it by an abort."""
    return {
        "max_tokens": parameters.max_tokens,
        "min_tokens": parameters.min_tokens,
        "stop_token_ids": list(parameters.stop_token_ids),
        "ignore_eos": bool(parameters.ignore_eos),
    }


def _cut(token_ids: Any, counts: Any) -> list[list[int]]:
    return [line[:count] for line, count in zip(token_ids.tolist(), counts.tolist(), strict=True)]
