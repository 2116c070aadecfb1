"""Where does a drafter's model go on, and what does it propose? One place behind the last after the other.

A drafter with a model of its own runs it over single tokens behind what the target was fed. Here are the rows
of such a forward pass, made on the device from the step's own; the model's KV cache; and how drafts are
chosen from its logits. Nothing here reads a value of the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from draftproof.gpu.attention.kv_cache import NULL_BLOCK, NULL_SLOT, KVCache, bytes_per_block
from draftproof.gpu.attention.step_rows import RowSpan, StepRows
from draftproof.gpu.drafters.step import MAX_SPECULATIVE_TOKENS, DraftStep, Proposal
from draftproof.gpu.errors import ModelError, check_integer, refuse_unless
from draftproof.gpu.models.shape import ModelShape
from draftproof.gpu.sampling.distribution import constrained_logits, sample, target_probabilities
from draftproof.gpu.sampling.randomness import DRAFT, uniform


def draft_rows(
    step: DraftStep, sequence_lengths: Any, query_length: int, max_sequence_length: int, block_size: int
) -> StepRows:
    """The step's rows with their last `query_length` tokens of `sequence_lengths`, int64[R].

    No length is above `max_sequence_length`. A row that did not sample, that pads the batch, or whose block
    table does not reach its end (the text has come to the model's length) gets length 0 and the null slot.
    """
    tables = step.rows.block_tables
    num_rows, room = tables.shape[0], tables.shape[1] * block_size
    offsets = torch.arange(query_length, device=tables.device) - query_length
    positions = sequence_lengths[:, None] + offsets
    inside = (positions >= 0) & (positions < room)
    positions = torch.where(inside, positions, 0)
    blocks = tables.gather(1, positions // block_size).to(torch.int64)
    is_live = step.samples & (inside & (blocks != NULL_BLOCK)).all(1)
    slots = torch.where(is_live[:, None], blocks * block_size + positions % block_size, NULL_SLOT)
    positions = torch.where(is_live[:, None], positions, 0)
    num_tokens = num_rows * query_length
    longest = max(1, min(max_sequence_length, room))
    return StepRows(
        block_tables=tables,
        query_starts=torch.arange(0, num_tokens + 1, query_length, dtype=torch.int32, device=tables.device),
        sequence_lengths=torch.where(is_live, sequence_lengths, 0).to(torch.int32),
        slot_mapping=slots.flatten(),
        positions=positions.flatten(),
        spans=(RowSpan(0, num_rows, 0, num_tokens, query_length, longest),),
    )


class DraftCache:
    """A drafter's own keys and values, in blocks with the ids of the target's."""

    def __init__(self, shape: ModelShape, dtype: Any, device: Any) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.cache: KVCache | None = None

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of keys and values of so many tokens in all layers."""
        shape = self.shape
        return bytes_per_block(shape.num_layers, block_size, shape.num_kv_heads, shape.head_dim, self.dtype)

    def take_memory(self, num_blocks: int, block_size: int, attention_backend: Any) -> None:
        """Once; the backend is made from the cache, a step's rows, and query heads per head of keys."""
        shape = self.shape
        self.cache = KVCache(
            shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim, self.dtype,
            self.device,
        )  # fmt: skip
        self.block_size, self.attention_backend = block_size, attention_backend

    def attend(self, rows: StepRows) -> Any:
        """What `Decoder.forward` calls in each layer."""
        return self.attention_backend(self.cache, rows, self.shape.num_heads // self.shape.num_kv_heads)

    def rows_behind(self, step: DraftStep, num_drafts: int) -> StepRows:
        """One token a row: the last of the text and of so many drafts behind it."""
        lengths = step.num_tokens + num_drafts
        return draft_rows(step, lengths, 1, step.max_num_tokens + num_drafts, self.block_size)

    def poison(self, block_ids: Any) -> None:
        """Fill blocks with NaN: a tensor of integers, which are not checked, or integers on the host."""
        if self.cache is None:
            return
        if isinstance(block_ids, torch.Tensor):
            chosen = block_ids.to(self.device, torch.int64)
            self.cache.storage.index_fill_(2, chosen, float("nan"))
        else:
            self.cache.poison(block_ids)


class DraftList:
    """A step's drafts as they come, place by place."""

    def __init__(self, step: DraftStep) -> None:
        self.step = step
        # Without `seen` there is no repetition penalty. Drafts may be of any distribution: the target's own
        # penalty is applied when they are verified.
        self.sampling = replace(step.sampling, any_penalty=False)
        self.token_ids: list[Any] = []
        self.probabilities: list[Any] = []
        self.is_live: list[Any] = []

    def add(self, logits: Any, is_live: Any) -> Any:
        """The next draft of each row, int64[R], from float32[R, V]; any token where bool[R] says: none.

        Greedy rows get the most likely token, others a sample of what the request's temperature and filters
        leave of the drafter's own distribution. The random number is keyed by the position that the draft
        would stand at. That of a draft behind a rejected one is used again when its place is drafted anew:
        whether it was looked at never depended on it, so it is as good as a fresh one.
        """
        positions = self.step.num_tokens + len(self.token_ids)
        constrained = constrained_logits(logits[:, None], self.sampling, positions[:, None])
        drafts = constrained[:, 0].argmax(-1)
        if not self.sampling.all_greedy:
            probabilities = target_probabilities(constrained, self.sampling)[:, 0]
            sampled = sample(probabilities, uniform(self.sampling.seeds, positions, DRAFT))
            drafts = torch.where(self.sampling.temperature == 0, drafts, sampled)
            self.probabilities.append(probabilities)
        self.token_ids.append(torch.where(is_live, drafts, -1))
        self.is_live.append(is_live)
        return drafts

    def proposal(self) -> Proposal:
        """All of them. A row whose block table has come to its end stays there: its first ones count."""
        num_tokens = torch.stack(self.is_live, 1).sum(1)
        probabilities = torch.stack(self.probabilities, 1) if self.probabilities else None
        return Proposal(torch.stack(self.token_ids, 1), num_tokens, probabilities)


def check_num_speculative_tokens(num_speculative_tokens: Any) -> None:
    """Raises ModelError unless it is from 1 to MAX_SPECULATIVE_TOKENS."""
    check_integer("num_speculative_tokens", num_speculative_tokens, MAX_SPECULATIVE_TOKENS)


def check_fit(name: str, shape: ModelShape, target: ModelShape) -> None:
    """Raises ModelError if a drafter's model, called `name`, cannot draft for the target.

    The target's `max_position_embeddings` is taken for the positions that there will be.
    """
    refuse_unless(
        shape.vocab_size == target.vocab_size,
        f"the {name} has a vocabulary of {shape.vocab_size} tokens and the model one of "
        f"{target.vocab_size}: use a {name} made for this model's tokenizer",
    )
    refuse_unless(
        shape.max_position_embeddings >= target.max_position_embeddings,
        f"the {name} knows {shape.max_position_embeddings} positions and the model uses "
        f"{target.max_position_embeddings}: lower max_model_len, or use a {name} for longer texts",
    )


def check_device(name: str, device: Any, target: Any) -> None:
    """Raises ModelError if a drafter's model does not lie where the target does."""
    if device != target:
        raise ModelError(f"the {name} is on {device} and the model on {target}: load both on one device")
