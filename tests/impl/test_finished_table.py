"""What a finished request leaves in the prefix cache: every cell of the table, in both modes.

The cases, and what vLLM 0.32 leaves instead, stand in `tests/vllm/finished.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.vllm.finished import BLOCK_SIZE, CASES, EXTENSION, FIRST_TOKEN, NUM_DRAFTS, Case

from draftproof.impl.ledger_table import NUM_REGISTERED_TOKENS
from draftproof.impl.scheduler import settle as settle_room
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.registry import find


def finish(case: Case, asynchronous: bool) -> tuple[Scheduler, int]:
    """The scheduler after the case's request has finished, a step ahead when asynchronous; and its row."""
    lookahead = case.num_prefill_lookahead_tokens
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=1_024,
            num_blocks=100,
            block_size=BLOCK_SIZE,
            num_speculative_tokens=NUM_DRAFTS,
            asynchronous=asynchronous,
            num_prefill_lookahead_tokens=lookahead,
            num_lookahead_tokens=NUM_DRAFTS if lookahead else 0,
            hash_seed=1,
        ),
        compiled=False,
    )
    row = scheduler.add("a", case.prompt, max_tokens=case.max_tokens)
    prefill = scheduler.schedule()
    ahead = None
    if asynchronous:
        verify = scheduler.schedule()
        settle(scheduler, prefill, (FIRST_TOKEN,))
        ahead = scheduler.schedule()
    else:
        settle(scheduler, prefill, (FIRST_TOKEN,))
        scheduler.take_drafts([row], [case.drafts], [NUM_DRAFTS])
        verify = scheduler.schedule()
    assert verify.num_scheduled_tokens[:1].tolist() == [1 + NUM_DRAFTS]
    settle(scheduler, verify, case.response)
    assert "a" not in scheduler.rows
    if ahead is not None and ahead.num_requests > 0:
        settle(scheduler, ahead, (77,))
    return scheduler, row


def settle(scheduler: Scheduler, batch: Any, tokens: tuple[int, ...]) -> None:
    """The step's only request sampled these."""
    sampled = np.zeros((1, 1 + NUM_DRAFTS), np.int32)
    sampled[0, : len(tokens)] = tokens
    scheduler.settle(batch, sampled, np.array([len(tokens)], np.int32))


BOTH_MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@BOTH_MODES
@EVERY_CASE
def test_what_was_settled_is_found_again(case: Case, asynchronous: bool) -> None:
    scheduler, row = finish(case, asynchronous)
    found = (
        int(scheduler.state.requests.ledgers[NUM_REGISTERED_TOKENS, row]),
        scheduler.num_cached_tokens(case.tokens),
        scheduler.num_cached_tokens(case.tokens + EXTENSION),
    )
    assert found == (case.registered, case.exact_repeat, case.extended)


@BOTH_MODES
@EVERY_CASE
def test_without_registration_at_the_finish_vllms_loss_comes_out(
    case: Case, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = find("finish-registers-nothing-synchronous")  # the change is the same in both modes
    monkeypatch.setattr(settle_room, "finish", patched(fault.changes).transitions["finish"])
    scheduler, _ = finish(case, asynchronous)
    expected = case.without_asynchronous if asynchronous else case.without_synchronous
    assert scheduler.num_cached_tokens(case.tokens + EXTENSION) == expected
