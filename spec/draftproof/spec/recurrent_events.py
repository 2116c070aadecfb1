"""What happens to a recurrent state? The events, each with the integers it brings. All counts are tokens.

The first eight move the `Recurrent` record: a transition of `draftproof.impl.recurrent` has the same name
and is told the fields of `HOST_ARGUMENTS`. The rest happen around it. Guards are in `recurrent_guards`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Start(NamedTuple):
    """A life begins: `num_hit_tokens` (0 for none) is the position of the state that was found."""

    num_hit_tokens: int
    num_checkpoint_tokens: int


class MakePrivate(NamedTuple):
    """The row leaves its published working slot: for a copy (1), or by withdrawing the key (0)."""

    copies: int


class Dispatch(NamedTuple):
    """A step of `num_new_tokens`, drafts included, is dispatched for a request with `num_tokens` known ones;
    `num_accepted` is what the device will find: the code under test never sees it."""

    num_new_tokens: int
    num_drafts: int
    num_tokens: int
    num_accepted: int


class Publish(NamedTuple):
    """Everything kept up to a position may become findable."""

    num_registrable_tokens: int


class Settle(NamedTuple):
    """The oldest step in flight returned; `num_kept` is 0 if it sampled nothing."""

    num_returned: int
    num_drafts: int
    num_accepted: int
    num_kept: int


class EndTurn(NamedTuple):
    """A session stopped with nothing in flight, and keeps its state for the next chunk."""


class NextTurn(NamedTuple):
    """The session's next chunk arrives, and it goes on from the state that it kept."""

    num_tokens: int
    num_checkpoint_tokens: int


class Leave(NamedTuple):
    """Preemption, finish or abort; or the end of a turn with work in flight, whose last known token the next
    chunk replaces (`num_replaced` is 1)."""

    num_replaced: int


class Fail(NamedTuple):
    """The steps from `failed_step` on will never return; the row leaves."""

    failed_step: int


class Append(NamedTuple):
    """Tokens arrive for a request without state: a session's next chunk, which replaces the last known token
    (`num_replaced` is 1), or late output of an earlier life."""

    num_tokens: int
    num_replaced: int


class NextStep(NamedTuple):
    """The scheduler turns to its next step."""


class OtherHits(NamedTuple):
    """Another request becomes an owner of the watched block."""


class OtherReleases(NamedTuple):
    """Another owner of the watched block leaves."""


class CopyDone(NamedTuple):
    """The step before which a copy from or to the watched block ran has returned."""


class Evict(NamedTuple):
    """The watched block, without owners, is taken by somebody else or prepared to be taken."""


RECURRENT_EVENTS: dict[str, type[Any]] = {
    "start": Start,
    "make_private": MakePrivate,
    "dispatch": Dispatch,
    "publish": Publish,
    "settle": Settle,
    "end_turn": EndTurn,
    "next_turn": NextTurn,
    "leave": Leave,
    "fail": Fail,
    "append": Append,
    "next_step": NextStep,
    "other_hits": OtherHits,
    "other_releases": OtherReleases,
    "copy_done": CopyDone,
    "evict": Evict,
}

HOST_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "start": ("num_hit_tokens", "num_checkpoint_tokens"),
    "make_private": (),
    "dispatch": ("num_new_tokens", "num_drafts", "num_tokens"),
    "publish": ("num_registrable_tokens",),
    "settle": ("num_returned", "num_drafts", "num_accepted", "num_kept"),
    "end_turn": (),
    "next_turn": ("num_checkpoint_tokens",),
    "leave": (),
}
"""What a transition is told of its event."""

TRANSITION_OF = {**{name: name for name in HOST_ARGUMENTS}, "fail": "leave"}
"""The transition that an event runs; events that are not here leave the record alone."""
