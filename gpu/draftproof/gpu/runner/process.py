"""How does the model run in a process of its own? A child serves it: steps go there, outcomes come back.

`ProcessPart` looks like a `ModelPart`, and its runner like a `Runner`. The child is spawned; it loads the
model, and then takes messages in their order (`server`): `launch` leaves one and does not wait, `read` waits
for the answer. Threads of their own move the bytes. So a step is on its way while the child computes the one
before, and ctrl-C never ends in the middle of a message.

A step that fails in the child is known here when it is read. Steps launched meanwhile on rows that the failed
one was to move are dropped there: the engine gives them up as well, and starts the rows over.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from draftproof.gpu.errors import ModelError, refuse_unless
from draftproof.gpu.runner.model_part import About, ModelSetup, is_function
from draftproof.gpu.runner.outcome import Outcome
from draftproof.gpu.runner.server import GOODBYE, LAUNCH, LOAD, PROTOCOL, START, Answer, serve
from draftproof.gpu.runner.step_input import StepInput
from draftproof.gpu.tokenizer import Tokenizer
from draftproof.impl.scheduler import SchedulerConfig

SECONDS_TO_END = 2.0
"""A child that still computes then is killed; nobody waits for what it computes."""
CLOSED = "the LLM has been closed: make another one"
NO_START = (
    'a program that makes an LLM with runner_process=True must do so behind `if __name__ == "__main__":`, '
    "for the runner's process imports the program"
)


class ProcessPart:
    """The model and its drafter, loaded in a process of its own, which ends with this. Raises ModelError.

    Model, drafter and backend are names, or functions that can be imported there; the model has as many
    threads as torch has here. Whatever goes wrong there is raised here: the same exception, or a RuntimeError
    of its text where it cannot be sent.
    """

    def __init__(self, setup: ModelSetup, block_size: int) -> None:
        packed = packed_setup(setup)
        self._child = Child()
        try:
            loaded = self._child.ask(LOAD, (packed, block_size, torch.get_num_threads()))
        except BaseException:
            self.close()
            raise
        self.about: About = loaded[0]
        self.tokenizer: Tokenizer | None = loaded[1]
        self.name: str = loaded[2]

    def runner(self, config: SchedulerConfig) -> RemoteRunner:
        """Ready to run steps of such a scheduler, in place of any earlier runner. Raises ModelError."""
        self._child.ask(START, config)
        return RemoteRunner(self._child)

    def close(self) -> None:
        """The process ends. Requests must have finished."""
        self._child.close()


class RemoteRunner:
    """What the engine holds in place of a `Runner`."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def launch(self, step: StepInput) -> int:
        """Send a step; returns its number at once. Raises ModelError if the process has ended."""
        return self._child.tell(LAUNCH, step)

    def read(self, number: int) -> Outcome:
        """The step's outcome, once it is here. Raises what launching or reading it raised there, and
        ModelError if the process has ended."""
        outcome: Outcome = self._child.answer(number)
        return outcome


class Child:
    """The process and the two threads that carry messages. One thread at a time asks."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), name="draftproof-runner", daemon=True)
        try:
            with _no_interrupts():
                self.process.start()
        except RuntimeError:  # this is a child that imports its parent's program
            raise ModelError(NO_START) from None
        except (AssertionError, OSError) as problem:
            raise ModelError(f"the runner's process cannot be started: {problem}") from None
        theirs.close()  # or its end would not be noticed
        self._outgoing: SimpleQueue[bytes] = SimpleQueue()
        self._incoming: SimpleQueue[bytes | None] = SimpleQueue()
        for work in (
            partial(_send, connection, self._outgoing),
            partial(_receive, connection, self._incoming),
        ):
            threading.Thread(target=work, name="draftproof-pipe", daemon=True).start()
        self._num_messages = 0
        self._end = ""
        """Why there is nothing more to be had."""
        self._finalizer = weakref.finalize(self, _finish, self.process, self._outgoing, os.getpid())

    def ask(self, kind: str, content: Any) -> Any:
        """Send a message, and wait for its answer."""
        return self.answer(self.tell(kind, content))

    def tell(self, kind: str, content: Any) -> int:
        """Send a message; its number."""
        if self._end:
            raise ModelError(self._end)
        self._num_messages += 1
        self._outgoing.put(pickle.dumps((kind, self._num_messages, content), PROTOCOL))
        return self._num_messages

    def answer(self, number: int) -> Any:
        """The answer to a message; those to earlier ones that nobody asked for are dropped."""
        while not self._end:
            content = self._incoming.get()
            if content is None:
                self._end = how_it_ended(self.process)
                break
            answer: Answer = pickle.loads(content)
            if answer.number == number:
                if answer.problem is not None:
                    raise answer.problem.exception()
                return answer.value
        raise ModelError(self._end)

    def close(self) -> None:
        """End the process, the second time without effect."""
        self._finalizer()
        self._end = self._end or CLOSED


def packed_setup(setup: ModelSetup) -> bytes:
    """The setup as it is sent. Raises ModelError for what cannot go to another process."""
    named = isinstance(setup.model, (str, os.PathLike)) or is_function(setup.model)
    refuse_unless(
        named,
        "with runner_process=True, model must be a name, a path, or a function that makes a Decoder there, "
        f"got {setup.model!r:.80}",
    )
    named = setup.speculate is None or isinstance(setup.speculate, str) or is_function(setup.speculate)
    refuse_unless(
        named,
        'with runner_process=True, speculate must be None, a name such as "ngram:3", or a function of the '
        f"Decoder that makes a Drafter there, got {setup.speculate!r:.80}",
    )
    for name in ("model", "speculate", "attention_backend", "dtype", "device"):
        value = getattr(setup, name)
        try:
            pickle.dumps(value, PROTOCOL)
        except Exception as problem:  # whatever the object's own code raises
            raise ModelError(
                f"with runner_process=True, {name} must be a name, or a function at the top level of a "
                f"module: {value!r:.80} cannot be sent there ({problem})"
            ) from None
    return pickle.dumps(setup, PROTOCOL)


def how_it_ended(process: Any) -> str:
    """One sentence; waits a little for a process that has closed its pipe."""
    process.join(SECONDS_TO_END)
    code = process.exitcode
    how = "does not answer" if code is None else f"exit code {code}"
    if code is not None and code < 0:
        how = f"killed by signal {-code}"
        if -code == getattr(signal, "SIGKILL", None):
            how += ", as the system does where memory runs out"
    return f"the runner's process ended ({how}): make another LLM"


def _send(connection: Any, outgoing: SimpleQueue[bytes]) -> None:
    with contextlib.suppress(OSError):  # the child has ended: the other thread tells
        while True:
            content = outgoing.get()
            connection.send_bytes(content)
            if content == GOODBYE:
                return


def _receive(connection: Any, incoming: SimpleQueue[bytes | None]) -> None:
    try:
        while True:
            incoming.put(connection.recv_bytes())
    except (EOFError, OSError):
        pass
    finally:
        incoming.put(None)


def _finish(process: Any, outgoing: SimpleQueue[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the user's process, whose child it is not
        return
    outgoing.put(GOODBYE)
    process.join(SECONDS_TO_END)
    if process.is_alive():
        process.kill()
        process.join()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """What is started within never gets ctrl-C, not even while Python starts there."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # its own start would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
