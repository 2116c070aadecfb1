"""Checked versions of vLLM's two schedulers, for `--scheduler-cls`. They decide nothing themselves."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from draftproof.impl.attach.vllm import reports, settings
from draftproof.impl.attach.vllm.around import Around


class WrongSchedulerError(ValueError):
    """The checked scheduler is not the one for this engine's mode."""


@functools.cache
def _around() -> Around:
    """The checks of this process, as the environment switches them."""
    chosen = settings.read()
    around = Around(chosen)
    reports.say_at_exit()
    atexit.register(around.close)
    return around


class Checks:
    """The three methods with the checks around them, for a class before vLLM's in the order of bases."""

    draftproof: Around | None = None
    """Other checks than the process's, for tests."""

    def _draftproof(self) -> Around:
        return self.draftproof or _around()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's."""
        above: Any = super()
        return self._draftproof().schedule(self, lambda: above.schedule(*args, **kwargs))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM's."""
        above: Any = super()
        return self._draftproof().update_from_output(
            self,
            scheduler_output,
            model_runner_output,
            lambda: above.update_from_output(scheduler_output, model_runner_output),
        )

    def add_request(self, request: Any) -> None:
        """As vLLM's."""
        above: Any = super()
        self._draftproof().add_request(self, request, lambda: above.add_request(request))


def _asynchronous(scheduler: Any) -> bool:
    return bool(scheduler.vllm_config.scheduler_config.async_scheduling)


class CheckedScheduler(Checks, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler, checked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._draftproof()
        super().__init__(*args, **kwargs)
        if _asynchronous(self):
            raise WrongSchedulerError(
                "CheckedScheduler checks synchronous scheduling and this engine schedules asynchronously: "
                "use CheckedAsyncScheduler, or switch asynchronous scheduling off (--no-async-scheduling)"
            )


class CheckedAsyncScheduler(Checks, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, checked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._draftproof()
        super().__init__(*args, **kwargs)
        if not _asynchronous(self):
            raise WrongSchedulerError(
                "CheckedAsyncScheduler checks asynchronous scheduling and this engine schedules "
                "synchronously: use CheckedScheduler, or switch asynchronous scheduling on "
                "(--async-scheduling)"
            )
