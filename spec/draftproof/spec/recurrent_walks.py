"""What can happen next to a request with recurrent state? Moves as a scheduler makes them, and exploration.

A move is what a scheduler does at once: it admits on what a look-up finds, dispatches a step (moving to a
private copy first where the decision asks for it, setting targets aside, publishing what stands on a
boundary), settles one, lets the request leave after publishing what is settled, and so on. `Protocol` can
leave out the last publication or exchange it: what that costs is the point of the exploration.

Bounds (`Bounds`) keep it finite; they are no part of the specification.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from draftproof.spec.recurrent import (
    Recurrent,
    RecurrentRules,
    num_certain_tokens,
    num_possible_tokens,
)
from draftproof.spec.recurrent_events import (
    Append,
    Dispatch,
    EndTurn,
    Fail,
    Leave,
    MakePrivate,
    NextStep,
    NextTurn,
    OtherHits,
    OtherReleases,
    Publish,
    Settle,
    Start,
)
from draftproof.spec.recurrent_ghosts import Role
from draftproof.spec.recurrent_tokens import (
    Code,
    Reference,
    TokenBlock,
    advance,
    evicted,
    free_blocks,
    is_unowned,
    slot_block,
    targets,
)


class Bounds(NamedTuple):
    """How far an exploration goes. Counts are tokens, but for steps and blocks."""

    num_prompt_tokens: int = 3
    max_num_tokens: int = 6
    max_num_steps_in_flight: int = 2
    num_blocks: int = 5
    num_checkpoint_tokens: int = 0
    others: bool = True
    """Whether other requests may hit what is published."""
    sessions: bool = True


class Protocol(NamedTuple):
    """What a scheduler does when a request leaves."""

    publishes_at_exit: bool = True
    publish_at_exit: Callable[..., Recurrent] | None = None
    """Instead of the code's `publish`."""


class Walk(NamedTuple):
    """What a walk needs everywhere."""

    rules: RecurrentRules
    code: Code
    bounds: Bounds
    protocol: Protocol = Protocol()


Move = tuple[str, Reference]
"""What was done, in words, and what it led to."""


def taken(reference: Reference, count: int, keep: tuple[int, ...] = ()) -> tuple[Reference, list[int]] | None:
    """The next free blocks, evicted; None if there are too few."""
    free = [index for index in free_blocks(reference) if index not in keep][:count]
    if len(free) < count:
        return None
    for index in free:
        reference = evicted(reference, index)
    return reference, free


def look_up(reference: Reference, walk: Walk) -> tuple[int, int]:
    """The longest state that may be hit: its position and block; (0, -1) if there is none."""
    for num_tokens in range(len(reference.tokens) - 1, 0, -1):
        for index, block in enumerate(reference.blocks):
            wanted = block.found_for == reference.tokens[:num_tokens]
            if wanted and walk.code.decisions["may_hit"](block.ghost.key_step, reference.ghosts.step):
                return num_tokens, index
    return 0, -1


def admitted(reference: Reference, walk: Walk, num_checkpoint_tokens: int) -> Reference | None:
    """A life begins on what the look-up finds."""
    num_hit_tokens, hit_block = look_up(reference, walk)
    num_slots = 1 + walk.rules.num_speculative_tokens
    found = taken(reference, num_slots - (num_hit_tokens > 0), keep=(hit_block,))
    if found is None:
        return None
    reference, blocks = found
    if num_hit_tokens > 0:
        blocks = [hit_block, *blocks]
    roles = {block: Role(slot=slot) for slot, block in enumerate(blocks)}
    event = Start(num_hit_tokens, num_checkpoint_tokens)
    return advance(reference, "start", event, roles, walk.code, walk.rules)


def on_private_slot(reference: Reference, walk: Walk) -> Reference | None:
    """The row has left its published slot: for a copy if a block is free, else by withdrawing the key."""
    if not walk.code.decisions["copy_needed"](reference.recurrent):
        return reference
    slot = reference.recurrent.state_slot
    source = slot_block(reference, slot)
    found = taken(reference, 1)
    if found is not None:
        reference, (copy,) = found
        roles = {copy: Role(slot=slot)}
        return advance(reference, "make_private", MakePrivate(1), roles, walk.code, walk.rules)
    if walk.code.decisions["may_withdraw"](1 + reference.blocks[source].ghost.num_other_owners):
        return advance(reference, "make_private", MakePrivate(0), {}, walk.code, walk.rules)
    return None


