"""What does a step hand to the runner, and what does it bring back? Arrays, in one block of int32 memory.

The scheduler owns a few batches and uses them in turn: one is valid until its step has been settled and as
many further steps have been dispatched as may be in flight. The arrays are as long as `max_num_seqs`; the
first `num_requests` entries count. torch wraps them without copying (`torch.from_numpy`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.impl.ledger_table import padded
from draftproof.impl.scheduler.layout import Settings

(
    STEP,
    NUM_REQUESTS,
    NUM_TOKENS,
    NUM_PREEMPTED,
    NUM_PUBLISHED,
    NUM_FINISHED,
    NUM_PAUSED,
    NUM_COPIES,
    NUM_ADMITTED,
    NUM_IN_PREFILL,
    NUM_LEFT_OUT,
) = range(11)
"""Indices of `Batch.counts`: the step's number; rows and tokens scheduled; rows preempted to make room;
blocks published at dispatch; rows that finished, and turns that ended, when it was settled; blocks that the
runner must copy before the step; rows that start in it; running rows that were in prefill before it; running
rows that got nothing of it although they do not only await their last output."""
NUM_BATCH_COUNTS = 16
STEP_MASK = 2**31 - 1
"""A batch holds its step's number modulo 2**31."""
NUM_LINES = 11
"""Lines of a batch that are int32[max_num_seqs]."""

NEW, RESUMED, RUNNING = 0, 1, 2
"""Why a row is in a batch: its first step, the first after a preemption or a pause, or an ordinary one."""


class Batch(NamedTuple):
    """One step. int32[max_num_seqs] unless said; counts are tokens."""

    counts: Any
    """int32[NUM_BATCH_COUNTS]"""
    rows: Any
    """The scheduled requests."""
    num_scheduled_tokens: Any
    num_draft_tokens: Any
    """Of the scheduled tokens, how many are drafts to verify."""
    num_invalid_drafts: Any
    """Of the drafts, how many are certain to be rejected: padding, or ruled out by a grammar. A runner that
    finds more of them says so here before it settles the step; metrics do not count them as proposed."""
    num_computed_tokens: Any
    """C before the step, work in flight included."""
    num_output_placeholders: Any
    """P before the step: positions of C that are not known yet."""
    samples: Any
    """1 if the step reaches the end of what is known and samples; 0 for a prefill chunk."""
    kind: Any
    source_slot: Any
    """Of recurrent groups: the working slot that the step starts from, with or without drafts of its own; -1
    for the one that the row's last step left its state in. 0 without such groups."""
    num_blocks: Any
    """int32[groups, max_num_seqs]: blocks that the row holds for the step."""
    draft_token_ids: Any
    """int32[max_num_seqs, >= K]; -1 where the device knows the draft and the host does not."""
    preempted: Any
    """int32[rows of the scheduler], as are `finished` and `paused`."""
    published: Any
    """int32[max_num_published], blocks; `NUM_PUBLISHED` may count more than there is room for."""
    filled: Any
    """int32[3, max_num_published]: row, group and place in the row's table of the blocks that were filled."""
    copies: Any
    """int32[2, max_num_seqs x recurrent groups]: blocks of recurrent state, sources and targets. The runner
    copies them before the step, all sources read first; `NUM_COPIES` of `counts` says how many there are."""
    num_kept_tokens: Any
    """Filled by `settle`: how many of the sampled tokens stay."""
    finish_reason: Any
    """Filled by `settle`: why the row stopped in this step, an index of `FINISH_REASONS`; 0 if it did not."""
    finished: Any
    paused: Any

    @property
    def num_requests(self) -> int:
        """Scheduled requests; 0 for a step that has nothing to do and is not to be settled."""
        return int(self.counts[NUM_REQUESTS])

    @property
    def num_tokens(self) -> int:
        """Scheduled tokens of all requests."""
        return int(self.counts[NUM_TOKENS])

    @property
    def step(self) -> int:
        """The step's number, from 0, modulo 2**31."""
        return int(self.counts[STEP])


def batch_size(settings: Settings) -> int:
    """How many int32 cells `batch_views` lays its arrays over."""
    seqs = settings.max_num_seqs
    width = padded(settings.num_speculative_tokens)
    return (
        NUM_BATCH_COUNTS + NUM_LINES * seqs + settings.num_groups * seqs + seqs * width + settings.num_rows
        + 4 * settings.max_num_published + 2 * seqs * settings.num_recurrent_groups + 2 * settings.num_rows
    )  # fmt: skip


def batch_views(memory: Any, settings: Settings) -> Batch:
    """The named arrays over a batch's memory. Runs in Python on numpy arrays, and compiled."""
    seqs, groups = settings.max_num_seqs, settings.num_groups
    width, room = padded(settings.num_speculative_tokens), settings.max_num_published
    place = NUM_BATCH_COUNTS
    lines = memory[place : place + NUM_LINES * seqs].reshape(NUM_LINES, seqs)
    place += NUM_LINES * seqs
    num_blocks = memory[place : place + groups * seqs].reshape(groups, seqs)
    place += groups * seqs
    drafts = memory[place : place + seqs * width].reshape(seqs, width)
    place += seqs * width
    preempted = memory[place : place + settings.num_rows]
    place += settings.num_rows
    published = memory[place : place + room]
    place += room
    filled = memory[place : place + 3 * room].reshape(3, room)
    place += 3 * room
    num_copies = seqs * settings.num_recurrent_groups
    copies = memory[place : place + 2 * num_copies].reshape(2, num_copies)
    place += 2 * num_copies
    stopped = memory[place : place + 2 * settings.num_rows].reshape(2, settings.num_rows)
    return Batch(
        counts=memory[0:NUM_BATCH_COUNTS],
        rows=lines[0],
        num_scheduled_tokens=lines[1],
        num_draft_tokens=lines[2],
        num_invalid_drafts=lines[3],
        num_computed_tokens=lines[4],
        num_output_placeholders=lines[5],
        samples=lines[6],
        kind=lines[7],
        source_slot=lines[10],
        num_blocks=num_blocks,
        draft_token_ids=drafts,
        preempted=preempted,
        published=published,
        filled=filled,
        copies=copies,
        num_kept_tokens=lines[8],
        finish_reason=lines[9],
        finished=stopped[0],
        paused=stopped[1],
    )
