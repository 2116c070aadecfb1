"""The result of `draftproof prove` for a person: theorems first, obligations second, then failures."""

from __future__ import annotations

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from draftproof.proofs.failures import LEGEND, describe, order
from draftproof.proofs.results import Run, passed, summary, theorem_rows

MOST_FAILURES = 6
ALONE = "the block pool's"
"""Whose obligations a standard run asks z3 alone about."""
WIDTH_IN_A_PIPE = 110


def mark(good: bool) -> str:
    """A word and a colour: never a colour alone."""
    return "[green]proved[/]" if good else "[bold red]FAILED[/]"


def theorem_table(run: Run) -> Table:
    """One row per theorem."""
    table = Table(
        title="What is proved, for every size (needs: invariants used)", title_justify="left", box=box.SIMPLE
    )
    table.add_column("", no_wrap=True)
    table.add_column("theorem", min_width=26)
    table.add_column("verdict", no_wrap=True)
    table.add_column("obligations", justify="right")
    table.add_column("needs", justify="right")
    table.add_column("z3", justify="right")
    table.add_column("cvc5", justify="right")
    for row in theorem_rows(run):
        table.add_row(
            row["key"],
            row["name"],
            mark(row["outcome"] == "proved"),
            str(row["obligations"]),
            str(len(row["needs"]) or ""),
            f"{row['z3_seconds']:.2f} s",
            f"{row['cvc5_seconds']:.2f} s" if "cvc5" in row["solvers"] else "not asked",
        )
    return table


def check_table(run: Run) -> Table:
    """One row per kind of check, with what passed of how many."""
    shown = summary(run, details=False)
    obligations = shown["obligations"]
    table = Table(title="How it was checked", title_justify="left", box=box.SIMPLE)
    table.add_column("check")
    table.add_column("passed", justify="right")
    table.add_column("of", justify="right")
    table.add_column("")
    of_all = (
        f"of all: {obligations['failed']} refuted, {obligations['unknown']} unknown, "
        f"{obligations['disagreements']} disagreements, {obligations['vacuous']} vacuous groups"
    )
    parts = (
        ("by_both", "obligations, by z3 and by cvc5", of_all),
        ("by_z3_alone", "obligations, by z3 alone", f"{ALONE}; a full run asks cvc5 as well"),
    )
    rows: list[tuple[str, int, int, str]] = [
        (name, obligations[part]["proved"], obligations[part]["total"], note)
        for part, name, note in parts
        if obligations[part]["total"]
    ]
    rows += [
        (
            "contracts confirmed by CrossHair",
            shown["crosshair"]["confirmed"],
            shown["crosshair"]["contracts"],
            "over all paths of the running bytecode, against the textbook versions",
        ),
        (
            "antecedents with a reachable witness",
            shown["witnesses"]["antecedents"] - shown["witnesses"]["missing"],
            shown["witnesses"]["antecedents"],
            "so that nothing is proved about states that cannot occur",
        ),
        (
            "controls refuted",
            shown["controls"]["refuted"],
            shown["controls"]["total"],
            "an assumption dropped, or a claim too strong, is noticed",
        ),
        (
            "faults found and replayed",
            shown["faults"]["found"],
            shown["faults"]["total"],
            "known faults, put back one at a time",
        ),
    ]
    if "searches" in shown:
        searches = shown["searches"]
        rows.append(
            (
                "shortest traces found anew",
                searches["found"],
                searches["total"],
                "as short, and with numbers as small, as the committed ones",
            )
        )
    if "crosshair_mutants" in shown:
        mutants = shown["crosshair_mutants"]
        rows.append(
            (
                "mutants refuted by CrossHair",
                mutants["refuted"],
                mutants["total"],
                "one for each target, so that its silence would be noticed",
            )
        )
    if run.only:
        rows = [row for row in rows if row[0].startswith("obligations")]
    for name, good, total, note in rows:
        colour = "green" if good == total else "bold red"
        table.add_row(name, f"[{colour}]{good}[/]", str(total), note)
    return table


