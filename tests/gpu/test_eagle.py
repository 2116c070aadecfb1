"""The EAGLE-style head: it drafts what a dense recomputation drafts, and its KV looks one token ahead."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.draft_world import (  # noqa: E402
    BLOCK_SIZE,
    DenseAttention,
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
from tests.gpu.sampling_world import FALSE_ALARM, chi_square  # noqa: E402

from draftproof.gpu.drafters.eagle import EagleDrafter, EagleHead, HeadShape  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.shape import ModelShape  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.impl.scheduler import Scheduler, SchedulerConfig  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2], [1, 6, 1, 8, 0, 3, 3, 9, 8, 10, 7], [5, 5]]
TOLERANCE = 1e-4
K = 3


@cache
def head() -> EagleHead:
    return EagleHead.random(shape(), 6, device=DEVICE)


def world(prompts: Any = PROMPTS, **options: Any) -> DraftWorld:
    return DraftWorld(model(3), EagleDrafter(head(), K), prompts, **options)


def dense_head(draft: DraftWorld, text: list[int], states: Any) -> tuple[Any, Any]:
    """The head over a text of which the hidden states [n, hidden_size] before the last token are given: its
    own hidden states and its KV. It is a decoder over a vocabulary of these n positions."""
    assert isinstance(draft.drafter, EagleDrafter)
    weights = dict(draft.drafter.eagle_head.weights)
    embedded = draft.target.embedding[torch.tensor(text[1:], device=DEVICE)]
    fused = torch.cat([embedded, states], -1) @ weights.pop("fc.weight").T
    count = len(fused)
    of = replace(draft.target.shape, num_layers=1, vocab_size=count, tie_word_embeddings=True)
    attention = DenseAttention()
    places = torch.arange(count, device=DEVICE)
    decoder = Decoder(of, {"model.embed_tokens.weight": fused, **weights})
    return decoder.forward(places, places, attention), attention.stored


def expected_drafts(draft: DraftWorld, row: int, num_drafts: int = K) -> list[int]:
    text = draft.text(row)
    states, known = dense(draft.target, text)[0][:-1], len(text)
    for _ in range(num_drafts):
        last = dense_head(draft, text, states)[0][-1:]
        text.append(int(draft.target.logits(last)[0].argmax()))
        states = torch.cat([states, last])
    return text[known:]


def worst_kv(draft: DraftWorld, rows: Any = None) -> float:
    """How far the head's KV is from a dense recomputation, below C: of a row that sampled this is N - 1."""
    drafter = draft.drafter
    assert isinstance(drafter, EagleDrafter) and drafter.cache.cache is not None
    worst = 0.0
    for row in range(len(draft.num_tokens)) if rows is None else rows:
        count = int(draft.num_computed[row])
        if count:
            text = draft.text(row)
            states = dense(draft.target, text)[0][:-1]
            expected = dense_head(draft, text, states)[1][:, :, :count]
            stored = draft.stored(drafter.cache.cache, row, count)
            worst = max(worst, difference(stored, expected)) if bool(stored.isfinite().all()) else np.inf
    return float(worst)


@pytest.mark.parametrize("num_padding_rows", [0, 3])
def test_it_drafts_what_a_dense_recomputation_drafts(num_padding_rows: int) -> None:
    """After prefill chunks, with all, some or no drafts accepted."""
    draft = world(num_padding_rows=num_padding_rows)
    draft.feed([Fed(0, 4), Fed(1, 5), Fed(2, 3)])
    assert worst_kv(draft) < TOLERANCE
    assert draft.proposal is not None and draft.proposal.num_tokens[:3].tolist() == [0, K, 0]
    assert draft.drafts(1) == expected_drafts(draft, 1)
    draft.feed([Fed(2, 1), Fed(0, 6), Fed(3, 2)])
    assert worst_kv(draft) < TOLERANCE
    draft.feed([Fed(2, 7)])
    for num_right in (K, 0, 1, 2, K, K):
        fed = []
        for row in range(len(PROMPTS)):
            drafts = continuation(draft.target, draft.text(row), K)
            if num_right < K:
                drafts[num_right] = (drafts[num_right] + 1) % 11
            fed.append(Fed(row, 1, drafts))
        draft.feed(fed)
        assert draft.draft_step.num_sampled[:4].tolist() == [num_right + 1] * 4
        assert worst_kv(draft) < TOLERANCE
        for row in range(len(PROMPTS)):
            assert draft.drafts(row) == expected_drafts(draft, row)


