"""Random life of many requests, on the host in its order of events and on the device in its own.

The host dispatches up to two steps before it settles the first of them; the device runs a step, outcome and
all, when it is launched. The host's ledgers are plain integers, the device's are columns of int32.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.host_reads import no_host_reads  # noqa: E402
from tests.gpu.ledger_lines import STOPS, Line, Step, keep, numbers, table  # noqa: E402

from draftproof.gpu.device_ledger import DeviceLedger, Limits, before_dispatch, differences  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.impl.contracts import plain  # noqa: E402
from draftproof.impl.dispatch import num_drafts_in_step, samples_in_step  # noqa: E402
from draftproof.impl.ledger_table import (  # noqa: E402
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_FIELDS,
    NUM_REGISTERED_TOKENS,
    STATUS,
    load_plain,
)
from draftproof.spec.guards import num_schedulable  # noqa: E402
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules, initial  # noqa: E402

CODE: dict[str, Any] = {name: plain(function) for name, function in accounting.TRANSITIONS.items()}
VOCAB_SIZE, MAX_SAMPLES = 9, 6
OTHERS = [field for field in range(NUM_FIELDS) if field != NUM_REGISTERED_TOKENS]


class World:
    """`num_lines` requests, each followed by another one in its line."""

    def __init__(self, seed: int, rules: Rules, num_lines: int = 24) -> None:
        self.random = np.random.default_rng(seed)
        self.rules, self.depth = rules, 2 if rules.asynchronous else 1
        self.ledgers = [initial(self.number(1, 20)) for _ in range(num_lines)]
        self.about = [self.new_line(ledger.num_tokens) for ledger in self.ledgers]
        self.device = DeviceLedger(num_lines + 1, rules, DEVICE)
        self.limits = Limits(
            torch.full((num_lines, STOPS), -1, dtype=torch.int64, device=DEVICE),
            torch.zeros(num_lines, dtype=torch.int32, device=DEVICE),
            torch.zeros(num_lines, dtype=torch.int32, device=DEVICE),
        )
        self.in_flight: deque[Step] = deque()
        self.expected: Any = None
        self.did: Counter[str] = Counter()

    def number(self, low: int, high: int) -> int:
        """From `low` to `high`."""
        return int(self.random.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def new_line(self, num_tokens: int) -> Line:
        stops = tuple(self.random.choice(VOCAB_SIZE, self.number(0, STOPS), replace=False).tolist())
        return Line(stops, num_tokens + self.number(0, 4), num_tokens + self.number(1, 25), self.chance(0.5))

    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            for line in range(len(self.ledgers)):
                self.between(line)
            self.launch()
            if len(self.in_flight) == self.depth:
                self.settle()
        while self.in_flight:
            self.settle()

    def is_in_flight(self, line: int) -> bool:
        return any(line in step.lines for step in self.in_flight)

    # ---- the host ----

    def move(self, line: int, name: str, *event: Any) -> Ledger:
        self.ledgers[line] = CODE[name](self.ledgers[line], self.rules, *event)
        return self.ledgers[line]

    def between(self, line: int) -> None:
        """What may happen to a request between two steps."""
        ledger = self.ledgers[line]
        if ledger.status == RUNNING and self.chance(0.04):
            self.move(line, "preempt", self.chance(0.3))
            self.did["preempted"] += 1
            self.did["preempted in flight"] += self.is_in_flight(line)
        elif ledger.status not in (FINISHED, PAUSED) and self.chance(0.02):
            self.move(line, "abort")
            self.did["aborted"] += 1
        elif ledger.status == PAUSED and self.chance(0.4):
            self.move(line, "fold", self.number(1, 6))
            self.about[line] = self.new_line(self.ledgers[line].num_tokens)
            self.did["folds"] += 1
        elif ledger.status == FINISHED and not self.is_in_flight(line):
            self.ledgers[line] = initial(self.number(1, 20))
            self.about[line] = self.new_line(self.ledgers[line].num_tokens)
        ledger = self.ledgers[line]
        is_idle = ledger.status == RUNNING and not self.is_in_flight(line)
        if is_idle and not self.rules.asynchronous and ledger.num_computed_tokens == ledger.num_tokens - 1:
            self.move(line, "draft", self.number(0, self.rules.num_speculative_tokens))

    def may_start(self, line: int) -> bool:
        ledger = self.ledgers[line]
        waits = ledger.status in (WAITING, PREEMPTED)
        return waits and (ledger.num_stale_tokens == 0 or ledger.drop_stale) and self.chance(0.7)

    def start(self, line: int) -> None:
        ledger = self.ledgers[line]
        hit = 0
        if ledger.num_computed_tokens == 0 and self.chance(0.4):
            hit = self.number(0, (ledger.num_tokens - 1) // self.rules.block_size) * self.rules.block_size
        self.did["hits"] += hit > 0
        ledger = self.move(line, "admit", hit)
        is_last = ledger.num_computed_tokens == ledger.num_tokens - 1
        if self.rules.asynchronous and is_last and self.chance(0.5):
            self.move(line, "draft", self.rules.num_speculative_tokens)  # padded, all of them null

    def may_run(self, line: int) -> bool:
        ledger = self.ledgers[line]
        about = self.about[line]
        if ledger.status != RUNNING or num_schedulable(ledger) < 1 or self.chance(0.15):
            return False
        # A step whose outcome would all be beyond the end is not dispatched.
        return ledger.num_tokens + ledger.num_output_placeholders < about.max_num_tokens and (
            self.rules.asynchronous or not self.is_in_flight(line)
        )

    # ---- a step, on the device ----

    def launch(self) -> None:
        starting = [line for line in range(len(self.ledgers)) if self.may_start(line)]
        running = [line for line in range(len(self.ledgers)) if self.may_run(line)]
        for line in starting:
            self.start(line)
        lines = [int(line) for line in self.random.permutation([*running, *starting])]
        if not lines:
            return
        before = [self.ledgers[line] for line in lines]
        sizes = [self.size(ledger) for ledger in before]
        drafts = [int(num_drafts_in_step(*pair)) for pair in zip(before, sizes, strict=True)]
        samples = [bool(samples_in_step(*pair)) for pair in zip(before, sizes, strict=True)]
        for line, size in zip(lines, sizes, strict=True):
            self.move(line, "schedule", size)
        places = [place for place, line in enumerate(lines) if line in starting]
        self.begin(places, lines, before, sizes, drafts)
        tokens = [self.sampled(number) if one else [] for number, one in zip(drafts, samples, strict=True)]
        step = self.on_device(lines, sizes, drafts, samples, tokens)
        self.did["prefill chunks"] += len(samples) - sum(samples)
        self.did["accepted"] += sum(max(len(one) - 1, 0) for one in tokens)
        self.did["rejected"] += sum(
            number - len(one) + 1 for number, one in zip(drafts, tokens, strict=True) if one
        )
        self.did["past a stop"] += int((~step.was_live).sum())
        if not self.in_flight:
            self.expected = self.columns(lines)
        self.in_flight.append(step)

    def size(self, ledger: Ledger) -> int:
        most = num_schedulable(ledger)
        return most if self.chance(0.6) else self.number(1, most)

    def sampled(self, num_drafts: int) -> list[int]:
        count = 1 + self.number(0, num_drafts)
        return [self.number(0, VOCAB_SIZE - 1) for _ in range(count)]

    def begin(
        self, places: list[int], lines: list[int], before: list[Ledger], sizes: list[int], drafts: list[int]
    ) -> None:
        """What the host tells of lines that start; the counters before are found from those after."""
        if not places:
            return
        chosen = [lines[place] for place in places]
        started = [before[place] for place in places]
        ledgers = before_dispatch(
            self.columns(chosen),
            np.array([sizes[place] for place in places]),
            np.array([drafts[place] for place in places]),
            np.array([ledger.num_computed_tokens for ledger in started]),
            np.array([ledger.num_output_placeholders for ledger in started]),
        )
        expected = table(started)
        # The dispatch leaves fewer drafts waiting than there were where it takes fewer.
        expected[NUM_DRAFT_TOKENS] = [drafts[place] for place in places]
        assert ledgers.dtype == np.int32
        assert (ledgers[OTHERS] == expected[OTHERS]).all()
        about = [self.about[line] for line in chosen]
        stops = [[*one.stop_token_ids, *[-1] * (STOPS - len(one.stop_token_ids))] for one in about]
        index = torch.tensor(chosen, device=DEVICE)
        given = torch.from_numpy(ledgers).to(DEVICE)
        self.limits.stop_token_ids[index] = torch.tensor(stops, device=DEVICE)
        self.limits.min_num_tokens[index] = numbers([one.min_num_tokens for one in about])
        self.limits.max_num_tokens[index] = numbers([one.max_num_tokens for one in about])
        with no_host_reads():
            self.device.start(index, given)
        self.did["starts"] += len(places)

    def on_device(
        self,
        lines: list[int],
        sizes: list[int],
        drafts: list[int],
        samples: list[bool],
        tokens: list[list[int]],
    ) -> Step:
        index = torch.tensor(lines, device=DEVICE)
        new_tokens, num_drafts, counts = (
            numbers(sizes), numbers(drafts), numbers([len(one) for one in tokens]),
        )  # fmt: skip
        padded = torch.tensor([[*one, *[-1] * (MAX_SAMPLES - len(one))] for one in tokens], device=DEVICE)
        limits = Limits(*[column[index] for column in self.limits])
        with no_host_reads():
            dispatched = self.device.dispatch(index, num_drafts, new_tokens)
            at_dispatch = self.device.table.index_select(1, index)
            kept, stopped = self.device.kept(dispatched, limits, padded, counts)
            at_end = self.device.settle(index, dispatched, new_tokens, num_drafts, counts, kept, stopped)
        counters: tuple[Any, ...] = tuple(dispatched.ledger)[:-1]
        for tensor in (*counters, dispatched.sequence_lengths, kept, stopped, at_end, at_dispatch):
            assert tensor.dtype == torch.int32
        assert self.device.table.dtype == torch.int32 and dispatched.is_live.dtype == torch.bool
        live = dispatched.is_live.cpu().numpy()
        lengths = np.where(live, at_dispatch[NUM_COMPUTED_TOKENS].cpu().numpy(), 0)
        assert (dispatched.sequence_lengths.cpu().numpy() == lengths).all()
        arrays: list[Any] = [one.cpu().numpy() for one in (kept, stopped, at_dispatch, at_end)]
        return Step(lines, sizes, drafts, tokens, arrays[0], arrays[1], arrays[2], arrays[3], live)

    # ---- its outcome, on the host ----

    def settle(self) -> None:
        step = self.in_flight.popleft()
        if self.expected is not None:
            running = [self.expected[STATUS, place] == RUNNING for place in range(len(step.lines))]
            # A line that left meanwhile is not compared, as one of another request is not.
            places = [place for place, one in enumerate(running) if one and step.was_live[place]]
            self.agree(self.expected[:, places], step.at_dispatch[:, places], "at dispatch")
        sampled = [line for place, line in enumerate(step.lines) if self.settle_line(step, place)]
        later = {line for ahead in self.in_flight for line in ahead.lines}
        places = [
            place
            for place, line in enumerate(step.lines)
            if self.ledgers[line].status == RUNNING and line not in later and step.was_live[place]
        ]
        self.agree(self.columns([step.lines[place] for place in places]), step.at_end[:, places], "at end")
        self.expected = self.columns(self.in_flight[0].lines) if self.in_flight else None
        if self.in_flight:
            self.check_registered(sampled)

    def settle_line(self, step: Step, place: int) -> bool:
        """Whether the outcome belongs to the request's present life, and it goes on with tokens of it."""
        line, size, tokens = step.lines[place], step.num_tokens[place], step.token_ids[place]
        ledger, about = self.ledgers[line], self.about[line]
        if ledger.num_stale_tokens > 0:
            kept, stopped = (
                (0, 0) if ledger.drop_stale or not tokens else keep(ledger, about, tokens, self.rules)
            )
            self.did["delivered late"] += kept > 0
            self.move(line, "stale_output", size, kept, stopped)
        elif not tokens:
            self.move(line, "chunk_output", size)
            return False
        else:
            kept, stopped = keep(ledger, about, tokens, self.rules)
            assert step.was_live[place]
            assert (kept, stopped) == (step.num_kept[place], step.stopped[place])
            self.did["trimmed"] += kept < len(tokens)
            self.move(line, "output", size, step.num_drafts[place], len(tokens) - 1, kept, stopped)
        if stopped:
            self.did["stopped"] += 1
            self.move(line, "end_turn" if about.is_session else "finish")
        return bool(tokens) and ledger.num_stale_tokens == 0 and not stopped

    # ---- both ----

    def columns(self, lines: list[int]) -> Any:
        return table([self.ledgers[line] for line in lines])

    def agree(self, host: Any, device: Any, when: str) -> None:
        assert differences(host, device) == [], when
        self.did[when] += host.shape[1]

    def check_registered(self, sampled: list[int]) -> None:
        """T9's bounds: of lines that sampled, and had been dispatched on before the host knew."""
        ahead, fence, size = self.in_flight[0], self.rules.registration_fence, self.rules.block_size
        for place, line in enumerate(ahead.lines):
            ledger = self.ledgers[line]
            if line not in sampled:
                continue
            on_device = load_plain(ahead.at_dispatch, place).num_registered_tokens
            assert 0 <= on_device - ledger.num_registered_tokens <= size
            if fence == 0:  # with one, a hit may have published more
                low, high = [(ledger.num_tokens - less) // size * size for less in (1, 0)]
                assert low <= ledger.num_registered_tokens <= on_device <= high
            self.did["bounded"] += 1
            self.did["registered less on the host"] += ledger.num_registered_tokens < on_device
