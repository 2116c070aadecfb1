"""Which claim was proved about which transition? A table of claims by the eleven transitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from draftproof.proofs.report.cards import readable
from draftproof.proofs.report.markup import Markup, element, scrolling, unseen

KINDS = {"effect": "Effects", "effects": "Effects", "invariant": "Invariants", "invariants": "Invariants"}


def _kind(row: str) -> str:
    """The heading a row stands under: by the word before `:` or `/`, or a theorem's letter and number."""
    head = row.replace("/", ":").partition(":")[0].strip()
    if head in KINDS:
        return KINDS[head]
    return "Theorems" if head[1:2].isdigit() else "Other"


def _cell(row: str, column: str, cell: dict[str, Any] | None) -> Markup:
    where = f"{row}, {column}"
    total = (cell or {}).get("total") or 0
    if not cell or not total:
        return element(
            "td",
            element("span", "·", aria_hidden="true"),
            unseen("not applicable"),
            class_="not-applicable",
            title=f"{where}: not applicable",
        )
    proved = cell.get("proved") or 0
    if proved == total:
        words = f"proved, {total} {'obligation' if total == 1 else 'obligations'}"
        shown = f"✓{total if total > 1 else ''}"
        return element(
            "td",
            element("span", shown, aria_hidden="true"),
            unseen(words),
            class_="holds",
            title=f"{where}: {words}",
        )
    words = f"failed, {proved} of {total} proved"
    return element(
        "td",
        element("span", f"✗ {proved}/{total}", aria_hidden="true"),
        unseen(words),
        class_="fails",
        title=f"{where}: {words}",
    )


def _bodies(rows: list[str], columns: list[str], cells: dict[str, Any]) -> Iterator[Markup]:
    order = ("Theorems", "Effects", "Invariants", "Other")
    for kind, members in groupby(sorted(rows, key=lambda row: order.index(_kind(row))), key=_kind):
        yield element(
            "tbody",
            element(
                "tr",
                element("th", element("span", kind), scope="rowgroup", colspan=len(columns) + 1),
                class_="kind",
            ),
            [
                element(
                    "tr",
                    element("th", readable(row.replace("/", ":")), scope="row", title=row),
                    [_cell(row, column, (cells.get(row) or {}).get(column)) for column in columns],
                )
                for row in members
            ],
        )


def section(prove: dict[str, Any]) -> Markup:
    """The matrix, or a sentence if the run carried none."""
    matrix = (prove.get("details") or {}).get("matrix") or {}
    rows = [str(row) for row in matrix.get("rows") or []]
    columns = [str(column) for column in matrix.get("columns") or []]
    cells = matrix.get("cells") or {}
    title = element("h2", "What was proved about which transition", id="matrix")
    if not rows or not columns:
        return element(
            "section", title, element("p", "This run carried no matrix of obligations.", class_="missing")
        )
    return element(
        "section",
        title,
        element(
            "p",
            "A column is one function of the accounting, a row one claim. ",
            element("b", "✓"),
            " proved (with the number of obligations, where there are several), ",
            element("b", "✗"),
            " failed, ",
            element("b", "·"),
            " the claim does not speak about this transition.",
        ),
        scrolling(
            "Claims by transitions",
            element(
                "table",
                element("caption", "Claims by transitions", class_="unseen"),
                element(
                    "thead",
                    element(
                        "tr",
                        element("th", "claim", scope="col"),
                        [
                            element("th", element("span", column.replace("_", " ")), scope="col")
                            for column in columns
                        ],
                    ),
                ),
                _bodies(rows, columns, cells),
                class_="matrix",
            ),
            class_="tall",
        ),
    )
