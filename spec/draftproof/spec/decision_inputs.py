"""What a decision is asked with: one record of inputs each, and the decisions by name.

All counts are tokens unless said. What the caller guarantees about the inputs, and what the answer must
obey, is in `draftproof.spec.decisions`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class TokensToSchedule(NamedTuple):
    """How large a step may be. `chunk_alignment`: prefill chunks end on its multiples (recurrent state)."""

    token_budget: int
    max_model_len: int
    max_num_tokens: int
    num_awaited_outputs: int
    chunk_alignment: int


class TokensBeforeLookahead(NamedTuple):
    """How much of a budget a prefill chunk may use, so that the drafter's look-ahead is not cut.

    `num_prefill_lookahead_tokens` is A, the known tokens after a position that the drafter reads with it."""

    num_new_tokens: int
    num_prefill_lookahead_tokens: int


class DraftsAllowed(NamedTuple):
    """How many drafts the drafter may propose."""

    max_model_len: int


class TokensToKeep(NamedTuple):
    """How many generated tokens stay. `stop_index`: the first a stop rule hits; none: `num_generated`."""

    num_generated: int
    stop_index: int
    max_num_tokens: int


class SlotsToReserve(NamedTuple):
    """How many KV slots a dispatched request must hold."""

    num_lookahead_tokens: int


class SlotsToAdmit(NamedTuple):
    """How many KV slots must be free before a waiting or preempted request starts."""

    num_lookahead_tokens: int


class WindowToPrune(NamedTuple):
    """How many leading tokens sliding-window layers never read again."""

    window: int


class MayRelease(NamedTuple):
    """Whether the blocks of a request that left may be handed to others."""

    num_pending_transfers: int


class LookupHit(NamedTuple):
    """How much of a run of `num_matching_tokens` found in the cache may be used."""

    num_matching_tokens: int
    drops_block: bool


class CheckpointToKeep(NamedTuple):
    """Which boundary of the prompt a recurrent layer keeps its state at."""

    drops_block: bool


class WindowToSave(NamedTuple):
    """Up to where window layers store blocks, so that a look-up can hit `num_boundary_tokens`."""

    num_boundary_tokens: int
    drops_block: bool


class HashesToKeep(NamedTuple):
    """Of how many leading tokens the block hashes stay valid when the next chunk arrives."""


class KnownLookahead(NamedTuple):
    """How many known tokens follow a prefill chunk that ends at `num_end_tokens`."""

    num_end_tokens: int
    num_lookahead_tokens: int


class DraftBuffer(NamedTuple):
    """How many tokens a drafter's input buffers must hold."""

    max_num_batched_tokens: int
    max_num_seqs: int


class SeatsFree(NamedTuple):
    """How many more requests this step may take."""

    num_scheduled_requests: int
    num_resident_requests: int
    max_num_seqs: int


class Metrics(NamedTuple):
    """What is reported about a request."""

    num_admissions: int
    num_cached_tokens: int
    num_external_tokens: int
    num_verified_steps: int
    num_drafts_verified: int
    num_drafts_accepted: int
    num_emitted_tokens: int


class CountAdmission(NamedTuple):
    """A request is admitted with a hit, part of it from an external cache."""

    metrics: Metrics
    num_hit_tokens: int
    num_external_tokens: int


class CountOutput(NamedTuple):
    """A step that verified drafts returned."""

    metrics: Metrics
    num_drafts: int
    num_accepted: int
    num_kept: int


DECISIONS: dict[str, type[Any]] = {
    "tokens_to_schedule": TokensToSchedule,
    "tokens_before_lookahead": TokensBeforeLookahead,
    "drafts_allowed": DraftsAllowed,
    "tokens_to_keep": TokensToKeep,
    "slots_to_reserve": SlotsToReserve,
    "slots_to_admit": SlotsToAdmit,
    "window_to_prune": WindowToPrune,
    "may_release": MayRelease,
    "lookup_hit": LookupHit,
    "checkpoint_to_keep": CheckpointToKeep,
    "window_to_save": WindowToSave,
    "hashes_to_keep": HashesToKeep,
    "known_lookahead": KnownLookahead,
    "draft_buffer": DraftBuffer,
    "seats_free": SeatsFree,
    "count_admission": CountAdmission,
    "count_output": CountOutput,
}
