"""The draft model: it drafts what it would say, from KV that is right where it reads, and moves no text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.draft_world import (  # noqa: E402
    BLOCK_SIZE,
    GREEDY,
    DraftWorld,
    Fed,
    continuation,
    dense,
    difference,
    joint_distribution,
    model,
    shape,
    three_tokens,
)
from tests.gpu.sampling_world import FALSE_ALARM, FAULT, chi_square  # noqa: E402

from draftproof.gpu.drafters import draft_rows  # noqa: E402
from draftproof.gpu.drafters.draft_model import DraftModelDrafter  # noqa: E402
from draftproof.gpu.drafters.step import DraftStep  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.gpu.sampling.randomness import ACCEPT  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2], [1, 6, 1, 8, 0, 3, 3, 9, 8, 10, 7], [5, 5]]
TOLERANCE = 1e-4
K = 3
# Drafts that each step accepts.
ACCEPTED = (K, K, 1, 0, K, 2, K, K)


class WithoutLastDraft(DraftModelDrafter):
    """The fault: a step that verifies drafts is not read by the draft model, as if its own passes had
    written everything. They never feed the K-th draft."""

    def _follow(self, step: DraftStep) -> None:
        # Whether a step has a prefill chunk is seen on its shape.
        if step.rows.num_tokens != len(step.row_ids) * (K + 1):
            super()._follow(step)


def world(drafter: Any, prompts: Any = PROMPTS, **options: Any) -> DraftWorld:
    return DraftWorld(model(3), drafter, prompts, **options)


def same_weights(kind: type[DraftModelDrafter] = DraftModelDrafter) -> DraftModelDrafter:
    return kind(model(3), K)


def another(num_drafts: int = K) -> DraftModelDrafter:
    """Half as large as the target, with other heads."""
    return DraftModelDrafter(model(8, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1), num_drafts)


def worst_kv(draft: DraftWorld, rows: Any = None) -> float:
    """How far the draft model's KV is from a dense recomputation, below N where rows have sampled, else
    below C."""
    drafter = draft.drafter
    assert isinstance(drafter, DraftModelDrafter) and drafter.cache.cache is not None
    worst = 0.0
    for row in range(len(draft.num_tokens)) if rows is None else rows:
        computed, known = int(draft.num_computed[row]), int(draft.num_tokens[row])
        count = known if computed == known - 1 else computed
        if count:
            expected = dense(drafter.decoder, draft.text(row)[:count])[1]
            stored = draft.stored(drafter.cache.cache, row, count)
            worst = max(worst, difference(stored, expected)) if bool(stored.isfinite().all()) else np.inf
    return float(worst)


def run(draft: DraftWorld) -> tuple[int, float]:
    """Drafts that differ from the target's own continuation, and the worst KV, over all steps."""
    wrong, worst = 0, 0.0
    for step in (None, *ACCEPTED):
        if step is None:
            draft.prefill(2)
        else:
            draft.decode(step)
            assert wrong or draft.draft_step.num_sampled[:4].tolist() == [step + 1] * 4
        worst = max(worst, worst_kv(draft))
        for row in range(len(PROMPTS)):
            wrong += draft.drafts(row) != continuation(draft.target, draft.text(row), K)
    return wrong, worst


@pytest.mark.parametrize("num_padding_rows", [0, 3])
def test_with_the_targets_own_weights_it_drafts_what_the_target_says(num_padding_rows: int) -> None:
    """Whatever part of the last drafts was accepted; behind all of them too."""
    wrong, worst = run(world(same_weights(), num_padding_rows=num_padding_rows))
    assert wrong == 0
    assert worst < TOLERANCE


@pytest.mark.parametrize("num_drafts", [1, 5])
def test_it_drafts_as_many_as_it_should(num_drafts: int) -> None:
    draft = world(DraftModelDrafter(model(3), num_drafts))
    draft.prefill()
    for num_accepted in (num_drafts, num_drafts, 0, num_drafts):
        draft.decode(num_accepted)
        assert draft.draft_step.num_sampled.tolist() == [num_accepted + 1] * 4
        assert worst_kv(draft) < TOLERANCE
        for row in range(len(PROMPTS)):
            assert draft.drafts(row) == continuation(draft.target, draft.text(row), num_drafts)


