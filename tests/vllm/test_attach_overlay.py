"""vLLM 0.33.0, laid over 0.32.0: sound but for what the list for upstream says, and the patches mend that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.vllm.attach_tree import VERSION, NoTreeError, patched, tree
from tests.vllm.test_losses import THEIR_LOSSES

ROOT = Path(__file__).parents[2]
PATCHES = sorted((ROOT / "docs" / "patches").glob(f"vllm-{VERSION}-*.patch"))
BETWEEN_TURNS = "accounting: D"
TRIMMED = "completeness: settled is findable after a trimmed stop"


@pytest.fixture(scope="module")
def source() -> Path:
    """Its Python files, named or downloaded once; where they are not to be had the tests are skipped."""
    try:
        return tree()
    except NoTreeError as problem:
        if "CI" in os.environ:
            raise
        pytest.skip(f"vLLM {VERSION} is not to be had: {problem}")


def look(source: Path) -> dict[str, Any]:
    """What the checks say, in a process of its own: another vLLM has been imported in this one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.attach_overlay", str(source), "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["from"]).parent == source.resolve()
    assert found["moved"] == [] and found["clients"]["failures"] == {} and found["clients"]["unjudged"] == {}
    assert found["clients"]["requests"] == 960
    return found


def losing(found: dict[str, Any], kind: str) -> list[list[int]]:
    """`[losing, all]`, synchronously and asynchronously, without and with aborts."""
    return [loss["exits"][kind] for loss in found["losses"]]


@pytest.fixture(scope="module")
def looked(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is said about it as it is and with the patches, side by side on two cores."""
    trees = {"as it is": source}
    if shutil.which("git"):
        trees["patched"] = patched(source, PATCHES, tmp_path_factory.mktemp("patched"))
    with ThreadPoolExecutor() as processes:
        return dict(zip(trees, processes.map(look, trees.values()), strict=True))


def test_it_is_sound_but_for_two_findings_and_loses_blocks_at_trimmed_stops(
    looked: dict[str, dict[str, Any]],
) -> None:
    found = looked["as it is"]
    if found["version"] != VERSION:
        pytest.skip(f"what is expected of {found['version']} is not written down: {found}")
    assert found["clients"]["findings"].keys() == {BETWEEN_TURNS, TRIMMED}
    assert losing(found, "trimmed stop") == [[24, 368], [22, 285], [24, 368], [22, 283]]
    assert losing(found, "finish") == [[0, 232], [0, 185], [0, 232], [0, 183]]
    assert losing(found, "abort") == [[0, 0], [0, 130], [0, 0], [0, 134]]
    assert found["priority"]


@pytest.mark.skipif(shutil.which("git") is None, reason="patches are applied with git, which is not there")
def test_with_the_patches_nothing_is_left_to_say(looked: dict[str, dict[str, Any]]) -> None:
    assert len(PATCHES) == 3
    found = looked["patched"]
    if found["version"] != VERSION:
        pytest.skip(f"the patches are for {VERSION}, this is {found['version']}")
    assert found["clients"]["findings"] == {}
    for kind in ("trimmed stop", "finish", "abort"):
        assert not any(lost for lost, _ in losing(found, kind))
    expected = [THEIR_LOSSES[mode] for mode in ((False, 0), (False, 26), (True, 0), (True, 26))]
    assert [
        sum(losing(found, kind)[place][1] for kind in ("trimmed stop", "finish")) for place in range(4)
    ] == [one.num_finished for one in expected]
    assert not found["priority"]
