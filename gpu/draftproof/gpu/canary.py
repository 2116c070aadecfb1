"""Does every slot of the KV cache hold what its reader believes it holds? The proof's ghost, made real.

Beside the KV cache lies one int64 for each slot: the hash of the tokens that the slot's key and value were
computed from, the first to the slot's own. Each request has the hashes of its own prefixes. Every step the
slots that a row is about to attend to, positions 0 to its length less one, are compared with these. KV of a
rejected draft, of another request, of a freed or forgotten block shows at once, although the sampled token
may well stay the same. Keys and values are not looked at: who writes them wrongly into the right slot is
found by other tests.

The hash of tokens t[0], ..., t[n - 1] is the sum of (t[i] + 2) * r[i] modulo 2**64, r drawn at random from a
seed, an integer of 64 bits for each position (the multilinear family of Carter and Wegman 1979; modulo a
power of two: Lemire and Kaser 2014). So all prefixes of a text are one product and one cumulative sum, and
appending starts from the last one. Two texts of one length, or of two, differ by a form with a coefficient
that is not 0 and at most 2**b for token ids below 2**b; such a form is 0 for at most a share of 2**-(64 - b)
of all r. A wrong slot therefore goes unseen with a probability of at most 2**-46 for vocabularies up to
2**18 = 262144, and 2**-33 whatever the tokens. The bound is for texts that were chosen without knowing r.
That torch's int64 wraps around, in products and sums, is tested.

A count of computed tokens that is one too small is not seen: the token is computed again, from the same
prefix into the same slot, and the cache holds what it should.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional

from draftproof.gpu.attention.kv_cache import NULL_SLOT, chosen_blocks
from draftproof.gpu.attention.step_rows import RowSpan, StepRows
from draftproof.gpu.errors import ModelError, check_integer, refuse_unless

NEVER_WRITTEN, FORGOTTEN, NOT_KNOWN = -(2**63), -(2**63) + 1, -(2**63) + 2
"""Not hashes: what a slot holds before the first write, and after its block was forgotten; what is expected
of a row's position that no token was observed for. A hash equals one as rarely as another hash."""
SMALLEST_TOKEN = -1
"""Stands for a draft that is certain to be rejected."""
POSITION, BLOCK, EXPECTED, FOUND = range(4)
"""Columns of what `Canary.check` returns."""
NO_MISMATCH = -1
MAX_CELLS = 2**40


class CanaryError(RuntimeError):
    """A row reads a slot that was not computed from the row's own tokens."""

    trace = ""
    """The file with the trace; empty if none was written."""

    def __init__(
        self, request: str, step: int, position: int, block: int, expected: int, found: int, meaning: str
    ) -> None:
        super().__init__(
            f"step {step} reads position {position} of request {request} from block {block}, which does not "
            f"hold it: expected {hash_text(expected)}, found {hash_text(found)}, {meaning}"
        )
        self.request, self.step, self.position, self.block = request, step, position, block
        self.expected, self.found = expected, found


