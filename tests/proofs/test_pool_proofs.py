"""The pool's proofs: everything is proved, the proofs are about something, and what is wrong is refuted."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import z3

from draftproof.impl import pool as running
from draftproof.proofs import pool, pool_loops, pool_mutants, pool_witnesses
from draftproof.proofs.obligations import Obligation, decide, satisfiable
from draftproof.proofs.pool_code import Loop, code, sources
from draftproof.proofs.pool_mutant import PoolMutant
from draftproof.proofs.pool_mutants import MUTANTS
from draftproof.proofs.shared_solver import decide_by_z3
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.sources import built, to_satisfy
from draftproof.proofs.symbolic_arrays import Access, symbolic_array
from draftproof.proofs.vacuity import met
from draftproof.spec import pool_ghosts
from draftproof.spec.pool import Contents, Ghosts, Pool, PoolState, Sizes
from draftproof.spec.pool_calls import PRIMITIVES
from draftproof.spec.pool_effects import EFFECTS
from draftproof.spec.pool_invariants import INVARIANTS, LAYERS
from draftproof.spec.pool_theorems import POOL_THEOREMS

FEWEST = dict.fromkeys(PRIMITIVES, 39) | {"look_up": 13, "links": 4, "withdraw_all": 2, "release_all": 4}
"""Claims about a subject: at least so many, or one."""


def claimed(subject: str) -> tuple[Obligation, ...]:
    return built(f"pool/{subject}")


def all_claims() -> list[Obligation]:
    return [claim for subject in pool.SUBJECTS for claim in claimed(subject)]


@pytest.mark.parametrize("subject", pool.SUBJECTS)
def test_everything_is_proved_for_all_sizes(subject: str) -> None:
    verdicts = decide_by_z3(claimed(subject))
    assert len(verdicts) >= FEWEST.get(subject, 1)
    assert {(verdict.name, verdict.z3) for verdict in verdicts if verdict.outcome != "proved"} == set()
    assert {verdict.cvc5 for verdict in verdicts} == {"not asked"}


@pytest.mark.parametrize("subject", ["row_copy", "row_equal", "links", "release_all"])
def test_the_second_solver_reads_and_proves_the_same(subject: str) -> None:
    """The rest is asked of both in a full run of the proofs."""
    verdicts = {claim.name: decide(claim).outcome for claim in claimed(subject)}
    assert set(verdicts.values()) == {"proved"}


def test_names_are_unique_and_every_theorem_and_invariant_is_claimed() -> None:
    claims = all_claims()
    names = [claim.name for claim in claims]
    for subject in pool.SUBJECTS:
        assert {claim.name.split("/")[1] for claim in claimed(subject)} == {subject}
    assert len(names) == len(set(names))
    assert {claim.theorem for claim in claims} == set(POOL_THEOREMS)
    for primitive, invariant in itertools.product((*PRIMITIVES, "new_pool"), INVARIANTS):
        assert f"pool/{primitive}/invariant/{invariant}" in names
    for name, effect in EFFECTS.items():
        assert effect.primitives, name
        assert all(f"pool/{primitive}/effect/{name}" in names for primitive in effect.primitives)
    layered = [name for names_of in LAYERS.values() for name in names_of]
    assert sorted(layered) == sorted(INVARIANTS), "every invariant belongs to exactly one layer"


def test_every_array_that_a_primitive_touches_is_claimed_to_be_touched_inside() -> None:
    found = {claim.name.removeprefix("pool/") for claim in all_claims() if claim.kind == "memory"}
    assert "take/in_bounds/next_free" in found
    assert "own_copy/in_bounds/token_ids" in found
    assert "withdraw/in_bounds/ref_count" not in found


# ---- not vacuous


def test_states_worth_showing_exist_and_collisions_need_a_digest_that_is_not_injective() -> None:
    for name, facts in pool_witnesses.shown_states().items():
        assert satisfiable(facts), name
    assert ask_z3(list(pool_witnesses.colliding_with_an_injective_digest().values())).verdict == "unsat"


@pytest.mark.parametrize("subject", [*PRIMITIVES, "look_up", "links", *pool_loops.LOOPS])
def test_every_group_of_hypotheses_is_met_by_a_small_pool(subject: str) -> None:
    witnesses = pool.witnesses(subject)
    for claim in claimed(subject):
        facts = witnesses[claim.assumption_group]
        assert {name for name in claim.hypotheses if facts.get(name) is None} == set()
        assert all(
            facts[name].eq(fact) for name, fact in claim.hypotheses.items() if not isinstance(fact, bool)
        )
    asked = to_satisfy(f"pool/{subject}")
    assert len(asked) >= len({claim.assumption_group for claim in claimed(subject)})
    assert [group for group, is_met in met(asked).items() if not is_met] == []


def test_what_nothing_meets_is_not_met_whatever_was_met_before() -> None:
    number: Any = z3.Int("number")
    groups = {
        "some": {"positive": number > 0},
        "more": {"positive": number > 0, "small": number < 100},
        "none": {"positive": number > 0, "negative": number < 0},
        "false": {"false": False},
        "again": {"negative": number < 0},
    }
    assert met(groups) == {"some": True, "more": True, "none": False, "false": False, "again": True}


# ---- what is wrong is refuted


FIRST_MUTANTS = {mutant.subject: mutant for mutant in reversed(MUTANTS)}
"""One for each subject; all of them are controls of a full run."""


@pytest.mark.parametrize("mutant", FIRST_MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_is_refuted_by_a_claim_that_does_not_refute_the_running_code(mutant: PoolMutant) -> None:
    broken_claims = pool_mutants.named_claims(mutant)
    assert [claim.name for claim in broken_claims] == [mutant.refuted_by]
    assert pool_mutants.refuting_claims(broken_claims) == [mutant.refuted_by]
    claims = pool_mutants.claims_about(mutant.subject, {})
    assert pool_mutants.refuting_claims(c for c in claims if c.name == mutant.refuted_by) == []


def test_a_mutant_that_does_not_fit_the_source_is_an_error() -> None:
    misfit = MUTANTS[0]._replace(changes=(MUTANTS[0].changes[0]._replace(before="nowhere"),))
    with pytest.raises(ValueError, match="take has no 'nowhere'"):
        pool_mutants.changed(misfit)


def test_an_access_outside_an_array_is_refuted() -> None:
    size: Any = z3.Int("size")
    array = symbolic_array("cells", size)
    accesses: list[Access] = []
    watched = array.watched(accesses)
    assert watched[size - 1] is not None
    watched[size] = 1
    inside = [ask_z3([size >= 1, z3.Not(access.in_bounds)]).verdict == "unsat" for access in accesses]
    assert inside == [True, False]
    assert [access.array for access in accesses] == ["cells", "cells"]
    assert array[size] is not None and len(accesses) == 2, "the specification's own reads are not noted"


@pytest.mark.parametrize(
    "text",
    [
        "def f(n):\n    for i in range(n):\n        break",
        "def f(n):\n    while n:\n        return 1",
        "def f(n):\n    return n",
        "def f(n):\n    for i in range(n):\n        n = n\n    for i in range(n):\n        n = n",
    ],
)
def test_only_a_single_loop_left_at_its_test_is_cut(text: str) -> None:
    with pytest.raises(AssertionError):
        Loop(text, {})


def test_what_is_proved_is_what_runs() -> None:
    """The compiled-again text behaves as the module's functions do, on numbers."""
    run = code()
    assert set(sources()) <= {name for name in vars(running) if callable(getattr(running, name))}
    one, other = running.new_pool(3, 2, 2), running.new_pool(3, 2, 2)
    for used, arrays in ((run, one), (vars(running), other)):
        block = used["take"](arrays, True)
        used["append"](arrays, block, 7, True)
        used["release"](arrays, block, True)
    assert all(first.tobytes() == second.tobytes() for first, second in zip(one, other, strict=True))


