"""Faults of sessions: the end of a turn, the fold of the next chunk, and resuming on kept KV."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, GUARDS, Change, Decision, Fault, Pin
from draftproof.proofs.faults.registry_output import TRIM_STAYS_COUNTED, VLLM_FOLD
from draftproof.spec.decision_inputs import HashesToKeep
from draftproof.spec.events import Admit, ChunkOutput, EndTurn, Fold, Output, Schedule, StaleOutput
from draftproof.spec.ledger import Rules

FOLDED = "num_tokens = ledger.num_tokens - 1 + num_chunk_tokens"
TURN_COMPUTED = "num_computed_tokens = ledger.num_computed_tokens - ledger.num_output_placeholders"
TURN_STALE = "num_stale_tokens=ledger.num_in_flight_tokens"
TURN_COUNTS_IN_FLIGHT = Change(
    ACCOUNTING, "end_turn", TURN_COMPUTED, "num_computed_tokens = ledger.num_computed_tokens"
)

FAULTS = (
    Fault(
        name="turn-end-counts-in-flight",
        title="The turn ends before the placeholders are taken off C",
        meaning="Asynchronously the next step is already on its way when a turn stops. Its positions count "
        "as history, and the next message starts too far along.",
        reports=("session-fold-counts-in-flight",),
        changes=(TURN_COUNTS_IN_FLIGHT,),
        violated=("end_turn/effect/all_but_the_last_computed",),
        shown_by="fold/theorem/T1/computed_is_known_at_fold",
        asynchronous=True,
        engine_rules=(VLLM_FOLD,),
        pin=Pin(
            Rules(2, 16, True, 0),
            7,
            (
                Admit(0),
                Schedule(7),
                Output(7, 0, 0, 1, 0),
                Schedule(3),
                Schedule(3),
                Output(3, 2, 2, 3, 1),
                EndTurn(),
            ),
            "num_computed_tokens",
            wrong=13,
            right=10,
        ),
    ),
    Fault(
        name="turn-end-discards-constant",
        title="Every turn end queues one discard and keeps the optimistic count",
        meaning="With nothing in flight the discard eats the first token of the next turn. With work in "
        "flight, the session believes its chunk is computed and has nothing left to do.",
        reports=("omni-segment-stop-discards-constant",),
        changes=(TURN_COUNTS_IN_FLIGHT, Change(ACCOUNTING, "end_turn", TURN_STALE, "num_stale_tokens=1")),
        violated=("end_turn/effect/nothing_live", "end_turn/effect/all_but_the_last_computed"),
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (Admit(0), Schedule(3), Output(3, 0, 0, 1, 1), EndTurn()),
            "num_stale_tokens",
            wrong=1,
            right=0,
        ),
    ),
    Fault(
        name="turn-end-leaves-work-live",
        title="Work in flight at the end of a turn is not marked stale",
        meaning="The old turn's late output arrives in the new turn and is taken for its own: a stray token "
        "enters the text, and the placeholders go below zero.",
        reports=("session-turn-late-output-underflow",),
        changes=(Change(ACCOUNTING, "end_turn", TURN_STALE, "num_stale_tokens=ledger.num_stale_tokens"),),
        violated=("end_turn/effect/nothing_live",),
        shown_by="output/theorem/T5/no_underflow",
        asynchronous=True,
        limits=(("depth", 9), ("num_speculative_tokens", 1)),
        pin=Pin(
            Rules(1, 16, True, 0),
            3,
            (
                Admit(0),
                Schedule(3),
                Schedule(2),
                Output(3, 0, 0, 1, 1),
                EndTurn(),
                Fold(2),
                Admit(0),
                Schedule(2),
                Output(2, 1, 0, 1, 0),
            ),
            "num_output_placeholders",
            wrong=-1,
            # The same step returning as what it is, work of the turn before: 1 is the new step's own.
            right=1,
            right_events=(
                Admit(0),
                Schedule(3),
                Schedule(2),
                Output(3, 0, 0, 1, 1),
                EndTurn(),
                Fold(2),
                Admit(0),
                Schedule(2),
                StaleOutput(2, 0, 0),
            ),
        ),
    ),
    Fault(
        name="final-chunk-reserves-nothing",
        title="Output of the old turn makes the final prefill chunk look unfinished",
        meaning="A step of the old turn, still in flight, is expected as a token of the new one. The chunk "
        "that completes the prompt reserves no placeholder; when its token arrives the count goes below "
        "zero and the engine stops.",
        reports=("final-chunk-misclassified-no-placeholder",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                "num_expected_tokens = ledger.num_tokens + ledger.num_output_placeholders",
                "num_expected_tokens = (\n        ledger.num_tokens + ledger.num_output_placeholders + "
                "ledger.num_stale_tokens\n    )",
            ),
        ),
        violated=("schedule/effect/placeholders_are_awaited",),
        asynchronous=True,
        pin=Pin(
            Rules(0, 16, True, 0),
            6,
            (
                Admit(0),
                Schedule(6),
                Schedule(1),
                Output(6, 0, 0, 1, 1),
                EndTurn(),
                Fold(4),
                Admit(0),
                Schedule(2),
                Schedule(2),
                StaleOutput(1, 0, 0),
                ChunkOutput(2),
                Output(2, 0, 0, 1, 0),
            ),
            "num_output_placeholders",
            wrong=-1,
            right=0,
        ),
    ),
    Fault(
        name="fold-cuts-at-computed",
        title="A fold cuts at C, which is 0 for a session that stopped while preempted",
        meaning="The session's whole conversation is dropped: the next message is answered as if it were "
        "the first.",
        reports=(),
        changes=(
            Change(ACCOUNTING, "fold", FOLDED, "num_tokens = ledger.num_computed_tokens + num_chunk_tokens"),
        ),
        violated=("fold/theorem/T7/fold_keeps_all_but_one", "fold/effect/kept"),
    ),
    Fault(
        name="fold-keeps-last-token",
        title="A fold keeps the last sampled token, which has no KV",
        meaning="The turn ended on a token that was never computed and that the client does not resend. It "
        "stays in the history, so the engine and the client continue different conversations.",
        reports=("lmdeploy-last-token-not-cached",),
        changes=(Change(ACCOUNTING, "fold", FOLDED, "num_tokens = ledger.num_tokens + num_chunk_tokens"),),
        violated=("fold/theorem/T7/fold_keeps_all_but_one", "fold/effect/kept"),
        pin=Pin(
            Rules(0, 16, False, 0),
            3,
            (
                Admit(0),
                Schedule(3),
                Output(3, 0, 0, 1, 0),
                Schedule(1),
                Output(1, 0, 0, 1, 1),
                EndTurn(),
                Fold(2),
            ),
            "num_tokens",
            wrong=7,
            right=6,
        ),
    ),
    Fault(
        name="idle-session-keeps-its-count",
        title="A session's blocks are taken between turns, its count of computed tokens stays",
        meaning="Somebody else's text is written into the blocks of a session that does not run. Its next "
        "turn starts where it left off and attends to KV that is not its own.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "preempt",
                "num_computed_tokens=0",
                "num_computed_tokens=where(ledger.status == RUNNING, 0, ledger.num_computed_tokens)",
            ),
        ),
        violated=(
            "preempt/effect/starts_over",
            "preempt/invariant/settled_is_computed_less_live",
            "preempt/invariant/preempted_has_no_kv",
        ),
        shown_by="schedule/theorem/T3/step_reads_valid_kv",
    ),
    Fault(
        name="idle-session-starts-by-itself",
        title="A session that has its blocks taken between turns is scheduled without a next chunk",
        meaning="Nobody asked for more, yet the session waits among the preempted requests, is computed "
        "again and goes on talking.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "preempt",
                "status=where(ledger.status == PAUSED, ledger.status, PREEMPTED)",
                "status=PREEMPTED",
            ),
        ),
        violated=("preempt/effect/preempted_or_still_paused",),
    ),
    Fault(
        name="fold-while-running",
        title="The next chunk is queued while the session is still running",
        meaning="The session is in the waiting and in the running list at once. The scheduler pops a "
        "request marked running from the wrong list and the engine dies.",
        reports=("session-requeued-while-running",),
        changes=(
            Change(
                GUARDS,
                "fold",
                '"paused": state.ledger.status == PAUSED',
                '"paused": either(state.ledger.status == PAUSED, state.ledger.status == RUNNING)',
            ),
        ),
        violated=("fold/invariant/nothing_live_unless_running",),
    ),
    Fault(
        name="hashes-only-grow",
        title="The fold drops a token, its block's hash stays",
        meaning="A block completed by the dropped token keeps its fingerprint and is published with the new "
        "message's content: another request reads KV of tokens it did not send.",
        reports=("session-stale-block-hash",),
        changes=(
            Change(
                DECISIONS,
                "hashes_to_keep",
                "floor_to_block(ledger.num_tokens - 1, rules.block_size)",
                "floor_to_block(ledger.num_tokens, rules.block_size)",
            ),
        ),
        violated=("hashes_to_keep/relation/of_kept_tokens",),
        pin=Pin(
            Rules(0, 16, False, 0),
            15,
            (Admit(0), Schedule(15), Output(15, 0, 0, 1, 1), EndTurn()),
            "decision",
            wrong=16,
            right=0,
            decision=Decision("hashes_to_keep", HashesToKeep()),
        ),
    ),
    Fault(
        name="hashes-cut-at-overshot-computed",
        title="Hashes are cut at C while C still counts trimmed tokens",
        meaning="Cutting at C looks careful, but with the trim fault C lies beyond the text: hashes of "
        "tokens that are gone survive the fold.",
        reports=(),
        changes=(
            TRIM_STAYS_COUNTED,
            Change(
                DECISIONS,
                "hashes_to_keep",
                "floor_to_block(ledger.num_tokens - 1, rules.block_size)",
                "floor_to_block(ledger.num_computed_tokens, rules.block_size)",
            ),
        ),
        violated=("hashes_to_keep/relation/all_of_them", "output/effect/frontier"),
        shown_by="hashes_to_keep/relation/of_kept_tokens",
        asynchronous=False,
    ),
    Fault(
        name="resumed-session-starts-early",
        title="A retried turn starts one token below what the session kept",
        meaning="The retry passes one token less than is computed. New slots replace table entries of the "
        "old tail, which nobody frees: the pool shrinks turn by turn.",
        reports=("sglang-session-retract-tail-leak",),
        changes=(
            Change(
                ACCOUNTING,
                "admit",
                "num_computed_tokens=where(starts_at_zero, num_hit_tokens, ledger.num_computed_tokens)",
                "num_computed_tokens=where(starts_at_zero, num_hit_tokens, ledger.num_computed_tokens - 1)",
            ),
        ),
        violated=("admit/effect/kept_kv_is_kept",),
        pin=Pin(
            Rules(3, 16, False, 0),
            8,
            (Admit(0), Schedule(8), Output(8, 0, 0, 1, 1), EndTurn(), Fold(2), Admit(0)),
            "num_computed_tokens",
            wrong=7,
            right=8,
        ),
    ),
)
