"""Why does a mutant that changes nothing change nothing? An argument for every equivalent one.

Most exchange values that are the same number whenever the transition may run: two fields that are both 0
between turns, say. Such a coincidence is written down once per transition, with the reason, and is itself
proved (`obligations`). The few others are argued one by one. An equivalent mutant without an argument is
a failure of the kill table, and so is an argument that no mutant needs any more: either the code can be
written in a simpler way, or the argument is missing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.induction import hypotheses
from draftproof.proofs.mutants import Mutant
from draftproof.proofs.obligations import Obligation
from draftproof.spec import ledger as vocabulary

C, P, F, S, D, R, T, E = (
    "ledger.num_computed_tokens",
    "ledger.num_output_placeholders",
    "ledger.num_in_flight_tokens",
    "ledger.num_stale_tokens",
    "ledger.num_draft_tokens",
    "ledger.num_registered_tokens",
    "ledger.num_trimmed_tokens",
    "ledger.stop_pending",
)
STATUS = "ledger.status"


class Coincidence(NamedTuple):
    """Expressions that have the same value whenever the transition may run, and why."""

    transition: str
    values: frozenset[str]
    because: str


def _same(transition: str, values: tuple[str, ...], because: str) -> Coincidence:
    return Coincidence(transition, frozenset(values), because)


_RUNNING = "the guard lets only a running request in"
_NO_STOP = "no stop is pending here, and only a pending stop leaves tokens trimmed: T and E are 0"
_ALL_RETURNED = (
    "outputs return in order, so none of an earlier life is left, and no stop is pending: S, T and E are 0"
)
_ALL_STALE = "nothing of the present life is in flight, so all of F is stale: F = S"

COINCIDENCES: tuple[Coincidence, ...] = (
    _same(
        "admit",
        (P, D, T, E),
        "a request that is not running awaits nothing and has no drafts, and no stop is pending: all are 0",
    ),
    _same("admit", (F, S), _ALL_STALE),
    _same("schedule", (T, E), _NO_STOP),
    _same("schedule", (STATUS, "RUNNING"), _RUNNING),
    _same("draft", (P, T, E), "no stop is pending and nothing is awaited: all three are 0"),
    _same("draft", (F, S), _ALL_STALE),
    _same("draft", (STATUS, "RUNNING"), _RUNNING),
    _same(
        "chunk_output",
        (S, T, E),
        _ALL_RETURNED,
    ),
    _same("chunk_output", (STATUS, "RUNNING"), _RUNNING),
    _same(
        "output",
        (S, T, E),
        _ALL_RETURNED,
    ),
    _same("output", (STATUS, "RUNNING"), _RUNNING),
    _same("preempt", (T, E, "0"), _NO_STOP),
    _same("stale_output", (T, E), _NO_STOP),
    _same(
        "fold",
        (P, D, T, E, "WAITING"),
        "a session between turns awaits nothing, has no drafts and its stop is handled: all are 0, and 0 is "
        "also the number of the status",
    ),
    _same("fold", (F, S), _ALL_STALE),
    _same("abort", (T, E, "0"), _NO_STOP),
)

_SIGN = "a counter is never negative, so not 0 and above 0 are the same"
_NOT_RESERVING = (
    "this is P where nothing is reserved: synchronously, or for a chunk while nothing is awaited, so it is 0"
)
_SYNCHRONOUS = "this is P in the synchronous case, where it is 0, as S, T and E are here"
_ALL_AWAITED = (
    "asynchronously what is left in flight after an output is exactly what is awaited, and synchronously "
    "both are 0"
)
_ALL_IN_FLIGHT_AWAITED = (
    "what is in flight when a running request has stopped is exactly what is awaited: F is P, and "
    "synchronously both are 0; of a request that is not running nothing is registered"
)
_NOTHING_REGISTERED = (
    "this is R of a stopped request that is not running: it was preempted, so C, P, D, T and R are all 0"
)
_NEGATIVE_FLOOR = (
    "every caller takes the maximum with R, which is not negative, and a negative number rounds down to a "
    "negative one; the code keeps the 0 so that no carrier, and no reader, has to round a negative number"
)
_FINISH_GUARD = (
    "a stopped request that is not running was preempted: C, P, D, T and R are 0 and F is not negative, so "
    "nothing would be registered; the code says so itself rather than leave it to the invariants, and "
    "equals its textbook version on unreachable ledgers too"
)
_ABORT_GUARD = (
    "what a session keeps while it does not run was published when its turn ended, and others that do not "
    "run have no KV, so nothing would be registered; the code says so itself rather than leave it to the "
    "invariants, and equals its textbook version on unreachable ledgers too"
)
_STILL_PAUSED = "this arm is for a paused session; a constant would lose the columns' kind on a device"
_NOT_FINISHED = "of the statuses only a finished request's is above that of a paused one, and it has left"
_FINISH_STATUS = "a request with a stop pending is running or preempted, never waiting"
_GROWN = f"maximum({R}, registrable(settled, rules))"

ARGUED: dict[str, str] = {
    "registrable/return: maximum(num_tokens - rules.registration_fence, 0)"
    " -> num_tokens - rules.registration_fence": _NEGATIVE_FLOOR,
    "registrable/return: 0 -> -1": _NEGATIVE_FLOOR,
    "admit/starts_at_zero: ledger.num_computed_tokens == 0 -> ledger.num_computed_tokens <= 0": _SIGN,
    "preempt/drop_stale: ledger.num_stale_tokens > 0 -> ledger.num_stale_tokens != 0": _SIGN,
    **{f"schedule/num_output_placeholders: {P} -> {other}": _NOT_RESERVING for other in (T, E)},
    **{f"output/num_output_placeholders: {P} -> {other}": _SYNCHRONOUS for other in (S, T, E)},
    f"output/return: P=num_output_placeholders, F={F} - num_returned"
    f" -> P={F} - num_returned, F=num_output_placeholders": _ALL_AWAITED,
    f"finish/settled: {F} -> {P}": _ALL_IN_FLIGHT_AWAITED,
    **{f"finish/num_registered_tokens: {R} -> {other}": _NOTHING_REGISTERED for other in (C, P, D, T)},
    f"finish/num_registered_tokens: where({STATUS} == RUNNING, {_GROWN}, {R}) -> {_GROWN}": _FINISH_GUARD,
    f"finish/num_registered_tokens: {STATUS} -> RUNNING": _FINISH_GUARD,
    f"finish/num_registered_tokens: {STATUS} == RUNNING -> {STATUS} <= RUNNING": _FINISH_STATUS,
    f"finish/num_registered_tokens: {STATUS} == RUNNING -> {STATUS} >= RUNNING": _FINISH_GUARD,
    f"preempt/status: {STATUS} == PAUSED -> {STATUS} >= PAUSED": _NOT_FINISHED,
    f"preempt/status: {STATUS} -> PAUSED": _STILL_PAUSED,
    f"abort/num_registered_tokens: where({STATUS} == RUNNING, {_GROWN}, {R}) -> {_GROWN}": _ABORT_GUARD,
    f"abort/num_registered_tokens: {STATUS} -> RUNNING": _ABORT_GUARD,
    f"abort/num_registered_tokens: {STATUS} == RUNNING -> {STATUS} <= RUNNING": _ABORT_GUARD,
    f"abort/num_registered_tokens: {STATUS} == RUNNING -> {STATUS} >= RUNNING": _ABORT_GUARD,
}
"""Arguments by the mutant's key."""


def argument(mutant: Mutant) -> str | None:
    """Why this mutant changes nothing, in a sentence; None if nobody has said."""
    if mutant.key in ARGUED:
        return ARGUED[mutant.key]
    for coincidence in COINCIDENCES:
        if coincidence.transition == mutant.function and set(mutant.exchanged) <= coincidence.values:
            return coincidence.because
    return None


def obligations() -> list[Obligation]:
    """Every coincidence: its values are equal in every state that the invariants and the guard allow."""
    return [claim for coincidence in COINCIDENCES for claim in _coincide(coincidence)]


def _coincide(coincidence: Coincidence) -> list[Obligation]:
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(coincidence.transition)
    names: dict[str, Any] = {**vars(vocabulary), "ledger": before.ledger}
    first, *others = sorted(coincidence.values)
    assumed = hypotheses(coincidence.transition, before, rules, event)

    def term(text: str) -> Any:
        value = eval(text, names)
        return z3.IntVal(value) if isinstance(value, int) else value

    return [
        Obligation(
            f"equivalents/{coincidence.transition}/{first} = {other}",
            "equivalence",
            "effects",
            assumed,
            term(first) == term(other),
            f"equivalents/{coincidence.transition}",
        )
        for other in others
    ]
