"""How does the device count? With the transitions that are proved, on columns of int32, one line a request.

The host says which lines a step has and how many tokens each gets; what follows from it the device knows by
itself, before the host has read any outcome. A line that has stopped there is left alone by the steps that
the host had dispatched before it knew. Only `start` takes counters from the host: when a request starts,
resumes, or begins a turn.

Host and device dispatch and settle in another order: the host step i + 1 before it has settled step i, the
device after. That both come to the same counters is theorem T9; `differences` holds them against each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.carrier_torch import apply
from draftproof.impl import accounting, decisions
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import (
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_FIELDS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_REGISTERED_TOKENS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
)
from draftproof.spec.ledger import Ledger, Rules

COMPARED = (NUM_TOKENS, NUM_COMPUTED_TOKENS, NUM_OUTPUT_PLACEHOLDERS, NUM_DRAFT_TOKENS)
"""Counters on which host and device agree; live work in flight beside them, F - S."""


class Dispatched(NamedTuple):
    """A step's lines after its dispatch: R of them."""

    ledger: Ledger
    """Columns of int32[R]."""
    columns: Any
    """int32[fields, R]: the same in one piece"""
    num_tokens_before: Any
    """int32[R]: N, before the step's outcome"""
    is_live: Any
    """bool[R]: false for a line that had stopped before"""
    sequence_lengths: Any
    """int32[R]: C with the step; 0 for a line that had stopped"""


class Limits(NamedTuple):
    """When lines stop: what `draftproof.impl.scheduler.settle` knows on the host."""

    stop_token_ids: Any
    """int64[R, S], -1 for none"""
    min_num_tokens: Any
    """int32[R]: N below which no stop token counts"""
    max_num_tokens: Any
    """int32[R]: N at which it stops"""


class DeviceLedger:
    """The counters of `num_lines` lines: int32[fields, lines]."""

    def __init__(self, num_lines: int, rules: Rules, device: Any = "cpu") -> None:
        # Made once: a transition would make tensors of its integers every time.
        constants: list[Any] = [
            torch.full((), value, dtype=torch.int32, device=device) if type(value) is int else value
            for value in rules
        ]
        self.rules = Rules(*constants)
        self.table: Any = torch.zeros((NUM_FIELDS, num_lines), dtype=torch.int32, device=device)

    def start(self, lines: Any, ledgers: Any) -> None:
        """Lines, int64[m], whose counters the host gives, int32[fields, m]: those before their next step."""
        self.table.index_copy_(1, lines, ledgers)

    def dispatch(self, lines: Any, num_drafts: Any, num_new_tokens: Any) -> Dispatched:
        """A step with so many tokens of each line, int64[R], so many of them drafts: int32[R] each."""
        found = self.table.index_select(1, lines)
        before = _ledger(found)
        is_live = _open(before)
        waiting = apply(accounting.draft, before, self.rules, num_drafts)
        scheduled = apply(accounting.schedule, waiting, self.rules, num_new_tokens)
        columns = torch.where(is_live, _columns(scheduled), found)
        self.table.index_copy_(1, lines, columns)
        ledger = _ledger(columns)
        lengths = torch.where(is_live, ledger.num_computed_tokens, 0)
        return Dispatched(ledger, columns, before.num_tokens, is_live, lengths)

    def settle(
        self,
        lines: Any,
        step: Dispatched,
        num_new_tokens: Any,
        num_drafts: Any,
        num_sampled: Any,
        num_kept: Any,
        stopped: Any,
        *,
        all_sample: bool = False,
    ) -> Any:
        """The step's outcome, int32[R] each, `num_sampled` 0 for a prefill chunk; the counters after it,
        int32[fields, R]. `all_sample`: the host knows that there is no prefill chunk among them."""
        sampled = apply(
            accounting.output, step.ledger, self.rules,
            num_new_tokens, num_drafts, num_sampled - 1, num_kept, stopped,
        )  # fmt: skip
        after = _columns(sampled)
        if not all_sample:
            chunk = apply(accounting.chunk_output, step.ledger, self.rules, num_new_tokens)
            after = torch.where(num_sampled > 0, after, _columns(chunk))
        columns = torch.where(step.is_live, after, step.columns)
        self.table.index_copy_(1, lines, columns)
        return columns

    def kept(self, step: Dispatched, limits: Limits, token_ids: Any, num_sampled: Any) -> tuple[Any, Any]:
        """How many of the sampled tokens, int64[R, n], stay, and whether the line stops: int32[R] each."""
        num_sampled = num_sampled.to(torch.int32)
        offsets = torch.arange(token_ids.shape[1], dtype=torch.int32, device=token_ids.device)
        stops = (token_ids[:, :, None] == limits.stop_token_ids[:, None, :]).any(-1)
        stops &= offsets < num_sampled[:, None]  # what lies behind is -1, as are missing stop tokens
        ends = step.num_tokens_before[:, None] + offsets + 1
        stops &= ends >= limits.min_num_tokens[:, None]
        stop_index = torch.where(stops.any(1), stops.to(torch.int8).argmax(1).to(torch.int32), num_sampled)
        keep: Any = plain(decisions.tokens_to_keep)
        num_kept = keep(step.ledger, self.rules, num_sampled, stop_index, limits.max_num_tokens)
        at_limit = step.num_tokens_before + num_kept >= limits.max_num_tokens
        stopped = (stop_index < num_kept) | (at_limit & (num_sampled > 0))
        return num_kept, stopped.to(torch.int32)


