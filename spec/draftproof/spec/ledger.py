"""The ledger: the integers a scheduler keeps for one request, under vLLM's names.

Counts are tokens. `SYMBOLS` gives each field the one-letter name used in tables and papers.
"""

from __future__ import annotations

from typing import NamedTuple

WAITING, RUNNING, PREEMPTED, PAUSED, FINISHED = 0, 1, 2, 3, 4
STATUS_NAMES = ("waiting", "running", "preempted", "paused", "finished")


class Rules(NamedTuple):
    """What is fixed for an engine: drafts per step, block size, mode, and the drafter's fence.

    Requires num_speculative_tokens >= 0, block_size >= 1, registration_fence >= 0.
    `registration_fence` is max(0, A - 1) for a drafter with prefill look-ahead A (0 none, 1 EAGLE and
    single-module MTP, K multi-module MTP): that many trailing tokens are not published yet (T12).
    """

    num_speculative_tokens: int
    block_size: int
    asynchronous: bool
    registration_fence: int


class Ledger(NamedTuple):
    """One request's counters. Immutable: a transition returns a new ledger."""

    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    num_output_placeholders: int
    num_in_flight_tokens: int
    num_stale_tokens: int
    num_draft_tokens: int
    num_registered_tokens: int
    num_trimmed_tokens: int
    stop_pending: int
    num_registered_at_preemption: int
    status: int
    drop_stale: bool


SYMBOLS = {
    "num_prompt_tokens": "L",
    "num_tokens": "N",
    "num_computed_tokens": "C",
    "num_output_placeholders": "P",
    "num_in_flight_tokens": "F",
    "num_stale_tokens": "S",
    "num_draft_tokens": "D",
    "num_registered_tokens": "R",
    "num_trimmed_tokens": "T",
    "stop_pending": "E",
    "num_registered_at_preemption": "X",
    "status": "status",
    "drop_stale": "drop",
}


def initial(num_prompt_tokens: int) -> Ledger:
    """A request that has just arrived with a prompt of at least one token."""
    return Ledger(
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_prompt_tokens,
        num_computed_tokens=0,
        num_output_placeholders=0,
        num_in_flight_tokens=0,
        num_stale_tokens=0,
        num_draft_tokens=0,
        num_registered_tokens=0,
        num_trimmed_tokens=0,
        stop_pending=0,
        num_registered_at_preemption=0,
        status=WAITING,
        drop_stale=False,
    )
