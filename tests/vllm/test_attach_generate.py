"""The checks run in real engines: by class in one process, and by plug-in in a core of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.vllm.attach_generate import NUM_REQUESTS

NUM_TOKENS = sum(29 + number for number in range(NUM_REQUESTS))
ENGINE = {
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.parametrize(
    ("processes", "arguments", "switch"),
    [("0", ["draftproof.impl.attach.vllm.CheckedScheduler"], ""), ("1", [], "report")],
    ids=["by class, in one process", "by plug-in, in a process of its own"],
)
def test_a_real_engine_is_checked(processes: str, arguments: list[str], switch: str, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.attach_generate", *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ
        | ENGINE
        | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": processes,
            "DRAFTPROOF_VLLM": switch,
            "DRAFTPROOF_VLLM_METRICS": str(metrics),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"tokens {NUM_TOKENS}" in done.stdout, done.stdout + done.stderr
    assert ("draftproof: the scheduler is checked" in done.stderr) == bool(switch)
    assert "draftproof summary: " in done.stderr + done.stdout
    text = metrics.read_text()
    assert f"draftproof_vllm_requests_total {NUM_REQUESTS}\n" in text
    exits = re.findall(r'draftproof_vllm_exits_total\{exit="[a-z ]+"\} (\d+)', text)
    assert sum(map(int, exits)) == NUM_REQUESTS
    # Nothing but what vLLM 0.32 is known for: trims that are not uncounted, and what finishes lose.
    kinds = set(re.findall(r'draftproof_vllm_violations_total\{kind="([a-z]+)"', text))
    assert kinds == {"accounting", "completeness"}
