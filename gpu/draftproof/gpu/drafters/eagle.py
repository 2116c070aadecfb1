"""What follows, judged by the model's own hidden states? One layer more that looks one token ahead.

An EAGLE-style head (Li, Wei, Zhang, Zhang 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty"; the MTP modules of DeepSeek-V3 are alike): from the embedding of the token at p + 1 and the
target's hidden state at p one decoder layer makes a hidden state for p + 1, which the target's own lm_head
turns into logits of the token at p + 2. Behind the text it goes on with its own hidden states.

Its KV at p so depends on the token at p + 1 (`num_prefill_lookahead_tokens`): at the end of a hit in the
prefix cache that may be another one than in the text that wrote it. The scheduler's rule `drop` gives the
last block of a hit back; where the cache holds two blocks of equal tokens, before different ones, it may
still find the wrong one. With `hash` it cannot. Either way only what is drafted suffers, never the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from draftproof.gpu.drafters.draft_rows import (
    DraftCache,
    DraftList,
    check_device,
    check_fit,
    check_num_speculative_tokens,
)
from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.errors import ModelError, refuse_unless
from draftproof.gpu.models.decoder import DTYPES, Attend, Decoder
from draftproof.gpu.models.shape import ModelShape
from draftproof.gpu.weights.random_weights import random_weights
from draftproof.gpu.weights.safetensors_folder import load_tensors, read_shape

FUSION = "fc.weight"
OF_THE_TARGET: tuple[str, ...] = ("model.embed_tokens.weight", "lm_head.weight")


def _sizes(shape: ModelShape, **changes: Any) -> dict[str, Any]:
    return {field.name: getattr(shape, field.name) for field in fields(ModelShape)} | changes


@dataclass(frozen=True)
class HeadShape(ModelShape):
    """The sizes of a head: a decoder of one layer, with a projection before it in place of the embedding."""

    @classmethod
    def of(cls, shape: ModelShape) -> HeadShape:
        """With a layer like the model's own."""
        return cls(**_sizes(shape, num_layers=1))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the head by its name: the layer's and the last norm's are a decoder's."""
        own = {name: size for name, size in super().tensor_shapes().items() if name not in OF_THE_TARGET}
        return {FUSION: (self.hidden_size, 2 * self.hidden_size), **own}


class EagleHead:
    """A head's weights. Raises ModelError for a missing, unknown or misshapen tensor, or mixed dtypes."""

    def __init__(self, shape: HeadShape, weights: Mapping[str, Any]) -> None:
        self.shape, self.weights = shape, dict(weights)
        expected = shape.tensor_shapes()
        for name in sorted(expected.keys() ^ weights.keys()):
            raise ModelError(f"the head {'lacks' if name in expected else 'has an unknown tensor'} {name}")
        like = weights[FUSION]
        refuse_unless(
            like.dtype in DTYPES, f"the head must be float32, bfloat16 or float16, not {like.dtype}"
        )
        for name, size in expected.items():
            tensor = weights[name]
            found = tuple(tensor.shape)
            refuse_unless(found == size, f"{name} of the head has shape {found}, but must have {size}")
            alike = tensor.dtype == like.dtype and tensor.device == like.device
            refuse_unless(alike, f"{name} of the head has another dtype or device than its {FUSION}")

    @classmethod
    def random(
        cls, shape: ModelShape, seed: int, dtype: Any = torch.float32, device: Any = "cpu"
    ) -> EagleHead:
        """For a model of that shape, the same for the same seed and kind of device."""
        head_shape = HeadShape.of(shape)
        return cls(head_shape, random_weights(head_shape, seed, dtype, device))

    @classmethod
    def load(cls, folder: str | Path, dtype: Any, device: Any = "cpu") -> EagleHead:
        """From `config.json`, with num_hidden_layers 1, and safetensors named as `HeadShape` names them.

        An embedding or lm_head that lies beside them is left out. Raises ModelError as the loader of models.
        """
        folder = Path(folder)
        shape = read_shape(folder)
        refuse_unless(
            shape.num_layers == 1,
            f"{folder}: a head has one layer, but config.json asks for {shape.num_layers} num_hidden_layers",
        )
        head_shape = HeadShape.of(shape)
        shared = dict.fromkeys(OF_THE_TARGET, (shape.vocab_size, shape.hidden_size))
        return cls(head_shape, load_tensors(folder, head_shape.tensor_shapes(), shared, dtype, device))


