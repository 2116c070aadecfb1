"""Faults of the prefix cache's arithmetic: look-ups, checkpoints, stored windows, a drafter's look-ahead."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import CheckpointToKeep, KnownLookahead, LookupHit, WindowToSave
from draftproof.spec.events import Admit, Output, Preempt, Schedule
from draftproof.spec.ledger import Rules

FAULTS = (
    Fault(
        name="fence-forgotten",
        title="Blocks are published although the drafter will still change them",
        meaning="A drafter with several look-ahead modules rewrites the last valid positions once it sees "
        "the tokens after them. Published too early, another request reads the unfinished values.",
        reports=(),
        changes=(Change(ACCOUNTING, "registrable", "num_tokens - rules.registration_fence", "num_tokens"),),
        violated=(
            "schedule/theorem/T12/fence_is_kept_when_enqueued",
            "output/theorem/T12/fence_is_kept_when_enqueued",
            "preempt/theorem/T12/fence_is_kept_at_preemption",
            "end_turn/theorem/T12/fence_is_kept_at_exits",
            "finish/theorem/T12/fence_is_kept_at_exits",
            "abort/theorem/T12/fence_is_kept_at_exits",
            "finish/effect/published",
        ),
        limits=(("registration_fence", 2),),
    ),
    Fault(
        name="store-without-lookahead-block",
        title="What is stored lacks the block that the look-up gives back",
        meaning="With a drafter a look-up needs one block beyond its hit. The store side does not count it "
        "(a window mask, a merged group, an external tier), so nothing ever hits.",
        reports=(
            "swa-mask-omits-lookahead-block",
            "merged-group-loses-fence",
            "mooncake-attention-one-unit-low",
        ),
        changes=(
            Change(
                DECISIONS,
                "window_to_save",
                "where(drops_block, num_boundary_tokens + rules.block_size, num_boundary_tokens)",
                "num_boundary_tokens",
            ),
        ),
        violated=("window_to_save/relation/lookup_reaches_boundary",),
        pin=Pin(
            Rules(3, 4, False, 0),
            16,
            (),
            "decision",
            wrong=12,
            right=16,
            decision=Decision("window_to_save", WindowToSave(num_boundary_tokens=12, drops_block=True)),
        ),
    ),
    Fault(
        name="draft-groups-never-served",
        title="Groups marked as a drafter's are stored but never served",
        meaning="A look-up for a drafter must give one block back. Here it gives back all of them: what was "
        "stored is found by requests without a drafter only.",
        reports=(),
        changes=(
            Change(
                DECISIONS,
                "lookup_hit",
                "where(drops_block, maximum(run - rules.block_size, 0), run)",
                "where(drops_block, 0, run)",
            ),
        ),
        violated=("lookup_hit/relation/nothing_left_out",),
        pin=Pin(
            Rules(3, 16, False, 0),
            33,
            (),
            "decision",
            wrong=0,
            right=16,
            decision=Decision("lookup_hit", LookupHit(num_matching_tokens=32, drops_block=True)),
            own_numbers="no report tells this fault",
        ),
    ),
    Fault(
        name="checkpoint-rules-compose-to-nothing",
        title="Three rules each subtract, and no state is left where it could be hit",
        meaning="The last token, the drafter's rewind and the coarse page each take a part off. For many "
        "prompt lengths no recurrent state exists at any position a repeat can reach.",
        reports=("gdn-replay-boundary-floors",),
        changes=(
            # A page of 1,072 tokens holds 16 units of 67.
            Change(
                DECISIONS,
                "checkpoint_to_keep",
                "maximum(floor_to_block(ledger.num_prompt_tokens, rules.block_size) - rules.block_size, 0)",
                "maximum(\n            floor_to_block(ledger.num_prompt_tokens - 1, 16 * rules.block_size)"
                "\n            - 16 * rules.block_size,\n            0,\n        )",
            ),
        ),
        violated=("checkpoint_to_keep/relation/the_last_such",),
        pin=Pin(
            Rules(3, 67, False, 0),
            3000,
            (),
            "decision",
            wrong=1072,
            right=2881,
            decision=Decision("checkpoint_to_keep", CheckpointToKeep(drops_block=True)),
        ),
    ),
    Fault(
        name="chunk-tail-only-in-prompt",
        title="At a chunk's edge the drafter looks for known tokens in the prompt only",
        meaning="A resumed request's edge can fall into its own output. The drafter then reads a guess "
        "where the token is known, and its drafts get worse.",
        reports=("sglang-eagle-chunk-tail-token",),
        changes=(
            Change(
                DECISIONS,
                "known_lookahead",
                "minimum(num_lookahead_tokens, ledger.num_tokens - num_end_tokens)",
                "minimum(num_lookahead_tokens, maximum(ledger.num_prompt_tokens - num_end_tokens, 0))",
            ),
        ),
        violated=("known_lookahead/relation/none_left_out",),
        pin=Pin(
            Rules(1, 16, False, 0),
            6,
            (
                Admit(0),
                Schedule(6),
                Output(6, 0, 0, 1, 0),
                *(Schedule(1), Output(1, 0, 0, 1, 0)) * 3,
                Preempt(False),
                Admit(0),
                Schedule(8),
            ),
            "decision",
            wrong=0,
            right=1,
            decision=Decision("known_lookahead", KnownLookahead(num_end_tokens=8, num_lookahead_tokens=1)),
        ),
    ),
)
