"""Compiled code is kept for the next start, and never taken for that of another source, setting or type.

Most of it runs in other processes, on a copy of the two packages that may be edited.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftproof import impl, spec
from draftproof.impl import code_cache, ledger_table
from draftproof.impl.progress_line import progress_line

HELPER = "impl/draftproof/impl/accounting.py"
BEFORE, AFTER = "ledger.num_tokens + num_kept,", "ledger.num_tokens + num_kept + 100,"
NUM_TOKENS = 6
"""What `SHOW` counts: 5 prompt tokens and one that is kept."""

SHOW = """
import json, sys
import numpy as np
from draftproof.impl import code_cache, compiled
from draftproof.spec.ledger import Rules, initial
assert compiled.__file__.startswith(sys.argv[1]), compiled.__file__
HOOK
loop = compiled.output_rows()
table = compiled.table_of([initial(5)])
loop(table, Rules(0, 16, False, 0), np.array([[5], [0], [0], [1], [0]]))
print(json.dumps({
    "num_tokens": int(table[1, 0]),
    "loaded": sum(loop.stats.cache_hits.values()),
    "compiled": sum(loop.stats.cache_misses.values()),
}))
"""
LOADED = {"num_tokens": NUM_TOKENS, "loaded": 1, "compiled": 0}
COMPILED = {"num_tokens": NUM_TOKENS, "loaded": 0, "compiled": 1}


class Copy:
    """A copy of the two packages, and a cache folder."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        for package, name in ((spec, "spec"), (impl, "impl")):
            source = Path(str(package.__file__)).parent
            target = folder / name / "draftproof" / name
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))

    def start(self, hook: str = "", **settings: str) -> subprocess.Popen[str]:
        """A process that runs the compiled loop once."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        paths = [str(self.folder / "spec"), str(self.folder / "impl"), os.environ.get("PYTHONPATH", "")]
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "DRAFTPROOF_CACHE_DIR": str(self.cache),
            "DRAFTPROOF_DEBUG": "0",
        }
        return subprocess.Popen(
            [sys.executable, "-c", SHOW.replace("HOOK", hook), str(self.folder)],
            env=environment | settings,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, hook: str = "", **settings: str) -> tuple[dict[str, int], str]:
        """What the loop counted and where its code came from; and what stderr said."""
        process = self.start(hook, **settings)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return json.loads(out), err

    def edit(self, before: str = BEFORE, after: str = AFTER) -> None:
        path = self.folder / HELPER
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def folders(self) -> list[str]:
        return sorted(entry.name for entry in self.cache.iterdir())


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "tree", tmp_path / "cache")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process keeps its code in the folder returned, whatever was edited meanwhile."""
    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_cache, "_changed_source", lambda: None)
    code_cache._say_once.cache_clear()
    yield tmp_path
    code_cache._folder.cache_clear()


def test_an_edited_helper_is_compiled_again_and_its_old_code_is_found_again(copy: Copy) -> None:
    assert copy.run() == (COMPILED, "")
    assert copy.run() == (LOADED, "")
    copy.edit()
    assert copy.run()[0] == COMPILED | {"num_tokens": NUM_TOKENS + 100}
    assert copy.run()[0] == LOADED | {"num_tokens": NUM_TOKENS + 100}
    copy.edit(AFTER, BEFORE)
    assert copy.run()[0] == LOADED
    assert len(copy.folders()) == 2


def test_without_the_digest_of_the_sources_the_edit_goes_unnoticed(copy: Copy) -> None:
    """What the test above would see if Numba's own check were all there is."""
    blind = 'code_cache.sources_digest = lambda: "the same"'
    assert copy.run(blind)[0] == COMPILED
    copy.edit()
    assert copy.run(blind)[0] == LOADED, "stale: the edit adds 100"


def test_code_older_than_its_file_is_not_kept(copy: Copy) -> None:
    """Edited between import and compilation: the process goes on with what it imported, and keeps nothing."""
    path = repr(str(copy.folder / HELPER))
    edit = f"text = open({path}).read(); open({path}, 'w').write(text.replace({BEFORE!r}, {AFTER!r}))"
    found, said = copy.run(edit)
    assert found == COMPILED and not copy.cache.exists()
    assert "changed after this process started" in said and said.count("\n") == 1
    assert copy.run()[0] == COMPILED | {"num_tokens": NUM_TOKENS + 100}


