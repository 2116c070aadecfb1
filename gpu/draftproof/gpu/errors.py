"""What goes wrong with a model? One class, whose message is one sentence a user can act on."""

from __future__ import annotations

from typing import Any


class ModelError(ValueError):
    """A model that cannot be loaded or run; the message says what is wrong, where, and what to do."""


def refuse_unless(condition: bool, sentence: str) -> None:
    """Raises `ModelError` with the sentence if the condition does not hold."""
    if not condition:
        raise ModelError(sentence)


def check_integer(name: str, value: Any, limit: int) -> None:
    """Raises `ModelError` unless the value is an integer (no bool, no float) from 1 to the limit."""
    possible = type(value) is int and 1 <= value <= limit
    refuse_unless(possible, f"{name} must be an integer from 1 to {limit}, not {_short(value)}")


def check_number(name: str, value: Any, least: float = 0, most: float = 1e30) -> None:
    """Raises `ModelError` unless the value is a number strictly between the two."""
    # NaN is between no bounds, and neither is an integer too large for a float.
    possible = type(value) in (int, float) and least < value < most
    refuse_unless(possible, f"{name} must be a number above {least} and below {most}, not {_short(value)}")


def _short(value: Any) -> str:
    """A value from a file may be of any length, and Python does not print the longest integers at all."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