def test_what_it_proposes_can_be_verified() -> None:
    """Its own drafts, most of them wrong: the text is the target's."""
    draft = world()
    draft.prefill(2)
    for _ in range(4):
        draft.feed([Fed(row, 1, draft.drafts(row)) for row in range(4)])
        assert worst_kv(draft) < TOLERANCE
    for row, prompt in enumerate(PROMPTS):
        output = draft.text(row)[len(prompt) :]
        assert output == continuation(draft.target, prompt, len(output))


def test_one_draft_needs_no_pass_of_its_own() -> None:
    draft = DraftWorld(model(3), EagleDrafter(head(), 1), PROMPTS)
    draft.prefill()
    for row in range(4):
        assert draft.drafts(row) == expected_drafts(draft, row, 1)


@pytest.mark.parametrize(
    "family",
    [
        {"family": "qwen2", "attention_bias": True},
        {"family": "qwen3", "qk_norm": True, "tie_word_embeddings": True},
    ],
)
def test_a_head_has_a_layer_like_its_models(family: dict[str, Any]) -> None:
    """Biases and norms of queries and keys too."""
    of = shape(**family)
    drafter = EagleDrafter(EagleHead.random(of, 6, device=DEVICE), K)
    draft = DraftWorld(model(3, **family), drafter, PROMPTS)
    draft.prefill(2)
    draft.decode(1)
    assert worst_kv(draft) < TOLERANCE
    for row in range(4):
        assert draft.drafts(row) == expected_drafts(draft, row)


FIRST = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
SECOND = [3, 1, 4, 1, 5, 9, 2, 6, 7, 8, 1, 0]
"""They share two blocks; behind these, other tokens follow."""


def hit(num_blocks_hit: int) -> DraftWorld:
    """The second request begins behind so many blocks of the first, which it finds in the prefix cache."""
    draft = world([FIRST, SECOND])
    draft.feed([Fed(0, len(FIRST))])
    draft.block_ids[0, 1, :num_blocks_hit] = draft.block_ids[0, 0, :num_blocks_hit]
    draft.num_computed[1] = num_blocks_hit * BLOCK_SIZE
    draft.feed([Fed(0, 1), Fed(1, len(SECOND) - num_blocks_hit * BLOCK_SIZE)])
    return draft


def test_behind_a_hit_cut_by_one_block_its_kv_is_right() -> None:
    draft = hit(1)
    assert worst_kv(draft) < TOLERANCE
    assert draft.drafts(1) == expected_drafts(draft, 1)


def test_behind_a_whole_hit_its_kv_is_that_of_another_text() -> None:
    """Without the rule: the target's is right, the head's is not, at the last position of the hit alone."""
    draft = hit(2)
    states = dense(draft.target, draft.text(1))[1]
    count = int(draft.num_computed[1])
    assert difference(draft.stored(draft.cache, 1, count), states[:, :, :count]) < TOLERANCE
    assert worst_kv(draft, [0]) < TOLERANCE
    assert worst_kv(draft, [1]) > 100 * TOLERANCE
    draft.num_computed[1] = 2 * BLOCK_SIZE - 1
    assert worst_kv(draft, [1]) < TOLERANCE


@pytest.mark.parametrize(("lookahead", "is_right"), [("hash", True), ("drop", False)])
def test_what_the_scheduler_hits_is_right_with_digests_that_look_ahead(
    lookahead: str, is_right: bool
) -> None:
    """Three requests begin alike, and the third goes on as the first. Giving a block back is not enough: of
    two blocks of equal tokens the cache may find the second request's, with another token behind it. What
    is drafted suffers, not what is sampled."""
    begin, first, second = [1, 2, 3, 4, 5, 6, 7, 8], [10, 9, 8, 7, 6], [9, 9, 8, 7, 6]
    prompts = [begin + first, begin + second, [*begin, *first, 3]]
    draft = world(prompts)
    config = SchedulerConfig(
        max_model_len=48, num_blocks=draft.cache.num_blocks, block_size=BLOCK_SIZE, vocab_size=11,
        num_speculative_tokens=K, num_lookahead_tokens=K, num_prefill_lookahead_tokens=1,
        lookahead=lookahead,
    )  # fmt: skip
    scheduler = Scheduler(config, compiled=False)
    for row, prompt in enumerate(prompts):
        scheduled = scheduler.add(str(row), prompt, max_tokens=1)
        batch = scheduler.schedule()
        assert batch.num_computed_tokens[0] == (0, 4, 12 if lookahead == "hash" else 8)[row]
        table = scheduler.state.tables.block_ids[0, scheduled]
        draft.block_ids[0, row, : len(table)] = table[: draft.width]
        draft.num_computed[row] = batch.num_computed_tokens[0]
        draft.feed([Fed(row, int(batch.num_scheduled_tokens[0]))])
        scheduler.settle(batch, np.full((1, K + 1), draft.text(row)[-1], np.int32), np.ones(1, np.int32))
    assert (worst_kv(draft, [2]) < TOLERANCE) == is_right