def test_equal_sources_of_another_date_or_place_use_the_same_folder(copy: Copy, tmp_path: Path) -> None:
    copy.run()
    for path in copy.folder.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    assert copy.run()[0]["num_tokens"] == NUM_TOKENS
    second = Copy(tmp_path / "elsewhere", copy.cache)
    assert second.run()[0]["num_tokens"] == NUM_TOKENS
    assert len(copy.folders()) == 1


OUTSIDE = """
from draftproof.impl import contracts
assert not contracts.DEBUG
wide = np.zeros((5, 64), np.int64)
try:
    compiled.output_rows()(compiled.table_of([initial(5)]), Rules(0, 16, False, 0), wide)
    sys.exit("a row outside the table was written")
except IndexError:
    pass
"""


def test_two_ways_to_compile_do_not_mix(copy: Copy) -> None:
    """The middle mode checks every index, in called functions too; other settings have other folders."""
    assert copy.run()[0] == COMPILED
    assert copy.run(OUTSIDE, DRAFTPROOF_DEBUG="middle")[0] == COMPILED
    assert copy.run(OUTSIDE, DRAFTPROOF_DEBUG="middle")[0] == LOADED
    assert copy.run(NUMBA_OPT="1")[0] == COMPILED
    assert copy.run(OUTSIDE, NUMBA_BOUNDSCHECK="1")[0] == COMPILED
    assert copy.run()[0] == LOADED
    assert len(copy.folders()) == 4


