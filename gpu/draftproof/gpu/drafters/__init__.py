"""Who guesses the next tokens? A drafter; what it guesses moves the speed and never the text.

`drafter_of` makes one from the option `speculate`: None, `"ngram:3"`, `"null:3"`, a draft model
`"draft:MODEL:3"`, an EAGLE-style head `"eagle:FOLDER:3"`, or a drafter object.
"""

from __future__ import annotations

from typing import Any

from draftproof.gpu.drafters.ngram import NgramDrafter
from draftproof.gpu.drafters.null import NullDrafter
from draftproof.gpu.drafters.scripted import ScriptedDrafter
from draftproof.gpu.drafters.step import MAX_SPECULATIVE_TOKENS, Drafter, DraftStep, Proposal
from draftproof.gpu.errors import ModelError
from draftproof.gpu.loading import DRAFTER_FORMS, drafter_option, load

__all__ = [
    "MAX_SPECULATIVE_TOKENS",
    "DraftStep",
    "Drafter",
    "NgramDrafter",
    "NullDrafter",
    "Proposal",
    "ScriptedDrafter",
    "drafter_of",
]


def drafter_of(speculate: Any, decoder: Any = None, seed: int = 0) -> Drafter | None:
    """The drafter that an option means; None without speculation. Raises ModelError for any other option.

    `decoder` is the model that it drafts for: a draft model or a head has its dtype, and is on its device.
    `seed` is that of random weights.
    """
    if speculate is None:
        return None
    if isinstance(speculate, str):
        return _named(speculate, decoder, seed)
    if isinstance(speculate, Drafter):
        return checked(speculate)
    raise ModelError(f"speculate must be None, a Drafter, or one of {DRAFTER_FORMS}, got {speculate!r:.80}")


def _named(speculate: str, decoder: Any, seed: int) -> Drafter:
    kind, argument, count = drafter_option(speculate)
    if kind == "ngram":
        return NgramDrafter(count)
    if kind == "null":
        return NullDrafter(count)
    assert argument is not None
    if kind == "draft":
        from draftproof.gpu.drafters.draft_model import DraftModelDrafter

        loaded = load(argument, dtype=decoder.dtype, device=decoder.device, seed=seed)
        return DraftModelDrafter(loaded.decoder, count)
    from draftproof.gpu.drafters.eagle import EagleDrafter, EagleHead

    if argument == "random":
        return EagleDrafter(EagleHead.random(decoder.shape, seed, decoder.dtype, decoder.device), count)
    return EagleDrafter(EagleHead.load(argument, decoder.dtype, decoder.device), count)


def checked(drafter: Drafter) -> Drafter:
    """The drafter, if its number of drafts can be."""
    count = getattr(drafter, "num_speculative_tokens", None)
    if type(count) is not int or not 1 <= count <= MAX_SPECULATIVE_TOKENS:
        raise ModelError(f"a drafter proposes from 1 to {MAX_SPECULATIVE_TOKENS} tokens, got {count!r:.80}")
    return drafter
