"""On which memory can a step run again and again? On its kind's own, to which the rows are copied before.

A kind (`Key`) is what decides the kernels: the number of rows, drafts of each, and which filters their
parameters need. The batch is padded to the kind's size with rows of the padding line, which has stopped: it
counts nothing, and writes into the null slot. Lengths are the device's own; what the host bounds them by is a
round number, or the model's length, so that no launch depends on them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention.step_rows import HostRows, spans_of, to_device
from draftproof.gpu.runner.step_input import NO_BLOCKS, StepInput
from draftproof.gpu.sampling import SamplingRows

if TYPE_CHECKING:
    from draftproof.gpu.runner.runner import Runner

MAX_ROWS = 256
"""Steps of more rows keep the device busy by themselves."""
SHORT, FACTOR = 1024, 4
"""Lengths are bounded by so many tokens, or a power of the factor more: launches and memory follow them."""
PADDING = {"top_p": 1.0, "repetition_penalty": 1.0, "stop_token_ids": -1}
"""Parameters of padding rows, where 0 would not be harmless."""


class Key(NamedTuple):
    """What decides which kernels a step launches, beside the model."""

    num_rows: int
    """Padding rows included."""
    num_drafts: int
    """Of each row."""
    max_length: int
    """No row has more tokens in the cache after the step."""
    all_greedy: bool
    max_top_k: int
    any_top_p: bool
    any_min_p: bool
    any_penalty: bool
    max_logprobs: int | None
    num_stop_token_ids: int
    """Columns of `SamplingRows.stop_token_ids`."""
    has_probabilities: bool
    """Whether drafts have distributions that they were sampled from."""


class StaticStep:
    """The memory that steps of one kind read, and the step as the host sees it: always the same."""

    def __init__(self, runner: Runner, step: StepInput, sampling: SamplingRows, key: Key) -> None:
        self._runner = runner
        self._step = _like(step, key, table_width(runner), runner)
        self._given = runner.given(self._step)
        self._sampling = _padded(sampling, key)
        self._sampling_source: SamplingRows | None = None
        self._num_columns = 0
        """Of the block tables, that may hold more than the null block."""

    def put(self, step: StepInput, sampling: SamplingRows) -> None:
        """The rows of a step of this kind, and padding rows behind them."""
        num_rows, num_columns = len(self._step.lines), step.rows.block_tables.shape[1]
        lines = np.array(self._step.lines)
        lines[: step.num_rows] = step.lines
        # What the last step left behind this one's columns is overwritten too: it is other rows' by now.
        columns = max(num_columns, self._num_columns)
        block_tables = np.zeros((num_rows, columns), np.int32)
        block_tables[: step.num_rows, :num_columns] = step.rows.block_tables
        new_lines, new_tables = to_device((lines, block_tables), self._given.lines.device)
        self._given.lines.copy_(new_lines)
        self._given.block_tables[:, :columns].copy_(new_tables)
        self._num_columns = num_columns
        if sampling is not self._sampling_source:
            _put_sampling(self._sampling, sampling)
            self._sampling_source = sampling

    def run(self) -> dict[str, Any]:
        """The step's tensors; only enqueues."""
        return self._runner.compute(self._step, self._given, self._sampling)


def key_of(runner: Runner, step: StepInput, sampling: SamplingRows) -> Key | None:
    """The kind of a step; None for one that no graph serves."""
    config = runner.config
    num_rows, num_drafts = step.num_rows, int(step.num_drafts[0])
    drafter = runner.drafter
    is_capturable = drafter is None or drafter.is_capturable
    if not is_capturable or runner.canary is not None or runner.states is not None:
        return None
    if num_drafts not in (0, config.num_speculative_tokens) or len(step.sampling_places) < num_rows:
        return None
    if (step.num_drafts != num_drafts).any() or (step.num_tokens != 1 + num_drafts).any():
        return None
    if num_rows > MAX_ROWS or step.rows.block_tables.shape[1] > table_width(runner):
        return None
    longest = int(step.rows.sequence_lengths.max())
    if longest > config.max_model_len:
        return None
    return Key(
        min(_power_of_two(num_rows), config.max_num_seqs),
        num_drafts,
        min(_round_length(longest), config.max_model_len),
        sampling.all_greedy,
        _power_of_two(sampling.max_top_k),
        sampling.any_top_p,
        sampling.any_min_p,
        sampling.any_penalty,
        None if sampling.max_logprobs is None else _power_of_two(sampling.max_logprobs),
        int(sampling.stop_token_ids.shape[1]),
        runner.state.draft_probabilities is not None,
    )


def table_width(runner: Runner) -> int:
    """Blocks of the longest text, and of what a drafter writes behind it."""
    config = runner.config
    return -(-(config.max_model_len + config.num_lookahead_tokens) // runner.cache.block_size)


def _round_length(length: int) -> int:
    bound = SHORT
    while bound < length:
        bound *= FACTOR
    return bound


def _power_of_two(number: int) -> int:
    """The least that is not below; 0 for 0."""
    return 0 if number == 0 else 1 << (number - 1).bit_length()


def _like(step: StepInput, key: Key, width: int, runner: Runner) -> StepInput:
    """A step of padding rows alone, as long as rows of its kind can be."""
    config, num_rows, row_tokens = runner.config, key.num_rows, 1 + key.num_drafts
    num_tokens = num_rows * row_tokens
    query_lengths = np.full(num_rows, row_tokens, np.int32)
    query_starts = np.arange(0, num_tokens + 1, row_tokens, dtype=np.int32)
    lengths = np.full(num_rows, key.max_length, np.int32)
    return step._replace(
        request_ids=(),
        lines=np.full(num_rows, config.max_num_requests, np.int64),
        num_tokens=query_lengths,
        num_drafts=np.full(num_rows, key.num_drafts, np.int32),
        rows=HostRows(
            np.zeros((num_rows, width), np.int32),
            query_starts,
            lengths,
            spans_of(query_lengths, query_starts, lengths),
        ),
        states=None,
        sampling_places=np.arange(num_rows),
        logit_tokens=np.arange(num_tokens),
        rectangle=np.arange(num_tokens).reshape(num_rows, row_tokens),
        starts=None,
        max_num_tokens=key.max_length + 1,
        freed_blocks=NO_BLOCKS,
    )


def _padded(sampling: SamplingRows, key: Key) -> SamplingRows:
    """Rows of memory of their own for the parameters; limits as the key rounds them up."""
    tensors: dict[str, Any] = {
        name: torch.zeros((key.num_rows, *value.shape[1:]), dtype=value.dtype, device=value.device)
        for name, value in vars(sampling).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(sampling, **tensors, max_top_k=key.max_top_k, max_logprobs=key.max_logprobs)


def _put_sampling(target: SamplingRows, source: SamplingRows) -> None:
    count = len(source)
    for name, value in vars(source).items():
        if isinstance(value, torch.Tensor):
            memory = getattr(target, name)
            memory[:count].copy_(value)
            memory[count:].fill_(PADDING.get(name, 0))
