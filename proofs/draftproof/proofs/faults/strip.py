"""Which token stands at each position, and whose KV is really there? For explanations of short runs.

The token-level reference (`draftproof.spec.tokens`) is walked beside the code, faulty or right, and tokens
get readable names: the prompt counts from 1, what the model samples or guesses from 10, a session's next
chunk from 7 (as in the report of the trim fault), with other names where those are taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.proofs.faults.patching import Code
from draftproof.spec import tokens
from draftproof.spec.events import ChunkOutput, Event, Fold, Output, Schedule, StaleOutput
from draftproof.spec.ledger import Rules
from draftproof.spec.tokens import Reference

LONGEST_PROMPT = 256
"""Strips are for reading; longer requests have none."""


class Cell(NamedTuple):
    """One position. `kv`: `valid` (returned), `enqueued` (valid once dispatched steps have run), `draft`
    (KV of another token or context), `none`. `holds` names the token whose KV is there, if it is another."""

    position: int
    token: str
    kv: str
    registered: bool
    known: bool
    holds: str


class Tape(NamedTuple):
    """The tokens of one run after each event, the start first. `known`: what the code takes for the text."""

    cells: tuple[tuple[Cell, ...], ...]
    known: tuple[tuple[str, ...], ...]


def tape(code: Code, rules: Rules, num_prompt_tokens: int, events: tuple[Event, ...]) -> Tape:
    """The strips of a run whose events are all possible under the code."""
    names = _Names(num_prompt_tokens)
    reference = tokens.start(num_prompt_tokens)
    accepted = _accepted(events)
    references = [reference]
    for index, event in enumerate(events):
        if isinstance(event, Schedule):
            most = max(tokens.num_drafts_dispatched(reference, event), 0)
            num_accepted = accepted.get(index, most)
        else:
            num_accepted = 0
        before = reference
        reference = tokens.advance(before, rules, event, code.transitions, num_accepted)
        if isinstance(event, Fold):
            reference = _folded(before, reference, event)
            names.name_chunk(reference.tokens[len(reference.tokens) - event.num_chunk_tokens :])
        references.append(reference)
    return Tape(
        tuple(_cells(one, names) for one in references),
        tuple(tuple(names.of(token) for token in one.tokens) for one in references),
    )


class _Names:
    """Readable names of the reference's token numbers."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.short = num_prompt_tokens <= 6
        self.first_sampled = 10 if self.short else (num_prompt_tokens // 10 + 1) * 10
        self.named = {token: str(token + 1) for token in range(num_prompt_tokens)}
        self.num_sampled = 0
        self.num_sent = 0

    def of(self, token: int) -> str:
        """The token's name; one not named yet was sampled or guessed."""
        if token not in self.named:
            self.named[token] = str(self.first_sampled + self.num_sampled)
            self.num_sampled += 1
        return self.named[token]

    def name_chunk(self, chunk: tuple[int, ...]) -> None:
        """Tokens that the client sent."""
        for token in chunk:
            self.named[token] = (
                str(7 + self.num_sent) if self.short and self.num_sent < 3 else f"c{self.num_sent + 1}"
            )
            self.num_sent += 1


def _accepted(events: tuple[Event, ...]) -> dict[int, int]:
    """How many drafts each schedule's step gets right, by the event's index: steps return in order."""
    dispatched = [index for index, event in enumerate(events) if isinstance(event, Schedule)]
    returned = [event for event in events if isinstance(event, ChunkOutput | Output | StaleOutput)]
    found = {}
    for index, event in zip(dispatched, returned, strict=False):
        if isinstance(event, Output):
            found[index] = event.num_accepted
        elif isinstance(event, StaleOutput):
            found[index] = max(event.num_kept - 1, 0)
    return found


def _folded(before: Reference, after: Reference, event: Fold) -> Reference:
    """The reference keeps all but the last token; where the code keeps more or fewer, so does the text."""
    kept = max(after.run.state.ledger.num_tokens - event.num_chunk_tokens, 0)
    chunk = after.tokens[len(after.tokens) - event.num_chunk_tokens :]
    return after._replace(tokens=before.tokens[:kept] + chunk)


def _cells(reference: Reference, names: _Names) -> tuple[Cell, ...]:
    """One cell a position, up to the last that has a token or KV."""
    ledger = reference.run.state.ledger
    known, slots = reference.tokens, reference.enqueued
    for token in known:  # in the order of the text, so that names count up along it
        names.of(token)
    cells = []
    for position in range(max(len(known), len(slots), min(ledger.num_tokens, len(known) + 8))):
        held = slots[position] if position < len(slots) else None
        own = known[: position + 1] if position < len(known) else None
        holds = names.of(held[-1]) if held else ""
        if position >= len(slots):
            kv = "none"
        elif own is not None and held == own:
            settled = position < len(reference.returned) and reference.returned[position] == own
            kv = "valid" if settled else "enqueued"
        else:
            kv = "draft"
        name = names.of(known[position]) if own is not None else (holds or "?")
        cells.append(
            Cell(
                position=position,
                token=name,
                kv=kv,
                registered=position < ledger.num_registered_tokens,
                known=position < ledger.num_tokens,
                holds=holds if holds != name else "",
            )
        )
    return tuple(cells)


def as_data(cells: tuple[Cell, ...]) -> list[dict[str, Any]]:
    """The cells as plain data."""
    return [cell._asdict() for cell in cells]
