"""What a request may ask, random numbers by key, and the target distribution against a slow reference."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.sampling_world import FALSE_ALARM, FAULT, chi_square, rows_of, with_fault  # noqa: E402

from draftproof.gpu.sampling import ParameterError, SamplingParameters, build_rows, distribution  # noqa: E402
from draftproof.gpu.sampling.distribution import (  # noqa: E402
    constrained_logits,
    sample,
    seen_before,
    target_probabilities,
    token_set,
)
from draftproof.gpu.sampling.randomness import (  # noqa: E402
    ACCEPT,
    CORRECT,
    DRAFT,
    SAMPLE,
    philox,
    uniform,
)

# Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]

IMPOSSIBLE = [
    ({"temperature": -0.1}, "temperature must be 0 (greedy) or a number from 0.01 to 1e+06, got -0.1"),
    ({"temperature": 1e-5}, "temperature must be 0"),
    ({"temperature": math.nan}, "temperature must be 0"),
    ({"temperature": math.inf}, "temperature must be 0"),
    ({"temperature": "hot"}, "temperature must be 0"),
    ({"temperature": False}, "temperature must be 0"),
    ({"top_k": -2}, "top_k must be an integer from 1, or 0 or -1 for all tokens, got -2"),
    ({"top_k": 1.5}, "top_k must be an integer"),
    ({"top_k": True}, "top_k must be an integer"),
    ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0"),
    ({"top_p": 1.01}, "top_p must be"),
    ({"top_p": math.nan}, "top_p must be"),
    ({"top_p": None}, "top_p must be"),
    ({"min_p": -0.1}, "min_p must be a number from 0 to 1, got -0.1"),
    ({"min_p": 1.1}, "min_p must be"),
    ({"repetition_penalty": 0.0}, "repetition_penalty must be a number from 0.01 to 100, got 0.0"),
    ({"repetition_penalty": 1e30}, "repetition_penalty must be"),
    ({"seed": 2**63}, "seed must be an integer from"),
    ({"seed": 1.0}, "seed must be an integer from"),
    ({"max_tokens": 0}, "max_tokens must be an integer from 1"),
    ({"max_tokens": None}, "max_tokens must be"),
    ({"max_tokens": 2**40}, "max_tokens must be"),
    ({"min_tokens": -1}, "min_tokens must be an integer from 0"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens=5 is more than max_tokens=4"),
    ({"stop": ["a", ""]}, "stop must hold strings of at least one character, got ''"),
    ({"stop": [7]}, "stop must hold strings"),
    ({"stop": 7}, "stop must be a list, got 7"),
    ({"stop": b"end"}, "stop must be a list"),
    ({"stop": ["x"] * 65}, "stop may hold at most 64 items"),
    ({"stop_token_ids": [-1]}, "a token id in stop_token_ids must be an integer from 0"),
    ({"stop_token_ids": "12"}, "text goes into stop"),
    ({"stop_token_ids": [True]}, "a token id in stop_token_ids must be"),
    ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
    ({"logprobs": -1}, "logprobs must be an integer from 0 to 20, got -1"),
    ({"logprobs": 21}, "logprobs must be"),
]


@pytest.mark.parametrize(("wrong", "message"), IMPOSSIBLE)
def test_an_impossible_parameter_is_refused_in_one_sentence(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as raised:
        SamplingParameters(**wrong)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_parameters_are_kept_in_one_form() -> None:
    made = SamplingParameters(temperature=0, top_k=-1, stop="end", stop_token_ids=[3, 4], logprobs=0)  # type: ignore[arg-type]
    assert made == SamplingParameters(temperature=0.0, stop=("end",), stop_token_ids=(3, 4), logprobs=0)
    assert made.greedy
    assert not SamplingParameters().greedy
    assert SamplingParameters(seed=-5).seed_of_request() == -5
    assert SamplingParameters().seed_of_request() != SamplingParameters().seed_of_request()


def test_a_stop_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ParameterError, match="stop token 10 is outside the vocabulary of 10"):
        rows_of([SamplingParameters(stop_token_ids=(10,))], 10)


def words(text: str) -> tuple[Any, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_public_vectors(counter: str, key: str, result: str) -> None:
    found = philox(words(counter), words(key))
    assert " ".join(f"{int(word):08x}" for word in found) == result


def test_a_number_is_made_of_the_first_52_bits_of_its_block() -> None:
    """Seed, position and purpose of more than 32 bits, or negative, against the definition in integers."""
    for seed, position, purpose in [(0, 0, 0), (-1, 5, 1), (2**62 + 12345, 2**33 + 7, 2), (-(2**63), 1, 3)]:
        counter = words(f"{position % 2**32:x} {position >> 32:x} {purpose:x} 0")
        key = words(f"{seed % 2**32:x} {seed % 2**64 >> 32:x}")
        first, second = (int(word) for word in philox(counter, key)[:2])
        expected = ((first << 32 | second) >> 12) * 2.0**-52 + 2.0**-53
        assert float(uniform(torch.tensor(seed), torch.tensor(position), purpose)) == expected


def test_numbers_never_reach_zero_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.gpu.sampling import randomness

    for word, expected in ((0, 2.0**-53), (2**32 - 1, 1 - 2.0**-53)):
        monkeypatch.setattr(randomness, "philox", lambda *_, word=word: (torch.tensor([word]),) * 4)
        number = float(randomness.uniform(torch.tensor([1]), torch.tensor([1]), SAMPLE))
        assert number == expected
        assert 0.0 < number < 1.0


SEEDS, POSITIONS = torch.arange(400)[:, None], torch.arange(500)


@pytest.mark.parametrize("purpose", [ACCEPT, SAMPLE, CORRECT, DRAFT])
def test_numbers_are_uniform_over_neighbouring_seeds_and_positions(purpose: int) -> None:
    numbers = uniform(SEEDS, POSITIONS, purpose)
    cells = (numbers * 256).long().flatten().bincount(minlength=256)
    assert chi_square(cells, torch.full((256,), numbers.numel() / 256)) > FALSE_ALARM
    fine = (numbers * 2**40).long().flatten() % 256  # the low bits, too
    assert chi_square(fine.bincount(minlength=256), torch.full((256,), numbers.numel() / 256)) > FALSE_ALARM


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("positions", uniform(SEEDS, POSITIONS, SAMPLE), uniform(SEEDS, POSITIONS + 1, SAMPLE)),
        ("seeds", uniform(SEEDS, POSITIONS, SAMPLE), uniform(SEEDS + 1, POSITIONS, SAMPLE)),
        ("purposes", uniform(SEEDS, POSITIONS, ACCEPT), uniform(SEEDS, POSITIONS, CORRECT)),
        ("seed and position", uniform(SEEDS, POSITIONS, SAMPLE), uniform(SEEDS + 1, POSITIONS - 1, SAMPLE)),
    ],
)
def test_neighbours_are_independent(name: str, first: Any, second: Any) -> None:
    pairs = ((first * 16).long() * 16 + (second * 16).long()).flatten().bincount(minlength=256)
    assert chi_square(pairs, torch.full((256,), first.numel() / 256)) > FALSE_ALARM, name


def reference(logits: list[float], one: SamplingParameters, seen: set[int], banned: set[int]) -> list[float]:
    """One token's distribution, as slowly and plainly as it can be said."""
    for token in range(len(logits)):
        if token in banned:
            logits[token] = -math.inf
        elif token in seen:
            punish = one.repetition_penalty
            logits[token] = logits[token] / punish if logits[token] > 0 else logits[token] * punish
    if one.greedy:
        best = logits.index(max(logits))
        return [1.0 if token == best else 0.0 for token in range(len(logits))]
    logits = [value / one.temperature for value in logits]
    shares = shares_of(logits, set(range(len(logits))))
    kept = {token for token, share in enumerate(shares) if share >= one.min_p * max(shares) - 1e-12}
    if one.top_k:
        ranked = sorted(kept, key=lambda token: -shares[token])
        kept = {token for token in kept if shares[token] >= shares[ranked[min(one.top_k, len(kept)) - 1]]}
    shares = shares_of(logits, kept)
    if one.top_p < 1.0:
        # From the most likely down, of equals the higher id first, until top_p has been reached.
        nucleus, reached = set[int](), 0.0
        for token in sorted(kept, key=lambda token: (-shares[token], -token)):
            if reached >= one.top_p:
                break
            nucleus.add(token)
            reached += shares[token]
        kept = nucleus
    return shares_of(logits, kept)


