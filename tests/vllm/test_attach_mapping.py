"""The page about the trace format names fields of vLLM: the installed vLLM has them."""

from __future__ import annotations

import re
from pathlib import Path

import vllm.v1

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trace-format.md").read_text()
MAPPING = PAGE.partition("## Whose field is which")[2].partition("## What a verdict says")[0]
ROWS = [line.strip("|\n ").split(" | ") for line in MAPPING.splitlines() if line.startswith("| `")]
FILES = (
    "request.py",
    "core/kv_cache_manager.py",
    "core/kv_cache_coordinator.py",
    "core/single_type_kv_cache_manager.py",
    "core/sched/scheduler.py",
)


def test_vllm_has_the_fields_of_its_column() -> None:
    folder = Path(str(vllm.v1.__file__)).parent
    source = "".join((folder / name).read_text() for name in FILES)
    told = {
        word for row in ROWS for text in re.findall(r"`([^`]+)`", row[1]) for word in re.findall(r"\w+", text)
    }
    told -= {"id", "len", "request", "0"}
    assert len(told) > 12 and not {word for word in told if not re.search(rf"\b{word}\b", source)}
