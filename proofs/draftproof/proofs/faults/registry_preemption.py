"""Faults of preemption and resuming: stale output, discards, phases told from the wrong count."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import SlotsToAdmit, TokensToSchedule
from draftproof.spec.events import Admit, Draft, Event, Output, Preempt, Schedule, StaleOutput
from draftproof.spec.ledger import Rules

SAMPLES = "samples = num_computed_tokens >= num_expected_tokens"

_DRAIN: tuple[Event, ...] = (
    Admit(0),
    Schedule(3),
    Output(3, 0, 0, 1, 0),
    Schedule(1),
    Schedule(1),
    Preempt(True),
    Admit(0),
    Schedule(4),
    StaleOutput(1, 0, 0),
    Schedule(1),
    StaleOutput(1, 0, 0),
)

FAULTS = (
    Fault(
        name="stale-output-releases-placeholders",
        title="Late output of a preempted request is taken off counters that were reset",
        meaning="A preemption resets the request while steps are in flight. Their output lowers the new "
        "life's placeholders below zero, and the engine's assertion ends it.",
        reports=("preempt-placeholder-underflow",),
        changes=(
            Change(
                ACCOUNTING,
                "stale_output",
                "num_output_placeholders=ledger.num_output_placeholders",
                "num_output_placeholders=ledger.num_output_placeholders - num_kept",
            ),
        ),
        violated=(
            "stale_output/theorem/T5/no_underflow",
            "stale_output/effect/num_output_placeholders_unchanged",
        ),
        asynchronous=True,
        # Late output can return to an aborted request too; this is about a preempted one.
        limits=(("passes", "preempt"),),
        pin=Pin(
            Rules(2, 16, True, 0),
            3,
            (
                Admit(0),
                Schedule(3),
                Schedule(3),
                Output(3, 0, 0, 1, 0),
                Preempt(False),
                StaleOutput(3, 3, 0),
            ),
            "num_output_placeholders",
            wrong=-3,
            right=0,
        ),
    ),
    Fault(
        name="stale-rejection-rolls-back",
        title="A rejection from before a preemption lowers the resumed request's count",
        meaning="The resumed request has computed its tokens again. A late verdict on old drafts takes some "
        "of them back, and the next step overwrites good KV in the wrong place.",
        reports=("stale-rejection-after-preempt",),
        changes=(
            Change(
                ACCOUNTING,
                "stale_output",
                "num_computed_tokens=ledger.num_computed_tokens",
                "num_computed_tokens=ledger.num_computed_tokens - (num_returned - num_kept)",
            ),
        ),
        violated=("stale_output/effect/num_computed_tokens_unchanged",),
        asynchronous=True,
        # Late output can return to an aborted request too; this is about a preempted one.
        limits=(("passes", "preempt"),),
        pin=Pin(
            Rules(3, 16, True, 0),
            4,
            (
                Admit(0),
                Schedule(4),
                Schedule(4),
                Output(4, 0, 0, 1, 0),
                Preempt(True),
                Admit(0),
                Schedule(5),
                StaleOutput(4, 1, 0),
            ),
            "num_computed_tokens",
            wrong=2,
            right=5,
        ),
    ),
    Fault(
        name="reset-discards-when-drained",
        title="A reset arms one discard although nothing is in flight",
        meaning="After a cache reset on a drained engine the first token of every request is thrown away.",
        reports=("reset-cache-drops-fresh-token",),
        changes=(
            Change(
                ACCOUNTING,
                "preempt",
                "num_stale_tokens=ledger.num_in_flight_tokens",
                "num_stale_tokens=maximum(ledger.num_in_flight_tokens, 1)",
            ),
        ),
        violated=("preempt/effect/nothing_live", "preempt/invariant/in_flight_is_prefill_and_samples"),
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (Admit(0), Schedule(3), Output(3, 0, 0, 1, 0), Preempt(True)),
            "num_stale_tokens",
            wrong=1,
            right=0,
        ),
    ),
    Fault(
        name="drain-discards-new-work",
        title="Steps dispatched during a drain are discarded too, their placeholders stay",
        meaning="While old output is being discarded the scheduler goes on reserving placeholders, and the "
        "discard returns early without giving them back. The length guard then fires too soon.",
        reports=("reset-drain-inflates-placeholders",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                "num_stale_tokens=ledger.num_stale_tokens",
                "num_stale_tokens=where(\n            ledger.num_stale_tokens > 0,\n"
                "            ledger.num_stale_tokens + num_new_tokens,\n"
                "            ledger.num_stale_tokens,\n        )",
            ),
        ),
        violated=("schedule/effect/in_flight",),
        asynchronous=True,
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (*_DRAIN, StaleOutput(4, 0, 0), StaleOutput(1, 0, 0)),
            "num_output_placeholders",
            wrong=2,
            right=0,
            right_events=(*_DRAIN, Output(4, 0, 0, 1, 0), Output(1, 0, 0, 1, 0)),
        ),
    ),
    Fault(
        name="deliverable-output-dropped",
        title="Late output that should be delivered is dropped because P is 0",
        meaning="A preempted request's last token arrives after its placeholders were cleared and is thrown "
        "away. It is generated again, and under pressure the request is preempted again and again.",
        reports=("gaudi-drops-stale-marked-deliverable",),
        changes=(
            Change(
                ACCOUNTING,
                "stale_output",
                "where(ledger.drop_stale, ledger.num_tokens, ledger.num_tokens + num_kept)",
                "where(\n            either(ledger.drop_stale, ledger.num_output_placeholders == 0),\n"
                "            ledger.num_tokens,\n            ledger.num_tokens + num_kept,\n        )",
            ),
        ),
        violated=("stale_output/effect/delivered",),
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (
                Admit(0),
                Schedule(3),
                Schedule(1),
                Output(3, 0, 0, 1, 0),
                Preempt(False),
                StaleOutput(1, 1, 0),
            ),
            "num_tokens",
            wrong=4,
            right=5,
        ),
    ),
    Fault(
        name="preempted-keeps-drafts",
        title="A preempted request keeps its drafts",
        meaning="Two steps after it resumes, drafts for a text that has moved on are scheduled. A grammar "
        "refuses them and the engine dies.",
        reports=("preempted-keeps-draft-ids",),
        changes=(
            Change(ACCOUNTING, "preempt", "num_draft_tokens=0", "num_draft_tokens=ledger.num_draft_tokens"),
        ),
        violated=("preempt/effect/starts_over", "preempt/invariant/nothing_live_unless_running"),
        pin=Pin(
            Rules(1, 16, False, 0),
            3,
            (Admit(0), Schedule(3), Output(3, 0, 0, 1, 0), Draft(1), Preempt(False)),
            "num_draft_tokens",
            wrong=1,
            right=0,
        ),
    ),
    Fault(
        name="resume-needs-one-chunk",
        title="A preempted request resumes as soon as one chunk fits",
        meaning="Its next chunk finds no block, it is preempted again, and so on: the request never "
        "produces another token.",
        reports=("preempt-resume-livelock",),
        changes=(
            Change(
                DECISIONS,
                "slots_to_admit",
                "ledger.num_tokens + num_lookahead_tokens",
                "minimum(ledger.num_tokens, 8) + num_lookahead_tokens",
            ),
        ),
        violated=("slots_to_admit/relation/all_known_fit",),
        query_after="preempt",
        pin=Pin(
            Rules(0, 4, False, 0),
            20,
            (Admit(0), Schedule(8), Preempt(False)),
            "decision",
            wrong=8,
            right=20,
            decision=Decision("slots_to_admit", SlotsToAdmit(num_lookahead_tokens=0)),
        ),
    ),
    Fault(
        name="phase-by-output-count",
        title="A request that has output is taken for decoding",
        meaning="After a preemption prompt and output are computed again, and that prefill is taken for a "
        "decode because output exists. In the report another rank then runs the wrong phase. A ledger knows "
        "phases by one thing only, whether a step samples: a chunk reserves a token that it never brings.",
        reports=("nanovllm-tp-rank-misses-preempt",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                SAMPLES,
                "samples = either(\n        num_computed_tokens >= num_expected_tokens,\n"
                "        ledger.num_tokens > ledger.num_prompt_tokens,\n    )",
            ),
        ),
        violated=("schedule/effect/placeholders_are_awaited",),
        asynchronous=True,
    ),
    Fault(
        name="phase-by-prompt-length",
        title="A step that starts beyond the prompt is taken for decoding",
        meaning="A resumed request replays its own output in chunks. In the report a chunk of hundreds of "
        "tokens enters the model's branch for one token and crashes. A ledger knows phases by one thing "
        "only, whether a step samples: such a chunk reserves a token that it never brings.",
        reports=("omni-replay-chunk-taken-as-decode",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                SAMPLES,
                "samples = either(\n        num_computed_tokens >= num_expected_tokens,\n"
                "        ledger.num_computed_tokens >= ledger.num_prompt_tokens,\n    )",
            ),
        ),
        violated=("schedule/effect/placeholders_are_awaited",),
        asynchronous=True,
    ),
    Fault(
        name="resumed-chunks-unaligned",
        title="Only fresh prompts are split on state boundaries, resumed requests are not",
        meaning="A resumed request's recurrent state is stored between two boundaries and later served as "
        "if it stood on one: wrong text for whoever hits it.",
        reports=("resumed-kept-out-of-align-split",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_schedule",
                "where(end < ledger.num_tokens, aligned, unaligned)",
                "where(\n        both(end < ledger.num_tokens, ledger.num_tokens == ledger.num_prompt_tokens)"
                ",\n        aligned,\n        unaligned,\n    )",
            ),
        ),
        violated=("tokens_to_schedule/relation/chunk_is_aligned",),
        limits=(("chunk_alignment", 2),),
        pin=Pin(
            Rules(2, 8, False, 0),
            10,
            (
                Admit(0),
                Schedule(10),
                Output(10, 0, 0, 1, 0),
                Draft(2),
                Schedule(3),
                Output(3, 2, 1, 2, 0),
                Preempt(False),
                Admit(0),
            ),
            "decision",
            wrong=12,
            right=8,
            decision=Decision(
                "tokens_to_schedule",
                TokensToSchedule(
                    token_budget=12,
                    max_model_len=64,
                    max_num_tokens=32,
                    num_awaited_outputs=0,
                    chunk_alignment=8,
                ),
            ),
            own_numbers="the report's 13 of 13 tokens are a last chunk, which our rule does not cut; "
            "a budget of 12 makes it another",
        ),
    ),
)
