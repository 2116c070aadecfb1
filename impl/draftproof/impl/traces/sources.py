"""Which files are a trace? Names, patterns, folders and URLs become traces, each with its parts in order."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import NamedTuple

from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import Header, TraceError
from draftproof.impl.traces.reading import read_header

SUFFIXES = (".ndjson", ".ndjson.zst", ".jsonl", ".jsonl.zst", ".parquet")
"""What is taken from a folder."""


class Source(NamedTuple):
    """One trace."""

    paths: tuple[str, ...]
    num_bytes: int
    """Of all its files; 0 if that is not known."""


class Unreadable(NamedTuple):
    """A file that is no trace, and why."""

    path: str
    sentence: str


def files_of(names: list[str]) -> list[str]:
    """The files that names, patterns, folders and URLs stand for. Raises TraceError if one finds nothing."""
    found: list[str] = []
    for name in names:
        if "://" in name:
            found += _remote(name)
        elif os.path.isdir(name):
            found += _in_folder(name)
        elif glob.has_magic(name) and not os.path.exists(name):
            matching = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
            if not matching:
                raise TraceError(f"{name} matches no file")
            found += matching
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def _in_folder(name: str) -> list[str]:
    def refuse(problem: OSError) -> None:
        raise TraceError(f"{problem.filename} cannot be read: {problem.strerror}")

    paths = [
        str(Path(folder) / file)
        for folder, _, files in os.walk(name, onerror=refuse)
        for file in files
        if file.endswith(SUFFIXES)
    ]
    if not paths:
        raise TraceError(f"{name} holds no traces ({', '.join(SUFFIXES)})")
    return sorted(paths)


def _remote(name: str) -> list[str]:
    fsspec = require("fsspec")
    try:
        system, path = fsspec.core.url_to_fs(name)
        protocol = name.partition("://")[0]
        if glob.has_magic(path):
            paths = sorted(system.glob(path))
        elif system.isdir(path):
            paths = sorted(one for one in system.find(path) if one.endswith(SUFFIXES))
        else:
            return [name]
    except ImportError as problem:
        raise TraceError(f"{name} cannot be opened: {problem}") from None
    except Exception as problem:  # every driver has errors of its own
        text = (str(problem) or type(problem).__name__).partition("\n")[0][:200]
        raise TraceError(f"{name} cannot be listed: {text}") from None
    if not paths:
        raise TraceError(f"{name} holds no traces")
    return [f"{protocol}://{one}" for one in paths]


def sources_of(paths: list[str]) -> tuple[list[Source], list[Unreadable]]:
    """Files put together to traces, their parts in order; files without a header apart."""
    headers: list[tuple[str, Header]] = []
    unreadable: list[Unreadable] = []
    for path in paths:
        try:
            headers.append((path, read_header(path)))
        except TraceError as problem:
            unreadable.append(Unreadable(path, str(problem)))
    groups: dict[object, list[tuple[int, str]]] = {}
    for path, header in headers:
        key: object = (header.trace, header.engine) if header.trace else path
        parts = groups.setdefault(key, [])
        if any(part == header.part for part, _ in parts):  # the same trace twice: each is checked
            key = path
            parts = groups.setdefault(key, [])
        parts.append((header.part, path))
    sources = []
    for parts in groups.values():
        ordered = tuple(path for _, path in sorted(parts))
        sources.append(Source(ordered, sum(_size(path) for path in ordered)))
    return sources, unreadable


def _size(path: str) -> int:
    try:
        return os.path.getsize(path) if "://" not in path else 0
    except OSError:
        return 0
