"""Is something still going on, and how far is it? One line on a terminal, and gone at the end."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

ERASE = "\r\x1b[K"


@contextlib.contextmanager
def progress_line(text: str, delay: float = 0.3) -> Iterator[None]:
    """Show the text on stderr while the block runs, once it has run for `delay` seconds.

    Nothing is shown where stderr is no terminal.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    done, begin = threading.Event(), time.monotonic()

    def show() -> None:
        shown = False
        while not done.wait(1.0 if shown else delay):
            shown = True
            stream.write(f"{ERASE}{text}, {time.monotonic() - begin:.0f} s")
            stream.flush()
        if shown:
            stream.write(ERASE)
            stream.flush()

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


class ProgressCount:
    """How many of `total` are done, on stderr, at most four times a second.

    Nothing is shown where that is no terminal, or for a total of 0.
    """

    def __init__(self, text: str, total: int) -> None:
        self.text, self.total = text, total
        self._stream = sys.stderr
        self._is_shown = total > 0 and self._stream is not None and self._stream.isatty()
        self._begin = self._last = time.monotonic()

    def __enter__(self) -> ProgressCount:
        return self

    def at(self, count: int) -> None:
        """So many are done."""
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.25:
            return
        self._last = now
        left = (now - self._begin) / count * (self.total - count) if count else None
        rest = "" if left is None else f", about {left:.0f} s left"
        self._stream.write(f"{ERASE}{self.text} {count} of {self.total}, {now - self._begin:.0f} s{rest}")
        self._stream.flush()

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._stream.write(ERASE)
            self._stream.flush()
