"""The commands: exit statuses, one sentence for a mistake, nothing but the answer on standard output."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import recorded

from draftproof.impl import cli
from draftproof.impl.traces import commands
from draftproof.impl.traces.outputs import new_file

fsspec: Any = importlib.import_module("fsspec")  # it has no types


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


COMMANDS = {
    "check": ["check"],
    "replay": ["replay", "--request", "2"],
    "shrink": ["shrink", "-o", "OUT/made.ndjson"],
    "diff": ["diff", "GOOD"],
    "pack": ["trace", "pack", "-o", "OUT/made.parquet"],
    "unpack": ["trace", "unpack", "-o", "OUT/made.ndjson.zst"],
    "chrome": ["trace", "chrome", "-o", "OUT/made.json"],
}
BAD = {
    "missing.ndjson": "missing.ndjson does not exist",
    "empty.ndjson": "empty.ndjson is empty",
    "text.ndjson": "text.ndjson is no trace",
    "bytes.parquet": "bytes.parquet is no",
    "newer.ndjson": "newer.ndjson: the trace has schema 2, this version reads up to 1: install a newer",
    "folder": "folder holds no traces",
    "nothing*.parquet": "nothing*.parquet matches no file",
    "-": "not read from standard input",
    "nowhere://bucket/x": "nowhere://bucket/x cannot be listed",
    "http://127.0.0.1:1/x": "http://127.0.0.1:1/x cannot be opened: its server does not answer",
    "bucket://closed/x": "bucket://closed/x cannot be read: no credentials were found",
    "undriven://x/y": "undriven://x/y cannot be opened: install the driver",
}


class Closed(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store without credentials, whose driver tells it at length."""

    protocol = "bucket"

    def info(self, path: str, **options: Any) -> Any:
        try:
            raise OSError("no credentials were found\nread the manual")
        except OSError:
            logging.getLogger("gcsfs").exception("it failed")
            raise


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A good trace, and all that is bad."""
    good = recorded(tmp_path / "good.ndjson", False)
    (tmp_path / "empty.ndjson").touch()
    (tmp_path / "text.ndjson").write_text("hello\n")
    (tmp_path / "bytes.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    (tmp_path / "newer.ndjson").write_text(good.read_text().replace('"schema":1', '"schema":2', 1))
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").mkdir()
    logging.getLogger("gcsfs").handlers.clear()
    fsspec.register_implementation("bucket", Closed, clobber=True)
    fsspec.register_implementation(
        "undriven", "no_such_module.System", errtxt="install the driver", clobber=True
    )
    return tmp_path


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_read_is_one_sentence(world: Path, capsys: Any, command: str, name: str) -> None:
    places = {"OUT": str(world / "out"), "GOOD": str(world / "good.ndjson")}
    arguments = COMMANDS[command]
    for short, place in places.items():
        arguments = [argument.replace(short, place) for argument in arguments]
    assert run(*arguments, name if "://" in name or name == "-" else world / name) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("draftproof: ") and BAD[name] in found.err
    assert len(found.err.splitlines()) == 1 and "manual" not in found.err
    assert logging.getLogger("gcsfs").handlers  # none: Python prints what is logged
    assert not [*(world / "out").iterdir()]


@pytest.mark.parametrize("name", BAD)
def test_json_is_json_whatever_could_be_read(world: Path, capsys: Any, name: str) -> None:
    name = name if "://" in name or name == "-" else str(world / name)
    for others, num_reports in (([], 0), ([world / "good.ndjson"], 1)):
        assert run("check", "--json", name, *others) == 2
        told = capsys.readouterr()
        found = json.loads(told.out)
        assert not told.err and found["exit_status"] == 2 and len(found["reports"]) == num_reports
        assert [one["path"] for one in found["unreadable"]] == [name]


def test_what_can_be_read_is_judged_whatever_cannot(world: Path, capsys: Any) -> None:
    bad = world / "missing.ndjson", "nothing*", world / "text.ndjson"
    assert run("check", *bad, world / "good.ndjson") == 2
    found = capsys.readouterr()
    assert "  clean for T1" in found.out and len(found.err.splitlines()) == 3
    faulty(world / "bad.ndjson")
    assert run("check", "nothing*", world / "bad.ndjson") == 1  # a violation outweighs


def test_what_may_not_be_read_is_told(world: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, closed = world / "secret.ndjson", world / "closed"
    recorded(secret, False)
    closed.mkdir()
    really_open, really_list = open, os.scandir

    def refuse_file(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path) == str(secret):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *arguments, **options)

    def refuse_folder(path: Any) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return really_list(path)

    monkeypatch.setattr("builtins.open", refuse_file)
    monkeypatch.setattr("os.scandir", refuse_folder)
    assert run("check", world) == 2
    found = capsys.readouterr()
    assert "good.ndjson (walk 1)" in found.out
    assert f"{secret} may not be read: no permission\n" in found.err
    assert f"{closed} is a folder that may not be listed: no permission\n" in found.err
    assert run("replay", secret, "--request", "2") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


WRITING = ("shrink", "pack", "unpack", "chrome", "page")


def write_to(command: str, world: Path, target: Path) -> int:
    trace = world / "bad.ndjson" if command == "shrink" else world / "good.ndjson"
    if command == "page":
        return run("replay", trace, "--request", "2", "--html", target)
    return run(*([] if command == "shrink" else ["trace"]), command, trace, "-o", target)


@pytest.mark.parametrize("command", WRITING)
def test_nothing_is_written_over_and_nothing_half(
    world: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    faulty(world / "bad.ndjson")
    out = world / "out"
    there = out / "there.ndjson"
    there.write_text("old")
    for target, says in (
        (there, "there.ndjson exists already"),
        (out, "out exists already"),
        (world / "nowhere" / "x.ndjson", f"there is no folder {world / 'nowhere'}"),
        (there / "x.ndjson", f"there is no folder {there}"),
        (out / ("x" * 300), "cannot be written: File name too long"),
    ):
        assert write_to(command, world, target) == 2
        told = capsys.readouterr()
        assert told.out == "" and says in told.err and len(told.err.splitlines()) == 1
    assert there.read_text() == "old" and [*out.iterdir()] == [there]

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    new = out / "new.ndjson"
    with monkeypatch.context() as patch:
        patch.setattr("os.link", fail)
        patch.setattr("pathlib.Path.rename", fail)
        assert write_to(command, world, new) == 2
        assert "No space left" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        link = os.link

        def link_late(half: Path, path: Path) -> None:
            path.write_text("of somebody else")
            link(half, path)

        patch.setattr("os.link", link_late)
        assert write_to(command, world, new) == 2
        assert "it is left as it is" in capsys.readouterr().err and new.read_text() == "of somebody else"
    new.unlink()
    assert [*out.iterdir()] == [there]
    assert write_to(command, world, new) == 0 and sorted(out.iterdir()) == [new, there]


def test_an_interrupt_leaves_nothing_half(world: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: Any, target: Any) -> int:
        target.write("half of it")
        target.flush()
        assert [*(world / "out").iterdir()]
        raise KeyboardInterrupt

    monkeypatch.setattr("draftproof.impl.traces.chrome.export", interrupt)
    assert write_to("chrome", world, world / "out" / "x.json") == 130
    assert capsys.readouterr().err == "draftproof: interrupted\n"
    assert not [*(world / "out").iterdir()]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there are no alarms on this system")
def test_an_interrupt_that_ends_the_process_leaves_nothing_half(tmp_path: Path) -> None:
    """As in `interrupts`: where the exception is held up, a handler ends the process without more ado."""
    seen: list[list[Path]] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append([*tmp_path.iterdir()]))
    try:
        with new_file(tmp_path / "x") as half:
            half.write_text("half of it")
            signal.raise_signal(signal.SIGALRM)
            half.write_text("all of it")
        assert seen == [[]] and (tmp_path / "x").read_text() == "all of it"
        signal.raise_signal(signal.SIGALRM)
        assert seen[1:] == [[tmp_path / "x"]]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "given, names, address",
    [
        (["a", "b"], ["a", "b"], None),
        (["a", "b", "--ray"], ["a", "b"], ""),
        (["--ray", "a", "b"], ["a", "b"], ""),
        (["--ray", "--json", "a"], ["a"], ""),
        (["a", "--ray", "head:6379"], ["a"], "head:6379"),
        (["--ray", "10.0.0.1:6379", "a", "b"], ["a", "b"], "10.0.0.1:6379"),
        (["--ray", "ray://head:10001", "a"], ["a"], "ray://head:10001"),
        (["--ray", "s3://bucket/a"], ["s3://bucket/a"], ""),
    ],
)
def test_ray_with_and_without_an_address(given: list[str], names: list[str], address: str | None) -> None:
    options = cli.build_parser().parse_args(["check", *given])
    assert commands._names_and_address(options) == (names, address)


def test_a_mistake_in_the_arguments_is_status_2(tmp_path: Path, capsys: Any) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    assert run("check", path, "--threads", 0) == 2
    assert run("replay", path, "--request", "nobody") == 2
    assert run("shrink", path, "-o", tmp_path / "b.ndjson") == 2
    assert "nothing to shrink" in capsys.readouterr().err
    assert run("check") == run("check", "--json", "--ray") == 2
    assert "name a trace to check" in capsys.readouterr().err
    assert run("diff", path, tmp_path, "--show", 1) == 0
    recorded(tmp_path / "c.ndjson", False)
    assert run("diff", path, tmp_path) == 2
    assert f"{tmp_path} is 2 traces: give one of them" in capsys.readouterr().err
    for wrong in (["trace", "pack", path], ["trace"], ["check", path, "--show", "-1"], ["replay", path]):
        with pytest.raises(SystemExit) as ended:
            run(*wrong)
        assert ended.value.code == 2


def test_the_request_to_shrink_is_a_number_whatever_ids_look_like(tmp_path: Path, capsys: Any) -> None:
    records = [json.loads(line) for line in faulty(tmp_path / "bad.ndjson").read_text().splitlines()]
    records = [record for record in records if record["event"] != "checksum"]
    records[0]["checksums"] = False
    for record in records:
        if record["event"] == "request":
            record["id"] = str((record["request"] + 1) % 8)  # as if it were another's number
    path = tmp_path / "confusing.ndjson"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("check", path) == 1
    assert run("shrink", path, "-o", tmp_path / "small.ndjson") == 0, capsys.readouterr().err
    assert run("check", tmp_path / "small.ndjson") == 1


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
