"""How does a step carry states from token to token? One scan over all rows at once, then the states are kept.

h_t = a_t h_{t-1} + b_t is a chain of affine maps; two neighbours compose to a third, so all prefixes of a row
come out of log2(longest row) passes over the flat batch (Hillis and Steele 1986; Blelloch 1990 for
recurrences). A token takes in only what lies in its own row, by distances in that row: what a row comes to
does not depend on the batch around it, not in a single bit.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.gpu.attention.step_rows import StepRows
from draftproof.gpu.recurrent.state_cache import StateCache
from draftproof.gpu.recurrent.state_rows import StateMoves


class Recurrence:
    """The recurrence of one step, called once for each recurrent layer. Only enqueues work.

    Its launches depend on the shape of the step on the host only, so a step can be captured in a graph.
    """

    def __init__(self, cache: StateCache, step: StepRows, moves: StateMoves) -> None:
        """`step` and `moves` are of the same rows (`state_moves`)."""
        self.cache, self.moves = cache, moves
        starts = step.query_starts.to(torch.int64)
        tokens = torch.arange(step.num_tokens, device=cache.device)
        self.token_rows = torch.searchsorted(starts[1:], tokens, right=True)
        self.offsets = (tokens - starts[self.token_rows])[:, None]
        self.max_query_length = max(span.max_query_length for span in step.spans)

    def __call__(self, layer: int, decay: Any, update: Any) -> Any:
        """float32[T, state_size]: the state after each token, h_t = decay_t h_{t-1} + update_t.

        Every row's first state is read before any is written. Those that padding rows start from and leave
        are zero.
        """
        moves = self.moves
        first = self.cache.states[layer].index_select(0, moves.sources)
        # Chosen, not multiplied: in a block that is new to a row may be anything, also NaN.
        first = torch.where(moves.starts_anew[:, None], 0.0, first)
        update = torch.where(self.offsets == 0, update + decay * first[self.token_rows], update)
        states = self._scan(decay, update)
        self.cache.write(layer, moves.targets, states[moves.tokens])
        return states

    def _scan(self, decay: Any, update: Any) -> Any:
        """All prefixes of every row: after the pass with a distance, twice as many tokens are taken in."""
        distance = 1
        while distance < self.max_query_length:
            reaches = self.offsets[distance:] >= distance
            joined = update[distance:] + decay[distance:] * update[:-distance]
            product = decay[distance:] * decay[:-distance]
            update = torch.cat([update[:distance], torch.where(reaches, joined, update[distance:])])
            decay = torch.cat([decay[:distance], torch.where(reaches, product, decay[distance:])])
            distance *= 2
        return update
