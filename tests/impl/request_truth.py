"""What is one request like, told from outside? Its tokens, its limits, and the counters it must have.

The counters are those of the token-level reference (`draftproof.spec.tokens`) on the textbook's transitions,
driven with what really happens to the request. Which drafts are right and what is sampled is chosen when a
step is dispatched; which of it is kept, and why a turn stops, is worked out here in the plainest way.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.impl.prefixes import Prefixes

from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.settle import LENGTH, NOT_FINISHED, STOPPED
from draftproof.spec import queue, textbook, tokens
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.events import (
    EVENTS,
    Admit,
    ChunkOutput,
    Draft,
    Event,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
)
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import FINISHED, STATUS_NAMES, Ledger, Rules
from draftproof.spec.queue import Run
from draftproof.spec.tokens import Reference

TEXTBOOK: dict[str, Callable[..., Ledger]] = {name: getattr(textbook, name) for name in EVENTS}
NO_METRICS = Metrics(0, 0, 0, 0, 0, 0, 0)
INVALID = -1
"""A draft that a grammar ruled out."""


class Choices:
    """What the outside world decides, read from one number; once it is used up, always the first option."""

    def __init__(self, number: int) -> None:
        self._rest = number

    def below(self, count: int) -> int:
        """0 to count - 1."""
        self._rest, choice = divmod(self._rest, count)
        return choice


def rules_of(config: SchedulerConfig) -> Rules:
    """The engine's rules."""
    return Rules(
        num_speculative_tokens=config.num_speculative_tokens,
        block_size=config.rules_block_size,
        asynchronous=config.asynchronous,
        registration_fence=config.registration_fence,
    )


Words = Callable[[int, Choices], int]
"""What the model says at a position."""


class Turn(NamedTuple):
    """What a session is asked next, and when its answer ends."""

    token_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int


class Answer(NamedTuple):
    """What a step in flight will bring its request."""

    num_tokens: int
    num_drafts: int
    num_verified: int
    """Drafts that could be right: not padding, not ruled out."""
    generated: tuple[int, ...]
    """Accepted drafts and the token sampled after them; nothing for a prefill chunk."""


