"""The quick check says no to wrong code, and cosmic-ray's outcomes are not taken at their word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import z3

from draftproof.impl import accounting
from draftproof.proofs import commutation, cosmic, decisions, induction, integers, quick, refinement_queue
from draftproof.proofs.obligations import Obligation
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Ledger, Rules

number = z3.Int("number")
ROOT = Path(__file__).parents[2]


def test_the_running_code_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main() == 0
    assert capsys.readouterr().out == "proved\n"


def test_a_wrong_transition_is_refuted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = accounting.fold

    def forgets_to_cut(ledger: Ledger, rules: Rules, num_chunk_tokens: int) -> Ledger:
        return right(ledger, rules, num_chunk_tokens + 1)

    monkeypatch.setattr(accounting, "fold", forgets_to_cut)
    assert quick.main() == 1
    assert capsys.readouterr().out == "fold: refuted\n"


@pytest.mark.parametrize(
    ("claims", "failure"),
    [
        ([Obligation("a", "", "", {}, number > 0)], "a: refuted"),
        (
            [Obligation("a", "", "", {"yes": number > 0, "no": number < 0}, number == 3)],
            "a: vacuous, nothing satisfies its hypotheses",
        ),
    ],
)
def test_failures_are_named(monkeypatch: pytest.MonkeyPatch, claims: list[Obligation], failure: str) -> None:
    monkeypatch.setattr(
        induction,
        "all_obligations",
        lambda: [claim._replace(assumption_group=claim.name) for claim in claims],
    )
    assert quick.first_failure() == failure


def test_what_z3_cannot_decide_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "verdict_of", lambda members: "unknown")
    failure = quick.first_failure()
    assert failure is not None
    assert failure.endswith(": unknown")


@pytest.mark.parametrize(
    ("unneeded_by_the_induction", "failure"),
    [
        ("drafts_within_limit", "T10/ledger: refuted"),
        ("paused_keeps_all_but_one", "R2/complete/fold: refuted"),
    ],
)
def test_what_only_a_later_theorem_needs_is_missed_there(
    monkeypatch: pytest.MonkeyPatch, unneeded_by_the_induction: str, failure: str
) -> None:
    def without(state: State, rules: Rules) -> dict[str, bool]:
        found = invariants(state, rules)
        del found[unneeded_by_the_induction]
        return found

    for module in (induction, decisions, commutation, integers, refinement_queue):
        monkeypatch.setattr(module, "invariants", without)
    assert quick.first_failure() is None
    assert quick.first_failure(everything=True) == failure


def test_everything_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main(["--everything"]) == 0
    assert capsys.readouterr().out == "proved\n"


ITEM = {"mutations": [{"operator_name": "core/NumberReplacer", "start_pos": [7, 0]}]}


def result(outcome: str, output: str, worker: str = "normal") -> dict[str, Any]:
    return {"worker_outcome": worker, "test_outcome": outcome, "output": output, "diff": ""}


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (result("killed", "output: refuted\n"), "refuted"),
        (result("killed", "initial: vacuous, nothing satisfies its hypotheses\n"), "vacuous"),
        (result("killed", "output: unknown\n"), "unknown"),
        (result("killed", "timeout"), "unknown"),
        (result("killed", ""), "cannot run"),
        (result("incompetent", "", "exception"), "unknown"),
        (None, "unknown"),
    ],
)
def test_only_a_refutation_is_a_kill(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | None, outcome: str
) -> None:
    monkeypatch.setattr(cosmic, "_survivor", lambda *_: "stronger")
    assert cosmic._outcome(cosmic.ACCOUNTING, Path(), ITEM, found).outcome == outcome


def test_what_is_proved_to_be_the_same_is_not_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosmic, "_survivor", lambda *_: "equivalent")
    assert (
        cosmic._outcome(cosmic.INVARIANTS, Path(), ITEM, result("killed", "timeout")).outcome == "equivalent"
    )


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("refuted", 0), ("stronger", 0), ("weaker", 1), ("survived", 1), ("unknown", 1)],
)
def test_an_invariant_that_could_say_less_is_a_hole(
    monkeypatch: pytest.MonkeyPatch, outcome: str, status: int
) -> None:
    found = cosmic.Outcome(cosmic.INVARIANTS, outcome, "NumberReplacer", 7, "")
    monkeypatch.setattr(cosmic, "run", lambda sample: [found])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["cosmic"])
    monkeypatch.chdir(ROOT)
    assert cosmic.main() == status


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [((1, 0), "equivalent"), ((0, 0), "weaker"), ((2, 0), "stronger"), ((2, -1), "survived")],
)
def test_invariants_that_survive_are_compared(
    monkeypatch: pytest.MonkeyPatch, changed: tuple[int, int], outcome: str
) -> None:
    def at_least(num_tokens: int, num_computed_tokens: int) -> Any:
        return lambda state, rules: {
            "known": state.ledger.num_tokens >= num_tokens,
            "computed": state.ledger.num_computed_tokens >= num_computed_tokens,
        }

    monkeypatch.setattr("draftproof.spec.invariants.invariants", at_least(1, 0))
    monkeypatch.setattr(cosmic, "_changed", lambda *_: {"invariants": at_least(*changed)})
    assert cosmic._survivor(cosmic.INVARIANTS, Path(), {}) == outcome


def test_only_survivors_that_compute_the_same_are_equivalent() -> None:
    right = accounting.fold
    assert cosmic._is_same("fold", right)
    assert not cosmic._is_same("fold", lambda ledger, rules, chunk: right(ledger, rules, chunk + 1))
