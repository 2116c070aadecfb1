"""Which antecedents does the specification have, and which of them were true just now?

The call sites of `implies` are read from the source, so none can be forgotten. While a recording is active,
every call notes its premise under its position. What explores, and what must be seen, is
`draftproof.proofs.coverage`'s business.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from draftproof.spec import algebra


class Site(NamedTuple):
    """One call of `implies` in the specification, or a transition's guard."""

    name: str
    """`invariants/stop_pending_shape`, `theorems/something_to_do`, `guards/fold`; `#2` for a second call."""
    premise: str
    """The source of the premise, together with those of the calls around it."""


Position = tuple[str, int, int, int, int]
"""File, first line, last line, first column, last column: of a call, as the compiler records it."""


class Call(NamedTuple):
    site: Site
    enclosing: tuple[Position, ...]
    """The calls whose conclusion this one is part of: it counts only where their premises hold too."""


def calls(module: ModuleType) -> dict[Position, Call]:
    """Every call of `implies` in a module, by position."""
    file = inspect.getsourcefile(module) or ""
    found: dict[Position, Call] = {}
    counts: dict[str, int] = {}

    def visit(node: ast.AST, name: str, around: tuple[tuple[Position, str], ...]) -> None:
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                labelled = isinstance(key, ast.Constant) and isinstance(key.value, str)
                label = str(key.value) if labelled and isinstance(key, ast.Constant) else ""
                visit(value, f"{name}/{label}" if label else name, around)
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "implies":
            position = (file, node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
            premise, conclusion = node.args
            counts[name] = counts.get(name, 0) + 1
            ordinal = f"#{counts[name]}" if counts[name] > 1 else ""
            words = [text for _, text in around] + [ast.unparse(premise)]
            full_name = f"{module.__name__.rpartition('.')[2]}/{name}{ordinal}"
            site = Site(full_name.replace("invariants/invariants/", "invariants/"), " and ".join(words))
            found[position] = Call(site, tuple(outer for outer, _ in around))
            visit(premise, name, around)
            visit(conclusion, name, (*around, (position, ast.unparse(premise))))
            return
        for child in ast.iter_child_nodes(node):
            visit(child, name, around)

    visit(ast.parse(inspect.getsource(module)), "", ())
    return found


@contextmanager
def recording(modules: Sequence[ModuleType], premises: dict[Position, bool]) -> Iterator[None]:
    """While active, `implies` in these modules notes its premise under the position of the call."""
    positions: dict[tuple[Any, int], Position] = {}

    def implies(premise: bool, conclusion: bool) -> bool:
        frame = sys._getframe(1)
        where = (frame.f_code, frame.f_lasti)
        position = positions.get(where)
        if position is None:
            line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
            file = frame.f_code.co_filename
            position = (file, line or 0, end_line or 0, column or 0, end_column or 0)
            positions[where] = position
        premises[position] = bool(premise)
        return algebra.implies(premise, conclusion)

    originals: list[tuple[ModuleType, Any]] = [(module, vars(module)["implies"]) for module in modules]
    for module, _ in originals:
        module.implies = implies  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in originals:
            module.implies = original  # type: ignore[attr-defined]


def met(known: Mapping[Position, Call], premises: Mapping[Position, bool]) -> Iterator[str]:
    """The names of the antecedents that were true, those of the calls around them included."""
    for position, holds in premises.items():
        call = known.get(position)
        if holds and call is not None and all(premises[outer] for outer in call.enclosing):
            yield call.site.name
