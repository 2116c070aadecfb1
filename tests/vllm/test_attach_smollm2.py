"""A real model is generated with: what do the checks find in vLLM 0.32, and does its text stay the same?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.vllm import attach_process
from tests.vllm.attach_process import Finished
from tests.vllm.attach_smollm2 import BLOCK_SIZE, MOST_TOKENS, NUM_REQUESTS

from draftproof.gpu.errors import ModelError
from draftproof.gpu.fetch import fetch

MODULE = "tests.vllm.attach_smollm2"


@pytest.fixture(scope="module")
def folder() -> str:
    """Where its weights are. Without a network the tests that need them are skipped, but not in CI."""
    try:
        return str(fetch("smollm2"))
    except ModelError as problem:
        if "CI" in os.environ:
            raise
        pytest.skip(f"SmolLM2 is not to be had: {problem}")


@pytest.fixture(scope="module")
def without_checks(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same requests, and no checks."""
    found = attach_process.run(MODULE, folder, folder=tmp_path_factory.mktemp("without"))
    assert "draftproof" not in found.output and not found.metrics
    return found


@pytest.mark.parametrize(
    ("several_processes", "arguments", "switch"),
    [(False, ["draftproof.impl.attach.vllm.CheckedScheduler"], ""), (True, [], "report")],
    ids=["by class, in one process", "by plug-in, in a core of its own"],
)
def test_smollm2_is_checked_and_says_the_same(
    several_processes: bool,
    arguments: list[str],
    switch: str,
    folder: str,
    without_checks: Finished,
    tmp_path: Path,
) -> None:
    found = attach_process.run(
        MODULE, folder, *arguments, folder=tmp_path, several_processes=several_processes, switch=switch
    )
    assert found.said == without_checks.said
    for text in found.said["texts"]:
        assert text.strip()
    tokens = [len(one) for one in found.said["tokens"]]
    assert tokens[: len(MOST_TOKENS)] == list(MOST_TOKENS)
    assert [length % BLOCK_SIZE for length in found.said["lengths"][len(MOST_TOKENS) :]] == [0] * 4

    assert found.total("requests") == found.total("exits") == NUM_REQUESTS
    assert found.total("exits", exit="finish") + found.total("exits", exit="trimmed stop") == NUM_REQUESTS
    assert "0 times something was not judged" in found.output
    # All that vLLM 0.32 is known for, and nothing else: a trim is not uncounted, each time; and whoever ends
    # on an accepted draft at the end of a block loses the block.
    num_trimmed = found.total("exits", exit="trimmed stop")
    num_losing = found.total("exits_with_lost_blocks")
    assert found.kinds == {"accounting", "completeness"}
    assert found.total("violations", kind="accounting") == num_trimmed > 0
    assert found.total("violations", kind="completeness") == num_losing > 0
    assert num_losing == found.total("blocks_lost") <= 4
