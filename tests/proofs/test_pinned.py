"""The numbers that reports and the design's two tables print come out of running code, cell by cell."""

from __future__ import annotations

import pytest

from draftproof.proofs.faults import Fault, all_faults, find, pinned
from draftproof.proofs.faults.patching import patched, right_code
from draftproof.proofs.faults.pinned import FINISH_CASES, FinishCase, FinishRow, SessionRow
from draftproof.proofs.faults.registry_exits import (
    FINISH_FORGETS_TRIMMED,
    FINISH_REGISTERS_NOTHING,
)
from draftproof.proofs.faults.registry_output import TRIM_STAYS_COUNTED, VLLM_FOLD
from draftproof.spec.decisions import ASSUMPTIONS
from draftproof.spec.events import Admit, Draft, EndTurn, Fold, Output, Schedule
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import Rules

PINNED = [fault for fault in all_faults() if fault.pin is not None]


@pytest.mark.parametrize("fault", PINNED, ids=lambda fault: fault.name)
def test_a_pin_measures_the_reports_wrong_and_right_value(fault: Fault) -> None:
    measured = pinned.measure(fault)
    assert measured is not None and fault.pin is not None
    assert (measured.wrong, measured.right) == (fault.pin.wrong, fault.pin.right)
    assert measured.wrong != measured.right


@pytest.mark.parametrize("fault", PINNED, ids=lambda fault: fault.name)
def test_a_pin_without_a_report_has_numbers_of_its_own(fault: Fault) -> None:
    assert fault.pin is not None
    seed_pair = fault.name in ("finish-forgets-trimmed", "preemption-loses-settled")
    if not fault.reports or seed_pair:
        assert fault.pin.own_numbers


@pytest.mark.parametrize("fault", PINNED, ids=lambda fault: fault.name)
def test_a_pinned_decision_is_asked_as_its_caller_may(fault: Fault) -> None:
    assert fault.pin is not None
    pin = fault.pin
    if pin.decision is None:
        return
    faulty = (patched((*fault.changes, *fault.engine_rules)), pin.events)
    right = (right_code(), pin.right_events or pin.events)
    for code, events in (faulty, right):
        state = pinned.complete_walk(code, pin.rules, pin.num_prompt_tokens, events).runs[-1].state
        assumed = ASSUMPTIONS[pin.decision.name](state, pin.rules, pin.decision.inputs)
        assert [name for name, holds in assumed.items() if not holds] == []


def test_the_fenced_boundary_is_the_finish_tables_row() -> None:
    """Registered 32 against 16; a look-up gives a block back, so it hits the report's 16 against none."""
    fault = find("finish-registers-nothing-behind-fence")
    assert fault.pin is not None
    assert fault.pin.rules.registration_fence == 2
    case = FINISH_CASES[3]
    right, wrong = (pinned.finished(case, False, changes) for changes in ((), fault.changes))
    assert (right.num_tokens, right.num_registered_tokens, wrong.num_registered_tokens) == (35, 32, 16)
    assert [pinned.hit(case, ledger, 40) for ledger in (right, wrong)] == [16, 0]


def test_without_a_fence_the_fault_behind_it_is_none() -> None:
    fault = find("finish-registers-nothing-behind-fence")
    for case in FINISH_CASES:
        if case.lookahead < 2:
            assert pinned.finished(case, False, fault.changes) == pinned.finished(case, False)


def test_a_pin_whose_events_cannot_happen_is_an_error() -> None:
    fault = find("trim-uncounted")
    assert fault.pin is not None
    impossible = fault._replace(pin=fault.pin._replace(events=fault.pin.events[1:]))
    with pytest.raises(ValueError, match="not possible"):
        pinned.measure(impossible)


# ---- the session -------------------------------------------------------------------------------------------


def test_the_trim_faults_session_row() -> None:
    assert pinned.session_table()["trim not uncounted, with vLLM's fold"] == SessionRow(
        computed_at_fold=6,
        known_at_fold=5,
        all_tokens=(1, 2, 3, 10, 11, 7, 8),
        computed=6,
        next_step_computes=(8,),
        reused_positions=(5,),  # 7 stands where draft 12's KV is
    )


def test_the_correct_session_row() -> None:
    right = SessionRow(4, 5, (1, 2, 3, 10, 7, 8), 4, (7, 8), ())
    assert pinned.session_table()["correct"] == right
    # vLLM's own fold keeps the same tokens once the count is right.
    assert pinned.session_row((VLLM_FOLD,)) == right


def test_our_fold_alone_masks_the_text_but_not_the_count() -> None:
    row = pinned.session_row((TRIM_STAYS_COUNTED,))
    assert row.all_tokens == (1, 2, 3, 10, 7, 8)
    assert (row.computed, row.next_step_computes) == (6, ())


def test_clamping_to_the_prompt_changes_nothing_on_the_first_row() -> None:
    ledger = pinned.seed_ledger_after_fold((TRIM_STAYS_COUNTED, VLLM_FOLD))
    assert (ledger.num_computed_tokens, ledger.num_prompt_tokens) == (6, 7)
    assert pinned.clamp_to_prompt(ledger) == ledger.num_computed_tokens


