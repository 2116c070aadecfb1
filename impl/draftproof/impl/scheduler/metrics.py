"""What is reported about a request? The record of `count_admission` and `count_output`, one column a row."""

from __future__ import annotations

from typing import Any

from draftproof.spec.decision_inputs import Metrics


def load_metrics(table: Any, row: int) -> Metrics:
    """The metrics of a row."""
    return Metrics(
        table[0, row],
        table[1, row],
        table[2, row],
        table[3, row],
        table[4, row],
        table[5, row],
        table[6, row],
    )


def store_metrics(table: Any, row: int, metrics: Metrics) -> None:
    """The metrics of a row, changed."""
    table[0, row] = metrics.num_admissions
    table[1, row] = metrics.num_cached_tokens
    table[2, row] = metrics.num_external_tokens
    table[3, row] = metrics.num_verified_steps
    table[4, row] = metrics.num_drafts_verified
    table[5, row] = metrics.num_drafts_accepted
    table[6, row] = metrics.num_emitted_tokens
