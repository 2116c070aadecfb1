"""What does a later request find of a finished one? T13, and T4 where it is exact, as named properties.

A running request finishes; afterwards a request whose tokens begin like the finished ones, as far as both
go, looks them up. Nothing here says how the code computes the hit or what it registers: what is found is
measured against W, the tokens whose KV had really been computed when the request finished. No property has
a premise; what it needs is assumed by name where it is proved (`draftproof.proofs.decisions`).
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec.algebra import all_of, both, either, floor_to_block, minimum, where
from draftproof.spec.events import Output
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules

Conditions = dict[str, bool]


class LookUp(NamedTuple):
    """A request that looks up what another one stored, and what it may use of it. Counts are tokens."""

    num_tokens: int
    """N': what the request knows, at least one token."""
    num_matching_tokens: int
    """Leading tokens whose blocks are found in the cache: whole blocks."""
    num_hit_tokens: int
    """What `lookup_hit` lets it use."""
    num_hit_tokens_with_drop: int
    """What it lets a request use whose drafter needs the block after a hit."""


def chain_is_found_whole(after: State, rules: Rules, look_up: LookUp) -> bool:
    """An assumption: nothing is evicted in between. Blocks are found one after the other from the first;
    every registered block that N' tokens fill is found."""
    filled = floor_to_block(look_up.num_tokens, rules.block_size)
    return look_up.num_matching_tokens >= minimum(after.ledger.num_registered_tokens, filled)


def only_the_chain_is_found(after: State, rules: Rules, look_up: LookUp) -> bool:
    """An assumption: no other request has stored more of the same tokens. Needed for upper bounds only."""
    filled = floor_to_block(look_up.num_tokens, rules.block_size)
    return look_up.num_matching_tokens <= minimum(after.ledger.num_registered_tokens, filled)


def may_be_used(before: State, rules: Rules, look_up: LookUp) -> Conditions:
    """What is found is real: needs `only_the_chain_is_found` alone. `before`: before the finish."""
    hit = look_up.num_hit_tokens
    registered, settled = before.ledger.num_registered_tokens, before.ghosts.num_settled_tokens
    return {
        "whole_blocks": both(hit >= 0, hit == floor_to_block(hit, rules.block_size)),
        "leaves_a_token": hit <= look_up.num_tokens - 1,
        "was_settled": hit <= settled,
        # A fence holds back what finishing adds, not what a hit or an earlier step had published.
        "beyond_the_fence_only_what_was_published_before": either(
            hit <= registered, hit <= settled - rules.registration_fence
        ),
    }


def is_found(before: State, rules: Rules, look_up: LookUp) -> Conditions:
    """What is settled and not behind the fence is found: needs `chain_is_found_whole` alone."""
    hit = look_up.num_hit_tokens
    findable = minimum(before.ghosts.num_settled_tokens - rules.registration_fence, look_up.num_tokens - 1)
    return {"less_than_a_block_is_missed": findable - hit < rules.block_size}


def drop_costs_one_block(before: State, rules: Rules, look_up: LookUp) -> bool:
    """Under the drop rule exactly one block less; nothing if there is none. Needs no assumption."""
    hit, dropped = look_up.num_hit_tokens, look_up.num_hit_tokens_with_drop
    return either(
        both(dropped >= 0, dropped + rules.block_size == hit), both(dropped == 0, hit < rules.block_size)
    )


def hit_is_closed_form(before: State, rules: Rules, look_up: LookUp) -> bool:
    """Both assumptions and no fence: exactly the whole blocks of W and of N' - 1, whatever R was."""
    size = rules.block_size
    return look_up.num_hit_tokens == minimum(
        floor_to_block(before.ghosts.num_settled_tokens, size), floor_to_block(look_up.num_tokens - 1, size)
    )


def longer_finds_every_settled_block(before: State, rules: Rules, look_up: LookUp) -> bool:
    """No eviction, no fence, N' > N: no whole block of what was settled is missed."""
    return before.ghosts.num_settled_tokens - look_up.num_hit_tokens < rules.block_size


def registers_the_settled(before: State, rules: Rules, after: State) -> bool:
    """T4 for a running request that finishes, in both modes: R is whole blocks, at most W, and less than a
    block of what is settled and not behind the fence is left out. Without a fence so R = floor_B(W)."""
    registered, settled = after.ledger.num_registered_tokens, before.ghosts.num_settled_tokens
    return all_of(
        registered == floor_to_block(registered, rules.block_size),
        registered <= settled,
        settled - rules.registration_fence - registered < rules.block_size,
    )


def num_settled_at_stop(event: Output, after: State) -> int:
    """W in terms of N once the output that stops has been processed: an accepted draft has KV, the token
    sampled after the accepted ones has none."""
    last_kept_was_a_draft = event.num_kept <= event.num_accepted
    return where(last_kept_was_a_draft, after.ledger.num_tokens, after.ledger.num_tokens - 1)
