"""Does a step read and write the right states? Against a loop over tokens; neighbours, padding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE, difference  # noqa: E402
from tests.gpu.host_reads import no_host_reads  # noqa: E402
from tests.gpu.hybrid_truth import NUM_DRAFTS  # noqa: E402
from tests.gpu.hybrid_world import BLOCK_SIZE  # noqa: E402

from draftproof.gpu.attention import BlockTableError, StepRows, rows_of  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.recurrent import (  # noqa: E402
    HostStates,
    Recurrence,
    StateCache,
    StateRows,
    bytes_per_block,
    host_states,
    note_accepted,
    state_moves,
    state_rows,
)
from draftproof.impl.scheduler.batch import NUM_BATCH_COUNTS, NUM_COPIES  # noqa: E402

MIX = ((1, 9), (4, 6), (19, 0), (1, 0), (4, 12), (33, 7))
"""Rows as (tokens of the step, tokens computed before)."""
SIZE = 6


def step_of(chosen: list[int], num_padding_rows: int = 0) -> tuple[StepRows, StateRows]:
    """Rows of MIX: row r has the blocks from 100 r on."""
    count = len(chosen)
    lines = np.array(chosen, np.int32)
    tokens = np.array([MIX[row][0] for row in chosen], np.int32)
    batch: Any = SimpleNamespace(
        num_requests=count,
        rows=lines,
        num_scheduled_tokens=tokens,
        num_computed_tokens=np.array([MIX[row][1] for row in chosen], np.int32),
        num_draft_tokens=np.where(tokens == 4, NUM_DRAFTS, 0).astype(np.int32),
        source_slot=np.array([-1 if row % 2 else 0 for row in chosen], np.int32),
        num_blocks=np.full((2, count), 20, np.int32),
        copies=np.zeros((2, 4), np.int32),
        counts=np.zeros(NUM_BATCH_COUNTS, np.int32),
    )
    block_ids = (100 * np.arange(len(MIX))[None, :, None] + np.arange(1, 21)).repeat(2, 0).astype(np.int32)
    rows = rows_of(batch, block_ids, BLOCK_SIZE, DEVICE, num_padding_rows=num_padding_rows)
    states = host_states(batch, block_ids, 1, num_rows=len(MIX), num_padding_rows=num_padding_rows)
    return rows, on_device(states)


def on_device(states: HostStates) -> StateRows:
    return state_rows(torch.from_numpy(states.rows).to(DEVICE))


def run_step(chosen: list[int], num_padding_rows: int = 0) -> tuple[list[Any], Any, Any]:
    """Of random numbers that belong to the rows: states by row, the cache's states before and after."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(2, tokens, SIZE, generator=generator).to(DEVICE) for tokens, _ in MIX]
    cache = StateCache(1, 100 * len(MIX), SIZE, DEVICE)
    cache.states[:, 1:] = torch.randn(1, 100 * len(MIX), SIZE, generator=generator).to(DEVICE)
    before = cache.states.clone()
    rows, states = step_of(chosen, num_padding_rows)
    accepted = torch.arange(len(MIX) + 1, device=DEVICE) % (NUM_DRAFTS + 1)
    padding = torch.full((2, num_padding_rows, SIZE), float("inf"), device=DEVICE)
    decay, update = torch.cat([*[drawn[row] for row in chosen], padding], 1)
    with no_host_reads():
        moves = state_moves(states, rows, accepted, 8, NUM_DRAFTS)
        after = Recurrence(cache, rows, moves)(0, torch.sigmoid(decay), update)
    lengths = [MIX[row][0] for row in chosen]
    return list(torch.split(after[: sum(lengths)], lengths)), before[0], cache.states[0]


