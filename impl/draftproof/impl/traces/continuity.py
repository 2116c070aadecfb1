"""Is what is read one trace, and whole? For readers of a whole trace, who judge nothing themselves.

`draftproof check` judges what can be read and says what is missing. Who shows, compares or exports a trace
must know it too: a record that is missing looks like an engine's fault, a cut end like a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np

from draftproof.impl.traces.columns import (
    CODE,
    FIRST_ARGUMENT,
    PROMPT,
    REGISTERED,
    REQUEST_NUMBER,
    STATUS_LINE,
    STEP,
    Chunk,
)
from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    EVENT_NAMES,
    EXIT,
    MASK_OF_ARGUMENTS,
    REQUEST,
    Continued,
    End,
    Header,
    TraceError,
)
from draftproof.impl.traces.parquet import read_parquet
from draftproof.impl.traces.parts import Damage, Named, Part
from draftproof.impl.traces.reading import kind_of, read_ndjson
from draftproof.impl.traces.sources import Source
from draftproof.spec.ledger import STATUS_NAMES

MASKS = np.array(MASK_OF_ARGUMENTS, np.int64)
RULES = ("num_speculative_tokens", "block_size", "asynchronous", "registration_fence")
"""What all parts of a trace have in common."""


class _Continuity:
    """What must come next."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.header: Header | None = None
        self.end: End | Continued | None = None
        self.sequence = 0
        self.num_records = 0
        """Of this part."""
        self.is_covered = True
        """Whether a checksum stands behind its last record."""
        self.is_finished = False
        """Whether it has been said what it lacks."""

    def begin(self, header: Header) -> Iterator[Damage]:
        """A header: the trace's, or that of its next part."""
        former = self.header
        if former is None:
            self.sequence = header.sequence
            if header.part or header.sequence:
                yield self._missing("the beginning of the trace is missing")
        elif not former.trace or header.trace != former.trace or header.part <= former.part:
            raise TraceError(f"{self.path} holds more than one trace: give them one by one")
        else:
            yield from self.finish_part()
            if header.part != former.part + 1:
                yield self._missing(f"parts between {former.part} and {header.part} are missing")
            if any(getattr(header, name) != getattr(former, name) for name in RULES):
                yield Damage("header", f"part {header.part} has other rules than the one before", self.path)
        self.header, self.end, self.num_records, self.is_finished = header, None, 0, False

    def take(self, chunk: Chunk) -> Iterator[Damage]:
        """Records: their places must follow each other."""
        found = chunk.sequences[chunk.sequences >= 0]
        expected = np.arange(self.sequence, self.sequence + found.size)
        if (differing := np.flatnonzero(found != expected)).size:
            place = differing[0]
            yield self._missing(f"record {expected[place]} should come next, record {found[place]} does")
        self.sequence = int(found[-1]) + 1 if found.size else self.sequence
        if (malformed := np.flatnonzero(_is_malformed(chunk.lines))).size:
            place = int(chunk.sequences[malformed[0]])
            yield Damage(
                "malformed", f"record {place} has integers that are not those of its kind", self.path
            )
        self.num_records += int(np.count_nonzero(chunk.lines[CODE] >= 0))

    def finish_part(self) -> Iterator[Damage]:
        """What a part's last record says about it; said once."""
        if self.header is None or self.is_finished:
            return
        self.is_finished = True
        if self.end is None:
            yield Damage("cut", "the trace has no end", self.path)
        elif (self.end.num_records, self.end.sequence) != (self.num_records, self.sequence):
            yield self._missing(f"{self.end.num_records} records should be here, {self.num_records} are")
        elif self.header.checksums and not self.is_covered:
            yield Damage("checksum", "the checksum before the end is missing", self.path)

    def finish(self) -> Iterator[Damage]:
        """What the trace's last record says."""
        yield from self.finish_part()
        if isinstance(self.end, Continued):
            yield Damage("cut", "the trace goes on in a part that is missing", self.path)

    def _missing(self, sentence: str) -> Damage:
        return Damage("missing", sentence, self.path)


def _is_malformed(lines: Any) -> Any:
    """Which rows hold what no record has: what `kernel.is_well_formed` says, for many at once."""
    codes = lines[CODE]
    is_event = (codes >= 0) & (codes < len(EVENT_NAMES))
    masks = np.where(is_event, MASKS[np.clip(codes, 0, len(EVENT_NAMES) - 1)], 0)
    status = lines[STATUS_LINE]
    wrong = is_event & (status != ABSENT) & ((status < 0) | (status >= len(STATUS_NAMES)))
    for offset in range(len(ARGUMENTS)):
        values = lines[FIRST_ARGUMENT + offset]
        wrong |= is_event & np.where(masks >> offset & 1 == 1, values < 0, values != ABSENT)
    wrong |= (codes == EXIT) & (lines[REGISTERED] == ABSENT)
    wrong |= (codes == REQUEST) & (lines[PROMPT] < 1)
    return wrong | ((codes >= 0) & ((lines[REQUEST_NUMBER] < 0) | (lines[STEP] < 0)))


def everything_of(path: str, pool: Executor, advance: Callable[[int], None]) -> Iterator[Part]:
    """What is in a file, names, tokens and remarks included."""
    if kind_of(path) == "parquet":
        return read_parquet(path, pool, 2, advance, extras=True)
    return read_ndjson(path, pool, 2, advance)


def parts_of_one(
    source: Source, pool: Executor, advance: Callable[[int], None] = lambda count: None
) -> Iterator[Part]:
    """Everything in a trace's files, and a `Damage` for whatever is missing between and behind. Raises
    TraceError if they hold more than one trace, or none."""
    whole = _Continuity(source.paths[0])
    for path in source.paths:
        yield from whole.finish_part()
        whole.path = path
        for part in everything_of(path, pool, advance):
            if isinstance(part, Header):
                yield from whole.begin(part)
            elif isinstance(part, Named):
                whole.num_records += len(part.remarks)
                if part.end is not None:
                    whole.end, whole.is_covered = part.end, part.is_covered
            elif isinstance(part, Chunk):
                yield from whole.take(part)
            yield part
    if whole.header is None:
        raise TraceError(f"{source.paths[0]} has no header")
    yield from whole.finish()
