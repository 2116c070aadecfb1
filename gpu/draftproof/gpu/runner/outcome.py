"""What did a step bring? Enqueued with the step, and read when the host comes to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch


class Outcome(NamedTuple):
    """On the host, numpy arrays: of R requests in the batch, r of which sampled."""

    sampled_token_ids: Any
    """int32[R, 1 + K]; -1 beyond"""
    num_sampled_tokens: Any
    """int32[R]; 0 for a prefill chunk"""
    num_kept_tokens: Any
    """int32[R]: how many of them the device keeps"""
    stopped: Any
    """int32[R]: 1 where the device stops the row"""
    num_null_drafts: Any
    """int32[R]: verified drafts that were certain to be rejected"""
    draft_token_ids: Any
    """int32[R, K]: for the next step"""
    num_draft_tokens: Any
    """int32[R]"""
    ledgers_at_dispatch: Any
    """int32[fields, R]: the device's counters after it dispatched the step"""
    ledgers_at_end: Any
    """int32[fields, R]: and after the outcome"""
    sampling_places: Any
    """int64[r]: the places in the batch to which the following belong"""
    are_numbers: Any
    """bool[r]: whether the logits were numbers"""
    logprobs: tuple[Any, Any, Any, Any] | None
    """`Logprobs` as numpy arrays: sampled [r, P], ranks [r, P], top_token_ids [r, P, n], top [r, P, n]"""


class Pending:
    """An outcome on its way: tensors by name, and an event behind the copies that bring them to the host."""

    def __init__(self, tensors: dict[str, Any], device: Any, are_reused: bool = False) -> None:
        """`are_reused`: whether the next step writes into the same tensors."""
        self._event: Any = None
        if device.type == "cuda" or are_reused:
            tensors = {name: _copied(tensor) for name, tensor in tensors.items()}
        if device.type == "cuda":
            cuda: Any = torch.cuda
            self._event = cuda.Event()
            self._event.record()
        self._tensors = tensors

    def arrays(self) -> dict[str, Any]:
        """The tensors as numpy arrays; waits for the step."""
        if self._event is not None:
            self._event.synchronize()
        return {name: tensor.numpy() for name, tensor in self._tensors.items()}


def _copied(tensor: Any) -> Any:
    """On its way into memory of its own; pinned, so that the host need not wait for a device."""
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return target.copy_(tensor, non_blocking=True)


LOGPROBS = ("logprobs_sampled", "logprobs_ranks", "logprobs_top_token_ids", "logprobs_top")


def outcome_of(arrays: dict[str, Any], sampling_places: Any, num_rows: int, num_drafts: int) -> Outcome:
    """The outcome of a step of R rows from what `Pending` brought."""
    sampled = np.full((num_rows, 1 + num_drafts), -1, np.int32)
    are_numbers, logprobs = np.zeros(0, np.bool_), None
    if len(sampling_places):
        tokens = arrays["sampled_token_ids"]
        sampled[sampling_places, : tokens.shape[1]] = tokens
        are_numbers = arrays["are_numbers"]
        if LOGPROBS[0] in arrays:
            first, ranks, top_token_ids, top = [arrays[name] for name in LOGPROBS]
            logprobs = first, ranks, top_token_ids, top
    return Outcome(
        sampled_token_ids=sampled,
        num_sampled_tokens=arrays["num_sampled"],
        num_kept_tokens=arrays["num_kept"],
        stopped=arrays["stopped"],
        num_null_drafts=arrays["num_null_drafts"],
        draft_token_ids=arrays["draft_token_ids"].astype(np.int32),
        num_draft_tokens=arrays["num_draft_tokens"].astype(np.int32),
        ledgers_at_dispatch=arrays["ledgers_at_dispatch"],
        ledgers_at_end=arrays["ledgers_at_end"],
        sampling_places=sampling_places,
        are_numbers=are_numbers,
        logprobs=logprobs,
    )
