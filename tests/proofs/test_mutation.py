"""The kill table: wrong versions die, harmless ones are argued, and nothing undecided passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs import equivalents, mutation
from draftproof.proofs.equivalents import Coincidence, argument
from draftproof.proofs.judgement import Judgement, judge
from draftproof.proofs.mutants import Mutant, callers, compiled, mutants
from draftproof.proofs.mutation import KillTable, kill_table, write_kill_table
from draftproof.proofs.obligations import decide, satisfiable
from draftproof.spec import effects
from draftproof.spec.events import EVENTS
from draftproof.spec.ledger import Rules, initial

ROOT = Path(__file__).parents[2]


def one(function: str, before: str, after: str) -> Mutant:
    (found,) = [mutant for mutant in mutants((function,)) if (mutant.before, mutant.after) == (before, after)]
    return found


def ill_formed() -> Mutant:
    return one(
        "fold",
        "D=ledger.num_draft_tokens, drop=ledger.drop_stale",
        "D=ledger.drop_stale, drop=ledger.num_draft_tokens",
    )


def table(*judgements: Judgement) -> KillTable:
    return KillTable(judgements, 0, is_complete=False)


def test_a_slice_of_the_table_has_no_hole() -> None:
    found = kill_table(("registrable", "end_turn"))
    assert found.passed()
    *_, total = found.by_transition()
    counts = dict(zip(mutation.COLUMNS, total.counts, strict=True))
    assert counts["left"] == 0
    assert counts["killed"] == counts["killed by effects"] == counts["non-equivalent"] > 150
    assert counts["killed by invariants"] < counts["killed by invariants or theorems"] < counts["killed"]
    assert found.by_operator()[-1] == total


def test_the_code_that_is_mutated_is_the_code_that_runs() -> None:
    ledger, rules = initial(5)._replace(status=1), Rules(3, 2, True, 0)
    for name, function in compiled({}).items():
        if name in EVENTS:
            arguments = [1] * len(EVENTS[name]._fields)
            assert function(ledger, rules, *arguments) == plain(getattr(accounting, name))(
                ledger, rules, *arguments
            )


def test_mutants_are_many_and_distinct() -> None:
    every = mutants()
    assert len({mutant.key for mutant in every}) == len(every) == len({mutant.source for mutant in every})
    assert {mutant.function for mutant in every} == {*EVENTS, "registrable"}
    assert {mutant.operator for mutant in every} >= {"field", "swapped assignment", "arm", "status", "mode"}


def test_a_helper_is_judged_in_all_its_callers() -> None:
    assert callers("registrable") == ("schedule", "output", "preempt", "end_turn", "finish", "abort")
    assert callers("fold") == ("fold",)


def test_the_trim_fault_dies() -> None:
    forgets = "ledger.num_computed_tokens - num_rejected"
    judgement = judge(one("output", f"{forgets} - num_trimmed", forgets))
    assert judgement.outcome == "killed"
    assert "effect" in judgement.killed_by


def test_a_change_that_computes_the_same_is_equivalent_and_says_what_its_proof_uses() -> None:
    judgement = judge(one("preempt", "ledger.num_stale_tokens > 0", "ledger.num_stale_tokens != 0"))
    assert judgement.outcome == "equivalent"
    assert judgement.needed == ("invariant:no_negative_counter",)


def test_what_mixes_truth_values_and_integers_cannot_run() -> None:
    assert judge(ill_formed()).outcome == "ill-formed"


def test_without_its_effect_a_mutant_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    ignores_drafts = one("draft", "D=num_drafts", "D=ledger.num_draft_tokens")
    assert judge(ignores_drafts).outcome == "killed"
    monkeypatch.setitem(effects.EFFECTS, "draft", lambda before, rules, event, after: {})
    survivor = judge(ignores_drafts)
    assert survivor.outcome == "survived"
    assert not table(survivor).passed()


def test_an_undecided_mutant_fails_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.proofs import judgement as module
    from draftproof.proofs.solvers import Answer

    monkeypatch.setattr(module, "ask_z3", lambda formulas: Answer("unknown", 0.0))
    undecided = judge(one("draft", "D=num_drafts", "D=ledger.num_draft_tokens"))
    assert undecided.outcome == "unknown"
    assert not table(undecided).passed()
    assert table(undecided).summary()["unknown"] == [undecided.mutant.key]


def test_an_empty_table_and_an_unargued_equivalent_fail() -> None:
    assert not table().passed()
    unargued = Judgement(ill_formed(), "equivalent", (), ())
    assert argument(unargued.mutant) is None
    assert table(unargued).unargued() == [unargued]
    assert not table(unargued).passed()


def test_an_argument_about_nothing_fails_the_whole_table() -> None:
    killed = Judgement(mutants(("draft",))[0], "killed", ("effect",), ())
    assert table(killed).passed()
    whole = KillTable((killed,), 0, is_complete=True)
    assert whole.unused_arguments() == list(equivalents.ARGUED)
    assert not whole.passed()


def test_every_coincidence_is_proved() -> None:
    claims = equivalents.obligations()
    assert [claim.name for claim in claims if decide(claim).outcome != "proved"] == []
    assert all(satisfiable(claim.hypotheses) for claim in claims)


def test_a_false_coincidence_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Coincidence("admit", frozenset({"ledger.num_tokens", "ledger.num_prompt_tokens"}), "no reason")
    monkeypatch.setattr(equivalents, "COINCIDENCES", (wrong,))
    assert [decide(claim).outcome for claim in equivalents.obligations()] == ["refuted"]


def test_the_table_is_written_with_every_argument(tmp_path: Path) -> None:
    equivalent = judge(one("preempt", "ledger.num_stale_tokens > 0", "ledger.num_stale_tokens != 0"))
    write_kill_table(table(equivalent), tmp_path / "docs" / "table.md")
    text = (tmp_path / "docs" / "table.md").read_text()
    assert "| preempt | 1 | 1 | 0 |" in text
    assert "**A counter is never negative" in text
    assert "What is wrong" not in text


def test_the_table_is_shown_with_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = one("preempt", "ledger.num_stale_tokens > 0", "ledger.num_stale_tokens == 0")
    mutation.show_kill_table(table(Judgement(mutant, "survived", (), ())))
    shown = " ".join(capsys.readouterr().out.split())
    assert "preempt 1 0 1 0 0 0 0 1" in shown
    assert f"survived: {mutant.key}" in shown


def test_the_committed_table_is_about_the_present_code() -> None:
    text = (ROOT / "docs" / "kill-table.md").read_text()
    (total,) = re.findall(r"(?m)^\| all \| (\d+) \| \d+ \| \d+ \|.*\| 0 \|$", text)[:1]
    (ill_formed,) = re.findall(r"(?m)^(\d+) further mutants cannot run", text)
    assert int(total) + int(ill_formed) == len(mutants()), (
        "run `draftproof mutants --output docs/kill-table.md`"
    )
