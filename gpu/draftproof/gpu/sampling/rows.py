"""What do the rows of a batch ask of the sampler? Their parameters side by side, as tensors on the device.

Which filters are in use at all is known on the host when the rows are built, and kept beside the tensors: a
step leaves out what no row needs, without asking the device. It never changes a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftproof.gpu.sampling.parameters import ParameterError, SamplingParameters


@dataclass(frozen=True)
class SamplingRows:
    """The parameters of R rows: tensors on one device, and what the host knows about all of them."""

    temperature: Any
    """float32[R]; 0 for greedy"""
    top_k: Any
    """int64[R]; 0 for all tokens"""
    top_p: Any
    """float32[R]"""
    min_p: Any
    """float32[R]"""
    repetition_penalty: Any
    """float32[R]"""
    seeds: Any
    """int64[R]"""
    first_stop_position: Any
    """int64[R]: a token at an earlier position of the request cannot be one that stops it (min_tokens)."""
    stop_token_ids: Any
    """int64[R, S], filled up with -1; only of rows with min_tokens. S may be 0."""
    all_greedy: bool
    max_top_k: int
    """The greatest top_k; 0 if no row that samples has one."""
    any_top_p: bool
    any_min_p: bool
    any_penalty: bool
    max_logprobs: int | None
    """The most log-probabilities that a row asks for; None if none does."""

    def __len__(self) -> int:
        return int(self.temperature.shape[0])

    def select(self, index: Any) -> SamplingRows:
        """These rows in another order, or some of them: int64[R'] of row numbers, on the same device."""
        tensors: dict[str, Any] = {
            name: value[index] for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)

    def with_seeds(self, seeds: Any) -> SamplingRows:
        """The same rows with other seeds, int64[R] on the same device."""
        return replace(self, seeds=seeds)


def build_rows(
    parameters: Sequence[SamplingParameters],
    seeds: Sequence[int],
    num_prompt_tokens: Sequence[int],
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    device: Any = "cpu",
) -> SamplingRows:
    """The rows of these requests. On the host, when the batch's requests change.

    `seeds`: of each request, as `SamplingParameters.seed_of_request` gave it. `num_prompt_tokens`: tokens
    before the turn's first output. Raises ParameterError for a stop token outside the vocabulary.
    """
    for one in parameters:
        for token in one.stop_token_ids:
            if token >= vocab_size:
                raise ParameterError(f"stop token {token} is outside the vocabulary of {vocab_size}")
    random = [one for one in parameters if not one.greedy]
    asked = [one.logprobs for one in parameters if one.logprobs is not None]
    first_stop = [
        num_prompt + one.min_tokens for one, num_prompt in zip(parameters, num_prompt_tokens, strict=True)
    ]

    def column(values: Sequence[float], dtype: Any) -> Any:
        return _moved(torch.tensor(values, dtype=dtype), device)

    return SamplingRows(
        temperature=column([one.temperature for one in parameters], torch.float32),
        top_k=column([min(one.top_k, vocab_size) for one in parameters], torch.int64),
        top_p=column([one.top_p for one in parameters], torch.float32),
        min_p=column([one.min_p for one in parameters], torch.float32),
        repetition_penalty=column([one.repetition_penalty for one in parameters], torch.float32),
        seeds=column(seeds, torch.int64),
        first_stop_position=column(first_stop, torch.int64),
        stop_token_ids=_moved(_stop_tokens(parameters, eos_token_ids), device),
        all_greedy=not random,
        max_top_k=max((min(one.top_k, vocab_size) for one in random), default=0),
        any_top_p=any(one.top_p < 1.0 for one in random),
        any_min_p=any(one.min_p > 0.0 for one in random),
        any_penalty=any(one.repetition_penalty != 1.0 for one in parameters),
        max_logprobs=max(asked, default=None),
    )


def _moved(tensor: Any, device: Any) -> Any:
    """On the device; from pinned memory the host need not wait."""
    if torch.device(device).type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _stop_tokens(parameters: Sequence[SamplingParameters], eos_token_ids: Sequence[int]) -> Any:
    """int64[R, S]: what would stop each row that has min_tokens. EOS stops no row that ignores it."""
    stops = [
        [*one.stop_token_ids, *(() if one.ignore_eos else eos_token_ids)] if one.min_tokens > 0 else []
        for one in parameters
    ]
    width = max(map(len, stops), default=0)
    return torch.tensor([row + [-1] * (width - len(row)) for row in stops], dtype=torch.int64).reshape(
        len(stops), width
    )
