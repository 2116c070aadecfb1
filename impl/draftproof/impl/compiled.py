"""Numba as a carrier: the very transitions of `draftproof.impl.accounting`, compiled to machine code.

The algebra's four primitives are overloaded once; everything derived from them, and the transitions, are
compiled from their own source without contracts. Compiled integers are int64 and wrap silently, hence the
theorem that machine integers suffice (T11).

The loops over a table are kept on disk (`draftproof.impl.code_cache`); a single transition takes about 0.1 s
to compile, once per process, and only tests ask for it.

A table is the compiled form of many ledgers, see `draftproof.impl.ledger_table`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.extending import overload

from draftproof.impl import accounting, code_cache
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import NUM_FIELDS, load_plain, padded, store_plain
from draftproof.spec import algebra
from draftproof.spec.events import Output
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

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    algebra.minimum,
    algebra.maximum,
    algebra.implies,
    algebra.all_of,
    algebra.any_of,
    accounting.registrable,
    load_plain,
    store_plain,
    *map(plain, accounting.TRANSITIONS.values()),
)
for _function in _FUNCTIONS:
    code_cache.register(_function)

_schedule, _output = plain(accounting.schedule), plain(accounting.output)


@functools.cache
def compiled(name: str) -> Callable[..., Ledger]:
    """The transition `name`, compiled; takes and returns what the interpreted one does."""
    return code_cache.compile(plain(accounting.TRANSITIONS[name]))  # type: ignore[no-any-return]


def table_of(ledgers: Sequence[Ledger]) -> Any:
    """Ledgers of Python integers as a table, int64[fields, `padded(rows)`], zeros behind the last ledger.

    Without the padding the fields of one ledger would be 8,192 bytes apart in a table of 1,024 rows, where
    they contend for a few places of the processor's first cache. Measured (`make bench`), an `output` takes
    4.4 ns a row with it and 5.9 without; 11 and 34 when rows are served in any order, as a scheduler does.
    The padding stays part of the array: compiled code is slower on a view, which is not contiguous.
    """
    count = len(ledgers)
    table = np.zeros((NUM_FIELDS, padded(count)), np.int64)
    table[:, :count] = np.array(ledgers, dtype=np.int64).reshape(count, NUM_FIELDS).T
    return table


def row(table: Any, index: int) -> Ledger:
    """One request's ledger, as Python integers."""
    values: list[Any] = table[:, index].tolist()
    values[-1] = values[-1] != 0
    return Ledger(*values)


def _schedule_rows(table: Any, rules: Rules, num_new_tokens: Any) -> None:
    for index in range(num_new_tokens.shape[0]):
        store_plain(table, index, _schedule(load_plain(table, index), rules, num_new_tokens[index]))


def _output_rows(table: Any, rules: Rules, outputs: Any) -> None:
    for index in range(outputs.shape[1]):
        after = _output(
            load_plain(table, index),
            rules,
            outputs[0, index],
            outputs[1, index],
            outputs[2, index],
            outputs[3, index],
            outputs[4, index],
        )
        store_plain(table, index, after)


_RULES = Rules(num_speculative_tokens=0, block_size=1, asynchronous=False, registration_fence=0)
_NUMBERS = np.zeros(1, np.int64)
_LINES = np.zeros((len(Output._fields), 1), np.int64)
"""Examples, for their types."""


@functools.cache
def schedule_rows() -> Callable[[Any, Rules, Any], None]:
    """The compiled loop `(table, rules, num_new_tokens int64[rows])`: a step is dispatched for every row.

    Rows of the table behind the last number stay as they are. Arrays must be contiguous, else TypeError.
    """
    return code_cache.compile(_schedule_rows, _LINES, _RULES, _NUMBERS)  # type: ignore[no-any-return]


@functools.cache
def output_rows() -> Callable[[Any, Rules, Any], None]:
    """The compiled loop `(table, rules, outputs int64[5, rows])`: every row's oldest step returned.

    The lines of `outputs` are the fields of the event `Output`, in its order. Rows of the table behind its
    last column stay as they are. Arrays must be contiguous, else TypeError.
    """
    return code_cache.compile(_output_rows, _LINES, _RULES, _LINES)  # type: ignore[no-any-return]