def test_without_the_last_drafts_kv_it_does_not() -> None:
    """The fault of draft models that read only what they drafted: found in the KV and in the drafts."""
    wrong, worst = run(world(same_weights(WithoutLastDraft)))
    assert wrong > 0
    assert worst > 100 * TOLERANCE


def test_its_kv_is_right_after_chunks_and_any_acceptance() -> None:
    draft = world(another(), num_padding_rows=1)
    # Chunks of one row beside rows that decode.
    draft.feed([Fed(0, 4), Fed(1, 5)])
    assert worst_kv(draft) < TOLERANCE
    assert draft.proposal is not None and draft.proposal.num_tokens.tolist() == [0, K, 0]
    assert draft.proposal.token_ids[0].tolist() == [-1] * K
    drafts = draft.proposal.token_ids[1].tolist()
    assert drafts == continuation(another().decoder, draft.text(1), K)
    draft.feed([Fed(0, 3), Fed(1, 1, drafts), Fed(2, 1)])
    assert worst_kv(draft) < TOLERANCE
    draft.feed([Fed(2, 10), Fed(0, 3), Fed(3, 2)])
    assert worst_kv(draft) < TOLERANCE
    for row in range(len(PROMPTS)):
        for num_right in (K, 0, 1, K):
            # The target's own words, so that as many are accepted.
            drafts = continuation(draft.target, draft.text(row), K)
            if num_right < K:
                drafts[num_right] = (drafts[num_right] + 1) % 11
            draft.feed([Fed(row, 1, drafts)])
            assert draft.draft_step.num_sampled.tolist() == [num_right + 1, 0]
            assert worst_kv(draft) < TOLERANCE
            assert draft.drafts(0) == continuation(another().decoder, draft.text(row), K)


def test_fewer_drafts_and_null_drafts_leave_its_kv_right() -> None:
    draft = world(another(), PROMPTS[:1])
    draft.prefill()
    for drafts in ([], [-1, -1], continuation(draft.target, draft.text(0), 1), [-1] * K):
        draft.feed([Fed(0, 1, drafts)])
        assert worst_kv(draft) < TOLERANCE
        assert draft.drafts(0) == continuation(another().decoder, draft.text(0), K)


