"""Counting: nothing that is not proved may look proved."""

from __future__ import annotations

from typing import Any

from draftproof.proofs.obligations import Verdict, outcome_of
from draftproof.proofs.pool import SOURCES as POOL_SOURCES
from draftproof.proofs.results import POOL_ROWS, TEXTS, Run, is_theorem, passed, summary, theorem_rows
from draftproof.proofs.run import full_tasks, partial_tasks, standard_tasks, stands_on
from draftproof.proofs.sources import BY_Z3_ALONE, CONTROLLED, SOURCES
from draftproof.proofs.verdicts import NOT_ASKED

LEDGER_ROWS = [key for key in TEXTS if key not in POOL_ROWS]
"""What both solvers are asked about in every run."""


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


def about_the_pool(cvc5: str) -> list[Verdict]:
    return [verdict(name=f"pool/{key}", theorem=key)._replace(cvc5=cvc5) for key in POOL_ROWS]


def a_run(**changes: Any) -> Run:
    every_row = [verdict(name=f"a/theorem/{key}/x", theorem=key) for key in LEDGER_ROWS]
    every_row += about_the_pool(NOT_ASKED)
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
        "by_both": {"total": 4, "proved": 1},
        "by_z3_alone": {"total": 0, "proved": 0},
        "failed": 1,
        "unknown": 1,
        "vacuous": 0,
        "disagreements": 1,
    }
    assert summary(run)["theorems"] == {"total": sum(map(is_theorem, TEXTS)), "proved": 0}


def test_a_partial_run_speaks_about_its_theorems_only() -> None:
    run = a_run(
        only=frozenset({"T2"}), verdicts=[verdict()], crosshair=[], faults=[], controls=[], coverage=None
    )
    assert passed(run)
    assert summary(run)["partial"] == ["T2"]
    assert [row["key"] for row in theorem_rows(run)] == ["T2"]
    assert not passed(run._replace(verdicts=[]))


def test_what_one_solver_decided_is_never_counted_as_decided_by_both() -> None:
    run = a_run()
    counts = summary(run)["obligations"]
    ledgers = len(LEDGER_ROWS)
    assert counts["by_both"] == {"total": ledgers, "proved": ledgers}
    assert counts["by_z3_alone"] == {"total": len(POOL_ROWS), "proved": len(POOL_ROWS)}
    assert counts["total"] == counts["proved"] == ledgers + len(POOL_ROWS)
    solvers = {row["key"]: row["solvers"] for row in theorem_rows(run)}
    assert solvers["T2"] == ["z3", "cvc5"] and solvers["P2"] == ["z3"]
    one_more = [*run.verdicts, verdict(name="pool/more", theorem="P2")]
    assert next(row for row in theorem_rows(run._replace(verdicts=one_more)) if row["key"] == "P2")[
        "solvers"
    ] == ["z3"]


def test_one_solver_is_enough_about_the_pool_only_and_not_in_a_full_run() -> None:
    run = a_run()
    assert passed(run)
    assert not passed(run._replace(full=True))
    by_both = [one._replace(cvc5="unsat") for one in run.verdicts]
    assert passed(run._replace(full=True, verdicts=by_both))
    alone = [one._replace(cvc5=NOT_ASKED) if one.theorem == "T2" else one for one in run.verdicts]
    assert not passed(run._replace(verdicts=alone))
    for place, one in enumerate(run.verdicts):
        unknown = one._replace(outcome="unknown")
        assert not passed(run._replace(verdicts=[*run.verdicts[:place], unknown, *run.verdicts[place + 1 :]]))


def test_a_run_about_the_pool_needs_no_ledger_and_all_of_the_pool() -> None:
    assert stands_on(frozenset({"P2"})) == frozenset(POOL_ROWS)
    assert stands_on(frozenset({"T7"})) == {"T7", "invariants", "R1"}
    assert {task.subject for task in partial_tasks(frozenset(POOL_ROWS))} == set(POOL_SOURCES)
    assert not {task.subject for task in partial_tasks(frozenset({"T7"}))} & set(POOL_SOURCES)


def test_every_run_does_the_work_of_the_pool_and_a_full_one_asks_both_solvers() -> None:
    for full in (False, True):
        tasks = standard_tasks(full)
        asked = {(task.kind, task.subject) for task in tasks}
        kind = "obligations" if full else "by_z3"
        assert {(kind, source) for source in BY_Z3_ALONE} <= asked
        assert {("vacuity", source) for source in SOURCES} <= asked
        assert {("controls", source) for source in CONTROLLED} <= asked
        decided = [task for task in tasks if task.kind in ("obligations", "by_z3")]
        for source in SOURCES:
            parts = [task for task in decided if task.subject == source]
            assert len({task.kind for task in parts}) == 1
            assert sorted(task.part for task in parts) == list(range(parts[0].parts))
    assert not [task for task in full_tasks() if task.kind == "by_z3"]


def test_both_solvers_must_agree() -> None:
    assert outcome_of("unsat", "unsat") == "proved"
    assert outcome_of("unsat", "sat") == outcome_of("sat", "unsat") == "disagreement"
    assert outcome_of("unsat", "unknown") == outcome_of("unknown", "unsat") == "unknown"
    assert outcome_of("sat", "unknown") == "refuted"
    assert outcome_of("unsat", NOT_ASKED) == "proved"
    assert outcome_of("sat", NOT_ASKED) == "refuted"
    assert outcome_of("unknown", NOT_ASKED) == "unknown"
    assert outcome_of(NOT_ASKED, NOT_ASKED) == "unknown"
