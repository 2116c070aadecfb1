"""What is done with a violation? It is logged once, counted always, and raised if that was asked for.

One line per distinct violation: two are the same if the same counters were wrong after the same events, or
the same rule broke. The counters are
for the whole process, as an engine core has one scheduler; their text form is Prometheus's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger("draftproof.attach.vllm")
SECONDS = 10.0
"""Between two writings of the counters, and between two summaries."""
MOST_KEPT = 1_000
"""Violations that are kept whole; all are counted."""


class ContractViolationError(AssertionError):
    """A rule was broken, and the mode is `raise`."""


class Violation(NamedTuple):
    """One rule, or several at once, broken by one request."""

    kind: str
    """`accounting`, `content`, `completeness`, `blocks` or `queues`."""
    theorems: tuple[str, ...]
    """`T1`, ... or `P5`, ...: which of ours speak about it."""
    rules: tuple[str, ...]
    """The names of the broken theorems and invariants, or of what was found."""
    request_id: str
    step: int
    events: tuple[str, ...]
    """What happened to the request in this call, in order."""
    before: dict[str, int]
    """Counters before, by symbol."""
    expected: dict[str, int]
    """What the proven core says they must be now."""
    found: dict[str, int]
    """What the engine says they are."""
    message: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Two violations with the same key are not distinct: the same counters at the same events."""
        if self.kind == "accounting":
            wrong = tuple(key for key, value in self.found.items() if self.expected.get(key) != value)
            return self.kind, self.events, wrong
        return self.kind, self.rules

    def as_json(self) -> str:
        """One line."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    def __str__(self) -> str:
        return (
            f"[step {self.step}] {self.kind} {self.request_id}: {self.message} ({', '.join(self.theorems)})"
        )


class Report:
    """What was found, in one process or in one test."""

    def __init__(self) -> None:
        self.violations: deque[Violation] = deque(maxlen=MOST_KEPT)
        self.distinct: Counter[tuple[Any, ...]] = Counter()
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        """By metric name and labels."""
        self.unjudged: Counter[str] = Counter()
        """Requests, or whole checks, that were left out, by reason."""
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Raise a counter."""
        key = (name, tuple(sorted(labels.items()))) if labels else (name, ())
        self.counts[key] += amount

    def leave_out(self, reason: str) -> None:
        """Something is not judged; said once, counted always."""
        if not self.unjudged[reason]:
            logger.info("draftproof: not judged: %s", reason)
        self.unjudged[reason] += 1

    def add(self, violation: Violation) -> None:
        """Take a violation in; the first of its kind is logged."""
        with self._lock:
            self.violations.append(violation)
            self.distinct[violation.key] += 1
            first = self.distinct[violation.key] == 1
        self.count("violations", kind=violation.kind, theorem="+".join(violation.theorems))
        if first:
            logger.warning("draftproof violation %s", violation.as_json())

    def total(self, name: str, **labels: str) -> int:
        """A counter, summed over all labels that are not given."""
        wanted = set(labels.items())
        return sum(amount for (one, has), amount in self.counts.items() if one == name and wanted <= set(has))

    def summary(self) -> str:
        """One line."""
        found = self.total("violations")
        lost, exits = self.total("exits_with_lost_blocks"), self.total("exits")
        return (
            f"{self.total('steps')} steps, {self.total('requests')} requests, "
            f"{found} violations ({len(self.distinct)} distinct), "
            f"{lost} of {exits} exits lost {self.total('blocks_lost')} settled blocks, "
            f"{sum(self.unjudged.values())} times something was not judged"
        )

    def metrics(self) -> str:
        """All counters in Prometheus's text form."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, meaning in METRICS.items():
            full = f"draftproof_vllm_{name}_total"
            yield f"# HELP {full} {meaning}"
            yield f"# TYPE {full} counter"
            found = [(labels, amount) for (one, labels), amount in self.counts.items() if one == name]
            for labels, amount in sorted(found) or [((), 0)]:
                text = ",".join(f'{key}="{value}"' for key, value in labels)
                yield f"{full}{{{text}}} {amount}" if text else f"{full} {amount}"


METRICS = {
    "steps": "Scheduler steps that were judged.",
    "requests": "Requests that were judged.",
    "events": "Accounting events that were replayed through the proven core.",
    "violations": "Rules that were broken, by kind and theorem.",
    "exits": "Requests that gave their blocks back, by exit.",
    "exits_with_lost_blocks": "Exits at which a settled block could not be found afterwards.",
    "blocks_lost": "Settled blocks that could not be found afterwards.",
    "blocks_settled": "Settled blocks that had to be findable at exits.",
}


class MetricsFile:
    """The counters in a file, for whoever collects them: never half of them, and anew every few seconds,
    since an engine core may be killed when its server stops."""

    def __init__(self, path: str, report: Report) -> None:
        self.path, self._report = Path(path.replace("{pid}", str(os.getpid()))), report
        self._due = 0.0
        self._failed = False

    def write_if_due(self, *, at_once: bool = False) -> None:
        """Write if that was long ago, or at once."""
        now = time.monotonic()
        if at_once or now >= self._due:
            self._due = now + SECONDS
            self.write()

    def write(self) -> None:
        """Write now. What cannot be written is told once."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_text(self._report.metrics())
            beside.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            if not self._failed:
                logger.warning(
                    "draftproof: the counters could not be written to %s: %s", self.path, error.strerror
                )
            self._failed = True


class Summary:
    """The summary in the log while an engine runs: whenever it is idle and something new was found, though
    not more often than every few seconds."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._num_told = 0
        self._due = 0.0

    def say_if_new(self) -> None:
        """Log it, if there is something new."""
        found = len(self._report.distinct)
        if found > self._num_told and time.monotonic() >= self._due:
            self._due, self._num_told = time.monotonic() + SECONDS, found
            logger.warning("draftproof so far: %s", self._report.summary())


PROCESS = Report()
"""What this process's engine core has found."""


@functools.cache
def say_at_exit() -> None:
    """When the process ends, log the summary of what it found."""
    atexit.register(_say)


def _say() -> None:
    if PROCESS.total("steps"):
        logger.warning("draftproof summary: %s", PROCESS.summary())
