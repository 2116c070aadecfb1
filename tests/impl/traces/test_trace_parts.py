"""A trace in several files is judged as a whole: what one part lacks is told, wherever that part stands."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import lived, recorded, rules_for, write

from draftproof.impl.traces.checking import Report, check_source
from draftproof.impl.traces.files import part_path
from draftproof.impl.traces.sources import Source


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A sound trace in three files or more."""
    rng, rules = random.Random(2), rules_for(False)
    path = write(
        tmp_path / "t.ndjson", rules, [lived(rng, rules, num_events=60) for _ in range(300)], max_bytes=1000
    )
    found = [part_path(path, part) for part in range(20) if part_path(path, part).exists()]
    assert len(found) > 2 and report_of(found).verdict == "clean"
    return found


def report_of(paths: list[Path]) -> Report:
    return check_source(Source(tuple(map(str, paths)), 0), num_threads=1)


def without_checksums(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines(keepends=True) if b'"checksum"' not in line]


def test_a_missing_last_checksum_is_told_of_every_part(parts: list[Path]) -> None:
    lines = parts[0].read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"checksum"' in line)
    parts[0].write_bytes(b"".join([*lines[:last], *lines[last + 1 :]]))
    report = report_of(parts)
    assert report.verdict == "unreadable"
    assert report.damages == [f"{parts[0]}: the checksum before the end is missing"]


def test_a_wrong_count_is_told_of_every_part(parts: list[Path]) -> None:
    data = parts[1].read_bytes()
    parts[1].write_bytes(re.sub(rb'"num_records":(\d+)', rb'"num_records":1\1', data))
    report = report_of(parts)
    assert report.verdict == "unreadable" and report.damage_counts == {"missing": 1}
    assert report.damages[0].startswith(f"{parts[1]}: ") and "records should be here" in report.damages[0]


@pytest.mark.parametrize("part", [0, 1, -1])
def test_a_counter_changed_under_lost_checksums_is_no_violation(parts: list[Path], part: int) -> None:
    lines = without_checksums(parts[part].read_bytes())
    places = [place for place, line in enumerate(lines) if b'"num_tokens":' in line]
    place = places[len(places) // 2]
    lines[place] = re.sub(rb'"num_tokens":\d+', b'"num_tokens":77', lines[place])
    parts[part].write_bytes(b"".join(lines))
    report = report_of(parts)
    assert report.verdict == "unreadable" and report.num_diverged == 0 and report.num_suspect == 1


def test_a_counter_changed_behind_the_last_checksum_is_no_violation(tmp_path: Path) -> None:
    """As in a file of an engine that was killed, or of one whose end somebody wrote again."""
    path = recorded(tmp_path / "t.ndjson", False)
    lines = without_checksums(path.read_bytes())
    places = [place for place, line in enumerate(lines) if b'"num_tokens":' in line]
    place = places[len(places) // 2]
    lines[place] = re.sub(rb'"num_tokens":\d+', b'"num_tokens":77', lines[place])
    for some in (lines, lines[:-1]):
        path.write_bytes(b"".join(some))
        report = report_of([path])
        assert (report.verdict, report.num_diverged, report.num_suspect) == ("unreadable", 0, 1)
    path.write_bytes(b"".join([lines[0].replace(b'"checksums":true', b'"checksums":false'), *lines[1:]]))
    assert report_of([path]).verdict == "violated"


@pytest.mark.parametrize(
    "other",
    [{"block_size": 4}, {"num_speculative_tokens": 7}, {"asynchronous": True}, {"registration_fence": 1}],
)
def test_all_parts_have_the_same_rules(parts: list[Path], other: dict[str, Any]) -> None:
    lines = without_checksums(parts[1].read_bytes())
    header = json.loads(lines[0]) | other | {"checksums": False}
    parts[1].write_bytes(b"".join([json.dumps(header).encode() + b"\n", *lines[1:]]))
    report = report_of(parts)
    assert report.verdict == "unreadable" and report.damage_counts == {"header": 1}
    assert report.damages == [f"{parts[1]}: part 1 has other rules than the first"]


def test_what_diverges_behind_other_rules_is_suspect(parts: list[Path]) -> None:
    lines = without_checksums(parts[1].read_bytes())
    header = json.loads(lines[0]) | {"block_size": 4, "checksums": False}
    places = [place for place, line in enumerate(lines) if b'"num_tokens":' in line]
    lines[places[9]] = re.sub(rb'"num_tokens":\d+', b'"num_tokens":77', lines[places[9]])
    parts[1].write_bytes(b"".join([json.dumps(header).encode() + b"\n", *lines[1:]]))
    report = report_of(parts)
    assert (report.verdict, report.num_diverged, report.num_suspect) == ("unreadable", 0, 1)


def test_the_beginning_is_missing_where_the_first_record_is_not_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.ndjson"
    path.write_bytes(
        b'{"event":"header","schema":1,"engine":"x","num_speculative_tokens":0,"block_size":2,'
        b'"asynchronous":false,"sequence":1000}\n'
        b'{"event":"request","sequence":1000,"step":0,"request":0,"num_prompt_tokens":4}\n'
        b'{"event":"admit","sequence":1001,"step":0,"request":0,"index":1,"num_hit_tokens":0,'
        b'"after":{"num_tokens":4,"num_computed_tokens":0}}\n'
        b'{"event":"end","sequence":1002,"num_records":2}\n'
    )
    report = report_of([path])
    assert report.verdict == "unreadable" and report.damage_counts == {"missing": 1}
    assert "1000" in report.damages[0]


def test_each_damage_of_a_part_is_told_once(parts: list[Path]) -> None:
    """A part that ends as if it were the last, and one that does not end."""
    data = parts[0].read_bytes()
    parts[0].write_bytes(data[: data.rfind(b'{"event":"continued"')])
    report = report_of(parts)
    assert [sentence for sentence in report.damages if "no end" in sentence] == [
        f"{parts[0]}: the trace has no end: how much is missing is not known"
    ]