def test_states_are_those_of_a_loop_over_tokens_and_lie_where_they_belong() -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(2, tokens, SIZE, generator=generator).to(DEVICE) for tokens, _ in MIX]
    states, before, after = run_step(list(range(len(MIX))), 2)
    expected_after = before.clone()
    for row, (tokens, computed) in enumerate(MIX):
        source = row % (NUM_DRAFTS + 1) if row % 2 else 0
        state = before[100 * row + 1 + source].double()
        num_drafts = NUM_DRAFTS if tokens == 4 else 0
        if computed == 0:
            state = torch.zeros_like(state)
        for token, (decay, update) in enumerate(zip(*drawn[row], strict=True)):
            state = torch.sigmoid(decay).double() * state + update.double()
            assert difference(states[row][token], state) < 1e-5
            slot = token - (tokens - 1 - num_drafts)
            if slot >= 0:
                boundary = computed + token + 1
                expected_after[100 * row + 1 + slot] = state
                if boundary % 8 == 0:
                    expected_after[100 * row + 1 + NUM_DRAFTS + boundary // 8] = state
    # Every other block too, the null block included, in spite of padding rows with infinities.
    assert difference(after, expected_after) < 1e-5


def test_a_row_does_not_depend_on_its_neighbours_in_a_single_bit() -> None:
    together, _, after = run_step(list(range(len(MIX))))
    for row in range(len(MIX)):
        [alone], _, after_alone = run_step([row], num_padding_rows=3)
        assert torch.equal(alone, together[row])
        own = slice(100 * row + 1, 100 * row + 21)
        assert torch.equal(after_alone[own], after[own])


def test_all_states_are_read_before_any_is_written() -> None:
    rows, states = step_of([0, 1])
    cache = StateCache(1, 200, SIZE, DEVICE)
    moves = state_moves(states, rows, torch.zeros(7, dtype=torch.int64, device=DEVICE), 8, NUM_DRAFTS)
    cache.states[0, 1], cache.states[0, 101] = 1.0, 2.0
    # The first row writes the block from which the second one starts.
    moves = moves._replace(targets=torch.where(moves.targets == 1, 101, 0))
    ones, zeros = torch.ones(2, 5, SIZE, device=DEVICE)[0], torch.zeros(5, SIZE, device=DEVICE)
    after = Recurrence(cache, rows, moves)(0, ones, zeros)
    assert (after[0] == 1).all() and (after[1:] == 2).all()
    assert (cache.states[0, 101] == 1).all()


@pytest.mark.parametrize("block_size", [4, 8])
def test_states_are_kept_after_known_tokens_after_each_draft_and_at_boundaries(block_size: int) -> None:
    """Every length and number of drafts; what the device must write is written down once more."""
    for num_known in range(1, 25):
        for num_drafts in range(NUM_DRAFTS + 1):
            table = torch.arange(11, 20)[None]
            rows = StateRows(
                torch.zeros(1, dtype=torch.int64), torch.tensor([-1]), torch.tensor([False]),
                torch.tensor([num_drafts]), table,
            )  # fmt: skip
            length = num_known + num_drafts
            step: Any = SimpleNamespace(
                sequence_lengths=torch.tensor([length], dtype=torch.int32),
                query_starts=torch.tensor([0, 1 + num_drafts], dtype=torch.int32),
            )
            moves = state_moves(rows, step, torch.tensor([2]), block_size, NUM_DRAFTS)
            assert moves.sources.tolist() == [13]
            expected = {11 + slot: slot for slot in range(num_drafts + 1)}
            for slot in range(num_drafts + 1):
                column = NUM_DRAFTS + (num_known + slot) // block_size
                if (num_known + slot) % block_size == 0 and column < 9:
                    expected[11 + column] = slot
            pairs = zip(moves.targets.tolist(), moves.tokens.tolist(), strict=True)
            assert {target: token for target, token in pairs if target} == expected


def test_what_was_accepted_last_is_noted() -> None:
    _, states = step_of([4, 2], num_padding_rows=1)
    slots = torch.full((7,), 9, device=DEVICE)
    note_accepted(slots, states, torch.tensor([3, 0, 0], device=DEVICE))
    assert slots.tolist() == [9, 9, 0, 9, 2, 9, 0]


def test_rows_have_only_their_own_blocks() -> None:
    batch: Any = SimpleNamespace(
        num_requests=2, rows=np.array([3, 1]), num_computed_tokens=np.array([0, 5]),
        num_draft_tokens=np.array([0, 2]), source_slot=np.array([0, 1]), num_blocks=np.array([[4, 3]]),
        copies=np.arange(8).reshape(2, 4), counts=np.zeros(NUM_BATCH_COUNTS, np.int32),
    )  # fmt: skip
    batch.counts[NUM_COPIES] = 2
    block_ids = np.arange(1, 25, dtype=np.int32).reshape(1, 4, 6)
    states = host_states(batch, block_ids, 0, num_rows=4, num_padding_rows=1, table_width=8)
    rows = on_device(states)
    # What lies beyond num_blocks was somebody else's.
    assert rows.block_tables.tolist() == [[19, 20, 21, 22, 0, 0, 0, 0], [7, 8, 9, 0, 0, 0, 0, 0], [0] * 8]
    assert rows.row_ids.tolist() == [3, 1, 4]
    assert rows.starts_anew.tolist() == [True, False, False]
    assert states.copies.tolist() == [[0, 1], [4, 5]]
    batch.num_draft_tokens[1] = 3
    with pytest.raises(BlockTableError, match="row 1 writes working slot 3 of its recurrent state"):
        host_states(batch, block_ids, 0, num_rows=4)
    batch.num_draft_tokens[1], batch.source_slot[1] = 2, 5
    with pytest.raises(BlockTableError, match="row 1 starts from working slot 5"):
        host_states(batch, block_ids, 0, num_rows=4)


def test_a_row_that_has_stopped_on_the_device_leaves_nothing() -> None:
    rows, states = step_of([0, 1])
    lengths = rows.sequence_lengths * torch.tensor([1, 0], dtype=torch.int32, device=DEVICE)
    slots = torch.full((len(MIX) + 1,), 2, device=DEVICE)
    moves = state_moves(states, rows._replace(sequence_lengths=lengths), slots, 8, NUM_DRAFTS)
    assert moves.sources.tolist() == [1, 0]
    assert moves.targets.tolist() == [1, 0, 0, 0, 0] + [0] * 5


# ---- the cache


def test_copies_read_all_sources_first_and_poison_shows() -> None:
    cache = StateCache(2, 4, 3, DEVICE)
    cache.states[:, 1], cache.states[:, 2] = 1.0, 2.0
    pairs = torch.tensor([[1, 2, 0, 0], [2, 1, 0, 0]], device=DEVICE)
    cache.copy_blocks(*pairs)
    assert cache.states[:, :, 0].tolist() == [[0, 2, 1, 0, 0]] * 2
    cache.poison([3])
    assert cache.states.isnan().any(2).tolist() == [[False, False, False, True, False]] * 2
    assert cache.num_bytes == 5 * bytes_per_block(2, 3) == 5 * 24
    for block in (0, 5):
        with pytest.raises(IndexError, match="1 to 4"):
            cache.poison([block])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4, 3), "num_layers of recurrent states must be an integer"),
        ((1, True, 3), "num_blocks of recurrent states"),
        ((1, 4, 2.0), "state_size of recurrent states"),
        ((2**20, 2**30, 2**20), "would take .* bytes: lower num_blocks"),
        ((2**10, 2**30, 2**10), "no memory for 1073741824 recurrent states"),
    ],
)
def test_impossible_sizes_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        StateCache(*sizes)
