"""A scheduler in the middle of its work, a row of every kind in it: to be corrupted, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler

CONFIG = SchedulerConfig(
    max_model_len=64,
    num_blocks=30,
    block_size=4,
    max_num_seqs=4,
    max_num_requests=12,
    max_num_batched_tokens=64,
    num_speculative_tokens=2,
    num_lookahead_tokens=2,
    asynchronous=True,
    hash_seed=1,
    vocab_size=100,
)
PROMPT = list(range(10, 23))
EOS, TOKEN = 1, 7
RUNNING, PAUSED, SHARING, LEAVING, STARTED, WAITING, WAITING_LONGER = 0, 1, 2, 3, 4, 6, 7
"""Rows. SHARING holds blocks of RUNNING; LEAVING has finished, its last step is in flight."""


def settle(scheduler: Scheduler, batch: Batch, *stopping: str) -> None:
    """The step returns: every draft rejected, one token sampled, the end of text for those that stop."""
    count = batch.num_requests
    sampled: Any = np.full((count, 1 + scheduler.config.num_speculative_tokens), TOKEN, np.int32)
    for index, row in enumerate(batch.rows[:count]):
        if scheduler.request_ids[row] in stopping:
            sampled[index] = EOS
    scheduler.settle(batch, sampled, batch.samples[:count].copy())


def busy_scheduler(**options: Any) -> Scheduler:
    """Two steps in flight, blocks shared and published, and a row of every kind."""
    scheduler = Scheduler(CONFIG, **options)
    scheduler.add("running", PROMPT, max_tokens=20)
    scheduler.add("paused", [30] * 6, max_tokens=9, eos_token_id=EOS, resumable=True)
    settle(scheduler, scheduler.schedule())
    first = scheduler.schedule()
    scheduler.add("sharing", [*PROMPT[:9], 50, 51], max_tokens=20)
    scheduler.add("leaving", [40] * 5, max_tokens=20, eos_token_id=EOS)
    second = scheduler.schedule()
    settle(scheduler, first, "paused")
    scheduler.schedule()
    settle(scheduler, second, "leaving")
    for number in range(4):
        scheduler.add(f"waiting {number}", [60 + number] * 4)
    scheduler.schedule()
    return scheduler
