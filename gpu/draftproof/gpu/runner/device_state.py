"""What does the device know of every request? Its text, its counters, its drafts, and when it stops.

One line for each row of the scheduler, and one more for rows that only pad a batch. Everything here only
enqueues work.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.gpu.attention.step_rows import to_device
from draftproof.gpu.device_ledger import DeviceLedger, Dispatched, Limits
from draftproof.gpu.drafters.step import Proposal
from draftproof.gpu.runner.step_input import Starts
from draftproof.impl.ledger_table import STOP_PENDING
from draftproof.impl.scheduler import SchedulerConfig
from draftproof.spec.ledger import Rules


class DeviceState:
    """The lines of a scheduler with this configuration."""

    def __init__(self, config: SchedulerConfig, vocab_size: int, device: Any = "cpu") -> None:
        lines, num_drafts = config.max_num_requests + 1, config.num_speculative_tokens
        rules = Rules(
            num_speculative_tokens=num_drafts,
            block_size=config.rules_block_size,
            asynchronous=config.asynchronous,
            registration_fence=config.registration_fence,
        )
        self.device, self.vocab_size, self.num_drafts = device, vocab_size, num_drafts
        self.ledger = DeviceLedger(lines, rules, device)
        # The padding line has stopped: no step counts there, and it has no tokens in the cache.
        self.ledger.table[STOP_PENDING, -1] = 1
        self.token_ids: Any = torch.zeros(
            (lines, config.max_model_len + 1 + num_drafts), dtype=torch.int64, device=device
        )
        """int64[lines, L]: valid up to N; behind it lies what was sampled and not kept"""
        self.drafts: Any = torch.full((lines, num_drafts), -1, dtype=torch.int64, device=device)
        """int64[lines, K]: for the next step; -1 for none"""
        self.draft_probabilities: Any = None
        """float32[lines, K, V] once a drafter gives some: the distributions that drafts were sampled from"""
        self.accepted_slots: Any = torch.zeros(lines, dtype=torch.int64, device=device)
        """int64[lines]: of models with recurrent layers, the working slot in which each row's last step left
        its state: as many drafts as it accepted"""
        self.limits = Limits(
            torch.full((lines, config.max_stop_token_ids + 1), -1, dtype=torch.int64, device=device),
            torch.zeros(lines, dtype=torch.int32, device=device),
            torch.zeros(lines, dtype=torch.int32, device=device),
        )

    def start(self, starts: Starts) -> tuple[Any, Any, Any]:
        """Take over what the host says of lines that start; returns their lines, texts and lengths."""
        lines, num_tokens, ledgers, token_ids, stops, limits = to_device(
            (starts.lines, starts.num_tokens, starts.ledgers, starts.token_ids,
             starts.stop_token_ids, starts.limits), self.device
        )  # fmt: skip
        self.ledger.start(lines, ledgers)
        texts = token_ids.to(torch.int64)
        self.token_ids[:, : texts.shape[1]].index_copy_(0, lines, texts)
        self.drafts.index_fill_(0, lines, -1)
        self.limits.stop_token_ids.index_copy_(0, lines, stops.to(torch.int64))
        self.limits.min_num_tokens.index_copy_(0, lines, limits[0])
        self.limits.max_num_tokens.index_copy_(0, lines, limits[1])
        return lines, texts, num_tokens

    def limits_of(self, lines: Any) -> Limits:
        """Of some lines, int64[r]."""
        return Limits(*[column.index_select(0, lines) for column in self.limits])

    def fed(self, token_lines: Any, positions: Any, num_tokens: Any) -> Any:
        """int64[T]: what is known at each position of each token's line, or the draft behind it.

        -1 for a null draft. `num_tokens` is N of each token's line.
        """
        known = self.token_ids[token_lines, positions]
        if self.num_drafts == 0:
            return known
        places = (positions - num_tokens).clamp(0, self.num_drafts - 1)
        drafts = self.drafts[token_lines, places]
        return torch.where(positions < num_tokens, known, drafts)

    def append(self, lines: Any, step_num_tokens: Any, sampled_token_ids: Any) -> None:
        """Write sampled tokens, int32[r, n], behind the N of before; how many count the ledger says."""
        offsets = torch.arange(sampled_token_ids.shape[1], device=self.device)
        places = step_num_tokens[:, None] + offsets
        self.token_ids.index_put_((lines[:, None], places), sampled_token_ids.to(torch.int64))

    def take(self, lines: Any, proposal: Proposal, samples: Any) -> None:
        """Drafts of the lines that sampled; of others none."""
        counts = torch.arange(self.num_drafts, device=self.device) < proposal.num_tokens[:, None]
        drafts = torch.where(counts & samples[:, None], proposal.token_ids, -1)
        self.drafts.index_copy_(0, lines, drafts)
        self._take_probabilities(lines, drafts, proposal.probabilities)

    def _take_probabilities(self, lines: Any, drafts: Any, probabilities: Any | None) -> None:
        if probabilities is None and self.draft_probabilities is None:
            return
        if self.draft_probabilities is None:
            size = (self.drafts.shape[0], self.num_drafts, self.vocab_size)
            self.draft_probabilities = torch.zeros(size, device=self.device)
        found: Any = probabilities
        if found is None:  # certain ones
            found = torch.zeros((*drafts.shape, self.vocab_size), device=self.device)
            found.scatter_(2, drafts.clamp_min(0)[:, :, None], 1.0)
        self.draft_probabilities.index_copy_(0, lines, found)

    def kept(
        self, lines: Any, step: Dispatched, places: Any, token_ids: Any, num_sampled: Any
    ) -> tuple[Any, Any, Any]:
        """Of R rows: how many tokens were sampled, how many of them stay, and whether that is the end;
        int32[R] each, 0 for rows that did not sample. `token_ids`, `num_sampled`: of the r that did."""
        zeros = torch.zeros_like(step.num_tokens_before)
        sampled = zeros.index_copy(0, places, num_sampled.to(torch.int32))
        all_tokens = torch.full((len(zeros), token_ids.shape[1]), -1, dtype=torch.int64, device=self.device)
        all_tokens.index_copy_(0, places, token_ids.to(torch.int64))
        kept, stopped = self.ledger.kept(step, self.limits_of(lines), all_tokens, sampled)
        return sampled, kept, stopped
