"""What may a request ask of the sampler? vLLM's names and defaults, every impossible value refused at once.

Checked when made, so that nothing behind it has to ask again. Whether token ids are in a model's vocabulary
is checked where the model is known (`rows.build_rows`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 1e6
"""Below the first, or above the second, logits divided by the temperature may overflow float32."""
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
MAX_LOGPROBS = 20
"""vLLM's own default of `max_logprobs`."""
MAX_TOKENS = 2**31 - 1
MAX_STOP_STRINGS = 64
MAX_STOP_TOKEN_IDS = 128


class ParameterError(ValueError):
    """A sampling parameter that cannot be; the message says which, and what could be."""


@dataclass(frozen=True)
class SamplingParameters:
    """How a request's tokens are chosen, and when it ends. Counts are tokens. Raises ParameterError."""

    temperature: float = 1.0
    """0 takes the most likely token; then top_k, top_p, min_p and seed have no effect."""
    top_k: int = 0
    """Only the k most likely tokens, and those as likely as the k-th; 0 or -1 for all."""
    top_p: float = 1.0
    """Only the most likely tokens that together reach this probability."""
    min_p: float = 0.0
    """Only tokens at least this many times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and of the output so far become less likely (Keskar et al. 2019)."""
    seed: int | None = None
    """The same seed gives the same samples, whatever the batch. None draws one."""
    max_tokens: int = 16
    min_tokens: int = 0
    """EOS and stop token ids cannot be sampled before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; one string may be given alone."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """For each output token its log-probability, and that of this many most likely tokens; None for none."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "temperature": _temperature(self.temperature),
            "top_k": _top_k(self.top_k),
            "top_p": _number("top_p", self.top_p, 0.0, 1.0, above=True),
            "min_p": _number("min_p", self.min_p, 0.0, 1.0),
            "repetition_penalty": _number(
                "repetition_penalty", self.repetition_penalty, MIN_PENALTY, MAX_PENALTY
            ),
            "seed": None if self.seed is None else _integer("seed", self.seed, -(2**63), 2**63 - 1),
            "max_tokens": _integer("max_tokens", self.max_tokens, 1, MAX_TOKENS),
            "min_tokens": _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS),
            "stop": _stop_strings(self.stop),
            "stop_token_ids": _stop_token_ids(self.stop_token_ids),
            "ignore_eos": _truth("ignore_eos", self.ignore_eos),
            "logprobs": None
            if self.logprobs is None
            else _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS),
        }
        if checked["min_tokens"] > checked["max_tokens"]:
            raise ParameterError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: lower the first or "
                "raise the second"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def seed_of_request(self) -> int:
        """The seed, or a fresh random one in 0 to 2**63 - 1: ask once per request and keep it."""
        return secrets.randbits(63) if self.seed is None else self.seed


def _number(name: str, value: Any, least: float, most: float, *, above: bool = False) -> float:
    """A finite number from `least` to `most`; `above` excludes `least` itself."""
    kinds = (int, float, np.integer, np.floating)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value > most or value < least or (above and value == least):
        span = f"above {least:g} and at most {most:g}" if above else f"from {least:g} to {most:g}"
        raise ParameterError(f"{name} must be a number {span}, got {value!r}")
    return float(value)


def _temperature(value: Any) -> float:
    if (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and value == 0
    ):
        return 0.0
    try:
        return _number("temperature", value, MIN_TEMPERATURE, MAX_TEMPERATURE)
    except ParameterError as problem:
        raise ParameterError(
            f"temperature must be 0 (greedy) or a number from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, "
            f"got {value!r}"
        ) from problem


def _integer(name: str, value: Any, least: int, most: int) -> int:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ParameterError(f"{name} must be an integer from {least} to {most}, got {value!r}")
    return int(value)


def _top_k(value: Any) -> int:
    try:
        return max(_integer("top_k", value, -1, MAX_TOKENS), 0)
    except ParameterError as problem:
        raise ParameterError(
            f"top_k must be an integer from 1, or 0 or -1 for all tokens, got {value!r}"
        ) from problem


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _few(name: str, value: Any, most: int) -> list[Any]:
    """The items of a short collection; a bound on what a request can make the server hold."""
    if isinstance(value, (bytes, dict)) or not isinstance(value, Iterable):
        raise ParameterError(f"{name} must be a list, got {value!r}")
    items: list[Any] = []
    for item in value:
        if len(items) == most:
            raise ParameterError(f"{name} may hold at most {most} items")
        items.append(item)
    return items


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = _few("stop", (value,) if isinstance(value, str) else value, MAX_STOP_STRINGS)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ParameterError(f"stop must hold strings of at least one character, got {string!r}")
    return tuple(strings)


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        raise ParameterError(
            f"stop_token_ids must be a list of token ids, got {value!r}; text goes into stop"
        )
    tokens = _few("stop_token_ids", value, MAX_STOP_TOKEN_IDS)
    return tuple(_integer("a token id in stop_token_ids", token, 0, MAX_TOKENS) for token in tokens)
