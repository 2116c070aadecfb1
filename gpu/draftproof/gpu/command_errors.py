"""What of all that goes wrong in a command is for its user to hear? One sentence each, and an exit status.

2 is the status for an argument, 1 for something that cannot be done. What is neither is a defect of the
program: its traceback is wanted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from draftproof.impl.cli import UserError

INSTALL = "pip install 'draftproof[gpu]'"


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """What a user can get wrong, and what a device can, as UserError."""
    try:
        yield
    except UserError:
        raise
    except ImportError as problem:
        what = f"{problem.name} cannot be imported" if problem.name else f"something is missing ({problem})"
        raise UserError(f"{what}: the runner needs it; {INSTALL} brings it") from None
    except Exception as problem:
        status = _status_of(problem)
        if status is None:
            raise
        raise UserError(str(problem), status) from None


def _status_of(problem: Exception) -> int | None:
    """None for what is a defect of the program, whose traceback is wanted."""
    from draftproof.gpu.errors import ModelError

    if isinstance(problem, ModelError):
        return 1
    if sys.modules.get("torch") is None:  # then it is none of the others, which import it
        return None
    from draftproof.gpu.attention.step_rows import BlockTableError
    from draftproof.gpu.canary import CanaryError
    from draftproof.gpu.runner.comparison import LedgerError
    from draftproof.gpu.runner.engine import is_out_of_memory
    from draftproof.gpu.sampling.parameters import ParameterError
    from draftproof.impl.scheduler import RequestError

    if isinstance(problem, (ParameterError, RequestError)):
        return 2
    known = (LedgerError, CanaryError, BlockTableError)
    return 1 if isinstance(problem, known) or is_out_of_memory(problem) else None


@contextmanager
def pipe_may_close() -> Iterator[None]:
    """`draftproof generate ... | head` ends quietly, the interpreter's own last flush included."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
