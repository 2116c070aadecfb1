"""Is this a request? Checked in full before any state changes, one sentence for each mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError

MAX_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """What is asked for, under the names of vLLM's sampling parameters. Counts are tokens."""

    token_ids: Any
    """int32[n], C-contiguous."""
    max_tokens: int
    min_tokens: int
    stop_token_ids: Any
    """int32[m]"""
    eos_token_id: int
    """-1 for none, or to ignore it."""
    resumable: bool
    priority: int
    cache_salt: str


@dataclass(frozen=True)
class Chunk:
    """The next part of a session's input, and the limits of the turn that follows it."""

    token_ids: Any
    max_tokens: int
    min_tokens: int
    stops: tuple[Any, int] | None = None
    """Stop tokens, int32[m], and EOS, -1 for none, from this turn on; None for those of the turn before."""


def tokens_of(token_ids: Sequence[int] | Any, what: str, vocab_size: int) -> Any:
    """Token ids as int32[n]: at least one, each in the vocabulary."""
    try:
        tokens = np.asarray(token_ids)
    except (ValueError, OverflowError) as problem:
        raise RequestError(f"{what} must be a flat list of token ids") from problem
    if tokens.ndim != 1:
        raise RequestError(f"{what} must be a flat list of token ids")
    if tokens.size == 0:
        raise RequestError(f"{what} is empty: give at least one token")
    if tokens.dtype.kind not in "iu":
        raise RequestError(f"{what} must hold integers, got {tokens.dtype}")
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        place = int(outside.argmax())
        raise RequestError(
            f"token {tokens[place]} at position {place} of {what} is outside the vocabulary of {vocab_size}"
        )
    return np.array(tokens, dtype=np.int32, order="C")  # our own: the caller may change or protect theirs


