"""An existing suite of vLLM scheduler tests as a check of invariants.

`pytest -p draftproof.impl.attach.pytest_plugin` switches it on, from the command line or a project's options.
Every scheduler that a test builds is checked, each test in a report of its own. A test in which a rule was
broken fails after it has run, with the first violation; with `--draftproof-report` it does not, and the end
of the run lists what was found. Violations that a test shows on purpose are allowed with the marker
`draftproof_allows("T4")`, by theorem or kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from draftproof.impl.attach.vllm.reports import Report, Violation
from draftproof.impl.attach.vllm.settings import Settings

FOUND = pytest.StashKey[list[tuple[str, Violation]]]()
COUNT = pytest.StashKey[Counter[str]]()
UNJUDGED = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--draftproof-report` and `--draftproof-no-content`."""
    group = parser.getgroup("draftproof", "checked vLLM schedulers")
    group.addoption(
        "--draftproof-report",
        action="store_true",
        help="list violations at the end, and fail no test for them",
    )
    group.addoption(
        "--draftproof-no-content",
        action="store_true",
        help="leave out the token-level shadow of the KV slots",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and a list of what will be found. Raises pytest.UsageError without a vLLM to check."""
    from draftproof.impl.attach.vllm import versions

    config.addinivalue_line(
        "markers", "draftproof_allows(*names): violations of these theorems or kinds do not fail the test"
    )
    config.stash[FOUND] = []
    config.stash[COUNT] = Counter()
    config.stash[UNJUDGED] = Counter()
    try:
        versions.require_supported(versions.installed())
    except versions.UnsupportedVersionError as error:
        raise pytest.UsageError(f"draftproof.impl.attach.pytest_plugin: {error}") from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run the test with vLLM's schedulers checked."""
    from draftproof.impl.attach.vllm.around import Around
    from draftproof.impl.attach.vllm.install import Installed

    report = Report()
    settings = Settings(content=not item.config.getoption("--draftproof-no-content"), sweep_interval=1)
    installed = Installed(Around(settings, report))
    try:
        result: Any = yield
    finally:
        installed.remove()
        _take(item, report)
    wrong = [violation for violation in report.violations if not _allowed(item, violation)]
    if wrong and not item.config.getoption("--draftproof-report"):
        pytest.fail(f"draftproof: {wrong[0]}\n{wrong[0].as_json()}", pytrace=False)
    return result  # type: ignore[no-any-return]


def _take(item: pytest.Item, report: Report) -> None:
    found = item.config.stash[FOUND]
    seen = set()
    for violation in report.violations:
        if violation.key not in seen:
            seen.add(violation.key)
            found.append((item.nodeid, violation))
    count = item.config.stash[COUNT]
    for name in ("steps", "requests"):
        count[name] += report.total(name)
    item.config.stash[UNJUDGED].update(report.unjudged)


def _allowed(item: pytest.Item, violation: Violation) -> bool:
    names = {name for marker in item.iter_markers("draftproof_allows") for name in marker.args}
    return bool(names & {violation.kind, *violation.theorems})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was checked, and what was found."""
    count, unjudged = config.stash[COUNT], config.stash[UNJUDGED]
    found = config.stash[FOUND]
    if not count and not found and not unjudged:
        return
    terminalreporter.section("draftproof")
    checked = f"{count['steps']:,} scheduler steps of {count['requests']:,} requests checked"
    terminalreporter.line(f"{checked}, {len(found)} violations")
    for place, violation in found:
        terminalreporter.line(f"{place}: {violation}")
    for reason, times in unjudged.most_common():
        terminalreporter.line(f"not judged, {times} times: {reason}")
