"""What a run of the proofs found, as data: summary for machines, rows for tables, and the verdict.

Nothing here decides anything; it only counts. "Unknown", "not confirmed" and "skipped" are never
counted as passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from draftproof.proofs.tasks import Finding
from draftproof.spec.events import EVENTS
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
    "axioms": (
        "whole blocks",
        "The facts that the proofs use about rounding down to whole blocks hold for the real rounding.",
        "integer arithmetic",
    ),
}


class Run(NamedTuple):
    """Everything a run found."""

    verdicts: list[Any]
    vacuous: list[str]
    controls: list[tuple[str, str, str]]
    needs: list[tuple[str, str, tuple[str, ...]]]
    crosshair: list[Any]
    coverage: Any
    faults: list[Any]
    searches: list[Any]
    crosshair_mutants: list[Any]
    broken: list[str]
    """Checks that could not be carried out at all, in words."""
    seconds: float


def gather(findings: Iterable[Finding], seconds: float) -> Run:
    """Sort findings by kind."""
    rows: dict[str, list[Any]] = {}
    for finding in findings:
        rows.setdefault(finding.task.kind, []).extend(finding.rows)
    coverage = rows.get("coverage", [])
    return Run(
        verdicts=sorted(rows.get("obligations", []), key=lambda verdict: verdict.name),
        vacuous=sorted(group for group, met in rows.get("vacuity", []) if not met),
        controls=sorted(rows.get("controls", [])),
        needs=sorted(rows.get("needs", [])),
        crosshair=sorted(rows.get("crosshair", []), key=lambda verdict: verdict.name),
        coverage=coverage[0] if coverage else None,
        faults=sorted(rows.get("faults", []), key=lambda verdict: verdict.name),
        searches=sorted(rows.get("search", []), key=lambda verdict: verdict.name),
        crosshair_mutants=rows.get("crosshair_mutants", []),
        broken=sorted(rows.get("broken", [])),
        seconds=seconds,
    )


def theorem_text(key: str) -> tuple[str, str, str]:
    """Name, meaning and source of a table row."""
    if key in THEOREMS:
        return THEOREMS[key]
    return MORE_ROWS[key]


def theorem_rows(run: Run) -> list[dict[str, Any]]:
    """One row per theorem: proved only if it has obligations and all of them are proved."""
    by_key: dict[str, list[Any]] = {}
    for verdict in run.verdicts:
        by_key.setdefault(verdict.theorem, []).append(verdict)
    needs: dict[str, set[str]] = {}
    for theorem, _, core in run.needs:
        needs.setdefault(theorem, set()).update(
            name.partition(":")[2] for name in core if name.startswith("invariant:")
        )
    rows = []
    for key in [key for key in (*THEOREMS, *MORE_ROWS) if key in by_key]:
        name, meaning, source = theorem_text(key)
        verdicts = by_key[key]
        rows.append(
            {
                "key": key,
                "name": name,
                "meaning": meaning,
                "source": source,
                "outcome": "proved" if all(verdict.outcome == "proved" for verdict in verdicts) else "failed",
                "obligations": len(verdicts),
                "needs": sorted(needs.get(key, ())),
                "z3_seconds": round(sum(verdict.z3_seconds for verdict in verdicts), 3),
                "cvc5_seconds": round(sum(verdict.cvc5_seconds for verdict in verdicts), 3),
            }
        )
    return rows


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


def summary(run: Run, details: bool = True) -> dict[str, Any]:
    """The `--json` of `draftproof prove`."""
    rows = theorem_rows(run)
    outcomes = [verdict.outcome for verdict in run.verdicts]
    shown: dict[str, Any] = {
        "theorems": {"total": len(rows), "proved": sum(row["outcome"] == "proved" for row in rows)},
        "obligations": {
            "total": len(outcomes),
            "proved": outcomes.count("proved"),
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
    """Everything was decided, and everything decided as it must be."""
    shown = summary(run, details=False)
    obligations, crosshair = shown["obligations"], shown["crosshair"]
    return (
        not run.broken
        and obligations["proved"] == obligations["total"] > 0
        and obligations["vacuous"] == 0
        and crosshair["confirmed"] == crosshair["contracts"]
        and shown["faults"]["found"] == shown["faults"]["total"]
        and shown["controls"]["refuted"] == shown["controls"]["total"]
        and shown["witnesses"]["missing"] == 0
        and all(search.replayed and search.as_short for search in run.searches)
        and all(mutant.refuted for mutant in run.crosshair_mutants)
    )