def shares_of(logits: list[float], kept: set[int]) -> list[float]:
    greatest = max(logits[token] for token in kept)
    powers = [math.exp(value - greatest) if token in kept else 0.0 for token, value in enumerate(logits)]
    return [power / sum(powers) for power in powers]


def random_parameters(chance: random.Random) -> SamplingParameters:
    return SamplingParameters(
        temperature=chance.choice([0, 0.3, 0.7, 1.0, 2.5]),
        top_k=chance.choice([0, 0, 1, 2, 5, 30, 1000]),
        top_p=chance.choice([1.0, 1.0, 1e-9, 0.311, 0.737, 0.957]),
        min_p=chance.choice([0.0, 0.0, 0.0213, 0.3131, 1.0]),
        repetition_penalty=chance.choice([1.0, 1.0, 0.7, 1.3]),
        min_tokens=chance.choice([0, 2]),
        stop_token_ids=chance.choice([(), (3, 8)]),
    )


def distributions(parameters: list[SamplingParameters], logits: Any, positions: Any, seen: Any) -> Any:
    """Target distributions, float32[R, P, V], greedy rows as one-hot; the prompt has 4 tokens, EOS is 1."""
    rows = rows_of(parameters, logits.shape[-1], 4, eos_token_ids=[1])
    constrained = constrained_logits(logits, rows, positions, seen)
    hard = torch.nn.functional.one_hot(constrained.argmax(-1), logits.shape[-1]).float()
    soft = target_probabilities(constrained, rows)
    return torch.where((rows.temperature == 0)[:, None, None], hard, soft)


