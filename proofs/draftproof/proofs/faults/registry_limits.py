"""Faults of what may be scheduled: drafts, budget, length limits, seats and the drafter's buffers."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, GUARDS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import DraftBuffer, DraftsAllowed, SeatsFree, TokensToSchedule
from draftproof.spec.events import Admit, ChunkOutput, Output, Preempt, Schedule
from draftproof.spec.ledger import Rules

AT_LIMIT = "at_limit = ledger.num_tokens + num_awaited_outputs >= max_num_tokens"

FAULTS = (
    Fault(
        name="scheduled-before-its-token",
        title="With pipeline stages a request runs again before its last token is there",
        meaning="Drafts make a request runnable although the output that its next input depends on has not "
        "come back: a later step computes on tokens that are not known yet.",
        reports=("pp-sync-cadence-not-enforced",),
        changes=(
            Change(
                GUARDS,
                "schedulable",
                "        implies(negate(rules.asynchronous), ghosts.num_awaited_samples == 0),\n",
                "",
            ),
            Change(
                GUARDS,
                "draft",
                '        "nothing_in_flight": both(ghosts.num_awaited_samples == 0, '
                "ghosts.num_prefill_in_flight == 0),\n",
                "",
            ),
        ),
        violated=(
            "schedule/theorem/T2/step_starts_at_known_token",
            "schedule/invariant/one_completing_sample_when_synchronous",
        ),
        asynchronous=False,
        # The report is about a request that decodes: its prompt has returned before.
        limits=(("passes", "output"),),
    ),
    Fault(
        name="prefill-chunk-takes-drafts",
        title="A prefill chunk that is not the last one carries drafts",
        meaning="Drafts are attached to a request that is still reading its prompt. A grammar validates "
        "them against nothing, fails, and the engine goes down.",
        reports=("structured-prefill-chunk-takes-drafts",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                "num_draft_tokens=where(reserves, rules.num_speculative_tokens, 0)",
                "num_draft_tokens=where(rules.asynchronous, rules.num_speculative_tokens, 0)",
            ),
        ),
        violated=("schedule/effect/drafts_reserved", "schedule/invariant/no_drafts_before_decode"),
        shown_by="schedule/invariant/no_drafts_before_decode",
        asynchronous=True,
        pin=Pin(
            Rules(2, 16, True, 0),
            10,
            (Admit(0), Schedule(4)),
            "num_draft_tokens",
            wrong=2,
            right=0,
        ),
    ),
    Fault(
        name="chunk-cuts-lookahead",
        title="A prefill chunk leaves fewer known tokens than the drafter reads",
        meaning="The modules of a multi-token predictor each read one token further. Where a chunk leaves "
        "some of the prompt, but less than they read, the last ones are fed guesses in place of known "
        "tokens, and what they wrote there stays in their cache.",
        reports=(),
        changes=(
            Change(
                DECISIONS,
                "tokens_before_lookahead",
                "return where(cuts_lookahead, before_lookahead, num_new_tokens)",
                "return num_new_tokens",
            ),
        ),
        violated=("tokens_before_lookahead/relation/leaves_none_or_the_lookahead",),
    ),
    Fault(
        name="short-prompt-waits-for-lookahead",
        title="The end of a prompt waits for look-ahead that will never come",
        meaning="The last chunk leaves nothing for the drafter to read either. Held back for that, a request "
        "is never scheduled to its end.",
        reports=(),
        changes=(
            Change(
                DECISIONS,
                "tokens_before_lookahead",
                "both(num_left > 0, num_left < num_prefill_lookahead_tokens)",
                "num_left < num_prefill_lookahead_tokens",
            ),
        ),
        violated=(
            "tokens_before_lookahead/relation/never_passed_over",
            "tokens_before_lookahead/relation/as_many_as_allowed",
        ),
    ),
    Fault(
        name="drafts-past-model-length",
        title="The drafter proposes beyond the model's length",
        meaning="Near the end of the context the drafts do not fit: positions outside the tables are read "
        "and the engine crashes.",
        reports=("ngram-gpu-past-model-len",),
        changes=(
            Change(
                DECISIONS,
                "drafts_allowed",
                "return minimum(rules.num_speculative_tokens, max_model_len - ledger.num_tokens)",
                "return rules.num_speculative_tokens",
            ),
        ),
        violated=("drafts_allowed/relation/within_model_length",),
        pin=Pin(
            Rules(3, 16, False, 0),
            15,
            (),
            "decision",
            wrong=3,
            right=1,
            decision=Decision("drafts_allowed", DraftsAllowed(max_model_len=16)),
        ),
    ),
    Fault(
        name="awaited-drafts-count-as-accepted",
        title="The length guard counts drafts in flight as accepted",
        meaning="A request near its limit is left out of the step although all its drafts may be rejected. "
        "It has to come back for its last one or two tokens.",
        reports=("async-stops-scheduling-too-early",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_schedule",
                AT_LIMIT,
                "at_limit = ledger.num_tokens + ledger.num_output_placeholders >= max_num_tokens",
            ),
        ),
        violated=("tokens_to_schedule/relation/never_passed_over",),
        asynchronous=True,
        pin=Pin(
            Rules(3, 16, True, 0),
            4,
            (
                Admit(0),
                Schedule(4),
                Output(4, 0, 0, 1, 0),
                Schedule(4),
                Output(4, 3, 2, 3, 0),
                Schedule(4),
            ),
            "decision",
            wrong=0,
            right=4,
            decision=Decision(
                "tokens_to_schedule",
                TokensToSchedule(
                    token_budget=16,
                    max_model_len=64,
                    max_num_tokens=12,
                    num_awaited_outputs=1,
                    chunk_alignment=1,
                ),
            ),
        ),
    ),
    Fault(
        name="one-step-past-the-limit",
        title="A step is dispatched for tokens that can no longer be kept",
        meaning="Every request that ends by length runs one more step for nothing, in the place of one "
        "that would have served somebody.",
        reports=("one-step-past-max-tokens",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_schedule",
                "return where(at_limit, 0, maximum(where(end < ledger.num_tokens, aligned, unaligned), 0))",
                "return maximum(where(end < ledger.num_tokens, aligned, unaligned), 0)",
            ),
        ),
        violated=("tokens_to_schedule/relation/nothing_past_the_limit",),
        asynchronous=True,
        query_after="schedule",
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (Admit(0), Schedule(3), Schedule(1)),
            "decision",
            wrong=1,
            right=0,
            decision=Decision(
                "tokens_to_schedule",
                TokensToSchedule(
                    token_budget=16,
                    max_model_len=64,
                    max_num_tokens=5,
                    num_awaited_outputs=2,
                    chunk_alignment=1,
                ),
            ),
        ),
    ),
    Fault(
        name="budget-charged-with-estimated-reuse",
        title="The budget is charged less what the cache is hoped to hold",
        meaning="Reuse is estimated from what was published earlier. When it was evicted in the meantime "
        "the batch is larger than the engine allows, and every request in it fails.",
        reports=("trtllm-reuse-estimate-too-high",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_schedule",
                "minimum(num_schedulable(ledger), token_budget)",
                "minimum(num_schedulable(ledger), token_budget + ledger.num_registered_at_preemption)",
            ),
        ),
        violated=("tokens_to_schedule/relation/within_budget",),
        pin=Pin(
            Rules(0, 2, False, 0),
            7000,
            (Admit(0), Schedule(2890), ChunkOutput(2890), Preempt(False), Admit(0)),
            "decision",
            wrong=6986,
            right=4096,
            decision=Decision(
                "tokens_to_schedule",
                TokensToSchedule(
                    token_budget=4096,
                    max_model_len=16_384,
                    max_num_tokens=16_384,
                    num_awaited_outputs=0,
                    chunk_alignment=1,
                ),
            ),
        ),
    ),
    Fault(
        name="residents-take-seats",
        title="Requests that only await output take a seat in the step",
        meaning="A step admits nobody and computes nothing although its seats are free.",
        reports=("resident-not-scheduled-blocks-admission",),
        changes=(
            Change(
                DECISIONS,
                "seats_free",
                "max_num_seqs - num_scheduled_requests",
                "max_num_seqs - num_resident_requests",
            ),
        ),
        violated=("seats_free/relation/all_seats",),
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (),
            "decision",
            wrong=0,
            right=2,
            decision=Decision(
                "seats_free",
                SeatsFree(num_scheduled_requests=0, num_resident_requests=2, max_num_seqs=2),
            ),
            own_numbers="free seats; the report counts the one request that is waiting for them",
        ),
    ),
    Fault(
        name="buffer-without-parallel-drafts",
        title="A parallel drafter's buffers are sized by the target's batch",
        meaning="A drafter that issues 1 + K tokens a request at once writes past its buffers.",
        reports=("dflash-buffer-smaller-than-query",),
        changes=(
            Change(
                DECISIONS,
                "draft_buffer",
                "return maximum(max_num_batched_tokens + max_num_seqs, "
                "max_num_seqs * (1 + rules.num_speculative_tokens))",
                "return max_num_batched_tokens",
            ),
        ),
        violated=("draft_buffer/relation/holds_parallel_drafts",),
        pin=Pin(
            Rules(12, 16, False, 0),
            1,
            (),
            "decision",
            wrong=2048,
            right=3328,
            decision=Decision("draft_buffer", DraftBuffer(max_num_batched_tokens=2048, max_num_seqs=256)),
        ),
    ),
    Fault(
        name="buffer-without-extra-token",
        title="A draft model's extra token per request is not in the batch limit",
        meaning="A full batch becomes larger than the largest one that was prepared for, and the step fails.",
        reports=("draft-model-one-extra-per-seq",),
        changes=(
            Change(
                DECISIONS, "draft_buffer", "max_num_batched_tokens + max_num_seqs,", "max_num_batched_tokens,"
            ),
        ),
        violated=("draft_buffer/relation/holds_the_target_batch",),
        pin=Pin(
            Rules(1, 16, False, 0),
            1,
            (),
            "decision",
            wrong=2048,
            right=2080,
            decision=Decision("draft_buffer", DraftBuffer(max_num_batched_tokens=2048, max_num_seqs=32)),
        ),
    ),
)
