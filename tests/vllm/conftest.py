"""These tests need vLLM, which has its own environment (`make test-vllm`); elsewhere they are left out."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = importlib.util.find_spec("vllm") is None
FOUND = pytest.StashKey[dict[str, Counter[str]]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these files out where vLLM is missing; whoever asked for them by name is told why."""
    if not MISSING or not collection_path.is_relative_to(HERE):
        return None
    asked = [
        Path(argument.partition("::")[0]).resolve() for argument in config.invocation_params.args if argument
    ]
    if any(path.is_relative_to(HERE) for path in asked):
        raise pytest.UsageError(
            "the tests in tests/vllm compare with vLLM, which is not installed here: make test-vllm"
        )
    return True


def _counter(request: pytest.FixtureRequest, title: str) -> Counter[str]:
    """Counts over all workloads, printed at the end."""
    return request.config.stash.setdefault(FOUND, {}).setdefault(title, Counter())


@pytest.fixture(scope="session")
def first_differences(request: pytest.FixtureRequest) -> Counter[str]:
    """By name: in how many workloads a difference was the first that showed."""
    return _counter(request, "the scheduler as it is: first difference from vLLM 0.32, in workloads")


@pytest.fixture(scope="session")
def single_differences(request: pytest.FixtureRequest) -> Counter[str]:
    """By name: in how many workloads a difference showed with all others removed."""
    return _counter(request, "one difference at a time: workloads in which it shows")


@pytest.fixture(scope="session")
def seen(request: pytest.FixtureRequest) -> Counter[str]:
    """What happened in all workloads together."""
    return _counter(request, "in all workloads together")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the comparison found, in numbers."""
    for title, counts in config.stash.get(FOUND, {}).items():
        terminalreporter.section(title)
        for name, count in counts.most_common():
            terminalreporter.line(f"{count:9,} {name}")
