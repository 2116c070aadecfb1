"""A checked scheduler of vLLM, as it is shipped or corrected, with a report of its own."""

from __future__ import annotations

import time
from typing import Any, NamedTuple
from unittest import mock

from tests.vllm import engine
from tests.vllm.attach_corrected import (
    CorrectedAsyncScheduler,
    CorrectedScheduler,
    FaultyAsyncScheduler,
    FaultyScheduler,
)
from tests.vllm.workloads import Settings

from draftproof.impl.attach.vllm.around import PLACE, Around
from draftproof.impl.attach.vllm.reports import Report, Violation
from draftproof.impl.attach.vllm.settings import Settings as CheckSettings
from draftproof.impl.attach.vllm.watch import Watch

EVERY_STEP = CheckSettings(sweep_interval=1)


class World(NamedTuple):
    """A scheduler and what its checks find."""

    scheduler: Any
    report: Report
    around: Around

    def settle(self, step: Any, **sampled: list[int]) -> Any:
        """A step returns with these tokens, by request."""
        return self.scheduler.update_from_output(step, engine.returned(step, sampled))

    def of(self, kind: str) -> list[Violation]:
        """The violations of a kind."""
        return [violation for violation in self.report.violations if violation.kind == kind]

    def only(self) -> Violation:
        """The only violation there is."""
        (violation,) = self.report.violations
        return violation

    @property
    def watch(self) -> Watch:
        """The scheduler's watch."""
        watch: Watch = vars(self.scheduler)[PLACE]
        return watch


def world(
    settings: Settings, *, corrected: bool = False, checks: CheckSettings = EVERY_STEP, base: Any = None
) -> World:
    """A new scheduler under watch. `base`: a class of its own instead of one of the four."""
    report = Report()
    around = Around(checks, report)
    if base is None:
        base = {
            (False, False): FaultyScheduler,
            (False, True): FaultyAsyncScheduler,
            (True, False): CorrectedScheduler,
            (True, True): CorrectedAsyncScheduler,
        }[corrected, settings.asynchronous]
    with mock.patch.object(
        engine,
        "AsyncScheduler" if settings.asynchronous else "Scheduler",
        type(base.__name__, (base,), {"draftproof": around}),
    ):
        return World(engine.new_scheduler(settings), report, around)


def preempt(scheduler: Any, request: Any) -> None:
    """What `schedule` does to a victim when blocks run out."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic())
