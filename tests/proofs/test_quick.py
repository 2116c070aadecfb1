"""The quick check says no to wrong code, and cosmic-ray's outcomes are not taken at their word."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from draftproof.impl import accounting
from draftproof.proofs import cosmic, induction, quick
from draftproof.proofs.obligations import Obligation
from draftproof.spec.ledger import Ledger, Rules

number = z3.Int("number")


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
def test_only_a_refutation_is_a_kill(found: dict[str, Any] | None, outcome: str) -> None:
    item = {"mutations": [{"operator_name": "core/NumberReplacer", "start_pos": [7, 0]}]}
    assert cosmic._outcome(cosmic.ACCOUNTING, item, found).outcome == outcome


def test_only_survivors_that_compute_the_same_are_equivalent() -> None:
    right = accounting.fold
    assert cosmic._is_same("fold", right)
    assert not cosmic._is_same("fold", lambda ledger, rules, chunk: right(ledger, rules, chunk + 1))
