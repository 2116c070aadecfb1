"""Which single changes to the accounting's source could be made? One mutant per site and operator.

The source of each transition (and of `registrable`, which several of them call) is parsed, one node is
replaced, and the function is compiled again in memory. Nothing is written. What the proofs say about the
mutants is `draftproof.proofs.mutation`'s question.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from draftproof.impl import accounting
from draftproof.spec.ledger import SYMBOLS, Ledger

COUNTERS = tuple(field for field in Ledger._fields if field not in ("status", "drop_stale"))
STATUSES = ("WAITING", "RUNNING", "PREEMPTED", "PAUSED", "FINISHED")
HELPERS = ("registrable",)
"""Functions of the accounting that are no transitions; a mutant of one is judged in all its callers."""

_SWAPPED_CALLS = {"minimum": "maximum", "maximum": "minimum", "both": "either", "either": "both"}
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)

Variant = tuple[str, ast.expr]


class Mutant(NamedTuple):
    """One change of one node. `function` is the transition or helper, `source` its changed text."""

    key: str
    """Unique and stable under edits elsewhere: `output/num_tokens: before -> after`."""
    function: str
    operator: str
    before: str
    after: str
    exchanged: tuple[str, str]
    """The expression that was there and the one that came in its place; of a swap, the two values."""
    source: str


@functools.cache
def _function_trees() -> dict[str, ast.FunctionDef]:
    """The accounting's functions, without their decorators and docstrings. Not to be changed: copy first."""
    module = ast.parse(inspect.getsource(accounting))
    trees = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for tree in trees.values():
        tree.decorator_list = []
        if ast.get_docstring(tree) is not None:
            tree.body = tree.body[1:]
    return trees


@functools.cache
def _texts() -> dict[str, str]:
    """The accounting's functions as text."""
    return {name: ast.unparse(tree) for name, tree in _function_trees().items()}


def compiled(sources: dict[str, str]) -> dict[str, Callable[..., Any]]:
    """The accounting's plain functions, those named in `sources` compiled from the text given there."""
    texts = _texts() | sources
    namespace = dict(vars(accounting))
    for name, text in texts.items():
        exec(compile(text, f"<{name}>", "exec"), namespace)
    return {name: namespace[name] for name in texts}


def callers(name: str) -> tuple[str, ...]:
    """The transitions that a change of the function `name` can reach: itself, or those that call it."""
    if name not in HELPERS:
        return (name,)
    return tuple(
        caller
        for caller, tree in _function_trees().items()
        if caller not in HELPERS
        and any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    )


def _arithmetic(node: ast.BinOp) -> Iterator[Variant]:
    for operator in (ast.Add, ast.Sub):
        if not isinstance(node.op, operator):
            yield "operator", ast.BinOp(node.left, operator(), node.right)
    yield "dropped term", node.left
    yield "dropped term", node.right


def _comparison(node: ast.Compare) -> Iterator[Variant]:
    for comparison in _COMPARISONS:
        if not isinstance(node.ops[0], comparison):
            yield "comparison", ast.Compare(node.left, [comparison()], node.comparators)


def _constant(node: ast.Constant) -> Iterator[Variant]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
        yield "constant", ast.Constant(node.value - 1)


def _attribute(node: ast.Attribute) -> Iterator[Variant]:
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    if owner == "ledger" and node.attr in COUNTERS:
        for field in COUNTERS:
            if field != node.attr:
                yield "field", ast.Attribute(node.value, field, node.ctx)
    if owner == "ledger" and node.attr == "status":
        for status in STATUSES:
            yield "status", ast.Name(status, ast.Load())
    if (owner, node.attr) in (("ledger", "drop_stale"), ("rules", "asynchronous")):
        for value in (True, False):
            yield "mode", ast.Constant(value)


def _name(node: ast.Name, local_names: tuple[str, ...]) -> Iterator[Variant]:
    for choices, operator in ((local_names, "name"), (STATUSES, "status")):
        if node.id in choices:
            for name in choices:
                if name != node.id:
                    yield operator, ast.Name(name, ast.Load())


def _call(node: ast.Call) -> Iterator[Variant]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _SWAPPED_CALLS:
        yield "call", ast.Call(ast.Name(_SWAPPED_CALLS[name], ast.Load()), node.args, [])
        yield "dropped term", node.args[0]
        yield "dropped term", node.args[1]
    elif name == "where":
        condition, then, otherwise = node.args
        yield "arm", then
        yield "arm", otherwise
        yield "arm", ast.Call(node.func, [condition, otherwise, then], [])
    elif name in ("negate", "floor_to_block", *HELPERS):
        yield "dropped call", node.args[0]


