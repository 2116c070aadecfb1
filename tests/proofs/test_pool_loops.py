"""The loops of the scheduler have the bodies whose invariants are proved, and visit blocks in that order."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest
import z3

from draftproof.impl.scheduler import allocation, lifecycle
from draftproof.proofs import pool_loops, pool_mutants
from draftproof.proofs.pool_code import code
from draftproof.proofs.pool_loop_faults import LOOP_MUTANTS
from draftproof.proofs.sources import built

PRIMITIVES = {"take", "acquire", "release", "publish", "withdraw", "append", "own_copy"}

BODIES: tuple[tuple[ModuleType, str, str], ...] = (
    (allocation, "release_row", "release(state.pool, block, block != 0)"),
    (allocation, "take_over", "acquire(state.pool, block, block != 0)"),
    (allocation, "take_block", "take(state.pool, True)"),
    (lifecycle, "withdraw_block", "withdraw(state.pool, block, True)"),
    (lifecycle, "clear_cache", "withdraw(state.pool, block, True)"),
)
"""Where the loops stand, and the only call of a primitive in each."""


class WithoutCasts(ast.NodeTransformer):
    """`int(...)` and `wide(...)` say a type, not a value: both ways of running hold integers there."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func) in ("int", "wide") else node


def tree_of(module: ModuleType, function: str) -> ast.AST:
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(module, function))))
    return WithoutCasts().visit(tree)  # type: ignore[no-any-return]


def calls_in(tree: ast.AST) -> list[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if ast.unparse(call.func) in PRIMITIVES]


@pytest.mark.parametrize(("module", "function", "call"), BODIES, ids=[body[1] for body in BODIES])
def test_the_body_that_was_proved_is_the_body_that_runs(module: ModuleType, function: str, call: str) -> None:
    assert calls_in(tree_of(module, function)) == [call]


def test_a_table_is_released_from_its_end() -> None:
    loops = [node for node in ast.walk(tree_of(allocation, "release_row")) if isinstance(node, ast.For)]
    ranges = [ast.unparse(loop.iter) for loop in loops if calls_in(loop)]
    assert ranges[-1].endswith("- 1, -1, -1)")


def test_a_failed_step_withdraws_by_the_block() -> None:
    loops = [node for node in ast.walk(tree_of(lifecycle, "withdraw_step")) if isinstance(node, ast.For)]
    assert [ast.unparse(loop.body[0]) for loop in loops] == ["withdraw_block(state, batch.published[index])"]


@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_body_is_refuted_and_the_running_one_is_not(mutant: Any) -> None:
    broken = pool_mutants.named_claims(mutant)
    assert [claim.name for claim in broken] == [mutant.refuted_by]
    assert pool_mutants.refuting_claims(broken) == [mutant.refuted_by]
    running = [
        claim for claim in pool_mutants.claims_about(mutant.subject, {}) if claim.name == mutant.refuted_by
    ]
    assert pool_mutants.refuting_claims(running) == []


def test_every_claim_about_a_loop_has_a_fault_or_a_control() -> None:
    refuted = {mutant.refuted_by for mutant in LOOP_MUTANTS}
    # No code moves stamps; what the code must keep is `stamps_are_bounded` (`pool_needs.NEEDED`).
    refuted.add("pool/release_all/round/tail_before_head")
    assert refuted == {claim.name for loop in pool_loops.LOOPS for claim in built(f"pool/{loop}")}


def test_an_entry_that_is_no_block_changes_nothing() -> None:
    claims = {claim.name: claim for claim in pool_loops.withdraw_all(code())}
    facts = claims["pool/withdraw_all/round/rest_is_left_alone"].hypotheses
    assert z3.is_implies(facts["requires:block_exists"])
