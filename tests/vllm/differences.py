"""In what do the schedulers differ? Each difference by name, and our code changed to behave as theirs.

Four are faults of vLLM 0.32: three publish nothing where settled blocks are given back, one publishes blocks
of a step that is taken back. Two are decisions of ours. With all six removed both schedulers must be
identical. The changes are made to the interpreted scheduler, in memory, for the length of a run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from draftproof.impl import accounting, decisions, pool
from draftproof.impl.ledger_table import load
from draftproof.impl.scheduler import prefix_cache, pressure, step
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.registry import find
from draftproof.spec.algebra import where


class Difference(NamedTuple):
    """One way in which vLLM 0.32 behaves otherwise."""

    name: str
    whose: str
    """`fault of vLLM` or `decision of ours`."""
    meaning: str
    apply: Callable[[pytest.MonkeyPatch], None]


def replace(patch: pytest.MonkeyPatch, source: ModuleType, name: str, changed: Any) -> None:
    """Let the scheduler's modules call `changed` instead of `source.name`."""
    original = getattr(source, name)
    users = [
        module
        for path, module in sys.modules.items()
        if path.startswith("draftproof.impl.scheduler.") and vars(module).get(name) is original
    ]
    assert users, f"the scheduler does not call {source.__name__}.{name}"
    for module in users:
        patch.setattr(module, name, changed)


def transition_of(fault: str, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A transition with one of the named faults in it."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        replace(patch, accounting, name, patched(find(fault).changes).transitions[name])

    return apply


def seats_of_residents(patch: pytest.MonkeyPatch) -> None:
    """Every running request takes a seat."""
    replace(
        patch, decisions, "seats_free", patched(find("residents-take-seats").changes).decisions["seats_free"]
    )


def oldest_copy_first(patch: pytest.MonkeyPatch) -> None:
    """Of several copies the one that was published first serves: the same search, from the other end."""

    def look_up(blocks: Any, first: int, second: int, tokens: Any, num_tokens: int) -> int:
        node = blocks.previous_in_chain[pool.sentinel(blocks, first)]
        while pool.goes_on(blocks, node, first, second, tokens, num_tokens):
            node = blocks.previous_in_chain[node]
        return where(node < blocks.ref_count.shape[0], node, 0)

    replace(patch, pool, "look_up", look_up)


def publish_when_decided(patch: pytest.MonkeyPatch) -> None:
    """A row that is taken back out of a step has published what the step would have filled."""
    take_back, preempt_row = step.take_back, pressure.preempt_row
    num_taken_back: dict[int, int] = {}

    def remember(batch: Any, row: int) -> int:
        num_taken_back[row] = take_back(batch, row)
        return num_taken_back[row]

    def publish_first(state: Any, batch: Any, row: int, drop: bool) -> None:
        num_tokens = num_taken_back.pop(row, 0)
        if num_tokens > 0:
            before = load(state.requests.ledgers, row)
            after = accounting.schedule(before, state.rules, num_tokens)
            prefix_cache.publish_row(state, row, before.num_registered_tokens, after.num_registered_tokens)
        preempt_row(state, batch, row, drop)

    replace(patch, step, "take_back", remember)
    replace(patch, pressure, "preempt_row", publish_first)


FAULT, DECISION = "fault of vLLM", "decision of ours"

DIFFERENCES = (
    Difference(
        "finish-registers-nothing",
        FAULT,
        "a request that finishes publishes nothing: what its last step settled is computed again",
        transition_of("finish-registers-nothing-synchronous", "finish"),
    ),
    Difference(
        "preemption-loses-settled",
        FAULT,
        "a preempted request publishes nothing before it gives its blocks back",
        transition_of("preemption-loses-settled", "preempt"),
    ),
    Difference(
        "abort-loses-settled",
        FAULT,
        "an aborted request publishes nothing before it gives its blocks back",
        transition_of("abort-loses-settled", "abort"),
    ),
    Difference(
        "victim-published-uncomputed",
        FAULT,
        "by priority: a victim that stood in the step leaves blocks findable that the step would have filled",
        publish_when_decided,
    ),
    Difference(
        "residents-take-seats",
        DECISION,
        "a running request that only awaits its last output takes no seat from a waiting one",
        seats_of_residents,
    ),
    Difference(
        "newest-copy-first",
        DECISION,
        "of several published copies the newest serves; vLLM takes the oldest",
        oldest_copy_first,
    ),
)


@contextlib.contextmanager
def like_vllm(differences: Iterable[Difference] = DIFFERENCES) -> Iterator[None]:
    """Our interpreted scheduler with these differences taken away."""
    with pytest.MonkeyPatch.context() as patch:
        for difference in differences:
            difference.apply(patch)
        yield
