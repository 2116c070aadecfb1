"""What does the outside world do to a scheduler? Small prompts that share beginnings, answers, drafts.

A *text* is an endless sequence of four words; prompts begin with one and may go on with another, and models
mostly go on with the text: so requests meet each other's blocks, at every length. Two more words stop.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from tests.impl import findable
from tests.impl.request_truth import INVALID, Choices, Request, Words
from tests.impl.watched import WatchedScheduler

from draftproof.impl import assert_accounting
from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError
from draftproof.impl.scheduler.requests import check_fits
from draftproof.impl.scheduler.scheduler import Scheduler

UNUSED, EOS, STOP, FIRST_WORD = range(4)
GROUPS = {
    "full": ("full",),
    "full, larger": ("full", "larger"),
    "window": ("window",),
    "full, window": ("full", "window"),
    "recurrent": ("recurrent",),
    "full, recurrent": ("full", "recurrent"),
    "larger, window, recurrent": ("larger", "window", "recurrent"),
}
VOCAB_SIZE = 10
"""The last words are never said either."""


def word(text: int, position: int) -> int:
    """A text's token at a position."""
    return FIRST_WORD + ((text * 7919 + position * position * 31 + position * 17) >> 1) % 4


def written(text: int, other: int, switch: int, length: int) -> list[int]:
    """The first tokens of a text, from `switch` on those of another."""
    return [word(text if position < switch else other, position) for position in range(length)]


def model(text: int) -> Words:
    """A model that mostly goes on with the text; of eight answers one is EOS and one a stop token."""

    def say(position: int, choices: Choices) -> int:
        choice = choices.below(8)
        return (word(text, position) + 1, STOP, EOS)[choice - 5] if choice > 4 else word(text, position)

    return say


def draft(text: int, position: int, choices: Choices) -> int:
    """One draft in eight is EOS, and one is ruled out by a grammar."""
    choice = choices.below(8)
    return (EOS, INVALID)[choice - 6] if choice > 5 else word(text, position)


