"""Faults of slots, windows and blocks: how much is held, how much is let go, and when."""

from __future__ import annotations

from draftproof.proofs.faults.fault import DECISIONS, Change, Decision, Fault, Pin
from draftproof.spec.decision_inputs import MayRelease, SlotsToReserve, WindowToPrune
from draftproof.spec.events import Abort, Admit, ChunkOutput, Draft, Finish, Output, Schedule
from draftproof.spec.ledger import Rules

RESERVED = "return ledger.num_computed_tokens + num_lookahead_tokens"
SETTLED = "settled = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)"

FAULTS = (
    Fault(
        name="capacity-from-host-count",
        title="Slots are reserved from the host's count while the device runs a round ahead",
        meaning="The drafts of the round in flight cross a block's edge. The kernel reads an empty entry of "
        "the block table and faults.",
        reports=("trtllm-device-ahead-of-host-capacity",),
        changes=(
            Change(
                DECISIONS,
                "slots_to_reserve",
                RESERVED,
                "one_round = 1 + rules.num_speculative_tokens\n"
                "    host_position = ledger.num_computed_tokens - ledger.num_output_placeholders\n"
                "    return host_position + one_round + num_lookahead_tokens",
            ),
        ),
        violated=("slots_to_reserve/relation/covers_every_write",),
        asynchronous=True,
        query_after="schedule",
        pin=Pin(
            Rules(3, 32, True, 0),
            28,
            # The last position written is the report's 35: 36 slots, two blocks of 32.
            (Admit(0), Schedule(28), Output(28, 0, 0, 1, 0), Schedule(4), Schedule(4)),
            "decision",
            wrong=32,
            right=36,
            decision=Decision("slots_to_reserve", SlotsToReserve(num_lookahead_tokens=0)),
        ),
    ),
    Fault(
        name="draft-space-reserved-twice",
        title="Draft space is reserved twice because the committed count lags",
        meaning="Every request holds slots that nothing will write. Under load they push useful prefixes "
        "out of the cache.",
        reports=("sglang-double-reserve-evicts",),
        changes=(
            Change(
                DECISIONS,
                "slots_to_reserve",
                RESERVED,
                "return ledger.num_computed_tokens + ledger.num_output_placeholders + num_lookahead_tokens",
            ),
        ),
        violated=("slots_to_reserve/relation/reserves_no_more",),
        asynchronous=True,
        query_after="schedule",
        pin=Pin(
            Rules(5, 16, True, 0),
            8,
            (Admit(0), Schedule(8), Output(8, 0, 0, 1, 0), Schedule(6)),
            "decision",
            wrong=20,
            right=14,
            decision=Decision("slots_to_reserve", SlotsToReserve(num_lookahead_tokens=0)),
            own_numbers="the report prints rates of reuse under load",
        ),
    ),
    Fault(
        name="static-lookahead-reserved",
        title="Look-ahead is reserved for K drafts when fewer can be scheduled",
        meaning="With the draft count turned down to 0 under load, memory is still held for K drafts a "
        "request, exactly when memory is short.",
        reports=("dynamic-k-lookahead-static",),
        changes=(
            Change(
                DECISIONS,
                "slots_to_reserve",
                RESERVED,
                "return ledger.num_computed_tokens + rules.num_speculative_tokens",
            ),
        ),
        violated=("slots_to_reserve/relation/reserves_no_more",),
        query_after="schedule",
        pin=Pin(
            Rules(2, 16, False, 0),
            8,
            (Admit(0), Schedule(8)),
            "decision",
            wrong=10,
            right=8,
            decision=Decision("slots_to_reserve", SlotsToReserve(num_lookahead_tokens=0)),
        ),
    ),
    Fault(
        name="window-pruned-on-optimistic-count",
        title="A sliding window is pruned by work that has not returned",
        meaning="The block that the running step still reads goes back to the pool, and an incoming load "
        "overwrites it.",
        reports=("swa-free-on-optimistic-count",),
        changes=(Change(DECISIONS, "window_to_prune", SETTLED, "settled = ledger.num_computed_tokens"),),
        violated=("window_to_prune/relation/nothing_still_read",),
        pin=Pin(
            Rules(0, 32, True, 0),
            158,
            (Admit(0), Schedule(158), Output(158, 0, 0, 1, 0), Schedule(1)),
            "decision",
            wrong=32,
            right=0,
            decision=Decision("window_to_prune", WindowToPrune(window=128)),
        ),
    ),
    Fault(
        name="window-pruned-by-configured-chunk",
        title="The window's boundary subtracts the configured chunk, not the one in flight",
        meaning="With a reduced chunk too much is kept, no slot becomes free, and a long prefill stops "
        "advancing.",
        reports=("sglang-swa-boundary-from-config-chunk",),
        changes=(
            Change(DECISIONS, "window_to_prune", SETTLED, "settled = ledger.num_computed_tokens - 4096"),
        ),
        violated=("window_to_prune/relation/nothing_kept_in_vain",),
        pin=Pin(
            Rules(0, 16, True, 0),
            8192,
            (Admit(0), Schedule(4096), ChunkOutput(4096), Schedule(1536)),
            "decision",
            wrong=1536,
            right=4096,
            decision=Decision("window_to_prune", WindowToPrune(window=1)),
        ),
    ),
    Fault(
        name="window-cursor-keeps-trimmed",
        title="A trim lowers the counts but not the window's cursor",
        meaning="The cursor stays beyond the text. The next turn writes window slots below it, the sweep "
        "starts above them, and they are never freed.",
        reports=("sglang-trim-misses-swa-cursor",),
        changes=(
            Change(
                DECISIONS,
                "window_to_prune",
                SETTLED,
                "settled = (\n        ledger.num_computed_tokens\n        + ledger.num_trimmed_tokens\n"
                "        - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)\n    )",
            ),
        ),
        violated=("window_to_prune/relation/within_frontier",),
        # The report's counts: 42 computed, cut to 38 (K = 4: all four drafts accepted, only one kept).
        pin=Pin(
            Rules(4, 1, False, 0),
            37,
            (
                Admit(0),
                Schedule(37),
                Output(37, 0, 0, 1, 0),
                Draft(4),
                Schedule(5),
                Output(5, 4, 4, 1, 1),
            ),
            "decision",
            wrong=42,
            right=38,
            decision=Decision("window_to_prune", WindowToPrune(window=1)),
        ),
    ),
    Fault(
        name="blocks-freed-under-running-step",
        title="Blocks are freed while a step in flight still reads them",
        meaning="A request ends while a newer step of it runs. Its blocks go to another request, whose KV "
        "arrives in the middle of the read.",
        reports=("finish-frees-blocks-under-running-step",),
        changes=(
            Change(
                DECISIONS,
                "may_release",
                "both(ledger.num_in_flight_tokens == 0, num_pending_transfers == 0)",
                "num_pending_transfers == 0",
            ),
        ),
        violated=("may_release/relation/not_while_in_use",),
        query_after="finish",
        pin=Pin(
            Rules(0, 16, True, 0),
            3,
            (Admit(0), Schedule(3), Schedule(1), Output(3, 0, 0, 1, 1), Finish()),
            "decision",
            wrong=True,
            right=False,
            decision=Decision("may_release", MayRelease(num_pending_transfers=0)),
        ),
    ),
    Fault(
        name="blocks-freed-under-transfer",
        title="Blocks are freed while a transfer still writes them",
        meaning="An abort during a KV load frees the blocks at once. The load then overwrites whatever "
        "request got them.",
        reports=("abort-frees-during-load",),
        changes=(
            Change(
                DECISIONS,
                "may_release",
                "both(ledger.num_in_flight_tokens == 0, num_pending_transfers == 0)",
                "ledger.num_in_flight_tokens == 0",
            ),
        ),
        violated=("may_release/relation/not_while_in_use",),
        query_after="abort",
        pin=Pin(
            Rules(0, 8, False, 0),
            9,
            (Abort(),),
            "decision",
            wrong=True,
            right=False,
            decision=Decision("may_release", MayRelease(num_pending_transfers=1)),
        ),
    ),
    Fault(
        name="one-flag-for-two-transfers",
        title="One flag stands for a send and a receive",
        meaning="Both transfers of an aborted request are pending. The first to complete frees it, and the "
        "second finds it gone and takes the engine down.",
        reports=("abort-with-recv-and-send-pending",),
        changes=(
            Change(DECISIONS, "may_release", "num_pending_transfers == 0", "num_pending_transfers <= 1"),
        ),
        violated=("may_release/relation/not_while_in_use",),
        query_after="abort",
        pin=Pin(
            Rules(0, 8, False, 0),
            9,
            (Abort(),),
            "decision",
            wrong=True,
            right=False,
            decision=Decision("may_release", MayRelease(num_pending_transfers=1)),
        ),
    ),
)
