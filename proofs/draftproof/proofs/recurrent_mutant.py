"""A fault of recurrent state: which text is changed, which claim must notice it, and how it shows."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any, NamedTuple

from draftproof.impl import recurrent as running
from draftproof.spec.recurrent import RecurrentRules
from draftproof.spec.recurrent_tokens import Code
from draftproof.spec.recurrent_walks import Bounds

RUNNING_CODE = Code(running.TRANSITIONS, running.DECISIONS)
"""The functions as they run."""


class RecurrentFault(NamedTuple):
    """One fault."""

    name: str
    meaning: str
    """What goes wrong, for an engineer."""
    report: str
    """Where it was seen; empty for one that no public report tells."""
    function: str
    changes: tuple[tuple[str, str], ...]
    """What in the function's text (as `ast.unparse` prints it) becomes what."""
    refuted_by: str
    """The claim that must be refuted, whichever others are; without the leading `recurrent/`."""
    harm: str
    """How the first complaint of the exploration begins; empty if the fault harms speed only."""
    at_exit: bool = False
    """Whether the engine has the fault only in the publication that precedes a request's leaving."""
    rules: RecurrentRules = RecurrentRules(1, 2)
    bounds: Bounds = Bounds(num_blocks=5, others=False)


@functools.cache
def sources() -> dict[str, str]:
    """The text of every function of `draftproof.impl.recurrent`, by name, without docstrings."""
    texts = {}
    for node in ast.parse(inspect.getsource(running)).body:
        if isinstance(node, ast.FunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            texts[node.name] = ast.unparse(node)
    return texts


def changed_code(function: str, changes: tuple[tuple[str, str], ...]) -> Code:
    """The running functions with one of them changed. Each text must occur exactly once."""
    text = sources()[function]
    for before, after in changes:
        if text.count(before) != 1:
            raise ValueError(f"{function} has {before!r} {text.count(before)} times, not once")
        text = text.replace(before, after)
    namespace: dict[str, Any] = dict(vars(running))
    exec(compile(text, f"<{function}>", "exec"), namespace)
    changed = namespace[function]
    return Code(
        {**running.TRANSITIONS, **({function: changed} if function in running.TRANSITIONS else {})},
        {**running.DECISIONS, **({function: changed} if function in running.DECISIONS else {})},
    )


def code_of(fault: RecurrentFault) -> Code:
    """The functions with the fault in them."""
    return changed_code(fault.function, fault.changes)