def test_the_kernel_reads_the_same_rows() -> None:
    """As the reference does, a chunk, padding and rows that do not sample included."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from draftproof.gpu.attention.triton_kernel import TritonAttention

    draft = world(same_weights(), backend=TritonAttention, num_padding_rows=1)
    draft.feed([Fed(0, 4), Fed(1, 5)])
    draft.feed([Fed(0, 6), Fed(1, 1, draft.drafts(1))])
    assert draft.draft_step.num_sampled.tolist() == [1, K + 1, 0]
    assert worst_kv(draft) < TOLERANCE
    for row in range(2):
        assert draft.drafts(row) == continuation(draft.target, draft.text(row), K)


def test_after_a_preemption_it_reads_only_the_new_blocks() -> None:
    """The old ones hold NaN."""
    draft = world(another(), PROMPTS[:2], num_more_blocks=40)
    draft.prefill()
    draft.decode(K)
    draft.preempt(1)
    draft.feed([Fed(0, 1), Fed(1, 4)])
    draft.feed([Fed(0, 1), Fed(1, int(draft.num_tokens[1]) - 4)])
    assert worst_kv(draft) < TOLERANCE
    for row in range(2):
        assert draft.drafts(row) == continuation(another().decoder, draft.text(row), K)


def test_rows_that_do_not_sample_and_padding_rows_write_nothing_of_their_own() -> None:
    """Beyond what the target wrote, the passes of the draft model change only slots behind sampled texts."""
    drafter = another()
    draft = world(drafter, num_padding_rows=2)
    cache = drafter.cache.cache
    assert cache is not None
    cache.storage.fill_(7.0)
    draft.feed([Fed(0, 4), Fed(1, 5), Fed(2, 3)])
    changed = (cache.storage != 7.0).flatten(4).any(4).any(0).any(0)
    changed[0] = False  # the null block
    allowed = torch.zeros_like(changed)
    # Row 1 sampled: N is 6, so that its passes write up to N + K - 2.
    for row, count in ((0, 4), (1, 5 + K), (2, 3)):
        for position in range(count):
            allowed[draft.block_ids[0, row, position // BLOCK_SIZE], position % BLOCK_SIZE] = True
    assert torch.equal(changed, allowed)


def test_at_the_end_of_its_block_table_a_row_has_fewer_drafts() -> None:
    """Not one byte is written elsewhere, and no position is asked of a table that lacks it."""
    drafter = another()
    draft = world(drafter, [[1, 2, 3, 4, 5, 6], [1, 2]], max_model_len=8, spare_blocks=False)
    draft.prefill()
    assert draft.proposal is not None
    # The first has 7 tokens and 8 slots: positions 6 and 7 give two drafts.
    assert draft.proposal.num_tokens.tolist() == [2, K]
    assert draft.drafts(0) == continuation(drafter.decoder, draft.text(0), 2)
    assert draft.proposal.token_ids[0, 2:].tolist() == [-1]
    assert draft.drafts(1) == continuation(drafter.decoder, draft.text(1), K)


def test_a_row_without_a_block_goes_to_the_null_slot() -> None:
    """The table is wide enough, and holds the null block there."""
    drafter = another()
    draft = world(drafter, [[1, 2, 3, 4, 5, 6]])
    draft.block_ids[0, 0, 2:] = 0
    draft.prefill()
    assert draft.proposal is not None and draft.proposal.num_tokens.tolist() == [2]
    assert drafter.cache.cache is not None
    assert difference(drafter.cache.cache.storage[:, :, 0], torch.zeros(1, device=DEVICE)) == 0


def test_several_tokens_a_row_stand_where_they_should() -> None:
    draft = world(another(), PROMPTS[:2], num_padding_rows=1)
    draft.prefill()
    lengths = draft.draft_step.num_tokens
    rows = draft_rows.draft_rows(draft.draft_step, lengths, 3, 40, BLOCK_SIZE)
    assert rows.positions.tolist() == [8, 9, 10, 3, 4, 5, 0, 0, 0]
    assert rows.sequence_lengths.tolist() == [11, 6, 0]
    assert rows.query_starts.tolist() == [0, 3, 6, 9]
    blocks = draft.block_ids[0].astype(int)
    expected = [blocks[0, 2] * 4, blocks[0, 2] * 4 + 1, blocks[0, 2] * 4 + 2]
    expected += [blocks[1, 0] * 4 + 3, blocks[1, 1] * 4, blocks[1, 1] * 4 + 1, 0, 0, 0]
    assert rows.slot_mapping.tolist() == expected
    # Rows shorter than that have no such tokens.
    short = draft_rows.draft_rows(draft.draft_step, lengths, 7, 40, BLOCK_SIZE)
    assert short.sequence_lengths.tolist() == [11, 0, 0]


SAMPLED = SamplingParameters(temperature=1.4, top_k=7, top_p=0.97, min_p=0.01)
TINY = {"vocab_size": 8, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
        "intermediate_size": 16}  # fmt: skip
NUM_ROWS = 20_000


def tiny(change: Any) -> Decoder:
    """The sampled target's weights, with other logits."""
    of = shape(**TINY)
    weights = random_weights(of, 1, device=DEVICE)
    weights["lm_head.weight"] = change(weights["lm_head.weight"])
    return Decoder(of, weights)


def good_and_adversarial() -> dict[str, Decoder]:
    noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    return {"good": tiny(lambda head: head + 0.1 * noise), "adversarial": tiny(lambda head: -1.5 * head)}


@pytest.mark.parametrize("quality", ["good", "adversarial"])
def test_what_is_sampled_is_distributed_as_without_drafts(quality: str) -> None:
    drafter = DraftModelDrafter(good_and_adversarial()[quality], 2)
    target = tiny(lambda head: head)
    counts, accepted = three_tokens(target, drafter, SAMPLED, NUM_ROWS)
    assert (accepted > 0.6) if quality == "good" else (0.02 < accepted < 0.4)
    assert chi_square(*joint_distribution(target, SAMPLED, counts)) > FALSE_ALARM


