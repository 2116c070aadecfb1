"""One call of a pool primitive, with everything symbolic: before, after, what it requires, what it accessed.

Blocks, chains, block size, owners and content are arbitrary. The pool moves by its own source
(`pool_code`); the ghosts move by the specification right after each primitive, also inside `own_copy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import z3

from draftproof.proofs.pool_code import CHAIN, Code
from draftproof.proofs.symbolic_arrays import Access, SymbolicArray, symbolic_array
from draftproof.proofs.terms import function, integer
from draftproof.spec import pool_ghosts
from draftproof.spec.algebra import both
from draftproof.spec.pool import Contents, Ghosts, Pool, PoolState, Sizes
from draftproof.spec.pool_calls import REQUIREMENTS, Call

SIZES = Sizes(integer("num_blocks"), integer("num_chains"), integer("block_size"))
CONTENTS = Contents(
    length=function("content_length", 1),
    token=function("content_token", 2),
    digest_first=function("content_digest_first", 3),
    digest_second=function("content_digest_second", 3),
    chain=CHAIN,
)
FIRST, SECOND = integer("first_index"), integer("second_index")
"""The arbitrary indices that a goal speaks about: a block, and another block, a position or an offset."""


class Setting(NamedTuple):
    """A primitive between two states."""

    before: PoolState
    after: PoolState
    call: Call
    requires: Callable[[Any], dict[str, Any]]
    """What the caller sees to, for one offset."""
    accesses: list[Access]


def symbolic_state(prefix: str = "") -> PoolState:
    """Any arrays and any ghosts; states with different prefixes have nothing in common but sizes."""
    num_blocks, num_chains, block_size = SIZES
    num_cells, num_nodes = num_blocks + 1, num_blocks + 1 + num_chains
    shapes = {
        "num_free_blocks": (1,),
        "previous_in_chain": (num_nodes,),
        "next_in_chain": (num_nodes,),
        "token_ids": (num_cells, block_size),
    }
    pool = [
        symbolic_array(field, *shapes.get(field, (num_cells,)), prefix=f"{prefix}pool.")
        for field in Pool._fields
    ]
    ghosts = [
        symbolic_array(field, dimensions=2 if field == "handle_at" else 1, prefix=f"{prefix}ghost.")
        for field in Ghosts._fields
    ]
    return PoolState(Pool(*pool), Ghosts(*ghosts), SIZES, CONTENTS)


def copied(state: PoolState) -> PoolState:
    """A state of its own with the same content."""
    return state._replace(
        pool=Pool(*[array.copy() for array in state.pool]),
        ghosts=Ghosts(*[array.copy() for array in state.ghosts]),
    )


def watched(pool: Pool, accesses: list[Access]) -> Pool:
    """The same arrays; accesses through this view are noted."""
    arrays: list[SymbolicArray] = list(pool)
    return Pool(*[array.watched(accesses) for array in arrays])


def symbolic_call() -> Call:
    """Any arguments."""
    return Call(
        *[
            z3.Bool(f"call.{field}") if field == "condition" else integer(f"call.{field}")
            for field in Call._fields
        ]
    )


class _Run:
    """The primitives with their ghosts, on one state."""

    def __init__(self, state: PoolState, call: Call, code: Code, accesses: list[Access]) -> None:
        self.state, self.call, self.code = state, call, dict(code)
        self.pool = watched(state.pool, accesses)

    def take(self, handle: Any, condition: Any) -> Any:
        block = self.code["take"](self.pool, condition)
        pool_ghosts.left_free_list(self.state, block, block != 0)
        pool_ghosts.gained_owner(self.state, handle, block, block != 0)
        return block

    def acquire(self) -> None:
        call, state = self.call, self.state
        was_free = both(call.condition, state.pool.ref_count[call.block] == 0)
        self.code["acquire"](self.pool, call.block, call.condition)
        pool_ghosts.left_free_list(state, call.block, was_free)
        pool_ghosts.gained_owner(state, call.handle, call.block, call.condition)

    def release(self, block: Any, condition: Any) -> None:
        state = self.state
        was_published = state.pool.next_in_chain[block] != 0
        freed = both(condition, state.pool.ref_count[block] == 1)
        self.code["release"](self.pool, block, condition)
        pool_ghosts.lost_owner(state, self.call.handle, block, condition)
        pool_ghosts.joined_free_list(state, block, was_published, freed)

    def publish(self) -> None:
        call, state = self.call, self.state
        is_new = both(call.condition, state.pool.next_in_chain[call.block] == 0)
        self.code["publish"](self.pool, call.block, call.digest_first, call.digest_second, call.condition)
        parent = (call.parent_first, call.parent_second)
        pool_ghosts.was_published_as(state, call.block, parent, call.content, is_new)

    def own_copy(self) -> Any:
        """The code's own `take` and `release` bring their ghosts along."""
        source = self.code["own_copy"]
        namespace = source.__globals__
        names = {
            "take": lambda pool, condition: self.take(self.call.new_handle, condition),
            "release": lambda pool, block, condition: self.release(block, condition),
        }
        kept = {name: namespace[name] for name in names}
        namespace.update(names)
        try:
            return source(self.pool, self.call.block, self.call.num_kept, self.call.condition)
        finally:
            namespace.update(kept)

    def run(self, primitive: str) -> Any:
        call = self.call
        moves: dict[str, Callable[[], Any]] = {
            "take": lambda: self.take(call.handle, call.condition),
            "acquire": self.acquire,
            "release": lambda: self.release(call.block, call.condition),
            "publish": self.publish,
            "withdraw": lambda: self.code["withdraw"](self.pool, call.block, call.condition),
            "append": lambda: self.code["append"](self.pool, call.block, call.token, call.condition),
            "own_copy": self.own_copy,
        }
        return moves[primitive]()


def setting(primitive: str, code: Code) -> Setting:
    """The primitive's source run on an arbitrary state and call."""
    before, call = symbolic_state(), symbolic_call()
    after = copied(before)
    accesses: list[Access] = []
    result = _Run(after, call, code, accesses).run(primitive)
    returned = call._replace(result=result if result is not None else z3.IntVal(0))
    return Setting(
        before, after, returned, lambda offset: REQUIREMENTS[primitive](before, returned, offset), accesses
    )


def one_after_another(code: Code, *calls: tuple[str, Mapping[str, Any]]) -> Setting:
    """Several primitives on one state: each with the arbitrary call but for some arguments of its own.

    An argument is a term or the name of another argument. What the first call requires is required.
    """
    before, call = symbolic_state(), symbolic_call()
    after = copied(before)
    accesses: list[Access] = []
    result = None
    for primitive, arguments in calls:
        own = {
            name: getattr(call, value) if isinstance(value, str) else value
            for name, value in arguments.items()
        }
        result = _Run(after, call._replace(**own), code, accesses).run(primitive)
    returned = call._replace(result=result if result is not None else z3.IntVal(0))
    requires = REQUIREMENTS[calls[0][0]]
    return Setting(before, after, returned, lambda offset: requires(before, call, offset), accesses)
