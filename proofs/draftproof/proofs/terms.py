"""Solver terms for people and type checkers: one name per kind of term, typed as what it stands in for.

Transitions are typed for integers and run on terms; z3's own annotations are unions that no arithmetic
type-checks on. So terms are made here, once, as `Any`.
"""

from __future__ import annotations

from typing import Any

import z3


def integer(name: str) -> Any:
    """Any integer."""
    return z3.Int(name)


def integers(names: str) -> list[Any]:
    """Any integers, by their names, separated by blanks."""
    return [z3.Int(name) for name in names.split()]


def array(name: str) -> Any:
    """Any integer for each integer index."""
    return z3.Array(name, z3.IntSort(), z3.IntSort())


def function(name: str, num_arguments: int) -> Any:
    """Any function from integers to an integer."""
    return z3.Function(name, *[z3.IntSort()] * (num_arguments + 1))


def choose(condition: Any, then: Any, otherwise: Any) -> Any:
    """`then` where the condition holds, `otherwise` elsewhere."""
    return z3.If(condition, then, otherwise)
