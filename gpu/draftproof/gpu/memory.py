"""Does a model fit? What loading its weights takes, and what the device has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from draftproof.gpu.models.projection import Matrix
from draftproof.gpu.models.shape import ModelShape

MEMORY = Path("/proc/meminfo")
CONTROL_GROUP_ROOT = Path("/sys/fs/cgroup")
# Control groups, version 2 and 1: a container's limit, what it uses, and what of that is files in memory.
CONTROL_GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_cache"),
)


def num_bytes_to_load(shape: ModelShape, dtype: Any, device: Any) -> int:
    """Bytes of the weights, and of the copies that `Decoder` makes: of matrices that it fuses and packs."""
    example = Matrix(torch.zeros(16, 16, dtype=dtype, device=device))
    fused = packed = head = 0
    for name, size in shape.tensor_shapes().items():
        kind, is_matrix = name.split(".")[-2], len(size) == 2
        if kind in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            # A fused matrix that is always multiplied packed is not kept as it was.
            fused += math.prod(size) * (not is_matrix or example.weight is not None)
        packed += math.prod(size) * (kind.endswith("_proj") and is_matrix and example.packed is not None)
    if example.packed is not None:
        head = shape.vocab_size * shape.hidden_size  # packed last, when what was fused is gone
    return int((shape.num_parameters + packed + max(fused, head)) * dtype.itemsize)


def free_bytes(device: Any) -> int | None:
    """Memory that can be had on the device; on a CPU within its container's limit. None if it is unknown."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    found = []
    kibibytes = _table(MEMORY).get("MemAvailable:")
    if kibibytes is not None:
        found.append(kibibytes * 1024)
    for limit, usage, statistics, key in CONTROL_GROUPS:
        try:
            most, used = (int((CONTROL_GROUP_ROOT / file).read_text()) for file in (limit, usage))
        except (OSError, ValueError):  # no such group, or no limit
            continue
        found.append(most - used + _table(CONTROL_GROUP_ROOT / statistics).get(key, 0))
    return max(min(found), 0) if found else None


def _table(path: Path) -> dict[str, int]:
    """Names and numbers of the kernel's tables; empty where there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
