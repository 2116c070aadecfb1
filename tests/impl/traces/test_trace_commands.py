"""The commands: exit statuses, one sentence for a mistake, nothing but the answer on standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import recorded

from draftproof.impl import cli
from draftproof.impl.traces import commands


@pytest.fixture(autouse=True)
def _only_these_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed: the commands are those of this source."""

    class Found:
        def __lt__(self, other: Any) -> bool:
            return False

        def load(self) -> Any:
            return commands.register

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Found()])


def faulty(path: Path) -> Path:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 2 and place == 6:
            told["num_computed_tokens"] += 1

    return recorded(path, False, change=change)


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_clean_violated_and_unreadable_have_their_own_status(tmp_path: Path, capsys: Any) -> None:
    good, bad = recorded(tmp_path / "good.ndjson", False), faulty(tmp_path / "bad.ndjson")
    assert run("check", good) == 0
    out = capsys.readouterr()
    assert "clean for T1, T2" in out.out and not out.err
    assert run("check", good, bad) == 1
    assert "request 'request 2', step 6" in capsys.readouterr().out
    cut = tmp_path / "cut.ndjson"
    cut.write_bytes(good.read_bytes()[:-40])
    assert run("check", cut) == 2
    assert "UNREADABLE in part: no verdict" in capsys.readouterr().out
    assert run("check", cut, bad) == 1
    assert run("check", good, cut) == 2
    nonsense = tmp_path / "nonsense.ndjson"
    nonsense.write_text("hello\n")
    assert run("check", good, nonsense) == 2


def test_the_json_says_the_same(tmp_path: Path, capsys: Any) -> None:
    assert run("check", "--json", faulty(tmp_path / "bad.ndjson")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_status"] == 1 and found["unreadable"] == []
    (report,) = found["reports"]
    assert report["verdict"] == "violated" and report["num_diverged"] == 1
    (divergence,) = report["divergences"]
    assert divergence["id"] == "request 2" and set(divergence["counters"]) == {"num_computed_tokens"}
    assert "T8" in report["not_checked"]


def test_patterns_folders_and_urls(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "deep").mkdir()
    recorded(tmp_path / "deep" / "a.ndjson", False)
    recorded(tmp_path / "deep" / "b.ndjson.zst", True)
    for name in (
        tmp_path,
        tmp_path / "deep" / "*.nd*",
        f"file://{tmp_path}/deep",
        f"file://{tmp_path}/deep/a*",
    ):
        assert run("check", name) == 0, name
        assert "clean" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, says",
    [
        ("missing.ndjson", "does not exist"),
        ("empty", "holds no traces"),
        ("*.parquet", "matches no file"),
        ("nowhere://bucket/x", "cannot be"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(tmp_path: Path, capsys: Any, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    assert run("check", name if "://" in name else tmp_path / name) == 2
    out = capsys.readouterr()
    text = out.out + out.err
    assert says in text and "Traceback" not in text and len(text.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(tmp_path: Path, capsys: Any) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    path.chmod(0)
    assert run("check", path) == 2
    assert "no permission" in capsys.readouterr().out


def test_a_mistake_in_the_arguments_is_status_2(tmp_path: Path, capsys: Any) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    assert run("check", path, "--threads", 0) == 2
    assert run("replay", path, "--request", "nobody") == 2
    assert run("shrink", path, "-o", tmp_path / "b.ndjson") == 2
    assert "nothing to shrink" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run("trace", "pack", path)
    assert ended.value.code == 2


def test_a_faulty_trace_through_all_commands(tmp_path: Path, capsys: Any) -> None:
    bad, good = faulty(tmp_path / "bad.ndjson"), recorded(tmp_path / "good.ndjson", False)
    assert run("trace", "pack", bad, "-o", tmp_path / "bad.parquet") == 0
    assert run("check", tmp_path / "bad.parquet") == 1
    assert run("trace", "unpack", tmp_path / "bad.parquet", "-o", tmp_path / "again.ndjson.zst") == 0
    assert run("check", tmp_path / "again.ndjson.zst") == 1
    assert run("replay", bad, "--request", "request 2") == 1
    assert run("replay", good, "--request", "2") == 0
    assert run("replay", bad, "--request", "request 2", "--html", tmp_path / "page.html") == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert run("shrink", bad, "-o", tmp_path / "small.ndjson") == 0
    assert "records became" in capsys.readouterr().out
    assert run("check", tmp_path / "small.ndjson") == 1
    assert run("diff", good, bad) == 1
    assert "request 2" in capsys.readouterr().out
    assert run("diff", good, good) == 0
    assert run("diff", "--json", good, bad) == 1
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["num_equal"] == 7
    assert run("trace", "chrome", bad, "-o", tmp_path / "bad.json") == 0
    assert json.loads((tmp_path / "bad.json").read_text())["traceEvents"]
    assert run("trace", "chrome", bad, "-o", tmp_path / "bad.json") == 2
