"""How do collected records get into files? In order, with checksums, within a second, by a thread of its own.

An engine may end at any moment without a last word. So what was collected is written when a block is full,
and otherwise a second after the last time, also when nothing more comes: a process that is killed leaves a
trace of everything up to about a second before, and one that ends of an exception a trace of everything.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from draftproof.impl.traces.collected import NUM_ROWS, Block, text_of
from draftproof.impl.traces.files import ChecksummedFile, part_path
from draftproof.impl.traces.format import Checksum, Continued, End, Header, Record, TraceError, encode

SECONDS = 1.0
"""What was collected is written after this time at the latest."""
MAX_WAITING = 16
"""Blocks that wait to be written, at most: then the engine waits for the disk."""


class TraceOutput:
    """The files of a trace, written from blocks. All methods but those inside are the collecting thread's."""

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        max_bytes: int | None,
        compress: bool | None,
        in_background: bool,
    ) -> None:
        """Begin the first file. Raises TraceError if it cannot be written."""
        from draftproof.impl.traces.compiled import format_rows

        self.path, self.header = path, header
        self.failed = ""
        """Why nothing more is written; empty while all is well."""
        self._max_bytes, self._compress = max_bytes, compress
        self._format = format_rows()
        self._file = ChecksummedFile(path, header, compress)
        self._part, self._sequence, self._num_records = header.part, header.sequence, 0
        self.block = Block()
        """The block to collect in."""
        self._oldest = self.block
        """The block that is written next."""
        self._free: deque[Block] = deque()
        self._room = threading.Semaphore(MAX_WAITING)
        self._asked: queue.SimpleQueue[threading.Event | Literal["full", "stop"]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="draftproof trace", daemon=True)
            self._thread.start()
        self._process = os.getpid()
        atexit.register(self._leave)

    # ---- what the collecting thread calls ----

    def next_block(self, num_rows: int = 1) -> Block:
        """Another block to collect in, with room for so many rows; the one before it is complete."""
        is_usual = num_rows <= NUM_ROWS
        block = self._free.popleft() if self._free and is_usual else Block(max(num_rows, NUM_ROWS))
        last, self.block = self.block, block
        if self._thread is None:
            last.next = block
            self.write_out(everything=False)
        elif self._waited(self._thread, lambda: self._room.acquire(timeout=SECONDS)):
            last.next = block
            self._asked.put("full")
        return block

    def flush(self) -> None:
        """Everything so far reaches the file. Raises TraceError if that has failed, now or before."""
        if self._thread is None:
            self.write_out(everything=True)
        else:
            done = threading.Event()
            self._asked.put(done)
            self._waited(self._thread, lambda: done.wait(SECONDS))
        if self.failed:
            raise TraceError(self.failed)

    def _waited(self, thread: threading.Thread, wait: Callable[[], bool]) -> bool:
        """Wait for the writing thread; False if it is gone, and with it the recording."""
        while thread.is_alive():
            if wait():
                return True
        self._give_up(TraceError("the thread that writes is gone, as in a process that was forked"))
        return False

    def close(self) -> None:
        """Write the `end` record and close the file. Raises TraceError as `flush` does."""
        try:
            self.flush()
            self._stop()
            self._file.write(encode(End(sequence=self._sequence, num_records=self._num_records)))
        except OSError as problem:
            self._give_up(problem)
        finally:
            atexit.unregister(self._leave)
            self._stop()
            try:
                self._file.close()
            except OSError as problem:
                self._give_up(problem)
        if self.failed:
            raise TraceError(self.failed)

    def _leave(self) -> None:
        """The process ends, and nobody has closed the trace. A forked one leaves it to the other."""
        if os.getpid() == self._process:
            with contextlib.suppress(TraceError):
                self.flush()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.put("stop")
            thread.join()

    # ---- what the writing thread does ----

    def _run(self) -> None:
        due = time.monotonic() + SECONDS
        while True:
            asked: Any = None
            with contextlib.suppress(queue.Empty):
                asked = self._asked.get(timeout=max(due - time.monotonic(), 0.0))
            is_due = time.monotonic() >= due
            self.write_out(everything=is_due or asked != "full")
            if is_due:
                due = time.monotonic() + SECONDS
            if asked == "stop":
                return
            if isinstance(asked, threading.Event):
                asked.set()

    def write_out(self, *, everything: bool) -> None:
        """Write complete blocks, and with `everything` what is in the block that is being filled."""
        while True:
            block = self._oldest
            following = block.next  # before `take`: where there is one, nothing is added behind what is taken
            if following is None and not everything:
                return
            self._write(*block.take())
            if following is None:
                return
            self._oldest = following
            if block.rows.shape[0] == NUM_ROWS:
                block.clear()
                self._free.append(block)
            if self._thread is not None:
                self._room.release()

    def _write(self, rows: Any, lines: list[tuple[int, Record]]) -> None:
        first, count = self._sequence, rows.shape[0] + len(lines)
        self._sequence += count
        if count == 0 or self.failed:
            return
        try:
            if self._max_bytes is not None and self._file.num_bytes >= self._max_bytes:
                self._next_part(first)
            self._file.write(text_of(rows, lines, first, self._format))
            self._num_records += count
            self._file.write_checksum(Checksum(crc32=self._file.crc32, sequence=self._sequence))
        except Exception as problem:  # the disk's, mostly; whatever it is, the engine must not wait for ever
            self._give_up(problem)

    def _next_part(self, sequence: int) -> None:
        self._file.write(encode(Continued(sequence=sequence, num_records=self._num_records)))
        self._file.close()
        self._part += 1
        self._num_records = 0
        header = msgspec.structs.replace(self.header, part=self._part, sequence=sequence)
        self._file = ChecksummedFile(part_path(self.path, self._part), header, self._compress)

    def _give_up(self, problem: Exception) -> None:
        if not self.failed:
            reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            self.failed = f"{self.path} could not be written any further: {reason}"
            warnings.warn(f"recording ended: {self.failed}", RuntimeWarning, stacklevel=2)