def test_drafts_drawn_with_the_numbers_that_accept_them_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chi-square test can fail: here with a purpose that is taken."""
    monkeypatch.setattr(draft_rows, "DRAFT", ACCEPT)
    drafter = DraftModelDrafter(good_and_adversarial()["adversarial"], 2)
    target = tiny(lambda head: head)
    counts, _ = three_tokens(target, drafter, SAMPLED, NUM_ROWS)
    assert chi_square(*joint_distribution(target, SAMPLED, counts)) < FAULT


def test_greedy_rows_beside_others_take_the_most_likely_token() -> None:
    draft = world(another(), parameters=SamplingParameters(temperature=1.0))
    temperature = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0], device=DEVICE)
    draft.sampling = replace(draft.sampling, temperature=temperature)
    draft.prefill()
    assert draft.proposal is not None and draft.proposal.probabilities is not None
    assert tuple(draft.proposal.probabilities.shape) == (4, K, 11)
    for row in (0, 2):
        assert draft.drafts(row) == continuation(another().decoder, draft.text(row), K)
    # And the probabilities of the others are the draft model's own.
    text = draft.text(1) + draft.drafts(1)
    decoder = another().decoder
    expected = decoder.logits(dense(decoder, text)[0][-1 - K : -1]).softmax(-1)
    assert difference(draft.proposal.probabilities[1], expected) < TOLERANCE


def test_a_token_that_may_not_come_yet_is_not_drafted() -> None:
    """min_tokens: the target would refuse it."""
    free = world(another(), PROMPTS[:1])
    free.prefill()
    first = free.drafts(0)[0]
    draft = world(another(), PROMPTS[:1])
    stops = torch.full((2, 1), first, device=DEVICE)
    late = torch.full((2,), 100, device=DEVICE)
    draft.sampling = replace(draft.sampling, stop_token_ids=stops, first_stop_position=late)
    draft.prefill()
    assert first not in draft.drafts(0)


def test_greedy_drafts_are_certain() -> None:
    draft = world(another(), parameters=GREEDY)
    draft.prefill()
    assert draft.proposal is not None and draft.proposal.probabilities is None


def test_its_memory_is_counted() -> None:
    drafter = another()
    # One layer, keys and values, one head of 8 numbers of 4 bytes.
    assert drafter.bytes_per_block(16) == 2 * 16 * 8 * 4
    drafter.prepare(9, 16, model(3), None)
    assert drafter.cache.cache is not None and drafter.cache.cache.num_bytes == 10 * drafter.bytes_per_block(
        16
    )


def test_poisoned_blocks_hold_nothing_but_nan() -> None:
    drafter = another()
    drafter.poison([1])  # before it has any
    drafter.prepare(9, BLOCK_SIZE, model(3), None)
    drafter.poison([2, 5])
    drafter.poison(torch.tensor([7], dtype=torch.int32))
    assert drafter.cache.cache is not None
    is_nan = drafter.cache.cache.storage.isnan().transpose(0, 2).flatten(1)
    assert is_nan.all(1).tolist() == is_nan.any(1).tolist() == [block in (2, 5, 7) for block in range(10)]


@pytest.mark.parametrize("number", [0, 65, True, 2.0, None])
def test_an_impossible_number_of_drafts_is_refused(number: Any) -> None:
    with pytest.raises(ModelError, match="num_speculative_tokens must be an integer from 1 to 64"):
        DraftModelDrafter(model(3), number)


def test_a_model_that_cannot_draft_for_another_is_refused() -> None:
    drafter = another()
    drafter.check(shape())
    with pytest.raises(ModelError, match="vocabulary of 11 tokens and the model one of 12: use a draft mod"):
        drafter.check(shape(vocab_size=12))
    with pytest.raises(ModelError, match="knows 128 positions and the model uses 256: lower max_model_len"):
        drafter.check(shape(max_position_embeddings=256))


def test_a_model_on_another_device_is_refused() -> None:
    elsewhere = Decoder(shape(), {name: one.to("meta") for name, one in random_weights(shape(), 3).items()})
    with pytest.raises(ModelError, match=r"the draft model is on meta and the model on .*: load both on one"):
        DraftModelDrafter(elsewhere, K).prepare(4, BLOCK_SIZE, model(3), None)
