"""How does a request look, step by step? A table in the terminal, and the same as a page of its own.

Everything in a trace was written by somebody else: in the page it is escaped, in the terminal control
characters are shown as what they are.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from draftproof.impl.contracts import format_event
from draftproof.impl.traces.format import EVENT_NAMES, Exit, Header, Request, RequestRecord
from draftproof.impl.traces.replaying import Happened
from draftproof.spec.events import EVENTS
from draftproof.spec.ledger import STATUS_NAMES, SYMBOLS
from draftproof.spec.theorems import THEOREMS

SHOWN = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_tokens",
    "num_draft_tokens",
    "num_registered_tokens",
    "num_trimmed_tokens",
)
LEGEND = ", ".join(f"{SYMBOLS[name]} {name}" for name in SHOWN)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
h1 { font-size: 1.3rem; } .muted { color: #57606a; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #d8dee4; white-space: nowrap; }
th:nth-child(2), td:nth-child(2), th:last-child, td:last-child { text-align: left; }
td.changed { font-weight: 600; } tr.wrong td { background: #ffebe9; }
td.differs { color: #b3261e; font-weight: 700; }
code { font: 13px ui-monospace, monospace; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } .muted { color: #9198a1; }
  th, td { border-color: #30363d; } tr.wrong td { background: #4a1517; } td.differs { color: #ff8f87; } }
"""


def printable(text: str) -> str:
    """Without control characters, which could change what a terminal shows."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def event_text(record: RequestRecord) -> str:
    """`output(n=4, d=3, a=3, k=2, stop=1)`; the same for the other records."""
    if isinstance(record, Request):
        return f"request(prompt={record.num_prompt_tokens})"
    if isinstance(record, Exit):
        look_up = "" if record.look_up is None else f", look_up={record.look_up}"
        return f"exit(registered={record.num_registered_tokens}{look_up})"
    name: Any = record.__struct_config__.tag
    assert name in EVENT_NAMES
    kind = EVENTS[name]
    return format_event(kind(*[getattr(record, field) for field in kind._fields]), name)


def verdict(happened: Sequence[Happened]) -> list[str]:
    """What came of it, in sentences."""
    found = happened[-1].divergence
    if found is None:
        return [f"{len(happened)} records, none diverges from the accounting"]
    lines = [found.sentence]
    for theorem in found.theorems:
        if theorem in THEOREMS:
            lines.append(f"{theorem} ({THEOREMS[theorem].name}): {THEOREMS[theorem].meaning}")
    return [*lines, f"broken: {', '.join(found.checks)}"]


def as_text(header: Header, name: str, happened: Sequence[Happened]) -> str:
    """The table for a terminal."""
    rows = [["step", "event", *[SYMBOLS[field] for field in SHOWN], "status", "engine"]]
    for one in happened:
        ledger = one.after.ledger
        rows.append(
            [
                str(one.record.step),
                event_text(one.record),
                *[str(getattr(ledger, field)) for field in SHOWN],
                STATUS_NAMES[ledger.status],
                _engine(one),
            ]
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [f"request {name}, {header.engine} {header.engine_version}, {_rules(header)}", ""]
    for row in rows:
        cells = [
            text.ljust(width) if place in (1, len(row) - 2, len(row) - 1) else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", LEGEND, "", *verdict(happened)]
    return "\n".join(printable(line) for line in lines) + "\n"


def as_html(header: Header, name: str, happened: Sequence[Happened]) -> str:
    """A page that needs nothing else."""
    heads = ["step", "event", *[SYMBOLS[field] for field in SHOWN], "status", "engine"]
    body = []
    before: Happened | None = None
    for one in happened:
        wrong = set(one.divergence.counters) if one.divergence is not None else set()
        cells = [f"<td>{one.record.step}</td><td><code>{html.escape(event_text(one.record))}</code></td>"]
        for field in SHOWN:
            value = getattr(one.after.ledger, field)
            changed = before is not None and getattr(before.after.ledger, field) != value
            kind = "differs" if field in wrong else "changed" if changed else ""
            cells.append(f'<td class="{kind}">{value}</td>' if kind else f"<td>{value}</td>")
        cells.append(f"<td>{STATUS_NAMES[one.after.ledger.status]}</td><td>{html.escape(_engine(one))}</td>")
        body.append(f"<tr{' class=wrong' if one.divergence is not None else ''}>{''.join(cells)}</tr>")
        before = one
    title = html.escape(f"Request {printable(name)}")
    engine = html.escape(printable(f"{header.engine} {header.engine_version}, {_rules(header)}"))
    sentences = "".join(f"<p>{html.escape(printable(line))}</p>" for line in verdict(happened))
    legend = ", ".join(f"<b>{SYMBOLS[field]}</b> <code>{field}</code>" for field in SHOWN)
    head = "".join(f'<th title="{html.escape(text)}">{html.escape(text)}</th>' for text in heads)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f'<h1>{title}</h1><p class="muted">{engine}</p>{sentences}'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        f'<p class="muted">{legend}. The counters are the accounting\'s after the event; under "engine" is '
        f"what the engine told otherwise.</p></body></html>\n"
    )


def _rules(header: Header) -> str:
    mode = "asynchronous" if header.asynchronous else "synchronous"
    fence = f", fence {header.registration_fence}" if header.registration_fence else ""
    return f"K={header.num_speculative_tokens}, B={header.block_size}{fence}, {mode}"


def _engine(one: Happened) -> str:
    """What the engine told otherwise."""
    if one.divergence is None:
        return "agrees" if one.told else ""
    if not one.divergence.counters:
        return f"may not come here: {', '.join(one.divergence.checks)}"
    parts = [
        f"{SYMBOLS.get(name, name)} {found}, expected {expected}"
        for name, (expected, found) in one.divergence.counters.items()
    ]
    return f"{', '.join(parts)} ({', '.join(one.divergence.theorems)})"
