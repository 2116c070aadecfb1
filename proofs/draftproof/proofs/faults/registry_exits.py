"""Faults of registration: what is published on the way and at the exits (finish, preempt, abort)."""

from __future__ import annotations

from draftproof.proofs.faults.fault import ACCOUNTING, GUARDS, Change, Fault, Pin
from draftproof.spec.events import (
    Abort,
    Admit,
    Draft,
    EndTurn,
    Event,
    Finish,
    Fold,
    Output,
    Preempt,
    Schedule,
)
from draftproof.spec.ledger import Rules

REGISTERED = "maximum(ledger.num_registered_tokens, registrable(settled, rules))"
SETTLED_AT_FINISH = "ledger.num_computed_tokens + ledger.num_trimmed_tokens - ledger.num_in_flight_tokens"
AT_FINISH = "minimum(\n        " + SETTLED_AT_FINISH + ",\n        ledger.num_tokens,\n    )"
FINISH_TABLE_NUMBERS = "a row of the table of what a finished request leaves in the cache"
FINISH_REGISTERS_NOTHING = Change(ACCOUNTING, "finish", REGISTERED, "ledger.num_registered_tokens")
FINISH_FORGETS_TRIMMED = Change(
    ACCOUNTING,
    "finish",
    SETTLED_AT_FINISH,
    "ledger.num_computed_tokens - ledger.num_in_flight_tokens",
)


def last_step_accepts_all(num_prompt_tokens: int, asynchronous: bool) -> tuple[Event, ...]:
    """K = 3: prefill, one token, then a step whose three drafts and one more token end the request."""
    prefill = Schedule(num_prompt_tokens)
    first = Output(num_prompt_tokens, 0, 0, 1, 0)
    last = Output(4, 3, 3, 4, 1)
    if asynchronous:
        return (Admit(0), prefill, Schedule(4), first, last, Finish())
    return (Admit(0), prefill, first, Draft(3), Schedule(4), last, Finish())


