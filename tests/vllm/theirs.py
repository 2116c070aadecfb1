"""vLLM's side of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.vllm import engine
from tests.vllm.record import Aborted, Output, Row, Scheduled, Settled
from tests.vllm.side import Side
from tests.vllm.workloads import Arrival, Workload
from vllm.v1.request import RequestStatus


class Theirs(Side):
    """vLLM 0.32's `Scheduler` or `AsyncScheduler`."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.scheduler = engine.new_scheduler(workload.settings)

    def add(self, arrival: Arrival) -> None:
        self.scheduler.add_request(
            engine.new_request(
                arrival.request_id,
                arrival.prompt_token_ids,
                max_tokens=arrival.max_tokens,
                eos_token_id=arrival.eos_token_id,
                stop_token_ids=arrival.stop_token_ids,
                priority=arrival.priority,
                arrival_time=float(arrival.number),
                block_size=self.workload.settings.block_size,
            )
        )

    def abort(self, number: int) -> Aborted:
        self.scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
        return Aborted(number, engine.num_free_blocks(self.scheduler))

    def schedule(self) -> tuple[Any, Scheduled]:
        step = self.scheduler.schedule()
        admitted = {request.req_id for request in step.scheduled_new_reqs}
        admitted |= set(step.scheduled_cached_reqs.resumed_req_ids)
        rows = []
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            row = Row(
                number=int(request_id),
                num_scheduled_tokens=num_tokens,
                num_computed_tokens=request.num_computed_tokens - num_tokens,
                draft_token_ids=tuple(step.scheduled_spec_decode_tokens.get(request_id, ())),
                samples=not request.is_prefill_chunk,
                admitted=request_id in admitted,
            )
            rows.append(row)
        preempted = tuple(sorted(int(request_id) for request_id in step.preempted_req_ids or ()))
        return step, Scheduled(tuple(rows), preempted, engine.num_free_blocks(self.scheduler))

    def settle(self, step: Any, scheduled: Scheduled, sampled: Mapping[int, tuple[int, ...]]) -> Settled:
        tokens = {str(number): token_ids for number, token_ids in sampled.items()}
        results = self.scheduler.update_from_output(step, engine.returned(step, tokens))
        outputs = tuple(
            Output(
                int(output.request_id),
                tuple(output.new_token_ids),
                "" if output.finish_reason is None else str(output.finish_reason),
            )
            for client in results.values()
            for output in client.outputs
        )
        return Settled(outputs, engine.num_free_blocks(self.scheduler))

    def propose(self, drafts: Mapping[int, tuple[int, ...]]) -> None:
        engine.propose(self.scheduler, {str(number): tokens for number, tokens in drafts.items()})
