"""Every invariant and every effect carries something, or is listed as implied and proved to be."""

from __future__ import annotations

import z3

from draftproof.proofs.load_bearing import (
    IMPLIED_EFFECTS,
    IMPLIED_INVARIANTS,
    Group,
    conjuncts,
    failing,
    implication_obligations,
    implied_effects,
    needed_by,
    not_refuted_when_negated,
)
from draftproof.proofs.obligations import decide, satisfiable

number = z3.Int("number")


def test_without_any_one_invariant_something_fails() -> None:
    needs = needed_by()
    assert [unit for unit, claims in needs.items() if not claims] == []
    assert "output/theorem/T5/no_underflow" in needs["placeholders_are_awaited"]


def test_the_implied_invariants_follow_from_the_others() -> None:
    claims = implication_obligations()
    assert [claim.name for claim in claims] == [f"implied/{unit}" for unit in IMPLIED_INVARIANTS]
    assert {decide(claim).outcome for claim in claims} == {"proved"}
    assert satisfiable(claims[0].hypotheses)


def test_without_any_one_effect_a_field_is_open_but_for_the_listed_ones() -> None:
    assert sorted(implied_effects()) == sorted(IMPLIED_EFFECTS)


def test_the_code_refutes_every_effect_and_invariant_turned_round() -> None:
    assert not_refuted_when_negated() == []


def test_a_useless_invariant_would_be_noticed() -> None:
    facts = {"invariant:positive": number > 0, "invariant:useless": number > -5}
    group = Group("sample", facts, {"sample/theorem": number >= 1, "sample/invariant/useless": number > -5})
    assert failing(group, "positive") == ["sample/theorem"]
    assert failing(group, "useless") == []
    assert failing(group, "not there") == []


def test_conjunctions_are_taken_apart_however_nested() -> None:
    parts = conjuncts("name", z3.And(number > 0, z3.And(number > 1, z3.Or(number > 2, number > 3))))
    assert list(parts) == ["name#1", "name#2", "name#3"]
    assert list(conjuncts("name", number > 0)) == ["name"]
