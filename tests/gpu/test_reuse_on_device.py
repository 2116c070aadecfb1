"""Does a finished speculative request leave all its settled blocks to the next one, on the device there is?

A prompt of 45 tokens, blocks of 16, three drafts a step: the prompt's step samples one token, the next step
accepts two of its drafts and samples another one. 49 tokens are known then and 48 computed: three whole
blocks. vLLM frees the request before the third one is registered, and the next request finds 32.

Of Qwen3-0.6B in float16, where this was first seen, the weights are looked for in the folder that
DRAFTPROOF_QWEN3_FOLDER names; a random model of its kind stands in where a GPU or the weights are missing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402

from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.loading import load  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

FOLDER = "DRAFTPROOF_QWEN3_FOLDER"
BLOCK_SIZE, NUM_DRAFTS, NUM_PROMPT_TOKENS = 16, 3, 45
TEXT = (
    "The lighthouse stands on a rock in front of the harbour. At night its lamp turns, and the ships that "
    "come home from the sea count the seconds between two flashes, and so know which one it is. "
)


def greedy(max_tokens: int) -> SamplingParameters:
    return SamplingParameters(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def check_reuse(decoder: Any, prompt: list[int], asynchronous: bool) -> None:
    """That 48 tokens are found again, and that what follows them is what a fresh cache gives."""

    def llm(speculate: Any = None) -> LLM:
        return LLM(
            decoder, speculate=speculate, asynchronous=asynchronous, block_size=BLOCK_SIZE, num_blocks=64,
            max_model_len=512, max_num_seqs=4, compiled=False,
        )  # fmt: skip

    assert len(prompt) == NUM_PROMPT_TOKENS
    text = [*prompt, *llm().generate([prompt], greedy(16))[0].token_ids]
    one = llm(ScriptedDrafter(NUM_DRAFTS, [text], (2,), decoder.shape.vocab_size))
    first = one.generate([prompt], greedy(4))[0]
    assert (first.num_draft_tokens, first.num_accepted_tokens, first.num_cached_tokens) == (3, 2, 0)
    known = [*prompt, *first.token_ids]
    assert known == text[:49]
    for extension in ([], [5, 6, 7]):  # repeated, and extended
        longer = [*known, *extension]
        again = one.generate([longer], greedy(6))[0]
        assert again.num_cached_tokens == 48
        assert again.token_ids == llm().generate([longer], greedy(6))[0].token_ids


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_random_qwen3_reuses_48_tokens(asynchronous: bool) -> None:
    prompt = [(7 * place * place + 3) % 500 for place in range(NUM_PROMPT_TOKENS)]
    check_reuse(load("random:qwen3", dtype="float32", device=DEVICE).decoder, prompt, asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_qwen3_in_float16_reuses_48_tokens(asynchronous: bool) -> None:
    if DEVICE != "cuda":
        pytest.skip("no GPU: Qwen3-0.6B in float16 is for a CUDA device")
    if not os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} does not name a folder with the weights of Qwen3-0.6B")
    loaded = load(os.environ[FOLDER], dtype="float16", device=DEVICE)
    assert loaded.tokenizer is not None
    prompt = loaded.tokenizer.encode(TEXT * 2)[:NUM_PROMPT_TOKENS]
    check_reuse(loaded.decoder, prompt, asynchronous)