def whole_number(value: Any, name: str, least: int) -> int:
    """The value, an integer of at least `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise RequestError(f"{name} must be an integer from {least}, got {value!r}")
    return min(int(value), MAX_LIMIT)


def limits_of(max_tokens: Any, min_tokens: Any) -> tuple[int, int]:
    """The checked limits of a turn."""
    most, least = whole_number(max_tokens, "max_tokens", 1), whole_number(min_tokens, "min_tokens", 0)
    if least > most:
        raise RequestError(f"min_tokens={least} is more than max_tokens={most}")
    return most, least


def stop_tokens_of(stop_token_ids: Sequence[int], config: SchedulerConfig) -> Any:
    """The checked stop tokens, int32[m]."""
    try:
        stop_token_ids = list(stop_token_ids)
    except TypeError as problem:
        raise RequestError(f"stop_token_ids must be token ids, got {stop_token_ids!r}") from problem
    if len(stop_token_ids) > config.max_stop_token_ids:
        raise RequestError(
            f"{len(stop_token_ids)} stop tokens are more than max_stop_token_ids="
            f"{config.max_stop_token_ids}: raise it in the configuration"
        )
    if len(stop_token_ids) == 0:
        return np.zeros(0, np.int32)
    return tokens_of(stop_token_ids, "stop_token_ids", config.vocab_size)


def check_salt(cache_salt: Any) -> None:
    """A salt is a string, empty for none."""
    if not isinstance(cache_salt, str):
        raise RequestError(f"cache_salt must be a string, got {type(cache_salt).__name__}")


def check_fits(config: SchedulerConfig, num_tokens: int, max_tokens: int) -> None:
    """Whether the request can ever finish: in the model, and alone in the pool.

    Alone it holds, at most, slots for all its tokens and for the steps that run ahead of its last one.
    """
    if num_tokens >= config.max_model_len:
        raise RequestError(
            f"{num_tokens} tokens leave no room for an answer: max_model_len is {config.max_model_len}"
        )
    num_ahead = config.max_in_flight_steps * (1 + config.num_speculative_tokens) + config.num_lookahead_tokens
    num_slots = min(num_tokens + max_tokens + num_ahead, config.max_model_len)
    needed = sum(-(-num_slots // group.block_size) for group in config.groups if group.kind != "recurrent")
    needed += sum(num_state_blocks(config, group) for group in config.groups if group.kind == "recurrent")
    if needed > config.num_blocks:
        raise RequestError(
            f"{num_tokens} tokens with max_tokens={max_tokens} can need {needed} blocks and there are "
            f"{config.num_blocks}: shorten the request or raise num_blocks"
        )


def num_state_blocks(config: SchedulerConfig, group: KVGroup) -> int:
    """The most blocks of a recurrent group that a request alone in the pool can need.

    Its working slots; and, to publish states, a target for each boundary between the last step that returned
    and the end of those in flight, and both ends of the copies before these.
    """
    num_slots, num_steps = 1 + config.num_speculative_tokens, config.max_in_flight_steps
    if not config.enable_prefix_caching:
        return num_slots
    num_targets = (num_steps + 1) * num_slots // group.block_size + 1
    return num_slots + num_targets + 2 * num_steps


def check_request(
    config: SchedulerConfig,
    *,
    token_ids: Sequence[int] | Any,
    max_tokens: int,
    min_tokens: int,
    stop_token_ids: Sequence[int],
    eos_token_id: int | None,
    ignore_eos: bool,
    resumable: bool,
    priority: int,
    cache_salt: str,
) -> Request:
    """The request, checked. Raises RequestError."""
    tokens = tokens_of(token_ids, "the prompt", config.vocab_size)
    most, least = limits_of(max_tokens, min_tokens)
    stops = stop_tokens_of(stop_token_ids, config)
    eos = eos_of(config, eos_token_id, ignore_eos)
    if not isinstance(priority, (int, np.integer)) or abs(priority) > MAX_LIMIT:
        raise RequestError(f"priority must be an integer below 2**31, got {priority!r}")
    check_salt(cache_salt)
    check_fits(config, tokens.size, most)
    if resumable and config.asynchronous and any(group.kind == "recurrent" for group in config.groups):
        raise RequestError(
            "a session needs the recurrent state of its last token but one, which a step that runs ahead has "
            "overwritten when its turn ends: schedule synchronously, or add it without resumable"
        )
    return Request(
        token_ids=tokens,
        max_tokens=most,
        min_tokens=least,
        stop_token_ids=stops,
        eos_token_id=eos,
        resumable=bool(resumable),
        priority=int(priority),
        cache_salt=cache_salt,
    )


def check_chunk(
    config: SchedulerConfig,
    token_ids: Sequence[int] | Any,
    max_tokens: int,
    min_tokens: int,
    *,
    stop_token_ids: Sequence[int] | None,
    eos_token_id: int | None,
    ignore_eos: bool,
) -> Chunk:
    """The chunk, checked by itself; whether it fits behind what the session knows shows when it is folded in.
    Raises RequestError."""
    tokens = tokens_of(token_ids, "the chunk", config.vocab_size)
    stops = None
    if stop_token_ids is not None:
        eos = eos_of(config, eos_token_id, ignore_eos)
        stops = stop_tokens_of(stop_token_ids, config), eos
    elif eos_token_id is not None or ignore_eos:
        raise RequestError(
            "a chunk that changes EOS says its stop tokens too: give stop_token_ids, if only ()"
        )
    return Chunk(tokens, *limits_of(max_tokens, min_tokens), stops)


def eos_of(config: SchedulerConfig, eos_token_id: int | None, ignore_eos: bool) -> int:
    """The token that ends a request; -1 for none."""
    if eos_token_id is None:
        return -1
    whole_number(eos_token_id, "eos_token_id", 0)
    if eos_token_id >= config.vocab_size:
        raise RequestError(f"eos_token_id={eos_token_id} is outside the vocabulary of {config.vocab_size}")
    return -1 if ignore_eos else int(eos_token_id)
