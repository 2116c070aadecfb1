"""Does a block that is published hold the tokens of its request? The loop that fills it, by its invariant.

`fill_block` writes a request's tokens into an empty block of the pool, then their number; `publish_block`
publishes it. The loop and the write behind it are cut from their text: after i rounds the block holds the
first i tokens of its place in the request, in order, and nothing else in the pool has changed. A loop of
`append`s, from its own source, is proved to get to the same state, and what each of them requires is proved
to hold if the block is its request's alone at the start; `append` is a primitive of the pool that keeps all
its invariants, so filling keeps them too. At the end the block meets what `publish` asks of the
content it is published as, whatever that content is, if its tokens are the request's. Any numbers of rows,
blocks and tokens, any block size.

The loop runs only if the block is empty and not published. That such a block in a request's table has no
other owner is assumed here: it was taken for the request, and nobody finds what is not published. That a
block with tokens in it holds the same ones is not proved here: nobody else writes any, and the debug mode's
sweep compares them.
"""

from __future__ import annotations

import ast
import textwrap
from types import SimpleNamespace
from typing import Any, NamedTuple

import z3

from draftproof.impl.scheduler import prefix_cache
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import Loop, code, sources
from draftproof.proofs.pool_instances import Facts, size_facts
from draftproof.proofs.pool_setting import (
    CONTENTS,
    FIRST,
    SECOND,
    SIZES,
    copied,
    symbolic_call,
    symbolic_state,
    watched,
)
from draftproof.proofs.scheduler_code import Changes, replaced, tree_of
from draftproof.proofs.symbolic_arrays import Access, symbolic_array
from draftproof.proofs.terms import integers
from draftproof.spec.pool import Pool, PoolState, is_block, is_writable
from draftproof.spec.pool_calls import REQUIREMENTS

ROUND, ROW, INDEX, SIZE, COVERED = integers("round row block_index group_block_size num_covered")
NUM_ROWS, NUM_TOKENS = integers("num_rows num_row_tokens")
CALL = symbolic_call()
BLOCK = CALL.block
ZERO = z3.IntVal(0)

LEFT_ALONE = tuple(field for field in Pool._fields if field not in ("num_tokens", "token_ids"))
"""The arrays that the loop leaves alone, of every block."""


def _tokens() -> Any:
    """The tokens of all requests, by row and position."""
    return symbolic_array("request_tokens", NUM_ROWS, NUM_TOKENS, prefix="requests.")


def _token(offset: Any) -> Any:
    """The request's token at an offset in the block's place."""
    return _tokens()[ROW, INDEX * SIZE + offset]


def _cells(pool: Pool, fields: tuple[str, ...]) -> list[Any]:
    places = {"num_free_blocks": 0, "token_ids": (FIRST, SECOND)}
    return [getattr(pool, field)[places.get(field, FIRST)] for field in fields]


def _filled(start: PoolState, state: PoolState, tokens: Any, counted: Any) -> dict[str, Any]:
    """What holds once so many tokens are written and so many counted, of any block FIRST and any offset
    SECOND. Every cell of the pool is determined by it."""
    pool, offset = state.pool, SECOND
    others = zip(_cells(start.pool, Pool._fields), _cells(pool, Pool._fields), strict=True)
    rest = zip(_cells(start.pool, LEFT_ALONE), _cells(pool, LEFT_ALONE), strict=True)
    return {
        "counts_its_tokens": pool.num_tokens[BLOCK] == counted,
        "holds_the_requests_tokens": z3.Implies(
            z3.And(offset >= 0, tokens > offset), pool.token_ids[BLOCK, offset] == _token(offset)
        ),
        "what_is_behind_is_left_alone": z3.Implies(
            offset >= tokens, pool.token_ids[BLOCK, offset] == start.pool.token_ids[BLOCK, offset]
        ),
        "other_blocks_are_left_alone": z3.Implies(
            FIRST != BLOCK, z3.And([one == two for one, two in others])
        ),
        "only_tokens_are_written": z3.And([one == two for one, two in rest]),
    }


def _given() -> Facts:
    """What `fill_block` has seen to: an empty block of the pool, room in it, known tokens to fill it with."""
    start = symbolic_state("start.")
    return size_facts() | {
        "block": is_block(start, BLOCK),
        "row": z3.And(ROW >= 0, ROW < NUM_ROWS),
        "place": z3.And(INDEX >= 0, SIZE >= 1, COVERED >= SIZE, SIZES.block_size >= COVERED),
        "known": INDEX * SIZE + COVERED <= NUM_TOKENS,
        "empty": start.pool.num_tokens[BLOCK] == 0,
    }


