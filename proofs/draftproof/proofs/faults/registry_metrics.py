"""Faults of what is reported: cached tokens, acceptance length, acceptance rate."""

from __future__ import annotations

from draftproof.proofs.faults.fault import DECISIONS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import CountAdmission, CountOutput, Metrics
from draftproof.spec.events import Admit, Draft, Output, Preempt, Schedule
from draftproof.spec.ledger import Rules

_NOTHING_YET = Metrics(0, 0, 0, 0, 0, 0, 0)

FAULTS = (
    Fault(
        name="acceptance-counts-trimmed",
        title="The acceptance length counts tokens that a stop cut off",
        meaning="The mean number of tokens a verify step brings is reported too high, most of all for short "
        "answers.",
        reports=("acceptance-length-counts-cut",),
        changes=(
            Change(
                DECISIONS,
                "count_output",
                "metrics.num_emitted_tokens + where(verified, num_kept, 0)",
                "metrics.num_emitted_tokens + where(verified, num_accepted + 1, 0)",
            ),
        ),
        violated=("count_output/relation/emitted_is_delivered",),
        query_after="output",
        pin=Pin(
            Rules(5, 16, False, 0),
            3,
            (),
            "decision.num_emitted_tokens",
            wrong=6,
            right=3,
            decision=Decision(
                "count_output",
                CountOutput(metrics=_NOTHING_YET, num_drafts=5, num_accepted=5, num_kept=3),
            ),
        ),
    ),
    Fault(
        name="acceptance-divided-by-steps",
        title="The acceptance rate divides by the drafter's steps, not by the drafts verified",
        meaning="A tree of eight drafts from three steps is counted as four: the reported rate is twice "
        "the real one.",
        reports=("sglang-acceptance-denominator",),
        changes=(
            Change(
                DECISIONS,
                "count_output",
                "metrics.num_drafts_verified + num_drafts",
                "metrics.num_drafts_verified + rules.num_speculative_tokens + 1",
            ),
        ),
        violated=("count_output/relation/denominator",),
        query_after="output",
        pin=Pin(
            Rules(3, 16, False, 0),
            3,
            (),
            # One of the report's ten rounds: 40 against 80 after all of them.
            "decision.num_drafts_verified",
            wrong=4,
            right=8,
            decision=Decision(
                "count_output",
                CountOutput(metrics=Metrics(1, 0, 0, 0, 0, 0, 0), num_drafts=8, num_accepted=2, num_kept=3),
            ),
        ),
    ),
    Fault(
        name="cached-tokens-recounted",
        title="Every resumption adds its hit to the cached tokens",
        meaning="A request that was retracted reports more cached tokens than its prompt has, and is "
        "billed by them.",
        reports=("sglang-cached-tokens-recounted",),
        changes=(
            Change(
                DECISIONS,
                "count_admission",
                "first, minimum(num_hit_tokens, ledger.num_prompt_tokens), metrics.num_cached_tokens",
                "first,\n            minimum(num_hit_tokens, ledger.num_prompt_tokens),\n"
                "            metrics.num_cached_tokens + num_hit_tokens,",
            ),
        ),
        violated=("count_admission/relation/counted_once",),
        query_after="preempt",
        # The report prints 122,884: two hits that each leave one token. How long the reply was when it was
        # retracted follows from the sum (2,994 tokens); that one step brought nearly all of it is only short.
        pin=Pin(
            Rules(2992, 1, False, 0),
            59_946,
            (
                *(Admit(59_945), Schedule(1), Output(1, 0, 0, 1, 0)),
                *(Draft(2992), Schedule(2993), Output(2993, 2992, 2992, 2993, 0), Preempt(False)),
            ),
            "decision.num_cached_tokens",
            wrong=122_884,
            right=59_945,
            decision=Decision(
                "count_admission",
                CountAdmission(
                    metrics=Metrics(1, 59_945, 0, 0, 0, 0, 0), num_hit_tokens=62_939, num_external_tokens=0
                ),
            ),
        ),
    ),
    Fault(
        name="external-hit-refreshed",
        title="The external hit is counted again when a request resumes, the total is not",
        meaning="The request saved its own KV outside in the meantime, so the external part exceeds the "
        "total. The local part becomes negative and the metrics library ends the engine.",
        reports=("external-hit-grows-after-preempt",),
        changes=(
            Change(
                DECISIONS,
                "count_admission",
                "first, minimum(num_external_tokens, ledger.num_prompt_tokens), metrics.num_external_tokens",
                "first,\n            minimum(num_external_tokens, ledger.num_prompt_tokens),\n"
                "            minimum(num_external_tokens, ledger.num_prompt_tokens),",
            ),
        ),
        violated=("count_admission/relation/order", "count_admission/relation/counted_once"),
        query_after="preempt",
        # Cached 768 of them: the local part is 768 - 8,448 = -7,680.
        pin=Pin(
            Rules(0, 1, False, 0),
            17_050,
            (),
            "decision.num_external_tokens",
            wrong=8448,
            right=0,
            decision=Decision(
                "count_admission",
                CountAdmission(
                    metrics=Metrics(1, 768, 0, 0, 0, 0, 0), num_hit_tokens=8448, num_external_tokens=8448
                ),
            ),
        ),
    ),
)
