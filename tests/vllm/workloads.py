"""What do both schedulers get to do? Seeded workloads, and a device whose results depend on nothing else.

Everything here is data or a function of (request, position): the same on both sides, whatever either side
schedules when. A request's text is fixed before it runs, so that later requests can continue the conversation
of earlier ones, which is what shows blocks that were lost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

FIRST_WORD, LAST_WORD = 5, 29_999
EOS_TOKEN_ID = 2
STOP_TOKEN_ID = 3
WRONG_DRAFT = 4
"""A token that no request ever samples."""


class Settings(NamedTuple):
    """What the comparison varies, under vLLM's names. Counts are tokens unless said."""

    num_blocks: int = 4_096
    """Without the null block."""
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 8_192
    max_model_len: int = 8_192
    num_speculative_tokens: int = 0
    asynchronous: bool = False
    long_prefill_token_threshold: int = 0
    by_priority: bool = False
    num_prefill_lookahead_tokens: int = 0
    """A: 0 none, 1 EAGLE, K multi-module MTP."""


class Arrival(NamedTuple):
    """A request, and the step before which it arrives."""

    step: int
    number: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    eos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    priority: int

    @property
    def request_id(self) -> str:
        """Its name on both sides."""
        return str(self.number)


class Abort(NamedTuple):
    """A client hangs up before a step, if the request has not finished by then."""

    step: int
    number: int


class Workload(NamedTuple):
    """A seeded case of the comparison."""

    seed: int
    settings: Settings
    device: Device
    arrivals: tuple[Arrival, ...]
    aborts: tuple[Abort, ...]


class Device(NamedTuple):
    """A model and a drafter without weights: each answer is a function of the seed, request and position."""

    seed: int
    num_speculative_tokens: int
    acceptance_percent: int
    stop_percent: int
    """How many of the positions hold a token that stops a request which listens to it."""
    short_percent: int
    """How many of the proposals have fewer than K drafts, or none."""

    def token(self, number: int, position: int) -> int:
        """The token that the model samples at a position of a request."""
        if scatter(self.seed, 1, number, position) % 100 < self.stop_percent:
            return EOS_TOKEN_ID if scatter(self.seed, 2, number, position) % 2 else STOP_TOKEN_ID
        return FIRST_WORD + scatter(self.seed, 3, number, position) % (LAST_WORD - FIRST_WORD)

    def num_good_drafts(self, number: int, position: int) -> int:
        """Of the drafts for the positions from this one on, how many the model will accept."""
        count = 0
        while (
            count < self.num_speculative_tokens
            and scatter(self.seed, 4, number, position, count) % 100 < self.acceptance_percent
        ):
            count += 1
        return count

    def drafts(self, number: int, position: int) -> tuple[int, ...]:
        """The proposals for the positions from this one on."""
        count = self.num_speculative_tokens
        if scatter(self.seed, 5, number, position) % 100 < self.short_percent:
            count = scatter(self.seed, 6, number, position) % (count + 1)
        good = self.num_good_drafts(number, position)
        return tuple(
            self.token(number, position + place) if place < good else WRONG_DRAFT for place in range(count)
        )

    def sampled(self, number: int, position: int, num_drafts: int) -> tuple[int, ...]:
        """What a step brings that verified so many drafts: the accepted ones and one token more."""
        num_accepted = min(self.num_good_drafts(number, position), num_drafts)
        return tuple(self.token(number, position + place) for place in range(num_accepted + 1))


def scatter(*numbers: int) -> int:
    """A number that depends on all of these in no simple way (the steps of SplitMix64)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed


def text(arrival: Arrival, device: Device, max_model_len: int) -> tuple[int, ...]:
    """All tokens of a request once it has finished, if nobody aborts it."""
    tokens = list(arrival.prompt_token_ids)
    for place in range(arrival.max_tokens):
        token = device.token(arrival.number, len(arrival.prompt_token_ids) + place)
        tokens.append(token)
        if token == arrival.eos_token_id or token in arrival.stop_token_ids or len(tokens) >= max_model_len:
            break
    return tuple(tokens)


def words(source: random.Random, count: int) -> tuple[int, ...]:
    """A text of random tokens."""
    return tuple(source.randrange(FIRST_WORD, LAST_WORD) for _ in range(count))


def workload(
    seed: int,
    settings: Settings,
    *,
    num_requests: int = 40,
    acceptance_percent: int = 60,
    abort_percent: int = 0,
    max_prompt_tokens: int = 150,
    max_tokens: int = 90,
) -> Workload:
    """Requests that come one by one or in bursts; two thirds share a prefix or continue another's text."""
    source = random.Random(seed)
    device = Device(
        seed, settings.num_speculative_tokens, acceptance_percent, stop_percent=2, short_percent=25
    )
    prefixes = [words(source, 70) for _ in range(3)]
    arrivals: list[Arrival] = []
    step = 0
    for number in range(num_requests):
        step += source.choice((0, 0, 1, 2, 3, 12))
        arrival = Arrival(
            step=step,
            number=number,
            prompt_token_ids=_prompt(source, prefixes, arrivals, device, settings, max_prompt_tokens),
            max_tokens=source.randrange(1, max_tokens),
            eos_token_id=EOS_TOKEN_ID if source.random() < 0.5 else None,
            stop_token_ids=(STOP_TOKEN_ID,) if source.random() < 0.3 else (),
            priority=source.randrange(3) if settings.by_priority else 0,
        )
        arrivals.append(arrival)
    aborts = [
        Abort(arrival.step + source.randrange(1, 40), arrival.number)
        for arrival in arrivals
        if source.randrange(100) < abort_percent
    ]
    return Workload(seed, settings, device, tuple(arrivals), tuple(aborts))


def _prompt(
    source: random.Random,
    prefixes: Sequence[tuple[int, ...]],
    earlier: Sequence[Arrival],
    device: Device,
    settings: Settings,
    max_prompt_tokens: int,
) -> tuple[int, ...]:
    """A prompt: new words; a shared prefix and new words; or an earlier request's text, whole or cut, and
    a few words or none."""
    kind = source.random()
    longest = min(settings.num_blocks * settings.block_size, settings.max_model_len) - 100
    if kind < 0.25:
        start = source.choice(prefixes)
    elif kind < 0.65 and earlier:
        start = _continued(
            source, text(source.choice(earlier), device, settings.max_model_len), settings.block_size
        )
        return start[:longest]
    elif kind < 0.7:
        return words(source, 1)
    else:
        start = ()
    return (*start, *words(source, source.randrange(1, max_prompt_tokens)))[:longest]


def _continued(source: random.Random, known: tuple[int, ...], block_size: int) -> tuple[int, ...]:
    """What a client sends next. One token behind whole blocks makes a start of one token, which is padded."""
    kind = source.random()
    if kind < 0.25 and len(known) >= block_size:
        return (*known[: len(known) // block_size * block_size], *words(source, 1))
    if kind < 0.45:
        known = known[: source.randrange(1, len(known) + 1)]
    return (*known, *words(source, source.choice((0, 1, 5, 40))))
