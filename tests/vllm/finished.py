"""What does a finished request leave in the prefix cache? The table, as data for both schedulers.

Every case is one request with three drafts a step and blocks of 16: its prompt is computed, one token is
sampled, and one verification step ends it. `without` is what vLLM 0.32 leaves, which publishes nothing at a
finish: the table's last column.
"""

from __future__ import annotations

from typing import NamedTuple

NUM_DRAFTS = 3
BLOCK_SIZE = 16
FIRST_TOKEN = 10
RESPONSE = (11, 12, 13, 14)
WRONG_DRAFT = 9
EXTENSION = tuple(range(5_000, 5_040))
"""What the next request goes on with."""


class Case(NamedTuple):
    """A request, and the hits that its tokens allow later. All in tokens."""

    name: str
    num_prompt_tokens: int
    num_returned: int
    """Tokens that the verification step brings: accepted drafts and one more."""
    max_tokens: int
    num_prefill_lookahead_tokens: int
    registered: int
    exact_repeat: int
    extended: int
    without_synchronous: int
    without_asynchronous: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return tuple(range(1_000, 1_000 + self.num_prompt_tokens))

    @property
    def response(self) -> tuple[int, ...]:
        """What the verification step samples, before the stop trims it."""
        return RESPONSE[: self.num_returned]

    @property
    def drafts(self) -> tuple[int, ...]:
        """What was proposed: the response as far as it is accepted, then something else."""
        accepted = RESPONSE[: self.num_returned - 1]
        return (*accepted, *[WRONG_DRAFT] * (NUM_DRAFTS - len(accepted)))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole sequence once the request has finished."""
        return (*self.prompt, *(FIRST_TOKEN, *self.response)[: self.max_tokens])


CASES = (
    Case("all drafts of the last step accepted, N=49", 44, 4, 5, 0, 48, 48, 48, 32, 48),
    Case("stop on an accepted draft, N=48", 44, 4, 4, 0, 48, 32, 48, 32, 32),
    Case("two drafts and the bonus trimmed, N=48", 46, 4, 2, 0, 48, 32, 48, 32, 32),
    Case("multi-module MTP, look-ahead 3, N=35", 30, 4, 5, 3, 32, 16, 16, 0, 16),
    Case("multi-module MTP, stop on an accepted draft, N=34", 30, 4, 4, 3, 32, 16, 16, 0, 0),
    Case("EAGLE, look-ahead 1, N=35", 30, 4, 5, 1, 32, 16, 16, 0, 16),
    Case("multi-module MTP, safety boundary, C=33", 29, 4, 5, 3, 16, 0, 0, 0, 0),
    Case("the last sampled token is never written, N=48", 43, 4, 5, 0, 32, 32, 32, 32, 32),
    Case("every draft rejected, N=46", 44, 1, 2, 0, 32, 32, 32, 32, 32),
    Case("the stop cuts inside the block, N=47", 45, 4, 2, 0, 32, 32, 32, 32, 32),
)
