"""Which tests run on a device? Those that know `DEVICE`: on CUDA if there is one, else on the CPU.

They carry the mark `gpu`. `pytest -m gpu` is for a machine with a device: without one it skips them, and says
so at the end. Here is also a folder for the traces of violations that the tests provoke.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REASON = "there is no CUDA device"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them before `-m` chooses among all."""
    ours = [item for item in items if HERE in item.path.parents and knows_device(item)]
    is_skipped = config.option.markexpr == "gpu" and not has_cuda()
    for item in ours:
        item.add_marker("gpu")
        if is_skipped:
            item.add_marker(pytest.mark.skip(reason=REASON))


def knows_device(item: Any) -> bool:
    """Whether its module names the device, or takes something from one of this folder's that does."""
    module = getattr(item, "module", None)
    names = vars(module) if module is not None else {}
    origins = {getattr(value, "__module__", None) for value in names.values()}
    ours = [
        sys.modules.get(name) for name in origins if isinstance(name, str) and name.startswith("tests.gpu.")
    ]
    return "DEVICE" in names or any(hasattr(origin, "DEVICE") for origin in ours)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """A run that was to use a device and had none says so last."""
    yield
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if REASON in str(report.longrepr)
    ]
    if config.option.markexpr == "gpu" and skipped:
        terminalreporter.write_line(
            f"Nothing has run on a GPU. {len(skipped)} tests were skipped: {REASON}.", yellow=True
        )


def has_cuda() -> bool:
    """Whether torch is there, and a device for it."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


@pytest.fixture(scope="session", autouse=True)
def _traces_in_a_folder_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not the one that pytest runs in."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DRAFTPROOF_TRACE_DIR", str(tmp_path_factory.mktemp("traces")))
        yield
