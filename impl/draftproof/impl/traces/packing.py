"""How does a trace get from NDJSON to Parquet and back? Record by record, with nothing lost.

A trace that is damaged is not packed: new checksums would make it look sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from draftproof.impl.traces.columns import CODE, SKIPPED, Chunk, record_at
from draftproof.impl.traces.continuity import parts_of_one
from draftproof.impl.traces.files import ChecksummedFile
from draftproof.impl.traces.format import Checksum, End, Header, Record, TraceError, encode
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.parts import Damage, Named
from draftproof.impl.traces.sources import Source


def pack(source: Source, target: str | Path, advance: Callable[[int], None] = lambda count: None) -> int:
    """Write a trace as one Parquet file; returns its records. Raises TraceError, and then leaves no file."""
    writer: ParquetWriter | None = None
    named: Named | None = None
    sequence = 0
    with ThreadPoolExecutor(2) as pool:
        try:
            for part in parts_of_one(source, pool, advance):
                if isinstance(part, Header):
                    writer = writer or ParquetWriter(target, part)
                elif isinstance(part, Named):
                    named = part
                    sequence = part.end.sequence if part.end is not None else sequence
                elif isinstance(part, Damage):
                    raise TraceError(_refusal(part, "packed"))
                elif writer is None:
                    raise TraceError(f"{source.paths[0]} begins without a header")
                else:
                    writer.write(part, named)
                    named = None
            assert writer is not None  # a trace without a header, or an end, is a damage
            writer.close(sequence)
            return writer.num_records
        except BaseException:
            if writer is not None:
                writer.discard()
            raise


def unpack(source: Source, target: str | Path, advance: Callable[[int], None] = lambda count: None) -> int:
    """Write a trace as one NDJSON file, compressed if its name ends in `.zst`. As `pack`."""
    file: ChecksummedFile | None = None
    named: Named | None = None
    sequence = num_records = 0
    with ThreadPoolExecutor(2) as pool:
        try:
            for part in parts_of_one(source, pool, advance):
                if isinstance(part, Header):
                    file = file or ChecksummedFile(Path(target), part)
                elif isinstance(part, Named):
                    named = part
                    sequence = part.end.sequence if part.end is not None else sequence
                elif isinstance(part, Damage):
                    raise TraceError(_refusal(part, "unpacked"))
                elif file is None:
                    raise TraceError(f"{source.paths[0]} begins without a header")
                else:
                    for record in records_of(part, named):
                        file.write(encode(record))
                        num_records += 1
                    if part.num_records:
                        last = int(part.sequences.max())
                        file.write_checksum(Checksum(crc32=file.crc32, sequence=last + 1))
                    named = None
            assert file is not None
            file.write(encode(End(sequence=sequence, num_records=num_records)))
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


def _refusal(damage: Damage, what: str) -> str:
    where = f"{damage.place}: " if damage.place else ""
    return f"a damaged trace is not {what}: {where}{damage.sentence}"
