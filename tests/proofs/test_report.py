"""The report page as text: complete, self-contained, escaped, and honest about what is missing."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftproof.proofs.output import OutputError
from draftproof.proofs.report import render, write_report
from draftproof.proofs.report.cards import typeset
from draftproof.proofs.report.markup import as_script_data, element
from draftproof.proofs.report.page import SCRIPTS
from draftproof.proofs.report.stories import compact_strip, fault_data
from draftproof.proofs.report.summary import verdict
from draftproof.proofs.report.words import CONSEQUENCES, GHOSTS, GROUPS, LETTERS
from draftproof.proofs.results import MORE_ROWS, POOL_ROWS
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import GHOST_SYMBOLS
from draftproof.spec.ledger import SYMBOLS
from draftproof.spec.theorems import THEOREMS

SAMPLE = runpy.run_path(str(Path(__file__).with_name("report_sample.py")))
STORIES = SAMPLE["STORIES"]
HOSTILE: str = STORIES["HOSTILE"]


def sample(num_stories: int | None = None) -> dict[str, Any]:
    made: dict[str, Any] = SAMPLE["sample"](num_stories)
    return made


class Page(HTMLParser):
    """What a browser would make of the page: elements with their attributes, and all text but scripts'."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "hr", "img"):
            self.open.append(tag)
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.inside:
            self.inside[self.open[-1]][-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"[ \n]+", " ", "".join(self.words))

    def ids(self) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get("id"))]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(sample()))


def test_every_element_is_closed_and_every_id_is_unique(page: Page) -> None:
    assert page.open == []
    assert sorted(page.ids()) == sorted(set(page.ids()))


def test_every_link_inside_the_page_has_a_target(page: Page) -> None:
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    missing = [link for link in links if link and link.startswith("#") and link[1:] not in page.ids()]
    assert links and missing == []


def test_every_theorem_has_a_card_with_its_meaning(page: Page) -> None:
    for key, theorem in THEOREMS.items():
        assert f"theorem-{key}" in page.ids()
        assert typeset(theorem.meaning) in page.text


def test_every_transition_is_a_column_and_every_cell_is_told_in_words(page: Page) -> None:
    for name in EVENTS:
        assert name.replace("_", " ") in page.text
    assert "proved, 20 obligations" in page.text
    assert "not applicable" in page.text


def test_a_failed_cell_says_so_in_words() -> None:
    data = sample()
    data["prove"]["details"]["matrix"]["cells"]["T2"]["output"] = {"total": 2, "proved": 1}
    assert "failed, 1 of 2 proved" in Page(render(data)).text


def test_what_one_solver_decided_is_told_apart() -> None:
    both = Page(render(sample())).text
    assert "by z3 and by cvc5: none failed" in both and "z3 alone" not in both and "not asked" not in both
    data = sample()
    data["prove"]["obligations"]["by_z3_alone"] = {"total": 370, "proved": 370}
    data["prove"]["details"]["theorems"][0]["solvers"] = ["z3"]
    one = Page(render(data)).text
    assert "by z3 and by cvc5, but 370 about the block pool by z3 alone: none failed" in one
    assert "(one of them, in this run, about the block pool)" in one
    assert "cvc5 not asked" in one


def test_the_words_cover_every_letter_and_every_theorem() -> None:
    assert list(LETTERS) == [*SYMBOLS.values(), *GHOST_SYMBOLS.values()]
    assert set(GHOSTS) == set(GHOST_SYMBOLS.values())
    grouped = [key for _, keys in GROUPS for key in keys]
    assert sorted(grouped) == sorted([*THEOREMS, *MORE_ROWS, *POOL_ROWS])
    assert set(THEOREMS) <= set(CONSEQUENCES) <= set(grouped)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("theorems", "proved", 13),
        ("obligations", "proved", 1203),
        ("obligations", "unknown", 1),
        ("obligations", "vacuous", 1),
        ("obligations", "disagreements", 1),
        ("crosshair", "confirmed", 10),
        ("faults", "found", 3),
        ("controls", "refuted", 1),
        ("witnesses", "missing", 1),
    ],
)
def test_one_thing_that_does_not_hold_changes_the_verdict(part: str, key: str, value: int) -> None:
    prove = sample()["prove"]
    assert verdict(prove)[0] == "holds"
    prove[part][key] = value
    assert verdict(prove)[0] == "fails"


@pytest.mark.parametrize("part", ["theorems", "obligations", "crosshair", "faults"])
def test_a_part_that_is_missing_or_empty_is_not_a_pass(part: str) -> None:
    prove = sample()["prove"]
    empty = copy.deepcopy(prove)
    empty[part] = dict.fromkeys(empty[part], 0)
    del prove[part]
    assert verdict(prove)[0] == verdict(empty)[0] == "incomplete"


def test_checks_that_broke_down_fail_and_are_listed_first() -> None:
    data = sample()
    data["prove"]["not_carried_out"] = ["coverage: a worker died"]
    data["prove"]["details"]["theorems"][0]["outcome"] = "failed"
    data["prove"]["details"]["failures"] = [
        {"obligation": "output/effect/frontier", "outcome": "refuted", "counterexample": {"N": "5"}}
    ]
    text = Page(render(data)).text
    assert verdict(data["prove"])[0] == "fails"
    assert "not carried out: coverage: a worker died" in text
    assert "output/effect/frontier is refuted, for example with N = 5" in text
    assert "theorem T1 (computed never exceeds known) is not proved" in text
    assert text.index("Look here first") < text.index("One step, in a picture")


