"""Would the proofs notice a wrong accounting? Every single-site mutant is judged, and the kills are counted.

A mutant that changes what a transition computes must be refuted by proof; one that survives, or that
cannot be decided, fails the table. A mutant that changes nothing must be argued
(`draftproof.proofs.equivalents`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.proofs.equivalents import ARGUED, argument
from draftproof.proofs.judgement import Judgement, judge
from draftproof.proofs.mutants import Mutant, mutants
from draftproof.proofs.output import write_text
from draftproof.proofs.workers import spread

BATCH = 30
"""Mutants that a worker judges before it reports."""

COLUMNS = (
    "mutants",
    "equivalent",
    "non-equivalent",
    "killed by invariants",
    "killed by invariants or theorems",
    "killed by effects",
    "killed",
    "left",
)
HEADINGS = ("mutants", "same", "wrong", "invariants", "theorems", "effects", "killed", "left")
"""The same, short enough for a terminal of 80 columns."""


class Row(NamedTuple):
    """The counts of one transition or operator, in the order of `COLUMNS`."""

    name: str
    counts: tuple[int, ...]


class KillTable(NamedTuple):
    """Every mutant that can run, and what the proofs say about it, in source order."""

    judgements: tuple[Judgement, ...]
    num_ill_formed: int
    """Mutants that cannot run at all; they are in no other count."""
    is_complete: bool
    """Whether all functions of the accounting were mutated: only then must every argument be used."""

    def by_transition(self) -> list[Row]:
        """One row per function of the accounting, and the total."""
        return self._rows(lambda judgement: judgement.mutant.function)

    def by_operator(self) -> list[Row]:
        """One row per kind of change, and the total."""
        return self._rows(lambda judgement: judgement.mutant.operator)

    def _rows(self, key: Callable[[Judgement], str]) -> list[Row]:
        names = dict.fromkeys(key(judgement) for judgement in self.judgements)
        rows = [
            Row(name, _counts([found for found in self.judgements if key(found) == name])) for name in names
        ]
        return [*rows, Row("all", _counts(list(self.judgements)))]

    def with_outcome(self, outcome: str) -> list[Judgement]:
        """The mutants with this outcome."""
        return [judgement for judgement in self.judgements if judgement.outcome == outcome]

    def unargued(self) -> list[Judgement]:
        """Equivalent mutants for which nobody says why."""
        return [found for found in self.with_outcome("equivalent") if argument(found.mutant) is None]

    def unused_arguments(self) -> list[str]:
        """Keys of arguments about mutants that are not there, or not equivalent, any more."""
        used = {judgement.mutant.key for judgement in self.with_outcome("equivalent")}
        return [key for key in ARGUED if key not in used] if self.is_complete else []

    def passed(self) -> bool:
        """Every mutant was killed, or is equivalent and argued; no argument is left over."""
        decided = all(judgement.outcome in ("killed", "equivalent") for judgement in self.judgements)
        return bool(self.judgements) and decided and not self.unargued() and not self.unused_arguments()

    def summary(self) -> dict[str, Any]:
        """The table as plain data."""
        return {
            "mutants": len(self.judgements),
            "ill_formed": self.num_ill_formed,
            "equivalent": len(self.with_outcome("equivalent")),
            "killed": len(self.with_outcome("killed")),
            "survived": [found.mutant.key for found in self.with_outcome("survived")],
            "unknown": [found.mutant.key for found in self.with_outcome("unknown")],
            "unargued": [found.mutant.key for found in self.unargued()],
            "unused_arguments": self.unused_arguments(),
            "passed": self.passed(),
            "by_transition": {
                row.name: dict(zip(COLUMNS, row.counts, strict=True)) for row in self.by_transition()
            },
            "by_operator": {
                row.name: dict(zip(COLUMNS, row.counts, strict=True)) for row in self.by_operator()
            },
        }


def _counts(judgements: list[Judgement]) -> tuple[int, ...]:
    others = [judgement for judgement in judgements if judgement.outcome != "equivalent"]

    def killed(*defences: str) -> int:
        return sum(any(defence in found.killed_by for defence in defences) for found in others)

    everything = killed("invariant", "theorem", "effect")
    return (
        len(judgements),
        len(judgements) - len(others),
        len(others),
        killed("invariant"),
        killed("invariant", "theorem"),
        killed("effect"),
        everything,
        len(others) - everything,
    )


def _judge_batch(batch: list[Mutant]) -> list[Judgement]:
    return [judge(mutant) for mutant in batch]


def kill_table(functions: tuple[str, ...] = (), workers: int | None = None) -> KillTable:
    """Judge every mutant of the named functions (of all when none is named) on worker processes.

    About two minutes on two cores for the whole accounting. Only z3 is asked: a counterexample is
    evidence by itself.
    """
    chosen = mutants(functions)
    batches = [chosen[first : first + BATCH] for first in range(0, len(chosen), BATCH)]
    found = {
        judgement.mutant.key: judgement
        for batch in spread(_judge_batch, batches, workers)
        for judgement in batch
    }
    in_order = [found[mutant.key] for mutant in chosen]
    well_formed = tuple(judgement for judgement in in_order if judgement.outcome != "ill-formed")
    return KillTable(well_formed, len(in_order) - len(well_formed), is_complete=not functions)


def _failures(table: KillTable) -> list[str]:
    """What keeps the table from passing, a sentence each."""
    lines = [f"survived: {found.mutant.key}" for found in table.with_outcome("survived")]
    lines += [f"not decided: {found.mutant.key}" for found in table.with_outcome("unknown")]
    lines += [f"equivalent, but nobody says why: {found.mutant.key}" for found in table.unargued()]
    return lines + [f"argued, but no equivalent mutant: {key}" for key in table.unused_arguments()]


def show_kill_table(table: KillTable) -> None:
    """Print the table by transition and by operator, and what keeps it from passing."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, rows in (("transition", table.by_transition()), ("operator", table.by_operator())):
        shown = Table(title, *HEADINGS, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in rows:
            shown.add_row(row.name, *map(str, row.counts), end_section=row is rows[-2])
        console.print(shown)
    console.print(
        "Same: proved to compute the same. Theorems: killed by invariants or theorems. Left must be 0."
    )
    for line in _failures(table):
        console.print(line, markup=False)


def write_kill_table(table: KillTable, path: Path) -> None:
    """Write the table and every equivalent mutant with its argument as Markdown."""
    write_text(path, _markdown(table))


def _markdown_rows(title: str, rows: list[Row]) -> list[str]:
    lines = [f"| {title} | " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    return [*lines, *(_markdown_row(row) for row in rows), ""]


def _markdown_row(row: Row) -> str:
    return f"| {row.name} | " + " | ".join(map(str, row.counts)) + " |"


def _code(text: str) -> str:
    return "`" + text.replace("ledger.", "") + "`"


def _markdown(table: KillTable) -> str:
    equivalent = table.with_outcome("equivalent")
    lines = [
        "# What the proofs notice",
        "",
        "Generated by `draftproof mutants --output docs/kill-table.md`; do not edit.",
        "",
        "Every place of the accounting's source was changed in every way the operators below know, one",
        "change at a time, and each changed version was given to the prover. *Left* must be 0: a mutant that",
        "survives, or that the prover cannot decide, is a hole in the specification.",
        f"{table.num_ill_formed} further mutants cannot run (they compute on truth values, or read a",
        "variable before it is set) and are not counted.",
        "",
        *_markdown_rows("transition", table.by_transition()),
        *_markdown_rows("operator", table.by_operator()),
        "## Mutants that change nothing",
        "",
        f"{len(equivalent)} mutants compute the same ledger in every state that the invariants and the guard",
        "allow (proved). Each is argued here; the facts that its proof uses are in parentheses.",
        "",
    ]
    groups: dict[str, list[Judgement]] = {}
    for judgement in equivalent:
        groups.setdefault(argument(judgement.mutant) or "Nobody says why.", []).append(judgement)
    for because, members in groups.items():
        lines += [f"**{because[0].upper()}{because[1:]}.**", ""]
        for judgement in members:
            mutant = judgement.mutant
            site = mutant.key.partition(":")[0]
            facts = ", ".join(fact.replace("invariant:", "") for fact in judgement.needed)
            lines.append(f"- `{site}`: {_code(mutant.before)} to {_code(mutant.after)} ({facts})")
        lines.append("")
    if failures := _failures(table):
        lines += ["## What is wrong", "", *(f"- {line}" for line in failures), ""]
    return "\n".join(lines)
