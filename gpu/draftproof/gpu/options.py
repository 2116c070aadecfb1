"""What do the options of an LLM come to? A scheduler's configuration, and parameters for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.gpu.attention.kv_cache import blocks_within
from draftproof.gpu.errors import ModelError, check_integer
from draftproof.gpu.models.hybrid import HybridShape
from draftproof.gpu.runner.model_part import About
from draftproof.gpu.sampling.parameters import MAX_STOP_TOKEN_IDS, ParameterError, SamplingParameters
from draftproof.impl.scheduler import ConfigError, KVGroup, SchedulerConfig

KV_CACHE_BYTES = 2**30
"""The KV cache's memory if nothing is said."""
PARAMETERS_ERROR = "parameters must be one SamplingParameters, or a list of one for each prompt, got "


def check_switches(**switches: Any) -> None:
    """Raises ModelError for one that is neither True nor False."""
    for name, value in switches.items():
        if type(value) is not bool:
            raise ModelError(f"{name} must be True or False, got {value!r:.80}")


def scheduler_config(
    about: About,
    *,
    max_model_len: int | None,
    num_blocks: int | None,
    kv_cache_bytes: int,
    recurrent_block_size: int,
    **options: Any,
) -> SchedulerConfig:
    """The scheduler's configuration. Raises ModelError."""
    shape, block_size = about.shape, options["block_size"]
    positions = shape.max_position_embeddings
    if max_model_len is None:
        max_model_len = positions
    check_integer("max_model_len", max_model_len, positions)
    if num_blocks is None:
        num_blocks = blocks_within(kv_cache_bytes, about.block_bytes, block_size, max_model_len)
    # A digest that looks ahead makes a hit right for an EAGLE-style head; states are kept before it is known.
    options["lookahead"] = "hash"
    if isinstance(shape, HybridShape):
        options["lookahead"] = "drop"
        options["groups"] = (KVGroup(block_size), KVGroup(recurrent_block_size, "recurrent"))
    try:
        return SchedulerConfig(
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            num_speculative_tokens=about.num_speculative_tokens,
            num_lookahead_tokens=about.num_lookahead_tokens,
            num_prefill_lookahead_tokens=about.num_prefill_lookahead_tokens,
            vocab_size=shape.vocab_size,
            max_stop_token_ids=MAX_STOP_TOKEN_IDS + len(shape.eos_token_ids),
            **options,
        )
    except ConfigError as problem:
        raise ModelError(str(problem)) from problem


def parameters_of(parameters: Any, count: int) -> Sequence[SamplingParameters]:
    """Those of each of so many prompts. Raises ParameterError."""
    if parameters is None:
        parameters = SamplingParameters()
    if isinstance(parameters, SamplingParameters):
        return [parameters] * count
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Sequence):
        raise ParameterError(f"{PARAMETERS_ERROR}{parameters!r:.80}")
    if not all(isinstance(one, SamplingParameters) for one in parameters):
        raise ParameterError(f"{PARAMETERS_ERROR}{parameters!r:.80}")
    if len(parameters) != count:
        raise ParameterError(f"{PARAMETERS_ERROR}{len(parameters)} for {count} prompts")
    return parameters
