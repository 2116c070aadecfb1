"""What must the decisions about recurrent state obey that ask no block? Relations on inputs and result.

`copy_needed`, `may_hit` and the others that guard an event are judged by what they let happen
(`recurrent_theorems`); here are the size of a prefill chunk and the limits taken from the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec.algebra import all_of, both, either, implies, maximum, minimum
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import RUNNING
from draftproof.spec.recurrent import RecurrentRules, is_boundary

Conditions = dict[str, bool]


class Chunk(NamedTuple):
    """The inputs of `chunk_to_schedule`: a step would start at `num_start_tokens` and take `num_wanted`."""

    num_start_tokens: int
    num_wanted: int
    num_tokens: int
    num_checkpoint_tokens: int


def assume_chunk(asked: Chunk, rules: RecurrentRules) -> Conditions:
    """A step of at least one token of a request that knows some, with the checkpoint inside its prompt."""
    return {
        "start": both(asked.num_start_tokens >= 0, asked.num_start_tokens <= asked.num_tokens - 1),
        "something_is_wanted": asked.num_wanted >= 1,
        "checkpoint_leaves_a_token": both(
            asked.num_checkpoint_tokens >= 0, asked.num_checkpoint_tokens <= asked.num_tokens - 1
        ),
    }


def chunk_to_schedule(asked: Chunk, rules: RecurrentRules, chosen: int) -> Conditions:
    """A chunk that others follow ends where its state may be kept, and none runs past the checkpoint."""
    start, end = asked.num_start_tokens, asked.num_start_tokens + chosen
    checkpoint = asked.num_checkpoint_tokens
    return {
        "within_wanted": both(chosen >= 0, chosen <= asked.num_wanted),
        "ends_on_a_boundary": either(
            chosen == 0, either(end >= asked.num_tokens, is_boundary(end, checkpoint, rules))
        ),
        "stops_at_the_checkpoint": either(start >= checkpoint, end <= checkpoint),
        "never_passed_over": implies(asked.num_wanted >= rules.block_size, chosen >= 1),
        "last_chunk_is_whole": implies(
            both(start + asked.num_wanted >= asked.num_tokens, start >= checkpoint),
            chosen == asked.num_wanted,
        ),
        "reaches_as_far_as_it_may": implies(
            all_of(chosen < asked.num_wanted, end != checkpoint),
            asked.num_wanted - chosen < rules.block_size,
        ),
    }


def limits(state: State, in_service: int, at_exit: int, at_turn_end: int) -> Conditions:
    """The limits of publication, of a running request: what is known and valid; at an exit, settled."""
    ledger, ghosts = state
    running = ledger.status == RUNNING
    return {
        "in_service_is_known": implies(running, both(in_service >= 0, in_service <= ledger.num_tokens)),
        "in_service_is_valid": implies(running, in_service <= ghosts.num_valid_tokens),
        "at_exit_is_settled": implies(running, at_exit == maximum(ghosts.num_settled_tokens, 0)),
        "at_turn_end_is_settled_and_stays": implies(
            both(running, ledger.stop_pending == 1),
            at_turn_end == minimum(ghosts.num_settled_tokens, ledger.num_tokens - 1),
        ),
    }
