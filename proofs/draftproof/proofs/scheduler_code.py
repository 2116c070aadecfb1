"""The scheduler's own text, made to run on solver terms: whole functions, some of their assignments, a loop.

Nothing is restated here. What stands in a plain function's text is compiled again, with `min`, `max` and `//`
as the operations that terms have; faults change the text before. A text that is not there any more is an
error, so a proof cannot go on to speak about code that nobody runs.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from draftproof.impl.contracts import plain
from draftproof.proofs.pool_code import Loop
from draftproof.spec import algebra

Changes = Iterable[tuple[str, str]]
"""What in a text (as `ast.unparse` prints it) becomes what; each must occur exactly once."""


def _floor_divide(number: Any, divisor: Any) -> Any:
    """Rounds down for a divisor of at least 1, as Python's `//` does."""
    return number / divisor


ON_TERMS: dict[str, Any] = {
    **vars(algebra),  # a fault may use any operation of the algebra
    "min": algebra.minimum,
    "max": algebra.maximum,
    "floor_divide": _floor_divide,
}


class _FloorDivisions(ast.NodeTransformer):
    """z3's terms know no `//`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.FloorDiv):
            return node
        return ast.Call(ast.Name("floor_divide", ast.Load()), [node.left, node.right], [])


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """What the function's text refers to, transitions without their contracts, on terms."""
    names = plain(function).__globals__
    return {name: plain(value) if callable(value) else value for name, value in names.items()} | ON_TERMS


def replaced(text: str, before: str, after: str) -> str:
    """The text with one place changed; a place that is not there exactly once is an error."""
    if text.count(before) != 1:
        raise ValueError(f"{before!r} occurs {text.count(before)} times, not once, in:\n{text}")
    return text.replace(before, after)


def tree_of(function: Callable[..., Any], changes: Changes = ()) -> ast.FunctionDef:
    """A function without decorators and docstring, with the changes in it."""
    tree = ast.parse(inspect.getsource(plain(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    text = ast.unparse(tree)
    for before, after in changes:
        text = replaced(text, before, after)
    changed = ast.parse(text).body[0]
    assert isinstance(changed, ast.FunctionDef)
    return changed


def on_terms(function: Callable[..., Any], changes: Changes = ()) -> Callable[..., Any]:
    """The function, to be called on terms."""
    tree = _FloorDivisions().visit(tree_of(function, changes))
    namespace = namespace_of(function)
    exec(compile(ast.fix_missing_locations(ast.Module([tree], [])), f"<{tree.name}>", "exec"), namespace)
    return namespace[tree.name]  # type: ignore[no-any-return]


def assigned(
    function: Callable[..., Any], names: tuple[str, ...], changes: Changes = (), **variables: Any
) -> dict[str, Any]:
    """The values that the function's assignments give to some of its variables, one after the other.

    Each name must be assigned exactly once; the other variables that they read are given.
    """
    tree = _FloorDivisions().visit(tree_of(function, changes))
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
    ]
    if sorted(ast.unparse(node.targets[0]) for node in found) != sorted(names):
        raise ValueError(f"{tree.name} does not assign each of {', '.join(names)} once")
    values = dict(variables)
    module = ast.fix_missing_locations(ast.Module(list(found), []))
    exec(compile(module, f"<{tree.name}>", "exec"), namespace_of(function), values)
    return values


def summand(function: Callable[..., Any], name: str, changes: Changes = (), **variables: Any) -> Any:
    """What is summed up in `name = sum(... for ... in ...)`, for one round with the given variables."""
    tree = _FloorDivisions().visit(tree_of(function, changes))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            generator = node.value.args[0] if isinstance(node.value, ast.Call) else None
            if isinstance(generator, ast.GeneratorExp) and ast.unparse(node.value.func) == "sum":  # type: ignore[attr-defined]
                expression = ast.fix_missing_locations(ast.Expression(generator.elt))
                found = compile(expression, f"<{tree.name}>", "eval")
                return eval(found, namespace_of(function), dict(variables))
    raise ValueError(f"{tree.name} has no sum called {name}")


def loop_with(
    function: Callable[..., Any], call: str, namespace: Mapping[str, Any], changes: Changes = ()
) -> Loop:
    """The innermost `for` of the function whose body calls `call`, as a loop of its own."""
    loops = [
        node
        for node in ast.walk(tree_of(function, changes))
        if isinstance(node, ast.For)
        and any(isinstance(one, ast.Call) and ast.unparse(one.func) == call for one in ast.walk(node))
    ]
    if not loops:
        raise ValueError(f"{function.__name__} has no loop that calls {call}")
    return Loop(f"def loop():\n{_indented(ast.unparse(loops[-1]))}", namespace)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
