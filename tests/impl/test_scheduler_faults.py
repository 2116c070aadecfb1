"""A fault in the scheduler's source is noticed by name: each is put in by hand, and random calls are made.

The running text is changed in one place, in memory, for one test. What notices it is a sentence of the truth
beside the scheduler (`agreement`, `device`, `request_truth`, `service_order`).
"""

from __future__ import annotations

import inspect
import random
import re
import sys
from types import ModuleType
from typing import NamedTuple

import pytest
from tests.impl.scheduler_world import Settings, World
from tests.impl.test_scheduler_compiled import wander

from draftproof.impl import accounting, decisions, pool, recurrent
from draftproof.impl.contracts import plain
from draftproof.impl.scheduler import (
    allocation,
    lifecycle,
    prefix_cache,
    queues,
    settle,
    step,
)

NUM_WORLDS = 60


class Fault(NamedTuple):
    """A change, where it matters, and what notices it."""

    name: str
    room: ModuleType
    function: str
    before: str
    after: str
    says: str
    settings: Settings = Settings()


ROOMY = Settings(extra_blocks=8, max_num_seqs=3)
HYBRID = Settings(groups="full, recurrent", extra_blocks=12, max_num_seqs=3)
WINDOW = Settings(groups="full, window", extra_blocks=12, max_num_seqs=3)
AHEAD = Settings(asynchronous=True, depth=2, max_num_seqs=3)

FAULTS = [
    Fault(
        "a ring forgets the way back",
        pool,
        "unlink",
        "put(previous, after, before, condition)",
        "put(previous, after, previous[after], condition)",
        "a reference count is not|do not point back",
    ),
    Fault(
        "the head of a table is not released",
        allocation,
        "release_row",
        "- 1, -1, -1)",
        "- 1, 0, -1)",
        "a reference count is not the number of owners",
    ),
    Fault(
        "heads are released before tails",
        allocation,
        "release_row",
        "range(state.tables.num_blocks[group, row] - 1, -1, -1)",
        "range(state.tables.num_blocks[group, row])",
        "would be evicted after its head",
        ROOMY,
    ),
    Fault(
        "a hit is not acquired",
        allocation,
        "take_over",
        "acquire(state.pool, block, block != 0)",
        "acquire(state.pool, block, False)",
        "a reference count is not the number of owners",
    ),
    Fault(
        "drafts are published",
        accounting,
        "schedule",
        "minimum(num_computed_tokens, ledger.num_tokens)",
        "num_computed_tokens",
        "R is \\d+, must be",
    ),
    Fault(
        "stale work is charged to the new life",
        settle,
        "settle_step",
        "if ledger.num_stale_tokens > 0:",
        "if ledger.num_stale_tokens > 0 and ledger.status != RUNNING:",
        "must be",
        AHEAD._replace(drop_stale=True),
    ),
    Fault(
        "a preempted request goes to the wrong end",
        queues,
        "enqueue",
        "elif first:",
        "elif not first:",
        "rows .* wait, must be",
    ),
    Fault(
        "a waiting request is passed over",
        step,
        "admit_waiting",
        "row = queues.next_waiting[sentinel]",
        "row = queues.previous_waiting[sentinel]",
        "starts before",
    ),
    Fault(
        "a duplicate disappears with its twin",
        prefix_cache,
        "publish_block",
        "if published(pool, block):",
        "if published(pool, block) or find(state, row, group, index) != 0:",
        "tokens are found, must be|would be evicted after its head",
        ROOMY,
    ),
    Fault(
        "a look-up takes a block more than it found",
        decisions,
        "lookup_hit",
        "floor_to_block(ledger.num_tokens - 1, rules.block_size))",
        "floor_to_block(ledger.num_tokens - 1, rules.block_size)) + rules.block_size",
        "reads (position|block)",
        ROOMY,
    ),
    Fault(
        "what a lost step published stays",
        lifecycle,
        "withdraw_block",
        "if published(state.pool, block):",
        "if published(state.pool, block) and block < 0:",
        "is published and holds",
        ROOMY,
    ),
    Fault(
        "a chunk goes behind the token that it replaces",
        lifecycle,
        "fold_row",
        "first = after.num_tokens - token_ids.shape[0]",
        "first = after.num_tokens - token_ids.shape[0] + 1",
        "knows .*, not",
    ),
    Fault(
        "one slot too few is reserved",
        decisions,
        "slots_to_reserve",
        "ledger.num_computed_tokens + num_lookahead_tokens",
        "ledger.num_computed_tokens + num_lookahead_tokens - 1",
        "slots and holds",
    ),
    Fault(
        "a stop token counts too early",
        settle,
        "first_stop",
        "requests.min_num_tokens[row] - num_tokens - 1",
        "requests.min_num_tokens[row] - num_tokens - 2",
        "tokens are kept, must be|reason 1 for its stop, must be 0",
    ),
    Fault(
        "late output is not waited for",
        step,
        "admit_waiting",
        "if ledger.num_stale_tokens == 0 or ledger.drop_stale:",
        "if ledger.num_stale_tokens >= 0 or ledger.drop_stale:",
        "Admit.* may not happen",
        AHEAD,
    ),
    Fault(
        "a finished request's last step is not counted",
        lifecycle,
        "drop_step",
        "if after.status == FINISHED:",
        "if after.status == FINISHED and after.num_in_flight_tokens < 0:",
        "rows .* are in use",
        AHEAD,
    ),
    Fault(
        "tenants share what they computed",
        prefix_cache,
        "hash_row",
        "first, second = requests.salt_first[row], requests.salt_second[row]",
        "first, second = 0, 0",
        "reads position|the digest of block",
        ROOMY,
    ),
    Fault(
        "a window is cut one block too far",
        decisions,
        "window_to_prune",
        "maximum(settled - window + 1, 0)",
        "maximum(settled - window + 1 + rules.block_size, 0)",
        "reads (position|block)|has no block",
        WINDOW,
    ),
    Fault(
        "a published state is written on",
        recurrent,
        "copy_needed",
        "recurrent.running_key > 0",
        "recurrent.running_key > 1_000",
        "starts from column|from which another row starts|is published",
        HYBRID,
    ),
    Fault(
        "a state is hit in the step that writes it",
        recurrent,
        "may_hit",
        "published_in_step < step",
        "published_in_step <= step",
        "starts from column|from which another row starts",
        HYBRID,
    ),
]


