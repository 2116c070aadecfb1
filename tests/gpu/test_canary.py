"""Does the canary stay silent over right code, and name the first read of a wrong slot over wrong code?"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.canary_world import (  # noqa: E402
    BLOCK_SIZE,
    DEVICE,
    NUM_BLOCKS,
    AsynchronousEngine,
    Engine,
    named,
    seeds,
    without_other_checks,
)

from draftproof.gpu.attention import RowSpan, StepRows, at_lengths, rows_of  # noqa: E402
from draftproof.gpu.canary import FORGOTTEN, NEVER_WRITTEN, NOT_KNOWN, Canary  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.impl.ledger_table import NUM_TOKENS  # noqa: E402
from draftproof.impl.pool import publish, published, release, withdraw  # noqa: E402
from draftproof.impl.scheduler import settle  # noqa: E402
from draftproof.impl.scheduler.batch import NEW, Batch  # noqa: E402


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_right_code_is_not_accused(seed: int, caching: bool) -> None:
    """Chunks, drafts kept and rejected, hits, preemptions, rows used again, blocks copied and forgotten."""
    engine = Engine(seed, enable_prefix_caching=caching)
    engine.run_waves()
    for what in ("chunks", "accepted", "rejected", "preempted", "copied", *["hits"] * caching):
        assert engine.did[what] > 0, what


@seeds
def test_right_asynchronous_code_is_not_accused(seed: int) -> None:
    """Lengths come from the device: the host counts drafts as computed that were rejected meanwhile."""
    engine = AsynchronousEngine(seed)
    engine.run_waves()
    for what in ("chunks", "accepted", "rejected", "preempted", "copied", "hits", "behind the host"):
        assert engine.did[what] > 0, what


@seeds
def test_the_hosts_upper_bounds_taken_for_lengths_are_named(seed: int) -> None:
    """The first step after a rejection that the host has not heard of reads the rejected draft's slot."""
    engine = AsynchronousEngine(seed)
    engine.trusts_host_lengths = True
    named(engine)


def miscount(monkeypatch: pytest.MonkeyPatch, difference: int, times: int) -> list[int]:
    """Let so many steps with a rejection come to another num_computed_tokens; returns the wrong ones."""
    right, wrong = accounting.output, list[int]()

    def output(ledger: Any, rules: Any, returned: int, drafts: int, accepted: int, *rest: int) -> Any:
        after = right(ledger, rules, returned, drafts, accepted, *rest)
        is_last = rest[1] == 1
        if len(wrong) == times or is_last or accepted == drafts:
            return after
        wrong.append(after.num_computed_tokens + difference)
        return after._replace(num_computed_tokens=wrong[-1])

    monkeypatch.setattr(settle, "output", output)
    return wrong


@without_other_checks
@seeds
def test_a_count_one_too_many_is_named_by_the_next_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot of a rejected draft counts as computed, and holds the draft's KV."""
    engine = Engine(seed)
    wrong = miscount(monkeypatch, 1, times=100)  # a row may be preempted before it reads the slot

    def tamper(batch: Batch) -> None:
        for row, computed in engine.computed(batch):
            # All that is known is never computed before a step: its last token is fed.
            if computed == engine.state.requests.ledgers[NUM_TOKENS, row] and not engine.expected:
                assert computed in wrong
                engine.expect(batch, row, computed - 1)

    engine.tamper = tamper
    assert "a prefix that no row has now: a rejected draft's" in str(named(engine))


