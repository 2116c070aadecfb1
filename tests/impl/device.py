"""What does the device really hold? Every slot of every block, written and read as a runner would.

This is the token-level reference (`draftproof.spec.tokens`) lifted to blocks, block tables and many requests.
A slot is modelled as the token prefix its KV was computed from, and a block of recurrent state as the prefix
that the state has consumed. Steps run in the order in which they were dispatched, at any time before they
return. What a row reads must be of exactly its own prefix: otherwise `WrongKV` says whose block holds what.

The device knows what a runner knows: the batch, the block tables and the host's tokens at dispatch, and its
own continuation of each row. It starts a step at C, or, while the host still waits for tokens of the row, at
its own length less one. What it writes for rejected drafts, for look-ahead slots, and in steps that fail is
of no prefix at all. A step reads attention KV that another row of the same step writes, but never its state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tests.impl.prefixes import EMPTY, Prefixes

from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig


class WrongKV(AssertionError):
    """A row read or wrote what it must not: which block, and what is there."""


class Row(NamedTuple):
    """One request's part of a dispatched step, as the runner is told, and what the model will answer."""

    name: str
    """For messages."""
    request: int
    """A number that no other request has."""
    starts: bool
    """Whether this is the first step of a life."""
    first: int
    """C before the step."""
    num_placeholders: int
    """P before the step: above 0 the device continues by itself."""
    num_tokens: int
    num_drafts: int
    source_slot: int
    """The column of a recurrent group's table with the state to start from; -1: what it accepted last."""
    root: int
    """The prefix of no token."""
    host: Sequence[int]
    """The prefixes of the tokens that the host knows: of one, two, ... tokens."""
    block_tables: Sequence[Sequence[int]]
    """By group."""
    generated: Sequence[int]
    """Accepted drafts and the token sampled after them; nothing for a prefill chunk."""


class Span(NamedTuple):
    """What a row does in a step: positions from `first` on; up to `num_right` their tokens stay right."""

    row: Row
    first: int
    num_right: int
    sequence: Sequence[int]
    """The prefixes of the device's own tokens, those that the step samples included."""

    def prefix(self, num_tokens: int) -> int:
        """Of so many tokens; none for tokens that turn out wrong."""
        if num_tokens > self.num_right:
            return EMPTY
        return self.sequence[num_tokens - 1] if num_tokens > 0 else self.row.root


class Step(NamedTuple):
    """What is enqueued: first the copies of blocks, then all rows at once."""

    copies: Sequence[tuple[int, int]]
    rows: Sequence[Row]


