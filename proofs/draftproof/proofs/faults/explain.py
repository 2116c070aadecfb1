"""How is a fault's story read in a terminal? One row an event, what is wrong beside what is right."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from draftproof.spec.ghosts import GHOST_SYMBOLS
from draftproof.spec.ledger import SYMBOLS

LEGEND = (
    "Strip: tokens by position. [1 2] published to the prefix cache; | the frontier: what is left of it "
    "counts as computed, the rest is for steps in flight and later ones to write; 3 with valid KV, 3+ valid "
    "once the enqueued steps have run, 3~12 holds the KV of 12 instead, 3- without KV; (12) the KV of a "
    "token that is not in the text."
)
MEANINGS = (
    "L prompt, N known tokens, C computed, P placeholders, F in flight, S stale, D drafts, R registered, "
    "T trimmed, E stop pending, X registered at the last preemption"
)
MOST_CELLS = 16
"""Longer strips are shown from their end."""


def explain(story: dict[str, Any], width: int = 100, color: bool = False) -> str:
    """The story as text of at most `width` columns; with `color`, wrong counters are also coloured."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False, emoji=False
    )
    _print_head(console, story)
    console.print(_table(story))
    if story["decision"]:
        _print_decision(console, story["decision"])
    console.print(f"\n[bold]Outcome:[/] {escape(story['outcome'])}\n")
    _print_strips(console, story)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _print_head(console: Console, story: dict[str, Any]) -> None:
    console.print(f"[bold]{escape(story['fault'])}[/]: {escape(story['title'])}")
    console.print(Padding(escape(story["meaning"]), (0, 0, 1, 2)))
    for change in story["changes"]:
        console.print(f"Changed in {escape(change['function'])}:")
        _print_source(console, "-", change["before"])
        _print_source(console, "+", change["after"])
    for report in story["reports"]:
        console.print(
            f"Reported: {escape(report['engine'])}, {escape(report['source'])}. "
            f"{escape(report['what_happens'])}"
        )
    statements = ", ".join(story["violated"])
    console.print(f"Contradicts {escape(story['theorem'])}: {escape(statements)}")
    rules = story["rules"]
    mode = "asynchronous" if rules["asynchronous"] else "synchronous"
    kind = "The report's own numbers" if story["pinned"] else "The shortest trace"
    if story["own_numbers"]:
        kind = f"Numbers of our own ({escape(story['own_numbers'])})"
    console.print(
        f"\n{kind}: {mode}, {rules['K']} drafts a step at most, blocks of {rules['B']}"
        + (f", fence {rules['fence']}" if rules["fence"] else "")
    )


def _print_source(console: Console, sign: str, text: str) -> None:
    style = {"-": "red", "+": "green"}[sign]
    for line in text.strip("\n").splitlines() or ["(nothing)"]:
        console.print(f"[{style}]  {sign} {escape(line.strip())}[/]")


def shown_symbols(story: dict[str, Any]) -> list[str]:
    """The counters worth a column: those that are ever other than 0, or wrong. `status` is always shown."""
    rows = story["rows"]
    return [
        symbol
        for symbol in SYMBOLS.values()
        if symbol not in ("status", "drop")
        and any(row["faulty"][symbol] or symbol in row["wrong"] for row in rows)
    ]


def _table(story: dict[str, Any]) -> Table:
    """One row an event; a wrong counter reads `6 not 4`. The ghosts V and W say what is really so."""
    symbols = shown_symbols(story)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), caption=MEANINGS, caption_justify="left")
    table.add_column("event", overflow="fold")
    for symbol in symbols:
        table.add_column(symbol, justify="right", no_wrap=True)
    for symbol in (GHOST_SYMBOLS["num_valid_tokens"], GHOST_SYMBOLS["num_settled_tokens"]):
        table.add_column(f"({symbol})", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for row in story["rows"]:
        cells = [_cell(row, symbol) for symbol in symbols]
        truth = [str((row["right"] or row["faulty"])[symbol]) for symbol in ("V", "W")]
        table.add_row(escape(row["event"]), *cells, *truth, _cell(row, "status"))
        if row["note"] and row["right"] is None:
            table.add_row(f"  [red]{escape(row['note'])}[/]")
        elif "on the right code" in row["note"]:
            table.add_row(f"  {escape(row['note'].split(';')[0])}")
    return table


def _cell(row: dict[str, Any], symbol: str) -> str:
    value = row["faulty"][symbol]
    if symbol in row["wrong"]:
        return f"[bold red]{value} not {row['right'][symbol]}[/]"
    return str(value)


def _print_decision(console: Console, decision: dict[str, Any]) -> None:
    console.print(f"\nThen asked: {escape(decision['call'])}")
    console.print(f"  answer [bold red]{escape(str(decision['faulty']))}[/]")
    right = (
        "is not asked: the right code does not get here" if decision["right"] is None else decision["right"]
    )
    console.print(f"  right  {escape(str(right))}")
    console.print(f"  broken {escape(', '.join(decision['broken']))}")


def strip_text(cells: list[dict[str, Any]], frontier: int) -> str:
    """One line: `[1 2] 3 10 | 11+ (12)`."""
    parts = []
    first = max(0, len(cells) - MOST_CELLS)
    if first:
        parts.append(f"... {first} before ...")
    open_bracket = False
    for cell in cells[first:]:
        text = _cell_text(cell)
        if cell["registered"] and not open_bracket:
            text, open_bracket = "[" + text, True
        elif not cell["registered"] and open_bracket:
            parts[-1] += "]"
            open_bracket = False
        if cell["position"] == frontier:
            text = "| " + text
        parts.append(text)
    if open_bracket:
        parts[-1] += "]"
    if frontier >= len(cells):
        parts.append("|" if frontier == len(cells) else f"| (position {frontier})")
    return " ".join(parts)


def _cell_text(cell: dict[str, Any]) -> str:
    token = str(cell["token"])
    if not cell["known"]:
        return f"({token})"
    mark = {"valid": "", "enqueued": "+", "none": "-", "draft": "~" + str(cell["holds"])}[cell["kv"]]
    return token + mark


def _print_strips(console: Console, story: dict[str, Any]) -> None:
    rows = [row for row in story["rows"] if row["strip"]["faulty"] or row["strip"]["right"]]
    if not rows:
        console.print("The request is too long to show its tokens.")
        return
    console.print(LEGEND + "\n", markup=False)
    for row in rows:
        strip = row["strip"]
        faulty = strip_text(strip["faulty"], strip["faulty_frontier"])
        right = "" if row["right"] is None else strip_text(strip["right"], strip["right_frontier"])
        console.print(f"after {row['event']}", markup=False)
        if faulty == right:
            console.print(f"  both    {faulty}", markup=False)
            continue
        console.print(f"  faulty  {faulty}", markup=False, style="red")
        console.print(f"  right   {right or 'refused'}", markup=False)
