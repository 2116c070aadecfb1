"""A first start compiles on two processors; whatever becomes of the second process, it only costs time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftproof.impl import code_cache
from draftproof.impl.scheduler import compiled, entry

SMALL = "drop_step"
"""An entry point that takes a second to compile."""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_cache, "_changed_source", lambda: None)
    monkeypatch.setattr(compiled, "num_processors", lambda: 2)
    yield tmp_path
    code_cache._folder.cache_clear()


def is_kept(name: str) -> bool | None:
    return code_cache.is_kept(getattr(entry, name), *compiled.examples_of(name, False))


def refuse(*arguments: Any, **options: Any) -> None:
    raise AssertionError("no process is to be started")


def test_the_others_are_compiled_meanwhile() -> None:
    assert is_kept(SMALL) is False
    with compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False):
        pass
    assert is_kept(SMALL) is True
    assert is_kept("schedule_step") is False


def test_nothing_is_started_where_everything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.entry_point.__wrapped__(SMALL, False)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with compiled.compiled_meanwhile(SMALL, [SMALL], has_recurrent_groups=False):
        pass


def test_nothing_is_started_where_nothing_can_be_kept(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_cache / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(empty_cache / "file" / "below"))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert is_kept(SMALL) is None
    with compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False):
        pass


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "/bin/false"])
def test_a_process_that_does_not_start_or_fails_changes_nothing(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False):
        pass
    assert is_kept(SMALL) is False


def test_the_helper_starts_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.HELPS, "1")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False):
        pass


def test_a_helper_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(compiled, "LONGEST_WAIT", 0.1)
    with compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False):
        pass
    assert is_kept(SMALL) is False


def test_an_interrupted_compilation_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[Any]] = []
    start = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    with (
        pytest.raises(KeyboardInterrupt),
        compiled.compiled_meanwhile("schedule_step", [SMALL], has_recurrent_groups=False),
    ):
        raise KeyboardInterrupt
    assert [one.returncode is not None and one.returncode != 0 for one in started] == [True]
    assert is_kept(SMALL) is False
