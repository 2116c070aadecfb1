"""How do both sides generate the same tokens, and where does their time go? Ours, and Hugging Face's.

Both are greedy, neither looks at EOS, both count their passes through the model by the same means: the
model's forward pass is wrapped in a clock.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from draftproof.gpu.llm import LLM
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.sampling import SamplingParameters
from draftproof.gpu.weights import load_weights

Prompts = Sequence[Sequence[int]]
BLOCK_SIZE = 16
PAD = 0
"""What fills the peer's batch to the left; masked, so any token will do."""


class Pass(NamedTuple):
    """One pass through the model, in nanoseconds of wall time."""

    num_tokens: int
    begin: int
    inside: int
    """In the forward pass and the logits."""


class Run(NamedTuple):
    """One call of `generate`."""

    token_ids: list[list[int]]
    """What was generated, prompt by prompt."""
    wall: float
    """Seconds, as the next."""
    processor: float
    passes: list[Pass]
    num_drafts: int
    num_accepted: int


class Clock:
    """Counts and times the calls of a model."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def forward(self, function: Callable[..., Any], num_tokens: Callable[..., int]) -> Callable[..., Any]:
        """The same function, with a clock on it that starts a pass."""

        def timed(*values: Any, **named: Any) -> Any:
            begin = time.perf_counter_ns()
            result = function(*values, **named)
            self.passes.append(Pass(num_tokens(*values, **named), begin, time.perf_counter_ns() - begin))
            return result

        return timed

    def logits(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its time belongs to the pass before."""

        def timed(*values: Any) -> Any:
            begin = time.perf_counter_ns()
            result = function(*values)
            last = self.passes[-1]
            self.passes[-1] = last._replace(inside=last.inside + time.perf_counter_ns() - begin)
            return result

        return timed

    def run(self, generate: Callable[[], tuple[list[list[int]], int, int]]) -> Run:
        """One call, measured."""
        self.passes = []
        wall, processor = time.perf_counter(), time.process_time()
        token_ids, num_drafts, num_accepted = generate()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        return Run(token_ids, wall, processor, self.passes, num_drafts, num_accepted)


class Ours:
    """One decoder, and an LLM for each way to speculate. The prefix cache is off: rounds repeat prompts."""

    def __init__(self, folder: Path, dtype: Any) -> None:
        shape, weights = load_weights(folder, dtype)
        decoder: Any = Decoder
        self.decoder = decoder(shape, weights)
        self.clock = Clock()
        self.decoder.forward = self.clock.forward(self.decoder.forward, lambda tokens, *_: len(tokens))
        self.decoder.logits = self.clock.logits(self.decoder.logits)
        self.llms: dict[int, LLM] = {}

    @property
    def bytes_per_step(self) -> int:
        """Of the weights that every step reads: all, but of an embedding that is no head only a few rows."""
        shape = self.decoder.shape
        unread = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
        return int((shape.num_parameters - unread) * self.decoder.dtype.itemsize)

    def generate(self, prompts: Prompts, num_tokens: int, num_drafts: int = 0) -> Run:
        """With n-gram drafts, or without any."""
        if num_drafts not in self.llms:
            self.llms[num_drafts] = LLM(
                self.decoder,
                speculate=f"ngram:{num_drafts}" if num_drafts else None,
                num_blocks=1024,
                block_size=BLOCK_SIZE,
                max_model_len=2048,
                max_num_seqs=8,
                enable_prefix_caching=False,
            )
        llm = self.llms[num_drafts]
        parameters = SamplingParameters(temperature=0, max_tokens=num_tokens, ignore_eos=True)

        def generated() -> tuple[list[list[int]], int, int]:
            results = llm.generate(prompts, parameters)
            return (
                [list(result.token_ids) for result in results],
                sum(result.num_draft_tokens for result in results),
                sum(result.num_accepted_tokens for result in results),
            )

        return self.clock.run(generated)


class Transformers:
    """The peer: eager, with its default attention and cache."""

    def __init__(self, folder: Path, dtype: Any) -> None:
        transformers: Any = importlib.import_module("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = PAD
        self.clock = Clock()
        self.model.forward = self.clock.forward(
            self.model.forward, lambda *_, **named: int(named["input_ids"].numel())
        )

    def generate(self, prompts: Prompts, num_tokens: int, num_drafts: int = 0) -> Run:
        """With prompt lookup, or without it. Shorter prompts are padded to the left."""
        width = max(map(len, prompts))
        token_ids = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options = {"prompt_lookup_num_tokens": num_drafts} if num_drafts else {}

        def generated() -> tuple[list[list[int]], int, int]:
            with torch.inference_mode():
                output = self.model.generate(
                    input_ids=token_ids,
                    attention_mask=mask,
                    max_new_tokens=num_tokens,
                    do_sample=False,
                    **options,
                )
            return output[:, width:].tolist(), 0, 0

        run = self.clock.run(generated)
        if not num_drafts:
            return run
        # All but one token of a pass behind the prompt are drafts, and all but one token that it gave.
        return run._replace(
            num_drafts=sum(one.num_tokens for one in run.passes) - width - len(run.passes) + 1,
            num_accepted=num_tokens - len(run.passes),
        )


def step_times(run: Run, num_tokens: int) -> list[tuple[int, int]]:
    """Of each decode step of so many tokens: nanoseconds from its pass to the next, and inside its own."""
    return [
        (after.begin - one.begin, one.inside)
        for one, after in zip(run.passes, run.passes[1:], strict=False)
        if one.num_tokens == after.num_tokens == num_tokens
    ]


def median_step(runs: Sequence[Run], num_tokens: int) -> tuple[float, float]:
    """Milliseconds of a decode step, and what share of it is spent outside the model: medians."""
    times = [times for run in runs for times in step_times(run, num_tokens)]
    if not times:
        return float("nan"), float("nan")
    return (
        statistics.median(whole for whole, _ in times) / 1e6,
        statistics.median(1 - inside / whole for whole, inside in times),
    )