class Settings(NamedTuple):
    """What an example of a scheduler is made of; small numbers, so that every boundary is near."""

    asynchronous: bool = False
    depth: int = 2
    """Steps in flight when asynchronous."""
    num_drafts: int = 2
    block_size: int = 2
    groups: str = "full"
    """KV cache groups, by name: see `GROUPS`."""
    lookahead: int = 0
    hash_lookahead: bool = False
    num_lookahead_slots: int = 0
    extra_blocks: int = 0
    """Beyond what the longest possible request needs."""
    max_num_seqs: int = 2
    extra_budget: int = 60
    """Beyond what a step needs at least."""
    threshold: int = 0
    by_priority: bool = False
    caching: bool = True
    drop_stale: bool = False
    release_at_once: bool = False

    @property
    def max_model_len(self) -> int:
        """Four blocks, and a bit."""
        return 4 * self.block_size + self.num_drafts + 4

    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The KV cache groups. A recurrent one's states are as far apart as a step of drafts needs."""
        size, names = self.block_size, GROUPS[self.groups]
        unit = 2 * size if "larger" in names else size
        kinds = {
            "full": KVGroup(size),
            "larger": KVGroup(2 * size),
            "window": KVGroup(size, "sliding_window", size + 1),
            "recurrent": KVGroup(-(-(1 + self.num_drafts) // unit) * unit, "recurrent"),
        }
        return tuple([kinds[name] for name in names])

    def config(self) -> SchedulerConfig:
        """The configuration: its pool is large enough for the longest request, and the extra blocks."""
        for num_blocks in itertools.count(1):
            config = self.with_blocks(num_blocks)
            try:
                check_fits(config, self.max_model_len - 1, 1)
            except RequestError:
                continue
            return self.with_blocks(num_blocks + self.extra_blocks)
        raise AssertionError

    def with_blocks(self, num_blocks: int) -> SchedulerConfig:
        """The configuration with a pool of this size."""
        groups = self.kv_groups()
        recurrent = [group.block_size for group in groups if group.kind == "recurrent"]
        shortest = max(self.lookahead, 1) + max(recurrent, default=1) - 1
        least = max(1 + self.num_drafts, shortest)
        return SchedulerConfig(
            max_model_len=self.max_model_len,
            num_blocks=num_blocks,
            groups=groups,
            max_num_seqs=self.max_num_seqs,
            max_num_requests=8,
            max_num_batched_tokens=least + self.extra_budget,
            long_prefill_token_threshold=self.threshold and max(self.threshold, shortest),
            num_speculative_tokens=self.num_drafts,
            asynchronous=self.asynchronous,
            max_in_flight_steps=self.depth if self.asynchronous else 1,
            policy="priority" if self.by_priority else "fcfs",
            enable_prefix_caching=self.caching,
            num_lookahead_tokens=self.num_lookahead_slots,
            num_prefill_lookahead_tokens=self.lookahead,
            lookahead="hash" if self.hash_lookahead and not recurrent else "drop",
            drop_stale_output=self.drop_stale,
            release="at_once" if self.release_at_once else "at_return",
            vocab_size=VOCAB_SIZE,
            hash_seed=3,
        )


class World:
    """A watched scheduler and who uses it. Every call is a few small numbers, for Hypothesis and for walks.

    What cannot be done at the moment is passed over, and so is a request that is refused.
    """

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler | None = None,
        *,
        checks: bool = True,
        sweeps: bool = True,
    ) -> None:
        self.settings = settings
        self.sweeps = sweeps
        """Whether the scheduler's own sweep (`assert_accounting`) is asked, too."""
        self.watched = WatchedScheduler(settings.config(), scheduler, checks=checks)
        self.num_added = 0

    def add(
        self,
        length: int,
        *,
        text: int = 0,
        other: int = 1,
        switch: int = 99,
        max_tokens: int = 3,
        min_tokens: int = 0,
        stops: bool = True,
        resumable: bool = False,
        priority: int = 0,
        salted: bool = False,
    ) -> Request | None:
        """A request arrives."""
        if len(self.watched.by_row) == self.watched.config.max_num_requests:
            return None
        self.num_added += 1
        length = 1 + (length - 1) % (self.settings.max_model_len - 1)
        try:
            return self.watched.add(
                str(self.num_added - 1),
                written(text, other, switch, length),
                model(other if switch < length else text),
                max_tokens=max_tokens,
                min_tokens=min(min_tokens, max_tokens),
                stop_token_ids=(STOP,) if stops else (),
                eos_token_id=EOS if stops else None,
                resumable=resumable,
                priority=priority,
                cache_salt="salt" if salted else "",
            )
        except RequestError:
            return None

    def request(self, index: int, *, session: bool = False) -> Request | None:
        """One of the requests that are known."""
        known = [
            one
            for one in self.watched.requests.values()
            if not session or (one.resumable and not one.closing)
        ]
        return known[index % len(known)] if known else None

    def append_chunk(self, index: int, length: int, *, text: int = 0, max_tokens: int = 2) -> None:
        """The next chunk of one of the sessions."""
        request = self.request(index, session=True)
        if request is None:
            return
        position = len(request.token_ids)
        chunk = [word(text, position + place) for place in range(length)]
        try:
            self.watched.append_chunk(request.request_id, chunk, max_tokens=max_tokens)
        except RequestError:
            return

    def close_session(self, index: int) -> None:
        """One of the sessions gets no more chunks."""
        request = self.request(index, session=True)
        if request is not None:
            self.watched.close_session(request.request_id)
            self._check_exits()

    def abort(self, index: int) -> None:
        """One of the requests is aborted."""
        request = self.request(index)
        if request is not None:
            self.watched.abort(request.request_id)
            self._check_exits()

    def schedule(self, choices: int) -> None:
        """The next step, if one more may be in flight."""
        if self.watched.can_schedule():
            self.watched.schedule(Choices(choices))

    def settle(self, choices: int = 0, *, proposes: bool = True) -> None:
        """The oldest step returns, and its drafter proposes."""
        if not self.watched.steps:
            return
        batch = self.watched.settle()
        self._check_exits()
        if proposes and self.settings.num_drafts > 0:
            rows = batch.rows[: batch.num_requests].tolist()
            chosen = Choices(choices)
            self.watched.propose(rows, [self._proposal(row, chosen) for row in rows])

    def advance(self, count: int, choices: int) -> None:
        """So many times the next step, or the oldest returns, as it comes; now and then somebody arrives."""
        chosen = Choices(choices)
        for _ in range(count):
            if chosen.below(8) == 7 or not self.watched.requests:
                self.arrive(chosen)
            ahead = chosen.below(2) == 0
            if self.watched.can_schedule() and (ahead or not self.watched.steps):
                self.watched.schedule(Choices(chosen.below(2**24)))
            else:
                self.settle(chosen.below(2**12), proposes=not self.settings.asynchronous)
        if self.sweeps:
            assert_accounting(self.watched.scheduler)

    def arrive(self, choices: Choices) -> None:
        """Some request arrives."""
        longest = self.settings.max_model_len
        self.add(
            1 + choices.below(longest - 1),
            text=choices.below(2),
            switch=choices.below(longest),
            max_tokens=1 + choices.below(longest),
            min_tokens=choices.below(3),
            resumable=choices.below(4) == 3,
            priority=choices.below(3),
            salted=choices.below(4) == 3,
        )

    def run_device(self) -> None:
        """The device gets ahead of what has been told."""
        if self.watched.device.num_steps():
            self.watched.run_device()

    def fail(self) -> None:
        """The steps in flight are lost."""
        if self.watched.steps:
            self.watched.fail()
            self._check_exits()

    def reset_prefix_cache(self, preempt_running: bool) -> None:
        """The weights change."""
        self.watched.reset_prefix_cache(preempt_running)

    def look_up(self, length: int, *, text: int = 0, other: int = 1, switch: int = 99) -> None:
        """Somebody asks what of a prompt is in the cache."""
        length = min(length, self.settings.max_model_len)
        if len(self.watched.by_row) < self.watched.config.max_num_requests:
            findable.check_look_up(self.watched, written(text, other, switch, length))

    def finish_all(self) -> int:
        """Let everybody come to an end, sessions too; returns how many steps that took.

        With nothing new and nothing lost every request that waits or runs must end: the bound is enough even
        if each token had a step of its own, one request after the other, each preempted by each.
        """
        for request in list(self.watched.requests.values()):
            if request.resumable and not request.closing:
                self.watched.close_session(request.request_id)
        self._check_exits()
        most = 20 * self.settings.max_model_len * (1 + len(self.watched.requests))
        for count in range(most):
            if not self.watched.scheduler.has_unfinished_requests():
                left = sorted(self.watched.by_row)
                assert not left, f"everybody has left, and rows {left} are in use"
                return count
            if self.watched.can_schedule():
                self.watched.schedule(Choices(0))
            self.settle(proposes=not self.settings.asynchronous)
        names = sorted(self.watched.requests)
        raise AssertionError(f"after {most} steps requests {names} have not finished")

    def _proposal(self, row: int, choices: Choices) -> list[int]:
        """Drafts for a row, mostly of its text; a grammar may rule some out."""
        request = self.watched.by_row.get(row)
        position = 0 if request is None else len(request.token_ids)
        count = self.settings.num_drafts - choices.below(self.settings.num_drafts + 1)
        text = choices.below(2)
        return [draft(text, position + place, choices) for place in range(count)]

    def _check_exits(self) -> None:
        """Whoever has just left can be found."""
        for one in self.watched.exits:
            findable.check_exit(self.watched, one)
        self.watched.exits.clear()
