"""Blocks for every slot, and a check at arrival that is enough: proved, and so when the scheduler runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from draftproof.impl.scheduler import requests
from draftproof.impl.scheduler.batch import NUM_PREEMPTED
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.proofs import reservation, reservation_faults
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.obligations import decide, formulas, satisfiable
from draftproof.proofs.reservation_faults import FAULTS, ReservationFault
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.sources import to_satisfy


def test_both_solvers_prove_all_and_nothing_is_vacuous() -> None:
    claims = reservation.obligations()
    assert [claim.name for claim in claims if decide(claim).outcome != "proved"] == []
    assert [group for group, facts in to_satisfy("reservation").items() if not satisfiable(facts)] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refuted_by_the_claims_that_it_names(fault: ReservationFault) -> None:
    verdicts = {
        claim.name.removeprefix("T10/"): ask_z3(formulas(claim)).verdict
        for claim in reservation_faults.claims_with(fault)
    }
    assert set(verdicts.values()) <= {"sat", "unsat"}
    assert tuple(name for name, verdict in verdicts.items() if verdict == "sat") == fault.refuted_by


@pytest.mark.parametrize("control", reservation_faults.controls(), ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


# ---- one request alone, on the scheduler that runs --------------------------------------------------------

MAX_TOKENS, PROMPT = 9, (5, 6, 7, 8, 9)


class Case(NamedTuple):
    """A configuration, but for its blocks."""

    num_drafts: int
    num_steps: int
    num_lookahead: int
    block_size: int
    max_model_len: int = 64

    def config(self, num_blocks: int) -> SchedulerConfig:
        return SchedulerConfig(
            max_model_len=self.max_model_len,
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            num_speculative_tokens=self.num_drafts,
            asynchronous=self.num_steps > 1,
            max_in_flight_steps=self.num_steps,
            num_lookahead_tokens=self.num_lookahead,
            hash_seed=1,
        )

    def most_slots(self) -> int:
        """`check_fits/exactly`: min(L + max_tokens, M) - 1 + JK + look-ahead, within the model."""
        last = min(len(PROMPT) + MAX_TOKENS, self.max_model_len)
        ahead = self.num_steps * self.num_drafts + self.num_lookahead
        return min(last - 1 + ahead, self.max_model_len)

    def most_blocks(self) -> int:
        return -(-self.most_slots() // self.block_size)


CASES = [
    Case(num_drafts, num_steps, num_lookahead, block_size)
    for num_drafts in (0, 1, 3)
    for num_steps in (1, 2, 3)
    for num_lookahead in (0, 3)
    for block_size in (1, 2, 3, 16)
] + [Case(3, 2, 3, 1, max_model_len=length) for length in (13, 14, 15, 20, 21, 22)]


def steps_of(case: Case, num_blocks: int) -> Iterator[tuple[int, int]]:
    """Blocks held and rows preempted, step by step, of one request whose drafts are all rejected, until it is
    done or is given no further step."""
    scheduler = Scheduler(case.config(num_blocks), compiled=False)
    scheduler.add("alone", list(PROMPT), max_tokens=MAX_TOKENS)
    in_flight: list[Any] = []
    for _ in range(80):
        while scheduler.num_in_flight_steps() < case.num_steps:
            batch = scheduler.schedule()
            if batch.num_requests == 0:
                yield 0, int(batch.counts[NUM_PREEMPTED])
                break
            in_flight.append(batch)
            yield int(scheduler.state.tables.num_blocks[0].max()), int(batch.counts[NUM_PREEMPTED])
        if not in_flight:
            break
        batch = in_flight.pop(0)
        sampled = np.full((batch.num_requests, 1 + case.num_drafts), 3, np.int32)
        scheduler.settle(batch, sampled, np.array(batch.samples[: batch.num_requests], np.int32))
        if case.num_drafts and case.num_steps == 1 and scheduler.has_unfinished_requests():
            drafts = np.full((1, case.num_drafts), 4, np.int32)
            scheduler.take_drafts(batch.rows[:1], drafts, np.array([case.num_drafts], np.int32))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused at arrival."""
    monkeypatch.setattr(requests, "check_fits", lambda config, num_tokens, max_tokens: None)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("unchecked")
def test_the_exact_bound_is_enough_and_is_reached(case: Case) -> None:
    steps = list(steps_of(case, case.most_blocks()))
    assert max(held for held, _ in steps) == case.most_blocks()
    assert sum(preempted for _, preempted in steps) == 0


@pytest.mark.parametrize("case", [case for case in CASES if case.block_size == 1], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_with_a_block_less_it_is_preempted_for_itself(case: Case) -> None:
    steps = list(steps_of(case, case.most_blocks() - 1))
    assert sum(preempted for _, preempted in steps) > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_let_in_has_room_to_spare(case: Case) -> None:
    """The check asks for J + 1 slots more than the exact bound, but where the model's length cuts both."""
    slots = min(case.most_slots() + case.num_steps + 1, case.max_model_len)
    last = len(PROMPT) + MAX_TOKENS
    if last > case.max_model_len:
        ahead = case.num_steps * (1 + case.num_drafts) + case.num_lookahead
        slots = min(last + ahead, case.max_model_len)
    needed = -(-slots // case.block_size)
    requests.check_fits(case.config(needed), len(PROMPT), MAX_TOKENS)
    if needed > 1:
        with pytest.raises(RequestError, match=f"can need {needed} blocks and there are {needed - 1}"):
            requests.check_fits(case.config(needed - 1), len(PROMPT), MAX_TOKENS)
