"""How does compiled code ask the specification? In the specification's own words, made fit for a compiler.

A guard returns a dict of named conditions and a ghost is made with `_replace`; Numba knows neither. Nothing
is stated a second time: the source of each function is read and rewritten mechanically. A returned dict
becomes the conjunction of its values, `ghosts._replace(x=1)` becomes `Ghosts` with all fields named. Which
condition failed is asked afterwards of the function as it stands, for the one record that needs it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from draftproof.spec import ghosts, guards
from draftproof.spec.ghosts import Ghosts


class _Rewriter(ast.NodeTransformer):
    """The two changes."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
        if isinstance(node.value, ast.Dict):
            if any(key is None for key in node.value.keys):
                raise ValueError("a dict that contains another has no plain conjunction")
            values = node.value.values or [ast.Constant(True)]
            node.value = values[0] if len(values) == 1 else ast.BoolOp(ast.And(), values)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            given = {keyword.arg: keyword for keyword in node.keywords}
            unknown = set(given) - set(Ghosts._fields)
            if unknown:
                raise ValueError(f"no fields of Ghosts: {unknown}")
            node.keywords = [
                given.get(field) or ast.keyword(field, ast.Attribute(node.func.value, field, ast.Load()))
                for field in Ghosts._fields
            ]
            node.func = ast.Name("Ghosts", ast.Load())
        return node


def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with both changes, over the same globals."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.returns = None
    for argument in definition.args.args:
        argument.annotation = None
    _Rewriter().visit(tree)
    ast.fix_missing_locations(tree)
    namespace = dict(function.__globals__)
    exec(compile(tree, inspect.getsourcefile(function) or "<rewritten>", "exec"), namespace)
    result: Callable[..., Any] = namespace[function.__name__]
    return result


@functools.cache
def control(name: str) -> Callable[..., bool]:
    """Whether all control conditions of the event hold: (state, rules, event)."""
    return rewritten(guards.CONTROL[name])


@functools.cache
def queue_facts(name: str) -> Callable[..., bool]:
    """Whether what follows from the queue holds; only for events in `guards.QUEUE_FACTS`."""
    return rewritten(guards.QUEUE_FACTS[name])


@functools.cache
def ghosts_after(name: str) -> Callable[..., Ghosts]:
    """The ghosts after the event: (state, rules, event)."""
    return rewritten(getattr(ghosts, name))
