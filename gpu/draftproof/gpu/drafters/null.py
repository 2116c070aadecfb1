"""What if every draft is wrong? All -1: the shapes and the work of speculation, and no draft accepted.

The honest baseline for "the same with and without speculation": matrix products of 1 + K rows may round
differently from those of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class NullDrafter:
    """K null drafts for every request."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def propose(self, requests: Sequence[Any]) -> tuple[Any, Any]:
        """int32[m, K] of -1, int32[m] of K."""
        count = self.num_speculative_tokens
        return np.full((len(requests), count), -1, np.int32), np.full(len(requests), count, np.int32)

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""
