"""With what could each decision be asked in a given state? A few inputs of every kind that differ in effect.

For explorations and random walks on integers; the proofs ask with any inputs there are. All counts are
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from draftproof.spec.algebra import floor_to_block
from draftproof.spec.decision_inputs import (
    DECISIONS,
    CheckpointToKeep,
    CountAdmission,
    CountOutput,
    DraftBuffer,
    DraftsAllowed,
    HashesToKeep,
    KnownLookahead,
    LookupHit,
    MayRelease,
    Metrics,
    SeatsFree,
    SlotsToAdmit,
    SlotsToReserve,
    TokensBeforeLookahead,
    TokensToKeep,
    TokensToSchedule,
    WindowToPrune,
    WindowToSave,
)
from draftproof.spec.decisions import ASSUMPTIONS
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Ledger, Rules

PLENTY = 20
"""More than any step needs."""
FRESH = Metrics(0, 0, 0, 0, 0, 0, 0)
USED = Metrics(
    num_admissions=1,
    num_cached_tokens=1,
    num_external_tokens=1,
    num_verified_steps=1,
    num_drafts_verified=2,
    num_drafts_accepted=1,
    num_emitted_tokens=2,
)

SAMPLES: dict[str, Callable[[Ledger, Rules], Iterable[Any]]] = {
    "tokens_to_schedule": lambda ledger, rules: (
        TokensToSchedule(budget, limit, ledger.num_tokens + PLENTY, awaited, alignment)
        for budget, limit, awaited, alignment in (
            (PLENTY, ledger.num_tokens + PLENTY, 0, 1),
            (3, ledger.num_tokens + PLENTY, 1, 2),
            (PLENTY, ledger.num_tokens + 1, 0, 1),
            (PLENTY, ledger.num_tokens + PLENTY, PLENTY, 1),
        )
    ),
    "tokens_before_lookahead": lambda ledger, rules: (
        TokensBeforeLookahead(offered, lookahead) for offered in (1, PLENTY) for lookahead in (0, 1, 3)
    ),
    "drafts_allowed": lambda ledger, rules: (
        DraftsAllowed(ledger.num_tokens + more) for more in (0, 1, PLENTY)
    ),
    "tokens_to_keep": lambda ledger, rules: (
        TokensToKeep(3, 3, ledger.num_tokens + PLENTY),
        TokensToKeep(3, 0, ledger.num_tokens + PLENTY),
        TokensToKeep(3, 3, ledger.num_tokens + 1),
    ),
    "slots_to_reserve": lambda ledger, rules: (SlotsToReserve(lookahead) for lookahead in (0, 2)),
    "slots_to_admit": lambda ledger, rules: (SlotsToAdmit(lookahead) for lookahead in (0, 2)),
    "window_to_prune": lambda ledger, rules: (WindowToPrune(window) for window in (1, 2, PLENTY)),
    "may_release": lambda ledger, rules: (MayRelease(pending) for pending in (0, 1)),
    "lookup_hit": lambda ledger, rules: (
        LookupHit(matching, drops)
        for matching in (
            0,
            rules.block_size,
            floor_to_block(ledger.num_tokens, rules.block_size) + rules.block_size,
        )
        for drops in (False, True)
    ),
    "checkpoint_to_keep": lambda ledger, rules: (CheckpointToKeep(drops) for drops in (False, True)),
    "window_to_save": lambda ledger, rules: (
        WindowToSave(boundary, drops) for boundary in (0, rules.block_size) for drops in (False, True)
    ),
    "hashes_to_keep": lambda ledger, rules: (HashesToKeep(),),
    "known_lookahead": lambda ledger, rules: (
        KnownLookahead(end, lookahead) for end in (0, ledger.num_tokens) for lookahead in (0, 2)
    ),
    "draft_buffer": lambda ledger, rules: (DraftBuffer(8, 2), DraftBuffer(1, 4)),
    "seats_free": lambda ledger, rules: (SeatsFree(1, 2, 4), SeatsFree(4, 6, 4)),
    "count_admission": lambda ledger, rules: (CountAdmission(metrics, 2, 1) for metrics in (FRESH, USED)),
    "count_output": lambda ledger, rules: (
        CountOutput(metrics, drafts, accepted, kept)
        for metrics in (FRESH, USED)
        for drafts, accepted, kept in ((0, 0, 1), (2, 1, 2), (2, 1, 1))
    ),
}
"""By decision; some may not meet its assumptions in some states."""


def samples(state: State, rules: Rules) -> Iterator[tuple[str, Any]]:
    """Every decision that may be asked in the state, with each of its sample inputs that meet its
    assumptions."""
    for name in DECISIONS:
        for inputs in SAMPLES[name](state.ledger, rules):
            if all(ASSUMPTIONS[name](state, rules, inputs).values()):
                yield name, inputs
