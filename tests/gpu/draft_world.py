"""Requests that a drafter drafts for, step by step, over a tiny random model: no scheduler, no runner.

Everything a step needs is written down by hand: which tokens are fed, where they lie, what the target keeps
of the drafts. Rows are vectorised, so that one step may have tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402

from draftproof.gpu.attention import GatherAttention, KVCache, rows_of  # noqa: E402
from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.shape import ModelShape  # noqa: E402
from draftproof.gpu.sampling import Drafts, SamplingParameters, build_rows, verify  # noqa: E402
from draftproof.gpu.sampling.distribution import target_probabilities  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

BLOCK_SIZE = 4
BEYOND = -(2**40)
"""What stands in the device's texts behind a row's N: no token, and no index of anything."""
HOST_READS = ["item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "numpy", "cpu"]
GREEDY = SamplingParameters(temperature=0)
PROMPT = [3, 1, 4]
"""Of the requests that are sampled from many times."""


def shape(**changes: Any) -> ModelShape:
    sizes: dict[str, Any] = {
        "family": "llama", "vocab_size": 11, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "attention_bias": False, "qk_norm": False, "eos_token_ids": (),
        "bos_token_id": None,
    }  # fmt: skip
    return ModelShape(**(sizes | changes))


def model(seed: int, **changes: Any) -> Decoder:
    of = shape(**changes)
    return Decoder(of, random_weights(of, seed, device=DEVICE))


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Whoever reads a value of the device on the host raises."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a value of the device was read on the host")

    with pytest.MonkeyPatch.context() as patch:
        for name in HOST_READS:
            patch.setattr(torch.Tensor, name, refuse)
        yield


class Fed(NamedTuple):
    """What a row computes in a step: tokens of its text from C on, then drafts."""

    row: int
    num_text_tokens: int
    drafts: Sequence[int] = ()


class DraftWorld:
    """Requests with equally wide block tables, shuffled through the caches; a drafter after every step."""

    def __init__(
        self,
        target: Decoder,
        drafter: Drafter,
        prompts: Any,
        *,
        max_model_len: int = 48,
        num_more_blocks: int = 0,
        parameters: SamplingParameters = GREEDY,
        num_padding_rows: int = 0,
        spare_blocks: bool = True,
        backend: Any = GatherAttention,
    ) -> None:
        """`prompts` are lists of tokens, or one int64[rows, length]."""
        num_rows, num_drafts = len(prompts), drafter.num_speculative_tokens
        self.target, self.drafter, self.num_drafts = target, drafter, num_drafts
        self.backend = backend
        self.max_model_len, self.num_padding_rows = max_model_len, num_padding_rows
        self.num_tokens = np.array([len(prompt) for prompt in prompts])
        self.num_computed = np.zeros(num_rows, np.int64)
        self.texts = torch.full((num_rows + 1, max_model_len + 1 + num_drafts), BEYOND, device=DEVICE)
        if isinstance(prompts, torch.Tensor):
            self.texts[:num_rows, : prompts.shape[1]] = prompts
        else:
            for row, prompt in enumerate(prompts):
                self.texts[row, : len(prompt)] = torch.tensor(prompt, device=DEVICE)
        self.sampling = build_rows(
            [parameters], [0], [0], vocab_size=target.shape.vocab_size, device=DEVICE
        ).select(torch.zeros(num_rows + 1, dtype=torch.int64, device=DEVICE))
        self.sampling = self.sampling.with_seeds(torch.arange(num_rows + 1, device=DEVICE))
        reach = max_model_len + drafter.num_lookahead_tokens if spare_blocks else max_model_len
        self.width = -(-reach // BLOCK_SIZE)
        num_blocks = num_rows * self.width + num_more_blocks
        order = np.random.default_rng(0).permutation(np.arange(1, num_blocks + 1)).astype(np.int32)
        self.block_ids = order[: num_rows * self.width].reshape(1, num_rows, self.width)
        self.free_blocks = order[num_rows * self.width :].tolist()
        of = target.shape
        self.cache = KVCache(
            of.num_layers, num_blocks, BLOCK_SIZE, of.num_kv_heads, of.head_dim, target.dtype, DEVICE
        )
        drafter.check(of)
        drafter.prepare(num_blocks, BLOCK_SIZE, target, backend)
        self.proposal: Proposal | None = None

    def text(self, row: int) -> list[int]:
        tokens: list[int] = self.texts[row, : self.num_tokens[row]].tolist()
        return tokens

    def drafts(self, row: int) -> list[int]:
        """What the last step proposed for its row at this place: in a step of all rows, for this row."""
        assert self.proposal is not None
        tokens: list[int] = self.proposal.token_ids[row, : int(self.proposal.num_tokens[row])].tolist()
        return tokens

    def feed(self, fed: Sequence[Fed]) -> None:
        """A step of these rows, with drafts that are certain."""
        rows = np.array([one.row for one in fed])
        num_text = np.array([one.num_text_tokens for one in fed])
        drafts = torch.full((len(fed), self.num_drafts), -1, device=DEVICE)
        for place, one in enumerate(fed):
            drafts[place, : len(one.drafts)] = torch.tensor(one.drafts, dtype=torch.int64, device=DEVICE)
        counts = np.array([len(one.drafts) for one in fed])
        self.step(rows, num_text, Drafts(drafts, torch.from_numpy(counts).to(DEVICE)), counts)

    def step(self, rows: Any, num_text: Any, drafts: Drafts, num_drafts: Any) -> None:
        """Feed int[R] tokens of the rows' texts and int[R] drafts, verify, and let the drafter propose."""
        count, padding = len(rows), self.num_padding_rows
        computed, known = self.num_computed[rows], self.num_tokens[rows]
        samples = computed + num_text == known
        query_lengths = num_text + num_drafts
        step_rows = rows_of(
            self._batch(rows, query_lengths), self.block_ids, BLOCK_SIZE, DEVICE,
            num_padding_rows=padding, padding_query_length=self.num_drafts + 1, table_width=self.width,
        )  # fmt: skip
        lines = np.concatenate([rows, np.full(padding, len(self.num_tokens))])
        row_ids = torch.from_numpy(lines).to(DEVICE)
        fed = self._fed(row_ids, step_rows, drafts, np.concatenate([known, np.zeros(padding, np.int64)]))
        group_size = self.target.shape.num_heads // self.target.shape.num_kv_heads
        hidden = self.target.forward(
            fed, step_rows.positions, self.backend(self.cache, step_rows, group_size)
        )
        starts = step_rows.query_starts[:count].long() + torch.from_numpy(num_text - 1).to(DEVICE)
        places = starts[:, None] + torch.arange(self.num_drafts + 1, device=DEVICE)
        logits = self.target.logits(hidden[places.clamp_max(len(hidden) - 1)].flatten(0, 1))
        sampling = self.sampling.select(row_ids)
        outcome = verify(
            logits.unflatten(0, (count, -1)), drafts, sampling.select(torch.arange(count, device=DEVICE)),
            torch.from_numpy(known).to(DEVICE), samples=torch.from_numpy(samples).to(DEVICE),
        )  # fmt: skip
        num_sampled = outcome.num_sampled_tokens.cpu().numpy()
        columns = torch.from_numpy(known).to(DEVICE)[:, None] + torch.arange(
            self.num_drafts + 1, device=DEVICE
        )
        sampled = outcome.sampled_token_ids.long()
        # A step at the end of the model's length samples beyond it: what it samples is kept all the same.
        kept = torch.where(sampled >= 0, sampled, self.texts[row_ids[:count, None], columns])
        self.texts.index_put_((row_ids[:count, None], columns), kept)
        self.num_tokens[rows] += num_sampled
        self.num_computed[rows] = np.where(samples, self.num_tokens[rows] - 1, computed + num_text)

        def padded(values: Any, filler: Any) -> Any:
            return torch.from_numpy(np.concatenate([values, np.full(padding, filler)])).to(DEVICE)

        self.draft_step = DraftStep(
            row_ids=row_ids,
            num_tokens=padded(self.num_tokens[rows], 0),
            token_ids=self.texts,
            samples=padded(samples, False),
            num_sampled=padded(num_sampled.astype(np.int64), 0),
            rows=step_rows,
            fed_token_ids=fed,
            hidden=hidden,
            sampling=sampling,
            max_num_tokens=int((known + num_drafts + 1).max()),
        )
        # Triton's interpreter, on a CPU, is itself a reader.
        with no_host_reads() if self.backend is GatherAttention or DEVICE != "cpu" else nullcontext():
            self.proposal = self.drafter.propose(self.draft_step)

    def _batch(self, rows: Any, query_lengths: Any) -> Any:
        return SimpleNamespace(
            num_requests=len(rows),
            rows=rows,
            num_scheduled_tokens=query_lengths.astype(np.int32),
            num_computed_tokens=self.num_computed[rows].astype(np.int32),
            num_blocks=np.full((1, len(rows)), self.width, np.int32),
        )

    def _fed(self, row_ids: Any, rows: Any, drafts: Drafts, known: Any) -> Any:
        """int64[T]: text up to N, drafts behind it, a null draft and padding as 0."""
        starts = rows.query_starts.long()
        token_rows = torch.repeat_interleave(
            torch.arange(len(row_ids), device=DEVICE), starts[1:] - starts[:-1]
        )
        behind = rows.positions - torch.from_numpy(known).to(DEVICE)[token_rows]
        texts = self.texts[row_ids[token_rows], rows.positions]
        places = token_rows.clamp_max(len(drafts.token_ids) - 1), behind.clamp(0, self.num_drafts - 1)
        fed = torch.where(behind < 0, texts, drafts.token_ids.long()[places])
        return torch.where(token_rows < len(drafts.token_ids), fed, 0).clamp_min(0)

    def prefill(self, *chunks: int) -> None:
        """The prompts of all rows: chunks of these lengths, then the rest, all rows in each step."""
        for chunk in chunks:
            self.feed([Fed(row, chunk) for row in range(len(self.num_tokens))])
        left = self.num_tokens - self.num_computed
        self.feed([Fed(row, int(count)) for row, count in enumerate(left)])

    def decode(self, num_accepted: int) -> None:
        """Verify what was proposed for all rows, of which the draft behind so many is made a wrong one."""
        fed = []
        for row in range(len(self.num_tokens)):
            drafts = self.drafts(row)
            if num_accepted < len(drafts):
                drafts[num_accepted] = (drafts[num_accepted] + 1) % self.target.shape.vocab_size
            fed.append(Fed(row, 1, drafts))
        self.feed(fed)

    def preempt(self, row: int) -> None:
        """The row starts again in other blocks; the old ones are poisoned."""
        old = self.block_ids[0, row].copy()
        self.block_ids[0, row] = [self.free_blocks.pop() for _ in range(self.width)]
        self.num_computed[row] = 0
        self.cache.poison(old.tolist())
        self.drafter.poison(torch.from_numpy(old).to(DEVICE))

    def stored(self, cache: KVCache, row: int, num_positions: int) -> Any:
        """Keys and values of a row's first positions: [2, layers, positions, heads, head_dim]."""
        places = torch.arange(num_positions, device=DEVICE)
        blocks = torch.from_numpy(self.block_ids[0, row]).to(DEVICE)[places // BLOCK_SIZE].long()
        return cache.storage[:, :, blocks, places % BLOCK_SIZE]


class DenseAttention:
    """Causal attention of one whole text without a cache, which notes keys and values."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []

    def __call__(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        self.keys.append(key)
        self.values.append(value)
        group_size = query.shape[1] // key.shape[1]
        keys, values = [part.repeat_interleave(group_size, 1) for part in (key, value)]
        scores = torch.einsum("qhd,khd->hqk", query, keys) * query.shape[-1] ** -0.5
        places = torch.arange(len(query), device=query.device)
        scores = scores.masked_fill(places[None, :] > places[:, None], float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)

    @property
    def stored(self) -> Any:
        """[2, layers, positions, heads, head_dim]"""
        return torch.stack([torch.stack(self.keys), torch.stack(self.values)])


def dense(decoder: Decoder, token_ids: Sequence[int]) -> tuple[Any, Any]:
    """Hidden states of a text, and its keys and values."""
    attention = DenseAttention()
    tokens = torch.tensor(token_ids, device=DEVICE)
    hidden = decoder.forward(tokens, torch.arange(len(token_ids), device=DEVICE), attention)
    return hidden, attention.stored


def continuation(decoder: Decoder, token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The most likely tokens behind a text, one after the other, all computed anew for each."""
    text = list(token_ids)
    for _ in range(num_tokens):
        text.append(int(decoder.logits(dense(decoder, text)[0][-1:])[0].argmax()))
    return text[len(token_ids) :]


def difference(first: Any, second: Any) -> float:
    """The largest; NaN if there is one."""
    return float((first - second).abs().max())


def three_tokens(target: Decoder, drafter: Drafter, parameters: SamplingParameters, num_rows: int) -> Any:
    """The first three tokens of so many requests that differ in their seeds, as counts int64[V ** 3] by
    the number that they are written as in base V; and the share of drafts that were accepted."""
    vocab_size, length = target.shape.vocab_size, len(PROMPT)
    prompts = torch.tensor(PROMPT, device=DEVICE).expand(num_rows, length)
    world = DraftWorld(target, drafter, prompts, max_model_len=12, parameters=parameters)
    rows, num_drafts = np.arange(num_rows), drafter.num_speculative_tokens
    none = torch.full((num_rows, num_drafts), -1, device=DEVICE)
    zeros = np.zeros(num_rows, np.int64)
    world.step(rows, zeros + length, Drafts(none, torch.from_numpy(zeros).to(DEVICE)), zeros)
    num_accepted = 0
    for _ in range(2):
        assert world.proposal is not None
        world.step(rows, zeros + 1, Drafts(*world.proposal), zeros + num_drafts)
        num_accepted += int(world.draft_step.num_sampled.sum()) - num_rows
    tokens = world.texts[:num_rows, length : length + 3]
    numbers = (tokens * torch.tensor([vocab_size**2, vocab_size, 1], device=DEVICE)).sum(1)
    share = num_accepted / (2 * num_rows * num_drafts)
    return torch.bincount(numbers, minlength=vocab_size**3), share


def joint_distribution(target: Decoder, parameters: SamplingParameters, counts: Any) -> tuple[Any, Any]:
    """Counts of three tokens and what is expected of them, by dense recomputation; what is expected less
    than 10 times, taken together."""
    vocab_size = target.shape.vocab_size
    one = build_rows([parameters], [0], [0], vocab_size=vocab_size, device=DEVICE)

    def follows(text: list[int]) -> Any:
        logits = target.logits(dense(target, text)[0][-1:])
        return target_probabilities(logits[None], one)[0, 0].double()

    joint = torch.zeros(vocab_size, vocab_size, vocab_size, dtype=torch.float64, device=DEVICE)
    first = follows(PROMPT)
    for token in range(vocab_size):
        second = first[token] * follows([*PROMPT, token])
        for other in range(vocab_size):
            joint[token, other] = second[other] * follows([*PROMPT, token, other])
    expected = joint.flatten() * counts.sum()
    rare = (expected > 0) & (expected < 10)
    cells, hoped = counts[~rare], expected[~rare]
    if bool(rare.any()):
        cells, hoped = (
            torch.cat([cells, counts[rare].sum()[None]]),
            torch.cat([hoped, expected[rare].sum()[None]]),
        )
    return cells, hoped
