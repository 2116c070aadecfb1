"""The installed vLLM is one that can be checked, and whoever chooses wrongly is told so in one sentence."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.vllm.attach_world import world
from tests.vllm.workloads import Settings
from vllm.v1.core.sched.scheduler import Scheduler

from draftproof.impl.attach import vllm as attach
from draftproof.impl.attach.vllm import install, plugin, reports, versions
from draftproof.impl.attach.vllm.schedulers import (
    CheckedAsyncScheduler,
    CheckedScheduler,
    WrongSchedulerError,
)
from draftproof.impl.attach.vllm.settings import SettingsError, read


def test_nothing_that_the_checks_rely_on_has_moved() -> None:
    """Fails with a list of what moved when a new vLLM is installed."""
    assert versions.moved() == []


def test_what_moved_is_named() -> None:
    class Other:
        """Another version's."""

        def __init__(self) -> None:
            self.requests: dict[str, Any] = {}
            self.running = self.waiting = self.kv_cache_manager = self.max_model_len = None

        def schedule(self) -> None:
            """As ours."""

        def update_from_output(self, output: Any, scheduler_output: Any) -> None:
            """In another order."""

    def load(module: str, name: str) -> Any:
        if name == "Scheduler":
            return Other
        if name == "BlockPool":
            raise ImportError
        return versions._load(module, name)

    assert versions.moved(load) == [
        "vllm.v1.core.sched.scheduler.Scheduler.update_from_output takes output, scheduler_output, "
        "not scheduler_output, model_runner_output",
        "vllm.v1.core.sched.scheduler.Scheduler.add_request is gone",
        "vllm.v1.core.sched.scheduler.Scheduler.num_spec_tokens is gone",
        "vllm.v1.core.block_pool.BlockPool is gone",
    ]


def test_the_installed_version_is_in_the_table_and_an_unknown_one_is_refused() -> None:
    versions.require_supported(versions.installed())
    for version in ("0.27.1", "0.34.0", "1.0.0", "dev"):
        with pytest.raises(attach.UnsupportedVersionError, match=r"cannot be checked: .* 0\.28 to 0\.33"):
            versions.require_supported(version)
    versions.require_supported("0.33.0+cpu")


@pytest.mark.parametrize(("base", "asynchronous"), [(CheckedScheduler, True), (CheckedAsyncScheduler, False)])
def test_the_wrong_class_for_the_mode_is_refused(base: Any, asynchronous: bool) -> None:
    with pytest.raises(WrongSchedulerError, match="use Checked"):
        world(Settings(asynchronous=asynchronous), base=base)


def test_the_classes_are_found_by_name_and_keep_the_signatures() -> None:
    """`--scheduler-cls` names them as text."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    found = resolve_obj_by_qualname("draftproof.impl.attach.vllm.CheckedAsyncScheduler")
    assert found is CheckedAsyncScheduler
    for name in install.METHODS:
        names = list(inspect.signature(getattr(Scheduler, name)).parameters)
        assert set(names) >= set(inspect.signature(getattr(CheckedScheduler, name)).parameters) - {
            "args",
            "kwargs",
        }


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DRAFTPROOF_VLLM", "loud"),
        ("DRAFTPROOF_VLLM_CONTENT", "2"),
        ("DRAFTPROOF_VLLM_SWEEP", "-1"),
        ("DRAFTPROOF_VLLM_TRACE_BYTES", "1 MB"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_can(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable} is '{value}': it"):
        read({variable: value})


@pytest.mark.parametrize(
    ("value", "checked", "said"),
    [
        ("", False, []),
        ("report", True, ["draftproof: the scheduler is checked (report, with content checks)"]),
        (
            "loud",
            False,
            [
                "draftproof: the scheduler is NOT checked: DRAFTPROOF_VLLM is 'loud': "
                "it can be report, raise, record, or empty to check nothing"
            ],
        ),
    ],
)
def test_the_plug_in_is_switched_by_the_environment_and_says_so(
    value: str,
    checked: bool,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("DRAFTPROOF_VLLM", value)
    monkeypatch.setattr(plugin, "_installed", [])
    monkeypatch.setattr(reports, "say_at_exit", lambda: None)
    plugin.register()
    plugin.register()
    try:
        assert hasattr(Scheduler.schedule, "__wrapped__") == checked
        assert [record.getMessage() for record in caplog.records] == said
    finally:
        for installed in plugin._installed:
            if installed is not None:
                installed.remove()
    assert not hasattr(Scheduler.schedule, "__wrapped__")


def test_the_plug_in_is_an_entry_point_of_vllm() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="draftproof")
    assert found.value == "draftproof.impl.attach.vllm.plugin:register"


@pytest.mark.parametrize("module", ["plugin", "schedulers"])
def test_the_checks_bring_no_compiler_before_a_scheduler_runs(module: str) -> None:
    """A worker for CPUs does not start in a process that has imported Numba: vLLM looks into all modules."""
    script = (
        f"import sys; from draftproof.impl.attach.vllm import {module} as module\n"
        "getattr(module, 'register', module.__dict__.get('_around'))()\n"
        "print(*sorted({'numba', 'llvmlite'} & set(sys.modules)), 'vllm' in sys.modules)"
    )
    environment = os.environ | {"DRAFTPROOF_VLLM": "report", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == "True", done.stdout