@without_other_checks
@seeds
def test_a_count_one_too_few_does_no_harm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is computed again, from the same prefix: the cache holds what it should."""
    wrong = miscount(monkeypatch, -1, times=5)
    Engine(seed).run_waves()
    assert len(wrong) == 5


@seeds
def test_swapped_entries_of_a_block_table_are_named(seed: int) -> None:
    engine = Engine(seed)

    def tamper(batch: Batch) -> None:
        for row, computed in engine.computed(batch):
            if computed >= 3 * BLOCK_SIZE and not engine.expected:
                blocks = engine.blocks_of(row)
                blocks[[1, 2]] = blocks[[2, 1]]
                engine.expect(batch, row, BLOCK_SIZE)

    engine.tamper = tamper
    assert "up to its position 8" in str(named(engine))


@seeds
def test_a_block_handed_to_two_owners_is_named_when_the_second_writes_it(seed: int) -> None:
    engine = Engine(seed)

    def tamper(batch: Batch) -> None:
        counts = engine.computed(batch)
        victims = [row for row, computed in counts if computed >= 3 * BLOCK_SIZE]
        victims = [row for row in victims if engine.state.pool.ref_count[engine.blocks_of(row)[2]] == 1]
        for place, (row, computed) in enumerate(counts):
            others = [victim for victim in victims if victim != row]
            index = -(-computed // BLOCK_SIZE)
            begins_block = index * BLOCK_SIZE < computed + batch.num_scheduled_tokens[place]
            if begins_block and others and not engine.expected:
                engine.blocks_of(row)[index] = engine.blocks_of(others[0])[2]
                engine.expect(batch, others[0], 2 * BLOCK_SIZE)

    engine.tamper = tamper
    assert "the prefix of row" in str(named(engine))


@without_other_checks
@seeds
def test_a_hit_on_a_block_with_other_tokens_is_named(seed: int) -> None:
    """Between two waves the cache's index is spoiled: each block is found under the tokens of another."""
    engine, is_spoiled = Engine(seed), False

    def tamper(batch: Batch) -> None:
        if is_spoiled and not engine.expected:
            assert batch.kind[0] == NEW and batch.num_computed_tokens[0] > 0
            engine.expect(batch, int(batch.rows[0]), 0)

    def before_wave(wave: int) -> None:
        nonlocal is_spoiled
        if wave == 1:
            spoil_index(engine.state.pool)
            is_spoiled = True

    engine.tamper, engine.before_wave = tamper, before_wave
    named(engine)


def spoil_index(pool: Any) -> None:
    """Hand the words under which the pool's blocks are found around."""
    blocks = [block for block in range(1, NUM_BLOCKS + 1) if published(pool, block)]
    for block in blocks:
        withdraw(pool, block, True)
    others = np.roll(blocks, 1)
    pool.token_ids[blocks] = pool.token_ids[others]
    words = [(int(pool.digest_first[other]), int(pool.digest_second[other])) for other in others]
    for block, (first, second) in zip(blocks, words, strict=True):
        publish(pool, block, first, second, True)


