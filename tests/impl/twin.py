"""Every call of a scheduler into its code, made interpreted, and compiled on a copy: all bytes are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.scheduler.calls import CompiledCalls
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler


class TwinCalls:
    """In the place of a scheduler's `InterpretedCalls`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.interpreted: Any = scheduler._calls
        num_memories = len(scheduler.memory)
        memories = [*scheduler.memory, *[batch.counts.base for batch in scheduler._batches]]
        copies = [None if memory is None else memory.copy() for memory in memories]
        self.pairs: list[Any] = [pair for pair in zip(memories, copies, strict=True) if pair[0] is not None]
        memory: Any = tuple(copies[:num_memories])
        self.compiled = CompiledCalls(memory, copies[num_memories:], scheduler.settings)
        self.num_calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            for mine, other in self.pairs:
                other[:] = mine  # a few cells are written from outside: the flags of a session, the report
            answers = [getattr(calls, name)(*arguments) for calls in (self.interpreted, self.compiled)]
            assert answers[0] == answers[1], f"{name}: interpreted {answers[0]}, compiled {answers[1]}"
            for place, (mine, other) in enumerate(self.pairs):
                cells = np.flatnonzero(mine != other)
                assert cells.size == 0, (
                    f"{name}: memory {place} differs in {cells.size} cells from {cells[0]}"
                )
            self.num_calls[name] = self.num_calls.get(name, 0) + 1
            return answers[0]

        return call


def twin_scheduler(config: SchedulerConfig) -> tuple[Scheduler, TwinCalls]:
    """An interpreted scheduler whose every call is compared with the compiled code's."""
    scheduler = Scheduler(config, compiled=False)
    calls: Any = TwinCalls(scheduler)
    scheduler._calls = calls
    return scheduler, calls