def inject(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Run the changed text wherever the right one runs, interpreted."""
    right = getattr(fault.room, fault.function)
    text = inspect.getsource(plain(right))
    assert text.count(fault.before) == 1, f"{fault.function} was edited: {fault.before!r} is not there once"
    scope = dict(vars(fault.room))
    exec(compile(text.replace(fault.before, fault.after), f"<{fault.name}>", "exec"), scope)
    for name, module in list(sys.modules.items()):
        if name.startswith("draftproof.impl"):
            for key, value in list(vars(module).items()):
                if value is right:
                    monkeypatch.setattr(module, key, scope[fault.function])


def wander_until_noticed(fault: Fault, num_worlds: int = NUM_WORLDS) -> str:
    """Random calls on random schedulers; what the truth says first, and nothing if it says nothing."""
    for seed in range(num_worlds):
        chosen = random.Random(seed)
        settings = fault.settings._replace(
            num_drafts=chosen.randint(0, 3),
            block_size=min(fault.settings.block_size, chosen.randint(1, 3)),
            extra_blocks=chosen.choice((0, fault.settings.extra_blocks)),
        )
        world = World(settings, sweeps=False)
        try:
            wander(world, chosen, 60)
            world.finish_all()
        except AssertionError as problem:
            return str(problem)
    return ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed_by_name(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, fault)
    said = wander_until_noticed(fault)
    assert re.search(fault.says, said), said or "nobody noticed"


def test_the_right_source_is_not_blamed() -> None:
    for settings in (Settings(), ROOMY, AHEAD, HYBRID, WINDOW):
        fault = FAULTS[0]._replace(settings=settings)
        assert wander_until_noticed(fault, NUM_WORLDS // 5) == ""
