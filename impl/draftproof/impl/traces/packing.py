"""How does a trace get from NDJSON to Parquet and back? Record by record, with nothing lost.

A trace that is damaged is not packed: new checksums would make it look sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.impl.traces.columns import CODE, SKIPPED, Chunk, record_at
from draftproof.impl.traces.files import ChecksummedFile
from draftproof.impl.traces.format import (
    Checksum,
    Continued,
    End,
    Header,
    Record,
    TraceError,
    encode,
)
from draftproof.impl.traces.parquet import ParquetWriter, read_parquet
from draftproof.impl.traces.reading import Damage, Named, Part, kind_of, read_ndjson
from draftproof.impl.traces.sources import Source


def parts_with_extras(
    source: Source, pool: Any, advance: Callable[[int], None] = lambda count: None
) -> Iterator[Part]:
    """Everything in a trace's files, names, tokens and remarks included."""
    for path in source.paths:
        if kind_of(path) == "parquet":
            yield from read_parquet(path, pool, 2, advance, extras=True)
        else:
            yield from read_ndjson(path, pool, 2, advance)


def pack(source: Source, target: str | Path, advance: Callable[[int], None] = lambda count: None) -> int:
    """Write a trace as one Parquet file; returns its records. Raises TraceError, and then leaves no file."""
    writer: ParquetWriter | None = None
    end: End | Continued | None = None
    named: Named | None = None
    sequence = 0
    with ThreadPoolExecutor(2) as pool:
        try:
            for part in parts_with_extras(source, pool, advance):
                if isinstance(part, Header):
                    if writer is None:
                        sequence = part.sequence
                        writer = ParquetWriter(target, part)
                    elif not isinstance(end, Continued) or part.trace != writer.header.trace:
                        raise TraceError(f"{source.paths[0]} holds more than one trace: pack them one by one")
                elif isinstance(part, Named):
                    named, end = part, part.end or end
                elif isinstance(part, Chunk):
                    if writer is None:
                        raise TraceError(f"{source.paths[0]} begins without a header")
                    _refuse_gaps(part, sequence)
                    sequence += int(np.count_nonzero(part.sequences >= 0))
                    writer.write(part, named)
                    named = None
                else:
                    raise TraceError(_refusal(part))
            if writer is None:
                raise TraceError(f"{source.paths[0]} has no header")
            if not isinstance(end, End):
                raise TraceError(f"{source.paths[-1]} has no end: only a complete trace is packed")
            writer.close(end.sequence)
            return writer.num_records
        except BaseException:
            if writer is not None:
                writer.discard()
            raise


def unpack(source: Source, target: str | Path, advance: Callable[[int], None] = lambda count: None) -> int:
    """Write a trace as one NDJSON file, compressed if its name ends in `.zst`. As `pack`."""
    file: ChecksummedFile | None = None
    named: Named | None = None
    end: End | Continued | None = None
    num_records = 0
    with ThreadPoolExecutor(2) as pool:
        try:
            for part in parts_with_extras(source, pool, advance):
                if isinstance(part, Header):
                    if file is None:
                        file = ChecksummedFile(Path(target), part)
                elif isinstance(part, Named):
                    named, end = part, part.end or end
                elif isinstance(part, Chunk):
                    if file is None:
                        raise TraceError(f"{source.paths[0]} begins without a header")
                    for record in records_of(part, named):
                        file.write(encode(record))
                        num_records += 1
                    if part.num_records:
                        last = int(part.sequences.max())
                        file.write_checksum(Checksum(crc32=file.crc32, sequence=last + 1))
                    named = None
                else:
                    raise TraceError(_refusal(part))
            if file is None or not isinstance(end, End):
                raise TraceError(f"{source.paths[-1]} has no end: only a complete trace is unpacked")
            file.write(encode(End(sequence=end.sequence, num_records=num_records)))
            file.close()
            return num_records
        except BaseException:
            if file is not None:
                file.close()
                Path(target).unlink(missing_ok=True)
            raise


def records_of(chunk: Chunk, named: Named | None) -> Iterator[Record]:
    """The records of a chunk, with their names and tokens, in order."""
    complete: dict[int, Record] = {}
    if named is not None:
        complete = {**dict(named.records), **dict(named.remarks)}
    for row in range(chunk.num_records):
        if row in complete:
            yield complete[row]
        elif chunk.lines[CODE, row] != SKIPPED:
            yield record_at(chunk, row)


def _refuse_gaps(chunk: Chunk, sequence: int) -> None:
    found = chunk.sequences[chunk.sequences >= 0]
    if found.size and not np.array_equal(found, np.arange(sequence, sequence + found.size)):
        raise TraceError(f"records are missing or out of order behind record {sequence}: check the trace")


def _refusal(damage: Damage) -> str:
    where = f"{damage.place}: " if damage.place else ""
    return f"a damaged trace is not packed: {where}{damage.sentence}"
