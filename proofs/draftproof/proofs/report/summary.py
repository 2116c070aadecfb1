"""What is the verdict, and how far does it reach? The first screen of the report.

Nothing that is missing counts as a pass: a part that was not run makes the verdict incomplete.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.proofs.report.markup import Content, Markup, content, element, number, seconds, unseen


class Part(NamedTuple):
    """One line of the summary: `good` is None if the part was not run."""

    title: str
    figures: str
    good: bool | None
    remark: str


BAD_OUTCOMES = ("failed", "unknown", "vacuous", "disagreements")


def _share(
    data: dict[str, Any], part: str, whole: str, passed: str, title: str, remark: str, undone: str
) -> Part:
    counts = data.get(part)
    total = counts.get(whole) if isinstance(counts, dict) else None
    if not isinstance(counts, dict) or not isinstance(total, int) or total == 0:
        return Part(title, "not run", None, undone)
    reached = counts.get(passed)
    bad = [f"{number(counts[key])} {key}" for key in BAD_OUTCOMES if counts.get(key)]
    good = reached == total and not bad
    if not good and not bad:
        bad = [f"{number(total - reached)} missing" if isinstance(reached, int) else "not counted"]
    return Part(title, f"{number(reached)} of {number(total)}", good, "; ".join(bad) if bad else remark)


def _alone(prove: dict[str, Any]) -> int:
    """How many obligations only z3 was asked about."""
    counts = (prove.get("obligations") or {}).get("by_z3_alone") or {}
    return int(counts.get("total") or 0)


def _solvers(prove: dict[str, Any]) -> str:
    alone = _alone(prove)
    return "by z3 and by cvc5" + (f", but {alone} about the block pool by z3 alone" if alone else "")


def parts(prove: dict[str, Any]) -> list[Part]:
    """The counts, each with whether it is complete. The first four belong to every run."""
    found = [
        _share(
            prove, "theorems", "total", "proved", "theorems proved", "for every size", "no theorems in it"
        ),
        _share(
            prove,
            "obligations",
            "total",
            "proved",
            "obligations proved",
            f"{_solvers(prove)}: none failed, unknown, vacuous or disputed",
            "no solver was asked",
        ),
        _share(
            prove,
            "crosshair",
            "contracts",
            "confirmed",
            "contracts confirmed",
            "by CrossHair, over all paths",
            "CrossHair was not asked",
        ),
        _share(
            prove,
            "faults",
            "total",
            "found",
            "known faults found",
            "each refuted, and its trace replayed",
            "no fault was tried",
        ),
    ]
    if "controls" in prove:
        found.append(
            _share(
                prove,
                "controls",
                "total",
                "refuted",
                "wrong claims refuted",
                "made wrong on purpose, to test the prover",
                "no wrong claim was tried",
            )
        )
    if isinstance(prove.get("witnesses"), dict):
        found.append(_witnesses(prove["witnesses"]))
    return found


def _witnesses(counts: dict[str, Any]) -> Part:
    total, missing = counts.get("antecedents"), counts.get("missing")
    if not isinstance(total, int) or not isinstance(missing, int) or total == 0:
        return Part("conditions reached", "not run", None, "no witness was searched")
    remark = f"{number(missing)} without a witness" if missing else "in every mode where they can occur"
    return Part("conditions that a run reaches", number(total), missing == 0, remark)


def verdict(prove: dict[str, Any]) -> tuple[str, str]:
    """`holds`, `fails` or `incomplete`, and a sentence."""
    found = parts(prove)
    failing = [part.title for part in found if part.good is False]
    missing = [part.title for part in found if part.good is None]
    if prove.get("not_carried_out"):
        failing.append("checks that broke down")
    if failing:
        return "fails", f"Not everything holds. Not complete: {', '.join(failing)}."
    if missing:
        return "incomplete", f"What was run holds, but not everything was run: {', '.join(missing)}."
    return "holds", "Everything that is claimed on this page holds."


MARKS = {True: "✓", False: "✗", None: "–"}
READ_ALOUD = {True: "complete: ", False: "not complete: ", None: "not run: "}
STATES = {True: "holds", False: "fails", None: "incomplete"}


def _figures(prove: dict[str, Any]) -> Markup:
    return element(
        "dl",
        [
            element(
                "div",
                element("dt", part.title),
                element(
                    "dd",
                    element("span", MARKS[part.good], class_="mark", aria_hidden="true"),
                    unseen(READ_ALOUD[part.good]),
                    element("b", part.figures),
                ),
                element("dd", part.remark, class_="remark"),
                class_=f"figure {STATES[part.good]}",
            )
            for part in parts(prove)
        ],
        class_="figures",
    )


def _explored(explored: list[dict[str, Any]]) -> Content:
    if not explored:
        return element("p", "No list of explored parts was given with this run.", class_="missing")
    return element(
        "ul",
        [
            element("li", str(entry.get("what", "")), ": ", element("b", str(entry.get("bound", "no bound"))))
            for entry in explored
        ],
    )


def _trusted(trusted: list[str]) -> Content:
    if not trusted:
        return element("p", "No list of trusted parts was given with this run.", class_="missing")
    return element("ul", [element("li", str(entry)) for entry in trusted])


def header(data: dict[str, Any]) -> Markup:
    """Title, verdict, the counts, and the two honest lists."""
    prove = data.get("prove") or {}
    details = prove.get("details") or {}
    state, sentence = verdict(prove)
    origin = [
        f"draftproof {data['version']}" if data.get("version") else "draftproof",
        f"generated {data['generated']}" if data.get("generated") else None,
        f"checked in {seconds(prove['seconds'])}" if prove.get("seconds") is not None else None,
    ]
    return element(
        "header",
        element("p", " · ".join(piece for piece in origin if piece), class_="origin"),
        element("h1", "What is proved about a speculating scheduler’s counters"),
        element(
            "p",
            "An LLM scheduler keeps a few integers for each request: how many tokens are known, how many "
            "have KV, "
            "how many are still on their way. Speculative decoding moves them forward on a guess and back "
            "again, "
            "and one that is off by one is seldom seen: the text still looks like text. Here that arithmetic "
            "is written once, what it must do is stated, and two independent solvers were asked for a "
            "counterexample to every claim"
            + (" (one of them, in this run, about the block pool)" if _alone(prove) else "")
            + ", with every size left open. You need not know any prover to read on.",
            class_="lede",
        ),
        element("p", sentence, class_=f"verdict {state}", role="status", id="verdict"),
        _figures(prove),
        element(
            "div",
            element(
                "section",
                element("h2", "Explored, not proved", id="explored"),
                element("p", "Checked case by case up to a bound; nothing is claimed beyond it."),
                _explored(details.get("explored") or prove.get("explored") or []),
            ),
            element(
                "section",
                element("h2", "Trusted", id="trusted"),
                element("p", "If one of these is wrong, the proofs say less than they seem to."),
                _trusted(data.get("trusted") or []),
                element(
                    "p",
                    element("a", "What these proofs mean, and what they don’t", href="#meaning"),
                ),
            ),
            class_="honest",
        ),
        id="top",
    )


MOST_FAILURES = 12
"""One wrong line can fail a hundred obligations; the first few say enough."""


def _failure(entry: dict[str, Any]) -> Markup:
    """An obligation that is not proved, with the numbers that contradict it."""
    numbers = entry.get("counterexample") or {}
    words = ", ".join(f"{name} = {value}" for name, value in numbers.items())
    return element(
        "li",
        element("code", str(entry.get("obligation", "?"))),
        f" is {entry.get('outcome', 'not proved')}",
        f", for example with {words}" if words else None,
    )


def failures(prove: dict[str, Any]) -> Markup | None:
    """The names of what failed, if the run gave them: the first thing to look at."""
    details = prove.get("details") or {}
    failed = [entry for entry in details.get("theorems") or [] if entry.get("outcome") != "proved"]
    lost = [entry for entry in details.get("faults") or [] if not entry.get("found")]
    obligations = details.get("failures") or []
    broken = prove.get("not_carried_out") or []
    vacuous = details.get("vacuous") or []
    if not (failed or lost or obligations or broken or vacuous):
        return None
    return element(
        "section",
        element("h2", "Look here first"),
        element(
            "ul",
            [
                element(
                    "li",
                    content(
                        "theorem ",
                        element("a", str(entry.get("key", "?")), href=f"#theorem-{entry.get('key', '')}"),
                        f" ({entry.get('name', '')}) is not proved",
                    ),
                )
                for entry in failed
            ],
            [
                element("li", "fault ", element("code", str(entry.get("name", "?"))), " was not found")
                for entry in lost
            ],
            [_failure(entry) for entry in obligations[:MOST_FAILURES]],
            element("li", f"and {len(obligations) - MOST_FAILURES} more obligations")
            if len(obligations) > MOST_FAILURES
            else None,
            [element("li", element("code", str(group)), " assumes what cannot be") for group in vacuous],
            [element("li", f"not carried out: {reason}") for reason in broken],
        ),
        class_="failures",
        aria_label="What failed",
    )
