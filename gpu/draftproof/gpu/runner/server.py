"""What does the runner's own process do? It takes messages in their order, and answers each of them.

The main thread loads the model and enqueues steps; another one waits for the device and answers. So a step
may be launched while the one before it is computed. The process ends when it is told to, and when the user's
does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from draftproof.gpu.canary import CanaryError
from draftproof.gpu.errors import ModelError
from draftproof.gpu.runner.model_part import ModelPart
from draftproof.gpu.runner.runner import Runner
from draftproof.gpu.runner.step_input import StepInput
from draftproof.impl.scheduler import SchedulerConfig

LOAD, START, LAUNCH = "load", "start", "launch"
GOODBYE = b""
"""The message after which the child ends."""
PROTOCOL = 5
SELF_EXPLAINING = (ModelError, CanaryError, torch.OutOfMemoryError, MemoryError)
"""Of these the message says all; of others the child's traceback is told, too."""


class Problem(NamedTuple):
    """An exception on its way, without its `__init__`, which may want other arguments."""

    kind: type[Exception]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    def exception(self) -> Exception:
        made = self.kind.__new__(self.kind, *self.arguments)
        made.__dict__.update(self.attributes)
        return made


Work = Callable[[], Any] | Problem
"""What waits for an answer's value, or the problem that is the answer."""


class Answer(NamedTuple):
    """What came of a message; every one but the last has an answer, in their order."""

    number: int
    value: Any
    problem: Problem | None


def serve(connection: Any) -> None:
    """The child's life: take messages until the goodbye. It ends at once if the user's process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answers: SimpleQueue[tuple[int, Work]] = SimpleQueue()
    threading.Thread(target=_answer, args=(connection, answers), daemon=True).start()
    server = Server()
    with contextlib.suppress(EOFError, OSError):
        while content := connection.recv_bytes():
            kind, number, argument = pickle.loads(content)
            answers.put((number, server.take(kind, argument)))
            del content, argument
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


class Server:
    """The model part and its runner."""

    def __init__(self) -> None:
        self.part: ModelPart | None = None
        self.runner: Runner | None = None
        self.broken_lines: set[int] = set()
        """Lines of the device's tables that miss a step, until they start over."""

    def take(self, kind: str, content: Any) -> Work:
        """Do what a message says; what is left to do is to wait for the device."""
        try:
            if kind == LAUNCH:
                return self._launch(content)
            return partial(_same, self._load(*content) if kind == LOAD else self._start(content))
        except BaseException as problem:  # a model's own code may raise anything: the process goes on
            return sendable(problem)  # without its frames, which hold tensors

    def _load(self, packed: bytes, block_size: int, num_threads: int) -> Any:
        torch.set_num_threads(num_threads)
        try:
            setup = pickle.loads(packed)
        except Exception as problem:  # whatever importing a module of the user's raises
            raise ModelError(
                "the runner's process does not find what model, speculate or attention_backend name: put the "
                f"function into a module that can be imported ({type(problem).__name__}: {problem})"
            ) from None
        part = self.part = ModelPart(setup, block_size)
        return part.about, part.tokenizer, part.name

    def _start(self, config: SchedulerConfig) -> Any:
        assert self.part is not None
        self.runner = None  # its memory is given back first
        self.broken_lines.clear()
        self.runner = self.part.runner(config)

    def _launch(self, step: StepInput) -> Callable[[], Any]:
        """Enqueue a step, unless it goes on from one that failed."""
        assert self.runner is not None
        lines = set(step.lines.tolist())
        started = set() if step.starts is None else set(step.starts.lines.tolist())
        if lines & (self.broken_lines - started):
            self.broken_lines |= lines
            if len(step.freed_blocks):  # the host takes them for poisoned
                self.runner.poison(step.freed_blocks)
            raise RuntimeError(f"step {step.step} was dropped, for it goes on from one that failed")
        try:
            launched = self.runner.launch(step)
        except BaseException:
            self.broken_lines |= lines
            raise
        self.broken_lines -= started
        return partial(self.runner.read, launched)


def sendable(problem: BaseException) -> Problem:
    """A problem as it can be sent; its text as a RuntimeError's where it cannot."""
    attributes = dict(problem.__dict__)
    if not isinstance(problem, SELF_EXPLAINING):
        where = "".join(traceback.format_exception(problem))
        attributes["__notes__"] = [*attributes.get("__notes__", ()), f"In the runner's process:\n{where}"]
    if isinstance(problem, Exception):
        with contextlib.suppress(Exception):  # whatever making it anew raises
            reduced: Any = problem.__reduce__()
            for arguments in (problem.args, reduced[1]):  # these differ for an OSError
                found = Problem(type(problem), arguments, attributes)
                again = pickle.loads(pickle.dumps(found, PROTOCOL)).exception()
                if type(again) is type(problem) and str(again) == str(problem):
                    return found
    text = f"{type(problem).__name__}: {problem}"
    return Problem(RuntimeError, (text,), {"__notes__": attributes.get("__notes__", [])})


def _same(value: Any) -> Any:
    return value


def _answer(connection: Any, answers: SimpleQueue[tuple[int, Work]]) -> None:
    """Wait for the device, and answer; meanwhile further steps are launched."""
    try:
        while True:
            number, work = answers.get()
            answer = _answer_of(number, work)
            connection.send_bytes(pickle.dumps(answer, PROTOCOL))
            del work, answer
    except OSError:
        pass  # the user's process has ended
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _answer_of(number: int, work: Work) -> Answer:
    if isinstance(work, Problem):
        return Answer(number, None, work)
    try:
        return Answer(number, work(), None)
    except BaseException as problem:
        return Answer(number, None, sendable(problem))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
