"""Numba as a carrier: the very transitions of `draftproof.impl.accounting`, compiled to machine code.

The algebra's four primitives are overloaded once; everything derived from them, and the transitions, are
compiled from their own source without contracts. Compiled integers are int64 and wrap silently, hence the
theorem that machine integers suffice (T11).

Nothing is cached on disk: Numba's cache does not notice an edit in another file's helper, and would go on
running the old arithmetic. Compiling takes about 0.1 s per transition, once per process.

A table is the compiled form of many ledgers: int64, one line per field of `Ledger` (in its order) and one
column per request, so that a field's values lie side by side. `drop_stale` is 0 or 1 in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.extending import overload, register_jitable

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.spec import algebra
from draftproof.spec.ledger import Ledger, Rules

# An overload maps argument types to the code for them; here the code is the same for all. Both must have the
# very same signature, annotations included, so both go without.
overload(algebra.where)(
    lambda condition, then, otherwise: lambda condition, then, otherwise: then if condition else otherwise
)
overload(algebra.both)(lambda first, second: lambda first, second: first and second)
overload(algebra.either)(lambda first, second: lambda first, second: first or second)
overload(algebra.negate)(lambda condition: lambda condition: not condition)
overload(algebra.floor_to_block)(
    lambda tokens, block_size: lambda tokens, block_size: tokens // block_size * block_size
)

for _derived in (
    algebra.minimum,
    algebra.maximum,
    algebra.implies,
    algebra.all_of,
    algebra.any_of,
    accounting.registrable,
):
    register_jitable(_derived)


@functools.cache
def compiled(name: str) -> Callable[..., Ledger]:
    """The transition `name`, compiled; takes and returns what the interpreted one does."""
    return numba.njit(plain(accounting.TRANSITIONS[name]))  # type: ignore[no-any-return]


def table_of(ledgers: Sequence[Ledger]) -> Any:
    """Ledgers of Python integers as a table, int64[fields, rows]."""
    return np.ascontiguousarray(np.array(ledgers, dtype=np.int64).reshape(-1, len(Ledger._fields)).T)


def row(table: Any, index: int) -> Ledger:
    """One request's ledger, as Python integers."""
    values: list[Any] = table[:, index].tolist()
    values[-1] = values[-1] != 0
    return Ledger(*values)


@register_jitable
def _load(table: Any, index: int) -> Ledger:
    """A column of the table as a ledger."""
    return Ledger(
        table[0, index],
        table[1, index],
        table[2, index],
        table[3, index],
        table[4, index],
        table[5, index],
        table[6, index],
        table[7, index],
        table[8, index],
        table[9, index],
        table[10, index],
        table[11, index],
        table[12, index] != 0,
    )


@register_jitable
def _store(table: Any, index: int, ledger: Ledger) -> None:
    """A ledger into a column of the table."""
    table[0, index] = ledger.num_prompt_tokens
    table[1, index] = ledger.num_tokens
    table[2, index] = ledger.num_computed_tokens
    table[3, index] = ledger.num_output_placeholders
    table[4, index] = ledger.num_in_flight_tokens
    table[5, index] = ledger.num_stale_tokens
    table[6, index] = ledger.num_draft_tokens
    table[7, index] = ledger.num_registered_tokens
    table[8, index] = ledger.num_trimmed_tokens
    table[9, index] = ledger.stop_pending
    table[10, index] = ledger.num_registered_at_preemption
    table[11, index] = ledger.status
    table[12, index] = ledger.drop_stale


@functools.cache
def schedule_rows() -> Callable[[Any, Rules, Any], None]:
    """The compiled loop `(table, rules, num_new_tokens int64[rows])`: a step is dispatched for every row."""
    schedule: Any = compiled("schedule")

    @numba.njit
    def loop(table: Any, rules: Rules, num_new_tokens: Any) -> None:
        for index in range(table.shape[1]):
            _store(table, index, schedule(_load(table, index), rules, num_new_tokens[index]))

    return loop  # type: ignore[no-any-return]


@functools.cache
def output_rows() -> Callable[[Any, Rules, Any], None]:
    """The compiled loop `(table, rules, outputs int64[5, rows])`: every row's oldest step returned.

    The lines of `outputs` are the fields of the event `Output`, in its order.
    """
    output: Any = compiled("output")

    @numba.njit
    def loop(table: Any, rules: Rules, outputs: Any) -> None:
        for index in range(table.shape[1]):
            after = output(
                _load(table, index),
                rules,
                outputs[0, index],
                outputs[1, index],
                outputs[2, index],
                outputs[3, index],
                outputs[4, index],
            )
            _store(table, index, after)

    return loop  # type: ignore[no-any-return]
