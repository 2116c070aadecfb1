"""What does each state block really hold? The token-level reference model of recurrent state.

A state is determined by the tokens it has consumed, so a block is modelled as that token prefix. The model
runs one request on a few blocks beside the exact queue of its steps, does with the blocks what the running
functions say (`Code`), and lets a device compute: a step reads the slot it is told to, whatever is in it, and
appends what it feeds. Tokens are names used once, so no two prefixes are equal by chance.

Beside the truth it keeps the ghosts of every block, updated as the proofs do; `complaints` says where a
state is found for tokens that it did not consume, where a step starts from a wrong state or writes what
others may read, and where ghosts and truth part. Assumed of the device: steps and copies run in the order in
which they were dispatched, and outputs report the true acceptance.

Plain Python; meant for tests, exploration and explanations, where requests are short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from draftproof.spec.recurrent import NO_STATE, Recurrent, RecurrentRules, is_boundary
from draftproof.spec.recurrent_events import HOST_ARGUMENTS, TRANSITION_OF
from draftproof.spec.recurrent_ghosts import (
    NO_ROLE,
    RecurrentGhosts,
    RecurrentState,
    Role,
    StateBlock,
    block_after,
    ghosts_after,
    initial_recurrent_state,
    num_device_tokens,
)
from draftproof.spec.recurrent_invariants import recurrent_invariants

Prefix = tuple[int, ...]


class Code(NamedTuple):
    """The functions to run, by name."""

    transitions: Mapping[str, Callable[..., Recurrent]]
    decisions: Mapping[str, Callable[..., Any]]


class Run(NamedTuple):
    """What runs, under which rules."""

    code: Code
    rules: RecurrentRules


class TokenBlock(NamedTuple):
    """One block: the tokens its state consumed (None: no state of any prefix), and those it is found for."""

    consumed: Prefix | None
    found_for: Prefix | None
    ghost: StateBlock


class InFlight(NamedTuple):
    """A dispatched step, as its output will be reported."""

    step: int
    num_tokens: int
    num_drafts: int
    num_accepted: int
    generated: Prefix
    """Empty for a prefill chunk."""


class Reference(NamedTuple):
    """A request with its blocks and the truth."""

    recurrent: Recurrent
    ghosts: RecurrentGhosts
    blocks: tuple[TokenBlock, ...]
    tokens: Prefix
    """Prompt and output, as the host knows them."""
    sequence: Prefix
    """The device's own tokens, ahead of the host by what is in flight."""
    num_consumed: int
    """Of these, how many the device's state has consumed once all dispatched steps have run."""
    in_flight: tuple[InFlight, ...]
    last_dispatch: int
    """The step in which the request was dispatched last; 0 if never."""
    num_tokens_made: int
    between_turns: bool
    ever_found: frozenset[Prefix]
    """What has been published at some time, evicted or not."""
    problems: tuple[str, ...]
    """What was wrong with the events of the last move."""


def new_reference(num_prompt_tokens: int, num_blocks: int) -> Reference:
    """A request that has just arrived, and blocks that nobody has used."""
    _, ghosts, ghost = initial_recurrent_state(num_prompt_tokens)
    prompt = tuple(range(num_prompt_tokens))
    blocks = (TokenBlock(None, None, ghost),) * num_blocks
    return Reference(
        NO_STATE, ghosts, blocks, prompt, prompt, 0, (), 0, num_prompt_tokens, False, frozenset(), ()
    )


# ---- blocks


def slot_block(reference: Reference, slot: int) -> int:
    """Which block is the working slot."""
    return next(index for index, block in enumerate(reference.blocks) if block.ghost.slot == slot)


def targets(reference: Reference) -> dict[int, int]:
    """Boundary to the block that is set aside for it."""
    return {
        block.ghost.boundary: index
        for index, block in enumerate(reference.blocks)
        if block.ghost.boundary > 0
    }


def is_unowned(ghost: StateBlock) -> bool:
    """Nobody holds the block, and no copy from or to it is pending."""
    no_place = ghost.slot == -1 and ghost.boundary == 0
    return no_place and ghost.num_other_owners == 0 and ghost.num_pending_copies == 0


def free_blocks(reference: Reference) -> list[int]:
    """The blocks that may be taken, those that nobody can hit first."""
    free = [index for index, block in enumerate(reference.blocks) if is_unowned(block.ghost)]
    return sorted(free, key=lambda index: reference.blocks[index].ghost.key_step)


def evicted(reference: Reference, index: int) -> Reference:
    """The same with the block prepared to be taken: it cannot be found any more."""
    return advance(reference, "evict", (), {index: NO_ROLE}, _NO_CODE, _NO_RULES, only=index)