def failure_lines(run: Run) -> list[str]:
    """Everything that did not pass, the most telling first."""
    failed = sorted((verdict for verdict in run.verdicts if verdict.outcome != "proved"), key=order)
    lines = [describe(verdict) for verdict in failed[:MOST_FAILURES]]
    if lines:
        lines.insert(0, LEGEND)
    if len(failed) > MOST_FAILURES:
        names = ", ".join(verdict.name for verdict in failed[MOST_FAILURES : MOST_FAILURES + 8])
        lines.append(f"{len(failed) - MOST_FAILURES} more obligations failed: {names} ...")
    lines += [f"{group}: no state meets its hypotheses, so they prove nothing" for group in run.vacuous]
    lines += [
        f"CrossHair, {verdict.name}: {verdict.confirmed} of {verdict.contracts} confirmed; "
        f"{verdict.state}: {verdict.message}"
        for verdict in run.crosshair
        if verdict.confirmed != verdict.contracts
    ]
    lines += [
        f"control {name}: {outcome}, it must be refuted. {sentence}"
        for name, sentence, outcome in run.controls
        if outcome != "refuted"
    ]
    if run.coverage is not None:
        lines += [f"no reachable state meets the antecedent {missing}" for missing in run.coverage.missing]
    moved = [verdict.name for verdict in run.faults if not verdict.found and "source moved" in verdict.detail]
    if moved:
        lines.append(
            f"{len(moved)} faults could not be put back, because the code that they change was edited "
            f"({', '.join(moved[:3])}{' ...' if len(moved) > 3 else ''}): mend the proofs, then the faults"
        )
    unfound = [verdict for verdict in run.faults if not verdict.found and verdict.name not in moved]
    lines += [f"fault {verdict.name} was not found: {verdict.detail}" for verdict in unfound[:MOST_FAILURES]]
    if len(unfound) > MOST_FAILURES:
        lines.append(f"{len(unfound) - MOST_FAILURES} more faults were not found")
    for search in run.searches:
        if search.trace is None:
            lines.append(f"no trace of {search.name} was found within the search's bounds")
        elif not search.replayed:
            lines.append(f"the trace found for {search.name} does not replay")
        elif not search.as_short:
            lines.append(f"the trace found for {search.name} differs in size from the committed one")
    lines += [
        f"CrossHair did not refute the mutant of {mutant.name}: {mutant.state}"
        for mutant in run.crosshair_mutants
        if not mutant.refuted
    ]
    lines += [f"z3 finds no core for {name}" for _, name, core in run.needs if core is None]
    lines += [
        f"{row['key']}, {row['name']}: nothing is claimed, so nothing is proved"
        for row in theorem_rows(run)
        if not row["obligations"]
    ]
    lines += [f"not carried out: {sentence}" for sentence in run.broken]
    return lines


def show(run: Run, console: Console | None = None) -> None:
    """Print the tables, then what failed, then one sentence."""
    console = console or Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)
    console.print(theorem_table(run))
    console.print()
    console.print(check_table(run))
    lines = failure_lines(run)
    for line in lines:
        console.print()
        console.print(line, markup=False, highlight=False)
    console.print()
    verdict: dict[str, Any] = summary(run, details=False)
    alone = verdict["obligations"]["by_z3_alone"]["proved"]
    obligations = f"{verdict['obligations']['proved']} obligations" + (
        f" ({alone} of them, {ALONE}, by z3 alone)" if alone else ""
    )
    if passed(run) and run.only:
        console.print(
            f"[bold green]Proved:[/] {', '.join(sorted(run.only))}, {obligations}, in {run.seconds:.0f} s. "
            "A partial run: CrossHair, controls, witnesses, faults and the other theorems were not asked. "
            "`draftproof prove` asks everything."
        )
    elif passed(run):
        console.print(
            f"[bold green]Proved:[/] {verdict['theorems']['proved']} of {verdict['theorems']['total']} "
            f"theorems, {obligations}, in {run.seconds:.0f} s. "
            "What that means, and what it does not: docs/what-the-proofs-mean.md"
        )
    else:
        console.print(f"[bold red]Not proved[/] (see above), after {run.seconds:.0f} s.")
