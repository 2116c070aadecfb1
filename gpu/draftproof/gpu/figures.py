"""What did a text take? Tokens, steps, drafts, cached tokens and seconds, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from draftproof.gpu.runner.requests import RequestResult

NOTHING = "-"
TITLES = ("tokens", "steps", "tokens/step", "acceptance", "cached", "first token", "seconds", "tokens/s")


class Figures(NamedTuple):
    """One line of the table. Counts are tokens."""

    label: str
    num_tokens: int
    num_steps: int | None
    """Steps of the engine, prefill included; None where several requests shared them."""
    num_draft_tokens: int
    num_accepted_tokens: int
    num_cached_tokens: int
    first_token: float | None
    """Seconds."""
    seconds: float

    @property
    def acceptance(self) -> float | None:
        """Drafts accepted and kept of those verified; None without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None


def figures_of(
    label: str, results: Iterable[RequestResult], num_steps: int | None, seconds: float
) -> Figures:
    """Of one request, or of several together: then the first token is the first of any."""
    results = list(results)
    firsts = [result.timings.first_token for result in results]
    return Figures(
        label,
        sum(len(result.token_ids) for result in results),
        num_steps,
        sum(result.num_draft_tokens for result in results),
        sum(result.num_accepted_tokens for result in results),
        sum(result.num_cached_tokens for result in results),
        min((first for first in firsts if first is not None), default=None),
        seconds,
    )


def table(rows: Sequence[Figures]) -> str:
    """One line for each, under a line of titles."""
    cells = [("", *TITLES), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = []
    for line in cells:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *numbers]).strip("\n"))
    return "\n".join(lines)


def _cells(row: Figures) -> tuple[str, ...]:
    steps = row.num_steps
    return (
        row.label,
        str(row.num_tokens),
        NOTHING if steps is None else str(steps),
        f"{row.num_tokens / steps:.2f}" if steps else NOTHING,
        NOTHING if row.acceptance is None else f"{row.acceptance:.0%}",
        str(row.num_cached_tokens),
        NOTHING if row.first_token is None else f"{row.first_token:.2f} s",
        f"{row.seconds:.2f}",
        f"{row.num_tokens / row.seconds:.1f}" if row.seconds > 0 else NOTHING,
    )
