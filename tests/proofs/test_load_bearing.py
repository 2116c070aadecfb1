"""Every invariant and every effect carries something: none follows from the others."""

from __future__ import annotations

import pytest
import z3

from draftproof.proofs.load_bearing import (
    Group,
    conjuncts,
    failing,
    implied_effects,
    needed_by,
    not_refuted_when_negated,
)
from draftproof.spec import effects
from draftproof.spec.events import Draft
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules

number = z3.Int("number")


def test_without_any_one_invariant_something_fails() -> None:
    needs = needed_by()
    assert [unit for unit, claims in needs.items() if not claims] == []
    assert any(claim.endswith("theorem/T5/no_underflow") for claim in needs["placeholders_are_awaited"])


def test_without_any_one_effect_a_field_is_open() -> None:
    assert implied_effects() == []


def test_an_effect_that_says_nothing_new_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = effects.EFFECTS["draft"]

    def says_it_twice(before: State, rules: Rules, event: Draft, after: State) -> effects.Conditions:
        again = before.ledger.num_draft_tokens + after.ledger.num_draft_tokens >= event.num_drafts
        return right(before, rules, event, after) | {"again": again}

    monkeypatch.setitem(effects.EFFECTS, "draft", says_it_twice)
    assert implied_effects() == [("draft", "again")]


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
    implied = conjuncts("name", z3.Or(z3.Not(number > 0), z3.And(number > 1, number > 2)))
    assert list(implied.values()) == [
        z3.Or(z3.Not(number > 0), number > 1),
        z3.Or(z3.Not(number > 0), number > 2),
    ]
