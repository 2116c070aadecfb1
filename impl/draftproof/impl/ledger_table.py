"""How do many ledgers lie in memory? A table with one line per field and one column per request.

int64[NUM_LINES, columns]: the fields of `Ledger` in their order, `drop_stale` as 0 or 1, then the ghosts,
which only debug mode fills. A field's values lie side by side, so a loop over requests reads them in order.
The number of columns should not be a multiple of 512: at such a stride all lines of one request fall into
the same set of the processor's cache (`padded`).

`load` and `store` run interpreted and compiled. In debug mode they carry the ghosts along, so that every
transition is checked against what is really so (`draftproof.impl.contracts`), and a table that keeps journals
is told what happened (`draftproof.impl.journal`).
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.contracts import DEBUG, ObservedLedger
from draftproof.impl.journal import ObservedTable
from draftproof.spec.ghosts import Ghosts
from draftproof.spec.ledger import Ledger

NUM_FIELDS = len(Ledger._fields)
NUM_LINES = NUM_FIELDS + len(Ghosts._fields)
(
    NUM_PROMPT_TOKENS,
    NUM_TOKENS,
    NUM_COMPUTED_TOKENS,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_STALE_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_REGISTERED_TOKENS,
    NUM_TRIMMED_TOKENS,
    STOP_PENDING,
    NUM_REGISTERED_AT_PREEMPTION,
    STATUS,
    DROP_STALE,
) = range(NUM_FIELDS)


def padded(count: int) -> int:
    """At least `count`, an odd multiple of 8: so no multiple of 512 eight-byte (or 1,024 four-byte) cells.

    Measured at 1,024 columns, a step over all ledgers takes 53 ns a request without the padding and 12 ns
    with it.
    """
    return ((count + 7) // 8 | 1) * 8


def load_plain(table: Any, column: int) -> Ledger:
    """The ledger in a column."""
    return Ledger(
        table[0, column],
        table[1, column],
        table[2, column],
        table[3, column],
        table[4, column],
        table[5, column],
        table[6, column],
        table[7, column],
        table[8, column],
        table[9, column],
        table[10, column],
        table[11, column],
        table[12, column] != 0,
    )


def store_plain(table: Any, column: int, ledger: Ledger) -> None:
    """The ledger into a column."""
    table[0, column] = ledger.num_prompt_tokens
    table[1, column] = ledger.num_tokens
    table[2, column] = ledger.num_computed_tokens
    table[3, column] = ledger.num_output_placeholders
    table[4, column] = ledger.num_in_flight_tokens
    table[5, column] = ledger.num_stale_tokens
    table[6, column] = ledger.num_draft_tokens
    table[7, column] = ledger.num_registered_tokens
    table[8, column] = ledger.num_trimmed_tokens
    table[9, column] = ledger.stop_pending
    table[10, column] = ledger.num_registered_at_preemption
    table[11, column] = ledger.status
    table[12, column] = ledger.drop_stale


def load_observed(table: Any, column: int) -> Ledger:
    """The ledger in a column with the ghosts beside it."""
    version = table.version(column) if isinstance(table, ObservedTable) else 0
    lines = table.table if isinstance(table, ObservedTable) else table
    ghosts = Ghosts(*[lines[NUM_FIELDS + line, column] for line in range(len(Ghosts._fields))])
    return ObservedLedger.of(load_plain(lines, column), ghosts, column, version)


def store_observed(table: Any, column: int, ledger: Ledger) -> None:
    """The ledger and its ghosts into a column. One without ghosts is one that nothing happened to yet."""
    lines = table
    if isinstance(table, ObservedTable):
        table.note(column, ledger)
        lines = table.table
    store_plain(lines, column, ledger)
    ghosts = ledger.ghosts if isinstance(ledger, ObservedLedger) else Ghosts(0, 0, 0, 0, 0)
    for line, value in enumerate(ghosts):
        lines[NUM_FIELDS + line, column] = value


load = load_observed if DEBUG else load_plain
store = store_observed if DEBUG else store_plain