def test_an_overshoot_beyond_a_short_chunk_leaves_less_than_nothing_to_schedule() -> None:
    """vLLM #44526: K = 4, one of five tokens kept, a chunk of one."""
    events = (
        *(Admit(0), Schedule(3), Output(3, 0, 0, 1, 0), Draft(4), Schedule(5), Output(5, 4, 4, 1, 1)),
        *(EndTurn(), Fold(1)),
    )
    for code, numbers in ((patched((TRIM_STAYS_COUNTED, VLLM_FOLD)), (8, 6, -2)), (right_code(), (4, 5, 1))):
        ledger = pinned.complete_walk(code, Rules(4, 16, False, 0), 3, events).runs[-1].state.ledger
        assert (ledger.num_computed_tokens, ledger.num_tokens, num_schedulable(ledger)) == numbers


def test_an_asynchronous_fold_that_counts_work_in_flight_is_at_13_of_11() -> None:
    wrong = pinned.asynchronous_fold(pinned.IN_FLIGHT_COUNTED)
    right = pinned.asynchronous_fold()
    assert (wrong.num_computed_tokens, wrong.num_tokens) == (13, 11)
    assert (right.num_computed_tokens, right.num_tokens) == (10, 11)


def test_an_equality_assertion_at_the_fold_would_fail_for_a_session_that_stopped_while_preempted() -> None:
    ledger = pinned.stopped_while_preempted()
    assert ledger.num_computed_tokens == 0
    assert ledger.num_computed_tokens != ledger.num_tokens - 1  # C = N - 1 is too strong
    assert ledger.num_computed_tokens <= ledger.num_tokens  # C <= N holds


# ---- what a finished request leaves ------------------------------------------------------------------------

FINISH_TABLE = {
    "ordinary attention, N=49, last response fully accepted": FinishRow(48, 48, 48, (32, 48)),
    "stop on an accepted draft, N=48 (bonus trimmed)": FinishRow(48, 32, 48, (32, 32)),
    "two drafts and the bonus trimmed, N=48": FinishRow(48, 32, 48, (32, 32)),
    "multi-module MTP, look-ahead 3, N=35": FinishRow(32, 16, 16, (0, 16)),
    "the same, stop on an accepted draft, N=34": FinishRow(32, 16, 16, (0, 0)),
    # The asynchronous cells of this row and of the last two are ours: nobody had measured them.
    "EAGLE (look-ahead 1), N=35": FinishRow(32, 16, 16, (0, 16)),
    "MTP safety boundary (C=33, look-ahead 3)": FinishRow(16, 0, 0, (0, 0)),
    "final sampled token never written (C=47, N=48)": FinishRow(32, 32, 32, (32, 32)),
    "every draft rejected (N=46)": FinishRow(32, 32, 32, (32, 32)),
    "stop cuts inside the block (C=49 counted, N=47)": FinishRow(32, 32, 32, (32, 32)),
}
SAFETY = FINISH_CASES[6:]
LENGTHS = dict(
    zip((case.title for case in FINISH_CASES), (49, 48, 48, 35, 34, 35, 34, 48, 46, 47), strict=True)
)


@pytest.mark.parametrize("case", FINISH_CASES, ids=lambda case: case.title)
def test_the_finish_table(case: FinishCase) -> None:
    assert pinned.finish_row(case) == FINISH_TABLE[case.title]
    assert pinned.finished(case, asynchronous=False).num_tokens == LENGTHS[case.title]


def test_every_row_of_the_table_has_a_case() -> None:
    assert set(pinned.finish_table()) == set(FINISH_TABLE)


@pytest.mark.parametrize("case", FINISH_CASES, ids=lambda case: case.title)
@pytest.mark.parametrize("ahead", [False, True])
def test_asynchronously_a_finish_registers_the_same(case: FinishCase, ahead: bool) -> None:
    """Also with one more step in flight, whose speculative work must not be counted."""
    ledger = pinned.finished(case, asynchronous=True, ahead=ahead)
    assert ledger.num_registered_tokens == FINISH_TABLE[case.title].registered


@pytest.mark.parametrize("case", SAFETY, ids=lambda case: case.title)
def test_the_safety_rows_publish_no_more_than_without_terminal_registration(case: FinishCase) -> None:
    right = pinned.finished(case, False).num_registered_tokens
    assert pinned.finished(case, False, (FINISH_REGISTERS_NOTHING,)).num_registered_tokens == right


def test_the_two_upstream_fixes_composed_lose_a_block_where_it_divides_the_length() -> None:
    registered = {case.title: pinned.composed_row(case) for case in FINISH_CASES}
    lost = {title for title, count in registered.items() if count < FINISH_TABLE[title].registered}
    assert lost == {
        "stop on an accepted draft, N=48 (bonus trimmed)",
        "two drafts and the bonus trimmed, N=48",
        "the same, stop on an accepted draft, N=34",  # 34 less the fence of 2
    }
    assert registered["two drafts and the bonus trimmed, N=48"] == 32


def test_the_counted_positions_of_two_safety_rows() -> None:
    """C = 49 in the last row is what the trim fault counts; the right count is 46."""
    inside = FINISH_CASES[9]
    faulty = pinned.finished(inside, False, (TRIM_STAYS_COUNTED, FINISH_FORGETS_TRIMMED))
    assert (faulty.num_computed_tokens, faulty.num_tokens) == (49, 47)
    assert pinned.finished(inside, False).num_computed_tokens == 46
    unwritten = pinned.finished(FINISH_CASES[7], False)
    assert (unwritten.num_computed_tokens, unwritten.num_tokens) == (47, 48)
    assert pinned.finished(FINISH_CASES[6], False).num_computed_tokens == 33
