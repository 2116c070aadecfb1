"""What can a caller do wrong? One kind of error for each, with a sentence; the state is as it was before."""

from __future__ import annotations


class RequestError(ValueError):
    """A request, a chunk or an id that cannot be: what is wrong with it, and what to do."""


class StepError(RuntimeError):
    """Steps out of their order: too many in flight, settled twice, or not the oldest."""


class OutcomeError(ValueError):
    """What a step brought back does not fit what was dispatched."""
