"""A block that is published holds the tokens of its request: the loop that fills it, and what breaks it."""

from __future__ import annotations

import ast

import pytest

from draftproof.impl.scheduler.prefix_cache import fill_block, publish_row
from draftproof.impl.scheduler.step import fill_step, publish_step
from draftproof.proofs import pool_fill
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.obligations import decide, formulas, satisfiable
from draftproof.proofs.pool_fill import FAULTS, FillFault
from draftproof.proofs.scheduler_code import tree_of
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.sources import to_satisfy


def test_both_solvers_prove_all_and_nothing_is_vacuous() -> None:
    claims = pool_fill.obligations()
    assert [claim.name for claim in claims if decide(claim).outcome != "proved"] == []
    assert [group for group, facts in to_satisfy("pool/fill_block").items() if not satisfiable(facts)] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refuted_by_the_claims_that_it_names(fault: FillFault) -> None:
    verdicts = {
        claim.name.removeprefix("pool/fill_block/"): ask_z3(formulas(claim)).verdict
        for claim in pool_fill.claims_with(fault)
    }
    assert set(verdicts.values()) <= {"sat", "unsat"}
    assert tuple(name for name, verdict in verdicts.items() if verdict == "sat") == fault.refuted_by


@pytest.mark.parametrize("control", pool_fill.controls(), ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


def test_every_claim_about_the_code_is_refuted_by_some_fault() -> None:
    refuted = {name for fault in FAULTS for name in fault.refuted_by}
    about_code = {
        name
        for claim in pool_fill.obligations()
        if (name := claim.name.removeprefix("pool/fill_block/")).startswith(("round/", "counts/", "appends/"))
    }
    assert refuted == about_code | {"ends/after_all_covered_tokens"}


def test_only_an_empty_block_is_filled_and_what_was_filled_is_published() -> None:
    tree = tree_of(fill_block)
    (guarded,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and isinstance(node.body[0], ast.For)
    ]
    assert ast.unparse(guarded.test) == "pool.num_tokens[block] == 0"
    assert not guarded.orelse
    written = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "put"
    ]
    assert written == [
        "put(pool.num_tokens, block, covered, True)",
        "put(pool.token_ids, (block, offset), requests.token_ids[row, index * size + offset], True)",
    ]
    for publisher in (publish_row, publish_step):
        assert "publish_block(" in ast.unparse(tree_of(publisher))
    assert "fill_block(state, row, group, index)" in ast.unparse(tree_of(publish_row))
    assert "fill_block(state, row, group, index)" in ast.unparse(tree_of(fill_step))
