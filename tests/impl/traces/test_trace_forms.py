"""A trace in other forms: Parquet and back, a timeline, a smaller one, two side by side, for Perfetto."""

from __future__ import annotations

import html.parser
import io
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.impl.traces.trace_world import RIGHT, checked, header_for, lived, recorded, rules_for, write

from draftproof.impl.traces import chrome, differing, shrinking, timeline
from draftproof.impl.traces.format import Checksum, TraceError, decode, encode
from draftproof.impl.traces.packing import pack, unpack
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of
from draftproof.impl.traces.sources import Source, sources_of
from draftproof.proofs.faults import registry
from draftproof.proofs.faults.patching import patched


def source(path: Path) -> Source:
    return Source((str(path),), 0)


def records(path: Path) -> list[Any]:
    """All records but the checksums."""
    found = [decode(line) for line in path.read_bytes().splitlines()]
    return [record for record in found if not isinstance(record, Checksum)]


def with_everything(path: Path, tokens: str) -> Path:
    """Every kind of record there is."""
    with TraceWriter(path, header_for(rules_for(True), tokens=tokens), in_background=False) as trace:
        for place in range(3):
            number = trace.request(f"request <{place}>", 4, step=0, token_ids=[1, 2, 3, place])
            trace.emit("admit", number, step=0, num_hit_tokens=0, after={"status": "running"})
            trace.emit("schedule", number, step=0, num_new_tokens=4)
            trace.emit(
                "output",
                number,
                step=1,
                num_returned=4,
                num_drafts=0,
                num_accepted=0,
                num_kept=1,
                stopped=0,
                token_ids=[7],
                after={"num_tokens": 5, "num_computed_tokens": 4},
            )
            trace.violation(number, step=1, sentence='a "remark"')
            trace.emit("preempt", number, step=2, drop=1)
            trace.exit(number, step=2, num_registered_tokens=4, look_up=2)
            trace.emit("abort", number, step=3, after={"num_tokens": -5})
    return path


@pytest.mark.parametrize("tokens", ["none", "ids", "hashes"])
@pytest.mark.parametrize("end", ["ndjson", "ndjson.zst"])
def test_packing_and_unpacking_loses_nothing(tmp_path: Path, tokens: str, end: str) -> None:
    first = with_everything(tmp_path / "a.ndjson", tokens)
    packed, back = tmp_path / "a.parquet", tmp_path / f"b.{end}"
    assert pack(source(first), packed) == unpack(source(packed), back) == 24
    if end == "ndjson":
        assert records(back) == records(first)
    assert checked(back).divergences[0].id == (checked(packed).divergences[0].id)
    ours, theirs = (checked(path) for path in (first, packed))
    assert ours.divergences == [msgspec.structs.replace(one, path=str(first)) for one in theirs.divergences]
    assert ours.by_theorem == theirs.by_theorem and ours.remarks == theirs.remarks


def test_parquet_is_checked_like_ndjson(tmp_path: Path) -> None:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 2 and place == 7:
            told["num_registered_tokens"] += 2

    first = recorded(tmp_path / "a.ndjson", True, count=30, change=change)
    pack(source(first), tmp_path / "a.parquet")
    ours, theirs = checked(first), checked(tmp_path / "a.parquet")
    assert (ours.verdict, ours.checked, ours.num_judged) == (
        theirs.verdict,
        theirs.checked,
        theirs.num_judged,
    )
    assert [one.sentence for one in ours.divergences] == [one.sentence for one in theirs.divergences]
    assert theirs.divergences[0].id == "request 2"


