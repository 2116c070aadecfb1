"""Every claim about recurrent state, on integers along random walks; and no antecedent that is never true."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from draftproof.impl import recurrent
from draftproof.proofs.antecedents import calls, met, recording
from draftproof.spec import (
    recurrent_effects,
    recurrent_guards,
    recurrent_invariants,
    recurrent_theorems,
    recurrent_walks,
)
from draftproof.spec.recurrent import NO_STATE, RecurrentRules
from draftproof.spec.recurrent_events import HOST_ARGUMENTS, RECURRENT_EVENTS, Leave
from draftproof.spec.recurrent_ghosts import NO_ROLE, RecurrentState, Role
from draftproof.spec.recurrent_tokens import Code, Reference, advance, new_reference
from draftproof.spec.recurrent_walks import Bounds, Walk, moves

CODE = Code(recurrent.TRANSITIONS, recurrent.DECISIONS)
MODULES = [recurrent_effects, recurrent_guards, recurrent_invariants, recurrent_theorems]


class Happened(NamedTuple):
    """One event of a move that may be chosen."""

    before: Reference
    name: str
    event: Any
    roles: Mapping[int, Role]
    rules: RecurrentRules
    only: int | None
    after: Reference


class Checked:
    """`advance`, remembered; and every guard, effect, invariant and claim of what was chosen."""

    def __init__(self) -> None:
        self.happened: list[Happened] = []
        self.events: Counter[str] = Counter()
        self.claims: Counter[str] = Counter()
        self.antecedents: set[str] = set()
        self.known = {position: call for module in MODULES for position, call in calls(module).items()}

    def __call__(
        self,
        reference: Reference,
        name: str,
        event: Any,
        roles: Mapping[int, Role],
        code: Code,
        rules: RecurrentRules,
        only: int | None = None,
    ) -> Reference:
        after = advance(reference, name, event, roles, code, rules, only=only)
        self.happened.append(Happened(reference, name, event, roles, rules, only, after))
        return after

    def check_all(self, happened: Sequence[Happened], chooser: random.Random) -> None:
        """Of every event, for the blocks that take part and one more."""
        for before, name, event, roles, rules, only, after in happened:
            self.events[name] += 1
            another = chooser.randrange(len(before.blocks))
            for index, block in enumerate(before.blocks):
                if index in ((another, *roles) if only is None else (only,)):
                    old = RecurrentState(before.recurrent, before.ghosts, block.ghost)
                    new = RecurrentState(after.recurrent, after.ghosts, after.blocks[index].ghost)
                    self.check(name, old, rules, event, roles.get(index, NO_ROLE), new)

    def check(
        self,
        name: str,
        before: RecurrentState,
        rules: RecurrentRules,
        event: Any,
        role: Role,
        after: RecurrentState,
    ) -> None:
        premises: dict[Any, bool] = {}
        with recording(MODULES, premises):
            conditions = recurrent_guards.RECURRENT_CONTROL[name](before, rules, event, role)
            conditions |= recurrent_guards.recurrent_facts(name, before, rules, event, role)
            conditions |= recurrent_guards.host_conditions(
                name, before, rules, event, role, after.recurrent, CODE.decisions
            )
            conditions |= recurrent_invariants.recurrent_invariants(after, rules)
            if name in HOST_ARGUMENTS:
                conditions |= recurrent_effects.recurrent_effects(
                    name, before.recurrent, rules, event, after.recurrent
                )
            for claim in recurrent_theorems.RECURRENT_CLAIMS:
                if name in claim.events:
                    self.claims[claim.name] += 1
                    conditions[claim.name] = claim.predicate(before, rules, event, after, CODE.decisions)
        assert [key for key, holds in conditions.items() if not holds] == [], (name, before, event, role)
        self.antecedents |= set(met(self.known, premises))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    checks = Checked()
    monkeypatch.setattr(recurrent_walks, "advance", checks)
    yield checks


def random_walk(checked: Checked, seed: int, num_moves: int) -> None:
    chooser = random.Random(seed)
    rules = RecurrentRules(chooser.randrange(0, 3), chooser.randrange(1, 4))
    bounds = Bounds(
        num_prompt_tokens=chooser.randrange(2, 6),
        max_num_tokens=14,
        max_num_steps_in_flight=chooser.randrange(1, 4),
        num_blocks=rules.num_speculative_tokens + chooser.randrange(2, 6),
        num_checkpoint_tokens=chooser.randrange(0, 4),
    )
    walk = Walk(rules, CODE, bounds)
    reference = new_reference(bounds.num_prompt_tokens, bounds.num_blocks)
    for _ in range(num_moves):
        options = []
        checked.happened.clear()
        for label, after in moves(reference, walk):
            options.append((label, after, list(checked.happened)))
            checked.happened.clear()
        if not options:
            return
        rare = ("leave", "fail", "finish")
        weights = [1 if label.startswith(rare) else 6 for label, _, _ in options]
        _, reference, happened = chooser.choices(options, weights)[0]
        checked.check_all(happened, chooser)


def test_every_claim_holds_on_integers_and_every_antecedent_is_met(checked: Checked) -> None:
    for seed in range(60):
        random_walk(checked, seed, 60)
    assert set(checked.events) >= set(RECURRENT_EVENTS) - {"evict", "copy_done"}
    assert min(checked.claims[claim.name] for claim in recurrent_theorems.RECURRENT_CLAIMS) > 20
    sites = {call.site.name for call in checked.known.values()}
    assert len(sites) > 30
    assert sites - checked.antecedents == set()


def test_a_wrong_effect_would_be_noticed(checked: Checked) -> None:
    before = RecurrentState(NO_STATE, *_idle())
    after = before._replace(recurrent=before.recurrent._replace(num_published_tokens=1))
    with pytest.raises(AssertionError, match="holds_state"):
        checked.check("leave", before, RecurrentRules(0, 1), Leave(0), NO_ROLE, after)


def _idle() -> tuple[Any, Any]:
    reference = new_reference(1, 1)
    return reference.ghosts, reference.blocks[0].ghost
