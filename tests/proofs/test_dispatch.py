"""What the scheduler says that a step will bring back: proved, missed by no mutant, and so on real runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftproof.impl import accounting
from draftproof.impl import dispatch as running
from draftproof.impl.contracts import plain
from draftproof.proofs import dispatch
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.dispatch import FAULTS, RUNNING, DispatchFault, Told, told_with
from draftproof.proofs.mutants import Mutant, mutants_of
from draftproof.proofs.obligations import decide, formulas, satisfiable
from draftproof.proofs.scheduler_code import namespace_of, tree_of
from draftproof.proofs.solvers import ask_z3
from draftproof.spec import queue
from draftproof.spec.events import Schedule
from draftproof.spec.ledger import Ledger, Rules
from draftproof.spec.queue import Run, dispatched
from draftproof.spec.walks import Sizes, choices

CODE: dict[str, Callable[..., Ledger]] = {name: plain(code) for name, code in accounting.TRANSITIONS.items()}
PLACES = {"num_drafts_in_step": "num_drafts", "samples_in_step": "samples"}
"""The place of each function among the two."""


def refuted(told: Told) -> tuple[str, ...]:
    """The claims about the two functions that have a counterexample; none may be undecided."""
    verdicts = {
        claim.name.removeprefix("R1/dispatch/"): ask_z3(formulas(claim)).verdict
        for claim in dispatch.obligations(told)
    }
    assert set(verdicts.values()) <= {"sat", "unsat"}
    return tuple(name for name, verdict in verdicts.items() if verdict == "sat")


def test_both_solvers_prove_all_and_every_kind_of_step_occurs() -> None:
    claims = dispatch.obligations()
    assert len(claims) == 8
    assert {decide(claim).outcome for claim in claims} == {"proved"}
    assert [name for name, facts in dispatch.witnesses().items() if not satisfiable(facts)] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refuted_by_the_claims_that_it_names(fault: DispatchFault) -> None:
    assert refuted(told_with(fault.function, fault.changes)) == fault.refuted_by


@pytest.mark.parametrize("control", dispatch.controls(), ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


# ---- every change of one place ----------------------------------------------------------------------------


def mutants() -> list[Mutant]:
    return [mutant for name in PLACES for mutant in mutants_of(name, tree_of(getattr(running, name)))]


def compiled(mutant: Mutant) -> Told:
    namespace = namespace_of(getattr(running, mutant.function))
    exec(mutant.source, namespace)
    return RUNNING._replace(**{PLACES[mutant.function]: namespace[mutant.function]})


def test_every_mutant_of_one_place_is_refuted() -> None:
    survivors, ill_formed = [], []
    found = mutants()
    for mutant in found:
        try:
            if not refuted(compiled(mutant)):
                survivors.append(mutant.key)
        except UnboundLocalError:
            ill_formed.append(mutant.key)
    assert survivors == []
    assert ill_formed == ["num_drafts_in_step/end: num_new_tokens -> end"]
    assert len(found) > 70


# ---- on real runs -----------------------------------------------------------------------------------------

SIZES = Sizes(max_num_tokens=5, max_num_chunk_tokens=1, max_num_steps_in_flight=2)


def reachable(asynchronous: bool) -> Iterator[tuple[Run, Schedule]]:
    """Every dispatch of every run up to a small size."""
    rules = Rules(2, 2, asynchronous, 0)
    waiting = [queue.start(length) for length in (1, 3)]
    seen = set(waiting)
    while waiting:
        run = waiting.pop(0)
        for event in choices(run, rules, SIZES):
            if isinstance(event, Schedule):
                yield run, event
            after = queue.advance(run, rules, event, CODE)
            if after not in seen and len(seen) < 4_000:
                seen.add(after)
                waiting.append(after)


def answers(told: Told, run: Run, event: Schedule) -> tuple[int, bool]:
    ledger, num_new_tokens = run.state.ledger, event.num_new_tokens
    return told.num_drafts(ledger, num_new_tokens), bool(told.samples(ledger, num_new_tokens))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_is_the_queues_word_in_every_state_that_a_run_reaches(asynchronous: bool) -> None:
    kinds: Counter[Any] = Counter()
    for run, event in reachable(asynchronous):
        truth = dispatched(run.state, event)
        assert answers(RUNNING, run, event) == (truth.num_drafts, truth.samples), (run, event)
        kinds[truth.num_drafts, truth.samples, run.state.ghosts.num_awaited_samples > 0] += 1
    expected = {(0, False, False), (0, True, False), (1, True, False), (2, True, False)}
    ahead = {(0, True, True), (1, True, True), (2, True, True)}
    assert set(kinds) == expected | (ahead if asynchronous else set())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_run_reaches_every_fault(fault: DispatchFault) -> None:
    told = told_with(fault.function, fault.changes)
    modes = {claim.partition("/")[0] for claim in fault.refuted_by}
    for mode in modes:
        found = next(
            (
                (run, event)
                for run, event in reachable(mode == "asynchronous")
                if answers(told, run, event) != answers(RUNNING, run, event)
            ),
            None,
        )
        assert found is not None, f"no run of the walk shows {fault.name} when {mode}"
