"""Every invariant and every effect of the pool carries something, and what carries nothing is said to."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import z3

from draftproof.proofs import pool, pool_completeness, pool_needs
from draftproof.proofs.controls import decide_control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_needs import IN_PROOFS, NEEDED, RESTATED, STATEMENTS, TOGETHER
from draftproof.proofs.shared_solver import SharedSolver
from draftproof.proofs.solvers import ask_z3, model_solver
from draftproof.proofs.sources import built
from draftproof.spec.pool_calls import PRIMITIVES
from draftproof.spec.pool_effects import EFFECTS
from draftproof.spec.pool_invariants import INVARIANTS


def test_every_invariant_is_in_one_table() -> None:
    together = list(itertools.chain.from_iterable(TOGETHER))
    assert sorted([*NEEDED, *together, *STATEMENTS]) == sorted(INVARIANTS)
    assert sorted(IN_PROOFS) == sorted(together)


def test_without_an_invariant_the_named_claim_fails_in_a_small_pool() -> None:
    """All of them are controls of every run; here one of each kind."""
    controls = pool_needs.invariant_controls()
    assert len(controls) == len(NEEDED) + sum(map(len, TOGETHER.values()))
    names = ("null_block_stays_out", "stamps_are_bounded", "serials_are_bounded", "serials_differ_and_more")
    for control in controls:
        if control.name.split("/")[1].removeprefix("without_") in names:
            assert decide_control(control, solver=SharedSolver(model_solver([]))) == "refuted", control.name
        for claim in control.obligations:
            assert claim.name == "pool/" + control.name.split("/", 2)[2]


def without(claim: Obligation, invariant: str) -> list[Any]:
    left = {name: fact for name, fact in claim.hypotheses.items() if name.split(":")[1:2] != [invariant]}
    left = {name: fact for name, fact in left.items() if name.split(":")[-1] != invariant}
    assert len(left) < len(claim.hypotheses)
    return [*left.values(), z3.Not(claim.goal)]


@pytest.mark.parametrize("invariant", IN_PROOFS)
def test_without_an_order_of_a_list_the_named_claim_is_not_proved(invariant: str) -> None:
    path = IN_PROOFS[invariant]
    (claim,) = (one for one in built(f"pool/{path.split('/')[0]}") if one.name == f"pool/{path}")
    assert ask_z3([*claim.hypotheses.values(), z3.Not(claim.goal)]).verdict == "unsat"
    assert ask_z3(without(claim, invariant)).verdict == "sat"


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_every_cell_needs_some_effect_and_none_needs_one_that_is_said_again(primitive: str) -> None:
    facts, cells = pool_needs.effect_facts(primitive), pool_completeness.agreement(primitive)
    effects = [name for name, effect in EFFECTS.items() if primitive in effect.primitives]
    assert set(RESTATED[primitive]) <= set(effects)
    solver, opened = SharedSolver(model_solver([])), set()
    for effect in (name for name in effects if name not in RESTATED[primitive]):
        left = list(pool_needs.without_effect(facts, effect).values())
        verdicts = {cell: solver.ask([*left, z3.Not(goal)]).verdict for cell, goal in cells.items()}
        open_cells = {cell for cell, verdict in verdicts.items() if verdict == "sat"}
        assert open_cells, effect
        opened |= open_cells
    assert opened == set(cells)
    for effect in RESTATED[primitive]:
        assumed = pool_needs.without_effect(pool_completeness.hypotheses(primitive), effect)
        assert ask_z3([*assumed.values(), z3.Not(z3.And(list(cells.values())))]).verdict == "unsat", effect


def test_cells_are_those_of_every_array_and_the_result() -> None:
    fields = {claim.name.split("/")[-1] for claim in built("pool/take") if "/determines/" in claim.name}
    links = {claim.name.split("/")[-1] for claim in built("pool/links")}
    assert fields - {"published", "result"} | links == set(pool_completeness.results()[0][0].pool._fields)


def test_hits_must_be_acquired_before_anything_is_taken() -> None:
    (control,) = pool_needs.order_controls()
    assert decide_control(control, solver=SharedSolver(model_solver([]))) == "refuted"
    proved = {claim.name: claim for claim in built("pool/hits")}
    assert {"pool/hits/acquired_is_not_taken", "pool/hits/take_keeps_hits"} <= set(proved)


def test_every_subject_but_the_links_has_controls_of_its_own() -> None:
    for subject in pool.SUBJECTS:
        assert (f"pool/{subject}" in pool.CONTROLLED) == (subject != "links")
        assert subject == "links" or pool.controls(subject), subject
    links = [claim for claims in TOGETHER.values() for claim in claims if claim.startswith("links/")]
    assert sorted(f"pool/{claim}" for claim in links) == sorted(claim.name for claim in built("pool/links"))
