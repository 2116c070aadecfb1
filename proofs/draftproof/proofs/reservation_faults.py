"""What would the scheduler's blocks no longer hold with a fault in it? Named ones, and claims too strong."""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import symbolic_rules
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.reservation import (
    SIZE,
    SLOT,
    STEPS,
    Facts,
    blocks_of,
    claim,
    fit,
    obligations,
    reserved,
)


class ReservationFault(NamedTuple):
    """A change of one of the scheduler's functions, and the claims that must be refuted."""

    name: str
    sentence: str
    function: str
    changes: tuple[tuple[str, str], ...]
    refuted_by: tuple[str, ...]


_AHEAD = "config.max_in_flight_steps * (1 + config.num_speculative_tokens) + config.num_lookahead_tokens"
_FIT = "max(num_slots, slots_to_admit(started, rules, num_lookahead))"

FAULTS: tuple[ReservationFault, ...] = (
    ReservationFault(
        "slots_are_rounded_down",
        "A block that is filled in part is not reserved.",
        "blocks_for",
        ((" + block_size - 1", ""),),
        (
            "reserve/slot_has_a_block",
            "reserve/last_slot_is_in_the_last_block",
            "decide_running/written_slot_has_a_block",
            "decide_running/look_ahead_has_blocks",
            "admit_row/written_slot_has_a_block",
            "admit_row/look_ahead_has_blocks",
            "admit_row/hit/hit_is_in_its_blocks",
            "admit_row/hit/all_known_tokens_fit",
        ),
    ),
    ReservationFault(
        "one_block_too_many",
        "A block that is filled exactly brings a further one.",
        "blocks_for",
        ((" + block_size - 1", " + block_size"),),
        ("reserve/last_slot_is_in_the_last_block", "check_fits/blocks/enough"),
    ),
    ReservationFault(
        "model_length_does_not_bound_slots",
        "Look-ahead beyond the model's length has blocks of its own.",
        "blocks_for",
        (("min(num_slots, max_model_len)", "num_slots"),),
        ("reserve/last_slot_is_in_the_last_block",),
    ),
    ReservationFault(
        "counts_slots_before_the_dispatch",
        "The slots are those of the ledger before its step is counted.",
        "decide_running",
        (("slots_to_reserve(after, ", "slots_to_reserve(ledger, "),),
        ("decide_running/written_slot_has_a_block", "decide_running/look_ahead_has_blocks"),
    ),
    ReservationFault(
        "starts_without_look_ahead",
        "A request that starts has no slots for its drafter's look-ahead.",
        "admit_row",
        (
            (
                "slots_to_reserve(schedule(started, rules, num_tokens), rules, num_lookahead)",
                "slots_to_reserve(schedule(started, rules, num_tokens), rules, 0)",
            ),
        ),
        ("admit_row/look_ahead_has_blocks",),
    ),
    ReservationFault(
        "padded_start_is_not_counted",
        "Only known tokens are counted at a start, not the drafts that pad it.",
        "admit_row",
        ((_FIT, "slots_to_admit(started, rules, num_lookahead)"),),
        ("admit_row/counted/takes_no_more_than_counted",),
    ),
    ReservationFault(
        "starts_although_the_prompt_does_not_fit",
        "Only the first chunk is counted at a start (vLLM #25538).",
        "admit_row",
        ((_FIT, "num_slots"),),
        ("admit_row/hit/all_known_tokens_fit",),
    ),
    ReservationFault(
        "run_ahead_is_not_checked",
        "What fits is the tokens and the look-ahead, however many steps run ahead.",
        "check_fits",
        ((_AHEAD, "config.num_lookahead_tokens"),),
        ("check_fits/slots_of_a_step",),
    ),
    ReservationFault(
        "one_draft_a_step_is_checked",
        "What fits counts one slot for each step that runs ahead.",
        "check_fits",
        ((" * (1 + config.num_speculative_tokens)", ""),),
        ("check_fits/slots_of_a_step",),
    ),
    ReservationFault(
        "look_ahead_is_not_checked",
        "What fits is checked without the drafter's look-ahead.",
        "check_fits",
        ((" + config.num_lookahead_tokens", ""),),
        ("check_fits/slots_of_a_step", "check_fits/slots_to_admit"),
    ),
    ReservationFault(
        "only_the_prompt_is_checked",
        "What fits is checked of the prompt, not of the answer.",
        "check_fits",
        (("num_tokens + max_tokens + num_ahead", "num_tokens + num_ahead"),),
        ("check_fits/slots_of_a_step", "check_fits/slots_to_admit"),
    ),
    ReservationFault(
        "check_rounds_down",
        "What fits is checked in whole blocks only.",
        "check_fits",
        (("-(-num_slots // group.block_size)", "num_slots // group.block_size"),),
        ("check_fits/blocks/enough",),
    ),
)


def claims_with(fault: ReservationFault) -> list[Obligation]:
    """Everything claimed, about the scheduler with the fault in it."""
    return obligations({fault.function: fault.changes})


def _too_strong() -> dict[str, tuple[str, Facts, Any]]:
    """One slot or block less than is proved."""
    this, step_of, slot = fit({}), reserved("decide_running", {}), SLOT
    written = z3.And(slot >= step_of.start, slot < step_of.end)
    fewer = slot / SIZE < blocks_of("reserve", step_of.num_slots, {}) - 1
    # z3 searches for a model of products: the sizes of one scheduler are enough for a counterexample.
    pinned = {"pinned": z3.And(symbolic_rules().num_speculative_tokens == 3, STEPS == 2)}
    return {
        "one_block_less": (
            "One block less holds all that a step writes.",
            step_of.facts,
            z3.Implies(written, fewer),
        ),
        "one_slot_less_fits": (
            "A request alone never needs the last of min(L + max_tokens, M) - 1 + JK + look-ahead slots.",
            this.exact_facts | pinned,
            this.num_slots <= this.num_most_slots - 1,
        ),
    }


def controls() -> list[Control]:
    """The named faults, by the claims that they name; claims too strong; and a host without its limit."""
    found = [
        Control(
            f"T10/{fault.name}",
            fault.sentence,
            "statement",
            [
                one._replace(name=f"T10/control/{fault.name}/{one.name.removeprefix('T10/')}")
                for one in claims_with(fault)
                if one.name.removeprefix("T10/") in fault.refuted_by
            ],
        )
        for fault in FAULTS
    ]
    for name, (sentence, facts, goal) in _too_strong().items():
        found.append(Control(f"T10/{name}", sentence, "statement", [claim("control", name, facts, goal)]))
    this = fit({})
    unlimited = {name: fact for name, fact in this.facts.items() if name != "R1:awaited"}
    goal = this.num_slots <= this.num_checked_slots
    found.append(
        Control(
            "T10/fits_without_a_limit",
            "What was checked is enough although steps in flight are not limited.",
            "assumption",
            [claim("control", "fits_without_a_limit", unlimited, goal)],
        )
    )
    return found
