"""Are the facts that every proof uses about rounding to blocks true of the real rounding?

The proofs treat `floor_to_block` as unknown and add facts about it (`carrier_z3.floor_facts`). Here the
very same generators are applied to the real `(x / B) * B` with a symbolic block size, once; this is the
only place where the block size is multiplied.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.proofs.carrier_z3 import FLOOR, facts_of_one, facts_of_two, floor_facts
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer, integers

FACTS_OF_ONE: tuple[str, ...] = ("within_one_block_below", "zero_stays_zero", "negative_stays_negative")
FACTS_OF_TWO: tuple[str, ...] = ("order_is_kept", "a_block_has_one_floor", "a_block_less_is_whole")


def real_floor(tokens: Any, block_size: Any) -> Any:
    """Whole blocks of `tokens`, in tokens: what Python's `tokens // block_size * block_size` computes."""
    return (tokens / block_size) * block_size


def _claims(first: Any, second: Any, block_size: Any) -> dict[str, Any]:
    """Every fact about the floor that a proof may use, by name, about the real floor."""
    floor, other_floor = real_floor(first, block_size), real_floor(second, block_size)
    claims: dict[str, Any] = dict(zip(FACTS_OF_ONE, facts_of_one(first, block_size, floor), strict=True))
    facts = facts_of_two(first, floor, second, other_floor, block_size)
    claims |= dict(zip(FACTS_OF_TWO, facts, strict=True))
    claims["rounding_twice_is_rounding_once"] = real_floor(floor, block_size) == floor
    # The list that obligations really receive, so that a fact added there without a name here is proved too.
    definition = real_floor(z3.Var(0, z3.IntSort()), z3.Var(1, z3.IntSort()))
    used = floor_facts([FLOOR(first, block_size) == FLOOR(second, block_size)])
    claims["all_as_used"] = z3.And([z3.substitute_funs(fact, (FLOOR, definition)) for fact in used])
    # A machine computes the number of blocks on the way: it is no larger than the tokens (T11).
    quotient = first / block_size
    claims["number_of_blocks_within_tokens"] = z3.Implies(
        first >= 0, z3.And(quotient >= 0, quotient <= first)
    )
    return claims


def _obligations(group: str, hypotheses: dict[str, Any]) -> list[Obligation]:
    first, second, block_size = integers("first second block_size")
    return [
        Obligation(f"{group}/{name}", "axiom", "axioms", hypotheses, goal, group)
        for name, goal in _claims(first, second, block_size).items()
    ]


def obligations() -> list[Obligation]:
    """Each fact about the floor, for every block size of at least 1."""
    return _obligations("axioms/floor", {"block_size_at_least_1": integer("block_size") >= 1})


def controls() -> list[Control]:
    """The facts are about positive block sizes."""
    return [
        Control(
            "axioms/any_block_size",
            "The facts about the floor hold for any block size but 0.",
            "assumption",
            _obligations("axioms/any_block_size", {"block_size_not_0": integer("block_size") != 0}),
        )
    ]
