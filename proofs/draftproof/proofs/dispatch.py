"""Does the scheduler foretell rightly, from its counters alone, what a step will bring back? (R1)

Before it dispatches a step the scheduler tells the runner how many drafts the step verifies and whether it
samples (`draftproof.impl.dispatch`). The exact queue knows both from where the device starts to write
(`draftproof.spec.queue.dispatched`). They agree in every state in which a step may be dispatched, in either
mode and for all sizes: so what returns is what the ledger's `output` and `chunk_output` speak about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.impl import dispatch as running
from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.scheduler_code import Changes, on_terms
from draftproof.spec.events import Schedule
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import dispatched

Facts = dict[str, Any]

MODES: dict[str, Callable[[Rules], Any]] = {
    "synchronous": lambda rules: z3.Not(rules.asynchronous),
    "asynchronous": lambda rules: rules.asynchronous,
}


class Told(NamedTuple):
    """The functions that tell what a step will bring back."""

    num_drafts: Callable[..., Any] = running.num_drafts_in_step
    samples: Callable[..., Any] = running.samples_in_step


RUNNING = Told()


def assumed(mode: str) -> tuple[State, Rules, Schedule, Facts]:
    """Any reachable state in which a step may be dispatched, in one mode."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    return before, rules, event, hypotheses("schedule", before, rules, event) | {"mode": MODES[mode](rules)}


def claims(before: State, rules: Rules, event: Schedule, told: Told = RUNNING) -> Facts:
    """That it is the queue's word, and what the scheduler's arrays of drafts rely on."""
    num_drafts = told.num_drafts(before.ledger, event.num_new_tokens)
    samples = told.samples(before.ledger, event.num_new_tokens)
    truth = dispatched(before, event)
    return {
        "num_drafts": num_drafts == truth.num_drafts,
        "samples": samples == truth.samples,
        # The batch copies that many of the waiting drafts, and a row has room for K of them.
        "drafts_are_waiting": z3.And(
            num_drafts <= before.ledger.num_draft_tokens, num_drafts <= rules.num_speculative_tokens
        ),
        "drafts_are_followed_by_a_sample": z3.Implies(num_drafts >= 1, samples),
    }


def obligations(told: Told = RUNNING) -> list[Obligation]:
    """Both functions, in both modes; `told` replaces the running ones (faults, mutants)."""
    found = []
    for mode in MODES:
        before, rules, event, facts = assumed(mode)
        group = f"R1/dispatch/{mode}"
        found += [
            Obligation(f"{group}/{name}", "refinement", "R1", facts, goal, group)
            for name, goal in claims(before, rules, event, told).items()
        ]
    return found


def witnesses() -> dict[str, Facts]:
    """Every kind of step that the claims tell apart can be dispatched, beside the groups themselves."""
    found: dict[str, Facts] = {}
    for mode in MODES:
        before, _, event, facts = assumed(mode)
        ledger, truth = before.ledger, dispatched(before, event)
        shown = {
            "chunk": z3.And(truth.prefill, z3.Not(truth.samples)),
            "last_chunk": z3.And(truth.prefill, truth.samples, event.num_new_tokens >= 2),
            "all_drafts": z3.And(truth.num_drafts >= 2, truth.num_drafts == ledger.num_draft_tokens),
            "some_drafts": z3.And(truth.num_drafts >= 1, truth.num_drafts < ledger.num_draft_tokens),
            "resumed": z3.And(truth.prefill, ledger.num_tokens > ledger.num_prompt_tokens),
        }
        if mode == "asynchronous":
            shown["ahead"] = z3.And(ledger.num_output_placeholders >= 1, truth.num_drafts >= 1)
        found |= {f"R1/dispatch/{mode}/{name}": facts | {"shown": fact} for name, fact in shown.items()}
    return found


# ---- what is wrong --------------------------------------------------------------------------------------


class DispatchFault(NamedTuple):
    """A change of one of the two functions, and the claims that must be refuted, those and no others."""

    name: str
    sentence: str
    function: str
    changes: tuple[tuple[str, str], ...]
    refuted_by: tuple[str, ...]


