"""Does Hugging Face's transformers say the same, greedily, token for token?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.llm_world import modes  # noqa: E402
from tests.gpu.smollm2_world import GREEDY, folder, llm, smollm2, tokens  # noqa: E402
from tests.gpu.test_models import FAMILIES, SIZES, peer_model  # noqa: E402

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402

MAX_TOKENS, TOLERANCE, NUM_TOP = 16, 1e-3, 10
CHAT = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "It is Paris."},
    {"role": "user", "content": "And of Italy?"},
]
TEXTS = {
    "one token": "Hello",
    "a line's end": "\n",
    "a sentence": "The capital of France is",
    "a long text": "It was a bright cold day in April, and the clocks were striking thirteen. " * 16,
    "Python": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "C": '#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf("%d\\n", i',
    "HTML": '<ul class="menu">\n  <li><a href="/">Home</a></li>\n  <li><a href="/about">',
    "JSON": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "',
    "a table": "| n | square |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |\n| 3 |",
    "German": "Es war einmal ein König, der hatte drei Töchter, und",
    "French": "Il était une fois une petite fille que tout le monde aimait;",
    "Chinese": "从前有座山，山里有座庙，庙里有个",
    "Arabic": "كان يا ما كان في قديم الزمان",
    "emoji": "🎉🎉 Happy birthday 👩‍👩‍👧! 🎂🎈",
    "formulas": "Let $f(x) = x^2 + 1$. Then $f'(x) = ",
    "repetitive": "knock knock, who is there? " * 6,
    "numbers": "1, 2, 4, 8, 16, 32, 64, 128,",
    "white space": "a\t\tb\n\n\n    c  \n",
    "shouting": "WARNING!!! DO NOT OPEN THIS DOOR!!! THE",
}


def prompts() -> list[list[int]]:
    """Twenty: texts, and a conversation in the model's own template."""
    tokenizer = smollm2().tokenizer
    assert tokenizer is not None
    return [*map(tokens, TEXTS.values()), tokenizer.encode_chat(CHAT)]


def peers_answer(model: Any, prompt: list[int], eos_token_ids: tuple[int, ...]) -> tuple[list[int], Any]:
    """The tokens that transformers generates, and the log-probabilities of all tokens: float32[n, V]."""
    token_ids = torch.tensor([prompt], device=DEVICE)
    found = model.generate(
        token_ids, attention_mask=torch.ones_like(token_ids), do_sample=False, max_new_tokens=MAX_TOKENS,
        eos_token_id=list(eos_token_ids) or None, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return found.sequences[0, len(prompt) :].tolist(), torch.cat(found.logits).log_softmax(-1)


def check(result: RequestResult, expected: list[int], logprobs: Any) -> None:
    """Same tokens; their log-probabilities, and those of the ten most likely tokens, to a thousandth."""
    assert list(result.token_ids) == expected
    assert result.logprobs is not None
    for one, row in zip(result.logprobs, logprobs, strict=True):
        assert len(one.top) == NUM_TOP
        for token_id, logprob in ((one.token_id, one.logprob), *one.top):
            assert abs(logprob - float(row[token_id])) < TOLERANCE


PARAMETERS = replace(GREEDY, max_tokens=MAX_TOKENS, ignore_eos=False, logprobs=NUM_TOP)


@pytest.fixture(scope="module")
def peers_answers() -> list[tuple[list[int], Any]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32).to(DEVICE).eval()
    return [peers_answer(model, prompt, smollm2().decoder.shape.eos_token_ids) for prompt in prompts()]


@modes
def test_smollm2_says_what_transformers_says(asynchronous: bool, peers_answers: Any) -> None:
    """Twenty prompts of different kinds, all at once here and one after the other there."""
    one = llm("ngram:3", asynchronous=asynchronous, num_blocks=200, long_prefill_token_threshold=100)
    results = one.generate(prompts(), PARAMETERS)
    assert len(results) == 20
    for result, (expected, logprobs) in zip(results, peers_answers, strict=True):
        check(result, expected, logprobs)
    totals = one.engine.totals
    assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0 and totals.num_prefill_chunks > 0


@modes
@pytest.mark.parametrize("name", ["llama", "llama-llama3", "qwen2", "qwen3", "qwen3-tied-biased"])
def test_random_models_say_what_transformers_says(name: str, asynchronous: bool, tmp_path: Path) -> None:
    """The same weights loaded by both."""
    model = peer_model(*FAMILIES[name])
    model.save_pretrained(tmp_path)
    model = model.to(DEVICE)
    generator = torch.Generator().manual_seed(2)
    lengths = (1, 3, 17, 40, 60)
    some = [torch.randint(0, SIZES["vocab_size"], (size,), generator=generator).tolist() for size in lengths]
    some.append([5, 6, 7, 8] * 8)
    one = LLM(
        str(tmp_path), speculate="ngram:3", asynchronous=asynchronous, dtype="float32", device=DEVICE,
        compiled=False, num_blocks=100, long_prefill_token_threshold=23,
    )  # fmt: skip
    results = one.generate(some, replace(PARAMETERS, ignore_eos=True))
    for prompt, result in zip(some, results, strict=True):
        check(result, *peers_answer(model, prompt, ()))
    totals = one.engine.totals
    assert totals.num_rejected_drafts > 0 and totals.num_prefill_chunks > 0
    assert totals.num_accepted_drafts > 0