FAULTS = (
    Fault(
        name="finish-registers-nothing-synchronous",
        title="The last step's blocks are freed before they are published",
        meaning="A verify step accepts drafts and ends the request. The block it filled is never put into "
        "the prefix cache: a repeat of the conversation computes it again.",
        reports=("terminal-accepted-blocks-not-registered",),
        changes=(FINISH_REGISTERS_NOTHING,),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
        asynchronous=False,
        pin=Pin(
            Rules(3, 16, False, 0),
            44,
            last_step_accepts_all(44, asynchronous=False),
            "num_registered_tokens",
            wrong=32,
            right=48,
        ),
    ),
    Fault(
        name="finish-registers-nothing-asynchronous",
        title="The same with asynchronous scheduling: a stop on an accepted draft loses its block",
        meaning="Publishing after each output, up to C - P, hides the loss in most requests. Where the "
        "last kept token was an accepted draft, its block is still lost.",
        reports=(),
        changes=(FINISH_REGISTERS_NOTHING,),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
        asynchronous=True,
        pin=Pin(
            Rules(3, 16, True, 0),
            44,
            (Admit(0), Schedule(44), Schedule(4), Output(44, 0, 0, 1, 0), Output(4, 3, 3, 3, 1), Finish()),
            "num_registered_tokens",
            wrong=32,
            right=48,
            own_numbers=FINISH_TABLE_NUMBERS,
        ),
    ),
    Fault(
        name="finish-registers-nothing-behind-fence",
        title="With several draft modules the last boundary that becomes safe is never published",
        meaning="The drafter's fence keeps trailing positions private until later ones are known. The step "
        "that makes a boundary safe also ends the request, and nobody publishes it afterwards.",
        reports=("terminal-mtp-boundary-not-registered",),
        changes=(
            Change(
                ACCOUNTING,
                "finish",
                REGISTERED,
                "where(\n                rules.registration_fence > 0,\n"
                "                ledger.num_registered_tokens,\n"
                "                maximum(ledger.num_registered_tokens, registrable(settled, rules)),\n"
                "            )",
            ),
        ),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
        limits=(("registration_fence", 2),),
        # A drafter with prefill look-ahead 3 has a fence of 2. The report's 16 tokens are what a look-up
        # hits, which gives a block back: 32 registered tokens serve 16, 16 serve none.
        pin=Pin(
            Rules(3, 16, False, 2),
            30,
            last_step_accepts_all(30, asynchronous=False),
            "num_registered_tokens",
            wrong=16,
            right=32,
        ),
    ),
    Fault(
        name="finish-registers-in-flight",
        title="A finish publishes positions that steps in flight still write",
        meaning="A later step was dispatched on speculation. Its positions are published as the finished "
        "text's KV before, or without, ever holding it.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "finish",
                SETTLED_AT_FINISH,
                "ledger.num_computed_tokens + ledger.num_trimmed_tokens",
            ),
        ),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
        asynchronous=True,
    ),
    Fault(
        name="finish-registers-beyond-known",
        title="A finish publishes past the tokens the client received",
        meaning="Accepted tokens that a stop cut off are published too. Nobody can ask for that suffix, and "
        "a block that ends in it holds other tokens than its key says.",
        reports=("sglang-overshoot-in-radix-key",),
        changes=(Change(ACCOUNTING, "finish", AT_FINISH, "(\n        " + SETTLED_AT_FINISH + "\n    )"),),
        violated=("finish/theorem/T3/registered_is_valid", "finish/effect/published"),
        # The report's counts: a stop at 4,988 tokens with five more accepted, filed under 4,992.
        pin=Pin(
            Rules(7, 1, False, 0),
            4984,
            (
                Admit(0),
                Schedule(4984),
                Output(4984, 0, 0, 1, 0),
                Draft(7),
                Schedule(8),
                Output(8, 7, 7, 3, 1),
                Finish(),
            ),
            "num_registered_tokens",
            wrong=4992,
            right=4988,
        ),
    ),
    Fault(
        name="finish-forgets-trimmed",
        title="Both upstream fixes together lose a block when B divides N",
        meaning="The trim fix uncounts what a stop cut off, one position too many for the terminal "
        "registration: the last kept token was an accepted draft and its KV is there. vLLM 0.33.0 "
        "does this.",
        reports=(),
        changes=(FINISH_FORGETS_TRIMMED,),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
        pin=Pin(
            Rules(3, 16, False, 0),
            44,
            (
                Admit(0),
                Schedule(44),
                Output(44, 0, 0, 1, 0),
                Draft(3),
                Schedule(4),
                Output(4, 3, 3, 3, 1),
                Finish(),
            ),
            "num_registered_tokens",
            wrong=32,
            right=48,
            own_numbers=FINISH_TABLE_NUMBERS,
        ),
    ),
    Fault(
        name="finish-registers-preempted",
        title="A request that is not running registers blocks it no longer has",
        meaning="A preempted request stops when late output is delivered. Its blocks were given back, and "
        "publishing them hands somebody else's KV to the next look-up.",
        reports=(),
        changes=(
            Change(
                ACCOUNTING,
                "finish",
                REGISTERED + ",\n            ledger.num_registered_tokens",
                REGISTERED + ",\n            registrable(ledger.num_tokens - 1, rules)",
            ),
        ),
        violated=("finish/theorem/T4/leaving_registers_settled", "finish/effect/published"),
    ),
    Fault(
        name="preemption-loses-settled",
        title="A preemption throws settled blocks away",
        meaning="The request's blocks are freed without publishing the last full one, so the resumed "
        "request computes it again. vLLM 0.32 does this.",
        reports=(),
        changes=(Change(ACCOUNTING, "preempt", REGISTERED, "ledger.num_registered_tokens"),),
        violated=("preempt/theorem/T4/preemption_registers_settled", "preempt/effect/published"),
        pin=Pin(
            Rules(3, 16, False, 0),
            44,
            (*last_step_accepts_all(44, asynchronous=False)[:5], Output(4, 3, 3, 4, 0), Preempt(False)),
            "num_registered_at_preemption",
            wrong=32,
            right=48,
            own_numbers="the row with full acceptance of the finish table, preempted instead",
        ),
    ),
    Fault(
        name="abort-loses-settled",
        title="An abort throws settled blocks away",
        meaning="A client hangs up. What it had computed is not published, and its next attempt pays "
        "for it again.",
        reports=(),
        changes=(Change(ACCOUNTING, "abort", REGISTERED, "ledger.num_registered_tokens"),),
        violated=("abort/theorem/T4/leaving_registers_settled", "abort/effect/published"),
    ),
    Fault(
        name="blocks-counted-as-tokens",
        title="The computed length is inferred from whole blocks when publishing",
        meaning="The publisher rounds the start down to a block and adds the step. The block that the step "
        "completes is left out of the chain, and later hits end before it.",
        reports=("full-hit-recompute-breaks-chain",),
        changes=(
            Change(
                ACCOUNTING,
                "schedule",
                "registrable(minimum(num_computed_tokens, ledger.num_tokens), rules)",
                "registrable(\n                minimum(\n"
                "                    floor_to_block(ledger.num_computed_tokens, rules.block_size) "
                "+ num_new_tokens,\n                    ledger.num_tokens,\n                ),\n"
                "                rules,\n            )",
            ),
        ),
        violated=("schedule/effect/published",),
        pin=Pin(
            Rules(0, 4, False, 0),
            8,
            (
                Admit(4),
                Schedule(4),
                Output(4, 0, 0, 1, 0),
                *(Schedule(1), Output(1, 0, 0, 1, 0)) * 3,
                Schedule(1),
            ),
            "num_registered_tokens",
            wrong=8,
            right=12,
        ),
    ),
    Fault(
        name="abort-overwrites-kept-count",
        title="An aborted turn writes its own length over the count that was kept",
        meaning="A session's turn was refused and shrunk to one token, but it still saves that length over "
        "all it had kept. In the report the count belongs to a session slot that outlives the turn. Here it "
        "is the request's, which an abort ends: the overwriting is shown, not what the session does next.",
        reports=("sglang-session-abort-overwrites-slot",),
        changes=(
            Change(
                ACCOUNTING,
                "abort",
                "num_computed_tokens=ledger.num_computed_tokens",
                "num_computed_tokens=1",
            ),
        ),
        violated=("abort/effect/num_computed_tokens_unchanged",),
        limits=(("passes", "fold"),),
        pin=Pin(
            Rules(0, 16, False, 0),
            32_768,
            (
                *(Admit(0), Schedule(32_768), Output(32_768, 0, 0, 1, 1), EndTurn()),
                *(Fold(1), Admit(0), Abort()),
            ),
            "num_computed_tokens",
            wrong=1,
            right=32_768,
        ),
    ),
    Fault(
        name="late-output-finishes-again",
        title="An aborted request takes a late output and is finished a second time",
        meaning="The aborted request is kept for a transfer and its steps are not marked stale, so one that "
        "returns late is processed like a running request's. Its blocks are freed twice.",
        reports=("abort-double-free",),
        changes=(
            Change(
                GUARDS,
                "output",
                '"running": both(ledger.status == RUNNING, ledger.stop_pending == 0)',
                '"running": ledger.stop_pending == 0',
            ),
            Change(
                ACCOUNTING,
                "abort",
                "num_stale_tokens=ledger.num_in_flight_tokens",
                "num_stale_tokens=ledger.num_stale_tokens",
            ),
        ),
        # That an output then comes to a finished request is what the trace shows: while an abort leaves
        # nothing live, the queue alone keeps it away.
        violated=("abort/theorem/T14/leaving_finishes", "abort/effect/nothing_live"),
        shown_by="finish/theorem/T14/was_not_finished",
    ),
)