_DRAFTS, _SAMPLES = "num_drafts_in_step", "samples_in_step"
_BEYOND = "end - ledger.num_tokens - ledger.num_output_placeholders"

FAULTS: tuple[DispatchFault, ...] = (
    DispatchFault(
        "placeholders_count_as_drafts",
        "Positions whose tokens are awaited count as drafts of the next step.",
        _DRAFTS,
        ((" - ledger.num_output_placeholders", ""),),
        ("asynchronous/num_drafts", "asynchronous/drafts_are_waiting"),
    ),
    DispatchFault(
        "end_must_be_passed",
        "A step that ends exactly where the known tokens end samples nothing.",
        _SAMPLES,
        ((">=", ">"),),
        ("synchronous/samples", "asynchronous/samples"),
    ),
    DispatchFault(
        "sampling_is_told_by_the_prompt",
        "A request that computes its generated tokens anew samples once its prompt is done.",
        _SAMPLES,
        (("ledger.num_tokens", "ledger.num_prompt_tokens"),),
        ("synchronous/samples", "asynchronous/samples"),
    ),
    DispatchFault(
        "drafts_where_there_are_none",
        "A prefill chunk has drafts: all of its tokens but one.",
        _DRAFTS,
        (
            (f"maximum({_BEYOND}, 0)", "num_new_tokens - 1"),
            ("end = ledger.num_computed_tokens + num_new_tokens", "pass"),
        ),
        (
            "synchronous/num_drafts",
            "synchronous/drafts_are_waiting",
            "synchronous/drafts_are_followed_by_a_sample",
            "asynchronous/num_drafts",
            "asynchronous/drafts_are_waiting",
            "asynchronous/drafts_are_followed_by_a_sample",
        ),
    ),
    DispatchFault(
        "fewer_than_no_drafts",
        "A chunk that ends before the known tokens do has a negative number of drafts.",
        _DRAFTS,
        (
            (
                f"maximum({_BEYOND}, 0)",
                _BEYOND,
            ),
        ),
        ("synchronous/num_drafts", "asynchronous/num_drafts"),
    ),
    DispatchFault(
        "waiting_drafts_are_all_taken",
        "A step that the budget cut verifies all drafts that wait.",
        _DRAFTS,
        (
            (
                f"maximum({_BEYOND}, 0)",
                "ledger.num_draft_tokens",
            ),
        ),
        ("synchronous/num_drafts", "asynchronous/num_drafts"),
    ),
)


def told_with(function: str, changes: Changes) -> Told:
    """The two functions with one of them changed."""
    changed = on_terms(getattr(running, function), changes)
    return RUNNING._replace(**{"num_drafts" if function == _DRAFTS else "samples": changed})


def _told_afterwards() -> Told:
    """Asked of the ledger after the dispatch, in which C has moved."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    after = step("schedule", before, rules, event).ledger
    return Told(
        lambda _, num_new_tokens: running.num_drafts_in_step(after, num_new_tokens),
        lambda _, num_new_tokens: running.samples_in_step(after, num_new_tokens),
    )


def controls() -> list[Control]:
    """The named faults; asked too late; and without the fact that placeholders are what is awaited."""
    found = [
        (fault.name, fault.sentence, "statement", obligations(told_with(fault.function, fault.changes)))
        for fault in FAULTS
    ]
    found.append(
        (
            "asked_afterwards",
            "The ledger after the dispatch says the same.",
            "statement",
            obligations(_told_afterwards()),
        )
    )
    unaware = [
        claim._replace(
            hypotheses={
                name: fact
                for name, fact in claim.hypotheses.items()
                if name != "invariant:placeholders_are_awaited"
            }
        )
        for claim in obligations()
    ]
    found.append(("placeholders_are_anything", "P need not be what the queue awaits.", "assumption", unaware))
    return [
        Control(
            f"R1/dispatch/{name}",
            sentence,
            kind,
            [claim._replace(name=f"R1/control/{name}/{claim.name}") for claim in several],
        )
        for name, sentence, kind, several in found
    ]
