"""For each fault of vLLM 0.32 the workload that shows nothing else: what must be seen at least once."""

from __future__ import annotations

from tests.vllm.workloads import Abort, Arrival, Device, Settings, Workload, text

ACCEPTING = Device(0, 3, acceptance_percent=100, stop_percent=0, short_percent=0)
"""Accepts every draft."""
THREE_DRAFTS = Settings(max_model_len=256, num_speculative_tokens=3)


def continued_after(first: Arrival, step: int) -> Arrival:
    """A request that goes on where the first one was after its prompt, one token and four more."""
    known = text(first, ACCEPTING, 256)[: len(first.prompt_token_ids) + 5]
    return Arrival(step, 1, (*known, *range(40)), 8, None, (), priority=0)


def when_it_finishes() -> Workload:
    """The last step of a request accepts three drafts and fills a block; another one goes on from there."""
    first = Arrival(0, 0, tuple(range(1_000, 1_044)), 5, None, (), priority=0)
    return Workload(0, THREE_DRAFTS, ACCEPTING, (first, continued_after(first, 2)), ())


def when_it_is_aborted() -> Workload:
    """The same, but the client hangs up at that point."""
    first = Arrival(0, 0, tuple(range(1_000, 1_044)), 50, None, (), priority=0)
    return Workload(0, THREE_DRAFTS, ACCEPTING, (first, continued_after(first, 2)), (Abort(2, 0),))


def when_it_is_preempted() -> Workload:
    """A request whose last step filled a block is preempted. Of its four blocks the one needed now was
    not full, so when it resumes, the other three can still be found."""
    first = Arrival(0, 0, tuple(range(2_000, 2_010)), 12, None, (), priority=0)
    victim = Arrival(0, 1, tuple(range(1_000, 1_045)), 8, None, (), priority=0)
    return Workload(0, THREE_DRAFTS._replace(num_blocks=5), ACCEPTING, (first, victim), ())


def when_it_stood_in_the_step() -> Workload:
    """By priority: a long prompt stands in a step when a more urgent request needs its blocks. Preempted in
    that step, it looks its prompt up when it resumes."""
    settings = Settings(
        num_blocks=12,
        max_num_batched_tokens=64,
        max_model_len=256,
        long_prefill_token_threshold=32,
        by_priority=True,
    )
    late = Arrival(0, 0, tuple(range(1_000, 1_160)), 8, None, (), priority=1)
    urgent = Arrival(1, 1, tuple(range(2_000, 2_031)), 4, None, (), priority=0)
    return Workload(0, settings, Device(0, 0, 0, 0, 0), (late, urgent), ())
