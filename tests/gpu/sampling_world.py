"""What the tests of sampling share: a chi-square test, rows of parameters, and a model small enough to count.

`p_value` below `FALSE_ALARM` fails a test. Under a correct sampler and fresh seeds that happens with this
probability per test; the seeds are fixed, so that a test either always passes or always fails.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from draftproof.gpu.sampling import SamplingParameters, SamplingRows, build_rows
from draftproof.gpu.sampling.distribution import sample
from draftproof.gpu.sampling.randomness import DRAFT, uniform
from draftproof.gpu.sampling.verification import Drafts

FALSE_ALARM = 1e-6
FAULT = 1e-12
"""A fault is caught if its p-value is below this: far from chance, and far from the threshold."""
NUM_SAMPLES = 100_000
VOCAB_SIZE = 5

# Fixed logits of a model whose next token depends on the last one only. The last line, on VOCAB_SIZE, is the
# start. Some tokens are unlikely (0.3%), none so much that a cell is expected less than 20 times.
MODEL = torch.tensor(
    [
        [1.0, 0.2, -0.5, 2.0, -1.5],
        [-0.7, 1.6, 0.4, -1.9, 0.9],
        [0.3, -1.2, 2.2, 0.1, -0.4],
        [2.5, 0.6, -1.0, -0.3, 1.1],
        [0.0, 0.8, 1.9, -0.9, -2.0],
        [1.4, -0.6, 0.9, -2.1, 0.5],
    ]
)


def chi_square(counts: Any, expected: Any) -> float:
    """The probability of counts at least this far from what was expected: Pearson's test. Both [cells], and
    both sum to the same; a count where nothing is expected has probability 0."""
    counts, expected = counts.double().flatten(), expected.double().flatten()
    possible = expected > 0
    if counts[~possible].sum() > 0:
        return 0.0
    assert expected[possible].min() >= 5, "too few samples for a chi-square test"
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    half_freedom = (possible.sum() - 1).double() / 2
    return float(torch.special.gammaincc(half_freedom, statistic / 2))


def rows_of(
    parameters: list[SamplingParameters], vocab_size: int, num_prompt_tokens: int = 0, **options: Any
) -> SamplingRows:
    """Rows with their own seeds, or 1000 + place."""
    seeds = [1000 + place if one.seed is None else one.seed for place, one in enumerate(parameters)]
    return build_rows(
        parameters, seeds, [num_prompt_tokens] * len(parameters), vocab_size=vocab_size, **options
    )


def many_rows(parameters: SamplingParameters, num_rows: int, vocab_size: int) -> SamplingRows:
    """The same parameters many times, with seeds 0, 1, 2 and so on."""
    one = rows_of([parameters], vocab_size)
    return one.select(torch.zeros(num_rows, dtype=torch.int64)).with_seeds(torch.arange(num_rows))


Drafter = Callable[[Any, Any, int, Any], Drafts]


def model_drafter(distributions: Any) -> Drafter:
    """Drafts sampled from a table float32[VOCAB_SIZE + 1, VOCAB_SIZE]: the last token's line is q."""

    def draft(last: Any, positions: Any, num_drafts: int, seeds: Any) -> Drafts:
        tokens, probabilities = [], []
        for place in range(num_drafts):
            q = distributions[last]
            last = sample(q, uniform(seeds, positions + place, DRAFT))
            tokens.append(last)
            probabilities.append(q)
        full = torch.full((len(seeds),), num_drafts)
        return Drafts(torch.stack(tokens, 1), full, torch.stack(probabilities, 1))

    return draft


def table_drafter(followers: Any) -> Drafter:
    """Drafts that are certain, as those of an n-gram drafter: int64[VOCAB_SIZE + 1], what follows a token."""

    def draft(last: Any, positions: Any, num_drafts: int, seeds: Any) -> Drafts:
        tokens = []
        for _ in range(num_drafts):
            last = followers[last]
            tokens.append(last)
            last = torch.where(last < 0, 0, last)
        return Drafts(torch.stack(tokens, 1), torch.full((len(seeds),), num_drafts))

    return draft


def generate(
    verify: Callable[..., Any], rows: SamplingRows, draft: Drafter, num_drafts: int, num_tokens: int
) -> tuple[Any, Any]:
    """Whole steps until every row has its tokens: int64[R, num_tokens] and int64[R, num_tokens] of how many
    drafts the step had accepted before each token (0 for one that was sampled first in its step)."""
    output = torch.zeros(len(rows), num_tokens + num_drafts + 1, dtype=torch.int64)
    offsets, places = torch.zeros_like(output), torch.arange(num_drafts + 1)
    known = torch.zeros(len(rows), dtype=torch.int64)
    while len(going := (known < num_tokens).nonzero()[:, 0]) > 0:
        position, some = known[going], rows.select(going)
        last = torch.where(position > 0, output[going, position - 1], VOCAB_SIZE)
        drafts = draft(last, position, num_drafts, some.seeds)
        context = torch.cat([last[:, None], drafts.token_ids.clamp_min(0)], 1)
        outcome = verify(MODEL[context], drafts, some, position)
        # What stands beyond the sampled tokens is overwritten by the next step.
        at = going[:, None], position[:, None] + places
        output[at], offsets[at] = outcome.sampled_token_ids.long(), places.expand(len(going), -1)
        known[going] += outcome.num_sampled_tokens.long()
    return output[:, :num_tokens], offsets[:, :num_tokens]


def with_fault(module: ModuleType, right: str, wrong: str) -> dict[str, Any]:
    """The names of a module whose source has been changed in one place: a fault made on purpose."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{right!r} must stand once in {module.__name__}"
    faulty = ModuleType(module.__name__ + "_with_fault")
    sys.modules[faulty.__name__] = faulty  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), f"<{faulty.__name__}>", "exec"), vars(faulty))
    return vars(faulty)
