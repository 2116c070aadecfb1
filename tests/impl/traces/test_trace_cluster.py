"""A Ray job finds what one machine finds, also when a worker is killed in the middle. Skipped without Ray."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import recorded

from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.cluster import check_on_cluster, check_one
from draftproof.impl.traces.format import TraceError
from draftproof.impl.traces.sources import Source


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers on this machine."""
    ray = pytest.importorskip("ray")
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[3])])
    environment = {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield ray
    ray.shutdown()


def _sources(folder: Path) -> list[Source]:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 2 and place == 5:
            told["num_computed_tokens"] += 1

    right = [recorded(folder / f"{seed}.ndjson", seed % 2 == 0, seed=seed) for seed in range(5)]
    wrong = recorded(folder / "wrong.ndjson", False, change=change)
    return [Source((str(path),), path.stat().st_size) for path in (*right, wrong)]


def test_the_cluster_finds_the_same_although_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "killed")

    def check(source: Source) -> bytes:
        if source.paths[0].endswith("2.ndjson") and not os.path.exists(marker):
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return check_one(source)

    sources = _sources(tmp_path)
    told: list[int] = []
    reports = check_on_cluster(sources, check=check, advance=told.append)
    assert os.path.exists(marker)
    assert reports == [check_source(source, num_threads=1) for source in sources]
    assert [report.verdict for report in reports] == ["clean"] * 5 + ["violated"]
    assert sum(told) == sum(source.num_bytes for source in sources)


def test_a_worker_that_always_dies_costs_one_report(cluster: Any, tmp_path: Path) -> None:
    def check(source: Source) -> bytes:
        if source.paths[0].endswith("2.ndjson"):
            os.kill(os.getpid(), signal.SIGKILL)
        return check_one(source)

    reports = check_on_cluster(_sources(tmp_path)[:3], check=check)
    assert [report.verdict for report in reports] == ["clean", "clean", "unreadable"]
    assert "it was not checked" in reports[2].damages[0]


def test_without_ray_it_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TraceError, match=r"pip install 'draftproof\[ray\]'"):
        check_on_cluster([])
