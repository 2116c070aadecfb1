"""What does each theorem say, and what does it rest on? One card each, in plain language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from draftproof.proofs.report.markup import Content, Markup, element, number, seconds, unseen
from draftproof.proofs.report.words import CONSEQUENCES, GROUPS, OTHER_GROUPS
from draftproof.proofs.verdicts import NOT_ASKED

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _groups(theorems: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The theorems in the order and under the headings of `words.GROUPS`; the rest by first letter."""
    by_key = {str(theorem.get("key", "")): theorem for theorem in theorems}
    for title, keys in GROUPS:
        members = [by_key.pop(key) for key in keys if key in by_key]
        if members:
            yield title, members
    rest: dict[str, list[dict[str, Any]]] = {}
    for key, theorem in by_key.items():
        rest.setdefault(OTHER_GROUPS.get(key[:1], "Further"), []).append(theorem)
    yield from rest.items()


def readable(name: str) -> str:
    """`invariant:settled_is_valid` as `settled is valid`, for reading; the code keeps the exact name."""
    return name.rpartition(":")[2].replace("_", " ")


def typeset(sentence: str) -> str:
    """A sentence of the specification with its formulas as in print: −, ≤ and 2³¹, unbroken at a minus."""
    sentence = re.sub(r"(?<=[\w)]) - (?=[\w(])", "\u00a0−\u00a0", sentence)
    sentence = sentence.replace(" <= ", " ≤ ").replace(" >= ", " ≥ ")
    return re.sub(r"\^(\d+)", lambda power: power[1].translate(RAISED), sentence)


def _needs(theorem: dict[str, Any]) -> Content:
    needs = theorem.get("needs")
    if needs is None:
        return None
    if not needs:
        return element("dd", "none: it follows from the transitions alone")
    return element(
        "dd",
        element(
            "ul", [element("li", readable(str(name)), title=str(name)) for name in needs], class_="needs"
        ),
    )


def _facts(theorem: dict[str, Any]) -> Markup:
    times = [
        f"{solver} {seconds(theorem[key]) if solver in theorem.get('solvers', [solver]) else NOT_ASKED}"
        for solver, key in (("z3", "z3_seconds"), ("cvc5", "cvc5_seconds"))
        if theorem.get(key) is not None
    ]
    needs = _needs(theorem)
    return element(
        "dl",
        (element("dt", "obligations"), element("dd", number(theorem.get("obligations")))),
        (element("dt", "time"), element("dd", ", ".join(times))) if times else None,
        (element("dt", "invariants it needs"), needs) if needs is not None else None,
        (element("dt", "source of the rule"), element("dd", str(theorem["source"])))
        if theorem.get("source")
        else None,
    )


def _card(theorem: dict[str, Any]) -> Markup:
    key = str(theorem.get("key", "?"))
    proved = theorem.get("outcome") == "proved"
    outcome = str(theorem.get("outcome") or "not run")
    consequence = CONSEQUENCES.get(key)
    return element(
        "article",
        element(
            "h4",
            element("span", key, class_="key"),
            " ",
            str(theorem.get("name", "")),
            element(
                "span",
                element("span", "✓ " if proved else "✗ ", aria_hidden="true"),
                outcome,
                class_=f"outcome {'holds' if proved else 'fails'}",
            ),
        ),
        element("p", typeset(str(theorem.get("meaning", "")))),
        element("p", element("b", "If it failed: "), consequence, class_="consequence")
        if consequence
        else None,
        element(
            "details",
            element("summary", "How it was proved", unseen(f": {key}")),
            _facts(theorem),
        ),
        class_="card",
        id=f"theorem-{key}",
    )


def section(prove: dict[str, Any]) -> Markup:
    """All cards. Letters in the sentences are those of the primer's table."""
    theorems = (prove.get("details") or {}).get("theorems") or []
    body: Content = (
        [
            (
                element("h3", title),
                element("div", [_card(theorem) for theorem in members], class_="cards"),
            )
            for title, members in _groups(theorems)
        ]
        if theorems
        else element("p", "This run carried no details of the theorems.", class_="missing")
    )
    return element(
        "section",
        element("h2", "The theorems", id="theorems"),
        element(
            "p",
            "Each speaks of every state that a request can reach. Single letters are the counters of the ",
            element("a", "table above", href="#letters"),
            ".",
        ),
        body,
    )
