"""What happens in what order? Schedule, run, settle, draft; requests come in, results go out.

Synchronous: a step has returned before the next one is scheduled. Nothing here counts tokens: what is
computed, kept and published is the scheduler's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from draftproof.gpu.drafters import Drafter, DraftRequest
from draftproof.gpu.errors import ModelError
from draftproof.gpu.runner.requests import Request, RequestResult, TokenLogprobs
from draftproof.gpu.runner.runner import Outcome, Runner
from draftproof.gpu.sampling import SamplingParameters
from draftproof.impl.ledger_table import NUM_TOKENS
from draftproof.impl.scheduler import Batch, Scheduler, SchedulerConfig, metrics_of
from draftproof.impl.scheduler.batch import NUM_PREEMPTED
from draftproof.impl.scheduler.requests import check_request
from draftproof.impl.scheduler.settle import FINISH_REASONS


@dataclass
class EngineTotals:
    """What happened since the start."""

    num_steps: int = 0
    num_prefill_chunks: int = 0
    """Rows that computed a part of their prompt and did not sample."""
    num_preemptions: int = 0
    num_drafts: int = 0
    """Drafts computed, null ones included."""
    num_accepted_drafts: int = 0
    """As verified, before a stop cut any off."""

    @property
    def num_rejected_drafts(self) -> int:
        return self.num_drafts - self.num_accepted_drafts


class Engine:
    """The loop over one runner, one scheduler and perhaps a drafter."""

    def __init__(
        self,
        runner: Runner,
        config: SchedulerConfig,
        drafter: Drafter | None = None,
        *,
        scheduler: Scheduler | None = None,
    ) -> None:
        """Raises ModelError if the configuration is not one that the drafter and the loop serve."""
        num_drafts = 0 if drafter is None else drafter.num_speculative_tokens
        if config.num_speculative_tokens != num_drafts or config.asynchronous:
            raise ModelError(
                f"the loop is synchronous and its drafter proposes {num_drafts} tokens, but the "
                f"configuration says num_speculative_tokens={config.num_speculative_tokens}, "
                f"asynchronous={config.asynchronous}"
            )
        self.runner, self.config, self.drafter = runner, config, drafter
        self.scheduler = Scheduler(config) if scheduler is None else scheduler
        self.totals = EngineTotals()
        self.requests: dict[int, Request] = {}
        """Those that have not finished, by the scheduler's row."""

    def check(self, prompt_token_ids: Sequence[int], parameters: SamplingParameters) -> None:
        """Raises RequestError for what cannot be served; changes nothing."""
        check_request(
            self.config,
            token_ids=prompt_token_ids,
            resumable=False,
            priority=0,
            cache_salt="",
            **self._limits(parameters),
        )

    def add(self, request_id: str, prompt_token_ids: Sequence[int], parameters: SamplingParameters) -> None:
        """Let a request wait for its first step. Raises RequestError for what cannot be served."""
        row = self.scheduler.add(request_id, prompt_token_ids, **self._limits(parameters))
        prompt = tuple([int(token) for token in prompt_token_ids])
        self.requests[row] = Request(request_id, prompt, parameters, parameters.seed_of_request())

    def _limits(self, parameters: SamplingParameters) -> dict[str, Any]:
        """When a request ends. Of several EOS tokens the first is the scheduler's, the others stop tokens."""
        eos = () if parameters.ignore_eos else self.runner.decoder.shape.eos_token_ids
        return {
            "max_tokens": parameters.max_tokens,
            "min_tokens": parameters.min_tokens,
            "stop_token_ids": (*parameters.stop_token_ids, *eos[1:]),
            "eos_token_id": eos[0] if eos else None,
            "ignore_eos": parameters.ignore_eos,
        }

    def abort(self, request_id: str) -> None:
        """The request leaves now, without a result. Raises RequestError for an unknown id."""
        row = self.scheduler.rows.get(request_id)
        self.scheduler.abort(request_id)
        if row is not None:
            self.requests.pop(row, None)
        self._forget(request_id)

    def step(self) -> list[RequestResult]:
        """One step; what finished with it. If it fails, its requests start over with the next step.

        Raises ModelError when memory does not suffice, and whatever else the model raises.
        """
        batch = self.scheduler.schedule()
        self.totals.num_preemptions += int(batch.counts[NUM_PREEMPTED])
        if batch.num_requests == 0:
            return []
        requests = [self.requests[row] for row in batch.rows[: batch.num_requests].tolist()]
        try:
            outcome = self.runner.run(batch, self.scheduler.state, requests)
            self.scheduler.settle(batch, outcome.sampled_token_ids, outcome.num_sampled_tokens)
        except torch.OutOfMemoryError as problem:
            self.scheduler.fail(batch)
            raise ModelError(
                f"no memory for a step of {batch.num_tokens} tokens: lower max_num_batched_tokens or "
                "max_num_seqs"
            ) from problem
        except BaseException:
            self.scheduler.fail(batch)
            raise
        self._count(batch, outcome)
        self._collect(batch, outcome, requests)
        results = self._results(batch, requests)
        self._draft(batch)
        return results

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        count, totals = batch.num_requests, self.totals
        totals.num_steps += 1
        totals.num_prefill_chunks += int((batch.samples[:count] == 0).sum())
        totals.num_drafts += int(batch.num_draft_tokens[:count].sum())
        totals.num_accepted_drafts += int(np.maximum(outcome.num_sampled_tokens - 1, 0).sum())

    def _collect(self, batch: Batch, outcome: Outcome, requests: list[Request]) -> None:
        """Give every request the tokens that were kept, and their log-probabilities."""
        for index, place in enumerate(outcome.sampling_places.tolist()):
            request = requests[place]
            if not outcome.are_numbers[index]:
                request.failed = True
                continue
            kept = outcome.sampled_token_ids[place, : batch.num_kept_tokens[place]].tolist()
            request.token_ids += kept
            if request.parameters.logprobs is not None and outcome.logprobs is not None:
                request.logprobs += _token_logprobs(
                    outcome.logprobs, index, kept, request.parameters.logprobs
                )

    def _results(self, batch: Batch, requests: list[Request]) -> list[RequestResult]:
        """Of those that this step ended."""
        results = []
        for place, request in enumerate(requests):
            reason = FINISH_REASONS[batch.finish_reason[place]]
            if not reason and not request.failed:
                continue
            if not reason:
                self.scheduler.abort(request.request_id)
            # The row keeps its metrics until the next request is added.
            results.append(request.result(reason, metrics_of(self.scheduler, request.request_id)))
            del self.requests[int(batch.rows[place])]
            self._forget(request.request_id)
        return results

    def _forget(self, request_id: str) -> None:
        if self.drafter is not None:
            self.drafter.forget(request_id)

    def _draft(self, batch: Batch) -> None:
        """Ask the drafter for the rows that sampled and go on."""
        if self.drafter is None:
            return
        sampled = batch.rows[: batch.num_requests][batch.samples[: batch.num_requests] != 0]
        rows = np.array([row for row in sampled.tolist() if row in self.requests], np.int32)
        if len(rows) == 0:
            return
        state = self.scheduler.state.requests
        wanting = [
            DraftRequest(
                self.requests[row].request_id, state.token_ids[row, : state.ledgers[NUM_TOKENS, row]]
            )
            for row in rows.tolist()
        ]
        self.scheduler.take_drafts(rows, *self.drafter.propose(wanting))


def _token_logprobs(
    logprobs: tuple[Any, Any, Any, Any], index: int, token_ids: list[int], num_top: int
) -> list[TokenLogprobs]:
    """Of one request's tokens of a step; the arrays hold as many likely tokens as any row wants."""
    sampled, ranks, top_token_ids, top = logprobs
    found = []
    for place, token_id in enumerate(token_ids):
        likeliest = zip(
            top_token_ids[index, place, :num_top].tolist(), top[index, place, :num_top].tolist(), strict=True
        )
        found.append(
            TokenLogprobs(token_id, float(sampled[index, place]), int(ranks[index, place]), tuple(likeliest))
        )
    return found