def _reached(start: PoolState, state: PoolState, tokens: Any, counted: Any) -> Facts:
    """The state after so many rounds, as a hypothesis."""
    return {f"loop:{name}": fact for name, fact in _filled(start, state, tokens, counted).items()}


def _variables(pool: Pool, accesses: list[Access]) -> dict[str, Any]:
    """What the texts refer to."""
    return {
        "pool": watched(pool, accesses),
        "requests": SimpleNamespace(token_ids=_tokens().watched(accesses)),
        "block": BLOCK,
        "row": ROW,
        "index": INDEX,
        "size": SIZE,
        "covered": COVERED,
    }


def _inside(accesses: list[Access]) -> Any:
    return z3.And([access.in_bounds for access in accesses])


def _filling(changes: Changes) -> Loop:
    """What `fill_block` does with an empty block: the loop and what comes behind it."""
    tree = tree_of(prefix_cache.fill_block, changes)
    branches = [node.body for node in ast.walk(tree) if isinstance(node, ast.If)]
    (branch,) = [body for body in branches if isinstance(body[0], ast.For)]
    text = "\n".join(ast.unparse(statement) for statement in branch)
    return Loop(f"def filling():\n{textwrap.indent(text, '    ')}", code())


def obligations(changes: Changes = (), appended: Changes = ()) -> list[Obligation]:
    """The running code, and the same by appending; planted faults are changes of `fill_block` or `append`."""
    return [*_of_the_code(_filling(changes)), *_by_appending(appended), *_consequences()]


def _of_the_code(loop: Loop) -> list[Obligation]:
    """The loop's start, one round, its end; and the count that is written behind it."""
    start, before = symbolic_state("start."), symbolic_state()
    after, accesses = copied(before), list[Access]()
    variables = _variables(after.pool, accesses)
    bound = loop.bound(**variables)
    loop.body(offset=ROUND, **variables)
    ended, at_the_end = copied(before), list[Access]()
    loop.after(**_variables(ended.pool, at_the_end))
    running = _given() | {"round": z3.And(ROUND >= 0, bound > ROUND)} | _reached(start, before, ROUND, ZERO)
    written = _given() | _reached(start, before, COVERED, ZERO)
    return [
        *_claims("starts", _given(), _filled(start, start, ZERO, ZERO)),
        *_claims("round", running, _filled(start, after, ROUND + 1, ZERO)),
        _claim("round", "in_bounds", running, _inside(accesses)),
        _claim("ends", "after_all_covered_tokens", _given(), bound == COVERED),
        *_claims("counts", written, _filled(start, ended, COVERED, COVERED)),
        _claim("counts", "in_bounds", written, _inside(at_the_end)),
    ]


def _by_appending(appended: Changes) -> list[Obligation]:
    """A loop of `append`s, each of which keeps the pool's invariants, gets there too: it starts as the code
    does, and this is one round of it."""
    text = sources()["append"]
    for one, other in appended:
        text = replaced(text, one, other)
    start, before = symbolic_state("start."), symbolic_state()
    after, accesses = copied(before), list[Access]()
    variables = _variables(after.pool, accesses)
    code({"append": text})["append"](variables["pool"], BLOCK, _token(ROUND), True)
    running = _given() | {"round": z3.And(ROUND >= 0, COVERED > ROUND)}
    running |= _reached(start, before, ROUND, ROUND)
    stays = z3.Implies(is_writable(before, BLOCK), is_writable(after, BLOCK))
    return [
        *_claims("appends", running, _filled(start, after, ROUND + 1, ROUND + 1)),
        _claim("appends", "in_bounds", running, _inside(accesses)),
        _claim("appends", "stays_writable", running, stays),
    ]