@seeds
def test_a_freed_block_that_is_read_is_named(seed: int) -> None:
    """The block a row is about to write on in, given back too early."""
    engine = Engine(seed)

    def tamper(batch: Batch) -> None:
        for row, computed in engine.computed(batch):
            if computed % BLOCK_SIZE and not engine.expected:
                block = int(engine.blocks_of(row)[computed // BLOCK_SIZE])
                if not published(engine.state.pool, block):
                    release(engine.state.pool, block, True)
                    engine.forget()
                    engine.expect(batch, row, computed // BLOCK_SIZE * BLOCK_SIZE)

    engine.tamper = tamper
    error = named(engine)
    assert error.found == FORGOTTEN
    assert "found nothing, a slot of a block that was freed" in str(error)


@seeds
def test_a_lost_copy_is_named(seed: int) -> None:
    """A block is read where it was to be copied to."""
    engine = Engine(seed)

    def tamper(batch: Batch) -> None:
        for place, (row, computed) in enumerate(engine.computed(batch)):
            # A new row may hit what another one writes in this very step.
            if computed >= 2 * BLOCK_SIZE and batch.kind[place] != NEW and not engine.expected:
                block = engine.blocks_of(row)[1]
                engine.places[block] = engine.spare[0]
                # A row that shares the block reads it in this step, too: the first in the batch is named.
                engine.expect(batch, row, BLOCK_SIZE)

    engine.tamper = tamper
    assert named(engine).found in (NEVER_WRITTEN, FORGOTTEN)


def test_a_token_that_is_not_the_texts_is_named_in_the_step_that_feeds_it() -> None:
    engine = Engine()
    engine.fed_shift = 1
    engine.tamper = lambda batch: engine.expect(batch, int(batch.rows[0]), 0)
    named(engine)


def looped(canary: Canary, tokens: Sequence[int]) -> list[int]:
    """The hashes of all prefixes, the empty one included, one token after the other."""
    factors, hashes = canary.factors.tolist(), [0]
    for position, token in enumerate(tokens):
        hashes.append((hashes[-1] + (token + 2) * factors[position]) % 2**64)
    return [value - 2**64 if value >= 2**63 else value for value in hashes]


def observe(canary: Canary, row: int, start: int, tokens: Sequence[int], count: int | None = None) -> None:
    given = torch.tensor([list(tokens)], device=DEVICE)
    counts = torch.tensor([len(tokens) if count is None else count], device=DEVICE)
    row_ids, starts = torch.tensor([[row], [start]], device=DEVICE)
    canary.observe_tokens(row_ids, starts, given, counts)


def test_prefixes_are_those_of_a_plain_loop_however_the_text_is_cut() -> None:
    """Token ids up to 2**31 - 1 and -1; pieces behind each other, and rejected drafts replaced."""
    random = np.random.default_rng(0)
    canary = Canary(3, 40, 10, 4, DEVICE)
    text = [-1, 2**31 - 1, 0, *random.integers(0, 2**31, 37).tolist()]
    expected, start = looped(canary, text), 0
    while start < 40:
        size = int(random.integers(1, 7))
        # Behind them drafts, some beyond the model's length; the next piece replaces them.
        observe(canary, 1, start, [*text[start : start + size], 5, 6])
        start += len(text[start : start + size])
        assert canary.prefixes[1, : start + 1].tolist() == expected[: start + 1]
    observe(canary, 2, 0, text, count=7)
    assert canary.prefixes[2, :9].tolist() == [*expected[:8], 0]
    assert canary.num_observed.tolist() == [0, 42, 7]
    assert not canary.prefixes[0, :-1].any()


def test_texts_of_few_tokens_all_have_another_hash() -> None:
    """All of up to 12 tokens out of two that differ by a power of two; orders of the same tokens, too."""
    canary = Canary(4096, 12, 1, 1, DEVICE)
    texts = torch.arange(4096, device=DEVICE)[:, None] >> torch.arange(12, device=DEVICE) & 1
    zeros = torch.zeros(4096, dtype=torch.int64, device=DEVICE)
    canary.observe_tokens(torch.arange(4096, device=DEVICE), zeros, texts * 2**17, zeros + 12)
    assert len(canary.prefixes[:, :-1].unique()) == 2**13 - 1


def test_slots_get_the_hashes_of_a_plain_loop() -> None:
    """Two rows and a padding row; the second is fed something else than its text, at its last position."""
    canary = Canary(5, 16, 8, 4, DEVICE)
    first, second = [3, 1, 4, 1, 5, 9], [2, 7, 1, 8]
    observe(canary, 4, 0, first)
    observe(canary, 0, 0, second)
    batch = SimpleNamespace(
        num_requests=2, rows=np.array([1, 0]), num_scheduled_tokens=np.array([6, 4]),
        num_computed_tokens=np.array([0, 0]), num_blocks=np.array([[2, 1]]),
    )  # fmt: skip
    tables = np.array([[[7, 0], [3, 5]]], np.int32)
    rows = rows_of(batch, tables, 4, DEVICE, num_padding_rows=2, padding_query_length=3)  # type: ignore[arg-type]
    fed = torch.tensor([*first, *second[:3], 9, *[33] * 6], device=DEVICE)
    mismatches = canary.check(rows, torch.tensor([4, 0], device=DEVICE), fed)
    held = looped(canary, first)
    assert canary.blocks[3].tolist() == held[1:5]
    assert canary.blocks[5].tolist() == [*held[5:], NEVER_WRITTEN, NEVER_WRITTEN]
    assert canary.blocks[7].tolist() == looped(canary, [*second[:3], 9])[1:]
    assert (canary.blocks[0] == NEVER_WRITTEN).all()
    wrong = looped(canary, second)[4], looped(canary, [*second[:3], 9])[4]
    assert mismatches[:, 0].tolist() == [-1, 3, -1, -1]
    assert mismatches[1].tolist() == [3, 7, *wrong]
    error = canary.problem(mismatches, 12, ["a", "b"])
    assert error is not None and error.request == "b" and (error.expected, error.found) == wrong


def test_lengths_that_only_the_device_knows_are_taken() -> None:
    """A step dispatched before two drafts were rejected: the device says where the row really is."""
    canary = Canary(1, 16, 4, 4, DEVICE)
    text = [3, 1, 4, 1, 5]
    tables = np.array([[[2, 4, 1]]], np.int32)

    def step(computed: int, fed: list[int], length: int) -> list[list[int]]:
        batch = SimpleNamespace(
            num_requests=1, rows=np.array([0]), num_scheduled_tokens=np.array([len(fed)]),
            num_computed_tokens=np.array([computed]), num_blocks=np.array([[3]]),
        )  # fmt: skip
        rows = rows_of(batch, tables, 4, DEVICE)  # type: ignore[arg-type]
        rows = at_lengths(rows, torch.tensor([length], dtype=torch.int32, device=DEVICE), 4)
        row_ids = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        found: list[list[int]] = canary.check(rows, row_ids, torch.tensor(fed, device=DEVICE)).tolist()
        return found

    observe(canary, 0, 0, [*text, 9, 2, 6])
    assert step(0, [*text, 9, 2, 6], 8)[0][0] == -1
    # Of the drafts 9 stays; 7 is sampled behind it. The host thinks of 8 tokens as computed: there are 6.
    observe(canary, 0, 6, [7, 8])
    assert step(8, [7, 8], 8)[0][0] == -1
    observe(canary, 0, 6, [7, 3, 3, 3])
    assert step(8, [3, 3], 10)[0][0] == 7


def test_positions_without_a_known_token_are_not_to_be_read() -> None:
    """A row of an earlier request's tokens is used again; a count far too large reads its old slots."""
    canary = Canary(1, 16, 4, 4, DEVICE)
    tables, rows = np.array([[[2, 4]]], np.int32), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    text = [3, 1, 4, 1, 5, 9]
    for computed, known, expected in ((0, 6, -1), (5, 6, -1), (5, 3, 3)):
        observe(canary, 0, 0, text[:known])
        batch = SimpleNamespace(
            num_requests=1, rows=np.array([0]), num_scheduled_tokens=np.array([6 - computed]),
            num_computed_tokens=np.array([computed]), num_blocks=np.array([[2]]),
        )  # fmt: skip
        fed = torch.tensor(text[computed:], device=DEVICE)
        found = canary.check(rows_of(batch, tables, 4, DEVICE), rows, fed)  # type: ignore[arg-type]
        assert found[0, 0] == expected
    assert found[0, 2] == NOT_KNOWN
    assert "expected no token known there" in str(canary.problem(found, 0, ["a"]))


def test_a_step_reads_nothing_back_to_the_host() -> None:
    """On the meta device there are shapes and no values: whoever asks for one gets an error."""

    def integers(*sizes: int, dtype: Any = torch.int64) -> Any:
        return torch.zeros(sizes, dtype=dtype, device="meta")

    canary = Canary(5, 16, 8, 4, "meta")
    canary.copy_blocks(integers(2), integers(2))
    canary.forget(integers(3))
    canary.observe_tokens(integers(2), integers(2), integers(2, 7), integers(2))
    rows = StepRows(
        integers(3, 2, dtype=torch.int32), integers(4, dtype=torch.int32), integers(3, dtype=torch.int32),
        integers(30), integers(30), (RowSpan(0, 1, 0, 20, 20, 7), RowSpan(1, 3, 20, 30, 9, 5)),
    )  # fmt: skip
    mismatches = canary.check(rows, integers(2), integers(30))
    assert mismatches.shape == (3, 4)
    with pytest.raises((NotImplementedError, RuntimeError)):
        canary.problem(mismatches, 0, ["a"])


def test_copies_read_all_sources_before_a_target_is_written() -> None:
    canary = Canary(1, 8, 3, 2, DEVICE)
    canary.blocks[1:] = torch.tensor([[1, 2], [3, 4], [5, 6]], device=DEVICE)
    canary.copy_blocks(*torch.tensor([[1, 2], [2, 3]], device=DEVICE))
    assert canary.blocks[1:].tolist() == [[1, 2], [1, 2], [3, 4]]


def test_sizes_and_blocks_that_cannot_be_are_refused_in_a_sentence() -> None:
    with pytest.raises(ModelError, match="num_blocks must be an integer from 1 to 2147483647, not 0"):
        Canary(1, 1, 0, 1, DEVICE)
    with pytest.raises(ModelError, match=r"a KV canary of \d+ bytes is too large: lower max_model_len"):
        Canary(2**20, 2**30, 1, 1, DEVICE)
    canary = Canary(1, 8, 3, 2, DEVICE)
    canary.forget([])
    for wrong in ([0], [4], [-1, 2]):
        with pytest.raises(IndexError, match="blocks that can be forgotten are 1 to 3"):
            canary.forget(wrong)
    assert (canary.blocks == NEVER_WRITTEN).all()
    canary.forget([3, 1, 3])
    assert canary.blocks[:, 0].tolist() == [NEVER_WRITTEN, FORGOTTEN, NEVER_WRITTEN, FORGOTTEN]
