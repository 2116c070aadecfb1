"""What does the device do in a step? Embed, attend, and verify; the outcome is read back once, at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention import GatherAttention, KVCache, rows_of
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.runner.requests import Request
from draftproof.gpu.runner.step_inputs import StepInputs, step_inputs
from draftproof.gpu.sampling import Drafts, SamplingRows, Verified, build_rows, verify
from draftproof.gpu.sampling.distribution import token_set
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.layout import State

Backend = Callable[[KVCache, Any, int], Any]


class Outcome(NamedTuple):
    """What a step brought, on the host: of n requests in the batch, R of which sampled."""

    sampled_token_ids: Any
    """int32[n, 1 + K]; -1 beyond"""
    num_sampled_tokens: Any
    """int32[n]; 0 for a prefill chunk"""
    sampling_places: Any
    """int64[R]: the places in the batch to which the following belong"""
    are_numbers: Any
    """bool[R]: whether the logits were numbers"""
    logprobs: tuple[Any, Any, Any, Any] | None
    """`Logprobs` as numpy arrays: sampled [R, P], ranks [R, P], top_token_ids [R, P, n], top [R, P, n]"""


class Runner:
    """One model with its KV cache, on one device."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        num_speculative_tokens: int,
        backend: Backend = GatherAttention,
    ) -> None:
        self.decoder, self.cache, self.backend = decoder, cache, backend
        self.num_speculative_tokens = num_speculative_tokens
        self.group_size = decoder.shape.num_heads // decoder.shape.num_kv_heads
        self._rows_key: tuple[str, ...] = ()
        self._rows: SamplingRows | None = None

    def run(self, batch: Batch, state: State, requests: Sequence[Request]) -> Outcome:
        """One step. `requests`: those of the batch, in its order. `state`: the scheduler's."""
        with torch.inference_mode():
            return self._run(batch, state, requests)

    def _run(self, batch: Batch, state: State, requests: Sequence[Request]) -> Outcome:
        inputs = step_inputs(batch, state.requests.token_ids)
        rows = rows_of(batch, state.tables.block_ids, self.cache.block_size, self.decoder.device)
        hidden = self.decoder.forward(
            self._on_device(inputs.token_ids),
            rows.positions,
            self.backend(self.cache, rows, self.group_size),
        )
        if len(inputs.sampling_places) == 0:
            return self._read(batch, inputs, None, None)
        logits = self._logits(hidden, inputs)
        sampling = self._sampling_rows([requests[place] for place in inputs.sampling_places])
        verified = verify(
            logits,
            Drafts(self._on_device(inputs.draft_token_ids), self._on_device(inputs.num_draft_tokens)),
            sampling,
            self._on_device(inputs.first_position),
            seen=self._seen(batch, state, inputs) if sampling.any_penalty else None,
        )
        return self._read(batch, inputs, verified, ~logits.amax((1, 2)).isnan())

    def _logits(self, hidden: Any, inputs: StepInputs) -> Any:
        """float32[R, 1 + D, V]; beyond a row's own drafts its last logits again."""
        logits = self.decoder.logits(hidden[self._on_device(inputs.logit_tokens)])
        if inputs.rectangle.size == len(inputs.logit_tokens):
            return logits.unflatten(0, inputs.rectangle.shape)
        return logits[self._on_device(inputs.rectangle)]

    def _sampling_rows(self, requests: list[Request]) -> SamplingRows:
        """The requests' parameters on the device; those of the last step if the requests are the same."""
        key = tuple([request.request_id for request in requests])
        if self._rows is None or key != self._rows_key:
            shape = self.decoder.shape
            self._rows = build_rows(
                [request.parameters for request in requests],
                [request.seed for request in requests],
                [len(request.prompt_token_ids) for request in requests],
                vocab_size=shape.vocab_size,
                eos_token_ids=shape.eos_token_ids,
                device=self.decoder.device,
            )
            self._rows_key = key
        return self._rows

    def _seen(self, batch: Batch, state: State, inputs: StepInputs) -> Any:
        """bool[R, V]: the tokens of prompt and output of each row that samples."""
        places = np.arange(int(inputs.first_position.max()))
        known = state.requests.token_ids[batch.rows[inputs.sampling_places], : len(places)]
        known = np.where(places < inputs.first_position[:, None], known, -1)
        return token_set(self._on_device(known), self.decoder.shape.vocab_size)

    def _read(self, batch: Batch, inputs: StepInputs, verified: Verified | None, are_numbers: Any) -> Outcome:
        """The outcome on the host, which waits for the device here."""
        count, places = batch.num_requests, inputs.sampling_places
        sampled = np.full((count, 1 + self.num_speculative_tokens), -1, np.int32)
        num_sampled = np.zeros(count, np.int32)
        if verified is None:
            return Outcome(sampled, num_sampled, places, np.zeros(0, np.bool_), None)
        sampled[places, : inputs.rectangle.shape[1]] = verified.sampled_token_ids.cpu().numpy()
        num_sampled[places] = verified.num_sampled_tokens.cpu().numpy()
        logprobs = None
        if verified.logprobs is not None:
            found = verified.logprobs
            tensors = (found.sampled, found.ranks, found.top_token_ids, found.top)
            sampled_logprobs, ranks, top_token_ids, top = [tensor.cpu().numpy() for tensor in tensors]
            logprobs = sampled_logprobs, ranks, top_token_ids, top
        return Outcome(sampled, num_sampled, places, are_numbers.cpu().numpy(), logprobs)

    def _on_device(self, array: Any) -> Any:
        tensor = torch.from_numpy(array)
        if self.decoder.device.type == "cuda":
            # From pinned memory the host need not wait.
            return tensor.pin_memory().to(self.decoder.device, non_blocking=True)
        return tensor
