"""Faults of recurrent state: one change of the running source each, and the claim that must notice it.

Most are public reports; those without one are what the specification's own authors feared. What a harm looks
like, and how faults are checked, is in `recurrent_mutants`.
"""

from __future__ import annotations

from draftproof.proofs.recurrent_mutant import RecurrentFault
from draftproof.spec.recurrent import RecurrentRules
from draftproof.spec.recurrent_walks import Bounds

FAULTS: tuple[RecurrentFault, ...] = (
    RecurrentFault(
        "settled-boundary-attached-to-a-running-slot",
        "When a request leaves, the boundary that returned last is attached to its working slot, although a "
        "step in flight has moved the state there on: the key is found, the state is another one.",
        "vLLM #54979",
        "publish",
        (
            ("end = num_possible_tokens(recurrent)", "end = recurrent.num_state_tokens"),
            ("end > recurrent.num_published_tokens, ", ""),
        ),
        "publish/theorem/M4/not_attached_where_it_is_not",
        "the state of",
        at_exit=True,
    ),
    RecurrentFault(
        "boundary-attached-again",
        "A boundary that was published, and has a copy of its own since, is attached to the slot once more. "
        "Both are right, but the row must copy again before its next step.",
        "vLLM #54979",
        "publish",
        (("end > recurrent.num_published_tokens, ", ""),),
        "publish/effect/slot_is_published_exactly_then",
        "",
    ),
    RecurrentFault(
        "no-publication-while-in-flight",
        "The guard against attaching to a mutable slot is too strict: nothing is published while a step is "
        "in flight. When steps run ahead, boundaries are overwritten before anybody could find them.",
        "vLLM #54979 (the guard without first publication)",
        "publish",
        (
            (
                "end <= num_registrable_tokens,",
                "end <= num_registrable_tokens, recurrent.num_in_flight_tokens == 0,",
            ),
        ),
        "publish/theorem/M4/first_publication_happens",
        "lost",
    ),
    RecurrentFault(
        "drafts-counted-in-a-checkpoint",
        "The state after the drafts is published as if all of them were part of the text.",
        "vLLM #30618",
        "publish",
        (("end <= num_registrable_tokens, ", ""), ("end > recurrent.num_reserved_tokens", "end > 0")),
        "publish/theorem/M4/not_attached_where_it_is_not",
        "the state of",
        rules=RecurrentRules(2, 2),
        bounds=Bounds(num_blocks=7, others=False),
    ),
    RecurrentFault(
        "state-filed-between-boundaries",
        "A state is filed under the boundary below the position that it has reached.",
        "vLLM #33706, SGLang #31833",
        "publish",
        (
            (
                "is_boundary(end, recurrent.num_checkpoint_tokens, rules)",
                "end > floor_to_block(recurrent.num_published_tokens, rules.block_size)",
            ),
            (
                "where(slot_is_published, end, recurrent.running_key)",
                "where(slot_is_published, floor_to_block(end, rules.block_size), recurrent.running_key)",
            ),
        ),
        "publish/theorem/M1/published_state_is_kept",
        "the state of",
    ),
    RecurrentFault(
        "hit-state-is-written",
        "The state that a look-up found belongs to the cache and to other requests; the row takes it for its "
        "own and writes its first step over it.",
        "vLLM #57908",
        "start",
        (("running_key=num_hit_tokens", "running_key=0"),),
        "start/theorem/M1/copy_is_asked_when_needed",
        "the step writes",
    ),
    RecurrentFault(
        "published-slot-is-written",
        "A row goes on in the working slot that it published: copy on write is missed.",
        "vLLM #51766",
        "copy_needed",
        (("recurrent.running_key > 0", "recurrent.running_key > recurrent.num_published_tokens"),),
        "dispatch/theorem/M1/written_blocks_are_private",
        "the step writes",
    ),
    RecurrentFault(
        "no-copy-while-in-flight",
        "The row moves to a private copy after a hit, but not when it published its own slot and runs ahead.",
        "vLLM #57908",
        "copy_needed",
        (
            (
                "recurrent.running_key > 0",
                "both(recurrent.running_key > 0, recurrent.num_in_flight_tokens == 0)",
            ),
        ),
        "dispatch/theorem/M1/written_blocks_are_private",
        "the step writes",
    ),
    RecurrentFault(
        "key-withdrawn-from-a-shared-block",
        "Instead of copying, the row withdraws the key and writes, although another request holds the block.",
        "",
        "may_withdraw",
        (("num_owners == 1", "num_owners >= 1"),),
        "make_private/invariant/owned_and_unpublished_is_private",
        "a key is withdrawn",
        rules=RecurrentRules(0, 2),
        bounds=Bounds(num_blocks=2, max_num_tokens=5),
    ),
    RecurrentFault(
        "state-hit-in-the-step-that-writes-it",
        "A second request hits a state in the step that computes it; recurrent layers read the old content.",
        "vLLM #29387, SGLang #24221",
        "may_hit",
        (("published_in_step < step", "published_in_step <= step"),),
        "start/theorem/M2/hit_is_exact",
        "a state is hit",
    ),
    RecurrentFault(
        "state-of-the-step-before-refused",
        "A look-up waits one step longer than it must.",
        "",
        "may_hit",
        (("published_in_step < step", "published_in_step + 1 < step"),),
        "next_step/theorem/M2/hit_is_not_refused_for_long",
        "",
    ),
    RecurrentFault(
        "failed-step-keeps-its-keys",
        "A step fails, and what it published when it was dispatched can still be found.",
        "vLLM #56525",
        "must_withdraw",
        (("published_in_step >= failed_step", "published_in_step > failed_step"),),
        "fail/theorem/M1/failed_work_is_not_found",
        "the state of",
    ),
    RecurrentFault(
        "failed-step-empties-the-cache",
        "A failed step takes everything with it that was ever published.",
        "",
        "must_withdraw",
        (("published_in_step >= failed_step", "published_in_step >= 0"),),
        "fail/theorem/M1/failed_work_is_not_found",
        "",
    ),
    RecurrentFault(
        "rejection-leaves-the-last-draft",
        "After a rejection the state stays that of the last draft: nothing is rolled back.",
        "llama.cpp #20075",
        "settle",
        (("where(num_left == 0, num_consumed, 0)", "where(num_left == 0, num_drafts, 0)"),),
        "settle/theorem/M3/state_is_last_accepted",
        "the step starts from",
    ),
    RecurrentFault(
        "acceptance-of-another-row",
        "The slot is taken from a count that belongs to another row or step: here always the first.",
        "vLLM #45100, #51571, #53919",
        "settle",
        (("where(num_left == 0, num_consumed, 0)", "0"),),
        "settle/theorem/M3/state_is_last_accepted",
        "the step starts from",
    ),
    RecurrentFault(
        "rejected-chunk-commits-an-unwritten-slot",
        "After a full rejection the row goes on from a slot that the step never wrote.",
        "kekzl/imp #1503",
        "settle",
        (
            (
                "where(num_left == 0, num_consumed, 0)",
                "where(num_left == 0, num_consumed + where(num_accepted == 0, 1, 0), 0)",
            ),
        ),
        "settle/theorem/M3/state_is_last_accepted",
        "the step starts from",
    ),
    RecurrentFault(
        "trimmed-tokens-stay-in-the-state",
        "A stop cut accepted drafts off, and a session's next turn goes on from a state that consumed them.",
        "",
        "settle",
        (("where(num_left == 0, num_consumed, 0)", "where(num_left == 0, num_accepted, 0)"),),
        "settle/theorem/M3/state_is_last_accepted",
        "the step starts from",
    ),
    RecurrentFault(
        "row-without-drafts-reads-the-first-slot",
        "A row that has no drafts in this step takes the path without speculation and reads the first slot, "
        "although its state is in the slot of the last accepted draft.",
        "vLLM #56531",
        "slot_to_read",
        (("recurrent.state_slot", "0"),),
        "dispatch/theorem/M3/step_reads_its_start",
        "the step starts from",
    ),
    RecurrentFault(
        "run-ahead-reads-what-the-host-knows",
        "With a step in flight the next one reads the slot that the host knew of last.",
        "vLLM #45100",
        "slot_to_read",
        (("num_last_accepted)", "recurrent.state_slot)"),),
        "dispatch/theorem/M3/step_reads_its_start",
        "the step starts from",
    ),
    RecurrentFault(
        "turn-keeps-an-overwritten-state",
        "A session's turn ends with a step in flight, and the next turn reads the working slots, which "
        "that step has overwritten.",
        "",
        "state_survives_turn",
        (("recurrent.num_in_flight_tokens == 0", "recurrent.num_in_flight_tokens >= 0"),),
        "end_turn/theorem/M3/turn_goes_on_where_it_ended",
        "the step starts from",
    ),
    RecurrentFault(
        "no-target-for-what-drafts-cross",
        "The blocks that a step needs are counted without its drafts: when they cross a boundary, its state "
        "has no place.",
        "vLLM #57605",
        "dispatch",
        (("+ num_new_tokens\n", "+ num_new_tokens - num_drafts\n"),),
        "dispatch/theorem/M4/crossed_boundary_has_a_block",
        "the state of",
    ),
    RecurrentFault(
        "no-target-when-running-ahead",
        "Only drafts are thought of: without them a step that runs ahead of what is known gets no target; "
        "the next one overwrites a boundary that nobody could name yet.",
        "",
        "dispatch",
        (("num_reachable > num_tokens", "num_drafts > 0"),),
        "dispatch/effect/every_reachable_boundary_is_reserved",
        "lost",
        rules=RecurrentRules(0, 2),
        bounds=Bounds(max_num_steps_in_flight=3, num_blocks=4, others=False),
    ),
    RecurrentFault(
        "targets-kept-over-the-turn",
        "Targets set aside before a turn ended count for the next one, whose prefill passes them by.",
        "",
        "end_turn",
        (("num_reserved_tokens=0", "num_reserved_tokens=recurrent.num_reserved_tokens"),),
        "end_turn/effect/targets_are_given_back",
        "lost",
        bounds=Bounds(num_blocks=5, max_num_tokens=7, others=False),
    ),
    RecurrentFault(
        "chunks-aligned-in-the-prompt-only",
        "A resumed request's chunks end anywhere beyond its prompt, and no state is kept there.",
        "vLLM #33706",
        "chunk_to_schedule",
        (("end >= num_tokens", "end > num_checkpoint_tokens"),),
        "chunk_to_schedule/ends_on_a_boundary",
        "",
    ),
    RecurrentFault(
        "checkpoint-run-over",
        "The last chunk runs past the prompt's checkpoint: a repeat of the prompt finds no state.",
        "vLLM #52244",
        "chunk_to_schedule",
        (("num_start_tokens < num_checkpoint_tokens", "num_tokens < num_checkpoint_tokens"),),
        "chunk_to_schedule/stops_at_the_checkpoint",
        "",
    ),
    RecurrentFault(
        "exit-forgets-the-trimmed-tokens",
        "At a finish the state of the last kept token is not published when it was an accepted draft.",
        "vLLM #54979",
        "registrable_at_exit",
        (("+ ledger.num_trimmed_tokens ", ""),),
        "limits/at_exit_is_settled",
        "",
    ),
    RecurrentFault(
        "exit-counts-work-in-flight",
        "At a finish states are published that steps in flight have yet to compute.",
        "SGLang #31369",
        "registrable_at_exit",
        ((" - num_live", ""),),
        "limits/at_exit_is_settled",
        "",
    ),
)

UNMODELLED: dict[str, str] = {
    "vLLM #53505": "a worker's copy between table columns after each step; here the working slots stay "
    "where they are, and nothing is moved back",
    "vLLM #55450, #57253": "which published blocks a request holds on to; here it gives them all back and "
    "the pool evicts the least recently used (P7)",
    "SGLang #16067, #34676": "slots taken before an admission is decided; a property of the scheduler",
    "llama.cpp #22384": "a search among checkpoints by a wrong key; here a look-up asks for the position",
    "spiritbuun/buun-llama-cpp #49": "the layout of the memory, which a scheduler does not see",
    "vLLM #54392": "a decode row's size; see `pd-padded-window-cut-by-align` among the other faults",
}
"""Public reports about recurrent state that this model does not speak about, and why."""
