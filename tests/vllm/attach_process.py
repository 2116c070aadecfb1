"""Who runs a real engine? A process of its own, so that its checks begin and end with it.

Its last line of output is one JSON object: what the module that it runs has to say.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ENGINE = {
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
SECONDS = 240
SECONDS_TO_END = 60.0


class Finished(NamedTuple):
    """What a process has left."""

    said: Any
    """Its JSON."""
    output: str
    """Both streams."""
    metrics: str
    """Its counters, empty where it had no checks."""

    def total(self, name: str, **labels: str) -> int:
        """A counter, summed over the labels that are not given."""
        lines = re.findall(rf"^draftproof_vllm_{name}_total(\{{.*\}})? (\d+)$", self.metrics, re.MULTILINE)
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(int(amount) for text, amount in lines if all(one in text for one in wanted))

    @property
    def kinds(self) -> set[str]:
        """Of the violations."""
        return set(re.findall(r'draftproof_vllm_violations_total\{kind="([a-z]+)"', self.metrics))


def run(
    module: str, *arguments: str, folder: Path, several_processes: bool = False, switch: str = ""
) -> Finished:
    """`python -m module`. `switch` switches the checks by the environment, `folder` takes their counters."""
    metrics = folder / "metrics"
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ
        | ENGINE
        | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(several_processes)),
            "DRAFTPROOF_VLLM": switch,
            "DRAFTPROOF_VLLM_METRICS": str(metrics),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return Finished(json.loads(said[-1]), output, metrics.read_text() if metrics.exists() else "")


def end(llm: Any) -> None:
    """End an engine's core. Left to itself vLLM kills a core that has not ended after five seconds, and its
    workers alone take four: on a busy machine its checks could not say what they found."""
    llm.llm_engine.engine_core.shutdown(timeout=SECONDS_TO_END)
