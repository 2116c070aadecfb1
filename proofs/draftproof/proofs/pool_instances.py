"""The pool's invariants at chosen indices, as hypotheses: one template each, and substitutions in it.

Proofs use thousands of instances. Building each from the predicate takes Python far longer than z3 takes to
decide what they are for, so a predicate is called once for a state, on indices of its own, and every
instance is a substitution for those.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import z3

from draftproof.proofs.pool_code import CHAIN
from draftproof.proofs.pool_setting import SIZES, symbolic_state
from draftproof.proofs.terms import integer
from draftproof.spec.pool import PoolState
from draftproof.spec.pool_invariants import INVARIANTS

Facts = dict[str, Any]

INDICES = (integer("instance_first"), integer("instance_second"))
"""What a template speaks about; no state, call or goal mentions them."""


def everywhere_in(template: Any, ranges: Sequence[Iterable[Any]]) -> Any:
    """What a template says at every combination of values for its indices, one range for each."""
    places = itertools.product(*ranges)
    return z3.And([z3.substitute(template, *zip(INDICES, place, strict=False)) for place in places])


class Instances:
    """The invariants of one state."""

    def __init__(self, state: PoolState) -> None:
        self._templates = {
            name: invariant.predicate(state, *INDICES[: len(invariant.indices)])
            for name, invariant in INVARIANTS.items()
        }

    def over(self, name: str, ranges: Sequence[Iterable[Any]]) -> Any:
        """The named invariant at every combination of indices, one range for each."""
        return everywhere_in(self._templates[name], ranges)

    def everywhere(self, names: Iterable[str], terms: Sequence[Any]) -> Facts:
        """The named invariants at every combination of the terms."""
        return {
            f"invariant:{name}": self.over(name, [terms] * len(INVARIANTS[name].indices)) for name in names
        }


@functools.cache
def of_any_state() -> Instances:
    """The invariants of the arbitrary state before a call."""
    return Instances(symbolic_state())


def size_facts() -> Facts:
    """Every size is at least 1."""
    return {f"size:{name}": size >= 1 for name, size in SIZES._asdict().items()}


def chain_facts(words: Iterable[Any]) -> Any:
    """The contract of `low_bits` for some words."""
    return z3.And([z3.And(CHAIN(word) >= 0, CHAIN(word) < SIZES.num_chains) for word in words])
