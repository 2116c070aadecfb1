"""Why believe the proofs? What checks them: CrossHair, witnesses, controls, mutants, machine integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from draftproof.proofs.report.cards import readable
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
    return table("The real functions against a plain textbook version", heads, map(row, entries))


MODE_MARKS = {"witness": ("✓", "holds"), "cannot occur": ("·", "not-applicable")}
"""Any other outcome, `not found` above all, is a failure."""


def _coverage(entries: list[dict[str, Any]]) -> Content:
    if not entries:
        return element("p", "The run carried no table of witnesses.", class_="missing")
    modes = list(dict.fromkeys(str(mode) for entry in entries for mode in entry.get("modes") or {}))

    def cell(entry: dict[str, Any], mode: str) -> Markup:
        outcome = str((entry.get("modes") or {}).get(mode) or "not given")
        mark, class_ = MODE_MARKS.get(outcome, ("✗", "fails"))
        shown = f"{mark} {outcome}" if class_ == "fails" else mark
        return element(
            "td",
            element("span", shown, aria_hidden="true"),
            unseen(outcome),
            class_=class_,
            title=f"{entry.get('antecedent', '')}, {mode}: {outcome}",
        )

    def row(entry: dict[str, Any]) -> Markup:
        return element(
            "tr",
            element("th", readable(str(entry.get("antecedent", "?"))), scope="row"),
            [cell(entry, mode) for mode in modes],
        )

    return (
        element(
            "p",
            "Rows are the conditions a claim starts from, columns the modes of a scheduler. ",
            element("b", "✓"),
            " a run that reaches it from the first state, ",
            element("b", "·"),
            " it cannot occur in this mode, ",
            element("b", "✗"),
            " no run was found, so a claim about it may be empty.",
        ),
        table(
            "Modes in which each condition is reached", ("condition", *modes), map(row, entries), "coverage"
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

    return table("Claims made wrong on purpose", ("what was changed", "outcome"), map(row, entries))


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
