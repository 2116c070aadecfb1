"""What may a runner hand in, and what is said of an outcome that cannot be?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.impl.scheduler import settle
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.errors import OutcomeError, StepError

INT32 = np.dtype(np.int32)


def int32_array(values: Any, ndim: int) -> Any:
    """The values as a contiguous int32 array; as they are if they are one."""
    if type(values) is np.ndarray and values.dtype == INT32 and values.ndim == ndim and values.flags.carray:
        return values
    try:
        given = np.asarray(values)
    except (ValueError, OverflowError) as problem:
        raise OutcomeError(f"a rectangular array of {ndim} dimensions is expected") from problem
    if given.dtype.kind not in "iu" and given.size > 0:
        raise OutcomeError(f"integers are expected, got {given.dtype}")
    if given.ndim != ndim:
        raise OutcomeError(f"an array of {ndim} dimensions is expected, got {given.ndim}")
    array = np.array(given, dtype=INT32, order="C")
    if not np.array_equal(array, given):
        raise OutcomeError("a number does not fit 32 bits")
    return array


def error_of(
    problem: int,
    index: int,
    batch: Batch,
    sampled: Any,
    num_sampled: Any,
    request_ids: Sequence[str],
    vocab_size: int,
) -> StepError | OutcomeError:
    """What `settle.problem_of_outcome` found, at a place of the batch, in words."""
    if problem == settle.NOT_IN_FLIGHT:
        return StepError(f"step {batch.step} is not in flight: it was settled before, or is empty")
    if problem == settle.OUT_OF_ORDER:
        return StepError(f"step {batch.step} is not the oldest in flight: settle the ones before it first")
    if problem == settle.WRONG_SHAPE:
        return OutcomeError(
            f"the step has {batch.num_requests} requests, the outcome {num_sampled.shape[0]} counts and "
            f"tokens of shape {sampled.shape}"
        )
    if problem == settle.NOT_SCHEDULED:
        return OutcomeError(
            f"the step has {batch.num_requests} requests, and the outcome {num_sampled[index]} tokens "
            f"for another one, at place {index}"
        )
    request_id, count = request_ids[batch.rows[index]], num_sampled[index]
    if problem == settle.WRONG_TOKEN:
        return OutcomeError(
            f"request {request_id!r} sampled {sampled[index, :count].tolist()}: not all in the "
            f"vocabulary of {vocab_size}"
        )
    if batch.samples[index] == 0:
        return OutcomeError(f"request {request_id!r} computed a prefill chunk and cannot have sampled")
    num_drafts = batch.num_draft_tokens[index] - batch.num_invalid_drafts[index]
    return OutcomeError(
        f"request {request_id!r} verified {num_drafts} drafts: 1 to {num_drafts + 1} sampled tokens are "
        f"possible, got {count}"
    )