def test_a_damaged_trace_is_not_packed(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"num_kept":1', b'"num_kept":2', 1))
    for action in (pack, unpack):
        with pytest.raises(TraceError, match=r"damaged trace is not (un)?packed"):
            action(source(path), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    path.write_bytes(data[: data.rfind(b'{"event":"end"')])
    with pytest.raises(TraceError, match="no end"):
        pack(source(path), tmp_path / "out")


def faulty(path: Path) -> Path:
    """A recording of an engine that forgets to uncount what a stop trims."""
    rng, rules = random.Random(5), rules_for(False)
    engine = RIGHT | patched(registry.find("trim-uncounted").changes).transitions
    return write(path, rules, [lived(rng, rules, engine, 60) for _ in range(40)])


def test_a_violating_trace_shrinks_to_a_few_events(tmp_path: Path) -> None:
    path = faulty(tmp_path / "a.ndjson")
    for place, found in enumerate(checked(path).divergences[:6]):
        header, whole, _ = records_of_request(source(path), str(found.request))
        smallest = shrinking.shrink(whole, header)
        out = tmp_path / f"small{place}.ndjson"
        shrinking.write(smallest, header, out)
        (again,) = checked(out).divergences
        assert again.theorems == found.theorems and again.counters.keys() == found.counters.keys()
        assert len(smallest) <= 10 < len(whole) or len(smallest) < len(whole)
        assert len(smallest) <= 10


def test_a_lost_block_shrinks_to_an_exit(tmp_path: Path) -> None:
    rules = rules_for(False)
    with TraceWriter(tmp_path / "a.ndjson", header_for(rules), in_background=False) as trace:
        number = trace.request("a", 8, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        for step in range(4):
            trace.emit("schedule", number, step=step, num_new_tokens=2)
            if step < 3:
                trace.emit("chunk_output", number, step=step, num_returned=2)
        trace.emit(
            "output",
            number,
            step=4,
            num_returned=2,
            num_drafts=0,
            num_accepted=0,
            num_kept=1,
            stopped=1,
        )
        trace.emit("finish", number, step=4)
        trace.exit(number, step=4, num_registered_tokens=6)
    header, whole, _ = records_of_request(source(tmp_path / "a.ndjson"), "a")
    smallest = shrinking.shrink(whole, header)
    shrinking.write(smallest, header, tmp_path / "b.ndjson")
    (found,) = checked(tmp_path / "b.ndjson").divergences
    assert found.theorems == ("T4",) and len(smallest) <= 6 < len(whole)


def test_a_right_trace_does_not_shrink(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    header, whole, _ = records_of_request(source(path), "0")
    with pytest.raises(TraceError, match="violates nothing"):
        shrinking.shrink(whole, header)


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_request_is_shown_as_text_and_as_a_page_of_its_own(tmp_path: Path) -> None:
    path = faulty(tmp_path / "a.ndjson")
    found = checked(path).divergences[0]
    header, whole, damages = records_of_request(source(path), found.id)
    assert not damages
    header = msgspec.structs.replace(header, engine="<script>alert(1)</script>\x1b[31m")
    happened = list(replayed(whole, rules_of(header)))
    assert happened[-1].divergence is not None
    for shown in (timeline.as_text(header, "<b>&x", happened), timeline.as_html(header, "<b>&x", happened)):
        assert "\x1b" not in shown and "T2" in shown
    page = _Page()
    page.feed(timeline.as_html(header, "<b>&x", happened))
    assert "script" not in page.tags and "b" in page.tags and "<script>alert(1)</script>" in page.text
    assert page.tags.count("tr") == len(happened) + 1
    expected, told = found.counters["num_computed_tokens"]
    assert f"C {told}, expected {expected}" in page.text


def test_two_recordings_of_the_same_are_the_same(tmp_path: Path) -> None:
    first = recorded(tmp_path / "a.ndjson", False)
    second = recorded(tmp_path / "b.ndjson", False)
    found = differing.compare(source(first), source(second))
    assert not found.differences and found.num_equal == 8 and found.matched_by == "id" and not found.header


def test_two_recordings_part_where_a_counter_does(tmp_path: Path) -> None:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 4 and place == 3:
            told["num_computed_tokens"] += 1

    first = recorded(tmp_path / "a.ndjson", False)
    second = recorded(tmp_path / "b.ndjson", False, change=change)
    (found,) = differing.compare(source(first), source(second)).differences
    assert found.request == "request 4" and set(found.counters) == {"num_computed_tokens"}
    assert found.event_index == 3 and "num_computed_tokens" in found.sentence


@pytest.mark.parametrize("tokens", ["ids", "hashes"])
def test_two_recordings_part_where_their_texts_do(tmp_path: Path, tokens: str) -> None:
    paths = []
    for name, last in (("a", 9), ("b", 8)):
        path = tmp_path / f"{name}.ndjson"
        with TraceWriter(path, header_for(rules_for(False), tokens=tokens), salt=b"shared") as trace:
            number = trace.request("x", 3, step=0, token_ids=[1, 2, 3])
            for sampled in (5, last):
                trace.emit(
                    "output", number, step=0, num_returned=1, num_drafts=0, num_accepted=0, num_kept=1,
                    stopped=0, token_ids=[sampled],
                )  # fmt: skip
        if tokens == "hashes":
            assert b'"x"' not in path.read_bytes()
        paths.append(path)
    (found,) = differing.compare(source(paths[0]), source(paths[1])).differences
    assert found.token_position == 4


def test_perfetto_gets_a_slice_for_each_step(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.ndjson", True)
    out = io.StringIO()
    count = chrome.export(source(path), out)
    entries = json.loads(out.getvalue())["traceEvents"]
    assert len(entries) == count
    outputs = sum(b'output","sequence"' in line for line in path.read_bytes().splitlines())
    assert sum(entry["ph"] == "X" for entry in entries) == outputs
    assert all(entry["dur"] > 0 for entry in entries if entry["ph"] == "X")


def test_an_unreadable_file_beside_others_is_told(tmp_path: Path) -> None:
    good = recorded(tmp_path / "a.ndjson", True)
    (tmp_path / "b.ndjson").write_text("nonsense\n")
    sources, unreadable = sources_of([str(good), str(tmp_path / "b.ndjson")])
    assert len(sources) == 1 and "b.ndjson is no trace" in unreadable[0].sentence
    assert encode(header_for(rules_for(True)))
