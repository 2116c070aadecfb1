"""Why believe the proofs? What checks them: CrossHair, witnesses, controls, mutants, machine integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from draftproof.proofs.report.markup import (
    Content,
    Markup,
    element,
    number,
    numeric_head,
    seconds,
    table,
    unseen,
)


def _marked(good: bool, words: str) -> Markup:
    return element(
        "td",
        element("span", "✓ " if good else "✗ ", aria_hidden="true"),
        words,
        class_="holds" if good else "fails",
    )


def _folded(summary: str, good: bool, *children: Content) -> Markup:
    """Details behind their summary; open from the start if something in them is not as it must be."""
    mark = element("span", "✓ " if good else "✗ ", aria_hidden="true")
    return element(
        "details",
        element("summary", element("span", mark, summary, class_="holds" if good else "fails")),
        *children,
        open=not good,
        class_="folded",
    )


def _crosshair(entries: list[dict[str, Any]]) -> Content:
    if not entries:
        return element("p", "CrossHair was not run, or the run carried no details.", class_="missing")

    def row(entry: dict[str, Any]) -> Markup:
        contracts, confirmed = entry.get("contracts"), entry.get("confirmed")
        complete = bool(contracts) and confirmed == contracts
        state = "over all paths" if complete else str(entry.get("state") or "not confirmed").lower()
        return element(
            "tr",
            element("th", element("code", str(entry.get("name", "?"))), scope="row"),
            element("td", f"{number(confirmed)} of {number(contracts)}", class_="number"),
            _marked(complete, state),
            element("td", seconds(entry.get("seconds")), class_="number"),
        )

    heads = ("function", numeric_head("contracts confirmed"), "how", numeric_head("time"))
    complete = sum(
        bool(entry.get("contracts")) and entry.get("confirmed") == entry["contracts"] for entry in entries
    )
    return _folded(
        f"{complete} of {len(entries)} functions confirmed over all paths",
        complete == len(entries),
        table("The real functions against a plain version", heads, map(row, entries)),
    )


REACHED, IMPOSSIBLE = ("witness", "witnessed"), ("cannot occur", "impossible")
"""What a run may say of a condition in a mode; anything else, `missing` above all, is a failure."""


class Reached(NamedTuple):
    """Whether a condition is reached in a mode, and by which run, or why it cannot be."""

    outcome: str
    detail: str


def reached(entries: list[dict[str, Any]]) -> dict[str, dict[str, Reached]]:
    """By condition and mode. An entry tells one mode (`mode`, `verdict`, `detail`) or all (`modes`)."""
    found: dict[str, dict[str, Reached]] = {}
    for entry in entries:
        row = found.setdefault(str(entry.get("antecedent", "?")), {})
        if "mode" in entry:
            verdict = str(entry.get("verdict") or "not given")
            row[str(entry["mode"])] = Reached(verdict, str(entry.get("detail") or ""))
        for mode, outcome in (entry.get("modes") or {}).items():
            row[str(mode)] = Reached(str(outcome or "not given"), "")
    return found


def _condition(name: str) -> str:
    """`invariants/stop_pending_shape#2` as `invariants: stop pending shape, 2`."""
    return name.replace("/", ": ").replace("#", ", ").replace("_", " ")


def _reached_cell(condition: str, mode: str, cell: Reached) -> Markup:
    if cell.outcome in REACHED:
        mark, words, class_ = "✓", "reached", "holds"
    elif cell.outcome in IMPOSSIBLE:
        mark, words, class_ = "·", "cannot occur", "not-applicable"
    else:
        mark, words, class_ = f"✗ {cell.outcome}", cell.outcome, "fails"
    title = f"{condition}; {mode}: {words}{f' ({cell.detail})' if cell.detail else ''}"
    return element("td", element("span", mark, aria_hidden="true"), unseen(words), class_=class_, title=title)


def _coverage(entries: list[dict[str, Any]]) -> Content:
    if not entries:
        return element("p", "The run carried no table of witnesses.", class_="missing")
    rows = reached(entries)
    modes = list(dict.fromkeys(mode for row in rows.values() for mode in row))
    cells = [cell.outcome for row in rows.values() for cell in row.values()]
    num_reached = sum(outcome in REACHED for outcome in cells)
    num_impossible = sum(outcome in IMPOSSIBLE for outcome in cells)
    num_missing = len(rows) * len(modes) - num_reached - num_impossible
    table_rows = [
        element(
            "tr",
            element("th", _condition(condition), scope="row", title=condition),
            [_reached_cell(condition, mode, row.get(mode, Reached("not given", ""))) for mode in modes],
        )
        for condition, row in rows.items()
    ]
    heads = [
        element("th", [(element("span", part), " ") for part in mode.split(", ")], scope="col")
        for mode in modes
    ]
    return (
        element(
            "p",
            "Rows are the conditions a claim starts from, columns the modes of a scheduler. ",
            element("b", "✓"),
            " a run reaches it from the first state, ",
            element("b", "·"),
            " it cannot occur in this mode, ",
            element("b", "✗"),
            " no run was found, so a claim about it may be empty.",
        ),
        _folded(
            f"{len(rows)} conditions in {len(modes)} modes: {number(num_reached)} reached, "
            f"{number(num_impossible)} cannot occur, {number(num_missing)} missing",
            num_missing == 0,
            table(
                "Modes in which each condition is reached",
                ("condition", *heads),
                table_rows,
                "matrix coverage",
                "tall",
            ),
        ),
    )


def _controls(entries: list[dict[str, Any]]) -> Content:
    if not entries:
        return element("p", "The run carried no controls.", class_="missing")

    def row(entry: dict[str, Any]) -> Markup:
        outcome = str(entry.get("outcome") or "not run")
        refuted = outcome == "refuted"
        return element(
            "tr",
            element("td", str(entry.get("sentence") or entry.get("name", "")), class_="prose"),
            _marked(refuted, "refuted, as it must be" if refuted else outcome),
        )

    refuted = sum(entry.get("outcome") == "refuted" for entry in entries)
    return _folded(
        f"{refuted} of {len(entries)} wrong claims refuted",
        refuted == len(entries),
        table("Claims made wrong on purpose", ("what was changed", "outcome"), map(row, entries)),
    )


MUTANT_WORDS = (
    ("total", "one-place changes to the code were made"),
    ("refuted", "were refuted by a proof"),
    ("equivalent", "change nothing that could be seen, each argued"),
    ("unknown", "are undecided"),
    ("survived", "were not noticed"),
)


def _mutants(mutants: dict[str, Any]) -> Content:
    known = [(mutants[key], words) for key, words in MUTANT_WORDS if mutants.get(key) is not None]
    rows = mutants.get("by_transition") or {}
    heads = ("transition", *map(numeric_head, ("changes", "refuted", "equivalent")))
    return (
        element("h3", "Every small mistake, made on purpose"),
        element("ul", [element("li", element("b", number(count)), " ", words) for count, words in known]),
        table(
            "Changes by transition",
            heads,
            [
                element(
                    "tr",
                    element("th", element("code", str(name)), scope="row"),
                    [
                        element("td", number(counts.get(key)), class_="number")
                        for key in ("total", "refuted", "equivalent")
                    ],
                )
                for name, counts in rows.items()
            ],
        )
        if rows
        else None,
    )


def _integers(integers: dict[str, Any]) -> Content:
    facts: Iterable[tuple[str, str]] = (
        ("bound", "within this bound no intermediate value leaves 32 bits"),
        ("subterms", "integer sub-terms were checked"),
        ("counterexample", "without the bound"),
    )
    return (
        element("h3", "Machine integers"),
        element(
            "dl",
            [
                (element("dt", words), element("dd", number(integers[key])))
                for key, words in facts
                if integers.get(key) is not None
            ],
            class_="facts",
        ),
    )


def section(prove: dict[str, Any]) -> Markup:
    """All checks of the checks; optional ones only if the run has them."""
    details = prove.get("details") or {}
    mutants, integers = details.get("mutants"), details.get("integers")
    return element(
        "section",
        element("h2", "What checks the proofs", id="checks"),
        element("h3", "A second tool on the code that runs"),
        element(
            "p",
            "CrossHair knows nothing of the proofs. It executes each function on symbolic integers and "
            "compares it "
            "with a version written with plain ifs.",
        ),
        _crosshair(details.get("crosshair") or []),
        element("h3", "Nothing is proved of the empty case"),
        _coverage(details.get("coverage") or []),
        element("h3", "Controls"),
        element("p", "If one of these were proved, the proofs beside it would mean nothing."),
        _controls(details.get("controls") or []),
        _mutants(mutants) if isinstance(mutants, dict) else None,
        _integers(integers) if isinstance(integers, dict) else None,
    )