class _HeadDecoder(Decoder):
    """The head between the target's embedding and the target's lm_head."""

    def __init__(self, head: EagleHead, target: Decoder) -> None:
        own = {name: tensor for name, tensor in head.weights.items() if name != FUSION}
        super().__init__(
            ModelShape(**_sizes(head.shape, tie_word_embeddings=True)),
            {"model.embed_tokens.weight": target.embedding, **own},
        )
        self.fusion, self.target, self.head = head.weights[FUSION], target, target.head

    def forward_fused(self, token_ids: Any, hidden: Any, positions: Any, attend: Attend) -> Any:
        """[T, hidden_size] after the head's norm, from the tokens at p + 1 and hidden states at p."""
        embedded = functional.embedding(token_ids, self.embedding)
        fused = functional.linear(torch.cat([embedded, hidden], -1), self.fusion)
        return self.forward_hidden(fused, positions, attend)

    def logits(self, hidden: Any) -> Any:
        """As the target's: the lm_head is its own."""
        return self.target.logits(hidden)


class EagleDrafter(Drafter):
    """K drafts of each request from a head on the model.

    The first comes with the step's own positions; the passes for the others write positions N - 1 to
    N + K - 3 behind a text of N tokens. Raises ModelError for a K that cannot be.
    """

    num_prefill_lookahead_tokens = 1
    is_capturable = True

    def __init__(self, head: EagleHead, num_speculative_tokens: int) -> None:
        check_num_speculative_tokens(num_speculative_tokens)
        self.eagle_head = head
        self.num_speculative_tokens = num_speculative_tokens
        self.num_lookahead_tokens = num_speculative_tokens
        like = head.weights[FUSION]
        self.cache = DraftCache(head.shape, like.dtype, like.device)

    def check(self, shape: ModelShape) -> None:
        """Raises ModelError unless the head is one for models of that vocabulary, width and length."""
        own = self.eagle_head.shape.hidden_size
        refuse_unless(
            own == shape.hidden_size,
            f"the head reads hidden states of {own} numbers and the model has {shape.hidden_size}: use a "
            "head that was made for this model",
        )
        check_fit("head", self.eagle_head.shape, shape)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of the head's KV in one block of so many tokens."""
        return self.cache.bytes_per_block(block_size)

    def prepare(self, num_blocks: int, block_size: int, decoder: Any, attention_backend: Any) -> None:
        """Take memory for its KV, and the model's embedding and lm_head as its own. Raises ModelError."""
        check_device("head", self.cache.device, decoder.device)
        refuse_unless(
            self.cache.dtype == decoder.dtype,
            f"the head is {self.cache.dtype} and the model {decoder.dtype}: load both in one dtype",
        )
        self.decoder = _HeadDecoder(self.eagle_head, decoder)
        self.cache.take_memory(num_blocks, block_size, attention_backend)

    def propose(self, step: DraftStep) -> Proposal:
        """K drafts of the rows that sampled; of the others only the KV is written."""
        hidden = self._last_kept(step, self._follow(step))
        drafts = DraftList(step)
        token_ids = drafts.add(self.decoder.logits(hidden), step.samples)
        for place in range(1, self.num_speculative_tokens):
            # The draft before this one stands at N + place - 1; the hidden state is the one before it.
            rows = self.cache.rows_behind(step, place - 1)
            attend = self.cache.attend(rows)
            hidden = self.decoder.forward_fused(token_ids, hidden, rows.positions, attend)
            token_ids = drafts.add(self.decoder.logits(hidden), rows.sequence_lengths > 0)
        return drafts.proposal()

    def _follow(self, step: DraftStep) -> Any:
        """Hidden states [T, hidden_size] of the head, wherever the target has some.

        The token behind a position is the text's own: behind the last kept one the newly sampled token,
        behind the end of a prefill chunk the prompt's next. Behind rejected drafts there is none; what is
        written there is overwritten before anybody reads it.
        """
        ends = step.rows.query_starts[1:].to(torch.int64)
        tokens = torch.arange(step.rows.num_tokens, device=ends.device)
        token_rows = torch.searchsorted(ends, tokens, right=True)
        following = step.rows.positions + 1
        is_known = following < step.num_tokens[token_rows]
        columns = torch.where(is_known, following, 0)
        token_ids = torch.where(is_known, step.token_ids[step.row_ids[token_rows], columns], 0)
        attend = self.cache.attend(step.rows)
        return self.decoder.forward_fused(token_ids, step.hidden, step.rows.positions, attend)

    def _last_kept(self, step: DraftStep, hidden: Any) -> Any:
        """[R, hidden_size]: that of each row's position N - 2, whose next token is the newest."""
        starts = step.rows.query_starts.to(torch.int64)
        first_positions = step.rows.sequence_lengths - (starts[1:] - starts[:-1])
        places = starts[:-1] + step.num_tokens - 2 - first_positions
        # A row that did not sample has none: any of its own.
        return hidden[torch.minimum(torch.maximum(places, starts[:-1]), starts[1:] - 1)]

    def poison(self, block_ids: Any) -> None:
        """Debug mode: nobody may read these blocks any more."""
        self.cache.poison(block_ids)
