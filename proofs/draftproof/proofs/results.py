"""What a run of the proofs found, as data: summary for machines, rows for tables, and the verdict.

Nothing here decides anything; it only counts. "Unknown", "not confirmed" and "skipped" are never
counted as passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from draftproof.proofs.tasks import Finding
from draftproof.proofs.verdicts import NOT_ASKED
from draftproof.spec.events import EVENTS
from draftproof.spec.pool_theorems import POOL_THEOREMS
from draftproof.spec.recurrent_theorems import RECURRENT_THEOREMS
from draftproof.spec.theorems import THEOREMS

MORE_ROWS: dict[str, tuple[str, str, str]] = {
    "effects": (
        "each transition does what it should, and nothing else",
        "Every counter a transition may change has the value the specification gives it, every other "
        "one is unchanged, and two results that satisfy this agree on every counter.",
        "draftproof.spec.effects",
    ),
    "invariants": (
        "what holds in every state",
        "A new request satisfies every invariant and every transition keeps them all.",
        "draftproof.spec.invariants",
    ),
    "decisions": (
        "sizes, limits, look-ups and metrics",
        "What the scheduler computes from a ledger without changing it obeys its relation in every state.",
        "draftproof.spec.decisions",
    ),
    "R1": (
        "the exact queue refines the sums",
        "The counters of work in flight are what the queue of dispatched steps adds up to, at any depth.",
        "draftproof.spec.queue",
    ),
    "R2": (
        "the ghosts are the truth",
        "V and W are the longest prefixes whose KV slots hold the KV of the committed tokens, for every "
        "size and depth; between the turns of a session they may be one short.",
        "draftproof.spec.tokens",
    ),
    "recurrent": (
        "recurrent state moves as it should, and with the ledger",
        "A new request satisfies every invariant of recurrent state, every event keeps them all and has "
        "exactly its effects; what the events assume about a step follows from the ledger beside it.",
        "draftproof.spec.recurrent",
    ),
    "axioms": (
        "whole blocks",
        "The facts that the proofs use about rounding down to whole blocks hold for the real rounding.",
        "integer arithmetic",
    ),
}

POOL_ROWS: dict[str, tuple[str, str, str]] = {**POOL_THEOREMS}
"""What is proved of the block pool. A standard run asks z3 alone about it, a full one cvc5 as well."""

TEXTS: dict[str, tuple[str, str, str]] = {
    **THEOREMS,
    **RECURRENT_THEOREMS,
    **MORE_ROWS,
    **POOL_ROWS,
}
"""Name, meaning and source of every row that a table can have."""


class Run(NamedTuple):
    """Everything a run found."""

    verdicts: list[Any]
    vacuous: list[str]
    controls: list[tuple[str, str, str]]
    needs: list[tuple[str, str, tuple[str, ...] | None]]
    crosshair: list[Any]
    coverage: Any
    faults: list[Any]
    searches: list[Any]
    crosshair_mutants: list[Any]
    broken: list[str]
    """Checks that could not be carried out at all, in words."""
    seconds: float
    only: frozenset[str] = frozenset()
    """The theorems a partial run was about; empty if everything was asked."""
    full: bool = False
    """Whether everything that `--full` adds was asked too."""


def gather(
    findings: Iterable[Finding], seconds: float, only: frozenset[str] = frozenset(), full: bool = False
) -> Run:
    """Sort findings by kind; of a partial run, keep what it is about."""
    rows: dict[str, list[Any]] = {}
    for finding in findings:
        rows.setdefault(finding.task.kind, []).extend(finding.rows)
    coverage = rows.get("coverage", [])
    return Run(
        verdicts=sorted(
            (
                one
                for kind in ("obligations", "by_z3")
                for one in rows.get(kind, [])
                if not only or one.theorem in only
            ),
            key=lambda verdict: verdict.name,
        ),
        vacuous=sorted(group for group, met in rows.get("vacuity", []) if not met),
        controls=sorted(rows.get("controls", [])),
        needs=sorted(rows.get("needs", []), key=lambda need: need[:2]),
        crosshair=sorted(rows.get("crosshair", []), key=lambda verdict: verdict.name),
        coverage=coverage[0] if coverage else None,
        faults=sorted(rows.get("faults", []), key=lambda verdict: verdict.name),
        searches=sorted(rows.get("search", []), key=lambda verdict: verdict.name),
        crosshair_mutants=rows.get("crosshair_mutants", []),
        broken=sorted(rows.get("broken", [])),
        seconds=seconds,
        only=only,
        full=full,
    )


def theorem_text(key: str) -> tuple[str, str, str]:
    """Name, meaning and source of a table row."""
    return TEXTS[key]


def asked_rows(run: Run) -> list[str]:
    """The keys of the rows that a run must prove."""
    return [key for key in TEXTS if not run.only or key in run.only]


def theorem_rows(run: Run) -> list[dict[str, Any]]:
    """One row per theorem that was asked for: proved only if it has obligations and all are proved."""
    by_key: dict[str, list[Any]] = {}
    for verdict in run.verdicts:
        by_key.setdefault(verdict.theorem, []).append(verdict)
    needs: dict[str, set[str]] = {}
    for theorem, _, core in run.needs:
        needs.setdefault(theorem, set()).update(
            name.rpartition(":")[2] for name in core or () if "invariant" in name.split(":")[:-1]
        )
    rows = []
    for key in asked_rows(run):
        name, meaning, source = theorem_text(key)
        verdicts = by_key.get(key, [])
        rows.append(
            {
                "key": key,
                "name": name,
                "meaning": meaning,
                "source": source,
                "outcome": outcome_of_all(verdicts),
                "obligations": len(verdicts),
                "needs": sorted(needs.get(key, ())),
                "solvers": solvers_of(verdicts),
                "z3_seconds": round(sum(verdict.z3_seconds for verdict in verdicts), 3),
                "cvc5_seconds": round(sum(verdict.cvc5_seconds for verdict in verdicts), 3),
            }
        )
    return rows


def solvers_of(verdicts: list[Any]) -> list[str]:
    """The solvers that were asked about every one of some obligations."""
    return ["z3", "cvc5"] if all(verdict.cvc5 != NOT_ASKED for verdict in verdicts) else ["z3"]


def outcome_of_all(verdicts: list[Any]) -> str:
    """Nothing claimed is nothing proved."""
    proved = bool(verdicts) and all(verdict.outcome == "proved" for verdict in verdicts)
    return "proved" if proved else "failed"


def matrix(run: Run) -> dict[str, Any]:
    """Which claims about which transition are proved: rows effects, invariants, theorems."""
    cells: dict[str, dict[str, dict[str, int]]] = {}
    for verdict in run.verdicts:
        column = verdict.name.partition("/")[0]
        if column not in EVENTS or verdict.kind not in ("effect", "invariant", "theorem"):
            continue
        cell = cells.setdefault(verdict.theorem, {}).setdefault(column, {"total": 0, "proved": 0})
        cell["total"] += 1
        cell["proved"] += verdict.outcome == "proved"
    rows = [key for key in ("effects", "invariants", *THEOREMS) if key in cells]
    return {"rows": rows, "columns": list(EVENTS), "cells": cells}


def is_theorem(key: str) -> bool:
    """T1 to T14, R1 and R2, and the like; the other rows are families that the theorems stand on."""
    return key[:1].isupper() and key[1:].isdigit()


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many rows there are, and how many are proved."""
    return {"total": len(rows), "proved": sum(row["outcome"] == "proved" for row in rows)}


