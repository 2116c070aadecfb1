"""What is compared after every call? Plain records that both sides fill in the same way.

Requests are named by their number, counts are tokens unless said. Blocks are compared by how many are free:
which number a block has is nobody's business.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One request in a step."""

    number: int
    num_scheduled_tokens: int
    num_computed_tokens: int
    """Before the step, work in flight included; of an admitted request, its hit."""
    draft_token_ids: tuple[int, ...]
    samples: bool
    """Whether the step reaches the end of what is known and brings tokens."""
    admitted: bool
    """Whether it starts or resumes in this step."""


class Scheduled(NamedTuple):
    """A step that was scheduled."""

    rows: tuple[Row, ...]
    preempted: tuple[int, ...]
    """Sorted."""
    num_free_blocks: int


class Output(NamedTuple):
    """What a request's client gets from a step."""

    number: int
    token_ids: tuple[int, ...]
    finish_reason: str
    """`stop`, `length`, or empty while the request goes on."""


class Settled(NamedTuple):
    """A step that returned."""

    outputs: tuple[Output, ...]
    num_free_blocks: int


class Aborted(NamedTuple):
    """A request that was given up before it had finished."""

    number: int
    num_free_blocks: int


Event = Scheduled | Settled | Aborted