def test_processes_that_compile_at_once_do_not_disturb_each_other(copy: Copy) -> None:
    processes = [copy.start() for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["num_tokens"] == NUM_TOKENS
    assert copy.run()[0] == LOADED
    assert [path for path in copy.cache.rglob("*") if ".tmp" in path.name] == []


def test_where_nothing_can_be_written_every_start_compiles(copy: Copy) -> None:
    copy.cache.write_text("a file in the folder's place")
    for _ in range(2):
        found, said = copy.run()
        assert found == COMPILED
        assert said.count("\n") == 1 and "DRAFTPROOF_CACHE_DIR names another folder" in said
    assert copy.cache.read_text() == "a file in the folder's place"
    assert list(copy.folder.rglob("*.nb?")) == [], "nothing beside the sources"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_only_costs_the_compilation(copy: Copy) -> None:
    assert copy.run()[0] == COMPILED
    for path in (*copy.cache.iterdir(), copy.cache):
        path.chmod(0o500)
    found, said = copy.run()
    for path in (copy.cache, *copy.cache.iterdir()):
        path.chmod(0o700)
    assert found == COMPILED and said.count("\n") == 1
    assert copy.run()[0] == LOADED


def test_another_users_folder_is_not_used(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1, raising=False)
    assert code_cache.compile(ledger_table.padded, 5)(9) == 24
    assert list(here.rglob("*.nbc")) == []


@pytest.mark.parametrize("damage", ["cut short", "garbage"])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_costs_one_compilation(
    here: Path, caplog: pytest.LogCaptureFixture, damage: str, kind: str
) -> None:
    code_cache.compile(ledger_table.padded, 5)
    (path,) = here.rglob(f"*.{kind}")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut short" else b"garbage" * 99)
    assert caplog.messages == []
    assert code_cache.compile(ledger_table.padded, 5)(9) == 24
    (said,) = caplog.messages
    assert "could not be kept" in said
    for loaded in (0, 1):
        padded = code_cache.compile(ledger_table.padded, 5)
        assert (padded(9), sum(padded.stats.cache_hits.values())) == (24, loaded)
    assert len(caplog.messages) == 1


def test_a_disk_that_fills_up_costs_nothing_more(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From decoration on, nothing is found in the folder and nothing can be written: compiled once, used."""
    right = code_cache._directed_to

    class Spoiled:
        def __init__(self, place: Path) -> None:
            self.place, self.manager = place, right(place)

        def __enter__(self) -> None:
            self.manager.__enter__()

        def __exit__(self, *problem: Any) -> None:
            self.manager.__exit__(*problem)
            shutil.rmtree(self.place)
            self.place.symlink_to("nowhere")

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled a second time")

    monkeypatch.setattr(code_cache, "_directed_to", Spoiled)
    monkeypatch.setattr(code_cache, "_compiled", refuse)
    assert code_cache.compile(ledger_table.padded, 5)(9) == 24


def test_only_the_given_types_are_taken(here: Path) -> None:
    padded = code_cache.compile(ledger_table.padded, 5)
    assert padded(1024) == ledger_table.padded(1024)
    with pytest.raises(TypeError, match="No matching definition"):
        padded("1024")
    assert len(list(here.rglob("*.nbc"))) == 1


def test_without_types_nothing_is_kept(here: Path) -> None:
    assert code_cache.compile(ledger_table.padded)(9) == 24
    assert list(here.iterdir()) == []


def elsewhere(number: int) -> int:
    """A function that the digest does not cover."""
    return number + 1


def test_functions_of_other_packages_are_not_kept(here: Path) -> None:
    assert code_cache.compile(elsewhere, 5)(9) == 10
    assert list(here.iterdir()) == []


def nested() -> Callable[[int], int]:
    more = 1

    def function(number: int) -> int:
        return number + more

    function.__module__ = "draftproof.impl.compiled"
    return function


def test_a_function_that_closes_over_something_is_refused(here: Path) -> None:
    with pytest.raises(ValueError, match="closes over variables: write it at the module's top"):
        code_cache.compile(nested(), 5)


def test_the_users_own_cache_settings_stay(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = importlib.import_module("numba.core.config")
    monkeypatch.setattr(config, "CACHE_DIR", "/the/users")
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator")
    assert code_cache.compile(ledger_table.padded, 5)(9) == 24
    assert (config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES) == ("/the/users", "InTreeCacheLocator")
    assert len(list(here.rglob("*.nbc"))) == 1, "ours, not the user's"


def old_folder(base: Path, name: str, days: float, about: bool = True) -> Path:
    folder = base / name
    folder.mkdir()
    if about:
        (folder / code_cache.ABOUT).write_text("")
    last_used = time.time() - 86400 * days
    os.utime(folder, (last_used, last_used))
    return folder


def test_the_folders_not_used_for_longest_are_deleted_and_nothing_else(here: Path) -> None:
    ours = [old_folder(here, f"compiled-{number:032x}", days=number) for number in range(1, 13)]
    old_folder(here, "compiled-" + "a" * 32, days=99, about=False)
    old_folder(here, "compiled-other", days=99)
    (here / ("compiled-" + "b" * 32)).write_text("a file")
    target = old_folder(here, "target", days=99)
    (target / code_cache.ABOUT).write_text("")
    os.utime(target, (1, 1))
    (here / ("compiled-" + "c" * 32)).symlink_to(target)
    others = {path for path in here.iterdir() if path not in ours}
    code_cache.compile(ledger_table.padded, 5)
    left = set(here.iterdir())
    assert others <= left and (target / code_cache.ABOUT).exists()
    assert left & set(ours) == set(ours[: code_cache.NUM_KEPT - 1]), "one is new"


def test_folders_in_use_are_never_deleted(here: Path) -> None:
    ours = {old_folder(here, f"compiled-{number:032x}", days=0) for number in range(20)}
    code_cache.compile(ledger_table.padded, 5)
    assert ours < set(here.iterdir())


@pytest.mark.parametrize(
    ("platform", "settings", "folder"),
    [
        ("linux", {}, "~/.cache/draftproof"),
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/draftproof"),
        ("darwin", {"XDG_CACHE_HOME": "/caches"}, "~/Library/Caches/draftproof"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/draftproof/Cache"),
        ("darwin", {"DRAFTPROOF_CACHE_DIR": "~/mine"}, "~/mine"),
        ("linux", {"DRAFTPROOF_CACHE_DIR": ""}, "~/.cache/draftproof"),
    ],
)
def test_where_the_folders_are(
    platform: str, settings: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DRAFTPROOF_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert code_cache.base_folder() == Path(folder).expanduser()


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_a_terminal_shows_what_is_going_on_and_a_pipe_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_line("compiling it", delay=0.0):
        deadline = time.monotonic() + 60
        while "compiling it, 0 s" not in screen.getvalue():
            assert time.monotonic() < deadline, "nothing was shown"
            time.sleep(0.001)
    assert screen.getvalue().endswith("\r\x1b[K"), "and erased"
    screen = Screen(terminal=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_line("compiling it", delay=0.0):
        time.sleep(0.01)
    assert screen.getvalue() == ""
