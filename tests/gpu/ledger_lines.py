"""What is known of a request beside its counters? When it stops, and what of a step's tokens it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402

from draftproof.impl.decisions import tokens_to_keep  # noqa: E402
from draftproof.impl.ledger_table import NUM_FIELDS, store_plain  # noqa: E402
from draftproof.spec.ledger import Ledger, Rules  # noqa: E402

STOPS = 2
"""Stop tokens of a request, at most."""


class Line(NamedTuple):
    """When a request stops, and what it is."""

    stop_token_ids: tuple[int, ...]
    min_num_tokens: int
    max_num_tokens: int
    is_session: bool


class Step(NamedTuple):
    """A step on its way to the host: R lines."""

    lines: list[int]
    num_tokens: list[int]
    num_drafts: list[int]
    token_ids: list[list[int]]
    """What was sampled; empty for a prefill chunk."""
    num_kept: Any
    stopped: Any
    at_dispatch: Any
    at_end: Any
    was_live: Any


def keep(ledger: Ledger, about: Line, tokens: list[int], rules: Rules) -> tuple[int, int]:
    """How many of a step's tokens stay, and whether it stops: one token after the other."""
    stop_index = len(tokens)
    for offset, token in enumerate(tokens):
        if token in about.stop_token_ids and ledger.num_tokens + offset + 1 >= about.min_num_tokens:
            stop_index = offset
            break
    kept = int(tokens_to_keep(ledger, rules, len(tokens), stop_index, about.max_num_tokens))
    return kept, int(stop_index < kept or ledger.num_tokens + kept >= about.max_num_tokens)


def numbers(values: list[int]) -> Any:
    """int32[n]"""
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def table(ledgers: list[Ledger]) -> Any:
    """int64[fields, n]"""
    columns = np.zeros((NUM_FIELDS, len(ledgers)), np.int64)
    for place, ledger in enumerate(ledgers):
        store_plain(columns, place, ledger)
    return columns
