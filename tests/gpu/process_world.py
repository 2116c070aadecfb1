"""Models and drafters that are made in the runner's own process, and obey a folder of orders."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.gpu.runner_world import BLOCK_SIZE, SCRIPT, VOCAB_SIZE, decoder, shape

from draftproof.gpu.drafters import NgramDrafter, ScriptedDrafter
from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.llm import LLM
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.runner import process
from draftproof.gpu.runner.model_part import ModelSetup
from draftproof.gpu.weights.random_weights import random_weights

NUM_DRAFTS = 3
SECONDS_HELD = 30.0
"""A step is not held longer, or a test that should fail would wait for ever."""


class StrangeError(Exception):
    """One that cannot be sent: it holds what cannot be pickled."""

    def __init__(self, place: int) -> None:
        super().__init__(f"strange at {place}", lambda: place)


class ForgetfulError(Exception):
    """One that says something else when it is made anew."""

    def __init__(self, first: str, second: str = "nothing") -> None:
        super().__init__(f"{first} and {second}")


class Orders:
    """What a model is to do at one of its next steps; an order is carried out once."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def give(self, order: str, num_steps: int = 0) -> None:
        """To be carried out after so many further steps."""
        (self.folder / order).write_text(str(num_steps))

    def withdraw(self, order: str) -> None:
        (self.folder / order).unlink()

    def is_due(self, order: str) -> bool:
        """Asked once at each step."""
        path = self.folder / order
        if not path.exists():
            return False
        left = int(path.read_text() or "0")
        if left:
            path.write_text(str(left - 1))
            return False
        path.unlink()
        return True

    def wait(self) -> None:
        """While the order `hold` stands."""
        start = time.monotonic()
        while (self.folder / "hold").exists():
            if time.monotonic() > start + SECONDS_HELD:
                raise TimeoutError("nobody let go")
            time.sleep(0.002)


def obeying_decoder(folder: str) -> Decoder:
    """The world's, which fails or waits at a step when it is told to."""
    orders = Orders(folder)
    made = Decoder(shape(), random_weights(shape(), 3, device=decoder().device))
    forward = made.forward

    def obeying(*arguments: Any) -> Any:
        orders.wait()
        if orders.is_due("memory"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        if orders.is_due("strange"):
            raise StrangeError(7)
        if orders.is_due("divide"):
            raise ZeroDivisionError("the model")
        if orders.is_due("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if orders.is_due("threads"):
            (orders.folder / "num_threads").write_text(str(torch.get_num_threads()))
        return forward(*arguments)

    made.forward = obeying  # type: ignore[method-assign, assignment]
    return made


class SpoilingDrafter(Drafter):
    """N-gram drafts; when it is told to, it also spoils the last token of every row that sampled."""

    def __init__(self, folder: str) -> None:
        self.num_speculative_tokens = NUM_DRAFTS
        self.orders, self.drafter = Orders(folder), NgramDrafter(NUM_DRAFTS)

    def propose(self, step: DraftStep) -> Proposal:
        proposal = self.drafter.propose(step)
        if self.orders.is_due("spoil"):
            last = (step.num_tokens - 1).clamp_min(0)
            spoiled = (step.token_ids[step.row_ids, last] + 1) % VOCAB_SIZE
            step.token_ids[step.row_ids, last] = spoiled
        return proposal


def spoiling_drafter(folder: str, decoder: Decoder) -> Drafter:
    return SpoilingDrafter(folder)


def scripted_drafter(texts: list[list[int]], decoder: Decoder) -> Drafter:
    return ScriptedDrafter(NUM_DRAFTS, texts, SCRIPT, decoder.shape.vocab_size)


def failing_model() -> Decoder:
    raise ZeroDivisionError("no model today")


def quitting_model() -> Decoder:
    raise SystemExit("not here")


class CannotBeFound:
    """A function of a module that is not there, as far as the other process can see."""

    def __call__(self) -> Decoder:
        return decoder()

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("no_such_module",)


def setup(folder: Path, speculate: Any) -> ModelSetup:
    return ModelSetup(partial(obeying_decoder, str(folder)), speculate=speculate, debug=True)


@contextmanager
def shared(part: process.ProcessPart) -> Iterator[None]:
    """An LLM that is made within uses this process, whose start takes seconds, and not one of its own."""
    with patch.object(process, "ProcessPart", lambda *_: part):
        yield


def llm(part: process.ProcessPart, **options: Any) -> LLM:
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "compiled": False}
    given |= {"num_blocks": 200, "debug": True, "runner_process": True} | options
    with shared(part):
        return LLM("the shared one", **given)
