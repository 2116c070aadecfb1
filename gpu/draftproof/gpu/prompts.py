"""What may a prompt be? A text, or token ids; what comes in becomes lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.gpu.errors import ModelError
from draftproof.gpu.tokenizer import Tokenizer
from draftproof.impl.scheduler import RequestError

Prompt = str | Sequence[int]


def token_ids_of(prompts: Any, tokenizer: Tokenizer | None) -> list[Any]:
    """Token ids of each prompt, not yet checked; one prompt may be given alone. Raises RequestError."""
    if isinstance(prompts, str):
        prompts = [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise RequestError(f"prompts must be a list of texts or of lists of token ids, got {prompts!r:.80}")
    if prompts and all(isinstance(one, int) for one in prompts):
        prompts = [prompts]
    return [_one(place, prompt, tokenizer) for place, prompt in enumerate(prompts)]


def _one(place: int, prompt: Any, tokenizer: Tokenizer | None) -> Any:
    if not isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        raise RequestError(f"prompt {place} is a text, and this model has no tokenizer: give token ids")
    try:
        return tokenizer.encode(prompt)
    except ModelError as problem:
        raise RequestError(f"prompt {place}: {problem}") from problem
