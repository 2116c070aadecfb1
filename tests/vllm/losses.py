"""How many requests lose a settled block when they leave? Random ones in an ample pool, looked up later."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.vllm.side import Side, events
from tests.vllm.truth import Truth
from tests.vllm.workloads import Abort, Arrival, Device, Settings, Workload, words

NUM_REQUESTS = 600
NUM_DRAFTS = 3
ACCEPTANCE_PERCENT = 70


class Loss(NamedTuple):
    """Requests by the way they left, and how many of them lost a block that was settled."""

    num_finished: int
    num_finished_lost: int
    num_aborted: int
    num_aborted_lost: int


def random_requests(asynchronous: bool, *, abort_percent: int = 0) -> Workload:
    """Six hundred requests that share nothing, with blocks of 16 and room for all of them in the cache."""
    source = random.Random(20)
    settings = Settings(
        num_blocks=NUM_REQUESTS * 25,
        max_num_seqs=32,
        max_num_batched_tokens=2_048,
        max_model_len=1_024,
        num_speculative_tokens=NUM_DRAFTS,
        asynchronous=asynchronous,
    )
    arrivals = tuple(
        Arrival(
            step=2 * number,
            number=number,
            prompt_token_ids=words(source, source.randrange(1, 200)),
            max_tokens=source.randrange(2, 100),
            eos_token_id=None,
            stop_token_ids=(),
            priority=0,
        )
        for number in range(NUM_REQUESTS)
    )
    aborts = tuple(
        Abort(arrival.step + source.randrange(2, 12), arrival.number)
        for arrival in arrivals
        if source.randrange(100) < abort_percent
    )
    device = Device(20, NUM_DRAFTS, ACCEPTANCE_PERCENT, stop_percent=0, short_percent=0)
    return Workload(20, settings, device, arrivals, aborts)


def losses(side: Side, num_cached_tokens: Callable[[Sequence[int]], int]) -> Loss:
    """Run a side's workload to its end and look every request up, as the start of a longer prompt."""
    truth = Truth(side.workload)
    truth.see(events(side))
    left, lost = Counter[str](), Counter[str]()
    for one in truth.exits:
        left[one.kind] += 1
        lost[one.kind] += num_cached_tokens((*one.settled, *range(40))) < len(one.settled)
    return Loss(left["finish"], lost["finish"], left["abort"], lost["abort"])
