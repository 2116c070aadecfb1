"""How does a trace get to the disk? In a file that is only ever added to, with checksums, perhaps smaller."""

from __future__ import annotations

import importlib
import io
import zlib
from pathlib import Path
from typing import Any

from draftproof.impl.traces.format import Checksum, Header, TraceError, encode


class ChecksummedFile:
    """An NDJSON file that is only ever added to, perhaps compressed."""

    def __init__(self, path: Path, header: Header, compress: bool | None = None) -> None:
        """Begin it with the header, which reaches the file at once. Raises TraceError if it exists or cannot
        be written."""
        self.path = path
        self.crc32 = 0
        """Of the bytes since the last checksum record."""
        self.num_bytes = 0
        try:
            file: Any = open(path, "xb", buffering=0)  # noqa: SIM115 - kept open
        except FileExistsError:
            raise TraceError(f"{path} exists already: a trace is never written over another file") from None
        except OSError as problem:
            raise TraceError(f"{path} cannot be written: {problem.strerror}") from None
        self._file: Any = io.BufferedWriter(file)
        if path.suffix == ".zst" if compress is None else compress:
            try:
                compressor = require("zstandard").ZstdCompressor(level=1, write_checksum=True)
            except TraceError:
                self._file.close()
                path.unlink()
                raise
            self._file = compressor.stream_writer(self._file, closefd=True)
        try:
            self.write(encode(header))
            self._file.flush()
        except OSError as problem:
            raise TraceError(f"{path} cannot be written: {problem.strerror}") from None

    def write(self, data: bytes) -> None:
        """Complete lines. Raises OSError."""
        self.crc32 = zlib.crc32(data, self.crc32)
        self.num_bytes += len(data)
        self._file.write(data)

    def write_checksum(self, record: Checksum) -> None:
        """The checksum of what was written since the last one, and everything to the disk."""
        data = encode(record)
        self.num_bytes += len(data)
        self._file.write(data)
        self.crc32 = 0
        self._file.flush()

    def close(self) -> None:
        """Raises OSError."""
        self._file.close()


def part_path(path: Path, part: int) -> Path:
    """The file of a later part: `run.1.ndjson.zst` of `run.ndjson.zst`."""
    stem, dot, rest = path.name.partition(".")
    return path if part == 0 else path.with_name(f"{stem}.{part}{dot}{rest}")


def require(package: str) -> Any:
    """An optional package. Raises TraceError with what to install."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise TraceError(f"this needs the package {package}: pip install 'draftproof[traces]'") from None
