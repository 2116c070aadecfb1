"""The operations the accounting is written in, and the only code that knows what they compute on.

A transition must run on Python integers (debug mode), compiled integers (Numba), solver terms (proofs)
and whole columns (numpy, torch). Python's `if`, `and`, `or` and `not` ask a single truth value and so
work on the first two only. The functions below work on all of them; everything else in the accounting
is ordinary arithmetic and comparison.

A carrier other than plain Python registers its four primitives once (`register_carrier`); the derived
operations follow. Conditions must be the results of comparisons, never bare integers: `~True` is -2 in
Python and False in Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Carrier(NamedTuple):
    """How one kind of value answers the primitives; arguments are values of that kind or Python scalars."""

    where: Callable[[Any, Any, Any], Any]
    both: Callable[[Any, Any], Any]
    either: Callable[[Any, Any], Any]
    negate: Callable[[Any], Any]
    floor_to_block: Callable[[Any, Any], Any]


_CARRIERS: dict[str, Carrier] = {}


def register_carrier(package: str, carrier: Carrier) -> None:
    """Make values whose type lives in the top-level `package` usable in the accounting."""
    _CARRIERS[package] = carrier


def _carrier(*values: Any) -> Carrier | None:
    """The carrier of the first value that is not a plain Python scalar; None when all of them are.

    Both operands must be asked: a Python integer may meet a symbolic block size.
    """
    for value in values:
        kind = type(value)
        if kind is int or kind is bool:
            continue
        found = _CARRIERS.get(kind.__module__.partition(".")[0])
        if found is not None:
            return found
    return None


def where(condition: bool, then: int, otherwise: int) -> int:
    """`then` where the condition holds, `otherwise` elsewhere."""
    if condition is True:  # the interpreted hot path comes first
        return then
    if condition is False:
        return otherwise
    carrier = _carrier(condition)
    if carrier is not None:
        return carrier.where(condition, then, otherwise)
    return then if condition else otherwise


def minimum(first: int, second: int) -> int:
    """The smaller of two numbers."""
    return where(first <= second, first, second)


def maximum(first: int, second: int) -> int:
    """The larger of two numbers."""
    return where(first >= second, first, second)


def both(first: bool, second: bool) -> bool:
    """Logical and; both operands are always evaluated."""
    carrier = _carrier(first, second)
    if carrier is not None:
        return carrier.both(first, second)  # type: ignore[no-any-return]
    return first and second


def either(first: bool, second: bool) -> bool:
    """Logical or; both operands are always evaluated."""
    carrier = _carrier(first, second)
    if carrier is not None:
        return carrier.either(first, second)  # type: ignore[no-any-return]
    return first or second


def negate(condition: bool) -> bool:
    """Logical not."""
    carrier = _carrier(condition)
    if carrier is not None:
        return carrier.negate(condition)  # type: ignore[no-any-return]
    return not condition


def implies(premise: bool, conclusion: bool) -> bool:
    """If the premise holds, so does the conclusion."""
    return either(negate(premise), conclusion)


def all_of(*conditions: bool) -> bool:
    """Every condition holds."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = both(result, condition)
    return result


def any_of(*conditions: bool) -> bool:
    """At least one condition holds."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = either(result, condition)
    return result


def floor_to_block(tokens: int, block_size: int) -> int:
    """The largest multiple of `block_size` (>= 1) that is not above `tokens`: whole blocks, in tokens."""
    carrier = _carrier(tokens, block_size)
    if carrier is not None:
        return carrier.floor_to_block(tokens, block_size)  # type: ignore[no-any-return]
    return tokens // block_size * block_size
