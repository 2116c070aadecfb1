"""Solver terms as a carrier: calling a transition on z3 integers yields its formula.

Rounding to whole blocks with a symbolic block size would be non-linear, which solvers answer slowly or
not at all. So `floor_to_block` becomes an uninterpreted function of (tokens, block size), and each
obligation receives the facts about it that it needs, instantiated for the terms it mentions
(`floor_facts`). The facts themselves are proved about the real floor once (`draftproof.proofs.floor`).
With a concrete block size (trace search) the floor is the real one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import z3

from draftproof.spec.algebra import Carrier, register_carrier
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import Ledger, Rules

FLOOR = z3.Function("floor_to_block", z3.IntSort(), z3.IntSort(), z3.IntSort())
BOOLEAN_FIELDS = frozenset({"drop_stale", "asynchronous", "drops_block"}) | BOOLEAN_ARGUMENTS


def _term(value: Any) -> Any:
    """A z3 term for a Python scalar; a term stays as it is."""
    if isinstance(value, bool):
        return z3.BoolVal(value)
    return z3.IntVal(value) if isinstance(value, int) else value


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    if z3.is_true(condition):
        return then
    if z3.is_false(condition):
        return otherwise
    return z3.If(condition, _term(then), _term(otherwise))


def _floor_to_block(tokens: Any, block_size: Any) -> Any:
    tokens = _term(tokens)
    if not z3.is_int(tokens):
        raise TypeError(f"floor_to_block of {tokens}, which is not an integer")
    if isinstance(block_size, int) or z3.is_int_value(block_size):
        return tokens / block_size * block_size  # z3's / on integers rounds down for a positive divisor
    return FLOOR(tokens, block_size)


register_carrier(
    "z3",
    Carrier(
        where=_where,
        both=z3.And,
        either=z3.Or,
        negate=z3.Not,
        floor_to_block=_floor_to_block,
    ),
)


def floor_terms(formulas: Iterable[Any]) -> list[Any]:
    """The distinct applications of the symbolic floor in some formulas, innermost first."""
    seen: set[int] = set()
    found: list[Any] = []
    for formula in formulas:
        if z3.is_expr(formula) and _mentions_floor(formula):
            _collect(formula, seen, found)
    return found


def _mentions_floor(formula: Any) -> bool:
    """Whether there is anything to collect. z3 looks itself: a formula without any is soon passed over."""
    return not z3.substitute_funs(formula, (FLOOR, z3.Var(0, z3.IntSort()))).eq(formula)


def _collect(expression: Any, seen: set[int], found: list[Any]) -> bool:
    """Add the floor terms below an expression; say whether a variable of a quantifier occurs in it.

    A term with such a variable is no ground term: no fact can be instantiated for it.
    """
    identity = expression.get_id()
    if identity in seen:
        return False
    if z3.is_var(expression):
        return True
    if z3.is_quantifier(expression):
        _collect(expression.body(), seen, found)
        seen.add(identity)
        return False
    bound = False
    for child in expression.children():
        bound = _collect(child, seen, found) or bound
    if bound:
        return True
    seen.add(identity)
    if expression.decl().eq(FLOOR):
        found.append(expression)
    return False


def facts_of_one(tokens: Any, block: Any, floor: Any) -> Iterator[Any]:
    """What is true of one floor, for a block size of at least 1."""
    yield z3.Implies(tokens >= 0, z3.And(floor >= 0, floor <= tokens, tokens - floor < block))
    yield z3.Implies(tokens == 0, floor == 0)
    yield z3.Implies(tokens < 0, floor < 0)


def facts_of_two(first: Any, floor: Any, second: Any, other_floor: Any, block: Any) -> Iterator[Any]:
    """What is true of two floors to the same block size: order, one floor a block, a block less."""
    yield z3.Implies(first <= second, floor <= other_floor)
    yield z3.Implies(z3.And(floor <= second, second < floor + block), other_floor == floor)
    yield z3.Implies(second == floor - block, other_floor == second)


def floor_facts(formulas: Iterable[Any]) -> list[Any]:
    """The instances of the floor's axioms that some formulas need, idempotence included."""
    return facts_about(floor_terms(formulas), [])


def facts_about(new: list[Any], known: list[Any]) -> list[Any]:
    """The instances that mention at least one of the new floor terms, beside those already known."""
    facts: list[Any] = []
    for term in new:
        tokens, block = term.children()
        facts += facts_of_one(tokens, block, term)
        facts.append(FLOOR(term, block) == term)
    pairs = [*itertools.permutations(new, 2), *itertools.product(new, known), *itertools.product(known, new)]
    for one, two in pairs:
        if one.arg(1).eq(two.arg(1)):
            facts += facts_of_two(one.arg(0), one, two.arg(0), two, one.arg(1))
    return facts


def symbols(kind: type, prefix: str = "") -> Any:
    """An instance of a NamedTuple whose fields are z3 constants named after them."""
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(
        *[z3.Bool(prefix + field) if field in BOOLEAN_FIELDS else z3.Int(prefix + field) for field in fields]
    )


def symbolic_state(prefix: str = "") -> State:
    """Any ledger with any ghosts."""
    return State(symbols(Ledger, prefix), symbols(Ghosts, prefix))


def symbolic_rules(prefix: str = "") -> Rules:
    """Any engine rules; requires `rules_hold`."""
    rules: Rules = symbols(Rules, prefix)
    return rules


def symbolic_event(name: str) -> Any:
    """Any event of the transition `name`."""
    return symbols(EVENTS[name], "event.")


def rules_hold(rules: Rules) -> list[Any]:
    """What is required of the rules, whatever the engine."""
    return [rules.num_speculative_tokens >= 0, rules.block_size >= 1, rules.registration_fence >= 0]


def as_terms(record: Any) -> Any:
    """The same record with every Python scalar turned into a z3 constant."""
    return type(record)(*[_term(value) for value in record])
