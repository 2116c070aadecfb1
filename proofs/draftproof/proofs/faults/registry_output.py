"""Faults of an output's return: trimmed tokens, rejected drafts and reserved placeholders."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, GUARDS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import TokensToKeep
from draftproof.spec.events import Admit, EndTurn, Fold, Output, Schedule
from draftproof.spec.events import Draft as Drafts
from draftproof.spec.ledger import Rules

COMPUTED = "num_computed_tokens = ledger.num_computed_tokens - num_rejected - num_trimmed"
PLACEHOLDERS = "ledger.num_output_placeholders - num_rejected - num_generated"

TRIM_STAYS_COUNTED = Change(
    ACCOUNTING, "output", COMPUTED, "num_computed_tokens = ledger.num_computed_tokens - num_rejected"
)
TRIM_STAYS_RESERVED = Change(
    ACCOUNTING, "output", PLACEHOLDERS, "ledger.num_output_placeholders - num_rejected - num_kept"
)
VLLM_FOLD = Change(
    ACCOUNTING,
    "fold",
    "num_tokens = ledger.num_tokens - 1 + num_chunk_tokens",
    "num_tokens = minimum(ledger.num_computed_tokens, ledger.num_tokens) + num_chunk_tokens",
)
"""vLLM's fold keeps min(C, N) tokens; ours keeps N - 1 and so hides what a wrong C does to the text."""

_SYNCHRONOUS = Rules(2, 16, False, 0)
_ASYNCHRONOUS = Rules(2, 16, True, 0)
_FIRST_STEP = (Admit(0), Schedule(3))
_FIRST_OUTPUT = Output(3, 0, 0, 1, 0)
_STOP_ON_FIRST_DRAFT = Output(3, 2, 2, 1, 1)