@dataclasses.dataclass(eq=False)
class Request:
    """One request. `token_ids` are the committed ones."""

    config: SchedulerConfig
    rules: Rules
    known_prefixes: Prefixes
    number: int
    request_id: str
    row: int
    salt: str
    priority: int
    stop_token_ids: frozenset[int]
    resumable: bool
    words: Words
    reference: Reference
    max_num_tokens: int
    min_num_tokens: int
    token_ids: list[int] = dataclasses.field(default_factory=list)
    prefixes: list[int] = dataclasses.field(default_factory=list)
    """Of the first one, two, ... tokens, as the device numbers them."""
    proposal: list[int] | None = None
    """Drafts for the next step that the host knows; None where the device has its own."""
    padded: bool = False
    """Whether the next step's drafts are padding."""
    in_flight: deque[Answer] = dataclasses.field(default_factory=deque)
    turns: deque[Turn] = dataclasses.field(default_factory=deque)
    """Chunks that wait for the end of the turn."""
    closing: bool = False
    first_step: int = 0
    """Of its present life."""
    acceptance_percent: int | None = None
    metrics: Metrics = NO_METRICS

    @property
    def ledger(self) -> Ledger:
        """The counters as they must be."""
        return self.reference.run.state.ledger

    @property
    def num_settled_tokens(self) -> int:
        """W."""
        return self.reference.run.state.ghosts.num_settled_tokens

    @property
    def is_over(self) -> bool:
        """Finished, and the last step in flight has returned: the row is unused."""
        return self.ledger.status == FINISHED and not self.in_flight

    # ---- what happens ----

    def happens(self, event: Event, num_accepted: int = 0) -> None:
        """The event moves the reference; it must be possible."""
        assert tokens.possible(self.reference, self.rules, event), (
            f"{self.request_id}: {event} may not happen; {STATUS_NAMES[self.ledger.status]}, {self.ledger}"
        )
        self.reference = tokens.advance(self.reference, self.rules, event, TEXTBOOK, num_accepted)

    def learns(self, token_ids: Sequence[int]) -> None:
        """Tokens are committed behind those that are known."""
        for token in token_ids:
            before = self.prefixes[-1] if self.prefixes else self.known_prefixes.root(self.salt)
            self.prefixes.append(self.known_prefixes.after(before, token))
            self.token_ids.append(token)

    def starts(self, first: int, num_padded: int) -> None:
        """The request is admitted at position `first`, its first step padded with so many drafts."""
        num_hit_tokens = first if self.ledger.num_computed_tokens == 0 else 0
        if self.metrics.num_admissions == 0:
            self.metrics = self.metrics._replace(num_cached_tokens=num_hit_tokens)
        self.metrics = self.metrics._replace(num_admissions=self.metrics.num_admissions + 1)
        self.happens(Admit(num_hit_tokens))
        self.proposal, self.padded = None, num_padded > 0
        if num_padded > 0:
            self.happens(Draft(num_padded))

    def proposed(self, proposal: list[int]) -> bool:
        """The drafter proposes; whether the request can use it now."""
        count = min(len(proposal), self.config.max_model_len - self.ledger.num_tokens)
        if not tokens.possible(self.reference, self.rules, Draft(count)):
            return False
        self.happens(Draft(count))
        self.proposal, self.padded = proposal[:count], False
        return True

    def drafts(self, num_drafts: int) -> list[int]:
        """What the host can say of the next step's drafts: `INVALID` if nothing."""
        return [INVALID] * num_drafts if self.proposal is None else self.proposal[:num_drafts]

    def dispatched(self, num_tokens: int, choices: Choices) -> Answer:
        """The request's step of so many tokens is dispatched, and what it will bring is decided."""
        event = Schedule(num_tokens)
        planned = queue.dispatched(self.reference.run.state, event)
        known = self.drafts(planned.num_drafts)
        num_verified = sum(draft != INVALID for draft in known)
        right = known[: known.index(INVALID)] if INVALID in known else known
        if self.proposal is None and not self.padded:
            num_verified = planned.num_drafts
            position = len(self.reference.sequence)
            right = [self.words(position + place, choices) for place in range(planned.num_drafts)]
        num_accepted = self.accepts(len(right), choices)
        generated: tuple[int, ...] = ()
        if planned.samples:
            last = self.words(len(self.reference.sequence) + num_accepted, choices)
            generated = (*right[:num_accepted], last)
        self.happens(event, num_accepted)
        self.proposal, self.padded = None, False
        answer = Answer(num_tokens, planned.num_drafts, num_verified, generated)
        self.in_flight.append(answer)
        return answer

    def accepts(self, num_right: int, choices: Choices) -> int:
        """How many of the drafts that can be right are right: any number, or each with a chance."""
        if self.acceptance_percent is None:
            return num_right - choices.below(num_right + 1)
        count = 0
        while count < num_right and choices.below(100) < self.acceptance_percent:
            count += 1
        return count

    def returns(self) -> tuple[int, int]:
        """The oldest step in flight has returned: how many tokens are kept, and the reason if they stop."""
        answer = self.in_flight.popleft()
        num_generated = len(answer.generated)
        stale, dropped = self.ledger.num_stale_tokens > 0, self.ledger.drop_stale
        num_kept, reason = 0, NOT_FINISHED
        if not (stale and dropped):
            num_kept, reason = self._kept(answer.generated)
        stopped = int(reason != NOT_FINISHED)
        if stale:
            self.happens(StaleOutput(answer.num_tokens, num_kept, stopped))
        elif num_generated == 0:
            self.happens(ChunkOutput(answer.num_tokens))
        else:
            self.happens(Output(answer.num_tokens, answer.num_drafts, num_generated - 1, num_kept, stopped))
        self.learns(answer.generated[:num_kept])
        if num_kept > 0 and answer.num_verified > 0:
            metrics = self.metrics
            self.metrics = metrics._replace(
                num_verified_steps=metrics.num_verified_steps + 1,
                num_drafts_verified=metrics.num_drafts_verified + answer.num_verified,
                num_drafts_accepted=metrics.num_drafts_accepted + min(num_generated - 1, num_kept),
                num_emitted_tokens=metrics.num_emitted_tokens + num_kept,
            )
        return num_kept, reason

    def never_returns(self) -> None:
        """The oldest step in flight has failed: its request no longer counts on it."""
        answer = self.in_flight.popleft()
        run = self.reference.run
        event = StaleOutput(answer.num_tokens, 0, 0)
        after = TEXTBOOK["stale_output"](run.state.ledger, self.rules, *event)
        self.reference = self.reference._replace(
            run=Run(State(after, run.state.ghosts), run.queue[1:]), in_flight=self.reference.in_flight[1:]
        )

    def is_preempted(self, drop: bool) -> None:
        """Its blocks are gone."""
        self.happens(Preempt(drop))
        self.proposal, self.padded = None, False

    def next_turn(self) -> None:
        """The oldest chunk that waits is folded in."""
        turn = self.turns.popleft()
        self.happens(Fold(len(turn.token_ids)))
        del self.token_ids[-1], self.prefixes[-1]
        self.learns(turn.token_ids)
        self.limit(turn.max_tokens, turn.min_tokens)
        if self.closing and not self.turns:
            self.resumable = False

    def limit(self, max_tokens: int, min_tokens: int) -> None:
        """When the turn that begins stops."""
        count = len(self.token_ids)
        self.max_num_tokens = min(count + max_tokens, self.config.max_model_len)
        self.min_num_tokens = count + min_tokens

    def _kept(self, generated: Sequence[int]) -> tuple[int, int]:
        """One generated token after the other, until one stops the request."""
        for count, token in enumerate(generated, 1):
            num_tokens = len(self.token_ids) + count
            if token in self.stop_token_ids and num_tokens >= self.min_num_tokens:
                return count, STOPPED
            if num_tokens >= self.max_num_tokens:
                return count, LENGTH
        return len(generated), NOT_FINISHED
