"""Can the hypotheses of the pool's proofs be met, and do states occur that the theorems are about?

Each group of hypotheses gets a state of the small pool (`pool_bounded`), with a call that is not idle; z3
must find one.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.proofs import pool_completeness, pool_links, pool_loops, pool_proof, pool_search
from draftproof.proofs.pool_bounded import BLOCK_SIZE, in_the_pool, pinned, search_facts, small_pool
from draftproof.proofs.pool_code import code
from draftproof.proofs.pool_instances import Facts
from draftproof.proofs.pool_setting import CONTENTS, FIRST, setting, symbolic_call, symbolic_state
from draftproof.proofs.terms import function
from draftproof.spec.pool import is_block, is_published


def primitive_witnesses(primitive: str) -> dict[str, Facts]:
    """For each layer of a primitive a small pool that meets its hypotheses, and a call that is not idle."""
    this = setting(primitive, code())
    small = pinned(this) | in_the_pool() | {"asked": this.call.condition}
    return {f"pool/{primitive}/call": small} | {
        f"pool/{primitive}/{layer}": small | pool_proof.hypotheses(layer, this) for layer in pool_proof.USED
    }


def search_witnesses() -> dict[str, Facts]:
    """For each step of the search a small pool in which it is taken, and states worth showing."""
    groups = {claim.assumption_group: claim.hypotheses for claim in pool_search.obligations()}
    return {group: search_facts() | facts for group, facts in groups.items()} | shown_states()


def completeness_witnesses(primitive: str) -> dict[str, Facts]:
    """Two results of a call: the running code's result is one, so two that are equal exist."""
    this, group = setting(primitive, code()), f"pool/{primitive}/determines"
    asked = in_the_pool() | {"asked": this.call.condition}
    return {group: pinned(this) | asked | pool_completeness.hypotheses(primitive)}


def link_witnesses() -> dict[str, Facts]:
    """Two pools that agree in all but their links, with a block in the list whose neighbour is one, too."""
    one, _ = pool_links.pools()
    found = {}
    for claim in pool_links.obligations():
        layer = claim.assumption_group.rpartition("/")[2]
        neighbour = getattr(one.pool, pool_links.LISTS[layer].following)[FIRST]
        shown = [is_block(one, block) for block in (FIRST, neighbour)]
        found[claim.assumption_group] = claim.hypotheses | {
            "shown": z3.And(pool_links.LISTS[layer].belongs(one, FIRST), *shown)
        }
    return found


def loop_witnesses(loop: str) -> dict[str, Facts]:
    """A round at work: of two places, the higher has had its block freed and the lower's is freed now."""
    call, place, start = symbolic_call(), pool_loops, symbolic_state("start.")
    at_work: Facts = {"asked": call.condition}
    if loop == "withdraw_all":
        states = (start, symbolic_state())
        at_work["one_more"] = z3.And([is_published(state, call.block) for state in states])
    found = {}
    for claim in pool_loops.loop_obligations(loop):
        facts = small_pool() | in_the_pool() | at_work | claim.hypotheses
        if "/round/" in claim.name and loop == "release_all":
            freed = z3.And([place.FREED(one) for one in (place.LOW, place.HIGH)])
            facts["two_freed"] = z3.And(place.ROUND == place.LOW, freed)
        found[claim.assumption_group] = facts
    return found


def shown_states() -> dict[str, Facts]:
    """States that must be possible: without them the theorems would be about less than they seem."""
    state = symbolic_state()
    one: Any = z3.IntVal(1)
    two: Any = z3.IntVal(2)
    pool = state.pool
    facts = small_pool()
    both_published = z3.And(is_published(state, one), is_published(state, two))
    twins = z3.And(
        both_published,
        pool.digest_first[one] == pool.digest_first[two],
        pool.digest_second[one] == pool.digest_second[two],
    )
    full = z3.And(pool.num_tokens[one] == BLOCK_SIZE, pool.num_tokens[two] == BLOCK_SIZE)
    other_tokens = z3.And(twins, full, pool.token_ids[one, 0] != pool.token_ids[two, 0])
    shown = {
        "duplicates_one_free_one_held": z3.And(twins, pool.ref_count[one] == 0, pool.ref_count[two] == 1),
        "one_digest_other_tokens": other_tokens,
        "published_partial_tail": z3.And(both_published, pool.num_tokens[one] == 1),
        "shared_and_not_published": z3.And(pool.ref_count[one] == 2, pool.next_in_chain[one] == 0),
    }
    return {f"pool/shown/{name}": facts | {"shown": fact} for name, fact in shown.items()}


def colliding_with_an_injective_digest() -> Facts:
    """One digest for other tokens is impossible once the digest is injective: must be unsatisfiable."""
    ghosts = symbolic_state().ghosts
    inverses = [function(f"undone_{index}", 2) for index in range(3)]
    facts = shown_states()["pool/shown/one_digest_other_tokens"]
    for block in (1, 2):
        place = (ghosts.parent_first[block], ghosts.parent_second[block], ghosts.content[block])
        digest = CONTENTS.digest_first(*place), CONTENTS.digest_second(*place)
        facts[f"injective:{block}"] = z3.And(
            [inverse(*digest) == value for inverse, value in zip(inverses, place, strict=True)]
        )
    return facts