def dispatched(reference: Reference, walk: Walk, event: Dispatch) -> Reference | None:
    """A step goes out, and what it certainly leaves on a boundary is published at once."""
    private = on_private_slot(reference, walk)
    if private is None:
        return None
    arguments = (event.num_new_tokens, event.num_drafts, event.num_tokens)
    after = walk.code.transitions["dispatch"](private.recurrent, walk.rules, *arguments)
    first = walk.code.decisions["first_unreserved"](private.recurrent, walk.rules)
    boundaries = range(first + walk.rules.block_size, after.num_reserved_tokens + 1, walk.rules.block_size)
    found = taken(private, len(boundaries))
    if found is None:
        return None
    private, blocks = found
    roles = {block: Role(boundary=boundary) for block, boundary in zip(blocks, boundaries, strict=True)}
    return published(advance(private, "dispatch", event, roles, walk.code, walk.rules), walk)


def published(reference: Reference, walk: Walk) -> Reference:
    """Publication in service: of what is known and dispatched."""
    limit = min(num_possible_tokens(reference.recurrent), len(reference.tokens))
    return advance(reference, "publish", Publish(limit), {}, walk.code, walk.rules)


def left(reference: Reference, walk: Walk, num_replaced: int) -> Reference:
    """The request leaves, after publishing what is settled of the tokens that stay."""
    recurrent, protocol = reference.recurrent, walk.protocol
    settled = recurrent.num_state_tokens + recurrent.num_trimmed_tokens
    limit = min(settled, len(reference.tokens) - num_replaced)
    if protocol.publishes_at_exit:
        code = walk.code
        if protocol.publish_at_exit is not None:
            code = code._replace(transitions={**code.transitions, "publish": protocol.publish_at_exit})
        reference = advance(reference, "publish", Publish(limit), {}, code, walk.rules)
    lost = lost_boundaries(reference, limit)
    after = advance(reference, "leave", Leave(num_replaced), {}, walk.code, walk.rules)
    return after._replace(problems=(*after.problems, *[f"lost: {boundary} at the exit" for boundary in lost]))


def lost_boundaries(reference: Reference, limit: int) -> list[int]:
    """Settled boundaries whose state is in a block of the row, and in none that can be found."""
    findable = {block.found_for for block in reference.blocks}
    return [
        boundary
        for boundary, index in sorted(targets(reference).items())
        if boundary <= limit
        and reference.blocks[index].consumed == reference.tokens[:boundary]
        and reference.tokens[:boundary] not in findable
    ]


def turn_ended(reference: Reference, walk: Walk) -> Reference:
    """A session's turn ended: it keeps its state if nothing is in flight."""
    if not walk.code.decisions["state_survives_turn"](reference.recurrent):
        after = left(reference, walk, num_replaced=1)
        return after._replace(between_turns=True)
    limit = Publish(len(reference.tokens) - 1)
    reference = advance(reference, "publish", limit, {}, walk.code, walk.rules)
    after = advance(reference, "end_turn", EndTurn(), {}, walk.code, walk.rules)
    return after._replace(between_turns=True)


# ---- all moves


def moves(reference: Reference, walk: Walk) -> Iterator[Move]:
    """Everything that may happen next, within the bounds."""
    reference = reference._replace(problems=())
    recurrent, step = reference.recurrent, reference.ghosts.step
    if step in {reference.last_dispatch, *(block.ghost.key_step for block in reference.blocks)}:
        yield "next step", advance(reference, "next_step", NextStep(), {}, walk.code, walk.rules)
    if walk.bounds.others:
        yield from _moves_of_others(reference, walk)
    if reference.between_turns:
        yield from _chunks(reference, walk)
    elif recurrent.holds_state == 0:
        checkpoint = walk.bounds.num_checkpoint_tokens
        after = admitted(reference, walk, checkpoint if checkpoint < len(reference.tokens) else 0)
        if after is not None:
            yield f"admit(hit={after.recurrent.num_state_tokens})", after
    else:
        yield from _steps(reference, walk)
        yield from _returns(reference, walk)
        yield "leave", left(reference, walk, num_replaced=0)
        for failed in sorted({in_flight.step for in_flight in reference.in_flight}):
            after = advance(reference, "fail", Fail(failed), {}, walk.code, walk.rules)
            yield f"fail(step={failed})", after


def _steps(reference: Reference, walk: Walk) -> Iterator[Move]:
    full = len(reference.in_flight) >= walk.bounds.max_num_steps_in_flight
    if full or reference.last_dispatch == reference.ghosts.step:
        return
    recurrent, known = reference.recurrent, len(reference.tokens)
    start = num_certain_tokens(recurrent)
    if start < known - 1:  # prefill
        shapes = [(count, 0, 0) for count in range(1, known - start + 1)]
    else:
        num_drafts = walk.rules.num_speculative_tokens
        shapes = [
            (1 + drafts, drafts, accepted)
            for drafts in range(num_drafts + 1)
            for accepted in range(drafts + 1)
        ]
    for count, drafts, accepted in shapes:
        if num_possible_tokens(recurrent) + count > walk.bounds.max_num_tokens:
            continue
        after = dispatched(reference, walk, Dispatch(count, drafts, known, accepted))
        if after is not None:
            yield f"step(n={count}, d={drafts}, a={accepted})", after