# ---- the invariants hold where the proofs say, on numbers with real ghosts


class Total:
    """An array that reads as 0 outside, as the specification may read anywhere."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> int:
        indices = index if isinstance(index, tuple) else (index,)
        if all(0 <= one < size for one, size in zip(indices, self.array.shape, strict=True)):
            return int(self.array[index])
        return 0

    def __setitem__(self, index: Any, value: int) -> None:
        self.array[index] = value


NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE, NUM_HANDLES = 3, 2, 2, 5


def concrete_state() -> PoolState:
    """A new pool and its ghosts, as numbers; content is an index into a list of known contents."""
    known: list[tuple[int, tuple[int, ...]]] = [(content, (1, 1)[:content]) for content in range(3)]
    pool = running.new_pool(NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE)
    ghosts = {
        field: Total(np.zeros((8, 8) if field == "handle_at" else 8, np.int64)) for field in Ghosts._fields
    }
    ghosts["free_position"].array[:] = np.arange(8) - 1
    ghosts["free_at"].array[:] = np.arange(8) + 1
    ghosts["freed_stamp"].array[:] = np.arange(8)
    ghosts["highest_stamp"].array[0] = NUM_BLOCKS
    contents = Contents(
        length=lambda content: len(known[content][1]),
        token=lambda content, offset: 1,
        digest_first=lambda first, second, content: content,
        digest_second=lambda first, second, content: 5 * content,
        chain=lambda word: word % NUM_CHAINS,
    )
    return PoolState(
        Pool(*[Total(array) for array in pool]),
        Ghosts(**ghosts),
        Sizes(NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE),
        contents,
    )


def broken(state: PoolState) -> set[str]:
    """The invariants that do not hold at some index."""
    return {
        name
        for name, invariant in INVARIANTS.items()
        if not all(
            invariant.predicate(state, *indices)
            for indices in itertools.product(range(8), repeat=len(invariant.indices))
        )
    }


def test_invariants_hold_on_a_random_run_and_notice_damage() -> None:
    state, random = concrete_state(), np.random.default_rng(0)
    pool = Pool(*[array.array for array in state.pool])
    owner: dict[int, int] = {}
    assert broken(state) == set()
    done: dict[str, int] = dict.fromkeys(("take", "release", "publish", "withdraw"), 0)
    for _ in range(200):
        free_handles = [handle for handle in range(1, NUM_HANDLES) if handle not in owner]
        kind = str(random.choice(list(done)))
        if kind == "take" and free_handles:
            block = int(running.take(pool, True))
            if block:
                pool_ghosts.left_free_list(state, block, True)
                pool_ghosts.gained_owner(state, free_handles[0], block, True)
                owner[free_handles[0]] = block
                for _ in range(int(random.integers(0, BLOCK_SIZE + 1))):
                    running.append(pool, block, 1, True)
        elif kind == "withdraw":
            running.withdraw(pool, int(random.integers(1, NUM_BLOCKS + 1)), True)
        elif owner:
            handle = int(random.choice(list(owner)))
            block = owner[handle]
            if kind == "release":
                published = bool(running.published(pool, block))
                freed = bool(pool.ref_count[block] == 1)
                running.release(pool, block, True)
                pool_ghosts.lost_owner(state, handle, block, True)
                pool_ghosts.joined_free_list(state, block, published, freed)
                del owner[handle]
            elif not running.published(pool, block):
                content = int(pool.num_tokens[block])
                running.publish(pool, block, content, 5 * content, True)
                pool_ghosts.was_published_as(state, block, (0, 0), content, True)
        done[kind] += 1
        assert broken(state) == set()
    assert min(done.values()) > 20
    pool.next_free[0] = 0 if pool.next_free[0] else 1
    assert "free_list_is_a_ring" in broken(state)
