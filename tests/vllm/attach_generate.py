"""Real generation on a CPU: a tiny model with random weights, prompt lookup, three drafts, blocks of 32.

`python -m tests.vllm.attach_generate [CLASS]`: with a class it becomes vLLM's `scheduler_cls`. Random weights
soon repeat themselves, so nearly all drafts are accepted.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NUM_REQUESTS = 24


def generate(scheduler_class: str | None) -> int:
    """How many tokens came."""
    from tests.vllm import attach_process, engine
    from vllm import LLM, SamplingParams, TokensPrompt

    options: dict[str, Any] = {} if scheduler_class is None else {"scheduler_cls": scheduler_class}
    llm = LLM(
        model=engine.model_folder(),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        block_size=32,  # vLLM's attention on CPUs takes multiples of 32 only
        enable_prefix_caching=True,
        enforce_eager=True,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        seed=0,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        },
        **options,
    )
    prompts = [
        TokensPrompt(prompt_token_ids=[7 * number + place for place in range(60 + number)])
        for number in range(NUM_REQUESTS)
    ]
    parameters = [
        SamplingParams(temperature=0, max_tokens=29 + number, ignore_eos=True, detokenize=False)
        for number in range(NUM_REQUESTS)
    ]
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    attach_process.end(llm)
    return sum(len(one.outputs[0].token_ids) for one in outputs)


if __name__ == "__main__":
    print(json.dumps({"tokens": generate(sys.argv[1] if len(sys.argv) > 1 else None)}))
