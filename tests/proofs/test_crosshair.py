"""CrossHair: every contract is confirmed, and nothing that should not be counted as confirmed is."""

from __future__ import annotations

import os
import subprocess
import sys

import icontract
import pytest

from draftproof.impl import accounting, decisions
from draftproof.impl.contracts import plain
from draftproof.proofs import crosshair_decisions, crosshair_targets
from draftproof.proofs.crosshair_mutants import (
    CrosshairMutant,
    crosshair_mutants,
    mutated,
    refute,
)
from draftproof.proofs.crosshair_run import Target, confirm, targets


@pytest.fixture(scope="module", autouse=True)
def crosshair_has_looked_around() -> None:
    """At its first target CrossHair looks through every module of the process. Where other tests imported the
    peer's thousands that takes half a minute on a busy machine, which is no part of a contract's time."""
    confirm(targets()[:1], seconds=300)


def test_every_contract_is_confirmed_over_all_paths() -> None:
    verdicts = confirm(targets())
    assert [verdict for verdict in verdicts if verdict.state != "CONFIRMED"] == []
    assert sum(verdict.confirmed for verdict in verdicts) == sum(verdict.contracts for verdict in verdicts)


def test_every_transition_and_decision_has_a_target() -> None:
    assert list(crosshair_targets.TARGETS) == list(accounting.TRANSITIONS)
    assert list(crosshair_decisions.TARGETS) == list(decisions.FUNCTIONS)
    for name, function in accounting.TRANSITIONS.items():
        assert crosshair_targets.CODE[name] is plain(function)


@pytest.mark.parametrize("mutant", crosshair_mutants(), ids=lambda mutant: mutant.target)
def test_a_wrong_version_of_every_target_is_refuted(mutant: CrosshairMutant) -> None:
    refutation = refute(mutant)
    assert refutation.refuted, (refutation.state, refutation.message)


def test_every_target_has_its_own_mutant() -> None:
    assert [mutant.target for mutant in crosshair_mutants()] == [target.name for target in targets()]


def test_a_change_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="out of date"):
        mutated(CrosshairMutant("transition/fold", "fold", "no such text", ""))


def test_after_a_mutant_the_right_code_is_back() -> None:
    refute(crosshair_mutants()[0])
    assert crosshair_targets.CODE["admit"] is plain(accounting.admit)


def is_positive(result: int) -> bool:
    return result > 0


def without_a_contract(number: int) -> int:
    return number


@icontract.ensure(is_positive, enabled=False)
def with_its_contract_off(number: int) -> int:
    return number


@icontract.ensure(is_positive)
def with_a_false_contract(number: int) -> int:
    return number


def is_zero(result: int) -> bool:
    return result == 0


@icontract.ensure(is_zero)
def with_a_contract_that_takes_for_ever(number: int) -> int:
    """True, but there is one path for every number."""
    while number > 0:
        number -= 1
    return min(number, 0) * 0


@pytest.mark.parametrize(
    ("function", "state"),
    [
        (without_a_contract, "SKIPPED"),
        (with_its_contract_off, "SKIPPED"),
        (with_a_false_contract, "POST_FAIL"),
        (with_a_contract_that_takes_for_ever, "CANNOT_CONFIRM"),
    ],
)
def test_silence_refutation_and_time_out_are_not_confirmed(function: object, state: str) -> None:
    (verdict,) = confirm([Target("sample", function)], seconds=1.0)  # type: ignore[arg-type]
    assert (verdict.contracts, verdict.confirmed, verdict.state) == (1, 0, state)


def test_debug_mode_changes_nothing() -> None:
    script = (
        "from draftproof.proofs.crosshair_run import confirm, targets\n"
        "chosen = [target for target in targets() if target.name == 'transition/output']\n"
        "print(confirm(chosen)[0].state)\n"
    )
    environment = {**os.environ, "DRAFTPROOF_DEBUG": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "CONFIRMED"
