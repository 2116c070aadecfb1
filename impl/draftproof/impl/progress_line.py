"""Is something still going on? One line on a terminal, with the seconds passed, and gone at the end."""

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