def world(seed: int, num_rows: int, num_places: int, vocab_size: int) -> tuple[Any, Any, Any, Any]:
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    parameters = [random_parameters(chance) for _ in range(num_rows)]
    logits = torch.randn(num_rows, num_places, vocab_size, generator=generator) * 2
    logits[:, :, ::7] = logits[:, :, :1]  # equals
    positions = 4 + torch.arange(num_places).expand(num_rows, -1)
    seen = torch.rand(num_rows, num_places, vocab_size, generator=generator) < 0.3
    return parameters, logits, positions, seen


def test_filters_agree_with_the_slow_reference() -> None:
    """200 rows of 3 places and 24 tokens, every combination of filters, greedy rows beside random ones."""
    parameters, logits, positions, seen = world(1, 200, 3, 24)
    found = distributions(parameters, logits, positions, seen)
    for row, one in enumerate(parameters):
        stops = set(one.stop_token_ids) | {1}
        for place in range(3):
            tokens = {token for token in range(24) if seen[row, place, token]}
            banned = stops if place < one.min_tokens else set()
            expected = reference(logits[row, place].double().tolist(), one, tokens, banned)
            assert found[row, place].tolist() == pytest.approx(expected, abs=2e-6), (row, place, one)


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()[None, None]
    for top_p, kept in ((0.1, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.89, 3), (0.91, 4), (1.0, 4)):
        rows = rows_of([SamplingParameters(top_p=top_p)], 4)
        assert int((target_probabilities(logits, rows) > 0).sum()) == kept, top_p


def test_ties() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])[None, None]
    top_k = target_probabilities(logits, rows_of([SamplingParameters(top_k=2)], 6))[0, 0]
    assert top_k.nonzero().flatten().tolist() == [1, 2, 3, 5]  # every token as likely as the second
    top_p = target_probabilities(logits, rows_of([SamplingParameters(top_p=0.55)], 6))[0, 0]
    assert top_p.nonzero().flatten().tolist() == [1, 5]  # 0.44, and of three times 0.16 the highest id


def test_a_row_does_not_depend_on_its_neighbours_or_its_place() -> None:
    parameters, logits, positions, seen = world(2, 60, 2, 50)
    together = distributions(parameters, logits, positions, seen)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = distributions([parameters[row] for row in order], logits[order], positions[order], seen[order])
    assert torch.equal(shuffled, together[order])
    for row in range(60):
        at = slice(row, row + 1)
        alone = distributions(parameters[at], logits[at], positions[at], seen[at])
        assert torch.equal(alone, together[at]), parameters[row]