def summary(run: Run, details: bool = True) -> dict[str, Any]:
    """The `--json` of `draftproof prove`."""
    rows = theorem_rows(run)
    outcomes = [verdict.outcome for verdict in run.verdicts]
    alone = [verdict.outcome for verdict in run.verdicts if verdict.cvc5 == NOT_ASKED]
    shown: dict[str, Any] = {
        "theorems": counted([row for row in rows if is_theorem(row["key"])]),
        "families": counted([row for row in rows if not is_theorem(row["key"])]),
        "obligations": {
            "total": len(outcomes),
            "proved": outcomes.count("proved"),
            "by_both": {
                "total": len(outcomes) - len(alone),
                "proved": outcomes.count("proved") - alone.count("proved"),
            },
            "by_z3_alone": {"total": len(alone), "proved": alone.count("proved")},
            "failed": outcomes.count("refuted"),
            "unknown": outcomes.count("unknown"),
            "vacuous": len(run.vacuous),
            "disagreements": outcomes.count("disagreement"),
        },
        "crosshair": {
            "contracts": sum(verdict.contracts for verdict in run.crosshair),
            "confirmed": sum(verdict.confirmed for verdict in run.crosshair),
        },
        "faults": {"total": len(run.faults), "found": sum(bool(verdict.found) for verdict in run.faults)},
        "controls": {
            "total": len(run.controls),
            "refuted": sum(outcome == "refuted" for _, _, outcome in run.controls),
        },
        "witnesses": {
            "antecedents": len(run.coverage.antecedents) if run.coverage else 0,
            "missing": len(run.coverage.missing) if run.coverage else 0,
        },
        "seconds": round(run.seconds, 1),
    }
    if run.searches:
        shown["searches"] = {
            "total": len(run.searches),
            "found": sum(search.replayed and search.as_short for search in run.searches),
        }
    if run.crosshair_mutants:
        shown["crosshair_mutants"] = {
            "total": len(run.crosshair_mutants),
            "refuted": sum(bool(mutant.refuted) for mutant in run.crosshair_mutants),
        }
    if run.only:
        shown["partial"] = sorted(run.only)
    if run.broken:
        shown["not_carried_out"] = run.broken
    if details:
        shown["details"] = {
            "theorems": rows,
            "matrix": matrix(run),
            "crosshair": [verdict._asdict() for verdict in run.crosshair],
            "controls": [
                {"name": name, "sentence": sentence, "outcome": outcome}
                for name, sentence, outcome in run.controls
            ],
            "faults": [verdict._asdict() for verdict in run.faults],
            "failures": [
                {
                    "obligation": verdict.name,
                    "outcome": verdict.outcome,
                    "counterexample": verdict.counterexample,
                }
                for verdict in run.verdicts
                if verdict.outcome != "proved"
            ],
            "vacuous": run.vacuous,
            "coverage": run.coverage.table if run.coverage else [],
        }
    return shown


