"""What does the device do in a step? Count, embed, attend, verify, count again, draft: all of it enqueued.

Nothing in a step waits for the device: shapes come from the host's integers, and what the host wants to know
is copied back behind the step (`Pending`). So a step may be launched before the last one has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention import GatherAttention, KVCache, StepRows, step_rows
from draftproof.gpu.attention.step_rows import to_device
from draftproof.gpu.canary import Canary
from draftproof.gpu.device_ledger import Dispatched
from draftproof.gpu.drafters.step import Drafter, DraftStep
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.recurrent import (
    Recurrence,
    StateCache,
    StateRows,
    note_accepted,
    state_moves,
    state_rows,
)
from draftproof.gpu.runner.device_state import DeviceState
from draftproof.gpu.runner.graphs import Graphs
from draftproof.gpu.runner.outcome import LOGPROBS, Outcome, Pending, outcome_of
from draftproof.gpu.runner.step_input import RowSampling, StepInput
from draftproof.gpu.sampling import Drafts, SamplingRows, Verified, build_rows, verify
from draftproof.gpu.sampling.distribution import token_set
from draftproof.impl.scheduler import SchedulerConfig

NO_STATES = np.zeros((2, 0), np.int64)
Backend = Callable[[KVCache, Any, int], Any]


class Given(NamedTuple):
    """A step's arrays on the device."""

    lines: Any
    sampling_places: Any
    logit_tokens: Any
    rectangle: Any
    states: Any
    copies: Any
    num_tokens: Any
    num_drafts: Any
    block_tables: Any
    query_starts: Any


class Launched(NamedTuple):
    """A step that is on its way, and what is needed to read it."""

    step: StepInput
    pending: Pending


