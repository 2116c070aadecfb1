"""How does a user generate tokens? `LLM(decoder, speculate="ngram:3").generate(prompts, parameters)`.

```python
llm = LLM(decoder, speculate="ngram:3", max_model_len=4096)
results = llm.generate([[1, 2, 3], [4, 5]], SamplingParameters(temperature=0, max_tokens=32))
```

Prompts are token ids, and so are results. Speculation changes how many steps they take, not what they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from draftproof.gpu.attention import GatherAttention, KVCache, blocks_for_budget
from draftproof.gpu.drafters import Drafter, drafter_of
from draftproof.gpu.errors import ModelError, check_integer
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.runner.engine import Engine
from draftproof.gpu.runner.requests import RequestResult
from draftproof.gpu.runner.runner import Backend, Runner
from draftproof.gpu.sampling.parameters import MAX_STOP_TOKEN_IDS, ParameterError, SamplingParameters
from draftproof.impl.scheduler import ConfigError, RequestError, Scheduler, SchedulerConfig

KV_CACHE_BYTES = 2**30
"""The KV cache's memory if nothing is said."""
PARAMETERS_ERROR = "parameters must be one SamplingParameters, or a list of one for each prompt, got "


class LLM:
    """A model ready to generate. One thread at a time may use it."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        speculate: str | Drafter | None = None,
        max_model_len: int | None = None,
        num_blocks: int | None = None,
        kv_cache_bytes: int = KV_CACHE_BYTES,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        long_prefill_token_threshold: int = 0,
        enable_prefix_caching: bool = True,
        attention_backend: Backend = GatherAttention,
        compiled: bool | None = None,
    ) -> None:
        """The options have vLLM's names. Counts are tokens, but for blocks.

        `speculate`: None, `"ngram:K"`, `"null:K"`, or a drafter of K tokens a step. `max_model_len`: None for
        all the positions that the model has. `num_blocks`: of the KV cache; None for what `kv_cache_bytes`
        hold. `compiled`: whether the scheduler is; None for the usual.

        Raises ModelError for an option that cannot be, before memory is taken.
        """
        self.decoder = decoder
        drafter = drafter_of(speculate)
        shape = decoder.shape
        positions = shape.max_position_embeddings
        if max_model_len is None:
            max_model_len = positions
        check_integer("max_model_len", max_model_len, positions)
        sizes = (shape.num_layers, block_size, shape.num_kv_heads, shape.head_dim)
        if num_blocks is None:
            num_blocks = blocks_for_budget(kv_cache_bytes, *sizes, decoder.dtype, max_model_len)
        num_eos = len(shape.eos_token_ids)
        try:
            self.config = SchedulerConfig(
                max_model_len=max_model_len,
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                num_speculative_tokens=0 if drafter is None else drafter.num_speculative_tokens,
                enable_prefix_caching=enable_prefix_caching,
                vocab_size=shape.vocab_size,
                max_stop_token_ids=MAX_STOP_TOKEN_IDS + num_eos,
            )
        except ConfigError as problem:
            raise ModelError(str(problem)) from problem
        cache = KVCache(shape.num_layers, num_blocks, *sizes[1:], decoder.dtype, decoder.device)
        runner = Runner(decoder, cache, self.config.num_speculative_tokens, attention_backend)
        scheduler = Scheduler(self.config, **({} if compiled is None else {"compiled": compiled}))
        self.engine = Engine(runner, self.config, drafter, scheduler=scheduler)
        self._num_requests = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters | Sequence[SamplingParameters] | None = None,
    ) -> list[RequestResult]:
        """One result for each prompt, in their order. One set of parameters serves all prompts.

        Everything is checked before anything runs. Raises RequestError for a prompt that cannot be served,
        ParameterError for parameters that cannot be. Whatever fails later ends the whole call, and leaves the
        LLM as usable as before.
        """
        waiting = deque(self._checked(prompts, parameters))
        request_ids = [request_id for request_id, _, _ in waiting]
        results: dict[str, RequestResult] = {}
        try:
            while len(results) < len(request_ids):
                self._admit(waiting)
                for result in self.engine.step():
                    results[result.request_id] = result
        finally:
            for request_id in request_ids:
                if request_id in self.engine.scheduler.rows:
                    self.engine.abort(request_id)
        return [results[request_id] for request_id in request_ids]

    def _admit(self, waiting: deque[tuple[str, Sequence[int], SamplingParameters]]) -> None:
        """As many as the scheduler has rows for."""
        while waiting and len(self.engine.scheduler.rows) < self.config.max_num_requests:
            self.engine.add(*waiting.popleft())

    def _checked(self, prompts: Any, parameters: Any) -> list[tuple[str, Sequence[int], SamplingParameters]]:
        """Requests with their ids. Raises RequestError or ParameterError, naming the prompt."""
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
            raise RequestError(f"prompts must be a list of lists of token ids, got {prompts!r:.80}")
        per_prompt = _parameters_of(parameters, len(prompts))
        requests = []
        for place, (prompt, one) in enumerate(zip(prompts, per_prompt, strict=True)):
            if one.stop:
                raise ParameterError(
                    f"prompt {place}: stop strings need text, and these are token ids: use stop_token_ids"
                )
            try:
                self.engine.check(prompt, one)
            except RequestError as problem:
                raise RequestError(f"prompt {place}: {problem}") from problem
            requests.append((str(self._num_requests), prompt, one))
            self._num_requests += 1
        return requests


def _parameters_of(parameters: Any, count: int) -> Sequence[SamplingParameters]:
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
