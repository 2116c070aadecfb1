"""How does the report become one file that works anywhere? Data in, one self-contained page out.

The page loads nothing: style and script are inside, and a content policy with their digests forbids
everything else, an injected script included. Text from faults and reports is untrusted: it reaches the
page through `markup.element`, which escapes, or as JSON that the script shows as text only.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from draftproof.proofs.output import write_text
from draftproof.proofs.report import background, cards, checks, matrix, stories, summary, svg
from draftproof.proofs.report.markup import Markup, as_script_data, content, element
from draftproof.proofs.report.words import GHOSTS, LETTERS

TITLE = "draftproof: what is proved"

SCRIPTS = ("dom.js", "strip.js", "change.js", "timeline.js", "faults.js", "theme.js")
"""In the order in which they define what the next ones use."""

SECTIONS = (
    ("#primer", "Picture"),
    ("#theorems", "Theorems"),
    ("#faults", "Faults"),
    ("#matrix", "Matrix"),
    ("#checks", "Checks"),
    ("#meaning", "Meaning"),
)


def _resource(name: str) -> str:
    return (resources.files("draftproof.proofs.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """A content policy's source expression that admits exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _navigation() -> Markup:
    return element(
        "nav",
        element("a", "Skip to the content", href="#top", class_="skip"),
        element("a", "draftproof", href="#top", class_="brand"),
        element("ul", [element("li", element("a", words, href=target)) for target, words in SECTIONS]),
        element(
            "button",
            "Dark",
            type="button",
            id="theme",
            aria_pressed="false",
            title="Switch between light and dark",
            hidden=True,
        ),
        aria_label="Sections",
    )


def _choice(name: str, words: str) -> Markup:
    return element(
        "label",
        element("span", words),
        element("select", element("option", "all", value=""), id=f"by-{name}"),
    )


def _faults_section(num_faults: int) -> Markup:
    title = element("h2", "The faults, step by step", id="faults")
    if not num_faults:
        return element(
            "section", title, element("p", "This run carried no stories of faults.", class_="missing")
        )
    return element(
        "section",
        title,
        element(
            "p",
            "Most were reported by somebody; the others follow from a fix that somebody made, or test a rule "
            "that no report is about. Each was put into the proven source, and what is named beside it then "
            "fails. The run is the shortest that shows the harm, or one with the report’s numbers. Open a "
            "fault and step through it: the faulty run stands above the right one.",
        ),
        element("noscript", element("p", "The timelines need JavaScript; the rest of this page does not.")),
        element(
            "form",
            element(
                "label",
                element("span", "Search"),
                element("input", type="search", id="search", placeholder="session, placeholders, #58259 …"),
            ),
            _choice("engine", "Engine"),
            _choice("area", "Area"),
            _choice("theorem", "Breaks"),
            element("output", id="shown", for_="search by-engine by-area by-theorem"),
            class_="filters",
            role="search",
            aria_label="Find a fault",
        ),
        element("div", id="fault-list"),
    )


def render(data: dict[str, Any]) -> str:
    """The whole page as text. What `data` lacks is said to be missing; nothing missing counts as a pass.

    `data` has `prove` (what `draftproof prove --json` prints), `stories` (what `draftproof explain --json`
    prints, per fault), `trusted`, `generated` and `version`; each may be left out.
    """
    prove = data.get("prove") or {}
    faults = stories.fault_data(data)
    style = _resource("style.css")
    script = "\n".join(_resource(name) for name in SCRIPTS)
    body = content(
        svg.patterns(),
        _navigation(),
        element(
            "main",
            summary.header(data),
            summary.failures(prove),
            background.primer_section(),
            cards.section(prove),
            _faults_section(len(faults)),
            matrix.section(prove),
            checks.section(prove),
            background.meaning_section(),
        ),
    )
    page = Template(_resource("page.html")).substitute(
        title=TITLE,
        policy=_policy(style, script),
        style=style,
        body=body,
        data=as_script_data({"faults": faults, "letters": LETTERS, "ghosts": GHOSTS}),
        script=script,
    )
    # Half a surrogate pair cannot be encoded; in a report's text it becomes a question mark.
    return page.encode("utf-8", errors="replace").decode("utf-8")


def write_report(data: dict[str, Any], path: Path) -> int:
    """Write the page to `path`, completely or not at all, and return its size in bytes.

    Raises `OutputError` with one sentence if the file cannot be written.
    """
    page = render(data)
    write_text(path, page)
    return len(page.encode())
