"""Which vLLM can be checked, and what of it do the checks rely on?

Both are data: `SUPPORTED` says which versions were looked at, `RELIED_ON` which methods and fields the checks
read or call. `moved` compares the second with the vLLM that is installed and names what is missing, so that a
new version fails with a list and not in the middle of a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple


class UnsupportedVersionError(RuntimeError):
    """The installed vLLM is absent, or is none that the checks were written for."""


BY_HAND = "run by hand: its Python files laid over 0.32.0's build (tests/vllm/attach_overlay.py)"
SUPPORTED: dict[tuple[int, int], str] = {
    (0, 28): BY_HAND,
    (0, 29): BY_HAND,
    (0, 30): BY_HAND,
    (0, 31): BY_HAND,
    (0, 32): "run by the test suite: 0.32.0",
    (0, 33): BY_HAND,
}
"""By major and minor version: how well it is known."""


class Relied(NamedTuple):
    """One class of vLLM, and what of it the checks use."""

    module: str
    name: str
    methods: dict[str, tuple[str, ...]]
    """By name: parameters that must be there, in this order, after `self`."""
    fields: tuple[str, ...] = ()
    """Attributes that the source of the class's `__init__` must set, or that the class itself has."""


RELIED_ON = (
    Relied(
        "vllm.v1.core.sched.scheduler",
        "Scheduler",
        {
            "schedule": (),
            "update_from_output": ("scheduler_output", "model_runner_output"),
            "add_request": ("request",),
        },
        ("requests", "running", "waiting", "kv_cache_manager", "num_spec_tokens", "max_model_len"),
    ),
    Relied("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", {"schedule": ()}),
    Relied(
        "vllm.v1.request",
        "Request",
        {"is_finished": ()},
        (
            "request_id",
            "status",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_in_flight_tokens",
            "num_stale_output_tokens",
            "drop_stale_output",
            "spec_token_ids",
            "num_tokens",
            "num_prompt_tokens",
            "num_preemptions",
            "block_hashes",
            "resumable",
            "streaming_queue",
            "all_token_ids",
        ),
    ),
    Relied(
        "vllm.v1.core.sched.output",
        "SchedulerOutput",
        {},
        (
            "num_scheduled_tokens",
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "scheduled_spec_decode_tokens",
            "preempted_req_ids",
        ),
    ),
    Relied("vllm.v1.outputs", "ModelRunnerOutput", {}, ("req_id_to_index", "sampled_token_ids")),
    Relied("vllm.v1.engine", "EngineCoreOutput", {}, ("request_id", "new_token_ids", "finish_reason")),
    Relied("vllm.v1.core.kv_cache_manager", "KVCacheManager", {}, ("coordinator", "block_pool")),
    Relied(
        "vllm.v1.core.block_pool",
        "BlockPool",
        {"get_cached_block": ("block_hash", "kv_cache_group_ids")},
        ("blocks", "cached_block_hash_to_block"),
    ),
    Relied(
        "vllm.v1.core.single_type_kv_cache_manager",
        "SingleTypeKVCacheManager",
        {},
        ("req_to_blocks", "num_cached_block", "block_size"),
    ),
    Relied("vllm.v1.core.kv_cache_utils", "KVCacheBlock", {}, ("block_id", "ref_cnt", "block_hash")),
)
"""Signatures and counters of these are the same from 0.28 to 0.33; which queues there are is not, so the
queues are looked for by name (`draftproof.impl.attach.vllm.engine_view.QUEUES`)."""


def parse(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version like `0.32.0+cpu`; None if it starts with no two numbers."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def installed() -> str:
    """The installed version. Raises UnsupportedVersionError if there is no vLLM."""
    try:
        import vllm
    except ImportError as error:
        raise UnsupportedVersionError(
            f"vLLM cannot be imported here ({error}): install it to check its scheduler"
        ) from None
    return str(vllm.__version__)


def require_supported(version: str) -> None:
    """Raises UnsupportedVersionError, in one sentence, unless the version is in the table."""
    if parse(version) not in SUPPORTED:
        known = sorted(SUPPORTED)
        raise UnsupportedVersionError(
            f"vLLM {version} cannot be checked: the checks know {_text(known[0])} to {_text(known[-1])}"
        )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def moved(load: Callable[[str, str], Any] | None = None) -> list[str]:
    """What the checks rely on and the installed vLLM does not have, one line each; empty if nothing moved.

    `load` gives a class by module and name, for tests; without it the installed vLLM is asked.
    """
    missing: list[str] = []
    for relied in RELIED_ON:
        place = f"{relied.module}.{relied.name}"
        try:
            found = (load or _load)(relied.module, relied.name)
        except (ImportError, AttributeError):
            missing.append(f"{place} is gone")
            continue
        for method, parameters in relied.methods.items():
            function = getattr(found, method, None)
            if function is None:
                missing.append(f"{place}.{method} is gone")
                continue
            names = tuple(inspect.signature(function).parameters)[1 : 1 + len(parameters)]
            if names != parameters:
                missing.append(f"{place}.{method} takes {', '.join(names)}, not {', '.join(parameters)}")
        known = _fields(found)
        missing += [f"{place}.{field} is gone" for field in relied.fields if field not in known]
    return missing


def _load(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(module), name)


def _fields(found: Any) -> set[str]:
    """The attributes of a class: its own, those of its instances if they are declared, and those that its
    constructor sets."""
    fields = set(dir(found)) | set(getattr(found, "__annotations__", ()))
    fields |= set(getattr(found, "__struct_fields__", ()))
    for base in inspect.getmro(found):
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            fields |= set(constructor.__code__.co_names)
    return fields
