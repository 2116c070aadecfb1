"""Arrays of solver terms: the pool's source runs on them, and every access must be shown to be in bounds.

`array[i]` is a select and `array[i] = v` a store. A *watched* array notes for each access the condition
that the index is within the shape; sizes may be symbolic. A watched and an unwatched view share their
content: the code gets the one, the specification reads through the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3


class Access(NamedTuple):
    """One read or write of an array, and the condition that it stays inside."""

    array: str
    in_bounds: Any


class _Cell:
    """The current content, shared by the views of an array: a term of an array sort, or a function.

    Terms of two dimensions are arrays of arrays, which every solver knows.
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def read(self, indices: tuple[Any, ...]) -> Any:
        if callable(self.content):
            return self.content(*indices)
        found = self.content
        for index in indices:
            found = z3.Select(found, index)
        return found

    def write(self, indices: tuple[Any, ...], value: Any) -> None:
        before = self.content
        if callable(before):
            self.content = lambda *asked: z3.If(
                z3.And([one == other for one, other in zip(asked, indices, strict=True)]),
                value,
                before(*asked),
            )
        elif len(indices) == 1:
            self.content = z3.Store(before, indices[0], value)
        else:
            row, column = indices
            self.content = z3.Store(before, row, z3.Store(z3.Select(before, row), column, value))


def _term(index: Any) -> Any:
    return z3.IntVal(index) if isinstance(index, int) else index


class SymbolicArray:
    """An array of integers with a shape of integers or terms; a ghost is unbounded and has no shape."""

    def __init__(
        self, name: str, cell: _Cell, shape: tuple[Any, ...], accesses: list[Access] | None = None
    ) -> None:
        self.name, self.shape = name, shape
        self._cell, self._accesses = cell, accesses

    def fill(self, content: Callable[..., Any]) -> None:
        """Let every cell hold a function of its indices."""
        self._cell.content = content

    def watched(self, accesses: list[Access]) -> SymbolicArray:
        """The same array; accesses through this view are noted."""
        return SymbolicArray(self.name, self._cell, self.shape, accesses)

    def copy(self) -> SymbolicArray:
        """An array of its own with the same content now."""
        return SymbolicArray(self.name, _Cell(self._cell.content), self.shape)

    def note(self, *conditions: Any) -> None:
        """Note an access that is inside exactly if the conditions hold, if this view is watched."""
        if self._accesses is not None:
            self._accesses.append(Access(self.name, z3.And(*conditions)))

    def _indices(self, index: Any) -> tuple[Any, ...]:
        indices = tuple(_term(one) for one in (index if isinstance(index, tuple) else (index,)))
        if self.shape:
            assert len(indices) == len(self.shape), f"{self.name}[{index}]"
            self.note(*[z3.And(one >= 0, one < size) for one, size in zip(indices, self.shape, strict=True)])
        return indices

    def __getitem__(self, index: Any) -> Any:
        return self._cell.read(self._indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._cell.write(self._indices(index), _term(value))


def symbolic_array(name: str, *shape: Any, dimensions: int | None = None, prefix: str = "") -> SymbolicArray:
    """An array with any content. Without a shape it is unbounded and has the given `dimensions`.

    The solver's name for it is `prefix` and `name`: SMT-LIB does not overload names.
    """
    sort = z3.IntSort()
    for _ in range(len(shape) if dimensions is None else dimensions):
        sort = z3.ArraySort(z3.IntSort(), sort)
    return SymbolicArray(name, _Cell(z3.Const(prefix + name, sort)), shape)
