"""The command line: right names, wrong names, missing solvers, unwritable outputs, an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftproof.impl.cli import UserError, main
from draftproof.proofs import requirements


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().err


def test_a_wrong_theorem_name_gets_the_nearest_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "prove", "efects")
    assert status == 2
    assert "no theorem called 'efects'" in error and "effects" in error
    assert len(error.splitlines()) == 1


def test_a_wrong_fault_name_gets_the_nearest_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("explain", "trim-uncountd"), ("prove", "--fault", "trim-uncountd")):
        status, error = error_of(capsys, *arguments)
        assert status == 2
        assert "trim-uncounted" in error and len(error.splitlines()) == 1


def test_a_name_like_nothing_says_how_to_list_them(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "explain", "zzzzzzzz")
    assert status == 2 and "draftproof faults" in error


def test_one_theorem_is_proved_and_reported_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["prove", "T7", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [row["key"] for row in shown["details"]["theorems"]] == ["T7", "invariants", "R1"]
    assert shown["partial"] == ["R1", "T7", "invariants"]
    assert shown["obligations"]["proved"] == shown["obligations"]["total"] > 0


def test_a_partial_run_refuses_what_is_about_everything(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(capsys, "prove", "T7", "--full")
    assert status == 2 and "leave the theorems out" in error


def test_the_overview_is_not_that_of_a_full_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, error = error_of(capsys, "prove", "--full", "--overview", str(tmp_path / "overview.md"))
    assert status == 2 and "leave --full out" in error
    assert not list(tmp_path.iterdir())


def test_theorems_and_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theorems", "--json"]) == 0
    theorems = json.loads(capsys.readouterr().out)
    assert {"T1", "T14", "R1", "R2", "P2", "memory"} <= {row["key"] for row in theorems}
    assert main(["faults", "--json"]) == 0
    faults = json.loads(capsys.readouterr().out)
    assert "trim-uncounted" in {row["name"] for row in faults["faults"]}
    assert len(faults["unmodelled"]) <= 10


def test_a_theorem_is_explained_with_the_faults_that_break_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "t4"]) == 0
    shown = capsys.readouterr().out
    assert "nothing settled is lost" in shown and "Source:" in shown
    assert main(["explain", "p2"]) == 0
    assert capsys.readouterr().out.startswith("P2, counts are owners\n")


def test_the_pinned_tables_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    shown = capsys.readouterr().out
    assert "1 2 3 10 11 7 8" in shown and "1 2 3 10 7 8" in shown
    assert "32 loses 16" in shown
    assert main(["tables", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["finished"]
    assert rows["multi-module MTP, look-ahead 3, N=35"]["extended_without"] == [0, 16]


def test_a_missing_or_old_solver_is_named_with_the_remedy() -> None:
    with pytest.raises(UserError, match="no-such-solver is not installed; install it with pip install"):
        requirements.check({"no-such-solver": "1"})
    with pytest.raises(UserError, match=r"cvc5 .* is too old, 999 or newer is needed"):
        requirements.check({"cvc5": "999"})
    assert {"z3-solver", "cvc5", "crosshair-tool"} <= set(requirements.minimums())
    requirements.check()


def test_an_unwritable_output_is_one_sentence_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    for arguments in (("report", "--output", str(blocker / "report.html")), ("export", str(blocker / "smt"))):
        status, error = error_of(capsys, *arguments)
        assert status == 1
        assert str(blocker) in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def processes_of(group: int) -> list[int]:
    """The living processes of a process group (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the process table of Linux")
def test_an_interrupt_ends_at_once_and_leaves_no_workers() -> None:
    command = [sys.executable, "-m", "draftproof.impl.cli", "prove"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 20
    while len(processes_of(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(processes_of(process.pid)) >= 3, "the workers never started"
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert error.strip() == "draftproof: interrupted"
    deadline = time.monotonic() + 5
    while processes_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(process.pid) == []
