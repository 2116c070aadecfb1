"""The pool runs as it reads: interpreted, compiled, and as a plain list-and-dictionary model would."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftproof.impl import pool as interpreted
from draftproof.impl.compiled_pool import FUNCTIONS, compiled_check, compiled_pool
from draftproof.impl.digest import NO_PARENT, block_digest
from draftproof.impl.pool import new_pool
from draftproof.impl.pool_checks import PROBLEMS, problem_of
from draftproof.spec.pool import Pool

NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE = 6, 2, 3
KEY = (11, -12)


class Reference:
    """What the pool should do, in lists and dictionaries."""

    def __init__(self) -> None:
        self.free = list(range(1, NUM_BLOCKS + 1))
        self.owners = dict.fromkeys(self.free, 0)
        self.tokens: dict[int, list[int]] = {block: [] for block in self.free}
        self.published: dict[int, tuple[int, int]] = {}

    def take(self) -> int:
        if not self.free:
            return 0
        block = self.free.pop(0)
        self.published.pop(block, None)
        self.owners[block], self.tokens[block] = 1, []
        return block

    def acquire(self, block: int) -> None:
        if self.owners[block] == 0:
            self.free.remove(block)
        self.owners[block] += 1

    def release(self, block: int) -> None:
        self.owners[block] -= 1
        if self.owners[block] == 0:
            self.free.insert(len(self.free) if block in self.published else 0, block)

    def writable(self, block: int) -> bool:
        return self.owners[block] == 1 and block not in self.published

    def own_copy(self, block: int, num_kept: int) -> int:
        if self.writable(block):
            return block
        copy = self.take()
        if copy:
            self.tokens[copy] = self.tokens[block][:num_kept]
            self.release(block)
        return copy

    def matching(self, digest: tuple[int, int], tokens: list[int]) -> set[int]:
        return {
            block
            for block, published in self.published.items()
            if published == digest and self.tokens[block] == tokens
        }


class Step(NamedTuple):
    """One random choice: what to do, and numbers that pick among what is possible."""

    kind: str
    number: int
    condition: bool


KINDS = ("take", "release", "publish", "append", "append", "own_copy", "hit", "withdraw")
STEPS = st.lists(
    st.builds(
        Step, st.sampled_from(KINDS), st.integers(0, 2**16), st.sampled_from((True, True, True, False))
    ),
    min_size=30,
    max_size=90,
)


def free_list(pool: Pool) -> list[int]:
    """The free blocks, first to be reused first."""
    blocks, block = [], int(pool.next_free[0])
    while block:
        blocks.append(block)
        block = int(pool.next_free[block])
    return blocks


def agree(pool: Pool, reference: Reference, held: list[int]) -> None:
    """The pool is in order, and is what the model says."""
    counted = Counter(held)
    owners = np.array([counted[block] for block in range(NUM_BLOCKS + 1)])
    assert PROBLEMS[problem_of(pool, owners)] == "nothing"
    assert compiled_check()(pool, owners) == 0
    assert free_list(pool) == reference.free
    for block in range(1, NUM_BLOCKS + 1):
        assert pool.ref_count[block] == reference.owners[block]
        assert interpreted.published(pool, block) == (block in reference.published)
        count = int(pool.num_tokens[block])
        assert pool.token_ids[block, :count].tolist() == reference.tokens[block]


class Walk:
    """One random sequence of calls on an interpreted pool, a compiled one and the model."""

    def __init__(self) -> None:
        self.pools = [new_pool(NUM_BLOCKS, NUM_CHAINS, BLOCK_SIZE) for _ in range(2)]
        self.reference = Reference()
        self.held: list[int] = []
        self.done: Counter[str] = Counter()

    def call(self, name: str, *arguments: Any) -> Any:
        """The same call on both pools, whose arrays must stay equal byte for byte."""
        first = getattr(interpreted, name)(self.pools[0], *arguments)
        second = compiled_pool(name)(self.pools[1], *arguments)
        assert first == second
        for field, one, other in zip(Pool._fields, *self.pools, strict=True):
            assert one.tobytes() == other.tobytes(), (name, field)
        self.done[name] += 1
        return first

    def move(self, step: Step) -> None:
        reference, number = self.reference, step.number
        if step.kind == "take":
            block = self.call("take", step.condition)
            assert block == (reference.take() if step.condition else 0)
            self.held += [int(block)] if block else []
        elif step.kind == "withdraw":
            block = 1 + number % NUM_BLOCKS
            self.call("withdraw", block, step.condition)
            if step.condition:
                reference.published.pop(block, None)
        elif step.kind == "hit":
            self.hit(number)
        elif self.held:
            self.move_held(step, number % len(self.held))

    def hit(self, number: int) -> None:
        """Look up one to three tokens; own what is found."""
        tokens = [(number >> place) & 1 for place in range(1 + number % BLOCK_SIZE)]
        digest = block_digest(*KEY, *NO_PARENT, tokens, len(tokens))
        found = self.call("look_up", *digest, np.array(tokens, np.int32), len(tokens))
        expected = self.reference.matching(digest, tokens)
        assert found in expected if expected else found == 0
        self.done["duplicates"] += len(expected) > 1
        if found:
            self.call("acquire", found, True)
            self.reference.acquire(int(found))
            self.held.append(int(found))

    def move_held(self, step: Step, place: int) -> None:
        reference, block, number = self.reference, self.held[place], step.number
        if step.kind == "release":
            self.call("release", block, step.condition)
            if step.condition:
                reference.release(self.held.pop(place))
        elif step.kind == "publish" and reference.tokens[block]:
            tokens = reference.tokens[block]
            digest = block_digest(*KEY, *NO_PARENT, tokens, len(tokens))
            self.call("publish", block, *digest, step.condition)
            if step.condition:
                reference.published.setdefault(block, digest)
        elif step.kind == "append":
            if reference.writable(block) and len(reference.tokens[block]) < BLOCK_SIZE:
                self.call("append", block, number & 1, step.condition)
                reference.tokens[block] += [number & 1] if step.condition else []
        elif step.kind == "own_copy":
            kept = number % (len(reference.tokens[block]) + 1)
            copy = self.call("own_copy", block, kept, step.condition)
            expected = reference.own_copy(block, kept) if step.condition else block
            assert copy == expected
            self.held[place] = int(copy) if copy else block


TWINS = [
    Step(kind=kind, number=number, condition=True)
    for kind, number in (
        ("take", 0),
        ("append", 1),
        ("publish", 1),
        ("take", 0),
        ("append", 1),
        ("publish", 1),
        ("hit", 3),
    )
]
"""Two blocks with one content are published, and it is looked up: random steps seldom get there."""


def test_interpreted_and_compiled_pools_and_the_model_agree() -> None:
    done: Counter[str] = Counter()

    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(STEPS)
    @example(TWINS)
    def walk(steps: list[Step]) -> None:
        this = Walk()
        for step in steps:
            this.move(step)
            agree(this.pools[0], this.reference, this.held)
        done.update(this.done)

    walk()
    names = {"take", "acquire", "release", "publish", "withdraw", "append", "own_copy", "look_up"}
    assert names <= set(done), "some primitive was never called"
    assert done["duplicates"] > 0, "two copies of one content were never published together"


def test_a_duplicate_still_serves_when_its_twin_is_evicted() -> None:
    pool = new_pool(2, 1, 1)
    first, second = interpreted.take(pool, True), interpreted.take(pool, True)
    tokens = np.array([7], np.int32)
    digest = block_digest(*KEY, *NO_PARENT, tokens, 1)
    for block in (first, second):
        interpreted.append(pool, block, 7, True)
        interpreted.publish(pool, block, *digest, True)
    assert interpreted.look_up(pool, *digest, tokens, 1) == second
    interpreted.release(pool, second, True)
    assert interpreted.take(pool, True) == second
    assert interpreted.look_up(pool, *digest, tokens, 1) == first


def test_a_hit_compares_the_tokens_also_under_one_digest() -> None:
    pool = new_pool(3, 1, 2)
    for token in (1, 2):
        block = interpreted.take(pool, True)
        interpreted.append(pool, block, token, True)
        interpreted.publish(pool, block, 5, 5, True)
    for token in (1, 2, 3):
        found = interpreted.look_up(pool, 5, 5, np.array([token], np.int32), 1)
        assert found == (token if token < 3 else 0)


def test_withdrawing_every_block_computed_from_a_failed_one_leaves_nothing_to_hit() -> None:
    """Two requests computed A; the second's step failed, and its B was computed from that A.

    Withdrawing the failed A alone would leave B reachable through the other A: the caller withdraws both.
    """
    pool = new_pool(8, 4, 1)
    one, two = (np.array([token], np.int32) for token in (1, 2))
    digest_a = block_digest(*KEY, *NO_PARENT, one, 1)
    digest_b = block_digest(*KEY, *digest_a, two, 1)
    blocks = []
    for token, digest in ((1, digest_a), (1, digest_a), (2, digest_b)):
        block = interpreted.take(pool, True)
        interpreted.append(pool, block, token, True)
        interpreted.publish(pool, block, *digest, True)
        blocks.append(block)
    interpreted.withdraw(pool, blocks[1], True)
    assert interpreted.look_up(pool, *digest_b, two, 1) == blocks[2], "the hazard"
    interpreted.withdraw(pool, blocks[2], True)
    assert interpreted.look_up(pool, *digest_a, one, 1) == blocks[0]
    assert interpreted.look_up(pool, *digest_b, two, 1) == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, 1), "at least one block of one token, got 0 of 1"),
        ((1, 1, 0), "at least one block of one token, got 1 of 0"),
        ((4, 3, 1), "power of two, got 3"),
        ((4, 0, 1), "power of two, got 0"),
    ],
)
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_pool(*sizes)


def test_only_functions_of_the_pool_are_compiled() -> None:
    assert "take" in FUNCTIONS
    with pytest.raises(KeyError, match="evict is none of take"):
        compiled_pool("evict")


DAMAGES = {
    "a reference count is not the number of owners": ("ref_count", 1, 2),
    "the count of free blocks is wrong": ("num_free_blocks", 0, 9),
    "the free list holds a block that is not free": ("next_free", 0, 1),
    "the links of the free list do not point back": ("previous_free", 3, 5),
    "the free list does not hold all free blocks": ("next_free", 0, 0),
    "a chain holds a block that is not published there": ("digest_first", 1, 1),
    "the links of a chain do not point back": ("previous_in_chain", 1, 0),
    "a published block is in no chain": ("next_in_chain", 5, 5),
    "the null block is in use": ("ref_count", 0, 1),
    "a block holds more tokens than fit": ("num_tokens", 1, 9),
}


@pytest.mark.parametrize("problem", PROBLEMS[1:])
def test_every_kind_of_damage_is_found(problem: str) -> None:
    """Block 1 is held and published; blocks 2 to 4 are free; the sentinels are 5 and 6."""
    pool = new_pool(4, 2, 2)
    block = interpreted.take(pool, True)
    interpreted.publish(pool, block, 0, 0, True)
    owners = np.array([0, 1, 0, 0, 0])
    assert problem_of(pool, owners) == compiled_check()(pool, owners) == 0
    field, index, value = DAMAGES[problem]
    getattr(pool, field)[index] = value
    if problem == "the free list does not hold all free blocks":
        pool.previous_free[0] = 0
    if problem == "a published block is in no chain":
        pool.previous_in_chain[5] = 5
    assert PROBLEMS[problem_of(pool, owners)] == problem
    assert PROBLEMS[compiled_check()(pool, owners)] == problem