def before_dispatch(
    ledgers: Any, num_new_tokens: Any, num_drafts: Any, num_computed_tokens: Any, num_output_placeholders: Any
) -> Any:
    """The host's counters of lines that a step starts, int64[fields, m], as they were before its dispatch.

    The host has dispatched the step already, and the batch says from where. R stays: the dispatch only raises
    it to what it is already. int32[fields, m].
    """
    before = np.array(ledgers, np.int32)
    before[NUM_COMPUTED_TOKENS] = num_computed_tokens
    before[NUM_OUTPUT_PLACEHOLDERS] = num_output_placeholders
    before[NUM_IN_FLIGHT_TOKENS] -= num_new_tokens
    before[NUM_DRAFT_TOKENS] = num_drafts
    return before


def differences(host: Any, device: Any) -> list[tuple[int, str, int, int]]:
    """Where the counters of the same lines differ, both int[fields, R]: (place, counter, host's, device's).

    R may be lower on the host: it registers up to the end of the dispatch before the outcome (T9).
    """
    live_host, live_device = [
        table[NUM_IN_FLIGHT_TOKENS] - table[NUM_STALE_TOKENS] for table in (host, device)
    ]
    differs = np.concatenate(
        [
            host[list(COMPARED)] != device[list(COMPARED)],
            (live_host != live_device)[None],
            (host[NUM_REGISTERED_TOKENS] > device[NUM_REGISTERED_TOKENS])[None],
        ]
    )
    if not differs.any():
        return []
    names = [
        *[Ledger._fields[field] for field in COMPARED],
        "live num_in_flight_tokens",
        "num_registered_tokens",
    ]
    values = [
        [*table[list(COMPARED)], live, table[NUM_REGISTERED_TOKENS]]
        for table, live in ((host, live_host), (device, live_device))
    ]
    found = []
    for counter, place in np.argwhere(differs).tolist():
        found.append((place, names[counter], *[int(table[counter][place]) for table in values]))
    return sorted(found)


def _ledger(columns: Any) -> Ledger:
    """Columns of int32[fields, R] as a ledger; `drop_stale` is a truth value there."""
    fields: list[Any] = list(columns.unbind(0))
    fields[-1] = fields[-1] != 0
    return Ledger(*fields)


def _columns(ledger: Ledger) -> Any:
    """int32[fields, R]"""
    tensors: list[Any] = list(ledger)
    return torch.stack([*tensors[:-1], tensors[-1].to(torch.int32)])


def _open(ledger: Ledger) -> Any:
    """bool[R]: lines that have not stopped."""
    return ledger.stop_pending == 0