def _consequences() -> list[Obligation]:
    """There is room for every `append`; the end is one state, however it is reached; and `publish` may be
    asked for the block, of a content with the request's tokens."""
    start, ended, other = symbolic_state("start."), symbolic_state(), symbolic_state("other.")
    filled = _given() | _reached(start, ended, COVERED, COVERED)
    in_the_row = z3.And(SECOND >= 0, SIZES.block_size > SECOND)
    facts = [*_filled(start, other, COVERED, COVERED).values()]
    same = [
        one == two
        for one, two in zip(_cells(ended.pool, Pool._fields), _cells(other.pool, Pool._fields), strict=True)
    ]
    both_filled = filled | {f"other:{place}": fact for place, fact in enumerate(facts)}
    both_filled |= {"in_the_row": in_the_row}
    content = z3.And(
        CONTENTS.length(CALL.content) == COVERED, CONTENTS.token(CALL.content, SECOND) == _token(SECOND)
    )
    asked = REQUIREMENTS["publish"](ended, CALL, SECOND)
    return [
        *_claims("may_be_appended_to", _begun(start, ended), REQUIREMENTS["append"](ended, CALL, SECOND)),
        _claim("ends_in_one_state", "every_cell", both_filled, z3.And(same)),
        *[
            _claim("may_be_published", name, filled | {"content": content}, asked[name])
            for name in ("length_is_of_the_content", "tokens_are_of_the_content")
        ],
    ]


def _begun(start: PoolState, state: PoolState) -> Facts:
    """So many tokens are appended, one is not yet, and at the start the block was its request's alone."""
    ghosts, handle = state.ghosts, CALL.handle
    reached = _reached(start, state, ROUND, ROUND)
    of_the_block = {f"{name}:block": z3.substitute(fact, (FIRST, BLOCK)) for name, fact in reached.items()}
    return (
        _given()
        | of_the_block
        | {
            "round": z3.And(ROUND >= 0, COVERED > ROUND),
            "its_requests": start.ghosts.handle_block[handle] == BLOCK,
            "alone": is_writable(start, BLOCK),
            "owners_stay": ghosts.handle_block[handle] == start.ghosts.handle_block[handle],
        }
    )


def _claims(part: str, facts: Facts, goals: dict[str, Any]) -> list[Obligation]:
    return [_claim(part, name, facts, goal) for name, goal in goals.items()]


def _claim(part: str, name: str, facts: Facts, goal: Any) -> Obligation:
    path = f"pool/fill_block/{part}"
    theorem = "memory" if name == "in_bounds" else "P6"
    return Obligation(f"{path}/{name}", "invariant", theorem, facts, goal, path)


# ---- what is wrong ----------------------------------------------------------------------------------------


class FillFault(NamedTuple):
    """A change of `fill_block` or of `append`, and the claims that must be refuted."""

    name: str
    sentence: str
    changes: tuple[tuple[str, str], ...]
    appended: tuple[tuple[str, str], ...]
    refuted_by: tuple[str, ...]


_PLACE, _COUNT = "index * size + offset", "put(pool.num_tokens, block, pool.num_tokens[block] + 1, condition)"
_TOTAL, _CELL = "put(pool.num_tokens, block, covered, True)", "(block, offset)"
_HOLDS = "round/holds_the_requests_tokens"
_APPENDED = "(block, pool.num_tokens[block])"

