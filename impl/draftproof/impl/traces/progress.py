"""How far is it? How much has been read, how fast, and how long the rest will take: a line on a terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """The line; nothing where standard error is no terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self._begin = self._last = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def advance(self, num_bytes: int) -> None:
        """So many bytes more."""
        self.count += num_bytes
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.25:
            return
        self._last = now
        rate = self.count / (now - self._begin)
        left = ""
        if self.total > self.count and rate > 0:
            left = f" of {self.total / 1e6:.0f} MB, about {(self.total - self.count) / rate:.0f} s left"
        sys.stderr.write(f"\r\x1b[K{self.count / 1e6:.0f} MB read{left}, {rate / 1e6:.0f} MB/s")
        sys.stderr.flush()

    def end(self) -> None:
        """The line goes."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
