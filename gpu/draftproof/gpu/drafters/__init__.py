"""Who guesses the next tokens? A drafter; what it guesses moves the speed and never the text.

`drafter_of` makes one from the option `speculate`: None, `"ngram:3"`, `"null:3"`, or a drafter object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from draftproof.gpu.drafters.ngram import NgramDrafter
from draftproof.gpu.drafters.null import NullDrafter
from draftproof.gpu.drafters.scripted import ScriptedDrafter
from draftproof.gpu.errors import ModelError

__all__ = ["DraftRequest", "Drafter", "NgramDrafter", "NullDrafter", "ScriptedDrafter", "drafter_of"]

DRAFTERS = {"ngram": NgramDrafter, "null": NullDrafter}
MAX_SPECULATIVE_TOKENS = 64


class DraftRequest(NamedTuple):
    """A request that wants drafts."""

    request_id: str
    token_ids: Any
    """int32[n]: prompt and output so far. To be read before the next step, and not written."""


@runtime_checkable
class Drafter(Protocol):
    """What the runner asks after every step, and takes into the next one."""

    @property
    def num_speculative_tokens(self) -> int:
        """K: the most drafts for a request in one step."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> tuple[Any, Any]:
        """int32[m, K] drafts, -1 for one that cannot be accepted, and int32[m], how many of them count."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has finished."""


def drafter_of(speculate: Any) -> Drafter | None:
    """The drafter that an option names; None without speculation. Raises ModelError for any other option."""
    if speculate is None:
        return None
    if isinstance(speculate, str):
        name, _, number = speculate.partition(":")
        if name in DRAFTERS and number.isascii() and number.isdecimal() and len(number) <= 3:
            return _checked(DRAFTERS[name](int(number)))
    elif isinstance(speculate, Drafter):
        return _checked(speculate)
    raise ModelError(
        f"speculate must be None, a drafter, or a drafter's name and its number of drafts such as "
        f'"ngram:3" or "null:3", got {speculate!r:.80}'
    )


def _checked(drafter: Drafter) -> Drafter:
    count = drafter.num_speculative_tokens
    if type(count) is not int or not 1 <= count <= MAX_SPECULATIVE_TOKENS:
        raise ModelError(f"a drafter proposes from 1 to {MAX_SPECULATIVE_TOKENS} tokens, got {count!r:.80}")
    return drafter