FAULTS: tuple[FillFault, ...] = (
    FillFault(
        "every_block_holds_the_first_tokens",
        "A block is filled from the request's beginning, whichever block it is.",
        ((_PLACE, "offset"),),
        (),
        (_HOLDS,),
    ),
    FillFault(
        "blocks_overlap",
        "A block's place is counted in tokens, not in blocks.",
        ((_PLACE, "index + offset"),),
        (),
        (_HOLDS,),
    ),
    FillFault(
        "block_is_one_token_late",
        "A block is filled from its second token on.",
        ((_PLACE, f"{_PLACE} + 1"),),
        (),
        (_HOLDS, "round/in_bounds"),
    ),
    FillFault(
        "looked_ahead_tokens_are_left_out",
        "A block whose digest looks ahead holds only its own tokens.",
        (("range(covered)", "range(size)"),),
        (),
        ("ends/after_all_covered_tokens",),
    ),
    FillFault(
        "tokens_are_written_one_place_on",
        "A block's first place stays empty.",
        ((_CELL, "(block, offset + 1)"),),
        (),
        (_HOLDS, "round/what_is_behind_is_left_alone", "round/in_bounds"),
    ),
    FillFault(
        "another_block_is_filled",
        "The tokens go to the block with the row's number.",
        ((_CELL, "(row, offset)"),),
        (),
        (_HOLDS, "round/other_blocks_are_left_alone", "round/in_bounds"),
    ),
    FillFault(
        "tokens_are_written_where_their_number_is",
        "A token is taken for the number of tokens.",
        ((f"put(pool.token_ids, {_CELL}, ", "put(pool.num_tokens, block, "),),
        (),
        ("round/counts_its_tokens", _HOLDS),
    ),
    FillFault(
        "tokens_are_written_where_its_owners_are",
        "A token is taken for the number of owners.",
        ((f"put(pool.token_ids, {_CELL}, ", "put(pool.ref_count, block, "),),
        (),
        (_HOLDS, "round/only_tokens_are_written"),
    ),
    FillFault(
        "only_its_own_tokens_are_counted",
        "Tokens that the digest looks ahead to are written and not counted.",
        ((_TOTAL, "put(pool.num_tokens, block, size, True)"),),
        (),
        ("counts/counts_its_tokens",),
    ),
    FillFault(
        "another_block_is_counted",
        "The number of tokens goes to the block with the row's number.",
        ((_TOTAL, "put(pool.num_tokens, row, covered, True)"),),
        (),
        ("counts/counts_its_tokens", "counts/other_blocks_are_left_alone", "counts/in_bounds"),
    ),
    FillFault(
        "number_is_a_token",
        "The number of tokens is written as the first token.",
        ((_TOTAL, "put(pool.token_ids, (block, 0), covered, True)"),),
        (),
        ("counts/counts_its_tokens", "counts/holds_the_requests_tokens"),
    ),
    FillFault(
        "number_is_written_behind_the_tokens",
        "The number of tokens is written as one token more.",
        ((_TOTAL, "put(pool.token_ids, (block, covered), covered, True)"),),
        (),
        ("counts/counts_its_tokens", "counts/what_is_behind_is_left_alone", "counts/in_bounds"),
    ),
    FillFault(
        "filled_block_has_no_owner",
        "A block that has been filled belongs to nobody.",
        ((_TOTAL, f"{_TOTAL}; put(pool.ref_count, block, 0, True)"),),
        (),
        ("counts/only_tokens_are_written",),
    ),
    FillFault(
        "appended_token_is_not_counted",
        "A token that is appended is not counted.",
        (),
        ((_COUNT, "pass"),),
        ("appends/counts_its_tokens",),
    ),
    FillFault(
        "last_token_is_overwritten",
        "A token is appended where the last one is.",
        (),
        ((_APPENDED, "(block, pool.num_tokens[block] - 1)"),),
        ("appends/holds_the_requests_tokens", "appends/in_bounds"),
    ),
    FillFault(
        "token_is_appended_one_place_on",
        "A token is appended behind the place that is next.",
        (),
        ((_APPENDED, "(block, pool.num_tokens[block] + 1)"),),
        (
            "appends/holds_the_requests_tokens",
            "appends/what_is_behind_is_left_alone",
            "appends/in_bounds",
        ),
    ),
    FillFault(
        "token_is_appended_to_the_null_block",
        "A token goes to the null block.",
        (),
        ((_APPENDED, "(0, pool.num_tokens[block])"),),
        ("appends/holds_the_requests_tokens", "appends/other_blocks_are_left_alone"),
    ),
    FillFault(
        "token_brings_an_owner",
        "A block has one owner more for each token.",
        (),
        ((_COUNT, f"{_COUNT}; put(pool.ref_count, block, pool.ref_count[block] + 1, condition)"),),
        ("appends/only_tokens_are_written", "appends/stays_writable"),
    ),
)


def claims_with(fault: FillFault) -> list[Obligation]:
    """Everything claimed, with the fault in the code."""
    return obligations(fault.changes, fault.appended)


def controls() -> list[Control]:
    """The named faults, by the claims that they name; and a block that was not empty."""
    found = [
        Control(
            f"pool/{fault.name}",
            fault.sentence,
            "statement",
            [claim for claim in claims_with(fault) if _path(claim) in fault.refuted_by],
        )
        for fault in FAULTS
    ]
    begun = [
        claim._replace(hypotheses={name: fact for name, fact in claim.hypotheses.items() if name != "empty"})
        for claim in obligations()
        if _path(claim).startswith("starts/")
    ]
    sentence = "What a block holds before it is filled does not matter."
    return [*found, Control("pool/filled_before", sentence, "assumption", begun)]


def _path(claim: Obligation) -> str:
    return claim.name.removeprefix("pool/fill_block/")
