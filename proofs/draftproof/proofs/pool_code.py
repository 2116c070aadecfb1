"""The pool's own source, made to run on symbolic arrays: functions, and loops cut into their parts.

Nothing is restated here. The text of `draftproof.impl.pool` is compiled again in a namespace where three
functions are exchanged: the two row loops and `low_bits` by their contracts, which are proved about their
own source elsewhere (`draftproof.proofs.pool_rows`). Faults change the text before it is compiled.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import z3

from draftproof.impl import pool
from draftproof.proofs.symbolic_arrays import SymbolicArray
from draftproof.spec import algebra

CHAIN: Any = z3.Function("chain", z3.IntSort(), z3.IntSort())
"""The contract of `low_bits`: some function of the word, at least 0 and below the number of chains."""
ROW_EQUAL: Any = z3.Function("row_equal", z3.IntSort(), z3.BoolSort())
"""Whether a block's row agrees with one fixed query, in one fixed state."""


@functools.cache
def sources() -> dict[str, str]:
    """The text of every function of the pool, by name, without docstrings."""
    texts = {}
    for node in ast.parse(inspect.getsource(pool)).body:
        if isinstance(node, ast.FunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            texts[node.name] = ast.unparse(node)
    return texts


def contract_row_copy(
    token_ids: SymbolicArray, target: Any, source: Any, num_tokens: Any, condition: Any
) -> None:
    """Exactly the cells [0, num_tokens) of the target's row become the source's, if the condition holds."""
    num_rows, row_length = token_ids.shape
    token_ids.note(
        target >= 0,
        target < num_rows,
        source >= 0,
        source < num_rows,
        num_tokens >= 0,
        num_tokens <= row_length,
    )
    before = token_ids.copy()

    def after(block: Any, offset: Any) -> Any:
        copied = z3.And(condition, block == target, offset >= 0, offset < num_tokens)
        return z3.If(copied, before[source, offset], before[block, offset])

    token_ids.fill(after)


def contract_row_equal(token_ids: SymbolicArray, block: Any, tokens: Any, num_tokens: Any) -> Any:
    """True exactly if the cells [0, num_tokens) of the row are the query's: said by `ROW_EQUAL`."""
    num_rows, row_length = token_ids.shape
    token_ids.note(block >= 0, block < num_rows, num_tokens >= 0, num_tokens <= row_length)
    return ROW_EQUAL(block)


CONTRACTS: dict[str, Callable[..., Any]] = {
    "row_copy": contract_row_copy,
    "row_equal": contract_row_equal,
    "low_bits": lambda word, count: CHAIN(word),
}

Code = Mapping[str, Callable[..., Any]]


def code(changes: Mapping[str, str] | None = None) -> dict[str, Callable[..., Any]]:
    """The pool's functions by name, with contracts for the row loops; `changes` are texts to use instead."""
    namespace = dict(vars(algebra)) | dict(vars(pool))  # a fault may use any operation of the algebra
    for name, text in (sources() | dict(changes or {})).items():
        exec(compile(text, f"<{name}>", "exec"), namespace)
    namespace |= CONTRACTS
    return namespace


class Loop:
    """The one loop of a function, cut from its text: what comes before it, its test, its body, the result."""

    def __init__(self, text: str, namespace: Mapping[str, Any]) -> None:
        self._namespace = dict(namespace)
        function = ast.parse(text).body[0]
        assert isinstance(function, ast.FunctionDef)
        places = [place for place, node in enumerate(function.body) if isinstance(node, ast.For | ast.While)]
        assert len(places) == 1, "exactly one loop"
        loop = function.body[places[0]]
        assert isinstance(loop, ast.For | ast.While) and not loop.orelse
        leaves = (ast.Break, ast.Continue, ast.Return)
        assert not any(isinstance(node, leaves) for node in ast.walk(loop)), (
            "the loop is left at its test only"
        )
        self._before, self._loop = function.body[: places[0]], loop
        self._after = function.body[places[0] + 1 :]

    def _run(self, statements: list[ast.stmt], variables: dict[str, Any]) -> dict[str, Any]:
        named = [
            ast.Assign([ast.Name("result", ast.Store())], statement.value)
            if isinstance(statement, ast.Return) and statement.value is not None
            else statement
            for statement in statements
        ]
        module = ast.fix_missing_locations(ast.Module(list(named), []))
        values = dict(variables)
        exec(compile(module, "<loop>", "exec"), self._namespace, values)
        return values

    def _value(self, expression: ast.expr, variables: dict[str, Any]) -> Any:
        return eval(compile(ast.Expression(expression), "<loop>", "eval"), self._namespace, dict(variables))

    def before(self, **variables: Any) -> dict[str, Any]:
        """The variables when the loop is reached."""
        return self._run(self._before, variables)

    def test(self, **variables: Any) -> Any:
        """The condition of a `while` loop."""
        assert isinstance(self._loop, ast.While)
        return self._value(self._loop.test, variables)

    def bound(self, **variables: Any) -> Any:
        """The number of rounds of a `for` loop, which must run over `range(...)` of one argument."""
        assert isinstance(self._loop, ast.For) and isinstance(self._loop.iter, ast.Call)
        assert ast.unparse(self._loop.iter.func) == "range" and len(self._loop.iter.args) == 1
        return self._value(self._loop.iter.args[0], variables)

    def body(self, **variables: Any) -> dict[str, Any]:
        """The variables after one round."""
        return self._run(self._loop.body, variables)

    def after(self, **variables: Any) -> Any:
        """What the function returns once the loop has ended."""
        return self._run(self._after, variables).get("result")
