"""A realistic run for the report's tests. The verdicts are made up; nothing here proves anything.

`sample()` is what `render` takes; the stories stand in `report_stories.py`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from draftproof.spec import effects, events
from draftproof.spec.theorems import STEP_THEOREMS, THEOREMS

STORIES = runpy.run_path(str(Path(__file__).with_name("report_stories.py")))


def _theorem_row(key: str, outcome: str = "proved") -> dict[str, Any]:
    return {
        "key": key,
        "name": THEOREMS[key].name,
        "meaning": THEOREMS[key].meaning,
        "source": THEOREMS[key].source,
        "outcome": outcome,
        "obligations": 11,
        "needs": ["settled_is_computed_less_live", "registered_is_valid"],
        "z3_seconds": 0.31,
        "cvc5_seconds": 0.84,
    }


def _matrix() -> dict[str, Any]:
    columns = list(events.EVENTS)
    cells: dict[str, dict[str, dict[str, int]]] = {"effects": {}, "invariants": {}}
    for column in columns:
        changed = len(effects.CHANGES[column])
        cells["effects"][column] = {"total": changed, "proved": changed}
        cells["invariants"][column] = {"total": 20, "proved": 20}
    for claim in STEP_THEOREMS:
        for column in claim.transitions:
            cell = cells.setdefault(claim.theorem, {}).setdefault(column, {"total": 0, "proved": 0})
            cell["total"] += 1
            cell["proved"] += 1
    return {"rows": list(cells), "columns": columns, "cells": cells}


def _coverage() -> list[dict[str, Any]]:
    modes = [
        f"{mode} {phase}"
        for mode in ("synchronous", "asynchronous")
        for phase in ("prefill", "decode", "trimmed", "preempted")
    ]
    antecedents = ("a sample is awaited", "a stop was trimmed", "late output is delivered")
    return [
        {
            "antecedent": antecedent,
            "modes": {
                mode: "cannot occur" if (row, column) in {(1, 0), (1, 4)} else "witness"
                for column, mode in enumerate(modes)
            },
        }
        for row, antecedent in enumerate(antecedents)
    ]


def sample(num_stories: int | None = None) -> dict[str, Any]:
    """The whole report's data; with `num_stories`, the stories repeated under new names up to that many."""
    told = STORIES["stories"]()
    if num_stories is not None:
        told = [
            {**told[index % 4], "fault": f"{told[index % 4]['fault']}-{index}"}
            for index in range(num_stories)
        ]
    verdicts = [
        {
            "name": story["fault"],
            "title": story["title"],
            "theorem": story["theorem"],
            "refuted": True,
            "replayed": True,
            "found": True,
        }
        for story in told
    ]
    return {
        "generated": "2026-03-01",
        "version": "0.1.0",
        "trusted": [
            "z3, cvc5 and the builder of their terms",
            "Numba and LLVM, which compile the proven functions",
            "that outputs arrive in the order in which steps were dispatched",
            "that the device reports acceptance truthfully",
        ],
        "stories": told,
        "prove": {
            "theorems": {"total": len(THEOREMS), "proved": len(THEOREMS)},
            "obligations": {
                "total": 1204,
                "proved": 1204,
                "failed": 0,
                "unknown": 0,
                "vacuous": 0,
                "disagreements": 0,
            },
            "crosshair": {"contracts": 11, "confirmed": 11},
            "faults": {"total": len(told), "found": len(told)},
            "controls": {"total": 2, "refuted": 2},
            "witnesses": {"antecedents": 24, "missing": 0},
            "seconds": 27.4,
            "details": {
                "theorems": [_theorem_row(key) for key in THEOREMS],
                "matrix": _matrix(),
                "crosshair": [
                    {
                        "name": f"transition/{name}",
                        "contracts": 1,
                        "confirmed": 1,
                        "state": "CONFIRMED",
                        "seconds": 0.41,
                    }
                    for name in events.EVENTS
                ],
                "coverage": _coverage(),
                "controls": [
                    {
                        "name": "queue/order",
                        "sentence": "Outputs may arrive in any order.",
                        "outcome": "refuted",
                    },
                    {
                        "name": "slots/one-less",
                        "sentence": "One slot less is enough.",
                        "outcome": "refuted",
                    },
                ],
                "explored": [
                    {"what": "ghosts against the token-level model", "bound": "all runs of up to 7 events"},
                    {"what": "queue of steps in flight, witnesses", "bound": "up to 3 steps deep"},
                ],
                "faults": verdicts,
                "mutants": {"total": 965, "refuted": 948, "equivalent": 17, "unknown": 0},
                "integers": {"bound": "max_model_len + J(1 + K) < 2^31", "subterms": 143},
            },
        },
    }
