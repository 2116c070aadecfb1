"""The two pinned tables: a session after a trimmed stop, and what finished requests leave in the cache."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from draftproof.proofs.faults.pinned import FINISH_CASES, composed_row, finish_table, session_table


def as_data() -> dict[str, Any]:
    """Both tables as plain data; every cell is computed by running the code."""
    composed = {case.title: composed_row(case) for case in FINISH_CASES}
    return {
        "session": {title: row._asdict() for title, row in session_table().items()},
        "finished": {
            title: {**row._asdict(), "registered_with_both_fixes_composed": composed[title]}
            for title, row in finish_table().items()
        },
    }


def _session(data: dict[str, Any]) -> Table:
    table = Table(
        title="A session's next chunk, 7 8, after a stop that trimmed draft 12 (prompt 1 2 3, K 2)",
        title_justify="left",
        box=box.SIMPLE,
    )
    for heading in ("", "all tokens after the fold", "C", "next step computes"):
        table.add_column(heading)
    for title, row in data.items():
        table.add_row(
            title,
            " ".join(map(str, row["all_tokens"])),
            str(row["computed"]),
            " ".join(map(str, row["next_step_computes"])),
        )
    return table


def _finished(data: dict[str, Any]) -> Table:
    table = Table(
        title="What a finished request leaves in the prefix cache, in tokens (K 3, B 16)",
        title_justify="left",
        box=box.SIMPLE,
        caption="R: registered. Hits: by a repeat of exactly these tokens, and of these and 40 more. "
        "Without: the latter, if a finish registers nothing, synchronous / asynchronous. Composed: R with "
        "the two upstream fixes and no count of trimmed tokens, synchronous.",
        caption_justify="left",
    )
    table.add_column("case")
    for heading in ("R", "exact", "extended", "without", "composed"):
        table.add_column(heading, justify="right")
    for title, row in data.items():
        without = " / ".join(map(str, row["extended_without"]))
        numbers = (row["registered"], row["exact_repeat"], row["extended"])
        composed = row["registered_with_both_fixes_composed"]
        lost = (
            f"{composed} loses {row['registered'] - composed}"
            if composed < row["registered"]
            else str(composed)
        )
        table.add_row(title, *map(str, numbers), without, lost)
    return table


def show(console: Console) -> None:
    """Print both."""
    data = as_data()
    console.print(Group(_session(data["session"]), _finished(data["finished"])))
