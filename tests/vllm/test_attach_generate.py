"""The checks run in real engines: by class in one process, and by plug-in in a core of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.vllm import attach_process
from tests.vllm.attach_generate import NUM_REQUESTS

NUM_TOKENS = sum(29 + number for number in range(NUM_REQUESTS))


@pytest.mark.parametrize(
    ("several_processes", "arguments", "switch"),
    [(False, ["draftproof.impl.attach.vllm.CheckedScheduler"], ""), (True, [], "report")],
    ids=["by class, in one process", "by plug-in, in a process of its own"],
)
def test_a_real_engine_is_checked(
    several_processes: bool, arguments: list[str], switch: str, tmp_path: Path
) -> None:
    found = attach_process.run(
        "tests.vllm.attach_generate",
        *arguments,
        folder=tmp_path,
        several_processes=several_processes,
        switch=switch,
    )
    assert found.said == {"tokens": NUM_TOKENS}
    assert ("draftproof: the scheduler is checked" in found.output) == bool(switch)
    assert "draftproof summary: " in found.output
    assert found.total("requests") == found.total("exits") == NUM_REQUESTS
    # Nothing but what vLLM 0.32 is known for: trims that are not uncounted, and what finishes lose.
    assert found.kinds == {"accounting", "completeness"}
