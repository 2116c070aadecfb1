"""Which claim was proved about which transition? A table of claims by the eleven transitions."""

from __future__ import annotations

from typing import Any

from draftproof.proofs.report.markup import Markup, element, scrolling, unseen


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


def _rows(rows: list[str], columns: list[str], cells: dict[str, Any], names: dict[str, str]) -> list[Markup]:
    return [
        element(
            "tr",
            element(
                "th",
                element("span", row, class_="key"),
                (" ", names[row]) if row in names else None,
                scope="row",
            ),
            [_cell(row, column, (cells.get(row) or {}).get(column)) for column in columns],
        )
        for row in rows
    ]


def section(prove: dict[str, Any]) -> Markup:
    """The matrix, or a sentence if the run carried none."""
    details = prove.get("details") or {}
    matrix = details.get("matrix") or {}
    names = {str(entry.get("key")): str(entry.get("name", "")) for entry in details.get("theorems") or []}
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
                element("tbody", _rows(rows, columns, cells, names)),
                class_="matrix",
            ),
            class_="tall",
        ),
    )
