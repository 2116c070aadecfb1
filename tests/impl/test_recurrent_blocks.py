"""The blocks of recurrent state: random rows on a small pool, a device beside them that holds real tokens."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

from draftproof.impl import recurrent
from draftproof.impl.pool import published
from draftproof.impl.pool_checks import PROBLEMS, problem_of
from draftproof.impl.scheduler import recurrent_blocks as blocks
from draftproof.impl.scheduler.allocation import release_row
from draftproof.impl.scheduler.batch import NUM_COPIES, Batch, batch_size, batch_views
from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, State, interpreted, views
from draftproof.impl.scheduler.memory import new_memory, settings_for
from draftproof.impl.scheduler.prefix_cache import has_states, hash_row
from draftproof.spec.recurrent import Recurrent

GROUP = 1
UNIT = 2
"""Attention's block size: where hits and checkpoints are."""
SIZE = 4
"""Tokens between two boundaries."""


class Flight(NamedTuple):
    step: int
    num_tokens: int
    num_drafts: int
    num_accepted: int
    generated: tuple[int, ...]


class Row:
    """A request as its client, its host and its device see it."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.tokens = prompt
        self.sequence = prompt
        self.consumed = 0
        self.checkpoint = 0
        self.device_slot = 0
        self.in_flight: list[Flight] = []
        self.num_copies = 0


class World:
    """State, rows and device. Tokens are few, so that different requests share prefixes."""

    def __init__(self, seed: int, num_blocks: int, num_drafts: int, run_ahead: int) -> None:
        self.random = random.Random(seed)
        config = SchedulerConfig(
            max_model_len=64,
            num_blocks=num_blocks,
            groups=(KVGroup(UNIT), KVGroup(SIZE, "recurrent")),
            max_num_seqs=4,
            max_num_requests=4,
            max_num_batched_tokens=64,
            num_speculative_tokens=num_drafts,
            asynchronous=run_ahead > 1,
            max_in_flight_steps=run_ahead if run_ahead > 1 else 0,
            hash_seed=1,
        )
        self.settings = settings_for(config, 0)
        self.arrays: State = views(*new_memory(config, self.settings))
        self.state: State = interpreted(self.arrays)
        assert self.state.recurrent is not None
        self.rows = self.state.recurrent
        self.batches: dict[int, Batch] = {}
        self.rules = blocks.recurrent_rules(self.state)
        self.run_ahead = run_ahead
        self.live: dict[int, Row] = {}
        self.content: dict[int, tuple[int, ...] | None] = {}
        self.written_in_step: dict[int, int] = {}
        self.pending: list[int] = []
        """Steps that have not been settled, oldest first."""
        self.seen: set[str] = set()

    def record(self, row: int) -> Recurrent:
        return blocks.load_record(self.rows.records, row)

    def block(self, row: int, column: int) -> int:
        return int(self.state.tables.block_ids[GROUP, row, column])

    def num_free(self) -> int:
        return int(self.state.pool.num_free_blocks[0])

    # -- one scheduler step: copies, then all rows at once

    def step(self) -> None:
        number = int(self.state.counts[NUM_DISPATCHED])
        memory = np.zeros(batch_size(self.settings), np.int32)
        batch: Batch = interpreted(batch_views(memory, self.settings))
        planned = []
        for row in list(self.live):
            planned += self.dispatch(row, batch, number)
        if len(self.live) < 3 and self.random.random() < 0.5:
            row = next(row for row in range(4) if row not in self.live)
            if self.admit(row, number):
                planned += self.dispatch(row, batch, number)
        sources = [self.content.get(int(batch.copies[0, place])) for place in range(batch.counts[NUM_COPIES])]
        targets = [int(batch.copies[1, place]) for place in range(batch.counts[NUM_COPIES])]
        assert len(set(targets)) == len(targets)
        assert set(targets).isdisjoint(int(batch.copies[0, place]) for place in range(len(targets)))
        self.content.update(zip(targets, sources, strict=True))
        self.written_in_step.update(dict.fromkeys(targets, number))
        for row, num_tokens, num_drafts, num_accepted, slot in planned:
            self.run_device(row, num_tokens, num_drafts, num_accepted, slot, number)
        if planned:
            self.batches[number] = batch
            self.pending.append(number)
            self.state.counts[NUM_DISPATCHED] = number + 1
        else:
            assert batch.counts[NUM_COPIES] == 0

    def admit(self, row: int, step: int) -> bool:
        prompt = tuple(self.random.choices((0, 1), k=self.random.randrange(1, 14)))
        request = Row(prompt)
        for index, token in enumerate(prompt):
            self.state.requests.token_ids[row, index] = token
        self.state.requests.num_hashed_blocks[row] = 0
        hash_row(self.state, row, len(prompt))
        hit = (len(prompt) - 1) // UNIT * UNIT
        while hit > 0 and not has_states(self.state, self.rows, row, hit, step):
            hit -= UNIT
        if self.num_free() < blocks.num_blocks_to_start(self.state, 0) + 3:
            return False
        if hit > 0:
            assert self.content[self.block(row, 0)] == prompt[:hit], "a hit is the state at its end (M2)"
            blocks.acquire_states(self.state, row)
            self.seen.add("hit")
        request.checkpoint = (len(prompt) - 1) // UNIT * UNIT
        request.consumed = hit
        blocks.start_row(self.state, self.rows, row, hit, request.checkpoint)
        if hit == 0:
            self.content[self.block(row, 0)] = ()
            self.written_in_step.pop(self.block(row, 0), None)
        self.live[row] = request
        return True

    def dispatch(self, row: int, batch: Batch, step: int) -> list[tuple[int, int, int, int, int]]:
        request, record = self.live[row], self.record(row)
        known = len(request.tokens)
        if len(request.in_flight) >= self.run_ahead or len(request.sequence) > 40:
            return []
        start, num_drafts = request.consumed, 0
        if start < known - 1:
            wanted = self.random.randrange(1, known - start + 1)
            num_tokens = recurrent.chunk_to_schedule(start, wanted, known, request.checkpoint, self.rules)
        else:
            num_drafts = self.random.randrange(self.settings.num_speculative_tokens + 1)
            num_tokens = 1 + num_drafts
        if num_tokens == 0:
            return []
        needed = blocks.num_blocks_to_dispatch(self.state, record, num_tokens, num_drafts, known)
        if needed > self.num_free():
            self.seen.add("no blocks")
            return []
        free = self.num_free()
        slot = recurrent.slot_to_read(record, request.device_slot)
        end = record.num_state_tokens + record.num_in_flight_tokens + num_tokens
        blocks.dispatch_row(self.state, self.rows, batch, row, num_tokens, num_drafts, known, min(end, known))
        assert self.num_free() >= free - needed, "no more than was announced"
        return [(row, num_tokens, num_drafts, self.random.randrange(num_drafts + 1), slot)]

    def run_device(
        self, row: int, num_tokens: int, num_drafts: int, num_accepted: int, slot: int, step: int
    ) -> None:
        request = self.live[row]
        read = self.content.get(self.block(row, slot))
        start, num_fed = request.consumed, num_tokens - num_drafts
        assert read is not None, "a step starts from a state"
        assert read == request.sequence[:start], "a step starts from the state of its own tokens (M3)"
        fed = request.sequence[start : start + num_fed]
        accepted = tuple(self.random.choices((0, 1), k=num_accepted))
        wrong = tuple(2 for _ in range(num_drafts - num_accepted))
        samples = start + num_fed == len(request.sequence)
        bonus = (self.random.randrange(2),) if samples else ()
        states = [read + fed + (accepted + wrong)[:draft] for draft in range(num_drafts + 1)]
        first, last = start + num_fed, start + num_fed + num_accepted
        for draft, state in enumerate(states):
            written = self.block(row, draft)
            exact = (
                published(self.state.pool, written) and state == (request.sequence + accepted)[: len(state)]
            )
            assert not published(self.state.pool, written) or exact, "what is written is not found (M1)"
            assert self.state.pool.ref_count[written] <= 2, "or held by others, but for a copy"
            self.content[written] = state
            self.written_in_step[written] = step
        for boundary in range(start // SIZE * SIZE + SIZE, last + 1, SIZE):
            column = blocks.target_column(self.rules, boundary)
            if boundary >= first and column < self.state.tables.num_blocks[GROUP, row]:
                target = self.block(row, column)
                if target != 0:
                    self.content[target] = states[boundary - first]
                    self.written_in_step[target] = step
                    self.seen.add("crossed")
        request.sequence += accepted + bonus
        request.consumed, request.device_slot = last, num_accepted
        request.in_flight.append(Flight(step, num_tokens, num_drafts, num_accepted, accepted + bonus))

    # -- the oldest step returns

    def settle(self) -> None:
        step = self.pending.pop(0)
        for row, request in list(self.live.items()):
            if not request.in_flight or request.in_flight[0].step != step:
                continue
            flight = request.in_flight.pop(0)
            stops = bool(flight.generated) and self.random.random() < 0.15
            kept = len(flight.generated)
            if stops:
                kept = self.random.randrange(1, kept + 1)
            for offset, token in enumerate(flight.generated[:kept]):
                self.state.requests.token_ids[row, len(request.tokens) + offset] = token
            request.tokens += flight.generated[:kept]
            blocks.settle_row(
                self.state, self.rows, row, flight.num_tokens, flight.num_drafts, flight.num_accepted, kept
            )
            record = self.record(row)
            if stops:
                self.exit(row)
            else:
                end = record.num_state_tokens + record.num_in_flight_tokens
                blocks.offer_row(self.state, self.rows, row, min(end, len(request.tokens)))
        blocks.finish_copies(self.state, self.rows, self.batches.pop(step))

    def exit(self, row: int) -> None:
        """Finish, abort or preemption: what is settled is offered, then everything is given back."""
        request, record = self.live.pop(row), self.record(row)
        settled = min(record.num_state_tokens + record.num_trimmed_tokens, len(request.tokens))
        blocks.offer_row(self.state, self.rows, row, settled)
        boundary = settled // SIZE * SIZE
        if boundary > record.num_published_tokens:
            self.seen.add("published at the exit")
        blocks.leave_row(self.state, self.rows, row)
        release_row(self.state, row)

    def fail(self) -> None:
        """All steps in flight are given up."""
        failed = self.pending[0]
        blocks.withdraw_failed(self.state, self.rows, failed)
        for step in self.pending:
            blocks.finish_copies(self.state, self.rows, self.batches.pop(step))
        for row in [row for row, request in self.live.items() if request.in_flight]:
            self.live.pop(row)
            blocks.leave_row(self.state, self.rows, row)
            release_row(self.state, row)
        self.pending.clear()
        for block, step in self.written_in_step.items():
            if step >= failed:
                self.content[block] = None

    def check(self) -> None:
        pool: Any = self.arrays.pool
        owners = np.zeros(self.settings.num_blocks + 1, np.int64)
        for row in self.live:
            for column in range(self.state.tables.num_blocks[GROUP, row]):
                owners[self.block(row, column)] += 1
        for batch in self.batches.values():
            for place in range(batch.counts[NUM_COPIES]):
                owners[batch.copies[0, place]] += 1
                owners[batch.copies[1, place]] += 1
        owners[0] = 0
        assert PROBLEMS[problem_of(pool, owners)] == "nothing"
        for block in range(1, self.settings.num_blocks + 1):
            if published(pool, block):
                last = tuple(int(token) for token in pool.token_ids[block, : pool.num_tokens[block]])
                assert (self.content[block] or ())[-len(last) :] == last, "what is found is what is there"
        for row, request in self.live.items():
            assert self.record(row).num_state_tokens <= len(request.tokens)


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_random_rows_read_and_find_their_own_states_and_every_block_has_its_owners(
    num_drafts: int, run_ahead: int
) -> None:
    seen: set[str] = set()
    for seed in range(6):
        world = World(seed, num_blocks=24, num_drafts=num_drafts, run_ahead=run_ahead)
        for _ in range(120):
            act = world.random.random()
            if world.pending and act > 0.97:
                world.fail()
                world.seen.add("failed")
            elif len(world.pending) >= run_ahead or (world.pending and act < 0.45):
                world.settle()
            elif world.live and act > 0.92:
                world.exit(world.random.choice(list(world.live)))
            else:
                world.step()
            world.check()
        while world.pending:
            world.settle()
        for row in list(world.live):
            world.exit(row)
        world.check()
        assert world.num_free() == world.settings.num_blocks, "everything was given back"
        seen |= world.seen
    assert {"hit", "failed"} <= seen
    assert ("crossed" in seen) == (num_drafts > 0 or run_ahead > 1)


def test_without_a_prefix_cache_nothing_is_copied_or_set_aside() -> None:
    config = SchedulerConfig(
        max_model_len=64,
        num_blocks=8,
        groups=(KVGroup(UNIT), KVGroup(SIZE, "recurrent")),
        num_speculative_tokens=3,
        enable_prefix_caching=False,
    )
    settings = settings_for(config, 0)
    state: State = interpreted(views(*new_memory(config, settings)))
    rows = state.recurrent
    assert rows is not None
    batch: Batch = interpreted(batch_views(np.zeros(batch_size(settings), np.int32), settings))
    blocks.start_row(state, rows, 0, 0, 4)
    assert state.pool.num_free_blocks[0] == 4
    for num_tokens, num_drafts in ((8, 0), (4, 3)):
        record = blocks.load_record(rows.records, 0)
        assert blocks.num_blocks_to_dispatch(state, record, num_tokens, num_drafts, 9) == 0
        blocks.dispatch_row(state, rows, batch, 0, num_tokens, num_drafts, 9, 9)
        blocks.settle_row(state, rows, 0, num_tokens, num_drafts, num_drafts, num_drafts + 1)
    assert state.pool.num_free_blocks[0] == 4 and batch.counts[NUM_COPIES] == 0


def test_a_session_keeps_its_slots_and_gives_its_targets_back() -> None:
    world = World(0, num_blocks=24, num_drafts=3, run_ahead=1)
    while not world.live or any(
        request.consumed < len(request.tokens) - 1 for request in world.live.values()
    ):
        world.step()
        while world.pending:
            world.settle()
    row = next(iter(world.live))
    world.live = {row: world.live[row]}
    for _ in range(4):
        world.step()
        if world.pending:
            world.settle()
    if row in world.live:
        record = world.record(row)
        blocks.end_turn_row(world.state, world.rows, row)
        assert world.state.tables.num_blocks[GROUP, row] == 4
        blocks.next_turn_row(world.state, world.rows, row, record.num_state_tokens + 6)
        after = world.record(row)
        assert (after.num_checkpoint_tokens, after.num_state_tokens) == (
            record.num_state_tokens + 6,
            record.num_state_tokens,
        )