class Device:
    """The KV memory, and the steps that have been dispatched."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.groups: tuple[KVGroup, ...] = config.groups
        self.prefixes = Prefixes()
        self.room = max(group.block_size for group in self.groups)
        num_blocks = config.num_blocks + 1
        self.slots = [[EMPTY] * self.room for _ in range(num_blocks)]
        """By block: the prefixes whose KV it holds."""
        self.states = [EMPTY] * num_blocks
        """By block: the prefix that the recurrent state in it has consumed."""
        self.owners = [EMPTY] * num_blocks
        """By block: the group that has written to it last."""
        self._steps: deque[Step] = deque()
        self._sequences: dict[int, list[int]] = {}
        self._accepted_slots: dict[int, int] = {}

    def dispatch(self, rows: Sequence[Row], copies: Sequence[tuple[int, int]]) -> None:
        """A step is enqueued; it runs after all before it."""
        self._steps.append(Step(copies, rows))

    def num_steps(self) -> int:
        """Steps dispatched that have not run."""
        return len(self._steps)

    def run(self) -> None:
        """Run the oldest step. Raises WrongKV."""
        step = self._steps.popleft()
        self._copy(step.copies)
        spans = [self._span(row) for row in step.rows]
        written: dict[tuple[int, int], Row] = {}
        for number, group in enumerate(self.groups):
            if group.kind == "recurrent":
                self._move_states(number, group, spans)
                continue
            for span in spans:
                self._write(number, group, span, written)
        for number, group in enumerate(self.groups):
            if group.kind != "recurrent":
                for span in spans:
                    self._read(number, group, span)
        for row in step.rows:  # only now: every recurrent group starts from the slot of the step before
            self._accepted_slots[row.request] = max(len(row.generated) - 1, 0)

    def fail(self) -> None:
        """No step that has been dispatched will return: what they would have written is garbage."""
        while self._steps:
            step = self._steps.popleft()
            for _, target in step.copies:
                self._spoil(target)
            for row in step.rows:
                span = self._span(row)
                for number, group in enumerate(self.groups):
                    self._lose(number, group, span)

    def forget(self) -> None:
        """All KV was computed with other weights."""
        for block in range(len(self.slots)):
            self._spoil(block)

    # ---- one step ----

    def _span(self, row: Row) -> Span:
        """Which positions a row computes, and the prefix of each."""
        if row.num_placeholders == 0:
            sequence, first = list(row.host), row.first
        else:
            sequence = self._sequences[row.request]
            first = len(sequence) - 1
        num_known, context = len(sequence), sequence[-1]
        for token in row.generated:
            context = self.prefixes.after(context, token)
            sequence.append(context)
        self._sequences[row.request] = sequence
        # Accepted drafts were input to the step; the last generated token was not.
        num_right = min(num_known + max(len(row.generated) - 1, 0), first + row.num_tokens)
        return Span(row, first, num_right, sequence)

    def _write(self, number: int, group: KVGroup, span: Span, written: dict[tuple[int, int], Row]) -> None:
        """A row's KV of one attention group, and whatever its drafter leaves behind it."""
        row, table = span.row, span.row.block_tables[number]
        end = min(span.first + row.num_tokens + self.config.num_lookahead_tokens, self.config.max_model_len)
        for position in range(span.first, end):
            index, offset = divmod(position, group.block_size)
            if index >= len(table) or table[index] == 0:
                raise WrongKV(f"{row.name} writes position {position}, for which group {number} has no block")
            block = table[index]
            if (block, offset) in written:
                other = written[block, offset].name
                raise WrongKV(f"{row.name} and {other} write slot {offset} of block {block}")
            written[block, offset] = row
            self._take(block, number)
            self.slots[block][offset] = span.prefix(position + 1)

    def _read(self, number: int, group: KVGroup, span: Span) -> None:
        """Every token up to the last right one attends to all before it, or to its window of them."""
        size, table = group.block_size, span.row.block_tables[number]
        least = max(span.first - group.window + 1, 0) if group.kind == "sliding_window" else 0
        for index in range(least // size, -(-span.num_right // size)):
            start, end = max(least, index * size), min((index + 1) * size, span.num_right)
            own, block = list(span.sequence[start:end]), table[index]
            if self.slots[block][start - index * size :][: len(own)] != own or self.owners[block] != number:
                raise WrongKV(self._difference(number, span.row.name, block, start, own))

    def _difference(self, number: int, name: str, block: int, start: int, own: Sequence[int]) -> str:
        if self.owners[block] != number:
            return f"{name} reads block {block} in group {number}, written by group {self.owners[block]}"
        size = self.groups[number].block_size
        for position, expected in enumerate(own, start):
            held = self.slots[block][position % size]
            if held != expected:
                return (
                    f"{name} reads position {position} (block {block}, slot {position % size}): it holds the "
                    f"KV of {self.prefixes.words(held)}, the row's own prefix is "
                    f"{self.prefixes.words(expected)}"
                )
        raise AssertionError

    def _lose(self, number: int, group: KVGroup, span: Span) -> None:
        """Whatever a row would have written in a step that fails."""
        row, table, size = span.row, span.row.block_tables[number], group.block_size
        end = span.first + row.num_tokens
        if group.kind == "recurrent":
            crossed = range(-(-(end - row.num_drafts) // size), end // size + 1)
            for column in (*range(row.num_drafts + 1), *[self._target(boundary) for boundary in crossed]):
                if column < len(table) and table[column] != 0:
                    self._spoil(table[column])
            return
        for position in range(span.first, end):
            self.slots[table[position // size]][position % size] = EMPTY

    # ---- recurrent state ----

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """All sources are read before any target is written."""
        found = [(target, self.states[source], self.owners[source]) for source, target in copies]
        if len({target for target, _, _ in found}) < len(found):
            raise WrongKV(f"two copies of a step go to one block: {copies}")
        for target, state, owner in found:
            self._take(target, owner)
            self.states[target] = state

    def _target(self, num_blocks: int) -> int:
        """The column of the block in which the state after so many blocks of tokens is saved."""
        return self.config.num_speculative_tokens + num_blocks

    def _move_states(self, number: int, group: KVGroup, spans: Sequence[Span]) -> None:
        """All rows read the states that they start from, then all write: after each draft, at boundaries."""
        read: dict[int, Row] = {}
        for span in spans:
            row, table = span.row, span.row.block_tables[number]
            if row.starts and row.first == 0:  # a runner clears the state of a row that starts anew
                self._take(table[0], number)
                self.states[table[0]] = row.root
            column = row.source_slot if row.source_slot >= 0 else self._accepted_slots[row.request]
            block, expected = table[column], span.prefix(span.first)
            if block == 0 or self.states[block] != expected or self.owners[block] != number:
                raise WrongKV(
                    f"{row.name} starts from column {column} (block {block}) of group {number}: it holds the "
                    f"state after {self.prefixes.words(self.states[block])}, the row's own is after "
                    f"{self.prefixes.words(expected)}"
                )
            read[block] = row
        for span in spans:
            for block, state in self._states_after(group, span, span.row.block_tables[number]):
                if block == 0 or read.get(block, span.row) is not span.row:
                    raise WrongKV(f"{span.row.name} writes block {block}, from which another row starts")
                self._take(block, number)
                self.states[block] = state

    def _states_after(self, group: KVGroup, span: Span, table: Sequence[int]) -> list[tuple[int, int]]:
        """Block and state: working slots after the known tokens and after each draft, then targets."""
        row = span.row
        end = span.first + row.num_tokens - row.num_drafts
        states = [(table[slot], span.prefix(end + slot)) for slot in range(row.num_drafts + 1)]
        for position in range(end, span.num_right + 1):
            column = self._target(position // group.block_size)
            if position % group.block_size == 0 and column < len(table) and table[column] != 0:
                states.append((table[column], span.prefix(position)))
        return states

    # ---- blocks ----

    def _take(self, block: int, number: int) -> None:
        """The block is the group's now: what another one has written to it is gone."""
        if self.owners[block] != number:
            self._spoil(block)
            self.owners[block] = number

    def _spoil(self, block: int) -> None:
        self.slots[block] = [EMPTY] * self.room
        self.states[block] = EMPTY
