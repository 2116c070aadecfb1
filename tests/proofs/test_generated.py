"""Committed pages that are generated must say what the code says now."""

from __future__ import annotations

from pathlib import Path

from draftproof.proofs.faults import page
from draftproof.proofs.results import POOL_ROWS
from draftproof.proofs.sources import CONTROLLED, SOURCES, built

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_faults_is_current() -> None:
    assert (ROOT / "docs" / "faults.md").read_text() == page.render(), (
        "docs/faults.md is stale: run `draftproof faults --output docs/faults.md`"
    )


def test_the_overview_of_the_proofs_counts_what_there_is() -> None:
    counts: dict[str, int] = {}
    for source in SOURCES:
        for obligation in built(source):
            counts[obligation.theorem] = counts.get(obligation.theorem, 0) + 1
    overview = (ROOT / "proofs" / "README.md").read_text()
    rows = [line.split(" | ") for line in overview.splitlines() if line.endswith(" |") and "---" not in line]
    shown = {row[0].removeprefix("| "): int(row[3]) for row in rows if row[3].strip().isdigit()}
    assert shown == counts, "proofs/README.md is stale: run `draftproof prove --overview proofs/README.md`"
    decided = [row for row in rows if row[3].strip().isdigit()]
    assert all(row[4] == "proved" for row in decided)
    alone = {row[0].removeprefix("| ") for row in decided if row[5] == "z3 |"}
    assert alone == set(POOL_ROWS)
    assert all(row[5] == "z3, cvc5 |" for row in decided if row[0].removeprefix("| ") not in alone)
    for controls in CONTROLLED.values():
        for control in controls():
            assert f"- {control.name}: refuted." in overview