class Runner:
    """One model with its KV cache, and perhaps a drafter and a canary, on one device."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        config: SchedulerConfig,
        drafter: Drafter | None = None,
        backend: Backend = GatherAttention,
        canary: Canary | None = None,
        states: StateCache | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        """`states`: of a model with recurrent layers, whose `forward` takes a recurrence too. `graphs`: for
        steps that are alike; without them all run eagerly."""
        self.states, self.graphs = states, graphs
        self.decoder, self.cache, self.config, self.backend = decoder, cache, config, backend
        self.drafter, self.canary = drafter, canary
        self.state = DeviceState(config, decoder.shape.vocab_size, decoder.device)
        self.group_size = decoder.shape.num_heads // decoder.shape.num_kv_heads
        self._sampling: dict[int, RowSampling] = {}
        self._sampling_rows: SamplingRows | None = None
        self._sampling_lines: tuple[int, ...] = ()

    def launch(self, step: StepInput) -> Launched:
        """Enqueue a step. Raises whatever torch raises where memory does not suffice; then nothing of the
        step counts."""
        with torch.inference_mode():
            self._start(step)
            sampling = self._rows_to_sample(step)
            tensors = None if self.graphs is None else self.graphs.run(self, step, sampling)
            if tensors is None:
                tensors = self._step(step, sampling)
        are_reused = self.graphs is not None
        return Launched(step, Pending(tensors, self.decoder.device, are_reused=are_reused))

    def read(self, launched: Launched) -> Outcome:
        """The outcome, once the step has run. Raises CanaryError if it read a wrong slot."""
        step, arrays = launched.step, launched.pending.arrays()
        if self.canary is not None:
            problem = self.canary.problem(torch.from_numpy(arrays["mismatches"]), step.step, step.request_ids)
            if problem is not None:
                raise problem
        return outcome_of(arrays, step.sampling_places, step.num_rows, self.config.num_speculative_tokens)

    # ---- before the step ----

    def _start(self, step: StepInput) -> None:
        if len(step.freed_blocks):
            self.poison(step.freed_blocks)
        if step.starts is None:
            return
        self._sampling.update(zip(step.starts.lines.tolist(), step.starts.sampling, strict=True))
        self._sampling_lines = ()
        lines, texts, num_tokens = self.state.start(step.starts)
        if self.canary is not None:
            self.canary.observe_tokens(lines, torch.zeros_like(lines), texts, num_tokens)

    def poison(self, block_ids: Any) -> None:
        """Nobody may read these blocks any more, int64[n] on the host."""
        self.cache.poison(block_ids)
        if self.states is not None:
            self.states.poison(block_ids)
        if self.drafter is not None:
            self.drafter.poison(torch.from_numpy(block_ids).to(self.decoder.device))
        if self.canary is not None:
            self.canary.forget(block_ids)

    def _rows_to_sample(self, step: StepInput) -> SamplingRows:
        """The rows' parameters on the device; those of the last step if the rows are the same."""
        lines = tuple(step.lines.tolist())
        if self._sampling_rows is None or lines != self._sampling_lines:
            rows = [self._sampling[line] for line in lines]
            shape = self.decoder.shape
            self._sampling_rows = build_rows(
                [row.parameters for row in rows],
                [row.seed for row in rows],
                [row.num_prompt_tokens for row in rows],
                vocab_size=shape.vocab_size,
                eos_token_ids=shape.eos_token_ids,
                device=self.decoder.device,
            )
            self._sampling_lines = lines
        return self._sampling_rows

    # ---- the step: nothing below waits for the device ----

    def _step(self, step: StepInput, sampling: SamplingRows) -> dict[str, Any]:
        return self.compute(step, self.given(step), sampling)

    def compute(self, step: StepInput, given: Given, sampling: SamplingRows) -> dict[str, Any]:
        """The step on what it was given: the same kernels on the same memory every time, if `step` and the
        host's part of `sampling` are the same."""
        dispatched = self.state.ledger.dispatch(given.lines, given.num_drafts, given.num_tokens)
        rows = step_rows(
            given.block_tables, given.query_starts, dispatched.sequence_lengths,
            step.rows.spans, step.rows.num_tokens, self.cache.block_size, step.rows.parts,
        )  # fmt: skip
        fed = self._fed(given, rows, dispatched)
        tensors = {"ledgers_at_dispatch": dispatched.columns}
        if self.canary is not None:
            tensors["mismatches"] = self._check(given, rows, dispatched, fed)
        fed = fed.clamp_min(0)  # a null draft: what it leaves behind is never read
        hidden, moved = self._forward(given, rows, fed)
        return tensors | self._after(step, given, dispatched, rows, sampling, fed, hidden, moved)

    def _forward(self, given: Given, rows: StepRows, fed: Any) -> tuple[Any, StateRows | None]:
        """Hidden states [T, hidden_size]; and the rows whose recurrent states have moved."""
        attend = self.backend(self.cache, rows, self.group_size)
        if self.states is None:
            return self.decoder.forward(fed, rows.positions, attend), None
        self.states.copy_blocks(given.copies[0], given.copies[1])
        moved = state_rows(given.states)
        moves = state_moves(
            moved, rows, self.state.accepted_slots, self.config.chunk_alignment, self.state.num_drafts
        )
        decoder: Any = self.decoder
        return decoder.forward(fed, rows.positions, attend, Recurrence(self.states, rows, moves)), moved

    def given(self, step: StepInput) -> Given:
        """A step's arrays on the device, in memory of their own."""
        states, copies = (NO_STATES, NO_STATES) if step.states is None else step.states
        arrays = (
            step.lines, step.sampling_places, step.logit_tokens, step.rectangle, states, copies,
            step.num_tokens, step.num_drafts, step.rows.block_tables, step.rows.query_starts,
        )  # fmt: skip
        return Given(*to_device(arrays, self.decoder.device))

    def _fed(self, given: Given, rows: StepRows, dispatched: Dispatched) -> Any:
        """int64[T]"""
        tokens = torch.arange(rows.num_tokens, device=self.decoder.device)
        token_rows = torch.searchsorted(rows.query_starts[1:].to(torch.int64), tokens, right=True)
        num_tokens = dispatched.num_tokens_before[token_rows]
        return self.state.fed(given.lines[token_rows], rows.positions, num_tokens)

    def _check(self, given: Given, rows: StepRows, dispatched: Dispatched, fed: Any) -> Any:
        """What the canary finds, int64[R, 4]: drafts are what stands behind the known tokens."""
        assert self.canary is not None
        before = dispatched.num_tokens_before.to(torch.int64)
        if self.state.num_drafts:
            drafts = self.state.drafts.index_select(0, given.lines)
            self.canary.observe_tokens(given.lines, before, drafts, given.num_drafts.to(torch.int64))
        return self.canary.check(rows, given.lines, fed)

    def _after(
        self,
        step: StepInput,
        given: Given,
        dispatched: Dispatched,
        rows: StepRows,
        sampling: SamplingRows,
        fed: Any,
        hidden: Any,
        moved: StateRows | None,
    ) -> dict[str, Any]:
        """Verify, count, and draft."""
        state, places = self.state, given.sampling_places
        tensors: dict[str, Any] = {}
        if len(step.sampling_places):
            verified, null_drafts = self._verify(step, given, dispatched, sampling, hidden)
            tokens, num_sampled_there = verified.sampled_token_ids, verified.num_sampled_tokens
            tensors |= {"sampled_token_ids": tokens, "are_numbers": verified.are_numbers}
            if verified.logprobs is not None:
                found = verified.logprobs
                tensors |= zip(
                    LOGPROBS, (found.sampled, found.ranks, found.top_token_ids, found.top), strict=True
                )
        else:
            tokens = torch.zeros((0, 1), dtype=torch.int32, device=self.decoder.device)
            num_sampled_there, null_drafts = tokens[:, 0], tokens[:, 0]
        num_sampled, num_kept, stopped = state.kept(
            given.lines, dispatched, places, tokens, num_sampled_there
        )
        at_end = state.ledger.settle(
            given.lines, dispatched, given.num_tokens, given.num_drafts, num_sampled, num_kept, stopped,
            all_sample=len(step.sampling_places) == step.num_rows,
        )  # fmt: skip
        if len(step.sampling_places):
            lines = given.lines[places]
            before = dispatched.num_tokens_before[places].to(torch.int64)
            state.append(lines, before, tokens)
            if self.canary is not None:
                self.canary.observe_tokens(
                    lines, before, tokens.to(torch.int64), num_kept[places].to(torch.int64)
                )
        if moved is not None:
            note_accepted(state.accepted_slots, moved, num_sampled)
        num_tokens = dispatched.num_tokens_before + torch.where(dispatched.is_live, num_kept, 0)
        drafts, counts = self._draft(
            step, given, dispatched, rows, sampling, fed, hidden, num_tokens, num_sampled
        )
        nulls = torch.zeros_like(num_sampled).index_copy(0, places, null_drafts.to(torch.int32))
        return tensors | {
            "num_sampled": num_sampled,
            "num_kept": num_kept,
            "stopped": stopped,
            "num_null_drafts": nulls,
            "ledgers_at_end": at_end,
            "draft_token_ids": drafts,
            "num_draft_tokens": counts,
        }

    def _verify(
        self, step: StepInput, given: Given, dispatched: Dispatched, sampling: SamplingRows, hidden: Any
    ) -> tuple[Verified, Any]:
        """The outcome of the r rows that sample, and their null drafts."""
        state, places = self.state, given.sampling_places
        logits = self._logits(step, given, hidden)
        lines, num_drafts = given.lines[places], given.num_drafts[places]
        width = logits.shape[1] - 1
        token_ids = state.drafts[lines, :width]
        counted = torch.arange(width, device=logits.device) < num_drafts[:, None]
        probabilities = None
        if state.draft_probabilities is not None and width:
            probabilities = state.draft_probabilities[lines, :width]
        rows = sampling
        if len(step.sampling_places) < step.num_rows:
            rows = sampling.select(places)
        first_position = dispatched.num_tokens_before[places].to(torch.int64)
        seen = None
        if rows.any_penalty:
            seen = self._seen(step, lines, first_position)
        drafts = Drafts(torch.where(counted, token_ids, -1), num_drafts.to(torch.int64), probabilities)
        verified = verify(logits, drafts, rows, first_position, seen=seen)
        null_drafts = (counted & (token_ids < 0)).sum(1)
        return verified, null_drafts

    def _logits(self, step: StepInput, given: Given, hidden: Any) -> Any:
        """float32[r, 1 + D, V]; beyond a row's own drafts its last logits again."""
        needs_all = len(step.logit_tokens) == hidden.shape[0]
        logits = self.decoder.logits(hidden if needs_all else hidden[given.logit_tokens])
        if step.rectangle.size == len(step.logit_tokens):
            return logits.unflatten(0, step.rectangle.shape)
        return logits[given.rectangle]

    def _seen(self, step: StepInput, lines: Any, num_tokens: Any) -> Any:
        """bool[r, V]: the tokens of prompt and output of each row that samples."""
        places = torch.arange(step.max_num_tokens, device=lines.device)
        known = self.state.token_ids[lines, : step.max_num_tokens]
        known = torch.where(places < num_tokens[:, None], known, -1)
        return token_set(known, self.decoder.shape.vocab_size)

    def _draft(
        self,
        step: StepInput,
        given: Given,
        dispatched: Dispatched,
        rows: StepRows,
        sampling: SamplingRows,
        fed: Any,
        hidden: Any,
        num_tokens: Any,
        num_sampled: Any,
    ) -> tuple[Any, Any]:
        """What the drafter proposes for the rows that sampled: int64[R, K], and how many of them count."""
        if self.drafter is None:
            return self.state.drafts[given.lines], torch.zeros_like(num_tokens)
        samples = (num_sampled > 0) & dispatched.is_live
        proposal = self.drafter.propose(
            DraftStep(
                row_ids=given.lines,
                num_tokens=num_tokens.to(torch.int64),
                token_ids=self.state.token_ids,
                samples=samples,
                num_sampled=num_sampled.to(torch.int64),
                rows=rows,
                fed_token_ids=fed,
                hidden=hidden,
                sampling=sampling,
                max_num_tokens=min(step.max_num_tokens, self.config.max_model_len),
            )
        )
        self.state.take(given.lines, proposal, samples)
        return proposal.token_ids, torch.where(samples, proposal.num_tokens, 0)
