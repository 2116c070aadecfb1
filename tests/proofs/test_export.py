"""Files: whole or not at all, and a place that cannot be written is one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import z3

from draftproof.impl.cli import UserError
from draftproof.proofs import smtlib
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.output import OutputError, check_writable, write_text
from draftproof.proofs.smtlib import MARK, export
from draftproof.proofs.solvers import ask_cvc5

CLAIMS = transition_obligations("fold")


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_every_obligation_becomes_a_script_that_a_solver_answers(tmp_path: Path) -> None:
    assert export(CLAIMS, tmp_path / "out") == len(CLAIMS)
    files = sorted((tmp_path / "out").glob("*.smt2"))
    assert len(files) == len(CLAIMS)
    for file in files:
        script = file.read_text()
        assert "\n; Expected: unsat." in script
        assert ask_cvc5(script).verdict == "unsat"
        solver = z3.Solver()
        solver.from_string(script)
        assert str(solver.check()) == "unsat"
    assert files[0].read_text().startswith("; fold/")
    assert left_over(tmp_path) == []


def test_an_earlier_export_is_replaced_and_anything_else_is_kept(tmp_path: Path) -> None:
    export(CLAIMS, tmp_path / "out")
    assert export(CLAIMS[:2], tmp_path / "out") == 2
    assert len(list((tmp_path / "out").glob("*.smt2"))) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="holds other files"):
        export(CLAIMS, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    assert export(CLAIMS[:1], tmp_path / "empty") == 1
    assert (tmp_path / "empty" / MARK).exists()


def test_a_failed_export_leaves_the_earlier_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(CLAIMS, tmp_path / "out")
    before = sorted(os.listdir(tmp_path / "out"))

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smtlib, "_take_place", full_disk)
    with pytest.raises(OutputError, match="no space left on device"):
        export(CLAIMS[:1], tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == before
    assert left_over(tmp_path) == []


def test_two_obligations_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two obligations are called fold/"):
        export([CLAIMS[0], CLAIMS[0]], tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for attempt in (
        lambda: export(CLAIMS, tmp_path / "file"),
        lambda: export(CLAIMS, tmp_path / "file" / "below"),
        lambda: write_text(tmp_path / "file" / "below", "text"),
        lambda: write_text(tmp_path, "text"),
        lambda: check_writable(tmp_path),
        lambda: check_writable(tmp_path / "file" / "below"),
    ):
        with pytest.raises(OutputError) as raised:
            attempt()
        assert "\n" not in str(raised.value)
        assert str(tmp_path) in str(raised.value)
    assert issubclass(OutputError, UserError)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "page.html"
    check_writable(path)
    assert not path.exists()
    write_text(path, "first")
    assert path.read_text() == "first"

    def interrupted(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(OutputError, match="input/output error"):
        write_text(path, "second")
    assert path.read_text() == "first"
    assert left_over(path.parent) == []
