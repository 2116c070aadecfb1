"""How does the code look with a fault in it? Source changes, applied in memory to a private copy.

The running modules are never touched: a changed module's source is compiled again into a module object
that nobody else can import.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.impl import accounting, decisions
from draftproof.impl.contracts import plain
from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS, GUARDS, Change
from draftproof.spec import guards


class SourceMoved(LookupError):
    """The text that a fault changes is not there (or not only once): the code was edited since."""


class Code(NamedTuple):
    """The functions to prove, search or run: transitions, decisions and guards, by name."""

    transitions: dict[str, Callable[..., Any]]
    decisions: dict[str, Callable[..., Any]]
    control: dict[str, guards.Guard]
    """What must hold before an event. The facts about the queue are not among it: where a guard is changed
    nothing proves them any more."""


def right_code() -> Code:
    """The code that runs, without its contracts."""
    return Code(
        {name: plain(function) for name, function in accounting.TRANSITIONS.items()},
        dict(decisions.FUNCTIONS),
        dict(guards.CONTROL),
    )


@functools.cache
def patched(changes: tuple[Change, ...]) -> Code:
    """The code with the changes applied, everything else as it runs. Raises SourceMoved."""
    code = right_code()
    for name in dict.fromkeys(change.module for change in changes):
        module = _patched_module(name, tuple(change for change in changes if change.module == name))
        if name == ACCOUNTING:
            transitions = {key: plain(function) for key, function in module.TRANSITIONS.items()}
            code = code._replace(transitions=transitions)
        elif name == DECISIONS:
            code = code._replace(decisions=dict(module.FUNCTIONS))
        elif name == GUARDS:
            code = code._replace(control=dict(module.CONTROL))
        else:
            raise ValueError(f"faults change {ACCOUNTING}, {DECISIONS} or {GUARDS}, not {name}")
    return code


def _patched_module(name: str, changes: tuple[Change, ...]) -> Any:
    """A private module object with the changed source; never in `sys.modules`."""
    source = inspect.getsource(importlib.import_module(name))
    for change in changes:
        source = changed_source(source, change)
    module = types.ModuleType(name)
    exec(compile(source, f"<{name}, changed>", "exec"), module.__dict__)
    return module


def changed_source(source: str, change: Change) -> str:
    """A module's source with one change made in one function. Raises SourceMoved."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == change.function:
            lines = source.splitlines(keepends=True)
            assert node.end_lineno is not None
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            if text.count(change.before) == 1:
                lines[node.lineno - 1 : node.end_lineno] = [text.replace(change.before, change.after)]
                return "".join(lines)
            raise SourceMoved(
                f"{change.module}.{change.function}: {change.before!r} occurs {text.count(change.before)} "
                "times and must occur once; the source moved, adapt the fault"
            )
    raise SourceMoved(f"{change.module} has no function {change.function}; the source moved, adapt the fault")
