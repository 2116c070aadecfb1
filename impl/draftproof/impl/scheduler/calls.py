"""How are the scheduler's functions called? Compiled on arrays, or interpreted on memoryviews of the same.

Both do the same to the same bytes. A batch is named by its place in the ring of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from draftproof.impl.scheduler import lifecycle, settle, step
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PAUSED, batch_views
from draftproof.impl.scheduler.layout import Settings, interpreted, views


class CompiledCalls:
    """Machine code, compiled now or loaded from disk."""

    def __init__(self, memory: tuple[Any, Any, Any], batches: Sequence[Any], settings: Settings) -> None:
        # Only those who run it load the compiler.
        from draftproof.impl.scheduler.compiled import entry_point, entry_points

        self._memory = memory
        self._batches = batches
        # What every step needs is compiled now, what is seldom called when it is.
        self._seldom = partial(entry_point, has_recurrent_groups=memory[2] is not None)
        found = entry_points(memory[2] is not None)
        self._schedule_step = [partial(found["schedule_step"], *memory, batch) for batch in batches]
        self._settle_step = [partial(found["settle_step"], *memory, batch) for batch in batches]
        self._add_row, self._take_drafts = found["add_row"], found["take_drafts"]
        self._abort_row, self._fold_row = found["abort_row"], found["fold_row"]

    def schedule_step(self, place: int) -> None:
        """See `step.schedule_step`."""
        self._schedule_step[place]()

    def settle_step(self, place: int, sampled: Any, num_sampled: Any) -> tuple[int, int]:
        """See `entry.settle_step`. Raises TypeError or ValueError for anything but contiguous,
        writable int32 arrays."""
        return self._settle_step[place](sampled, num_sampled)  # type: ignore[no-any-return]

    def take_drafts(self, rows: Any, draft_token_ids: Any, num_drafts: Any) -> int:
        """See `entry.take_drafts`. Raises TypeError or ValueError for anything but contiguous,
        writable int32 arrays."""
        return self._take_drafts(  # type: ignore[no-any-return]
            *self._memory, rows, draft_token_ids, num_drafts
        )

    def add_row(self, token_ids: Any, parameters: Any, stop_token_ids: Any) -> int:
        """See `lifecycle.add_row`."""
        return self._add_row(  # type: ignore[no-any-return]
            *self._memory, token_ids, parameters, stop_token_ids
        )

    def fold_row(self, row: int, token_ids: Any, max_tokens: int, min_tokens: int) -> None:
        """See `lifecycle.fold_row`."""
        self._fold_row(*self._memory, row, token_ids, max_tokens, min_tokens)

    def abort_row(self, row: int) -> None:
        """See `lifecycle.abort_row`."""
        self._abort_row(*self._memory, row)

    def clear_cache(self) -> None:
        """See `lifecycle.clear_cache`."""
        self._seldom("clear_cache")(*self._memory)

    def preempt_all(self, report: int) -> None:
        """See `lifecycle.preempt_all`."""
        self._seldom("preempt_all")(*self._memory, self._batches[report])

    def withdraw_step(self, place: int) -> None:
        """See `lifecycle.withdraw_step`."""
        self._seldom("withdraw_step")(*self._memory, self._batches[place])

    def give_up_step(self, place: int, report: int) -> None:
        """See `lifecycle.give_up_step`."""
        self._seldom("give_up_step")(*self._memory, self._batches[place], self._batches[report])

    def drop_step(self, place: int) -> None:
        """See `lifecycle.drop_step`."""
        self._seldom("drop_step")(*self._memory, self._batches[place])

    def num_cached_tokens(self, token_ids: Any, salt_first: int, salt_second: int) -> int:
        """See `lifecycle.num_cached_tokens`."""
        return self._seldom("num_cached_tokens")(  # type: ignore[no-any-return]
            *self._memory, token_ids, salt_first, salt_second
        )


class InterpretedCalls:
    """The same functions, as Python."""

    def __init__(self, memory: tuple[Any, Any, Any], batches: Sequence[Any], settings: Settings) -> None:
        self.state = interpreted(views(*memory))
        self.batches = [interpreted(batch_views(one, settings)) for one in batches]

    def schedule_step(self, place: int) -> None:
        """See `step.schedule_step`."""
        step.schedule_step(self.state, self.batches[place])

    def settle_step(self, place: int, sampled: Any, num_sampled: Any) -> tuple[int, int]:
        """See `entry.settle_step`."""
        batch = self.batches[place]
        outcome = memoryview(sampled), memoryview(num_sampled)
        problem, index = settle.problem_of_outcome(self.state, batch, *outcome)
        if problem == settle.ACCEPTED:
            settle.settle_step(self.state, self.state.recurrent, batch, *outcome)
            index = batch.counts[NUM_FINISHED] + batch.counts[NUM_PAUSED]
        return problem, index

    def take_drafts(self, rows: Any, draft_token_ids: Any, num_drafts: Any) -> int:
        """See `entry.take_drafts`."""
        proposals = memoryview(rows), memoryview(draft_token_ids), memoryview(num_drafts)
        index = settle.wrong_draft(self.state, *proposals)
        if index < 0:
            settle.take_drafts(self.state, *proposals)
        return index

    def add_row(self, token_ids: Any, parameters: Any, stop_token_ids: Any) -> int:
        """See `lifecycle.add_row`."""
        arguments = memoryview(token_ids), memoryview(parameters), memoryview(stop_token_ids)
        return lifecycle.add_row(self.state, *arguments)

    def fold_row(self, row: int, token_ids: Any, max_tokens: int, min_tokens: int) -> None:
        """See `lifecycle.fold_row`."""
        lifecycle.fold_row(self.state, row, memoryview(token_ids), max_tokens, min_tokens)

    def abort_row(self, row: int) -> None:
        """See `lifecycle.abort_row`."""
        lifecycle.abort_row(self.state, row)

    def clear_cache(self) -> None:
        """See `lifecycle.clear_cache`."""
        lifecycle.clear_cache(self.state)

    def preempt_all(self, report: int) -> None:
        """See `lifecycle.preempt_all`."""
        lifecycle.preempt_all(self.state, self.batches[report])

    def withdraw_step(self, place: int) -> None:
        """See `lifecycle.withdraw_step`."""
        lifecycle.withdraw_step(self.state, self.batches[place])

    def give_up_step(self, place: int, report: int) -> None:
        """See `lifecycle.give_up_step`."""
        lifecycle.give_up_step(self.state, self.batches[place], self.batches[report])

    def drop_step(self, place: int) -> None:
        """See `lifecycle.drop_step`."""
        lifecycle.drop_step(self.state, self.batches[place])

    def num_cached_tokens(self, token_ids: Any, salt_first: int, salt_second: int) -> int:
        """See `lifecycle.num_cached_tokens`."""
        return lifecycle.num_cached_tokens(self.state, memoryview(token_ids), salt_first, salt_second)


Calls = CompiledCalls | InterpretedCalls