# ---- events


def advance(
    reference: Reference,
    name: str,
    event: Any,
    roles: Mapping[int, Role],
    code: Code,
    rules: RecurrentRules,
    only: int | None = None,
) -> Reference:
    """The reference after an event; `roles` says which blocks it takes, `only` which block it is about."""
    before = reference
    after = before.recurrent
    if name in TRANSITION_OF:
        transition = TRANSITION_OF[name]
        arguments = [getattr(event, field) for field in HOST_ARGUMENTS[transition]]
        after = code.transitions[transition](before.recurrent, rules, *arguments)
    must_withdraw = code.decisions.get("must_withdraw", lambda published, failed: published >= failed)
    blocks = [
        block
        if only not in (None, index)
        else block._replace(
            ghost=block_after(
                name,
                RecurrentState(before.recurrent, before.ghosts, block.ghost),
                event,
                roles.get(index, NO_ROLE),
                after,
                must_withdraw,
            )
        )
        for index, block in enumerate(before.blocks)
    ]
    state = RecurrentState(before.recurrent, before.ghosts, before.blocks[0].ghost)
    reference = before._replace(
        recurrent=after, ghosts=ghosts_after(name, state, event), blocks=tuple(blocks)
    )
    device = _DEVICE.get(name)
    return reference if device is None else device(before, reference, event, roles, Run(code, rules))


def _with_block(reference: Reference, index: int, **changes: Any) -> Reference:
    blocks = list(reference.blocks)
    blocks[index] = blocks[index]._replace(**changes)
    return reference._replace(blocks=tuple(blocks))


def _with_problems(reference: Reference, *problems: str) -> Reference:
    return reference._replace(problems=(*reference.problems, *problems))


def _is_kept(reference: Reference, num_tokens: int) -> bool:
    """The state of the device's first tokens was published, or a target holds it."""
    prefix, place = reference.sequence[:num_tokens], targets(reference).get(num_tokens)
    return prefix in reference.ever_found or (
        place is not None and reference.blocks[place].consumed == prefix
    )