def _assignments(node: ast.Call) -> Iterator[Variant]:
    """Of the `Ledger(...)` at the end: a field left as it was, or two fields' values exchanged."""
    for index, keyword in enumerate(node.keywords):
        unchanged = f"ledger.{keyword.arg}"
        if ast.unparse(keyword.value) != unchanged:
            dropped = copy.deepcopy(node)
            dropped.keywords[index].value = ast.parse(unchanged, mode="eval").body
            yield "dropped assignment", dropped
        for other_index in range(index):
            swapped = copy.deepcopy(node)
            one, other = swapped.keywords[index], swapped.keywords[other_index]
            one.value, other.value = other.value, one.value
            yield "swapped assignment", swapped


def variants(node: ast.AST, local_names: tuple[str, ...]) -> Iterator[Variant]:
    """Every (operator, replacement) of one node. Names are exchanged with the function's own only."""
    if isinstance(node, ast.BinOp):
        yield from _arithmetic(node)
    elif isinstance(node, ast.Compare):
        yield from _comparison(node)
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Attribute):
        yield from _attribute(node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _name(node, local_names)
    elif isinstance(node, ast.Call):
        yield from _assignments(node) if node.keywords else _call(node)


def _local_names(tree: ast.FunctionDef) -> tuple[str, ...]:
    """The event's arguments and the function's variables."""
    names = [argument.arg for argument in tree.args.args if argument.arg not in ("ledger", "rules")]
    names += [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    return tuple(names)


def _sites(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """Every node of the body with the variable or field whose value it helps to compute."""
    for statement in tree.body:
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
            keywords = statement.value.keywords
            if keywords:
                yield "return", statement.value
                for keyword in keywords:
                    for node in ast.walk(keyword.value):
                        yield str(keyword.arg), node
                continue
        site = statement.targets[0].id if isinstance(statement, ast.Assign) else "return"  # type: ignore[attr-defined]
        for node in ast.walk(statement.value):  # type: ignore[attr-defined]
            yield site, node


class _Replace(ast.NodeTransformer):
    """Puts `new` where `old` is."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _described(operator: str, old: ast.AST, new: ast.AST) -> tuple[str, str, tuple[str, str]]:
    """Before and after as text, of a whole `Ledger(...)` only the fields that differ; what was exchanged."""
    if operator not in ("dropped assignment", "swapped assignment"):
        return ast.unparse(old), ast.unparse(new), (ast.unparse(old), ast.unparse(new))
    assert isinstance(old, ast.Call) and isinstance(new, ast.Call)
    pairs = [
        (str(one.arg), ast.unparse(one.value), ast.unparse(two.value))
        for one, two in zip(old.keywords, new.keywords, strict=True)
        if ast.unparse(one.value) != ast.unparse(two.value)
    ]
    before = ", ".join(f"{SYMBOLS[field]}={value}" for field, value, _ in pairs)
    after = ", ".join(f"{SYMBOLS[field]}={value}" for field, _, value in pairs)
    return before, after, pairs[0][1:]


def mutants_of(name: str, tree: ast.FunctionDef) -> list[Mutant]:
    """All single-site mutants of one function, without decorators and docstring, in source order.

    Texts that come out the same as the original, or the same twice, are left out.
    """
    found: list[Mutant] = []
    seen = {ast.unparse(tree)}
    keys: Counter[str] = Counter()
    for site, node in _sites(tree):
        for operator, new in variants(node, _local_names(tree)):
            copies: dict[int, Any] = {}  # deepcopy notes here which copy belongs to which node
            copied = copy.deepcopy(tree, copies)
            changed = _Replace(copies[id(node)], copy.deepcopy(new)).visit(copied)
            source = ast.unparse(ast.fix_missing_locations(changed))
            if source in seen:
                continue
            seen.add(source)
            before, after, exchanged = _described(operator, node, new)
            key = f"{name}/{site}: {before} -> {after}"
            keys[key] += 1
            if keys[key] > 1:
                key += f" (#{keys[key]})"
            found.append(Mutant(key, name, operator, before, after, exchanged, source))
    return found


def mutants(functions: tuple[str, ...] = ()) -> list[Mutant]:
    """All single-site mutants of the accounting's named functions (of all when none is named)."""
    return [
        mutant
        for name, tree in _function_trees().items()
        if not functions or name in functions
        for mutant in mutants_of(name, tree)
    ]
