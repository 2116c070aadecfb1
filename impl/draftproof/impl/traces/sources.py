"""Which files are a trace? Names, patterns, folders and URLs become traces, each with its parts in order."""

from __future__ import annotations

import glob
import os
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import Header, TraceError
from draftproof.impl.traces.reading import read_header

SUFFIXES = (".ndjson", ".ndjson.zst", ".jsonl", ".jsonl.zst", ".parquet")
"""What is taken from a folder."""
WEB = ("http", "https")
CONNECT_SECONDS = 10.0


class Source(NamedTuple):
    """One trace."""

    paths: tuple[str, ...]
    num_bytes: int
    """Of all its files; 0 if that is not known."""


class Unreadable(NamedTuple):
    """A file that is no trace, and why."""

    path: str
    sentence: str


class Beginning(NamedTuple):
    """What a file's header says, or why it has none."""

    path: str
    header: Header | None
    num_bytes: int = 0
    """Of the file; 0 if that is not known."""
    sentence: str = ""


def files_of(names: Iterable[str]) -> list[str]:
    """The files that names, patterns, folders and URLs stand for. Raises TraceError if one finds nothing."""
    found: list[str] = []
    for name in names:
        if name == "-":
            raise TraceError("a trace is not read from standard input: write it to a file, and name that")
        if "://" in name:
            found += _remote(name)
        elif os.path.isdir(name):
            found += _in_folder(name)
        elif glob.has_magic(name) and not os.path.lexists(name):
            matching = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
            if not matching:
                raise TraceError(f"{name} matches no file")
            found += matching
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def _in_folder(name: str) -> list[str]:
    """The traces in a folder, and folders in it that may not be listed: that is told for each of them."""
    closed: list[str] = []
    paths = [
        str(Path(folder) / file)
        for folder, _, files in os.walk(name, onerror=lambda problem: closed.append(str(problem.filename)))
        for file in files
        if file.endswith(SUFFIXES)
    ]
    if not paths and not closed:
        raise TraceError(f"{name} holds no traces ({', '.join(SUFFIXES)})")
    return sorted(paths) + sorted(closed)


def _remote(name: str) -> list[str]:
    protocol = name.partition("://")[0]
    fsspec = require("fsspec")
    if protocol in WEB:
        _refuse_silence(name)
        if "*" not in name and not name.endswith("/"):
            return [name]  # to ask whether it is a folder would load it; a question mark is no pattern here
    hook, sys.unraisablehook = sys.unraisablehook, lambda lost: None  # a driver half begun fails once more
    try:
        system, path = fsspec.core.url_to_fs(name)
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
    finally:
        sys.unraisablehook = hook
    if not paths:
        raise TraceError(f"{name} holds no traces")
    return [one if "://" in one else f"{protocol}://{one}" for one in paths]


def _refuse_silence(name: str) -> None:
    """fsspec calls a file of a server that does not answer missing."""
    parts = urllib.parse.urlsplit(name)
    try:
        place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection(place, CONNECT_SECONDS).close()
    except (OSError, ValueError) as problem:
        text = getattr(problem, "strerror", None) or problem
        raise TraceError(f"{name} cannot be opened: its server does not answer: {text}") from None


def beginning_of(path: str) -> Beginning:
    """Open a file and read its header. Never raises."""
    if os.path.isdir(path):
        return Beginning(path, None, sentence=f"{path} is a folder that may not be listed: no permission")
    try:
        return Beginning(path, read_header(path), _size(path))
    except TraceError as problem:
        sentence = str(problem).partition("\n")[0]
        return Beginning(path, None, sentence=sentence if path in sentence else f"{path}: {sentence}")


def beginnings_of(paths: Sequence[str]) -> list[Beginning]:
    """Those of all files, one by one."""
    return [beginning_of(path) for path in paths]


def sources_of(
    paths: Sequence[str], read: Callable[[Sequence[str]], list[Beginning]] = beginnings_of
) -> tuple[list[Source], list[Unreadable]]:
    """Files put together to traces, their parts in order; files without a header apart."""
    unreadable: list[Unreadable] = []
    groups: dict[object, list[tuple[int, str, int]]] = {}
    for path, header, num_bytes, sentence in read(paths):
        if header is None:
            unreadable.append(Unreadable(path, sentence))
            continue
        key: object = (header.trace, header.engine) if header.trace else path
        parts = groups.setdefault(key, [])
        if any(part == header.part for part, _, _ in parts):  # the same trace twice: each is checked
            parts = groups.setdefault(path, [])
        parts.append((header.part, path, num_bytes))
    sources = []
    for parts in groups.values():
        ordered = sorted(parts)
        sources.append(Source(tuple(path for _, path, _ in ordered), sum(size for _, _, size in ordered)))
    return sources, unreadable


def _size(path: str) -> int:
    try:
        if "://" not in path:
            return os.path.getsize(path)
        system, place = require("fsspec").core.url_to_fs(path)
        return int(system.info(place)["size"] or 0)
    except Exception:  # nothing depends on it but the progress, and what is checked together
        return 0
