"""In which circumstances must a claim have been tried? The sixteen modes, and which cannot occur why.

A mode is how the engine schedules (synchronously, asynchronously), where the request stands (prefill,
decode), and what has happened to it: whether a stop ever trimmed it, whether it was ever preempted.
"""

from __future__ import annotations

import fnmatch
import itertools
from typing import NamedTuple

from draftproof.spec.ghosts import State
from draftproof.spec.invariants import frontier
from draftproof.spec.ledger import Rules


class Mode(NamedTuple):
    """One combination of circumstances."""

    asynchronous: bool
    prefill: bool
    trimmed: bool
    preempted: bool

    def __str__(self) -> str:
        words = (
            "asynchronous" if self.asynchronous else "synchronous",
            "prefill" if self.prefill else "decode",
            "trimmed" if self.trimmed else "not trimmed",
            "preempted" if self.preempted else "not preempted",
        )
        return ", ".join(words)


MODES = tuple(Mode(*flags) for flags in itertools.product((False, True), repeat=4))


def mode_of(state: State, rules: Rules, trimmed: bool, preempted: bool) -> Mode:
    """The mode of a state with that past. Prefill: some known token before the last one has yet to be
    computed, or the step that does it has not returned."""
    ledger, ghosts = state
    prefill = frontier(state) < ledger.num_tokens - 1 or ghosts.num_prefill_in_flight > 0
    return Mode(bool(rules.asynchronous), prefill, trimmed, preempted)


class Impossible(NamedTuple):
    """Antecedents (patterns of their names) that cannot hold in the modes with the given circumstances."""

    patterns: tuple[str, ...]
    why: str
    asynchronous: bool | None = None
    prefill: bool | None = None
    trimmed: bool | None = None
    preempted: bool | None = None

    def concerns(self, name: str) -> bool:
        """Whether the argument is about the antecedent."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def excludes(self, mode: Mode) -> bool:
        """Whether the argument rules the mode out."""
        asked = (self.asynchronous, self.prefill, self.trimmed, self.preempted)
        return all(wanted is None or wanted == is_so for wanted, is_so in zip(asked, mode, strict=True))


HAS_STOPPED = (
    "invariants/stop_pending_shape*",
    "invariants/paused_keeps_all_but_one",
    "guards/end_turn",
    "guards/fold",
    "guards/finish",
)
IS_PREEMPTED = (
    "invariants/preempted_has_no_kv",
    "invariants/late_output_is_delivered_while_preempted",
    "effects/stale_output/delivered",
    "guards/stale_output/stop_needs_a_delivered_token",
)
HAS_NO_KV = "effects/admit/hit_counts_as_computed"

IMPOSSIBLE: tuple[Impossible, ...] = (
    Impossible(
        (
            "invariants/one_completing_sample_when_synchronous",
            "invariants/stop_pending_shape#2",
            "theorems/_registers_settled",
            "guards/schedulable",
            "guards/_output_facts/one_sampling_step_when_synchronous",
        ),
        "the premise asks for synchronous scheduling",
        asynchronous=True,
    ),
    Impossible(
        (
            "theorems/optimistic_frontier_is_known",
            "theorems/frontier_is_last_known#2",
            "theorems/output_moves_frontier_by_kept",
        ),
        "the premise asks for asynchronous scheduling",
        asynchronous=False,
    ),
    Impossible(
        (
            "invariants/completing_step_is_in_flight",
            "invariants/one_completing_sample_when_synchronous",
            "invariants/no_drafts_before_decode",
            "guards/chunk_output",
            "guards/_chunk_output_facts/completing_step_returns_last",
            "guards/_output_facts/completing_step_as_dispatched",
        ),
        "prefill in flight, or a known token before the last one not yet computed, is prefill",
        prefill=False,
    ),
    Impossible(
        ("guards/draft",),
        "drafts are proposed once all known tokens but the last are computed",
        prefill=True,
    ),
    Impossible(
        (
            "guards/output/only_a_stop_trims",
            "guards/_output_facts/decode_step_as_dispatched",
            "guards/_output_facts/one_sampling_step_when_synchronous",
        ),
        "steps return in order: a decode step, the only one with drafts, comes when all prefill has returned",
        prefill=True,
    ),
    Impossible(
        ("guards/output/only_a_stop_trims",),
        "an output that trims is a trim, its own included",
        trimmed=False,
    ),
    Impossible(
        ("invariants/trim_awaits_its_stop",), "a trim in the ledger is a trim in the past", trimmed=False
    ),
    Impossible(
        ("invariants/trim_awaits_its_stop", "theorems/turn_end_registers_all_kept", "*registers_all_kept#2"),
        "a running request stops with an output, which leaves only its last known token to compute",
        prefill=True,
    ),
    Impossible(
        HAS_STOPPED,
        "an output that stops leaves only the last known token to compute, so a stopped request in prefill "
        "has stopped while it was preempted",
        prefill=True,
        preempted=False,
    ),
    Impossible(
        ("theorems/turn_end_registers_all_kept#3",),
        "a stopped request that is not running has stopped while it was preempted",
        preempted=False,
    ),
    Impossible(
        ("theorems/turn_end_registers_all_kept#3",),
        "a request that has stopped while preempted has at least two tokens and no KV, which is prefill",
        prefill=False,
    ),
    Impossible(
        ("effects/preempt/dropped_stays_dropped",),
        "synchronously a stop leaves nothing in flight, so what a running request has left over from an "
        "earlier life is from before a preemption",
        asynchronous=False,
        preempted=False,
    ),
    Impossible(
        IS_PREEMPTED, "only a preemption leaves output behind that is still delivered", preempted=False
    ),
    Impossible(
        (*IS_PREEMPTED, HAS_NO_KV),
        "without KV only a request of one token is in decode, and no output of it has come, let alone a stop",
        prefill=False,
        trimmed=True,
    ),
    Impossible(
        (HAS_NO_KV,),
        "after an output some KV is there, until a preemption takes it",
        trimmed=True,
        preempted=False,
    ),
)

NEEDS_NO_FENCE = frozenset({"theorems/_registers_settled", "theorems/turn_end_registers_all_kept#2"})
"""Antecedents that cannot hold under rules with a drafter's fence: their premise asks for none."""
