"""How does a command write a file? Complete or not at all, and over nothing that is there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from draftproof.impl.cli import UserError

USAGE = 2
"""The exit status of a command that was used wrongly, or could not read its input."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name to write to; the file is at `path` when all went well, and nowhere if not."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists already: nothing is written over, give another name", USAGE)
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}", USAGE)
    half = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        half.open("xb").close()
        half.unlink()
    except OSError as problem:
        raise UserError(f"{path} cannot be written: {problem.strerror}", USAGE) from None
    with _gone_at_the_end(half):
        yield half
        try:
            os.link(half, path)
        except FileExistsError:
            raise UserError(f"{path} has come into being meanwhile: it is left as it is", USAGE) from None
        except OSError:  # no links on this file system
            half.rename(path)


@contextmanager
def _gone_at_the_end(path: Path) -> Iterator[None]:
    """No such file afterwards, also where Ctrl-C ends the process the hard way (`interrupts`)."""
    end = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None

    def end_without_it(number: int, frame: FrameType | None) -> None:
        path.unlink(missing_ok=True)
        if callable(end):
            end(number, frame)

    is_wrapped = callable(end) and threading.current_thread() is threading.main_thread()
    if is_wrapped:
        signal.signal(signal.SIGALRM, end_without_it)
    try:
        yield
    finally:
        if is_wrapped:
            signal.signal(signal.SIGALRM, end)
        path.unlink(missing_ok=True)
