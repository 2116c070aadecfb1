"""What belongs to the device? The model, its drafter and their KV, loaded from a description.

`ModelPart` runs in the process that computes: the user's own, or one of its own (`process`). What the rest
has to know of it is in `About`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from draftproof.gpu import recurrent
from draftproof.gpu.attention import GatherAttention, KVCache
from draftproof.gpu.attention.kv_cache import bytes_per_block
from draftproof.gpu.canary import Canary
from draftproof.gpu.drafters import Drafter, drafter_of
from draftproof.gpu.errors import ModelError
from draftproof.gpu.loading import load
from draftproof.gpu.models.hybrid import HybridShape
from draftproof.gpu.models.shape import ModelShape
from draftproof.gpu.recurrent import StateCache
from draftproof.gpu.runner.graphs import CudaCapture, Graphs
from draftproof.gpu.runner.runner import Backend, Runner
from draftproof.gpu.tokenizer import Tokenizer
from draftproof.impl.scheduler import SchedulerConfig


@dataclass(frozen=True)
class ModelSetup:
    """What to load, and how to run it."""

    model: Any
    """A name or path as of `draftproof.gpu.loading.load`, a Decoder, or a function that makes one."""
    dtype: Any = None
    device: Any = None
    seed: int = 0
    speculate: Any = None
    """None, a drafter's name and number such as `"ngram:3"`, a Drafter, or a function that makes one."""
    attention_backend: Any = None
    """`"gather"`, `"triton"`, a backend, or None: Triton on CUDA where it is installed."""
    debug: bool = False
    """Whether a canary looks after the KV cache."""
    cuda_graphs: bool = True
    """Whether steps that are alike run as captured graphs, on CUDA."""


class About(NamedTuple):
    """What the engine has to know."""

    shape: ModelShape
    block_bytes: int
    """Of KV in one block of as many tokens as was asked, the drafter's included."""
    num_speculative_tokens: int
    num_lookahead_tokens: int
    num_prefill_lookahead_tokens: int
    device: str


class ModelPart:
    """The model and its drafter, loaded. Raises ModelError."""

    def __init__(self, setup: ModelSetup, block_size: int) -> None:
        self.setup, self.block_size = setup, block_size
        backend = backend_of(setup.attention_backend)
        model = setup.model() if is_function(setup.model) else setup.model
        loaded = load(model, dtype=setup.dtype, device=setup.device, seed=setup.seed)
        self.decoder = loaded.decoder
        self.tokenizer: Tokenizer | None = loaded.tokenizer
        self.name: str = loaded.name
        self.drafter = _drafter(setup, self.decoder)
        self.backend = backend or _best_backend(self.decoder.device)

    @property
    def about(self) -> About:
        """What the engine has to know. Raises ModelError for a block size that cannot be."""
        shape, drafter = self.decoder.shape, self.drafter
        attention = _attention_part(shape)
        size = (attention.num_layers, self.block_size, attention.num_kv_heads, attention.head_dim)
        own = bytes_per_block(*size, self.decoder.dtype)
        if isinstance(shape, HybridShape):
            own += recurrent.bytes_per_block(shape.num_recurrent_layers, shape.recurrent_size)
        return About(
            shape,
            own + (0 if drafter is None else drafter.bytes_per_block(self.block_size)),
            0 if drafter is None else drafter.num_speculative_tokens,
            0 if drafter is None else drafter.num_lookahead_tokens,
            0 if drafter is None else drafter.num_prefill_lookahead_tokens,
            str(self.decoder.device),
        )

    def runner(self, config: SchedulerConfig) -> Runner:
        """Ready to run steps of such a scheduler; takes the memory of the KV caches. Raises ModelError."""
        shape, decoder = self.decoder.shape, self.decoder
        if self.drafter is not None:
            self.drafter.check(replace(shape, max_position_embeddings=config.max_model_len))
        size = (config.block_size, shape.num_kv_heads, shape.head_dim)
        num_layers = _attention_part(shape).num_layers
        cache = KVCache(num_layers, config.num_blocks, *size, decoder.dtype, decoder.device)
        states = None
        if isinstance(shape, HybridShape):
            sizes = (shape.num_recurrent_layers, config.num_blocks, shape.recurrent_size)
            states = StateCache(*sizes, decoder.device)
        canary = None
        if self.setup.debug:
            lines = config.max_num_requests + 1
            canary = Canary(lines, config.max_model_len, config.num_blocks, config.block_size, decoder.device)
        if self.drafter is not None:
            self.drafter.prepare(config.num_blocks, config.block_size, decoder, self.backend)
        return Runner(decoder, cache, config, self.drafter, self.backend, canary, states, self._graphs())

    def _graphs(self) -> Graphs | None:
        """Not for the gathering backend: it would gather as many keys as there could be, in every step."""
        device = self.decoder.device
        if not self.setup.cuda_graphs or device.type != "cuda" or self.backend is GatherAttention:
            return None
        return Graphs(CudaCapture(device))


def _attention_part(shape: ModelShape) -> ModelShape:
    """The layers that have keys and values."""
    return shape.attention_part() if isinstance(shape, HybridShape) else shape


def backend_of(attention_backend: Any) -> Backend | None:
    """The backend that an option names; None for the best one. Raises ModelError."""
    if attention_backend is None or callable(attention_backend):
        return attention_backend  # type: ignore[no-any-return]
    if attention_backend == "gather":
        return GatherAttention
    if attention_backend == "triton":
        if importlib.util.find_spec("triton") is None:
            raise ModelError(
                'attention_backend="triton" needs the package triton: install it, or use "gather"'
            )
        from draftproof.gpu.attention.triton_kernel import TritonAttention

        return TritonAttention
    raise ModelError(
        f'attention_backend must be "gather", "triton", a backend or None, got {attention_backend!r:.80}'
    )


def _best_backend(device: Any) -> Backend:
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        found = backend_of("triton")
        assert found is not None
        return found
    return GatherAttention


def _drafter(setup: ModelSetup, decoder: Any) -> Drafter | None:
    speculate: Any = setup.speculate
    if is_function(speculate):
        speculate = speculate(decoder)
    return drafter_of(speculate, decoder, setup.seed)


def is_function(value: Any) -> bool:
    """Neither a name nor an object with a shape or drafts of its own."""
    known = isinstance(value, (str, Drafter)) or hasattr(value, "shape")
    return isinstance(value, Callable) and not known  # type: ignore[arg-type]
