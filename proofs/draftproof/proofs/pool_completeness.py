"""Do the effects of the pool's primitives say everything? Two results that satisfy them agree in every cell.

Every cell that anybody can read, that is: owners and the count of free blocks; which blocks are published,
and under which digest; how many tokens a held or published block has, and which. Not determined, because
nobody can read it before it is written again: the number of tokens and the tokens of a block that is
neither held nor published, tokens at or above a block's number of tokens, and the links and the digest of
blocks that are in no list.

The links follow from all that, by the invariants (`pool_links`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_instances import INDICES, Facts, everywhere_in, of_any_state, size_facts
from draftproof.proofs.pool_setting import FIRST, SECOND, symbolic_call, symbolic_state
from draftproof.proofs.terms import integer
from draftproof.spec.pool import PoolState, is_block, is_published
from draftproof.spec.pool_calls import PRIMITIVES, REQUIREMENTS, Call
from draftproof.spec.pool_effects import EFFECTS

RESULTS = ("first", "second")
ZERO = z3.IntVal(0)
RETURNS_A_BLOCK = ("take", "own_copy")

USED = ("null_block_stays_out", "stamps_differ", "rows_hold_their_tokens", "free_count_is_not_negative")
"""The invariants before a call that its completeness rests on."""


def results() -> tuple[tuple[PoolState, Call], ...]:
    """Two results of one call: states of which nothing is known, and what the primitive returned."""
    call = symbolic_call()
    return tuple(
        (symbolic_state(f"{name}."), call._replace(result=integer(f"{name}.result"))) for name in RESULTS
    )


def effect_facts(primitive: str, blocks: Sequence[Any], offsets: Sequence[Any]) -> Facts:
    """The primitive's effects on both results, at every block and offset given."""
    before = symbolic_state()
    return {
        f"{name}:{effect}": everywhere_in(one.predicate(before, after, call, *INDICES), (blocks, offsets))
        for name, (after, call) in zip(RESULTS, results(), strict=True)
        for effect, one in EFFECTS.items()
        if primitive in one.primitives
    }


def agreement(primitive: str) -> Facts:
    """By cell: the two results have the same value there, for one arbitrary block and offset."""
    (one, one_call), (two, two_call) = results()
    is_any, published = is_block(one, FIRST), is_published(one, FIRST)
    readable = z3.And(is_any, z3.Or(one.pool.ref_count[FIRST] > 0, published))
    written = z3.And(readable, SECOND >= 0, one.pool.num_tokens[FIRST] > SECOND)

    def same(field: str, *index: Any) -> Any:
        place = index[0] if len(index) == 1 else index
        return getattr(one.pool, field)[place] == getattr(two.pool, field)[place]

    found = {
        "ref_count": z3.Implies(is_any, same("ref_count", FIRST)),
        "num_free_blocks": same("num_free_blocks", ZERO),
        "published": z3.Implies(is_any, published == is_published(two, FIRST)),
        "digest_first": z3.Implies(published, same("digest_first", FIRST)),
        "digest_second": z3.Implies(published, same("digest_second", FIRST)),
        "num_tokens": z3.Implies(readable, same("num_tokens", FIRST)),
        "token_ids": z3.Implies(written, same("token_ids", FIRST, SECOND)),
    }
    if primitive in RETURNS_A_BLOCK:
        found["result"] = one_call.result == two_call.result
    return found


def hypotheses(primitive: str) -> Facts:
    """The call, the state before it, and both results' effects."""
    before, call = symbolic_state(), symbolic_call()
    terms = [ZERO, call.block, FIRST, *(returned.result for _, returned in results())]
    facts = size_facts() | of_any_state().everywhere(USED, terms)
    facts |= {
        f"requires:{name}": fact for name, fact in REQUIREMENTS[primitive](before, call, SECOND).items()
    }
    if "requires:handle_owns_block" in facts:
        # Proved in the layer of owners (`owned_has_an_owner`).
        facts["lemma:owned_has_an_owner"] = before.pool.ref_count[call.block] >= 1
    return facts | effect_facts(primitive, terms, [ZERO, SECOND])


def primitive_obligations(primitive: str) -> list[Obligation]:
    """The effects of one primitive determine every cell that can be read."""
    facts, group = hypotheses(primitive), f"pool/{primitive}/determines"
    return [
        Obligation(f"{group}/{cell}", "completeness", "determined", facts, goal, group)
        for cell, goal in agreement(primitive).items()
    ]


def obligations() -> list[Obligation]:
    """All primitives."""
    return [claim for primitive in PRIMITIVES for claim in primitive_obligations(primitive)]
