"""What do the loops around the pool's primitives achieve? Their invariants, proved on their bodies.

A scheduler withdraws every block on a list (`withdraw_all`, after a failed step), releases a request's blocks
from the last to the first (`release_all`), and acquires every hit before it takes a block (`hits`). The
body of each such loop is one call of a primitive, which is run here from its source; a round starts from any
state in which the pool's invariants and the loop's own hold. Entries that are no block are skipped by the
primitive's condition, as in the loops that run.

An invariant speaks about arbitrary places, so that it never needs a quantifier. That a loop visits all its
list, in that order, is not proved here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import Code, code
from draftproof.proofs.pool_instances import Facts
from draftproof.proofs.pool_proof import hypotheses
from draftproof.proofs.pool_setting import (
    FIRST,
    SECOND,
    Setting,
    one_after_another,
    setting,
    symbolic_state,
)
from draftproof.proofs.terms import function, integer
from draftproof.spec.pool import Pool, PoolState, is_free, is_published

ROUND, LOW, HIGH = integer("round"), integer("low_place"), integer("high_place")
"""The place that a round is about, and two arbitrary places of the list."""
TABLE: Any = function("table", 1)
"""The block at a place of a request's block table; 0 for none."""
LISTED: Any = z3.Function("listed", z3.IntSort(), z3.IntSort(), z3.BoolSort())
"""Whether the first so many entries of the list of blocks to withdraw contain a block."""
FREED: Any = z3.Function("freed", z3.IntSort(), z3.BoolSort())
"""Whether the round of a place freed a published block."""

LEFT_ALONE = tuple(field for field in Pool._fields if field not in ("previous_in_chain", "next_in_chain"))
"""The arrays that a withdrawal leaves alone, of every block."""


def _conditional(facts: Facts, condition: Any) -> Facts:
    """What a primitive requires is required of a block, not of an entry that is none."""
    return {
        name: z3.Implies(condition, fact) if name.startswith(("requires:", "lemma:")) else fact
        for name, fact in facts.items()
    }


def withdraw_all(used: Code) -> list[Obligation]:
    """After i rounds the first i blocks listed are not published; nothing else has changed, of any block.

    A look-up returns published blocks only (`look_up/sound`): it finds no listed block any more.
    """
    start, this = symbolic_state("start."), setting("withdraw", used)
    call = this.call

    def gone(rounds: Any, state: PoolState) -> Any:
        left = z3.And(is_published(start, FIRST), z3.Not(LISTED(rounds, FIRST)))
        return is_published(state, FIRST) == left

    def alone(state: PoolState) -> Any:
        return z3.And(
            [
                _cell(start.pool, field, FIRST, SECOND) == _cell(state.pool, field, FIRST, SECOND)
                for field in LEFT_ALONE
            ]
        )

    listed = z3.Or(LISTED(ROUND, FIRST), z3.And(call.condition, call.block == FIRST))
    facts = _conditional(hypotheses("index", this), call.condition) | {
        "list": LISTED(ROUND + 1, FIRST) == listed,
        "loop": z3.And(gone(ROUND, this.before), alone(this.before)),
    }
    return [
        _claim("withdraw_all/round/listed_are_gone", "P6", facts, gone(ROUND + 1, this.after)),
        _claim("withdraw_all/round/rest_is_left_alone", "P6", facts, alone(this.after)),
    ]


def _cell(pool: Pool, field: str, block: Any, offset: Any) -> Any:
    place = {"num_free_blocks": 0, "token_ids": (block, offset)}.get(field, block)
    return getattr(pool, field)[place]


def release_all(used: Code) -> list[Obligation]:
    """Of two blocks that the loop frees and that can still be hit, the later in the table is reused first.

    The round of a place releases its block; all higher places have had theirs.
    """
    this = setting("release", used)
    call, block = this.call, TABLE(ROUND)

    def waits(state: PoolState, place: Any, done: Any) -> Any:
        """A published block that was freed is free and published."""
        freed = z3.And(place >= done, FREED(place))
        return z3.Implies(freed, z3.And(is_free(state, TABLE(place)), is_published(state, TABLE(place))))

    def in_order(state: PoolState, done: Any) -> Any:
        stamp = state.ghosts.freed_stamp
        both_freed = z3.And(done <= LOW, FREED(LOW), FREED(HIGH))
        return z3.Implies(both_freed, stamp[TABLE(HIGH)] < stamp[TABLE(LOW)])

    places = z3.And(ROUND >= 0, LOW >= 0, HIGH > LOW)
    facts = _conditional(hypotheses("free_list", this), call.condition) | {
        "table": z3.And(call.block == block, call.condition == (block != 0), block >= 0),
        "places": z3.And(places, TABLE(LOW) == FIRST, TABLE(HIGH) == SECOND),
        "freed": FREED(ROUND)
        == z3.And(call.condition, this.before.pool.ref_count[block] == 1, is_published(this.before, block)),
        "loop": z3.And(
            *[waits(this.before, place, ROUND + 1) for place in (LOW, HIGH)],
            in_order(this.before, ROUND + 1),
        ),
    }
    waiting = z3.And([waits(this.after, place, ROUND) for place in (LOW, HIGH)])
    return [
        _claim("release_all/round/freed_wait", "P7", facts, waiting),
        _claim("release_all/round/tail_before_head", "P7", facts, in_order(this.after, ROUND)),
        _two_releases(used),
        _evicted_first(used),
    ]


