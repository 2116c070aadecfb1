"""All states of tiny pools, on the compiled functions: every request reads exactly its own tokens' KV."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numba
import pytest

from draftproof.impl import pool
from draftproof.proofs.pool_explorer import Explored, explore
from draftproof.proofs.pool_moves import Functions, running_functions


class Bound(NamedTuple):
    """The pool, who uses it, and whether digests tell all prefixes apart."""

    num_blocks: int
    num_chains: int
    num_requests: int
    max_blocks: int
    injective: bool


WHOLE = (
    Bound(1, 1, 1, 2, True),
    Bound(2, 1, 2, 2, True),
    Bound(2, 2, 2, 2, False),
    Bound(3, 2, 2, 1, True),
)
"""Pools small enough to visit all of their states."""
PARTLY = Bound(3, 2, 2, 2, True)
MAX_STATES = 40_000


def test_every_state_of_the_smallest_pools() -> None:
    found = [explore(*bound) for bound in WHOLE]
    assert [one.complaint for one in found] == [""] * len(WHOLE)
    assert all(one.complete for one in found)
    assert sum(one.states for one in found) >= 60_000


@pytest.mark.parametrize("injective", [True, False])
def test_the_first_states_of_a_larger_pool(injective: bool) -> None:
    found = explore(*PARTLY._replace(injective=injective), max_states=MAX_STATES)
    assert found.complaint == ""
    assert found.states >= MAX_STATES and not found.complete


def faulty(name: str, before: str, after: str) -> Functions:
    """The running functions, one of them compiled from a changed text."""
    text = inspect.getsource(getattr(pool, name))
    assert before in text
    namespace = dict(vars(pool))
    exec(compile(text.replace(before, after), f"<{name}>", "exec"), namespace)
    changed: Any = numba.njit(namespace[name])
    return running_functions()._replace(**{name: changed})


def test_a_fault_in_the_compiled_functions_is_found() -> None:
    stays_findable = faulty("take", "withdraw(pool, block, found)", "pass")
    found: Explored = explore(*Bound(2, 1, 2, 2, True), code=stays_findable)
    assert found.complaint.startswith("a published block is not what its digest says")
    assert not found.complete
