"""What does a hybrid model come to without any cache? Everything computed anew, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE, dense  # noqa: E402

from draftproof.gpu.models.hybrid import HybridDecoder, HybridShape  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

VOCAB_SIZE, NUM_DRAFTS, MAX_LENGTH = 40, 3, 64
SHAPE = HybridShape(
    family="llama", vocab_size=VOCAB_SIZE, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2,
    head_dim=8, intermediate_size=48, rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None,
    max_position_embeddings=MAX_LENGTH, tie_word_embeddings=False, attention_bias=False, qk_norm=False,
    eos_token_ids=(), bos_token_id=None, recurrent_layers=(0, 2), recurrent_size=24,
)  # fmt: skip


def dense_recurrence(layer: int, decay: Any, update: Any) -> Any:
    """The states of one sequence `[length, size]`, token by token, in float64."""
    state, states = torch.zeros_like(update[0], dtype=torch.float64), []
    for one_decay, one_update in zip(decay.double(), update.double(), strict=True):
        state = one_decay * state + one_update
        states.append(state)
    return torch.stack(states).float()


class Model:
    """The decoder, and what it computes without any cache."""

    def __init__(self, shape: HybridShape = SHAPE) -> None:
        self.decoder = HybridDecoder(shape, random_weights(shape, 5, device=DEVICE))
        self.group_size = shape.num_heads // shape.num_kv_heads
        self._truths: dict[tuple[int, ...], Truth] = {}

    def dense(self, token_ids: Sequence[int]) -> Any:
        """Hidden states of a whole sequence."""

        def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
            return dense(query, key, value, self.group_size).to(query.dtype)

        tokens = torch.tensor(token_ids, device=DEVICE)
        places = torch.arange(len(token_ids), device=DEVICE)
        return self.decoder.forward(tokens, places, attend, dense_recurrence)

    def text(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The prompt, and what follows it greedily."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.decoder.logits(self.dense(tokens)[-1:]).argmax()))
        return tokens

    def logprobs(self, hidden: Any) -> Any:
        """float32[R, vocab_size]"""
        return self.decoder.logits(hidden).log_softmax(-1)

    def truth(self, prompt: Sequence[int], max_tokens: int) -> Truth:
        """What a request must come to; worked out once."""
        key = (*prompt, -max_tokens)
        if key not in self._truths:
            # A stop may cut off drafts that were right.
            text = self.text(prompt, max_tokens + NUM_DRAFTS)
            hidden = self.dense(text)
            self._truths[key] = Truth(len(prompt), max_tokens, text, hidden, self.logprobs(hidden))
        return self._truths[key]


class Truth(NamedTuple):
    """Of one request, or a session's turn: its text and K tokens more, and what all of them come to."""

    num_prompt_tokens: int
    max_tokens: int
    text: list[int]
    hidden: Any
    logprobs: Any

    @property
    def output(self) -> list[int]:
        return self.text[self.num_prompt_tokens : self.num_prompt_tokens + self.max_tokens]
