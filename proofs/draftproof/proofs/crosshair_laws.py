"""Does the algebra mean on Python values what it says? Its laws as contracts that CrossHair confirms.

The transitions are written in these operations, so their textbook meaning is checked on its own too.
Each law is a separate wrapper with one postcondition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import icontract

from draftproof.spec import algebra

CODE: dict[str, Callable[..., Any]] = {
    name: getattr(algebra, name)
    for name in (
        "where",
        "minimum",
        "maximum",
        "both",
        "either",
        "negate",
        "implies",
        "all_of",
        "any_of",
        "floor_to_block",
    )
}
"""What the wrappers call: the running operations. Looked up at each call, so that a mutant can stand in."""


def chooses(condition: bool, then: int, otherwise: int, result: int) -> bool:
    """`where` is Python's conditional expression."""
    return result == (then if condition else otherwise)


@icontract.ensure(chooses)
def where(condition: bool, then: int, otherwise: int) -> int:
    """Any two numbers."""
    answer: int = CODE["where"](condition, then, otherwise)
    return answer


def is_the_smaller(first: int, second: int, result: int) -> bool:
    """Not above either number, and one of them."""
    return result <= first and result <= second and result in (first, second)


@icontract.ensure(is_the_smaller)
def minimum(first: int, second: int) -> int:
    """Any two numbers."""
    answer: int = CODE["minimum"](first, second)
    return answer


def is_the_larger(first: int, second: int, result: int) -> bool:
    """Not below either number, and one of them."""
    return result >= first and result >= second and result in (first, second)


@icontract.ensure(is_the_larger)
def maximum(first: int, second: int) -> int:
    """Any two numbers."""
    answer: int = CODE["maximum"](first, second)
    return answer


def is_conjunction(first: bool, second: bool, result: bool) -> bool:
    """`both` is Python's `and`."""
    return result == (first and second)


@icontract.ensure(is_conjunction)
def both(first: bool, second: bool) -> bool:
    """Any two truth values."""
    answer: bool = CODE["both"](first, second)
    return answer


def is_disjunction(first: bool, second: bool, result: bool) -> bool:
    """`either` is Python's `or`."""
    return result == (first or second)


@icontract.ensure(is_disjunction)
def either(first: bool, second: bool) -> bool:
    """Any two truth values."""
    answer: bool = CODE["either"](first, second)
    return answer


def is_negation(condition: bool, result: bool) -> bool:
    """`negate` is Python's `not`."""
    return result == (not condition)


@icontract.ensure(is_negation)
def negate(condition: bool) -> bool:
    """Any truth value."""
    answer: bool = CODE["negate"](condition)
    return answer


def fails_only_if_premise_alone_holds(premise: bool, conclusion: bool, result: bool) -> bool:
    """An implication is false in one case of four."""
    return result == (not (premise and not conclusion))


@icontract.ensure(fails_only_if_premise_alone_holds)
def implies(premise: bool, conclusion: bool) -> bool:
    """Any two truth values."""
    answer: bool = CODE["implies"](premise, conclusion)
    return answer


def is_conjunction_of_three(first: bool, second: bool, third: bool, result: bool) -> bool:
    """`all_of` is Python's `and` over all its operands."""
    return result == (first and second and third)


@icontract.ensure(is_conjunction_of_three)
def all_of(first: bool, second: bool, third: bool) -> bool:
    """Three operands: the loop runs twice."""
    answer: bool = CODE["all_of"](first, second, third)
    return answer


def is_disjunction_of_three(first: bool, second: bool, third: bool, result: bool) -> bool:
    """`any_of` is Python's `or` over all its operands."""
    return result == (first or second or third)


@icontract.ensure(is_disjunction_of_three)
def any_of(first: bool, second: bool, third: bool) -> bool:
    """Three operands: the loop runs twice."""
    answer: bool = CODE["any_of"](first, second, third)
    return answer


def block_is_not_empty(block_size: int) -> bool:
    """A block holds at least one token."""
    return block_size >= 1


def tokens_not_negative(tokens: int) -> bool:
    """Counts are not negative."""
    return tokens >= 0


def less_than_a_block_is_lost(tokens: int, block_size: int, result: int) -> bool:
    """The floor is at most the number and less than one block below it."""
    return result <= tokens < result + block_size


@icontract.require(block_is_not_empty)
@icontract.ensure(less_than_a_block_is_lost)
def floor_is_close(tokens: int, block_size: int) -> int:
    """Any number of tokens, any block size of at least 1."""
    answer: int = CODE["floor_to_block"](tokens, block_size)
    return answer


def loses_the_remainder(tokens: int, block_size: int, result: int) -> bool:
    """What the floor leaves out is the remainder of the division."""
    return tokens - result == tokens % block_size


@icontract.require(tokens_not_negative)
@icontract.require(block_is_not_empty)
@icontract.ensure(loses_the_remainder)
def floor_loses_the_remainder(tokens: int, block_size: int) -> int:
    """Any number of tokens that is not negative, any block size of at least 1."""
    answer: int = CODE["floor_to_block"](tokens, block_size)
    return answer


def is_whole_blocks(block_size: int, result: int) -> bool:
    """The floor is a multiple of the block size."""
    return result % block_size == 0


@icontract.require(tokens_not_negative)
@icontract.require(block_is_not_empty)
@icontract.ensure(is_whole_blocks)
def floor_is_whole_blocks(tokens: int, block_size: int) -> int:
    """Any number of tokens that is not negative, any block size of at least 1."""
    answer: int = CODE["floor_to_block"](tokens, block_size)
    return answer


def block_size_is_16(block_size: int) -> bool:
    """vLLM's usual block size."""
    return block_size == 16


@icontract.require(block_size_is_16)
@icontract.ensure(is_whole_blocks)
def floor_of_any_number_is_whole_blocks(tokens: int, block_size: int) -> int:
    """Negative numbers too. The block size is fixed to 16: on the remainder of a negative number by a
    symbolic one CrossHair does not finish."""
    answer: int = CODE["floor_to_block"](tokens, block_size)
    return answer


def in_order(first: int, second: int) -> bool:
    """The first number is not above the second."""
    return first <= second


def floors_in_order(result: tuple[int, int]) -> bool:
    """Rounding keeps the order."""
    return result[0] <= result[1]


@icontract.require(in_order)
@icontract.require(block_is_not_empty)
@icontract.ensure(floors_in_order)
def floor_keeps_order(first: int, second: int, block_size: int) -> tuple[int, int]:
    """Any two numbers, any block size of at least 1."""
    floor = CODE["floor_to_block"]
    return floor(first, block_size), floor(second, block_size)


TARGETS: dict[str, Callable[..., Any]] = {
    "where": where,
    "minimum": minimum,
    "maximum": maximum,
    "both": both,
    "either": either,
    "negate": negate,
    "implies": implies,
    "all_of": all_of,
    "any_of": any_of,
    "floor_is_close": floor_is_close,
    "floor_loses_the_remainder": floor_loses_the_remainder,
    "floor_is_whole_blocks": floor_is_whole_blocks,
    "floor_of_any_number_is_whole_blocks": floor_of_any_number_is_whole_blocks,
    "floor_keeps_order": floor_keeps_order,
}
"""One target per law, by name."""
