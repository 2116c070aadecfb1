"""Our side of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.vllm.record import Aborted, Output, Row, Scheduled, Settled
from tests.vllm.side import Side
from tests.vllm.workloads import LAST_WORD, Arrival, Settings, Workload

from draftproof.impl.scheduler import settle
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PREEMPTED, RUNNING
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler

HASH_SEED = 7


def configuration(settings: Settings, num_requests: int) -> SchedulerConfig:
    """The same settings for our scheduler. Blocks go at once, as in vLLM: steps run in order on a device."""
    lookahead = settings.num_prefill_lookahead_tokens
    return SchedulerConfig(
        max_model_len=settings.max_model_len,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_requests=max(num_requests, settings.max_num_seqs),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        num_speculative_tokens=settings.num_speculative_tokens,
        asynchronous=settings.asynchronous,
        policy="priority" if settings.by_priority else "fcfs",
        num_lookahead_tokens=settings.num_speculative_tokens if lookahead else 0,
        num_prefill_lookahead_tokens=lookahead,
        release="at_once",
        vocab_size=LAST_WORD + 1,
        hash_seed=HASH_SEED,
    )


class Ours(Side):
    """draftproof's `Scheduler`, compiled or interpreted."""

    def __init__(self, workload: Workload, *, compiled: bool) -> None:
        super().__init__(workload)
        config = configuration(workload.settings, len(workload.arrivals))
        self.scheduler = Scheduler(config, compiled=compiled)

    def add(self, arrival: Arrival) -> None:
        self.scheduler.add(
            arrival.request_id,
            arrival.prompt_token_ids,
            max_tokens=arrival.max_tokens,
            eos_token_id=arrival.eos_token_id,
            stop_token_ids=arrival.stop_token_ids,
            priority=arrival.priority,
        )

    def abort(self, number: int) -> Aborted:
        self.scheduler.abort(str(number))
        return Aborted(number, self._num_free_blocks())

    def schedule(self) -> tuple[Any, Scheduled]:
        batch = self.scheduler.schedule()
        count = batch.num_requests
        rows = tuple(
            Row(
                number=self._number(row),
                num_scheduled_tokens=num_tokens,
                num_computed_tokens=num_computed,
                draft_token_ids=tuple(drafts[:num_drafts]),
                samples=bool(samples),
                admitted=kind != RUNNING,
            )
            for row, num_tokens, num_computed, num_drafts, drafts, samples, kind in zip(
                batch.rows[:count].tolist(),
                batch.num_scheduled_tokens[:count].tolist(),
                batch.num_computed_tokens[:count].tolist(),
                batch.num_draft_tokens[:count].tolist(),
                batch.draft_token_ids[:count].tolist(),
                batch.samples[:count].tolist(),
                batch.kind[:count].tolist(),
                strict=True,
            )
        )
        preempted = batch.preempted[: batch.counts[NUM_PREEMPTED]].tolist()
        numbers = tuple(sorted(self._number(row) for row in preempted))
        return batch, Scheduled(rows, numbers, self._num_free_blocks())

    def settle(self, step: Any, scheduled: Scheduled, sampled: Mapping[int, tuple[int, ...]]) -> Settled:
        width = 1 + self.workload.settings.num_speculative_tokens
        tokens = np.zeros((len(scheduled.rows), width), np.int32)
        counts = np.zeros(len(scheduled.rows), np.int32)
        for place, row in enumerate(scheduled.rows):
            token_ids = sampled.get(row.number, ())
            tokens[place, : len(token_ids)] = token_ids
            counts[place] = len(token_ids)
        self.scheduler.settle(step, tokens, counts)
        reasons = {
            row: settle.FINISH_REASONS[self.scheduler.state.requests.finish_reason[row]]
            for row in step.finished[: step.counts[NUM_FINISHED]].tolist()
        }
        outputs = []
        for place, row in enumerate(scheduled.rows):
            kept = int(step.num_kept_tokens[place])
            if kept > 0:
                token_ids = tuple(tokens[place, :kept].tolist())
                outputs.append(Output(row.number, token_ids, reasons.get(int(step.rows[place]), "")))
        return Settled(tuple(outputs), self._num_free_blocks())

    def propose(self, drafts: Mapping[int, tuple[int, ...]]) -> None:
        if not drafts:
            return
        rows = np.array([self.scheduler.rows[str(number)] for number in drafts], np.int32)
        tokens = np.zeros((len(drafts), self.workload.settings.num_speculative_tokens), np.int32)
        for place, token_ids in enumerate(drafts.values()):
            tokens[place, : len(token_ids)] = token_ids
        self.scheduler.take_drafts(rows, tokens, np.array([*map(len, drafts.values())], np.int32))

    def _number(self, row: int) -> int:
        return int(self.scheduler.request_ids[row])

    def _num_free_blocks(self) -> int:
        return int(self.scheduler.state.pool.num_free_blocks[0])
