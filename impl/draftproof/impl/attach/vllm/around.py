"""How is a call of a scheduler watched? What runs before and after each of the three methods.

A failure of the checks themselves must not stop an engine that serves: outside of mode `raise` it is logged
once, and that scheduler is not watched any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from draftproof.impl.attach.vllm import engine_view, reports, versions
from draftproof.impl.attach.vllm.reports import ContractViolationError, Report
from draftproof.impl.attach.vllm.settings import Settings

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch

logger = logging.getLogger("draftproof.attach.vllm")
PLACE = "_draftproof_watch"
"""Where a scheduler keeps its watch."""


class Around:
    """The three methods, with the checks around them. One object serves any number of schedulers."""

    def __init__(self, settings: Settings, report: Report | None = None) -> None:
        versions.require_supported(versions.installed())
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.request import RequestStatus

        self.settings = settings
        self.report = reports.PROCESS if report is None else report
        self._codes = engine_view.status_codes(RequestStatus)
        self._recordings: list[Any] = []
        self._summary = reports.Summary(self.report)
        path = settings.metrics_path
        self._metrics = None if path is None else reports.MetricsFile(path, self.report)
        self._asynchronous = AsyncScheduler

    def watch(self, scheduler: Any) -> Watch | None:
        """A scheduler's watch, begun at the first call; None if it is not watched any more."""
        there = vars(scheduler)
        if PLACE not in there:
            try:
                # Not before: it brings Numba, and vLLM 0.32's workers for CPUs do not start in a process that
                # has imported Numba already (`triton_utils.dispatcher` looks into every module there is).
                from draftproof.impl.attach.vllm.watch import Watch

                there[PLACE] = watch = Watch(
                    scheduler,
                    self.settings,
                    self.report,
                    self._codes,
                    asynchronous=isinstance(scheduler, self._asynchronous),
                )
                if watch.recording is not None:
                    self._recordings.append(watch.recording)
            except Exception as error:
                there[PLACE] = None
                self._fail(scheduler, error)
        found: Watch | None = there[PLACE]
        return found

    def close(self) -> None:
        """No more schedulers will be watched: traces end, and the counters are written for the last time."""
        if self._metrics is not None and self.report.total("steps"):
            self._metrics.write()
        for recording in self._recordings:
            try:
                recording.close()
            except ValueError as error:
                logger.error("draftproof: %s", error)
        self._recordings.clear()

    def _tell(self, *, idle: bool) -> None:
        """Now and then, and when there is nothing left to do: it may be the last opportunity."""
        if self._metrics is not None:
            self._metrics.write_if_due(at_once=idle)
        if idle:
            self._summary.say_if_new()

    def _fail(self, scheduler: Any, error: Exception) -> None:
        if self.settings.mode == "raise":
            raise error
        vars(scheduler)[PLACE] = None
        self.report.leave_out("everything: the checks themselves failed")
        logger.error("draftproof: the checks of this scheduler failed and are off now", exc_info=error)

    def _guarded(self, scheduler: Any, work: Callable[[Watch], Any]) -> Any:
        watch = vars(scheduler).get(PLACE) or self.watch(scheduler)
        if watch is None:
            return None
        try:
            found = work(watch)
        except ContractViolationError:
            raise
        except Exception as error:
            self._fail(scheduler, error)
            return None
        watch.raise_if_asked()
        return found

    def schedule(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        """Around `schedule`."""
        self._guarded(scheduler, lambda watch: watch.before_schedule(scheduler))
        output = call()
        self._guarded(scheduler, lambda watch: watch.after_schedule(scheduler, output))
        return output

    def update_from_output(self, scheduler: Any, output: Any, brought: Any, call: Callable[[], Any]) -> Any:
        """Around `update_from_output`."""
        returning = self._guarded(scheduler, lambda watch: watch.before_update(scheduler, output, brought))
        results = call()
        if returning is not None:
            self._guarded(scheduler, lambda watch: watch.after_update(scheduler, returning, results))
        self._tell(idle=not scheduler.requests)
        return results

    def add_request(self, scheduler: Any, request: Any, call: Callable[[], Any]) -> Any:
        """Around `add_request`."""
        awaited = self._guarded(scheduler, lambda watch: watch.before_add(scheduler, request))
        result = call()
        if awaited is not None:
            self._guarded(scheduler, lambda watch: watch.after_add(scheduler, request, awaited=awaited))
        return result
