"""numpy columns as a carrier: one call of a transition moves a whole column of ledgers.

A ledger of columns is a `Ledger` whose fields are one-dimensional arrays of one length: int64 for counts
and status, bool for `drop_stale`. Rules and event arguments may be scalars or columns. Kinds of number are
asserted, never converted: a narrower integer or a float that slips in would be another accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftproof.impl.contracts import plain
from draftproof.spec.algebra import Carrier, register_carrier
from draftproof.spec.events import BOOLEAN_ARGUMENTS
from draftproof.spec.ledger import Ledger, Rules

BOOLEAN_FIELDS = frozenset({"drop_stale"}) | BOOLEAN_ARGUMENTS


def _truth(value: Any) -> Any:
    """The value, if it is a truth value; an integer's bits must not pass for one."""
    if isinstance(value, bool) or value.dtype == np.bool_:
        return value
    raise TypeError(f"a condition is the result of a comparison, not {value.dtype}")


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    # Two Python integers become int64, also beside narrower columns: `apply` refuses those.
    # The empty index turns a result without dimensions into a scalar again.
    return np.where(_truth(condition), then, otherwise)[()]


register_carrier(
    "numpy",
    Carrier(
        where=_where,
        both=lambda first, second: np.logical_and(_truth(first), _truth(second)),
        either=lambda first, second: np.logical_or(_truth(first), _truth(second)),
        negate=lambda condition: np.logical_not(_truth(condition)),
        floor_to_block=lambda tokens, block_size: tokens // block_size * block_size,
    ),
)


def columns(ledgers: Sequence[Ledger]) -> Ledger:
    """Ledgers of Python integers, side by side as columns."""
    fields: list[Any] = [
        np.array([getattr(ledger, field) for ledger in ledgers], dtype=_kind(field))
        for field in Ledger._fields
    ]
    return Ledger(*fields)


def row_count(ledger: Ledger) -> int:
    """How many requests a ledger of columns holds; raises if it is not one."""
    count = len(np.atleast_1d(np.asarray(ledger.num_tokens)))
    for field, column in ledger._asdict().items():
        _full_column(field, column, count)
    return count


def row(ledger: Ledger, index: int) -> Ledger:
    """One request's ledger, as Python integers."""
    return Ledger(*[column[index].item() for column in _arrays(ledger)])


def apply(transition: Callable[..., Ledger], ledger: Ledger, rules: Rules, *arguments: Any) -> Ledger:
    """The transition on every row: a ledger of full columns again, constants spread over the rows.

    Raises TypeError if a field of the ledger or of the result is not a column of its kind.
    """
    count = row_count(ledger)
    result = plain(transition)(ledger, rules, *arguments)
    return Ledger(
        *[
            _full_column(field, _spread(field, value, count), count)
            for field, value in result._asdict().items()
        ]
    )


def _kind(field: str) -> Any:
    return np.bool_ if field in BOOLEAN_FIELDS else np.int64


def _arrays(ledger: Ledger) -> tuple[Any, ...]:
    return tuple(ledger)


def _spread(field: str, value: Any, count: int) -> Any:
    """A Python constant as a full column; anything else as it is."""
    return np.full(count, value, dtype=_kind(field)) if type(value) in (int, bool) else value


def _full_column(field: str, column: Any, count: int) -> Any:
    """The column, if it is one of `count` rows of the field's kind."""
    kind = np.dtype(_kind(field))
    if not isinstance(column, np.ndarray) or column.dtype != kind or column.shape != (count,):
        found = f"{column.dtype}{column.shape}" if isinstance(column, np.ndarray) else repr(column)
        raise TypeError(f"{field} must be a column of {count} {kind}, got {found}")
    return column
