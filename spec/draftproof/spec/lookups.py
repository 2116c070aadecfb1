"""What does a later request find of a finished one? T13, and T4 where it is exact, as named properties.

A running request finishes; afterwards a request whose tokens begin like the finished ones, as far as both
go, looks them up. Nothing here says how the code computes the hit or what it registers: what is found is
measured against W, the tokens whose KV had really been computed when the request finished. What a property
needs is assumed by name where it is proved (`draftproof.proofs.stored`). `closed_form` is the answer as a
plain function, for tests of a scheduler to compare with.
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, maximum, minimum, where
from draftproof.spec.events import Admit, Event, Output, Preempt
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


def closed_form(
    num_settled_tokens: int,
    num_look_up_tokens: int,
    rules: Rules,
    drops_block: bool,
    num_hit_tokens: int = 0,
) -> int:
    """What a look-up of `num_look_up_tokens` (N', at least one) hits of a finished request it begins like.

    `num_settled_tokens` is W when it finished; `num_hit_tokens` what it hit itself when its present life
    began, which was published already, behind the fence too. Whole blocks of both, none beyond N' - 1, and
    one less if `drops_block`. Holds if nothing was evicted in between and nobody stored more (T13).
    """
    size = rules.block_size
    settled = floor_to_block(maximum(num_settled_tokens - rules.registration_fence, 0), size)
    found = minimum(maximum(settled, num_hit_tokens), floor_to_block(num_look_up_tokens - 1, size))
    return where(drops_block, maximum(found - size, 0), found)


def hit_is_closed_form(before: State, rules: Rules, look_up: LookUp, num_hit_tokens: int) -> bool:
    """Both assumptions, and `num_hit_tokens` that is what the finished request hit (`published_since_hit`):
    exactly the closed form, with the drop rule and without. Without a fence its own hit does not matter."""
    settled, num_tokens = before.ghosts.num_settled_tokens, look_up.num_tokens
    dropped = look_up.num_hit_tokens_with_drop
    return both(
        look_up.num_hit_tokens == closed_form(settled, num_tokens, rules, False, num_hit_tokens),
        dropped == closed_form(settled, num_tokens, rules, True, num_hit_tokens),
    )


def hit_of_life(before: State, event: Event, num_hit_tokens: int) -> int:
    """What the request has hit in its present life after an event, if it was `num_hit_tokens` before."""
    if isinstance(event, Admit):
        starts_at_zero = before.ledger.num_computed_tokens == 0
        return where(starts_at_zero, event.num_hit_tokens, num_hit_tokens)
    if isinstance(event, Preempt):
        return 0
    return num_hit_tokens


def published_since_hit(state: State, rules: Rules, num_hit_tokens: int) -> Conditions:
    """What a request has published in its present life lies below V - fence, but for what it had hit; once it
    has stopped, below N - 1 - fence. An invariant that follows the hit along, which no counter does."""
    ledger, ghosts = state
    registered, fence = ledger.num_registered_tokens, rules.registration_fence
    return {
        "hit_is_not_negative": num_hit_tokens >= 0,
        "hit_is_published": num_hit_tokens <= registered,
        "rest_is_behind_the_fence": registered <= maximum(num_hit_tokens, ghosts.num_valid_tokens - fence),
        "so_it_is_once_stopped": implies(
            ledger.stop_pending == 1, registered <= maximum(num_hit_tokens, ledger.num_tokens - 1 - fence)
        ),
    }


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