def passed(run: Run) -> bool:
    """Everything that was to be asked was asked and decided as it must be. Absence is not success."""
    names = [verdict.name for verdict in run.verdicts]
    proofs_hold = (
        not run.broken
        and not run.vacuous
        and len(names) == len(set(names)) > 0
        and all(verdict.outcome == "proved" for verdict in run.verdicts)
        and all(verdict.cvc5 != NOT_ASKED or _may_be_alone(run, verdict) for verdict in run.verdicts)
        and all(row["outcome"] == "proved" for row in theorem_rows(run))
    )
    if run.only:
        return proofs_hold
    return (
        proofs_hold
        and all_of_some(verdict.confirmed == verdict.contracts > 0 for verdict in run.crosshair)
        and all_of_some(bool(verdict.found) for verdict in run.faults)
        and all_of_some(outcome == "refuted" for _, _, outcome in run.controls)
        and run.coverage is not None
        and bool(run.coverage.antecedents)
        and not run.coverage.missing
        and all(core is not None for _, _, core in run.needs)
        and all(search.replayed and search.as_short for search in run.searches)
        and all(mutant.refuted for mutant in run.crosshair_mutants)
    )


def _may_be_alone(run: Run, verdict: Any) -> bool:
    """One solver's word is enough about the pool, and there only in a run that is not a full one."""
    return verdict.theorem in POOL_ROWS and not run.full


def all_of_some(passes: Iterable[bool]) -> bool:
    """There is at least one, and all pass."""
    found = list(passes)
    return bool(found) and all(found)
