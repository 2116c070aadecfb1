"""Counting: nothing that is not proved may look proved."""

from __future__ import annotations

from typing import Any

from draftproof.proofs.obligations import Verdict, outcome_of
from draftproof.proofs.results import Run, passed, summary, theorem_rows


class Confirmed:
    """As much of a CrossHair verdict as counting reads."""

    name, contracts, confirmed, state, message, seconds = "output", 1, 1, "confirmed", "", 0.1

    @staticmethod
    def _asdict() -> dict[str, object]:
        return {"name": "output"}


class Found:
    """As much of a fault verdict as counting reads."""

    name, found, detail = "trim-uncounted", True, ""

    @staticmethod
    def _asdict() -> dict[str, object]:
        return {"name": "trim-uncounted"}


class Coverage:
    antecedents: tuple[str, ...] = ("a",)
    missing: tuple[str, ...] = ()
    table: tuple[str, ...] = ()


def verdict(outcome: str = "proved", name: str = "output/theorem/T2/x", theorem: str = "T2") -> Verdict:
    return Verdict(name, "theorem", theorem, outcome, "unsat", "unsat", 0.1, 0.2, {})


def a_run(**changes: Any) -> Run:
    run = Run(
        verdicts=[verdict()],
        vacuous=[],
        controls=[("start", "dropped", "refuted")],
        needs=[("T2", "output/theorem/T2/x", ("invariant:frontier_below_known", "guard:running"))],
        crosshair=[Confirmed()],
        coverage=Coverage(),
        faults=[Found()],
        searches=[],
        crosshair_mutants=[],
        broken=[],
        seconds=1.0,
    )
    return run._replace(**changes)


def test_a_run_in_which_everything_passed_passes() -> None:
    assert passed(a_run())
    row = theorem_rows(a_run())[0]
    assert row["key"] == "T2" and row["outcome"] == "proved"
    assert row["needs"] == ["frontier_below_known"]


def test_each_kind_of_failure_fails_the_run() -> None:
    class Missed(Found):
        found = False

    class NotConfirmed(Confirmed):
        confirmed = 0

    class Missing(Coverage):
        missing = ("a",)

    class Longer(Found):
        trace, replayed, as_short = object(), True, False

    class NotRefuted(Found):
        refuted = False

    failures: tuple[dict[str, Any], ...] = (
        {"verdicts": [verdict("refuted")]},
        {"verdicts": [verdict("unknown")]},
        {"verdicts": [verdict("disagreement")]},
        {"verdicts": []},
        {"vacuous": ["output"]},
        {"controls": [("start", "dropped", "not noticed")]},
        {"controls": [("start", "dropped", "unknown")]},
        {"crosshair": [NotConfirmed()]},
        {"coverage": Missing()},
        {"faults": [Missed()]},
        {"searches": [Longer()]},
        {"crosshair_mutants": [NotRefuted()]},
        {"broken": ["crosshair: it died"]},
    )
    for changes in failures:
        assert not passed(a_run(**changes)), changes


def test_counts_are_reported_apart() -> None:
    run = a_run(verdicts=[verdict(), verdict("unknown"), verdict("refuted"), verdict("disagreement")])
    assert summary(run)["obligations"] == {
        "total": 4,
        "proved": 1,
        "failed": 1,
        "unknown": 1,
        "vacuous": 0,
        "disagreements": 1,
    }
    assert summary(run)["theorems"] == {"total": 1, "proved": 0}


def test_both_solvers_must_agree() -> None:
    assert outcome_of("unsat", "unsat") == "proved"
    assert outcome_of("unsat", "sat") == outcome_of("sat", "unsat") == "disagreement"
    assert outcome_of("unsat", "unknown") == outcome_of("unknown", "unsat") == "unknown"
    assert outcome_of("sat", "unknown") == "refuted"
