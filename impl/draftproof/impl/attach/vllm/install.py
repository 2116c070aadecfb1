"""How are vLLM's own schedulers checked, where nobody can name another class?

The three methods of `Scheduler` are replaced in place, for the whole process; `AsyncScheduler` inherits them.
That is what the plug-ins do, for vLLM (`register`) and for pytest.
"""

from __future__ import annotations

import functools
from typing import Any

from draftproof.impl.attach.vllm.around import PLACE, Around

METHODS = ("schedule", "update_from_output", "add_request")


class Installed:
    """The checks in place of vLLM's methods, until they are taken out again."""

    def __init__(self, around: Around) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        self.around = around
        self._class: Any = Scheduler
        self._originals = {name: vars(Scheduler)[name] for name in METHODS}
        schedule, update, add = (self._originals[name] for name in METHODS)

        @functools.wraps(schedule)
        def checked_schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            return self._here(scheduler).schedule(scheduler, lambda: schedule(scheduler, *args, **kwargs))

        @functools.wraps(update)
        def checked_update(scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
            return self._here(scheduler).update_from_output(
                scheduler,
                scheduler_output,
                model_runner_output,
                lambda: update(scheduler, scheduler_output, model_runner_output),
            )

        @functools.wraps(add)
        def checked_add(scheduler: Any, request: Any) -> Any:
            return self._here(scheduler).add_request(scheduler, request, lambda: add(scheduler, request))

        for name, method in zip(METHODS, (checked_schedule, checked_update, checked_add), strict=True):
            setattr(Scheduler, name, method)

    def _here(self, scheduler: Any) -> Any:
        """The checks, or nothing for a class that has its own."""
        return _NOTHING if hasattr(type(scheduler), "_draftproof") else self.around

    def remove(self) -> None:
        """Put vLLM's methods back."""
        for name, method in self._originals.items():
            setattr(self._class, name, method)


class _Nothing:
    """No checks."""

    def schedule(self, scheduler: Any, call: Any) -> Any:
        return call()

    def update_from_output(self, scheduler: Any, output: Any, brought: Any, call: Any) -> Any:
        return call()

    def add_request(self, scheduler: Any, request: Any, call: Any) -> Any:
        return call()


_NOTHING = _Nothing()
__all__ = ["METHODS", "PLACE", "Installed"]