def _returns(reference: Reference, walk: Walk) -> Iterator[Move]:
    if not reference.in_flight:
        return
    head = reference.in_flight[0]

    def settled(num_kept: int) -> Reference:
        event = Settle(head.num_tokens, head.num_drafts, head.num_accepted, num_kept)
        return advance(reference, "settle", event, {}, walk.code, walk.rules)

    yield "return", published(settled(len(head.generated)), walk)
    for num_kept in range(1, len(head.generated) + 1):
        stopped = settled(num_kept)
        yield f"finish(k={num_kept})", left(stopped, walk, num_replaced=0)
        if walk.bounds.sessions:
            yield f"end turn(k={num_kept})", turn_ended(stopped, walk)


def _chunks(reference: Reference, walk: Walk) -> Iterator[Move]:
    """A chunk of one token; of two if there is to be a checkpoint ahead."""
    known, has_checkpoint = len(reference.tokens), walk.bounds.num_checkpoint_tokens > 0
    count = 2 if has_checkpoint else 1
    if known + count > walk.bounds.max_num_tokens:
        return
    if reference.recurrent.holds_state:
        event = NextTurn(count, known + 1 if has_checkpoint else 0)
        after = advance(reference, "next_turn", event, {}, walk.code, walk.rules)
    else:
        after = advance(reference, "append", Append(count, 1), {}, walk.code, walk.rules)
    yield "next chunk", after._replace(between_turns=False)


def _moves_of_others(reference: Reference, walk: Walk) -> Iterator[Move]:
    for index, block in enumerate(reference.blocks):
        for name, event, may in (
            ("other_hits", OtherHits(), block.ghost.key > 0 and block.ghost.num_other_owners == 0),
            ("other_releases", OtherReleases(), block.ghost.num_other_owners > 0),
        ):
            if may:
                after = advance(reference, name, event, {}, walk.code, walk.rules, only=index)
                yield f"{name}(block={index})", after


# ---- exploration


class Explored(NamedTuple):
    """What an exploration found."""

    num_states: int
    complete: bool
    """Whether every state within the bounds was visited."""
    found: dict[str, tuple[str, ...]]
    """A shortest way to each kind of complaint, by its first words."""


def identity(reference: Reference) -> tuple[object, ...]:
    """Equal for states that differ in the names of tokens, and in times that nobody can tell apart."""
    names: dict[int, int] = {}
    oldest = min([step.step for step in reference.in_flight] + [reference.ghosts.step])

    def renamed(prefix: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if prefix is None else tuple([names.setdefault(token, len(names)) for token in prefix])

    def since(step: int) -> int:
        return max(step - oldest, -1)

    def of_block(block: TokenBlock) -> str:
        if block.found_for is None and is_unowned(block.ghost):
            return ""  # nobody can tell one unused block from another
        ghost = block.ghost
        times = since(ghost.written_in_step), since(ghost.key_step)
        ghost = ghost._replace(written_in_step=times[0], key_step=times[1])
        return repr((renamed(block.consumed), renamed(block.found_for), tuple(ghost)))

    return (
        reference.recurrent,
        reference.ghosts._replace(step=since(reference.ghosts.step)),
        renamed(reference.sequence),
        len(reference.tokens),
        tuple(sorted([of_block(block) for block in reference.blocks])),
        reference.num_consumed,
        tuple([step._replace(step=since(step.step), generated=()) for step in reference.in_flight]),
        since(reference.last_dispatch),
        reference.between_turns,
        tuple([prefix in reference.ever_found for prefix in _prefixes(reference)]),
    )


def _prefixes(reference: Reference) -> list[tuple[int, ...]]:
    return [reference.sequence[:count] for count in range(1, len(reference.sequence) + 1)]


def explore(
    start: Reference,
    walk: Walk,
    complaints_of: Callable[[Reference, RecurrentRules], list[str]],
    limit: int,
    stop_at_first: bool = True,
) -> Explored:
    """Breadth-first from a state; a state with a complaint is not gone on from."""
    seen = {identity(start)}
    queue: deque[tuple[Reference, tuple[str, ...]]] = deque([(start, ())])
    found: dict[str, tuple[str, ...]] = {}
    while queue:
        reference, way = queue.popleft()
        for label, after in moves(reference, walk):
            wrong = complaints_of(after, walk.rules)
            for complaint in wrong:
                found.setdefault(complaint, (*way, label))
            if wrong and stop_at_first:
                return Explored(len(seen), False, found)
            mark = identity(after)
            if wrong or mark in seen:
                continue
            if len(seen) >= limit:
                return Explored(len(seen), False, found)
            seen.add(mark)
            queue.append((after, (*way, label)))
    return Explored(len(seen), True, found)
