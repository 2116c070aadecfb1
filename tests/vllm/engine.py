"""How is vLLM's scheduler built in this process, without weights, and spoken to?

Facts about vLLM 0.32: a configuration wants a model's `config.json`, so a tiny one is written to a temporary
folder; an asynchronous one refuses the drafter `ngram` and takes `ngram_gpu`; the CPU platform turns
asynchronous scheduling off, so it is set again after the configuration was built; EAGLE and multi-module MTP
are imitated by building the KV cache manager anew with their look-ahead, since they would need a drafter's
checkpoint.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.getLogger("vllm").setLevel(logging.ERROR)  # it would warn about block sizes and Triton at every start

import torch  # noqa: E402
from tests.vllm.workloads import Settings  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

VOCABULARY = 32_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 65_536,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}
"""Any causal model will do: nothing is loaded, only its lengths are read."""

init_none_hash(sha256)


@functools.cache
def model_folder() -> str:
    """A folder with a tiny model's `config.json`, removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="draftproof-vllm-")
    _FOLDERS.append(folder)
    (Path(folder.name) / "config.json").write_text(json.dumps(MODEL))
    return folder.name


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def new_scheduler(settings: Settings) -> Any:
    """vLLM's `Scheduler`, or its `AsyncScheduler`, with one group of full attention."""
    config = _config(settings)
    spec = FullAttentionSpec(block_size=settings.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=settings.num_blocks + 1,  # vLLM counts the null block
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    config.cache_config.num_gpu_blocks = cache.num_blocks
    scheduler = (AsyncScheduler if settings.asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
        hash_block_size=settings.block_size,
        log_stats=False,
    )
    if settings.num_prefill_lookahead_tokens:
        _imitate_drafter(scheduler, config, cache, settings)
    return scheduler


def _config(settings: Settings) -> Any:
    scheduler = SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        policy="priority" if settings.by_priority else "fcfs",
        enable_chunked_prefill=True,
        async_scheduling=settings.asynchronous,
        is_encoder_decoder=False,
    )
    model = ModelConfig(
        model=model_folder(),
        tokenizer=model_folder(),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=settings.max_model_len,
        seed=0,
    )
    speculative = None
    if settings.num_speculative_tokens:
        speculative = SpeculativeConfig(
            method="ngram_gpu" if settings.asynchronous else "ngram",
            num_speculative_tokens=settings.num_speculative_tokens,
            prompt_lookup_max=3,
            prompt_lookup_min=1,
            target_model_config=model,
            target_parallel_config=ParallelConfig(),
        )
    config = VllmConfig(
        scheduler_config=scheduler,
        model_config=model,
        cache_config=CacheConfig(block_size=settings.block_size, enable_prefix_caching=True),
        speculative_config=speculative,
        device_config=DeviceConfig("cpu"),
    )
    scheduler.async_scheduling = settings.asynchronous
    return config


def _imitate_drafter(scheduler: Any, config: Any, cache: Any, settings: Settings) -> None:
    """Let the scheduler believe in a drafter that reads A known tokens ahead and writes K positions."""
    scheduler.use_eagle = scheduler.use_eagle_block_drop = True
    scheduler.num_prefill_lookahead = settings.num_prefill_lookahead_tokens
    scheduler.num_lookahead_tokens = settings.num_speculative_tokens
    scheduler.kv_cache_manager = KVCacheManager(
        kv_cache_config=cache,
        max_model_len=settings.max_model_len,
        scheduler_block_size=settings.block_size,
        hash_block_size=settings.block_size,
        max_in_flight_tokens=config.max_in_flight_tokens,
        enable_caching=True,
        use_eagle=True,
        num_prefill_lookahead=settings.num_prefill_lookahead_tokens,
    )


@functools.cache
def _hasher(block_size: int) -> Any:
    return get_request_block_hasher(block_size, sha256)


def new_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int = 16,
    eos_token_id: int | None = None,
    stop_token_ids: Sequence[int] = (),
    priority: int = 0,
    arrival_time: float | None = None,
    resumable: bool = False,
    block_size: int = 16,
) -> Any:
    """A request as the engine's front end would hand it over."""
    parameters = SamplingParams(max_tokens=max_tokens, stop_token_ids=list(stop_token_ids), temperature=0)
    parameters.update_from_generation_config({}, eos_token_id)
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt_token_ids),
        sampling_params=parameters,
        pooling_params=None,
        block_hasher=_hasher(block_size),
        priority=priority,
        arrival_time=arrival_time,
        resumable=resumable,
    )


def returned(step: Any, sampled: Mapping[str, Sequence[int]]) -> Any:
    """What the runner brings back for a step: the tokens sampled for each request, none for a chunk."""
    ids = list(step.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[list(sampled.get(request_id, ())) for request_id in ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def propose(scheduler: Any, drafts: Mapping[str, Sequence[int]]) -> None:
    """The drafter's proposals, which synchronous scheduling takes between two steps."""
    scheduler.update_draft_token_ids(
        DraftTokenIds(list(drafts), [list(tokens) for tokens in drafts.values()])
    )


def num_free_blocks(scheduler: Any) -> int:
    """Blocks that nobody holds."""
    free: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return free


def num_cached_tokens(scheduler: Any, token_ids: Sequence[int], block_size: int = 16) -> int:
    """How many leading tokens a new request with this prompt would take over from the prefix cache."""
    request = new_request("look-up", token_ids, block_size=block_size)
    hit: int = scheduler.kv_cache_manager.get_computed_blocks(request)[1]
    return hit
