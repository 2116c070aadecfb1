"""Writing files so that nobody ever sees half of one, and so that a failure is one clear sentence."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from draftproof.impl.cli import UserError


class OutputError(UserError):
    """A file could not be written. The message names the place and the reason."""


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def check_writable(path: Path) -> None:
    """Raise `OutputError` if the file cannot be written, before any long work is done for it.

    Makes the folders that lead to it.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder")
    make_folder(path.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}") from error
    os.close(handle)
    os.unlink(name)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; `OutputError` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"cannot write into {folder}: it is a file, not a folder") from error
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {_reason(error)}") from error


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: to a temporary file beside it, then renamed onto it.

    Raises `OutputError`; the file that stood there before is then untouched.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder")
    make_folder(path.parent)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner reads
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _umask() -> int:
    """The permissions that this process withholds; the system only tells them when they are set."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
