"""What does a drafter see, and what does it give? A verified step; drafts for the next one.

Everything is on the device, in tensors whose shapes the host knows. A drafter only enqueues work: it is asked
inside a step, before the host has read the outcome.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.gpu.attention.step_rows import StepRows
from draftproof.gpu.models.shape import ModelShape
from draftproof.gpu.sampling.rows import SamplingRows

MAX_SPECULATIVE_TOKENS = 64


class DraftStep(NamedTuple):
    """A verified step of R rows, padding rows last, and T tokens. Not to be written."""

    row_ids: Any
    """int64[R]: lines of the device's tables, the scheduler's rows"""
    num_tokens: Any
    """int64[R]: N after the step, the tokens that it kept included"""
    token_ids: Any
    """int64[lines, L]: the device's texts; a line is valid up to its N."""
    samples: Any
    """bool[R]: rows that sampled. Of the others a drafter has KV to write, but nothing to propose."""
    num_sampled: Any
    """int64[R]: accepted drafts and the token after them; 0 for a prefill chunk"""
    rows: StepRows
    """As attended. Its block tables are wide enough for the drafter's `num_lookahead_tokens`."""
    fed_token_ids: Any
    """int64[T]: what the model was fed; a null draft as 0"""
    hidden: Any
    """[T, hidden_size]: the model's hidden states after the last norm"""
    sampling: SamplingRows
    """Of the R rows."""
    max_num_tokens: int
    """No N is above it: for shapes."""


class Proposal(NamedTuple):
    """Drafts for the next step."""

    token_ids: Any
    """int64[R, K]; -1 for a draft that cannot be accepted"""
    num_tokens: Any
    """int64[R]: how many of the K count"""
    probabilities: Any | None = None
    """float32[R, K, V]: the distributions that they were sampled from; None if they are certain"""


class Drafter:
    """The base of all drafters. Raises ModelError from `check` for a model it cannot draft for."""

    num_speculative_tokens: int
    """K: the most drafts for a request in one step."""
    num_lookahead_tokens = 0
    """KV slots behind a step's own that it writes."""
    num_prefill_lookahead_tokens = 0
    """A: tokens behind a position that its KV there depends on; 1 for an EAGLE-style head."""
    is_capturable = False
    """Whether `propose` enqueues the same work for every step of a shape, and keeps what it remembers on the
    device: then steps with it may be captured in graphs."""

    def check(self, shape: ModelShape) -> None:
        """Whether it can draft for such a model; before memory is taken."""

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of its own KV in one block of so many tokens."""
        return 0

    def prepare(self, num_blocks: int, block_size: int, decoder: Any, attention_backend: Any) -> None:
        """Take memory for a model that will run with so many blocks; once."""

    def propose(self, step: DraftStep) -> Proposal:
        """Drafts for the rows that sampled. Called after every step, prefill chunks too."""
        raise NotImplementedError

    def poison(self, block_ids: Any) -> None:
        """Debug mode: nobody may read these blocks any more, int64[n]."""
