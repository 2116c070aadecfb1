"""Verification leaves the target distribution as it is, whoever drafts; and greedy is a plain loop."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.sampling_world import (  # noqa: E402
    FALSE_ALARM,
    FAULT,
    MODEL,
    NUM_SAMPLES,
    VOCAB_SIZE,
    Drafter,
    chi_square,
    generate,
    many_rows,
    model_drafter,
    rows_of,
    table_drafter,
    with_fault,
)

from draftproof.gpu.sampling import Drafts, SamplingParameters, SamplingRows, verification, verify  # noqa: E402
from draftproof.gpu.sampling.distribution import target_probabilities  # noqa: E402

PLAIN = SamplingParameters(temperature=1.0)
FILTERED = SamplingParameters(temperature=1.3, top_k=4, top_p=0.93, min_p=0.02)


def target_of(parameters: SamplingParameters) -> Any:
    """float32[VOCAB_SIZE + 1, VOCAB_SIZE]: what follows each token."""
    return target_probabilities(MODEL[None], rows_of([parameters], VOCAB_SIZE))[0]


GOOD = model_drafter((MODEL * 0.8 + 0.3 * MODEL.roll(1, 0)).softmax(-1))
ADVERSARIAL = model_drafter((-3 * MODEL).softmax(-1))  # almost always the least likely token
NEVER_LIKELY = table_drafter(MODEL.argmin(-1))
N_GRAM = table_drafter(torch.tensor([3, 4, -1, 0, 1, 0]))  # mostly likely tokens; nothing follows token 2
NULL = table_drafter(torch.full((VOCAB_SIZE + 1,), -1))
DRAFTERS = {
    "good": GOOD,
    "adversarial": ADVERSARIAL,
    "always the least likely": NEVER_LIKELY,
    "n-gram": N_GRAM,
    "null": NULL,
}
NUM_DRAFTS = 2


def no_drafter(last: Any, positions: Any, num_drafts: int, seeds: Any) -> Drafts:
    """Plain decoding: K = 0."""
    return Drafts(torch.empty(len(seeds), 0, dtype=torch.int64), torch.zeros(len(seeds), dtype=torch.int64))


def first_two(
    parameters: SamplingParameters, drafter: Drafter, verify: Any = verify, num_requests: int = NUM_SAMPLES
) -> tuple[Any, Any, Any]:
    """The first two tokens of many requests, the drafts accepted before each, and the target."""
    rows = many_rows(parameters, num_requests, VOCAB_SIZE)
    tokens, offsets = generate(verify, rows, drafter, NUM_DRAFTS, 2)
    return tokens, offsets, target_of(parameters).double()


def p_value_of_first(tokens: Any, target: Any) -> float:
    return chi_square(tokens[:, 0].bincount(minlength=VOCAB_SIZE), target[VOCAB_SIZE] * len(tokens))


def p_value_of_pair(tokens: Any, target: Any) -> float:
    pairs = (tokens[:, 0] * VOCAB_SIZE + tokens[:, 1]).bincount(minlength=VOCAB_SIZE**2)
    expected = target[VOCAB_SIZE][:, None] * target[:VOCAB_SIZE]
    return chi_square(pairs, expected * len(tokens))


def p_value_after_accepted(tokens: Any, offsets: Any, target: Any) -> float:
    """Of the second token, where it came in the same step, right after an accepted draft."""
    after = offsets[:, 1] == 1
    first, second = tokens[after].T
    pairs = (first * VOCAB_SIZE + second).bincount(minlength=VOCAB_SIZE**2)
    given = first.bincount(minlength=VOCAB_SIZE).double()[:, None] * target[:VOCAB_SIZE]
    # Lines of first tokens that were accepted often enough for the test; each has its own fixed total.
    enough = (given.masked_fill(given == 0, torch.inf).amin(1) >= 5) & (given.sum(1) > 0)
    assert bool(enough.any())
    return min(
        chi_square(line, expected)
        for line, expected, use in zip(pairs.view(VOCAB_SIZE, -1), given, enough, strict=True)
        if use
    )


@pytest.mark.parametrize("parameters", [PLAIN, FILTERED], ids=["plain", "filtered"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_is_the_target_s(name: str, parameters: SamplingParameters) -> None:
    """100,000 requests, two tokens each: the first, both together, and the second after an accepted draft."""
    tokens, offsets, target = first_two(parameters, DRAFTERS[name])
    assert p_value_of_first(tokens, target) > FALSE_ALARM
    assert p_value_of_pair(tokens, target) > FALSE_ALARM
    num_accepted = int((offsets[:, 1] == 1).sum())
    if name == "null":
        assert num_accepted == 0
    elif name in ("good", "n-gram"):
        assert 0.3 * NUM_SAMPLES < num_accepted < 0.95 * NUM_SAMPLES
        assert p_value_after_accepted(tokens, offsets, target) > FALSE_ALARM
    else:  # a draft is accepted now and then, or the test would only see corrections
        assert num_accepted < 0.2 * NUM_SAMPLES
        if parameters is PLAIN:
            assert num_accepted > 700


FAULTS = {
    "accepted with probability p, not min(1, p / q)": ("number * q < p", "number < p"),
    "acceptance is p / q without its bound: one above 1 wraps": (
        "number * q < p",
        "number < (p / q) % 1.0",
    ),
    "accepted by the inverse ratio": ("number * q < p", "number * p < q"),
    "always accepted": ("number * q < p", "number < 2"),
    "corrected from p, not from max(p - q, 0)": (
        "torch.where(rejected[:, None], residual, target)",
        "target",
    ),
    "the residual's sign": ("(target - weights_of(", "(-target + weights_of("),
    "one number for acceptance and correction": (
        "rejected, uniform(rows.seeds, position, CORRECT)",
        "rejected, uniform(rows.seeds, position, ACCEPT)",
    ),
    "the correction one place late": ("residual = (target", "residual = (target.roll(1, 1)"),
    "one number for all of a step's places": (
        "positions[:, :-1], ACCEPT)",
        "positions[:, :1], ACCEPT)",
    ),
    "a certain draft always accepted": ("real & (drafts.token_ids == tokens[:, :-1])", "real"),
    "the bonus from the place before": (
        "target = weights_of(_at(probabilities, place))",
        "target = weights_of(_at(probabilities, (place - 1).clamp(min=0)))",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_verification_is_caught(name: str) -> None:
    """Each by the joint distribution of two tokens of 50,000 requests, with one of three drafters."""
    faulty = with_fault(verification, *FAULTS[name])["verify"]
    smallest = 1.0
    for drafter in (GOOD, ADVERSARIAL, N_GRAM):
        if smallest >= FAULT:
            tokens, _, target = first_two(PLAIN, drafter, faulty, 50_000)
            smallest = p_value_of_pair(tokens, target)
    assert smallest < FAULT


@pytest.mark.parametrize("parameters", [PLAIN, FILTERED], ids=["plain", "filtered"])
@pytest.mark.parametrize("name", ["null", "n-gram", "always the least likely"])
def test_certain_drafts_change_no_token(name: str, parameters: SamplingParameters) -> None:
    """With the same seed the output is that of no drafts at all: 2,000 requests of 12 tokens."""
    rows = many_rows(parameters, 2000, VOCAB_SIZE)
    without, _ = generate(verify, rows, no_drafter, 0, 12)
    for num_drafts in (1, 3, 5):
        found, offsets = generate(verify, rows, DRAFTERS[name], num_drafts, 12)
        assert torch.equal(found, without)
        if name != "always the least likely":  # filtered, that one is never accepted
            assert (int(offsets.sum()) > 0) == (name == "n-gram")


def test_drafts_with_probabilities_that_are_null_change_no_token() -> None:
    """A draft of -1, one outside the vocabulary, or one its q calls impossible, beside a tensor of q."""
    rows = many_rows(PLAIN, 2000, VOCAB_SIZE)
    logits = MODEL[torch.full((2000, 3), VOCAB_SIZE)]
    first_position = torch.arange(2000) % 50
    plain = verify(logits[:, :1], no_drafter(None, None, 0, rows.seeds), rows, first_position)
    certain = torch.nn.functional.one_hot(torch.tensor(3), VOCAB_SIZE).float().expand(2000, 2, -1)
    for token in (-1, VOCAB_SIZE, 2**31 - 1, 1):
        drafts = Drafts(torch.full((2000, 2), token), torch.full((2000,), 2), certain)
        found = verify(logits, drafts, rows, first_position)
        assert torch.equal(found.sampled_token_ids[:, :1], plain.sampled_token_ids)
        assert found.num_sampled_tokens.unique().tolist() == [1]


def greedy_loop(logits: list[list[float]], drafts: list[int], num_drafts: int) -> list[int]:
    """The outcome of one row, by a plain loop."""
    kept = []
    for place in range(num_drafts + 1):
        best = max(range(len(logits[place])), key=lambda token: (logits[place][token], -token))
        kept.append(best)
        if place == num_drafts or drafts[place] != best:
            break
    return kept


@pytest.mark.parametrize("with_probabilities", [False, True])
@pytest.mark.parametrize("among_random_rows", [False, True])
def test_greedy_is_the_plain_loop(among_random_rows: bool, with_probabilities: bool) -> None:
    """Ragged: 0 to 4 drafts; null drafts among them; prefill chunks that do not sample."""
    generator = torch.Generator().manual_seed(11)
    num_rows, num_drafts, vocab_size = 300, 4, 7
    logits = torch.randn(num_rows, num_drafts + 1, vocab_size, generator=generator)
    token_ids = logits[:, :-1].argmax(-1)
    wrong = torch.rand(token_ids.shape, generator=generator) < 0.25
    token_ids = torch.where(
        wrong, torch.randint(-1, vocab_size, token_ids.shape, generator=generator), token_ids
    )
    num_tokens = torch.randint(0, num_drafts + 1, (num_rows,), generator=generator)
    samples = torch.rand(num_rows, generator=generator) < 0.9
    q = (
        torch.rand(num_rows, num_drafts, vocab_size, generator=generator).softmax(-1)
        if with_probabilities
        else None
    )
    temperatures = [1.0 if among_random_rows and row % 2 else 0.0 for row in range(num_rows)]
    rows = rows_of([SamplingParameters(temperature=value) for value in temperatures], vocab_size)
    drafts = Drafts(token_ids.to(torch.int32), num_tokens.to(torch.int32), q if with_probabilities else None)
    found = verify(logits, drafts, rows, torch.full((num_rows,), 9), samples=samples.to(torch.int32))
    assert found.sampled_token_ids.dtype == found.num_sampled_tokens.dtype == torch.int32
    assert found.sampled_token_ids.shape == (num_rows, 1 + num_drafts)
    lengths = set()
    for row in range(0, num_rows, 1 + among_random_rows):
        count = int(num_tokens[row])
        expected = greedy_loop(logits[row].tolist(), token_ids[row].tolist(), count) if samples[row] else []
        lengths.add(len(expected))
        assert int(found.num_sampled_tokens[row]) == len(expected)
        assert found.sampled_token_ids[row].tolist() == expected + [-1] * (5 - len(expected))
    assert lengths == {0, 1, 2, 3, 4, 5}


def mixed_world(num_rows: int) -> tuple[Any, Drafts, list[SamplingParameters], Any, Any]:
    """Rows of every kind side by side, ragged, with draft probabilities and log-probabilities."""
    generator = torch.Generator().manual_seed(21)
    kinds = [
        SamplingParameters(temperature=0.0),
        SamplingParameters(temperature=0.9, logprobs=2),
        SamplingParameters(temperature=1.0, top_k=5, top_p=0.8),
        SamplingParameters(temperature=0.0, repetition_penalty=1.4, logprobs=0),
        SamplingParameters(
            temperature=1.5, min_p=0.05, repetition_penalty=0.8, min_tokens=3, stop_token_ids=(2,)
        ),
    ]
    parameters = [kinds[row % len(kinds)] for row in range(num_rows)]
    logits = torch.randn(num_rows, 4, 20, generator=generator) * 2
    q = (logits[:, :-1] + torch.randn(num_rows, 3, 20, generator=generator)).softmax(-1)
    token_ids = q.view(-1, 20).multinomial(1, generator=generator).view(num_rows, 3)
    token_ids[::9, 1] = -1
    num_tokens = torch.randint(0, 4, (num_rows,), generator=generator)
    positions = torch.randint(0, 6, (num_rows,), generator=generator)
    seen = torch.rand(num_rows, 20, generator=generator) < 0.3
    return logits, Drafts(token_ids, num_tokens, q), parameters, positions, seen


@pytest.mark.parametrize("with_probabilities", [False, True])
def test_a_row_does_not_depend_on_its_neighbours_or_its_place(with_probabilities: bool) -> None:
    logits, drafts, parameters, positions, seen = mixed_world(60)

    def outcome(index: list[int]) -> tuple[Any, ...]:
        rows = rows_of([parameters[row] for row in index], 20)
        rows = rows.with_seeds(torch.tensor(index) + 77)
        q = drafts.probabilities[index] if with_probabilities and drafts.probabilities is not None else None
        some = Drafts(drafts.token_ids[index], drafts.num_tokens[index], q)
        found = verify(logits[index], some, rows, positions[index], seen=seen[index])
        sampled = found.logprobs.sampled if found.logprobs is not None else None
        return found.sampled_token_ids, found.num_sampled_tokens, sampled

    together = outcome(list(range(60)))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(4)).tolist()
    for found, expected in zip(outcome(order), together, strict=True):
        assert torch.equal(found, expected[order])
    for row in range(60):
        tokens, count, sampled = outcome([row])
        assert torch.equal(tokens[0], together[0][row])
        assert torch.equal(count[0], together[1][row])
        if sampled is not None:
            assert torch.equal(sampled[0], together[2][row])
    assert len(together[1].unique()) >= 3


def test_what_lies_beyond_a_row_s_drafts_has_no_effect() -> None:
    """Padding may be anything: not numbers, tokens that do not exist."""
    logits, drafts, parameters, positions, seen = mixed_world(50)
    rows = rows_of(parameters, 20)
    expected = verify(logits, drafts, rows, positions, seen=seen)
    beyond = torch.arange(3) >= drafts.num_tokens[:, None]
    logits[:, 1:][beyond] = math.nan
    token_ids = torch.where(beyond, 10**9, drafts.token_ids)
    assert drafts.probabilities is not None
    q = drafts.probabilities.masked_fill(beyond[:, :, None], math.nan)
    found = verify(logits, Drafts(token_ids, drafts.num_tokens, q), rows, positions, seen=seen)
    assert torch.equal(found.sampled_token_ids, expected.sampled_token_ids)
    assert found.logprobs is not None
    assert expected.logprobs is not None
    assert torch.equal(found.logprobs.sampled, expected.logprobs.sampled)


def test_log_probabilities_are_the_model_s_own() -> None:
    logits, drafts, _, positions, _ = mixed_world(40)
    parameters = [SamplingParameters(temperature=0.7, top_k=3, logprobs=4)] * 40
    found = verify(logits, drafts, rows_of(parameters, 20), positions)
    assert found.logprobs is not None
    for row in range(40):
        for place in range(4):
            token = int(found.sampled_token_ids[row, place])
            expected = logits[row, place].double().log_softmax(-1)
            likely = float(found.logprobs.sampled[row, place])
            assert (token >= 0) == (place < int(found.num_sampled_tokens[row]))
            if token < 0:
                assert likely == int(found.logprobs.ranks[row, place]) == 0
                continue
            assert likely == pytest.approx(float(expected[token]), abs=1e-5)
            assert int(found.logprobs.ranks[row, place]) == int((expected > expected[token]).sum()) + 1
            best = expected.topk(4)
            assert found.logprobs.top_token_ids[row, place].tolist() == best.indices.tolist()
            assert found.logprobs.top[row, place].tolist() == pytest.approx(best.values.tolist(), abs=1e-5)
    without = verify(logits, drafts, rows_of([PLAIN] * 40, 20), positions)
    assert without.logprobs is None


def test_penalty_and_min_tokens_see_the_drafts_before() -> None:
    """Token 1 leads, then 0. A draft of 1 makes 1 seen: it loses its lead, as it would without drafts."""
    logits = torch.tensor([1.5, 2.0, 0.0]).expand(1, 3, 3)
    punished = rows_of([SamplingParameters(temperature=0, repetition_penalty=2.0)], 3)
    unseen, position = torch.zeros(1, 3, dtype=torch.bool), torch.tensor([4])
    for draft, expected in (([1, 1], [1, 0, -1]), ([1, 0], [1, 0, 1])):
        drafts = Drafts(torch.tensor([draft]), torch.tensor([2]))
        found = verify(logits, drafts, punished, position, seen=unseen)
        assert found.sampled_token_ids.tolist() == [expected]
    with pytest.raises(ValueError, match="the tokens seen so far are needed"):
        verify(logits, drafts, punished, position)
    # Two prompt tokens, at least 3 more: token 1 stops, so it cannot be sampled at position 4, but at 5.
    late = SamplingParameters(temperature=0, min_tokens=3, stop_token_ids=(1,))
    rows = rows_of([late], 3, num_prompt_tokens=2)
    drafts = Drafts(torch.tensor([[0, 1]]), torch.tensor([2]))
    assert verify(logits, drafts, rows, position).sampled_token_ids.tolist() == [[0, 1, 1]]


def test_shapes_that_do_not_fit_are_refused() -> None:
    rows, position = rows_of([PLAIN], 5), torch.tensor([0])
    logits, drafts = torch.zeros(1, 2, 5), Drafts(torch.tensor([[1]]), torch.tensor([1]))
    with pytest.raises(TypeError, match="logits must be float32"):
        verify(logits.double(), drafts, rows, position)
    with pytest.raises(ValueError, match=r"drafts.token_ids must have the shape \(1, 2\), got \(1, 1\)"):
        verify(torch.zeros(1, 3, 5), drafts, rows, position)


HOST_READS = ["item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "numpy", "cpu"]


def test_nothing_is_read_back_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, drafts, parameters, positions, seen = mixed_world(10)
    rows: SamplingRows = rows_of(parameters, 20)

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a tensor was read by the host")

    for with_probabilities in (True, False):
        some = drafts if with_probabilities else Drafts(drafts.token_ids, drafts.num_tokens)
        with monkeypatch.context() as patched:
            for name in HOST_READS:
                patched.setattr(torch.Tensor, name, refuse)
            verify(logits, some, rows, positions, samples=drafts.num_tokens, seen=seen)


def test_a_draft_outside_the_vocabulary_is_not_its_neighbour() -> None:
    """It is not taken for the last token, which q = p would always accept."""
    logits = MODEL[:1, None].expand(1, 2, -1)
    drafts = Drafts(torch.tensor([[VOCAB_SIZE]]), torch.tensor([1]), logits[:, :1].softmax(-1))
    found = verify(logits, drafts, rows_of([PLAIN], VOCAB_SIZE), torch.tensor([0]))
    assert found.num_sampled_tokens.tolist() == [1]


def test_a_greedy_row_does_not_look_at_q() -> None:
    logits, impossible = MODEL[:1, None].expand(1, 2, -1), torch.zeros(1, 1, VOCAB_SIZE)
    rows = rows_of([SamplingParameters(temperature=0), PLAIN], VOCAB_SIZE)
    drafts = Drafts(torch.tensor([[3], [3]]), torch.tensor([1, 1]), impossible.expand(2, -1, -1))
    found = verify(logits.expand(2, -1, -1), drafts, rows, torch.tensor([0, 0]))
    assert found.num_sampled_tokens.tolist() == [2, 1]


def test_a_rejection_that_leaves_nothing_over_samples_the_target() -> None:
    """As rounding can, in small: q is above p everywhere. Token 0 cannot be."""
    rows = many_rows(PLAIN, 500, VOCAB_SIZE)
    logits = MODEL[0].index_fill(0, torch.tensor([0]), -torch.inf).expand(500, 2, -1)
    drafts = Drafts(
        torch.full((500, 1), 3), torch.ones(500, dtype=torch.int64), logits[:, :1].softmax(-1) * 2
    )
    found = verify(logits, drafts, rows, torch.zeros(500, dtype=torch.int64))
    assert found.num_sampled_tokens.unique().tolist() == [1, 2]
    assert int((found.sampled_token_ids == 0).sum()) == 0
