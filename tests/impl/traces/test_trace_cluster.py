"""A Ray job finds what one machine finds, also when a worker, or its machine, is killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import recorded

from draftproof.impl import cli
from draftproof.impl.traces import cluster
from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.cluster import batches, check_one, connected
from draftproof.impl.traces.format import TraceError
from draftproof.impl.traces.sources import Source, beginnings_of

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for Ray's sockets, whose names may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="ray-test-", dir="/tmp" if os.name == "posix" else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster of a head without cores and two workers with one each, as on three machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        patch.setenv("RAY_health_check_period_ms", "300")  # five times silent: the machine is dead
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(REPOSITORY)]))
        pytest.importorskip("ray", reason="Ray is not installed: it has no wheel for this machine")
        from ray.cluster_utils import Cluster

        folder = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
        store = {"object_store_memory": 80 * 2**20}
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder, **store}
        found: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                found.add_node(wait=False, num_cpus=1, **store)
            found.wait_for_nodes()
            yield found
        finally:
            found.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Five clean traces and one that is not; all are checked here first, so that the code is compiled."""

    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 2 and place == 5:
            told["num_computed_tokens"] += 1

    right = [recorded(tmp_path / f"{seed}.ndjson", seed % 2 == 0, seed=seed) for seed in range(5)]
    wrong = recorded(tmp_path / "wrong.ndjson", False, change=change)
    found = [Source((str(path),), path.stat().st_size) for path in (*right, wrong)]
    verdicts = [check_source(source, num_threads=1).verdict for source in found]
    assert verdicts == ["clean"] * 5 + ["violated"]
    return found


def held_once(marker: Path) -> Callable[[Source], bytes]:
    """A check that stops in the middle of the third trace, says where, and waits to be killed: once."""
    place = str(marker)

    def check(source: Source) -> bytes:
        found = check_one(source)
        if source.paths[0].endswith("2.ndjson") and not os.path.exists(place):
            import ray

            with open(f"{place}.half", "w") as file:
                file.write(f"{os.getpid()} {ray.get_runtime_context().get_node_id()}")
            os.rename(f"{place}.half", place)
            time.sleep(600)
        return found

    return check


def kill_when_held(marker: Path, kill: Callable[[int, str], None]) -> threading.Thread:
    """A thread that kills what `held_once` waits in."""

    def wait() -> None:
        while not marker.exists():
            time.sleep(0.05)
        process, node = marker.read_text().split()
        kill(int(process), node)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_workers_are_killed_in_the_middle(
    machines: Any,
    sources: list[Source],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One once, from outside: its batch is begun again. Others at one trace, always: that has no report."""
    marker, told = tmp_path / "marker", list[int]()
    held = held_once(marker)

    def check(source: Source) -> bytes:
        if source.paths[0].endswith("3.ndjson"):
            raise MemoryError("too much")
        if source.paths[0].endswith("4.ndjson"):
            os.kill(os.getpid(), signal.SIGKILL)
        return held(source)

    monkeypatch.setattr(cluster, "MAX_RETRIES", 1)
    monkeypatch.setattr(cluster, "BATCHES_PER_CORE", 1)  # three traces a batch
    killed = kill_when_held(marker, lambda process, node: os.kill(process, signal.SIGKILL))
    with connected(machines.address) as two:
        assert two.num_cores == 2
        reports = two.check(sources, told.append, check)
        paths = [*(path for source in sources for path in source.paths), "missing.ndjson"]
        assert two.beginnings_of(paths) == beginnings_of(paths)
    killed.join(10)
    assert not killed.is_alive()
    expected = [check_source(source, num_threads=1) for source in sources]
    assert reports[:3] == expected[:3] and reports[5] == expected[5]
    assert reports[3].damages == ["it was not checked: MemoryError: too much"]
    assert reports[4].damages == ["it was not checked: its worker died 2 times"]
    assert {report.verdict for report in reports[3:5]} == {"unreadable"}
    assert capsys.readouterr().out == ""  # there the reports go
    assert sorted(told) == sorted(sources[place].num_bytes for place in (0, 1, 2, 3, 5))


def test_the_command_with_an_address(
    machines: Any,
    sources: list[Source],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "nonsense.ndjson").write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["check", "--json", "0.ndjson", str(tmp_path / "1.ndjson"), "wrong.ndjson", "nonsense.ndjson"]
    arguments += ["missing.ndjson", "nothing*", "--ray"]
    assert cli.main(arguments[:-1]) == 1
    here = capsys.readouterr().out
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    assert cli.main([*arguments, machines.address]) == 1
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    there = capsys.readouterr()
    assert there.out == here and not there.err
    assert len(json.loads(here)["reports"]) == 3 and len(json.loads(here)["unreadable"]) == 3


def test_a_machine_dies_in_the_middle(machines: Any, sources: list[Source], tmp_path: Path) -> None:
    """The last of these: one worker is left."""
    marker = tmp_path / "marker"

    def kill(process: int, node: str) -> None:
        (found,) = [one for one in machines.worker_nodes if one.node_id == node]
        machines.remove_node(found, allow_graceful=False)

    killed = kill_when_held(marker, kill)
    with connected(machines.address) as two:
        reports = two.check(sources, check=held_once(marker))
    killed.join(10)
    assert not killed.is_alive() and len(machines.worker_nodes) == 1
    assert reports == [check_source(source, num_threads=1) for source in sources]


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_a_cluster_of_its_own_leaves_nothing_behind(sources: list[Source], short_folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: it has no wheel for this machine")
    home = short_folder / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(short_folder),
        "HOME": str(home),
        "XDG_CACHE_HOME": _cache_home(),
    }
    command = [sys.executable, "-m", "draftproof.impl.cli", "check", "--ray", "--threads", "1"]
    paths = [path for source in sources for path in source.paths]
    ended = subprocess.run(
        [*command, *paths], check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 1 and ended.stderr == ""
    assert ended.stdout.count("  clean for") == 5 and ended.stdout.count("VIOLATED") == 1
    assert [*short_folder.iterdir()] == [home] and [*home.iterdir()] == []
    assert not [process for process in Path("/proc").glob("[0-9]*") if _mentions(process, short_folder)]


def _cache_home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


def _mentions(process: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_small_traces_travel_together_and_large_ones_alone() -> None:
    assert batches([], 2) == []
    assert batches([1] * 6, 2) == [[0], [1], [2], [3], [4], [5]]
    many = batches([1000] * 1000, 2)
    assert len(many) == 16 and max(map(len, many)) == 64
    assert [place for batch in many for place in batch] == list(range(1000))
    large = cluster.BATCH_BYTES
    assert batches([1, large, 1, large // 2, large // 2, 1] + [0] * 42, 2)[:4] == [
        [0],
        [1],
        [2, 3],
        [4, 5, 6, 7, 8, 9],
    ]


def test_without_ray_it_is_told_in_a_sentence(
    sources: list[Source], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["check", sources[0].paths[0], "--ray"]) == 2
    found = capsys.readouterr()
    assert found.err == "draftproof: this needs Ray: pip install 'draftproof[ray]'\n" and not found.out


def test_where_no_cluster_answers_it_is_told_in_a_sentence() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: it has no wheel for this machine")
    with (
        pytest.raises(TraceError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: "),
        connected("127.0.0.1:1"),
    ):
        pass