FAULTS = (
    Fault(
        name="trim-uncounted",
        title="A stop cuts tokens off, but they stay counted as computed",
        meaning="A verify step stops on an accepted draft. The tokens after it leave the text, yet the "
        "counter keeps them. The session's next message starts behind the counter: its first tokens are "
        "never computed and read the KV of drafts that were cut off. The answer is silently wrong.",
        reports=("trim-stop-on-accepted-draft-sync", "session-computed-beyond-prompt"),
        changes=(TRIM_STAYS_COUNTED,),
        violated=("output/theorem/T2/output_moves_frontier_by_kept", "output/effect/frontier"),
        shown_by="fold/theorem/T1/computed_is_known_at_fold",
        asynchronous=False,
        engine_rules=(VLLM_FOLD,),
        pin=Pin(
            _SYNCHRONOUS,
            3,
            (*_FIRST_STEP, _FIRST_OUTPUT, Drafts(2), Schedule(3), _STOP_ON_FIRST_DRAFT, EndTurn(), Fold(2)),
            "num_computed_tokens",
            wrong=6,
            right=4,
        ),
    ),
    Fault(
        name="trim-placeholders-leaked",
        title="Placeholders of trimmed tokens are never given back (and C keeps the tokens)",
        meaning="Asynchronously both counters keep the trimmed tokens, so their difference looks right. "
        "Whatever reads the placeholders alone sees outputs on their way that will never come.",
        reports=("trim-placeholders-leak-async",),
        changes=(TRIM_STAYS_COUNTED, TRIM_STAYS_RESERVED),
        violated=("output/effect/placeholders_are_awaited",),
        asynchronous=True,
        pin=Pin(
            _ASYNCHRONOUS,
            3,
            (*_FIRST_STEP, Schedule(3), _FIRST_OUTPUT, _STOP_ON_FIRST_DRAFT),
            "num_output_placeholders",
            wrong=2,
            right=0,
        ),
    ),
    Fault(
        name="trim-placeholders-kept",
        title="Trimmed tokens are uncounted, but their placeholders stay reserved",
        meaning="Half of the trim fix: C goes down and P does not, so C - P falls behind the text. At the "
        "end of the turn a token that was computed counts as not computed.",
        reports=(),
        changes=(TRIM_STAYS_RESERVED,),
        violated=(
            "output/theorem/T2/output_moves_frontier_by_kept",
            "output/effect/placeholders_are_awaited",
        ),
        shown_by="end_turn/effect/all_but_the_last_computed",
        asynchronous=True,
    ),
    Fault(
        name="rejections-stay-computed",
        title="Rejected drafts are not taken back from C",
        meaning="The KV of drafts the model refused counts as the text's own, and the next step writes "
        "after it: everything that follows reads wrong context.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "output",
                COMPUTED,
                "num_computed_tokens = ledger.num_computed_tokens - num_trimmed",
            ),
        ),
        violated=("output/theorem/T2/output_moves_frontier_by_kept", "output/effect/frontier"),
    ),
    Fault(
        name="rejections-stay-reserved",
        title="Placeholders of rejected drafts are not given back",
        meaning="Asynchronously every rejected draft leaves an output reserved that never arrives: C - P "
        "falls behind the text and known tokens are computed again and again.",
        reports=(),
        changes=(
            Change(ACCOUNTING, "output", PLACEHOLDERS, "ledger.num_output_placeholders - num_generated"),
        ),
        violated=(
            "output/theorem/T2/output_moves_frontier_by_kept",
            "output/effect/placeholders_are_awaited",
        ),
        asynchronous=True,
    ),
    Fault(
        name="one-placeholder-per-output",
        title="An output of several tokens gives back one placeholder",
        meaning="Accepted drafts stay reserved although they have arrived: C - P falls behind the text with "
        "every draft that is right, and known tokens are computed again.",
        reports=(),
        changes=(
            Change(ACCOUNTING, "output", PLACEHOLDERS, "ledger.num_output_placeholders - num_rejected - 1"),
        ),
        violated=("output/effect/placeholders_are_awaited",),
        asynchronous=True,
        pin=Pin(
            _ASYNCHRONOUS,
            3,
            (*_FIRST_STEP, Schedule(3), _FIRST_OUTPUT, Output(3, 2, 2, 3, 0)),
            "num_output_placeholders",
            wrong=2,
            right=0,
            own_numbers="no report tells this fault",
        ),
    ),
    Fault(
        name="trimmed-tokens-stay-known",
        title="What a stop cut off stays in the text",
        meaning="C and P give up the tokens after the stop, N keeps them: the third of the three counters "
        "that a trim must lower. The request goes on from a text that the client does not have.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "output",
                "num_tokens=ledger.num_tokens + num_kept",
                "num_tokens=ledger.num_tokens + num_generated",
            ),
        ),
        violated=("output/effect/known",),
        pin=Pin(
            _SYNCHRONOUS,
            3,
            (*_FIRST_STEP, _FIRST_OUTPUT, Drafts(2), Schedule(3), _STOP_ON_FIRST_DRAFT),
            "num_tokens",
            wrong=7,
            right=5,
            own_numbers="no report tells this fault",
        ),
    ),
    Fault(
        name="output-appended-twice",
        title="A step's tokens are appended twice",
        meaning="Nobody notices while the request runs. When it is preempted and rebuilt from that list, "
        "the model reads every output token twice.",
        reports=("gaudi-output-appended-twice",),
        changes=(
            Change(
                ACCOUNTING,
                "output",
                "num_tokens=ledger.num_tokens + num_kept",
                "num_tokens=ledger.num_tokens + 2 * num_kept",
            ),
        ),
        violated=("output/effect/known",),
        pin=Pin(
            _SYNCHRONOUS,
            3,
            # Two outputs, listed as four (N less the prompt). The doubled list makes the second step compute
            # a token that does not exist.
            (*_FIRST_STEP, _FIRST_OUTPUT, Schedule(2), Output(2, 0, 0, 1, 0)),
            "num_tokens",
            wrong=7,
            right=5,
            right_events=(*_FIRST_STEP, _FIRST_OUTPUT, Schedule(1), Output(1, 0, 0, 1, 0)),
        ),
    ),
    Fault(
        name="verified-more-than-scheduled",
        title="A step commits more tokens than it was scheduled for",
        meaning="A block drafter returns four tokens for a step of one. Slots, placeholders and the length "
        "limit were planned for one: the rest lands in memory that nobody reserved.",
        reports=("verified-more-than-scheduled",),
        changes=(
            Change(
                GUARDS,
                "output",
                "event.num_accepted >= 0, event.num_accepted <= event.num_drafts",
                "event.num_accepted >= 0",
            ),
        ),
        violated=("output/theorem/T2/kept_were_scheduled",),
        # Four tokens of a step of one: N is 3 + 1 + 4.
        pin=Pin(
            Rules(3, 16, False, 0),
            3,
            (*_FIRST_STEP, _FIRST_OUTPUT, Schedule(1), Output(1, 0, 3, 4, 0)),
            "num_tokens",
            wrong=8,
            right=5,
            right_events=(*_FIRST_STEP, _FIRST_OUTPUT, Schedule(1), Output(1, 0, 0, 1, 0)),
        ),
    ),
    Fault(
        name="length-limit-precedes-stop-token",
        title="The length limit is tested before the stop token",
        meaning="An accepted run holds the end token and also crosses the limit. Cut by length alone, it "
        "hands the client junk that was sampled after the end.",
        reports=("sglang-length-check-before-eos",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_keep",
                "return minimum(minimum(num_generated, stop_index + 1), max_num_tokens - ledger.num_tokens)",
                "room = max_num_tokens - ledger.num_tokens\n"
                "    return where(num_generated >= room, room, minimum(num_generated, stop_index + 1))",
            ),
        ),
        violated=("tokens_to_keep/relation/nothing_after_a_stop",),
        pin=Pin(
            Rules(3, 16, False, 0),
            3,
            (*_FIRST_STEP, _FIRST_OUTPUT),
            "decision",
            wrong=3,
            right=2,
            decision=Decision(
                "tokens_to_keep", TokensToKeep(num_generated=4, stop_index=1, max_num_tokens=7)
            ),
        ),
    ),
    Fault(
        name="block-charged-before-emission",
        title="The whole accepted block is charged before it is emitted",
        meaning="The limit counts tokens that were not sent yet, so the reply ends short of the length that "
        "was asked for, while the usage reports the full one.",
        reports=("ikllama-block-charged-before-emit",),
        changes=(
            Change(
                DECISIONS,
                "tokens_to_keep",
                "return minimum(minimum(num_generated, stop_index + 1), max_num_tokens - ledger.num_tokens)",
                "charged = ledger.num_tokens + num_generated\n"
                "    return where(charged >= max_num_tokens, 1, minimum(num_generated, stop_index + 1))",
            ),
        ),
        violated=("tokens_to_keep/relation/as_many_as_allowed",),
        # Five of eight tokens are generated when four drafts are accepted: three more may be kept. The report
        # says only "fewer" of the wrong reply.
        pin=Pin(
            Rules(4, 16, False, 0),
            3,
            (*_FIRST_STEP, _FIRST_OUTPUT, Drafts(3), Schedule(4), Output(4, 3, 3, 4, 0)),
            "decision",
            wrong=1,
            right=3,
            decision=Decision(
                "tokens_to_keep", TokensToKeep(num_generated=5, stop_index=5, max_num_tokens=11)
            ),
        ),
    ),
)