FILTER_FAULTS = {
    "top-p off by one: the token that reaches it is left out": (
        "removed &= top_p < 1.0",
        "removed |= removed.roll(1, -1); removed[..., -1] = False; removed &= top_p < 1.0",
    ),
    "top-p off by one: one token too many": (
        "removed &= top_p < 1.0",
        "removed &= removed.roll(-1, -1); removed &= top_p < 1.0",
    ),
    "top-k off by one": ("place = (top_k - 1)", "place = top_k"),
    "top-k loses ties": ("fill(logits < threshold, NEVER)", "fill(logits <= threshold, NEVER)"),
    "min-p of the whole, not of the maximum": ("logits.amax(-1, keepdim=True) + min_p", "min_p"),
    "penalty divides negative logits": ("logits * penalty)", "logits / penalty)"),
    "min_tokens one too few": ("positions < rows.first_stop", "positions + 1 < rows.first_stop"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILTER_FAULTS)
def test_a_faulty_filter_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = with_fault(distribution, *FILTER_FAULTS[name])
    for function in ("constrained_logits", "target_probabilities"):
        monkeypatch.setitem(globals(), function, faulty[function])
    with pytest.raises(AssertionError):
        test_filters_agree_with_the_slow_reference()


def test_flags_of_other_rows_change_nothing() -> None:
    """A row that uses no filter, in a batch that uses all: the same bits."""
    plain, busy = (
        SamplingParameters(),
        SamplingParameters(top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=1.5),
    )
    logits = torch.randn(1, 1, 100, generator=torch.Generator().manual_seed(5)).expand(2, 1, 100)
    seen, positions = torch.ones(2, 1, 100, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.int64)
    together = distributions([plain, busy], logits, positions, seen)
    assert torch.equal(together[:1], logits[:1].softmax(-1))
    rows = rows_of([plain, busy], 100)
    assert (rows.max_top_k, rows.any_top_p, rows.any_min_p, rows.any_penalty) == (3, True, True, True)
    greedy = rows_of([replace(busy, temperature=0.0, repetition_penalty=1.0)], 100)
    assert (greedy.all_greedy, greedy.max_top_k, greedy.any_top_p, greedy.any_min_p) == (
        True,
        0,
        False,
        False,
    )


def test_samples_have_their_distribution_and_never_probability_zero() -> None:
    probabilities = torch.tensor([0.0, 0.6, 0.0, 0.25, 0.1499, 0.0001, 0.0])
    numbers = uniform(torch.arange(200_000), torch.zeros(200_000, dtype=torch.int64), SAMPLE)
    counts = sample(probabilities.expand(200_000, -1), numbers).bincount(minlength=7)
    assert chi_square(counts, probabilities.double() * 200_000) > FALSE_ALARM
    biased = torch.tensor([0.0, 0.59, 0.0, 0.26, 0.1499, 0.0001, 0.0]).double() * 200_000
    assert chi_square(counts, biased) < FAULT  # the test sees one part in a hundred


def test_the_ends_of_the_unit_interval_select_tokens_that_can_be() -> None:
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    probabilities = torch.tensor([0.0, 0.5, 0.5, 0.0]).expand(2, -1)
    assert sample(probabilities, ends).tolist() == [1, 2]
    for broken in (math.nan, 0.0):  # in range whatever the logits were: a wrong index would end the process
        assert sample(torch.full((2, 4), broken), ends).tolist() == [0, 0]


def test_token_sets_leave_out_what_is_no_token() -> None:
    found = token_set(torch.tensor([[2, -1, 2], [7, 0, 3]], dtype=torch.int32), 4)
    assert found.tolist() == [[False, False, True, False], [True, False, False, True]]
    seen = torch.tensor([[True, False, False]])
    before = seen_before(seen, torch.tensor([[2, -1]]))
    assert before.tolist() == [[[True, False, False], [True, False, True], [True, False, True]]]


def test_rows_can_be_selected() -> None:
    parameters = [SamplingParameters(temperature=0.5, seed=7), SamplingParameters(top_k=4, seed=8)]
    rows = build_rows(parameters, [7, 8], [3, 5], vocab_size=10)
    turned = rows.select(torch.tensor([1, 0, 1]))
    assert len(turned) == 3
    assert turned.seeds.tolist() == [8, 7, 8]
    assert turned.top_k.tolist() == [4, 0, 4]
    assert turned.first_stop_position.tolist() == [5, 3, 5]
    assert turned.max_top_k == 4


def test_the_most_likely_token_stays_however_small_top_p_is() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])[None, None]
    found = target_probabilities(logits, rows_of([SamplingParameters(top_p=1e-60)], 3))  # 0 in float32
    assert found.tolist() == [[[0.0, 1.0, 0.0]]]


def test_eos_does_not_stop_a_row_that_ignores_it() -> None:
    parameters = [
        SamplingParameters(min_tokens=1, stop_token_ids=(5,), ignore_eos=on) for on in (True, False)
    ]
    assert rows_of(parameters, 9, eos_token_ids=[1]).stop_token_ids.tolist() == [[5, -1], [5, 1]]
