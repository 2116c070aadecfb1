"""Where is a request's recurrent state? The integers a scheduler keeps for it, beside the ledger.

Attention keeps KV for every position; a recurrent layer (Mamba, gated delta net) keeps one state, and every
step overwrites it. A state is known by its *position*: how many tokens it has consumed. A hybrid model can
start from the prefix cache only at a position whose state was kept, and only with exactly that state.

A row has 1 + K *working slots*, blocks that its steps write: a step of n tokens of which d are drafts leaves
in slot i the state after i of its drafts. The next step reads the slot of the last accepted one. Two things
make a state last:

- *The working slot itself is published* (given a key) when the last dispatched step leaves the state exactly
  on a boundary. The row must move to a private copy before it dispatches another step.
- *A target block is set aside* for each boundary that a step with drafts may cross, and the device copies the
  crossing state there as soon as it knows what it accepted.

Boundaries are the multiples of the group's block size, and the prompt's checkpoint (the last position that a
repeat of the prompt can hit). All counts are tokens unless said. Events and guards are in
`recurrent_events`, the truth beside it in `recurrent_ghosts`.
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec.algebra import both, either, floor_to_block, maximum, where


class RecurrentRules(NamedTuple):
    """What is fixed for a recurrent group. Requires num_speculative_tokens >= 0 and block_size >= 1."""

    num_speculative_tokens: int
    block_size: int
    """Tokens between two boundaries."""


class Recurrent(NamedTuple):
    """One request's recurrent state, as the scheduler knows it. All zero while it holds none."""

    holds_state: int
    """1 from its first step of a life until it leaves."""
    num_state_tokens: int
    """Position of the state once everything that returned is counted."""
    num_in_flight_tokens: int
    """Tokens of live steps that have not returned, drafts included."""
    num_in_flight_drafts: int
    num_trimmed_tokens: int
    """Accepted tokens that a stop cut off: the device is so many positions further."""
    state_slot: int
    """Which working slot the last dispatched step leaves its state in, if it has no drafts to reject; once
    all have returned, the slot of `num_state_tokens`."""
    num_reserved_tokens: int
    """Boundaries up to here that lie ahead have a target block."""
    num_published_tokens: int
    """Boundaries up to here have been hit, published, or passed without being kept."""
    running_key: int
    """Position under which the working slot in use is published; 0 if it is not."""
    num_checkpoint_tokens: int
    """The prompt's checkpoint; 0 for none."""


NO_STATE = Recurrent(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""A request without recurrent state: waiting, preempted, or gone."""


def num_certain_tokens(recurrent: Recurrent) -> int:
    """Positions that are certainly consumed once all dispatched steps have run, whatever is rejected."""
    return (
        recurrent.num_state_tokens
        + recurrent.num_trimmed_tokens
        + recurrent.num_in_flight_tokens
        - recurrent.num_in_flight_drafts
    )


def num_possible_tokens(recurrent: Recurrent) -> int:
    """Positions that are consumed if every draft in flight is accepted."""
    return recurrent.num_state_tokens + recurrent.num_trimmed_tokens + recurrent.num_in_flight_tokens


def last_boundary(num_tokens: int, num_checkpoint_tokens: int, rules: RecurrentRules) -> int:
    """The largest boundary that is not above `num_tokens`; 0 is always one."""
    whole = floor_to_block(num_tokens, rules.block_size)
    return maximum(whole, where(num_checkpoint_tokens <= num_tokens, num_checkpoint_tokens, 0))


def is_boundary(num_tokens: int, num_checkpoint_tokens: int, rules: RecurrentRules) -> bool:
    """A position whose state is worth keeping."""
    is_whole = num_tokens == floor_to_block(num_tokens, rules.block_size)
    return both(num_tokens > 0, either(num_tokens == num_checkpoint_tokens, is_whole))
