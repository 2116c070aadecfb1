"""Counting: nothing that is not proved may look proved."""

from __future__ import annotations

from typing import Any

from draftproof.proofs.obligations import Verdict, outcome_of
from draftproof.proofs.results import FULL_ROWS, MORE_ROWS, Run, passed, summary, theorem_rows
from draftproof.proofs.run import full_tasks, partial_tasks, standard_tasks, stands_on
from draftproof.proofs.sources import FULL_SOURCES
from draftproof.spec.theorems import THEOREMS


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
    every_row = [verdict(name=f"a/theorem/{key}/x", theorem=key) for key in (*THEOREMS, *MORE_ROWS)]
    run = Run(
        verdicts=every_row,
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
    row = theorem_rows(a_run())[1]
    assert row["key"] == "T2" and row["outcome"] == "proved"
    assert row["needs"] == ["frontier_below_known"]


def test_each_kind_of_failure_fails_the_run() -> None:
    class Missed(Found):
        found = False

    class NotConfirmed(Confirmed):
        confirmed = 0

    class TwoOfOne(Confirmed):
        confirmed = 2

    class Nothing(Coverage):
        antecedents: tuple[str, ...] = ()

    class Missing(Coverage):
        missing = ("a",)

    class Longer(Found):
        trace, replayed, as_short = object(), True, False

    class NotRefuted(Found):
        refuted = False

    failures: tuple[dict[str, Any], ...] = (
        {"verdicts": [*a_run().verdicts, verdict("refuted")]},
        {"verdicts": [*a_run().verdicts, verdict("unknown")]},
        {"verdicts": [*a_run().verdicts, verdict("disagreement")]},
        {"verdicts": []},
        {"verdicts": a_run().verdicts[1:]},  # a theorem about which nothing is claimed
        {"verdicts": [*a_run().verdicts, a_run().verdicts[0]]},  # one claim hides behind another's name
        {"controls": []},
        {"crosshair": []},
        {"crosshair": [TwoOfOne(), NotConfirmed()]},  # the sums agree, the targets do not
        {"coverage": None},
        {"coverage": Nothing()},
        {"faults": []},
        {"needs": [("T2", "output/theorem/T2/x", None)]},
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
    assert summary(run)["theorems"] == {"total": 16, "proved": 0}


def test_a_partial_run_speaks_about_its_theorems_only() -> None:
    run = a_run(
        only=frozenset({"T2"}), verdicts=[verdict()], crosshair=[], faults=[], controls=[], coverage=None
    )
    assert passed(run)
    assert summary(run)["partial"] == ["T2"]
    assert [row["key"] for row in theorem_rows(run)] == ["T2"]
    assert not passed(run._replace(verdicts=[]))


def test_a_full_run_must_prove_what_a_standard_run_leaves_out() -> None:
    more = [verdict(name=f"pool/{key}", theorem=key) for key in FULL_ROWS]
    full = a_run(full=True, verdicts=[*a_run().verdicts, *more])
    assert passed(full)
    assert [row["key"] for row in theorem_rows(full)] == [*THEOREMS, *MORE_ROWS, *FULL_ROWS]
    assert summary(full)["theorems"]["proved"] == 16 + len(FULL_ROWS)
    assert not passed(a_run(full=True)), "nothing is claimed about the pool"
    for place in range(len(more)):
        unknown = [*more[:place], more[place]._replace(outcome="unknown"), *more[place + 1 :]]
        assert not passed(full._replace(verdicts=[*a_run().verdicts, *unknown]))
    assert not set(FULL_ROWS) & {row["key"] for row in theorem_rows(a_run())}


def test_a_run_about_the_pool_needs_no_ledger_and_all_of_the_pool() -> None:
    assert stands_on(frozenset({"P2"})) == frozenset(FULL_ROWS)
    assert stands_on(frozenset({"T7"})) == {"T7", "invariants", "R1"}
    assert {task.subject for task in partial_tasks(frozenset(FULL_ROWS))} == set(FULL_SOURCES)
    assert not {task.subject for task in partial_tasks(frozenset({"T7"}))} & set(FULL_SOURCES)


def test_only_a_full_run_does_the_work_of_the_pool() -> None:
    wanted = {(kind, source) for kind in ("obligations", "vacuity", "controls") for source in FULL_SOURCES}
    assert wanted <= {(task.kind, task.subject) for task in full_tasks()}
    assert not wanted & {(task.kind, task.subject) for task in standard_tasks()}


def test_both_solvers_must_agree() -> None:
    assert outcome_of("unsat", "unsat") == "proved"
    assert outcome_of("unsat", "sat") == outcome_of("sat", "unsat") == "disagreement"
    assert outcome_of("unsat", "unknown") == outcome_of("unknown", "unsat") == "unknown"
    assert outcome_of("sat", "unknown") == "refuted"