class Canary:
    """The hashes of every slot and of every row's prefixes, for one group of full attention.

    `num_rows` are the scheduler's rows, `num_blocks` the KV cache's, the null block on top. Takes 8 bytes
    for each slot and for each of `num_rows * max_model_len` positions. Raises ModelError for sizes that
    cannot be or that memory does not suffice for.

    In a step: `copy_blocks`, `observe_tokens` of what became known and of the drafts, then `check`, then
    attention; none of these waits for the device. `problem` does, and belongs where the outcome is read.
    """

    def __init__(
        self,
        num_rows: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        device: Any = "cpu",
        seed: int = 0,
    ) -> None:
        sizes = {"num_rows": num_rows, "max_model_len": max_model_len, "num_blocks": num_blocks,
                 "block_size": block_size}  # fmt: skip
        for name, size in sizes.items():
            check_integer(name, size, 2**31 - 1)
        num_cells = num_rows * (max_model_len + 2) + (num_blocks + 1) * block_size
        refuse_unless(num_cells <= MAX_CELLS, f"a KV canary of {8 * num_cells} bytes is too large: lower "
                      "max_model_len or the number of rows")  # fmt: skip
        self.num_rows, self.max_model_len, self.block_size = num_rows, max_model_len, block_size
        self.num_blocks = num_blocks
        limits = np.iinfo(np.int64)
        factors = np.random.default_rng(seed).integers(limits.min, limits.max, max_model_len, endpoint=True)
        try:
            self.factors: Any = torch.from_numpy(factors).to(device)
            """int64[max_model_len]: r"""
            self.blocks: Any = torch.full(
                (num_blocks + 1, block_size), NEVER_WRITTEN, dtype=torch.int64, device=device
            )
            """int64[num_blocks + 1, block_size]: what each slot was computed from"""
            self.prefixes: Any = torch.zeros((num_rows, max_model_len + 2), dtype=torch.int64, device=device)
            """int64[num_rows, max_model_len + 2]: column n is the hash of a row's first n tokens, the last
            column takes what is not to be kept"""
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"no memory for a KV canary of {8 * num_cells} bytes on {device}: lower max_model_len or "
                "the number of rows"
            ) from error
        self.num_observed: Any = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """int64[num_rows]: the tokens of each row that were observed last, drafts included"""
        self.device = self.blocks.device

    def observe_tokens(self, row_ids: Any, starts: Any, token_ids: Any, counts: Any) -> None:
        """The rows' tokens from position `starts` on are these: prompts, chunks, sampled tokens, drafts.

        `row_ids`, `starts` and `counts` are int64[n], `token_ids` int64[n, m]; the first `counts` of each
        line count. Rows differ from each other. What a row was said to have behind them is forgotten: so
        sampled tokens replace rejected drafts, and drafts are observed for the step that verifies them, at
        the position behind the last known token. A token of -1 is a draft that nobody may take. Say the
        tokens from their source, not from what is fed to the model: a step that feeds others is then seen.
        Only enqueues work.
        """
        offsets = torch.arange(token_ids.shape[1], device=self.device)
        positions = starts[:, None] + offsets
        is_kept = (offsets < counts[:, None]) & (positions < self.max_model_len)
        terms = self._terms(token_ids, positions)
        before = self.prefixes[row_ids, starts.clamp_max(self.max_model_len)]
        hashes = before[:, None] + terms.cumsum(1)
        columns = torch.where(is_kept, positions + 1, self.max_model_len + 1)
        self.prefixes.index_put_((row_ids[:, None], columns), hashes)
        self.num_observed.index_copy_(0, row_ids, starts + counts)

    def check(self, rows: StepRows, row_ids: Any, token_ids: Any) -> Any:
        """Note what the step writes, and compare what it reads: int64[R, 4], the first mismatch of each row.

        `row_ids` is int64[R] or shorter by the padding rows: the scheduler's row of each row of the step.
        `token_ids` is int64[T]: what the model is fed. The columns are `POSITION`, -1 for a row without a
        mismatch; `BLOCK`; `EXPECTED` and `FOUND`, hashes. As attention does, all rows write before any
        reads. Reads are padded to the longest row of each span, and take some 40 bytes of memory each while
        they are compared. Only enqueues work.
        """
        missing = rows.num_rows - row_ids.shape[0]
        if missing:
            row_ids = torch.nn.functional.pad(row_ids, (0, missing))
        self._write(rows, row_ids, token_ids)
        parts = [self._compare(rows, row_ids, span) for span in rows.spans]
        return torch.cat(parts) if parts else self.blocks.new_zeros((0, 4))

    def problem(self, mismatches: Any, step: int, requests: Sequence[str]) -> CanaryError | None:
        """The error to raise for what `check` returned, if there is one; waits for the device.

        `requests` are the ids of the step's rows, in its order.
        """
        found = mismatches.cpu()
        for place, (position, block, expected, actual) in enumerate(found.tolist()):
            if position != NO_MISMATCH:
                name = requests[place] if place < len(requests) else f"of padding row {place}"
                meaning = self._meaning(actual, position)
                return CanaryError(name, step, position, block, expected, actual, meaning)
        return None

    def forget(self, block_ids: Sequence[int] | Any) -> None:
        """Blocks were freed, and the prefix cache does not know them: whoever still reads them is wrong.

        `block_ids` are integers on the host, whose copy to a GPU waits (between steps, then), or int64[n] on
        the device, which are not checked. A freed block that a look-up may still find is not to be forgotten.
        Raises IndexError for the null block and for blocks that there are not.
        """
        if not isinstance(block_ids, torch.Tensor):
            chosen = chosen_blocks(block_ids, self.num_blocks, "forgotten")
            if not chosen:
                return
            block_ids = torch.tensor(chosen, device=self.device)
        self.blocks.index_fill_(0, block_ids, FORGOTTEN)

    def copy_blocks(self, sources: Any, targets: Any) -> None:
        """What `KVCache.copy_blocks` copies: int64[n] each, all sources read before a target is written."""
        self.blocks.index_copy_(0, targets, self.blocks.index_select(0, sources))

    def _terms(self, token_ids: Any, positions: Any) -> Any:
        """What each token adds to the hash, of the shape of both."""
        # A position beyond the model's length takes some factor: nothing is kept of it.
        factors = self.factors[positions.clamp(0, self.max_model_len - 1)]
        return (token_ids.to(torch.int64) + (1 - SMALLEST_TOKEN)) * factors

    def _write(self, rows: StepRows, row_ids: Any, token_ids: Any) -> None:
        """Each fed token's slot gets the row's own prefix before the step, extended by what it is fed."""
        starts = rows.query_starts.to(torch.int64)
        ends = starts[1:]
        computed = (rows.sequence_lengths - (ends - starts[:-1])).clamp(0, self.max_model_len)
        tokens = torch.arange(rows.num_tokens, device=self.device)
        token_rows = torch.searchsorted(ends, tokens, right=True)
        sums = torch.nn.functional.pad(self._terms(token_ids, rows.positions).cumsum(0), (1, 0))
        before = self.prefixes[row_ids, computed] - sums[starts[:-1]]
        slots = self.blocks.view(-1)
        slots.index_copy_(0, rows.slot_mapping, sums[1:] + before[token_rows])
        slots[NULL_SLOT].fill_(NEVER_WRITTEN)  # padding rows write there, and nobody reads it

    def _compare(self, rows: StepRows, row_ids: Any, span: RowSpan) -> Any:
        """int64[rows of the span, 4]"""
        chosen = row_ids[span.first_row : span.last_row]
        lengths = rows.sequence_lengths[span.first_row : span.last_row, None]
        places = torch.arange(max(1, span.max_sequence_length), device=self.device)
        tables = rows.block_tables[span.first_row : span.last_row, places // self.block_size].to(torch.int64)
        found = self.blocks[tables, places % self.block_size]
        columns = places.clamp_max(self.max_model_len - 1) + 1
        is_known = places < self.num_observed[chosen, None].clamp_max(self.max_model_len)
        expected = torch.where(is_known, self.prefixes[chosen[:, None], columns], NOT_KNOWN)
        is_wrong = (found != expected) & (places < lengths)
        # The first of them; argmax takes the first of equals.
        first = is_wrong.to(torch.int8).argmax(1, keepdim=True)
        position = torch.where(is_wrong.gather(1, first), first, NO_MISMATCH)
        others = [part.gather(1, first) for part in (tables, expected, found)]
        return torch.cat([position, *others], 1)

    def _meaning(self, found: int, position: int) -> str:
        """Whose prefix that is, as far as rows know it now."""
        special = {
            NEVER_WRITTEN: "a slot that nothing was written to",
            FORGOTTEN: "a slot of a block that was freed",
        }
        if found in special:
            return special[found]
        owners = (self.prefixes[:, 1:-1] == found).nonzero().tolist()
        if not owners:
            return "a prefix that no row has now: a rejected draft's, or an earlier request's"
        row, last = min(owners, key=lambda owner: abs(owner[1] - position))
        return f"the prefix of row {row} up to its position {last}"


def hash_text(value: int) -> str:
    """A hash as it is printed: 16 hexadecimal digits, or what stands in its place."""
    names = {NEVER_WRITTEN: "nothing", FORGOTTEN: "nothing", NOT_KNOWN: "no token known there"}
    return names.get(value, f"{value & 2**64 - 1:016x}")
