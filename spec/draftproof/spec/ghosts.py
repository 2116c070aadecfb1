"""Ghosts: what is really so, tracked beside the ledger in proofs and in debug mode only.

The ledger is what the scheduler believes. To say that the belief is right, the specification keeps a
second record that is updated from the event, from `num_tokens` and from other ghosts, not from the
counters under test. Otherwise a ghost would agree with the code's own mistake. There are three exceptions,
each a thing the host tells the device: the position a step starts to write at (`schedule` reads C), whether
a request starts from nothing or keeps its KV (`admit` reads whether C is 0), and whether a stopped request
still holds blocks (`end_turn` reads the status). That the ghosts mean what they say is itself proved: they
are the token-level truth (`draftproof.spec.tokens`, theorem R2 of the refinement).
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec.algebra import both, maximum, minimum, where
from draftproof.spec.events import (
    Abort,
    Admit,
    ChunkOutput,
    Draft,
    EndTurn,
    Finish,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
)
from draftproof.spec.ledger import RUNNING, Ledger, Rules, initial


class Ghosts(NamedTuple):
    """The truth the counters are measured against. Counts are tokens of the request's present life; a
    finished request keeps those of its last moment."""

    num_awaited_samples: int
    """Q: sampled positions that live steps in flight will return."""
    num_prefill_in_flight: int
    """G: tokens of live prefill steps in flight."""
    completes_prompt: int
    """q: 1 if the step that completes the prompt is among them."""
    num_valid_tokens: int
    """V: leading positions whose KV is that of the committed tokens, counting enqueued work."""
    num_settled_tokens: int
    """W: the same, counting only steps that have returned."""


class State(NamedTuple):
    """A ledger and its ghosts, side by side."""

    ledger: Ledger
    ghosts: Ghosts


GHOST_SYMBOLS = {
    "num_awaited_samples": "Q",
    "num_prefill_in_flight": "G",
    "completes_prompt": "q",
    "num_valid_tokens": "V",
    "num_settled_tokens": "W",
}


def initial_state(num_prompt_tokens: int) -> State:
    """A request that has just arrived: nothing is computed, nothing is on its way."""
    return State(initial(num_prompt_tokens), Ghosts(0, 0, 0, 0, 0))


def admit(state: State, rules: Rules, event: Admit) -> Ghosts:
    """A hit gives valid KV; a request that kept its KV (a session) keeps it. The start position is C."""
    ledger, ghosts = state
    starts_at_zero = ledger.num_computed_tokens == 0
    return ghosts._replace(
        num_valid_tokens=where(starts_at_zero, event.num_hit_tokens, ghosts.num_valid_tokens),
        num_settled_tokens=where(starts_at_zero, event.num_hit_tokens, ghosts.num_settled_tokens),
    )


def schedule(state: State, rules: Rules, event: Schedule) -> Ghosts:
    """The step writes from the next unwritten known position on; it samples once it reaches the last one."""
    ledger, ghosts = state
    start = ledger.num_computed_tokens - ghosts.num_awaited_samples
    end = start + event.num_new_tokens
    prefill = both(ghosts.num_awaited_samples == 0, start < ledger.num_tokens - 1)
    num_samples = maximum(end - (ledger.num_tokens - 1), 0)
    return ghosts._replace(
        num_awaited_samples=ghosts.num_awaited_samples + num_samples,
        num_prefill_in_flight=ghosts.num_prefill_in_flight + where(prefill, event.num_new_tokens, 0),
        completes_prompt=where(both(prefill, num_samples > 0), 1, ghosts.completes_prompt),
        num_valid_tokens=where(
            start <= ghosts.num_valid_tokens,
            maximum(ghosts.num_valid_tokens, minimum(end, ledger.num_tokens)),
            ghosts.num_valid_tokens,
        ),
    )


def draft(state: State, rules: Rules, event: Draft) -> Ghosts:
    """Proposing drafts computes nothing."""
    return state.ghosts


def chunk_output(state: State, rules: Rules, event: ChunkOutput) -> Ghosts:
    """The returned chunk's positions are settled."""
    ghosts = state.ghosts
    return ghosts._replace(
        num_prefill_in_flight=ghosts.num_prefill_in_flight - event.num_returned,
        num_settled_tokens=minimum(ghosts.num_settled_tokens + event.num_returned, ghosts.num_valid_tokens),
    )


def output(state: State, rules: Rules, event: Output) -> Ghosts:
    """Accepted drafts have KV; the token sampled after them is written by a later step."""
    ledger, ghosts = state
    completed = both(ghosts.completes_prompt == 1, ghosts.num_prefill_in_flight > 0)
    num_awaited = ghosts.num_awaited_samples - (1 + event.num_drafts)
    num_tokens = ledger.num_tokens + event.num_kept
    return Ghosts(
        num_awaited_samples=num_awaited,
        num_prefill_in_flight=where(completed, 0, ghosts.num_prefill_in_flight),
        completes_prompt=where(completed, 0, ghosts.completes_prompt),
        num_valid_tokens=where(
            ghosts.num_valid_tokens == ledger.num_tokens,
            where(num_awaited > 0, num_tokens, minimum(ledger.num_tokens + event.num_accepted, num_tokens)),
            ghosts.num_valid_tokens,
        ),
        num_settled_tokens=where(
            completed,
            ghosts.num_settled_tokens + event.num_returned,
            where(
                ghosts.num_settled_tokens == ledger.num_tokens - 1,
                minimum(ghosts.num_settled_tokens + 1 + event.num_accepted, num_tokens),
                ghosts.num_settled_tokens,
            ),
        ),
    )


def preempt(state: State, rules: Rules, event: Preempt) -> Ghosts:
    """The blocks are gone, whoever held them: nothing of this life is awaited or valid."""
    return Ghosts(0, 0, 0, 0, 0)


def stale_output(state: State, rules: Rules, event: StaleOutput) -> Ghosts:
    """Work of an earlier life changes nothing in this one."""
    return state.ghosts


def end_turn(state: State, rules: Rules, event: EndTurn) -> Ghosts:
    """The next chunk rewrites the last known position; a preempted request has no KV at all."""
    ledger, ghosts = state
    kept = where(ledger.status == RUNNING, ledger.num_tokens - 1, 0)
    return Ghosts(
        num_awaited_samples=0,
        num_prefill_in_flight=0,
        completes_prompt=0,
        num_valid_tokens=minimum(ghosts.num_valid_tokens, kept),
        num_settled_tokens=minimum(ghosts.num_settled_tokens, kept),
    )


def fold(state: State, rules: Rules, event: Fold) -> Ghosts:
    """All but the last known token stay; the chunk's tokens have no KV yet."""
    ledger, ghosts = state
    return ghosts._replace(
        num_valid_tokens=minimum(ghosts.num_valid_tokens, ledger.num_tokens - 1),
        num_settled_tokens=minimum(ghosts.num_settled_tokens, ledger.num_tokens - 1),
    )


def finish(state: State, rules: Rules, event: Finish) -> Ghosts:
    """Leaving computes nothing; Q, G and q stay what they last were, for P and C do."""
    return state.ghosts


def abort(state: State, rules: Rules, event: Abort) -> Ghosts:
    """Leaving computes nothing, as at a finish."""
    return state.ghosts