def test_after_a_preemption_it_reads_only_the_new_blocks() -> None:
    """The old ones hold NaN."""
    draft = world(PROMPTS[:2], num_more_blocks=40)
    draft.prefill()
    draft.decode(1)
    draft.preempt(1)
    draft.feed([Fed(0, 1), Fed(1, 4)])
    draft.feed([Fed(0, 1), Fed(1, int(draft.num_tokens[1]) - 4)])
    assert worst_kv(draft) < TOLERANCE
    for row in range(2):
        assert draft.drafts(row) == expected_drafts(draft, row)


def test_rows_that_do_not_sample_and_padding_rows_write_nothing_of_their_own() -> None:
    draft = world(num_padding_rows=2)
    drafter = draft.drafter
    assert isinstance(drafter, EagleDrafter) and drafter.cache.cache is not None
    cache = drafter.cache.cache
    cache.storage.fill_(7.0)
    draft.feed([Fed(0, 4), Fed(1, 5), Fed(2, 3)])
    changed = (cache.storage != 7.0).flatten(4).any(4).any(0).any(0)
    changed[0] = False  # the null block
    allowed = torch.zeros_like(changed)
    # Row 1 sampled: N is 6, so that its passes write positions 5 and 6.
    for row, count in ((0, 4), (1, 5 + K - 1), (2, 3)):
        for position in range(count):
            allowed[draft.block_ids[0, row, position // BLOCK_SIZE], position % BLOCK_SIZE] = True
    assert torch.equal(changed, allowed)


def test_at_the_end_of_its_block_table_a_row_has_fewer_drafts() -> None:
    draft = world([[1, 2, 3, 4, 5, 6, 7], [1, 2]], max_model_len=8, spare_blocks=False)
    draft.prefill()
    assert draft.proposal is not None
    # The first has 8 tokens and 8 slots: only position 7 is left for a pass.
    assert draft.proposal.num_tokens.tolist() == [2, K]
    assert draft.drafts(0) == expected_drafts(draft, 0, 2)
    assert draft.proposal.token_ids[0, 2:].tolist() == [-1]


def test_what_is_sampled_is_distributed_as_without_drafts() -> None:
    target = model(
        1, vocab_size=8, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=16,
    )  # fmt: skip
    drafter = EagleDrafter(EagleHead.random(target.shape, 2, device=DEVICE), 2)
    parameters = SamplingParameters(temperature=1.4, top_k=7)
    counts, accepted = three_tokens(target, drafter, parameters, 20_000)
    assert 0.1 < accepted < 0.9
    assert chi_square(*joint_distribution(target, parameters, counts)) > FALSE_ALARM


def test_its_memory_is_that_of_one_layer() -> None:
    drafter = EagleDrafter(head(), K)
    assert drafter.bytes_per_block(16) == 2 * 16 * 2 * 8 * 4
    assert drafter.num_prefill_lookahead_tokens == 1
    drafter.prepare(9, 16, model(3), None)
    assert drafter.cache.cache is not None
    assert drafter.cache.cache.num_bytes == 10 * drafter.bytes_per_block(16)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_uses_the_embedding_and_the_logits_of_the_model(tied: bool) -> None:
    """They are not stored with it, and not copied."""
    of = shape(tie_word_embeddings=tied)
    one = EagleHead.random(of, 1)
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & one.weights.keys()
    assert HeadShape.of(of).num_parameters == sum(tensor.numel() for tensor in one.weights.values())
    target = model(3, tie_word_embeddings=tied)
    drafter = EagleDrafter(EagleHead.random(of, 1, device=DEVICE), K)
    drafter.prepare(4, BLOCK_SIZE, target, None)
    assert drafter.decoder.embedding is target.embedding
    assert drafter.decoder.head is target.head


def stored_head(folder: Path, one: EagleHead, **changes: Any) -> Path:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    of: ModelShape = one.shape
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": of.vocab_size, "hidden_size": of.hidden_size,
        "num_hidden_layers": 1, "num_attention_heads": of.num_heads, "num_key_value_heads": of.num_kv_heads,
        "head_dim": of.head_dim, "intermediate_size": of.intermediate_size, "rms_norm_eps": of.rms_norm_eps,
        "max_position_embeddings": of.max_position_embeddings,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
    tensors = {name: tensor.cpu().contiguous() for name, tensor in one.weights.items()}
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_head_is_read_from_a_folder(tmp_path: Path) -> None:
    one = head()
    found = EagleHead.load(stored_head(tmp_path, one), torch.float32, DEVICE)
    assert found.shape == one.shape
    assert found.weights.keys() == one.weights.keys()
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in one.weights.items())


def test_an_embedding_beside_it_is_left_out(tmp_path: Path) -> None:
    one = EagleHead.random(shape(), 1)
    one.weights["model.embed_tokens.weight"] = torch.zeros(11, 32)
    found = EagleHead.load(stored_head(tmp_path, one), torch.float32)
    assert found.weights.keys() == head().weights.keys()


def test_a_folder_that_is_no_head_is_refused(tmp_path: Path) -> None:
    stored_head(tmp_path, head(), num_hidden_layers=2)
    with pytest.raises(ModelError, match=r"a head has one layer, but config.json asks for 2 num_hidden"):
        EagleHead.load(tmp_path, torch.float32)
    stored_head(tmp_path, head(), hidden_size=16)
    with pytest.raises(ModelError, match=r"fc.weight has shape \(32, 64\), but config.json asks for"):
        EagleHead.load(tmp_path, torch.float32)
    one = EagleHead.random(shape(), 1)
    del one.weights["fc.weight"]
    with pytest.raises(ModelError, match=r"lacks the tensor fc\.weight"):
        EagleHead.load(stored_head(tmp_path, one), torch.float32)


def test_weights_that_are_no_head_are_refused() -> None:
    of, weights = head().shape, head().weights
    for change, message in (
        (
            {"fc.weight": weights["fc.weight"][:, :32]},
            r"fc.weight of the head has shape \(32, 32\), but must",
        ),
        ({"other": weights["fc.weight"]}, "the head has an unknown tensor other"),
        ({"fc.weight": weights["fc.weight"].double()}, "the head must be float32, bfloat16 or float16"),
        (
            {"model.norm.weight": weights["model.norm.weight"].half()},
            "norm.weight of the head has another dty",
        ),
    ):
        with pytest.raises(ModelError, match=message):
            EagleHead(of, weights | change)
    with pytest.raises(ModelError, match=r"the head lacks fc\.weight"):
        EagleHead(of, {name: tensor for name, tensor in weights.items() if name != "fc.weight"})


@pytest.mark.parametrize("number", [0, 65, True, 2.0, None])
def test_an_impossible_number_of_drafts_is_refused(number: Any) -> None:
    with pytest.raises(ModelError, match="num_speculative_tokens must be an integer from 1 to 64"):
        EagleDrafter(head(), number)


def test_a_head_of_another_model_is_refused() -> None:
    drafter = EagleDrafter(head(), K)
    drafter.check(shape())
    with pytest.raises(
        ModelError, match="reads hidden states of 32 numbers and the model has 64: use a head"
    ):
        drafter.check(shape(hidden_size=64))
    with pytest.raises(ModelError, match="the head has a vocabulary of 11 tokens and the model one of 12"):
        drafter.check(shape(vocab_size=12))
    with pytest.raises(ModelError, match="the head knows 128 positions and the model uses 256"):
        drafter.check(shape(max_position_embeddings=256))
    half = EagleDrafter(EagleHead.random(shape(), 1, torch.bfloat16, DEVICE), K)
    with pytest.raises(
        ModelError, match=r"the head is torch.bfloat16 and the model torch.float32: load both"
    ):
        half.prepare(4, BLOCK_SIZE, model(3), None)
