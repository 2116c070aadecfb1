"""Does CrossHair confirm every contract? It is asked about each target, and its confirmations are counted.

CrossHair's word is *confirmed over all paths*. Anything else fails: a counterexample, a time-out ("not
confirmed"), and also silence. CrossHair says nothing about a function it could not find a contract on,
so what it confirmed is counted against the contracts that must be there, at least one a target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

SECONDS_PER_CONTRACT = 20.0
"""CrossHair's own limit. The slowest target needs about half a second; a contract that runs into the
limit is not confirmed."""


class Target(NamedTuple):
    """A contract-annotated function; its name says what it is about, for example `transition/output`."""

    name: str
    function: Callable[..., Any]


class CrosshairVerdict(NamedTuple):
    """What CrossHair said about one target. It passes if all of its contracts were confirmed."""

    name: str
    contracts: int
    """Contracts that must be confirmed; 1 if the function has lost its own."""
    confirmed: int
    state: str
    """`CONFIRMED`, CrossHair's word for the first contract that is not, or `SKIPPED`."""
    seconds: float
    message: str
    """CrossHair's message about the first contract that is not confirmed: the call that breaks it."""


def targets() -> list[Target]:
    """Every function that CrossHair must confirm: transitions, decisions, recurrent state, the laws."""
    from draftproof.proofs import (
        crosshair_decisions,
        crosshair_laws,
        crosshair_recurrent,
        crosshair_targets,
    )

    return [
        Target(f"{group}/{name}", function)
        for group, functions in (
            ("transition", crosshair_targets.TARGETS),
            ("decision", crosshair_decisions.TARGETS),
            ("recurrent", crosshair_recurrent.TARGETS),
            ("law", crosshair_laws.TARGETS),
        )
        for name, function in functions.items()
    ]


def confirm(chosen: list[Target], seconds: float = SECONDS_PER_CONTRACT) -> list[CrosshairVerdict]:
    """CrossHair's verdict on each target, in order. `seconds` limits each contract.

    CrossHair runs in this process. The functions are the plain ones also when `DRAFTPROOF_DEBUG` is set.
    """
    return [_confirm(target, seconds) for target in chosen]


def _confirm(target: Target, seconds: float) -> CrosshairVerdict:
    # Importing this module is what teaches CrossHair about the standard library; it must come first.
    from crosshair.core_and_libs import analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.icontract],
        per_condition_timeout=seconds,
        per_path_timeout=seconds / 2,
        report_all=True,
    )
    start = time.perf_counter()
    messages = list(run_checkables(analyze_function(target.function, options)))
    elapsed = time.perf_counter() - start
    others = [message for message in messages if message.state.name != "CONFIRMED"]
    contracts = max(1, len(getattr(target.function, "__postconditions__", [])))
    confirmed = len(messages) - len(others)
    if others:
        state, text = others[0].state.name, others[0].message
    elif confirmed != contracts:
        state, text = "SKIPPED", f"{contracts} contracts, CrossHair spoke about {confirmed}"
    else:
        state, text = "CONFIRMED", ""
    return CrosshairVerdict(target.name, contracts, confirmed, state, elapsed, text)
