"""Does a block that is published hold the tokens of its request? The loop that fills it, by its invariant.

`publish_block` writes a request's tokens into a block of the pool, one `append` each, and then publishes it.
The loop is cut from its text, and `append` runs from its own source: after i rounds the block holds the first
i tokens of its place in the request, in order, and nothing else in the pool has changed. So at the end the
block meets what `publish` asks of the content it is published as, whatever that content is, if its tokens are
the request's. Any numbers of rows, blocks and tokens, any block size.

The loop runs only if the block is empty. That a block with tokens in it holds the same ones is not proved
here: nobody else appends, and the debug mode's sweep compares them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import z3

from draftproof.impl.scheduler import prefix_cache
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_code import code, sources
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
from draftproof.proofs.scheduler_code import Changes, loop_with, replaced
from draftproof.proofs.symbolic_arrays import Access, symbolic_array
from draftproof.proofs.terms import integers
from draftproof.spec.pool import Pool, PoolState, is_block, is_writable
from draftproof.spec.pool_calls import REQUIREMENTS

ROUND, ROW, INDEX, SIZE, COVERED = integers("round row block_index group_block_size num_covered")
NUM_ROWS, NUM_TOKENS = integers("num_rows num_row_tokens")
CALL = symbolic_call()
BLOCK = CALL.block

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


def _filled(start: PoolState, state: PoolState, rounds: Any) -> dict[str, Any]:
    """What holds after so many rounds, of any block FIRST and any offset SECOND."""
    pool = state.pool
    of_the_block = z3.And(SECOND >= 0, rounds > SECOND)
    others = zip(_cells(start.pool, Pool._fields), _cells(pool, Pool._fields), strict=True)
    rest = zip(_cells(start.pool, LEFT_ALONE), _cells(pool, LEFT_ALONE), strict=True)
    return {
        "counts_its_tokens": pool.num_tokens[BLOCK] == rounds,
        "holds_the_requests_tokens": z3.Implies(
            of_the_block, pool.token_ids[BLOCK, SECOND] == _token(SECOND)
        ),
        "other_blocks_are_left_alone": z3.Implies(
            FIRST != BLOCK, z3.And([one == two for one, two in others])
        ),
        "only_tokens_are_written": z3.And([one == two for one, two in rest]),
    }


def _given() -> Facts:
    """What `publish_block` has seen to: a block of the pool, room in it, and known tokens to fill it with."""
    return size_facts() | {
        "block": is_block(symbolic_state("start."), BLOCK),
        "row": z3.And(ROW >= 0, ROW < NUM_ROWS),
        "place": z3.And(INDEX >= 0, SIZE >= 1, COVERED >= SIZE, SIZES.block_size >= COVERED),
        "known": INDEX * SIZE + COVERED <= NUM_TOKENS,
    }


def obligations(changes: Changes = (), appended: Changes = ()) -> list[Obligation]:
    """The loop's start, one round, its end; planted faults are changes of `publish_block`, or of `append`."""
    text = sources()["append"]
    for one, other in appended:
        text = replaced(text, one, other)
    loop = loop_with(prefix_cache.publish_block, "append", code({"append": text}), changes)
    start, before = symbolic_state("start."), symbolic_state()
    after, accesses = copied(before), list[Access]()
    tokens = _tokens().watched(accesses)
    variables: dict[str, Any] = {
        "pool": watched(after.pool, accesses),
        "requests": SimpleNamespace(token_ids=tokens),
        "block": BLOCK,
        "row": ROW,
        "index": INDEX,
        "size": SIZE,
        "covered": COVERED,
    }
    bound = loop.bound(**variables)
    loop.body(offset=ROUND, **variables)
    empty = _given() | {"empty": start.pool.num_tokens[BLOCK] == 0}
    inside = {"round": z3.And(ROUND >= 0, bound > ROUND)}
    kept = {f"loop:{name}": fact for name, fact in _filled(start, before, ROUND).items()}
    running = empty | inside | kept
    found = [
        _claim("starts", name, empty, goal) for name, goal in _filled(start, start, z3.IntVal(0)).items()
    ]
    found += [_claim("round", name, running, goal) for name, goal in _filled(start, after, ROUND + 1).items()]
    found.append(_claim("round", "in_bounds", running, z3.And([access.in_bounds for access in accesses])))
    stays = z3.Implies(is_writable(before, BLOCK), is_writable(after, BLOCK))
    found.append(_claim("round", "stays_writable", running, stays))
    found.append(_claim("ends", "after_all_covered_tokens", empty, bound == COVERED))
    return found + _published(start, before)


def _published(start: PoolState, ended: PoolState) -> list[Obligation]:
    """At the end the block is what `publish` asks for, of a content with the request's tokens."""
    facts = _given() | {f"loop:{name}": fact for name, fact in _filled(start, ended, COVERED).items()}
    facts["content"] = z3.And(
        CONTENTS.length(CALL.content) == COVERED, CONTENTS.token(CALL.content, SECOND) == _token(SECOND)
    )
    asked = REQUIREMENTS["publish"](ended, CALL, SECOND)
    return [
        _claim("ends", name, facts, asked[name])
        for name in ("length_is_of_the_content", "tokens_are_of_the_content")
    ]


def _claim(part: str, name: str, facts: Facts, goal: Any) -> Obligation:
    path = f"pool/publish_block/{part}"
    theorem = "memory" if name == "in_bounds" else "P6"
    return Obligation(f"{path}/{name}", "invariant", theorem, facts, goal, path)


# ---- what is wrong ----------------------------------------------------------------------------------------


class FillFault(NamedTuple):
    """A change of `publish_block` or of `append`, and the claims that must be refuted."""

    name: str
    sentence: str
    changes: tuple[tuple[str, str], ...]
    appended: tuple[tuple[str, str], ...]
    refuted_by: tuple[str, ...]


_PLACE, _COUNT = "index * size + offset", "put(pool.num_tokens, block, pool.num_tokens[block] + 1, condition)"
_HOLDS = "round/holds_the_requests_tokens"

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
        "another_block_is_filled",
        "The tokens go to the block with the row's number.",
        (("append(pool, block, ", "append(pool, row, "),),
        (),
        ("round/counts_its_tokens", _HOLDS, "round/other_blocks_are_left_alone", "round/in_bounds"),
    ),
    FillFault(
        "tokens_are_not_counted",
        "A token that is appended is not counted.",
        (),
        ((_COUNT, "pass"),),
        ("round/counts_its_tokens",),
    ),
    FillFault(
        "last_token_is_overwritten",
        "A token is written where the last one is.",
        (),
        (("(block, pool.num_tokens[block])", "(block, pool.num_tokens[block] - 1)"),),
        (_HOLDS, "round/in_bounds"),
    ),
    FillFault(
        "token_brings_an_owner",
        "A block has one owner more for each token.",
        (),
        ((_COUNT, f"{_COUNT}; put(pool.ref_count, block, pool.ref_count[block] + 1, condition)"),),
        ("round/only_tokens_are_written", "round/stays_writable"),
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
    return claim.name.removeprefix("pool/publish_block/")