def test_a_condition_that_no_run_reaches_is_shown_at_once_and_in_words() -> None:
    data = sample()
    assert "0 missing" in Page(render(data)).text
    data["prove"]["details"]["coverage"] = [
        {"antecedent": "a/b", "mode": "synchronous, prefill", "verdict": "witnessed", "detail": "admit(0)"},
        {"antecedent": "a/b", "mode": "synchronous, decode", "verdict": "missing", "detail": ""},
        {"antecedent": "c/d", "mode": "synchronous, decode", "verdict": "impossible", "detail": "why"},
    ]
    page = Page(render(data))
    assert "2 conditions in 2 modes: 1 reached, 1 cannot occur, 2 missing" in page.text
    assert "a/b; synchronous, prefill: reached (admit(0))" in [
        attributes.get("title") for _, attributes in page.elements
    ]
    (folded,) = [attributes for tag, attributes in page.elements if tag == "details" and "open" in attributes]
    assert folded["class"] == "folded"


def test_nothing_given_gives_a_page_that_says_so() -> None:
    nothing: list[dict[str, Any]] = [
        {},
        {"prove": {}},
        {"prove": {"details": {}}, "stories": [], "trusted": []},
    ]
    for data in nothing:
        page = Page(render(data))
        assert page.open == []
        assert "not everything was run" in page.text
        assert "no matrix" in page.text
        assert "holds." not in page.text


def test_any_optional_part_can_be_missing() -> None:
    for part in sample()["prove"]["details"]:
        data = sample()
        del data["prove"]["details"][part]
        assert Page(render(data)).open == []
    for part in STORIES["trim_story"]():
        story = STORIES["trim_story"]()
        del story[part]
        assert Page(render({**sample(), "stories": [story]})).open == []


def test_untrusted_text_is_never_markup() -> None:
    data = sample()
    details = data["prove"]["details"]
    details["theorems"][0].update(
        {"name": HOSTILE, "meaning": HOSTILE, "source": HOSTILE, "needs": [HOSTILE]}
    )
    details["controls"][0]["sentence"] = details["explored"][0]["what"] = HOSTILE
    details["coverage"][0]["antecedent"] = details["crosshair"][0]["name"] = HOSTILE
    details["matrix"]["rows"].append(HOSTILE)
    data["trusted"].append(HOSTILE)
    data["version"] = HOSTILE
    page = Page(render(data))
    assert page.open == []
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert "img" not in [tag for tag, _ in page.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_script_data_comes_back_as_it_was_and_cannot_leave_its_element() -> None:
    value = {"text": HOSTILE + "<!-- \u2028 & ]]>", "half": "\ud800"}
    text = as_script_data(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_markup_is_only_what_was_made_as_markup() -> None:
    assert (
        element("p", "<b>", element("i", "x"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<i>x</i></p>'
    )


def test_the_page_loads_nothing_and_its_policy_admits_only_its_own_script_and_style(page: Page) -> None:
    policies = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    (policy,) = policies
    (style,) = page.inside["style"]
    _, script = page.inside["script"]
    for text in (style, script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"url\((?!#)|@import", style)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|innerHTML|insertAdjacentHTML|eval)\b", script)
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert tag != "link" or attributes["href"] == "data:,"
        assert "style" not in attributes, "the policy would refuse it"


def test_every_script_is_used() -> None:
    import draftproof.proofs.report.page as module

    assets = Path(module.__file__).with_name("assets")
    assert {path.name for path in assets.glob("*.js")} == set(SCRIPTS)


def test_sixty_faults_fit_into_two_mebibytes(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    size = write_report(sample(60), target)
    assert size == target.stat().st_size < 2 * 1024 * 1024


def test_a_strip_in_columns_is_the_same_strip() -> None:
    cells: list[dict[str, Any]] = [
        {"position": 3, "token": "a", "kv": "valid", "registered": True, "known": True, "holds": ""},
        {"position": 4, "token": None, "kv": "draft", "registered": False, "known": False, "holds": 7},
    ]
    assert compact_strip(cells) == {
        "first": 3,
        "tokens": ["a", ""],
        "kv": "vd",
        "registered": "10",
        "known": "10",
        "holds": ["", "7"],
    }
    assert compact_strip([]) is None
    with pytest.raises(ValueError, match="follow each other"):
        compact_strip([cells[1], cells[0]])


def test_a_step_that_the_right_code_refuses_is_not_taken_for_agreement() -> None:
    story = STORIES["trim_story"]()
    story["rows"][0].update({"right": None, "note": "the right code refuses this: running"})
    first, second, *_ = fault_data({"stories": [story]})[0]["rows"]
    assert (first["refused"], second["refused"]) == (True, False)
    assert first["right"] is second["right"] is None
    assert first["note"] == "the right code refuses this: running"


def test_a_note_does_not_repeat_what_the_table_says() -> None:
    story = STORIES["trim_story"]()
    story["rows"][5]["note"] = "on the right code this is schedule(n=2); C is 6, right is 4"
    assert fault_data({"stories": [story]})[0]["rows"][5]["note"] == "on the right code this is schedule(n=2)"


def test_an_unwritable_place_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_report(sample(), tmp_path / "file" / "report.html")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutputError, match="it is a folder"):
        write_report(sample(), tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]


def test_text_that_cannot_be_encoded_does_not_stop_the_page(tmp_path: Path) -> None:
    write_report({**sample(), "version": "0\ud800"}, tmp_path / "report.html")
    assert "draftproof 0?" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_formulas_are_set_as_in_print() -> None:
    assert typeset("C - (F - S) <= N") == "C\u00a0−\u00a0(F\u00a0−\u00a0S) ≤ N"
    assert typeset("below 2^31, look-ahead") == "below 2³¹, look-ahead"