def _start(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    after = after._replace(sequence=before.tokens, num_consumed=event.num_hit_tokens, in_flight=())
    for index, role in roles.items():
        is_hit = role.slot == 0 and event.num_hit_tokens > 0
        if is_hit and before.blocks[index].ghost.written_in_step == before.ghosts.step:
            after = _with_problems(after, "a state is hit in the step that writes it")
        if not is_hit:
            after = _with_block(after, index, consumed=() if role.slot == 0 else None)
    return after


def _make_private(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    source = slot_block(before, before.recurrent.state_slot)
    for index in roles:
        after = _with_block(after, index, consumed=before.blocks[source].consumed)
    if event.copies == 0:
        after = _with_block(after, source, found_for=None)
        if before.blocks[source].ghost.num_other_owners > 0:
            after = _with_problems(after, "a key is withdrawn from a block that others hold")
    return after


def _dispatch(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    """The device reads a slot, feeds tokens, writes slots, and saves the boundaries that it crosses."""
    sequence, start, made = before.sequence, before.num_consumed, before.num_tokens_made
    num_fed = event.num_new_tokens - event.num_drafts
    samples = start + num_fed == len(sequence)
    accepted = tuple(range(made, made + event.num_accepted))
    wrong = tuple(range(made + event.num_accepted, made + event.num_drafts))
    bonus = (made + event.num_drafts,) if samples else ()
    fed = sequence[start : start + num_fed] + accepted + wrong
    slot = run.code.decisions["slot_to_read"](before.recurrent, before.ghosts.num_last_accepted)
    read = before.blocks[slot_block(before, slot)].consumed
    problems = [] if read == sequence[:start] else [f"the step starts from {read}, not {sequence[:start]}"]
    if is_boundary(start, before.recurrent.num_checkpoint_tokens, run.rules) and not _is_kept(before, start):
        problems.append(f"lost: the state of {sequence[:start]} is overwritten, and was never found")
    states = [
        None if read is None else read + fed[: num_fed + draft] for draft in range(event.num_drafts + 1)
    ]
    end = start + num_fed + event.num_accepted
    for index, block in enumerate(after.blocks):
        if 0 <= block.ghost.slot <= event.num_drafts:
            after = _with_block(after, index, consumed=states[block.ghost.slot])
        elif max(start + 1, start + num_fed) <= block.ghost.boundary <= end:
            after = _with_block(after, index, consumed=states[block.ghost.boundary - start - num_fed])
        else:
            continue
        if before.blocks[index].found_for is not None or block.ghost.num_other_owners > 0:
            problems.append("the step writes a block that others may read")
    step = InFlight(
        before.ghosts.step, event.num_new_tokens, event.num_drafts, event.num_accepted, accepted + bonus
    )
    return after._replace(
        sequence=sequence + accepted + bonus,
        num_consumed=end,
        in_flight=(*before.in_flight, step),
        last_dispatch=before.ghosts.step,
        num_tokens_made=made + event.num_drafts + len(bonus),
        problems=(*after.problems, *problems),
    )


def _publish(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    """What has got a key is found by the host's tokens up to it."""
    for index, block in enumerate(after.blocks):
        if block.ghost.key != before.blocks[index].ghost.key:
            found_for = before.tokens[: block.ghost.key]
            after = _with_block(after, index, found_for=found_for)
            after = after._replace(ever_found=after.ever_found | {found_for})
    return after


def _settle(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    head, rest = before.in_flight[0], before.in_flight[1:]
    done = after
    for index, block in enumerate(after.blocks):  # the copies that ran before the step are done
        if block.ghost.num_pending_copies > 0 and not rest:
            ghost = block.ghost._replace(num_pending_copies=0)
            done = _with_block(done, index, ghost=ghost)
    return done._replace(tokens=before.tokens + head.generated[: event.num_kept], in_flight=rest)


def _end_turn(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    kept = before.tokens[:-1]
    return after._replace(
        tokens=kept, sequence=kept, num_consumed=before.recurrent.num_state_tokens, in_flight=()
    )


def _chunk(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    made = before.num_tokens_made
    chunk = tuple(range(made, made + event.num_tokens))
    tokens = before.tokens[: len(before.tokens) - getattr(event, "num_replaced", 0)] + chunk
    return after._replace(tokens=tokens, sequence=tokens, num_tokens_made=made + event.num_tokens)


def _leave(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    for index, block in enumerate(after.blocks):
        ghost = block.ghost._replace(num_pending_copies=0)
        after = _with_block(after, index, ghost=ghost)
    return after._replace(num_consumed=0, in_flight=())


def _fail(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    """What the failed steps should have written is unknown."""
    after = _leave(before, after, event, roles, run)
    for index, block in enumerate(after.blocks):
        old = before.blocks[index].ghost
        if old.written_in_step >= event.failed_step:
            after = _with_block(after, index, consumed=None)
        if block.ghost.key == 0:
            after = _with_block(after, index, found_for=None)
    return after


def _evict(before: Reference, after: Reference, event: Any, roles: Any, run: Run) -> Reference:
    for index in roles:
        after = _with_block(after, index, consumed=None, found_for=None)
    return after


_DEVICE: dict[str, Callable[[Reference, Reference, Any, Any, Run], Reference]] = {
    "start": _start,
    "make_private": _make_private,
    "dispatch": _dispatch,
    "publish": _publish,
    "settle": _settle,
    "end_turn": _end_turn,
    "next_turn": _chunk,
    "append": _chunk,
    "leave": _leave,
    "fail": _fail,
    "evict": _evict,
}
_NO_CODE = Code({}, {})
_NO_RULES = RecurrentRules(0, 1)


# ---- truth


def unsafe(reference: Reference) -> list[str]:
    """What is wrong with the last event, or with a block that can be found."""
    found = list(reference.problems)
    for block in reference.blocks:
        if block.found_for is not None and block.consumed != block.found_for:
            found.append(f"the state of {block.consumed} is found for {block.found_for}")
    return found


def complaints(reference: Reference, rules: RecurrentRules) -> list[str]:
    """Everything unsafe, and where ghosts, invariants and truth part."""
    found = unsafe(reference)
    for index, block in enumerate(reference.blocks):
        state = RecurrentState(reference.recurrent, reference.ghosts, block.ghost)
        found += [
            f"{name} does not hold for block {index}"
            for name, holds in recurrent_invariants(state, rules).items()
            if not holds
        ]
        if block.ghost.holds > 0 and block.consumed != reference.sequence[: block.ghost.holds]:
            found.append(f"block {index} should hold {block.ghost.holds} tokens, it has {block.consumed}")
        if block.ghost.key > 0 and block.found_for != reference.sequence[: block.ghost.key]:
            found.append(f"block {index} is found for {block.found_for}, not for {block.ghost.key} tokens")
        if reference.recurrent.holds_state and num_device_tokens(state) != reference.num_consumed:
            found.append(f"the device is at {reference.num_consumed}, not {num_device_tokens(state)}")
    if reference.ghosts.num_known_tokens != len(reference.tokens):
        found.append(f"N is {reference.ghosts.num_known_tokens}, there are {len(reference.tokens)} tokens")
    return found
