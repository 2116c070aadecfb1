"""The eleven events that move a ledger, each with the integers it brings. All counts are tokens.

A transition of `draftproof.impl.accounting` has the same name and takes `(ledger, rules, *event)`.
"""

from __future__ import annotations

from typing import NamedTuple


class Admit(NamedTuple):
    """The request gets its first step of this life; `num_hit_tokens` were found in the prefix cache."""

    num_hit_tokens: int


class Schedule(NamedTuple):
    """A step of `num_new_tokens` is dispatched for the request."""

    num_new_tokens: int


class Draft(NamedTuple):
    """The next step will verify `num_drafts` drafts: so many did the drafter propose (synchronously), or so
    many are left or padded where nothing live is in flight (asynchronously `schedule` reserves K)."""

    num_drafts: int


class ChunkOutput(NamedTuple):
    """A prefill chunk of `num_returned` tokens returned; it sampled nothing."""

    num_returned: int


class Output(NamedTuple):
    """A step that sampled returned: of `num_drafts` verified, `num_accepted` were right; `num_kept` of
    the accepted tokens and the one sampled after them stay; `stopped` is 1 if a stop rule fired."""

    num_returned: int
    num_drafts: int
    num_accepted: int
    num_kept: int
    stopped: int


class Preempt(NamedTuple):
    """The request loses its blocks and starts over later; `drop`: its late output will be discarded.

    Not only a running request: a session between turns stays paused, and one whose next chunk has arrived is
    preempted before it starts."""

    drop: bool


class StaleOutput(NamedTuple):
    """A step of an earlier life, or of a request that has left, returned; its `num_kept` tokens are
    delivered unless they are dropped."""

    num_returned: int
    num_kept: int
    stopped: int


class EndTurn(NamedTuple):
    """A resumable request (a streaming-input session) stopped and waits for its next chunk."""


class Fold(NamedTuple):
    """The next chunk of a session arrives: `num_chunk_tokens` are appended to what is kept."""

    num_chunk_tokens: int


class Finish(NamedTuple):
    """A request that stopped leaves: register what is settled, then free its blocks."""


class Abort(NamedTuple):
    """A request leaves without having stopped."""


Event = (
    Admit | Schedule | Draft | ChunkOutput | Output | Preempt | StaleOutput | EndTurn | Fold | Finish | Abort
)

EVENTS: dict[str, type[Event]] = {
    "admit": Admit,
    "schedule": Schedule,
    "draft": Draft,
    "chunk_output": ChunkOutput,
    "output": Output,
    "preempt": Preempt,
    "stale_output": StaleOutput,
    "end_turn": EndTurn,
    "fold": Fold,
    "finish": Finish,
    "abort": Abort,
}

EVENT_SYMBOLS = {
    "num_hit_tokens": "hit",
    "num_new_tokens": "n",
    "num_returned": "n",
    "num_drafts": "d",
    "num_accepted": "a",
    "num_kept": "k",
    "stopped": "stop",
    "drop": "drop",
    "num_chunk_tokens": "chunk",
}

BOOLEAN_ARGUMENTS = frozenset({"drop"})


def event_name(event: Event) -> str:
    """The transition's name of an event, for example `output`."""
    for name, kind in EVENTS.items():
        if type(event) is kind:
            return name
    raise TypeError(f"{event!r} is not an event; the events are {', '.join(EVENTS)}")
