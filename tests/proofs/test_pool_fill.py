"""A block that is published holds the tokens of its request: the loop that fills it, and what breaks it."""

from __future__ import annotations

import ast

import pytest

from draftproof.impl.scheduler.prefix_cache import publish_block
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
    assert [
        group for group, facts in to_satisfy("pool/publish_block").items() if not satisfiable(facts)
    ] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refuted_by_the_claims_that_it_names(fault: FillFault) -> None:
    verdicts = {
        claim.name.removeprefix("pool/publish_block/"): ask_z3(formulas(claim)).verdict
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
        claim.name.removeprefix("pool/publish_block/")
        for claim in pool_fill.obligations()
        if not claim.name.startswith(("pool/publish_block/starts/", "pool/publish_block/ends/"))
    }
    assert refuted == about_code | {"ends/after_all_covered_tokens"}


def test_only_an_empty_block_is_filled_and_what_was_filled_is_published() -> None:
    tree = tree_of(publish_block)
    (guarded,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and isinstance(node.body[0], ast.For)
    ]
    assert ast.unparse(guarded.test) == "pool.num_tokens[block] == 0"
    assert not guarded.orelse
    calls = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("append", "publish")
    ]
    assert calls == [
        "publish(pool, block, first, second, True)",
        "append(pool, block, requests.token_ids[row, index * size + offset], True)",
    ]