def _two_releases(used: Code) -> Obligation:
    """A tail and then a head, both published and owned once: the free list ends with them, in that order."""
    this = one_after_another(used, ("release", {}), ("release", {"handle": "new_handle", "block": FIRST}))
    call, before, pool = this.call, this.before, this.before.pool
    tail, head = call.block, FIRST
    owns = before.ghosts.handle_block
    facts = hypotheses("free_list", this) | {
        "asked": call.condition,
        "other_owner": z3.And(call.handle != call.new_handle, owns[call.new_handle] == head),
        "blocks": z3.And(tail != head, *[pool.ref_count[block] == 1 for block in (tail, head)]),
        "published": z3.And([is_published(before, block) for block in (tail, head)]),
    }
    after = this.after.pool
    last_two = z3.And(after.next_free[tail] == head, after.next_free[head] == 0)
    return _claim("release_all/two_blocks", "P7", facts, last_two)


def _evicted_first(used: Code) -> Obligation:
    """While a block with a lower stamp is free, one with a higher stamp is not taken."""
    this = setting("take", used)
    stamp = this.before.ghosts.freed_stamp
    facts = hypotheses("free_list", this) | {
        "both_free": z3.And(is_free(this.before, FIRST), is_free(this.before, SECOND)),
        "stamps": stamp[FIRST] < stamp[SECOND],
    }
    return _claim("release_all/tail_is_evicted_first", "P7", facts, this.call.result != SECOND)


def hits(used: Code) -> list[Obligation]:
    """A block that was acquired is not taken, and stays published: not by one take, nor by any number.

    Held and published is what both loops keep: acquiring makes it so for a hit and keeps it for all others,
    and so does taking.
    """
    acquired, taken = setting("acquire", used), setting("take", used)

    def held(state: PoolState) -> Any:
        return z3.And(state.pool.ref_count[FIRST] >= 1, is_published(state, FIRST))

    asked = z3.And(acquired.call.condition, acquired.call.block == FIRST)
    hit = z3.Or(held(acquired.before), z3.And(asked, is_published(acquired.before, FIRST)))
    acquiring = _conditional(hypotheses("index", acquired), acquired.call.condition) | {"hit": hit}
    taking = hypotheses("index", taken) | {"hit": held(taken.before)}
    return [
        _claim("hits/acquire_keeps_hits", "P7", acquiring, held(acquired.after)),
        _claim("hits/take_keeps_hits", "P7", taking, z3.And(held(taken.after), taken.call.result != FIRST)),
        _acquired_then_taken(used),
    ]


def _acquired_then_taken(used: Code) -> Obligation:
    """`acquire(b)`, and then `take()` never returns b."""
    this = one_after_another(used, ("acquire", {}), ("take", {"handle": "new_handle"}))
    facts = hypotheses("free_list", this) | {"asked": this.call.condition}
    return _claim("hits/acquired_is_not_taken", "P7", facts, this.call.result != this.call.block)


def take_before_acquire() -> Obligation:
    """Too strong, and false: a hit that nobody has acquired yet survives a take."""
    this: Setting = setting("take", code())
    facts = hypotheses("index", this) | {"hit": is_published(this.before, FIRST)}
    return _claim("hits/take_before_acquire", "P7", facts, is_published(this.after, FIRST))


def _claim(path: str, theorem: str, assumed: Facts, goal: Any) -> Obligation:
    return Obligation(f"pool/{path}", "invariant", theorem, assumed, goal, f"pool/{path}")


LOOPS: dict[str, Callable[[Code], list[Obligation]]] = {
    "withdraw_all": withdraw_all,
    "release_all": release_all,
    "hits": hits,
}
"""What is claimed about each loop, given the pool's functions."""


def loop_obligations(loop: str, changes: Mapping[str, str] | None = None) -> list[Obligation]:
    """What is claimed about one loop; `changes` are texts to use instead of the running source (faults)."""
    return LOOPS[loop](code(changes))


def obligations() -> list[Obligation]:
    """All loops."""
    return [claim for loop in LOOPS for claim in loop_obligations(loop)]
