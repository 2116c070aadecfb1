"""The pytest plug-in turns somebody else's scheduler tests into a check of invariants."""

from __future__ import annotations

import pytest
from tests.vllm import engine
from tests.vllm.attach_world import world
from tests.vllm.workloads import Settings

from draftproof.impl.attach.vllm import versions

pytest_plugins = "pytester"

SUITE = """
import pytest
from tests.vllm import engine
from tests.vllm.workloads import Settings


def run(max_tokens):
    scheduler = engine.new_scheduler(Settings(num_speculative_tokens=3))
    scheduler.add_request(engine.new_request("a", range(1_000, 1_044), max_tokens=max_tokens))
    for drafts, sampled in (([11, 12, 13], [10]), ([], [11, 12, 13, 14])):
        step = scheduler.schedule()
        scheduler.update_from_output(step, engine.returned(step, {"a": sampled}))
        engine.propose(scheduler, {"a": drafts})
    assert not scheduler.requests


def test_that_is_silent():
    scheduler = engine.new_scheduler(Settings())
    scheduler.add_request(engine.new_request("a", range(100), max_tokens=1))
    step = scheduler.schedule()
    scheduler.update_from_output(step, engine.returned(step, {"a": [10]}))


def test_that_loses_a_block():
    run(5)


@pytest.mark.draftproof_allows("completeness")
def test_that_may():
    run(5)


def test_that_brings_nothing_where_a_token_is_due():
    scheduler = engine.new_scheduler(Settings())
    scheduler.add_request(engine.new_request("a", range(100), max_tokens=1))
    step = scheduler.schedule()
    scheduler.update_from_output(step, engine.returned(step, {}))


def test_that_fails_by_itself():
    assert False, "its own reason"
"""


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Pytester forgets what its runs have imported, and neither torch nor vLLM can be loaded twice."""
    there = world(Settings(num_speculative_tokens=3))
    there.scheduler.add_request(engine.new_request("a", [1, 2, 3], max_tokens=1))
    there.settle(there.scheduler.schedule(), a=[10])


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """A suite of somebody else's, with the plug-in."""
    pytester.makepyfile(test_suite=SUITE)
    return pytester.runpytest_inprocess(
        "-p", "draftproof.impl.attach.pytest_plugin", "-p", "no:cacheprovider", *options
    )


def test_a_test_in_which_a_rule_broke_fails(pytester: pytest.Pytester) -> None:
    done = run(pytester)
    done.assert_outcomes(passed=3, failed=2)
    done.stdout.fnmatch_lines(
        [
            "*48 tokens were settled in whole blocks, a repeat finds 32 (T4, T13)*",
            "*its own reason*",
            "*6 scheduler steps of 4 requests checked, 2 violations*",
            "not judged, 1 times: a step that samples brought nothing, or more than was drafted",
        ]
    )


def test_it_can_report_only(pytester: pytest.Pytester) -> None:
    done = run(pytester, "--draftproof-report", "--draftproof-no-content", "-k", "silent or loses")
    done.assert_outcomes(passed=2, deselected=3)
    done.stdout.fnmatch_lines(
        ["*test_that_loses_a_block: [[]step 2] completeness a: 48 tokens were settled*"]
    )


def test_without_a_vllm_that_can_be_checked_it_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "installed", lambda: "0.9.0")
    done = run(pytester)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*vLLM 0.9.0 cannot be checked: the checks know 0.28 to 0.33*"])
