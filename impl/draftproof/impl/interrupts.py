"""Ctrl-C ends a command at once, also where a library swallows the exception.

Python turns Ctrl-C into an exception. One that is raised inside an object's `__del__` is printed or lost,
and solver terms are deleted all the time. So the handler also sets a timer: if the command is still
running when it fires, its worker processes are killed and the process ends without more ado.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STATUS = 130
SENTENCE = "draftproof: interrupted"
GRACE_SECONDS = 0.5


def end_on_interrupt() -> None:
    """Install the handlers; call it in the main thread, once."""
    signal.signal(signal.SIGINT, _interrupted)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _end_now)
    sys.unraisablehook = _told_once


def _told_once(lost: UnraisableHookArgs) -> None:
    """A lost exception is shown as usual; a lost interrupt is not: the timer ends the command."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    raise KeyboardInterrupt


def finished() -> None:
    """The exception arrived where it should: no need to end the hard way."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end_now(number: int, frame: FrameType | None) -> None:
    for process in multiprocessing.active_children():
        process.kill()
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    os.write(2, f"{show_cursor}{SENTENCE}\n".encode())
    os._exit(STATUS)
