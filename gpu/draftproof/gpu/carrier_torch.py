"""torch tensors as a carrier: the device keeps its own ledgers, without ever asking the host.

A ledger of columns is a `Ledger` of one-dimensional tensors of one length on one device: counts and status
all int32 or all int64, `drop_stale` bool. Rules and event arguments may be Python scalars or such tensors.
Nothing here reads a value back (`.item()`, `if tensor`), so a transition only enqueues kernels and can be
captured in a graph. Kinds of number are asserted, never converted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from draftproof.impl.contracts import plain
from draftproof.spec.algebra import Carrier, register_carrier
from draftproof.spec.ledger import Ledger, Rules

BOOLEAN_FIELD = "drop_stale"
INTEGERS = (torch.int32, torch.int64)


def _truth(value: Any) -> Any:
    """The value, if it is a truth value: `&` on integers would combine their bits."""
    if isinstance(value, bool) or value.dtype == torch.bool:
        return value
    raise TypeError(f"a condition is the result of a comparison, not {value.dtype}")


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    # Two Python integers would become int64 beside int32 columns: `apply` makes scalar rules tensors.
    return torch.where(_truth(condition), then, otherwise)


# The operators take a Python truth value on either side, which torch.logical_and would not.
register_carrier(
    "torch",
    Carrier(
        where=_where,
        both=lambda first, second: _truth(first) & _truth(second),
        either=lambda first, second: _truth(first) | _truth(second),
        negate=lambda condition: ~_truth(condition),
        floor_to_block=lambda tokens, block_size: tokens // block_size * block_size,
    ),
)


def columns(ledgers: Sequence[Ledger], dtype: Any = torch.int64, device: Any = "cpu") -> Ledger:
    """Ledgers of Python integers, side by side as columns on a device."""
    fields: list[Any] = [
        torch.tensor(
            [getattr(ledger, field) for ledger in ledgers],
            dtype=torch.bool if field == BOOLEAN_FIELD else dtype,
            device=device,
        )
        for field in Ledger._fields
    ]
    return Ledger(*fields)


def row_count(ledger: Ledger) -> int:
    """How many requests a ledger of columns holds; raises if it is not one."""
    like: Any = ledger.num_tokens
    if not isinstance(like, torch.Tensor) or like.dtype not in INTEGERS or like.dim() != 1:
        raise TypeError(f"num_tokens must be a column of int32 or int64, got {like!r}")
    for field, column in ledger._asdict().items():
        _full_column(field, column, like)
    return len(like)


def row(ledger: Ledger, index: int) -> Ledger:
    """One request's ledger, as Python integers. Waits for the device: for tests and reports only."""
    tensors: tuple[Any, ...] = tuple(ledger)
    return Ledger(*[column[index].item() for column in tensors])


def apply(transition: Callable[..., Ledger], ledger: Ledger, rules: Rules, *arguments: Any) -> Ledger:
    """The transition on every row: a ledger of full columns again, constants spread over the rows.

    Raises TypeError if a field of the ledger or of the result is not a column of its kind.
    """
    row_count(ledger)
    like: Any = ledger.num_tokens
    typed = Rules(*[_constant(value, like) for value in rules])
    result = plain(transition)(ledger, typed, *arguments)
    return Ledger(
        *[_full_column(field, _spread(field, value, like), like) for field, value in result._asdict().items()]
    )


def _constant(value: Any, like: Any) -> Any:
    """An integer of the rules as a tensor of the columns' kind, filled on the device; others as they are."""
    return torch.full((), value, dtype=like.dtype, device=like.device) if type(value) is int else value


def _kind(field: str, like: Any) -> Any:
    return torch.bool if field == BOOLEAN_FIELD else like.dtype


def _spread(field: str, value: Any, like: Any) -> Any:
    """A Python constant, or a tensor of no dimension, as a full column; a column as it is."""
    if type(value) in (int, bool):
        return torch.full_like(like, value, dtype=_kind(field, like))
    return value.expand(like.shape).contiguous() if value.dim() == 0 else value


def _full_column(field: str, column: Any, like: Any) -> Any:
    """The column, if it has the rows, the device and the kind that `num_tokens` says."""
    kind = _kind(field, like)
    if not isinstance(column, torch.Tensor):
        raise TypeError(f"{field} must be a column of {len(like)} {kind}, got {column!r}")
    if column.dtype != kind or column.shape != like.shape or column.device != like.device:
        raise TypeError(
            f"{field} must be a column of {len(like)} {kind} on {like.device}, "
            f"got {column.dtype}{tuple(column.shape)} on {column.device}"
        )
    return column
