"""Is a recorded scheduler's accounting right? Each request's verdict, whatever the size of the trace.

`check` reads traces piece by piece and replays them (`kernel`); requests are dealt to shards, one a core, and
the threads work outside Python. Kept in memory are the live requests, a piece or two, and the first findings.
A verdict is *clean* only if something was checked, nothing diverged and nothing of the file was missing; what
could not be checked, because the engine does not tell it or because no trace can, is listed with the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from draftproof.impl.traces import coverage, request_table
from draftproof.impl.traces.columns import CODE, REQUEST_NUMBER, Chunk
from draftproof.impl.traces.continuity import RULES
from draftproof.impl.traces.coverage import Told
from draftproof.impl.traces.findings import Divergence, explained
from draftproof.impl.traces.format import (
    MASK_OF_ARGUMENTS,
    REQUEST,
    Continued,
    End,
    Header,
    Request,
    TraceError,
)
from draftproof.impl.traces.parts import Damage, Named, Part
from draftproof.impl.traces.reading import kind_of, read_ndjson
from draftproof.impl.traces.sources import Source
from draftproof.spec.ledger import Rules

CLEAN, VIOLATED, UNREADABLE, UNCHECKED = "clean", "violated", "unreadable", "unchecked"
EXIT_STATUS = {CLEAN: 0, VIOLATED: 1, UNREADABLE: 2, UNCHECKED: 2}
MAX_SHOWN = 1000
"""Divergences that are kept; the rest is counted."""
MAX_DAMAGES = 100
NUM_REMEMBERED = 4096
"""Finished requests of a shard that something may still be said about."""
NUM_FINDINGS = 256
FIRST_CAPACITY = 1024
MAX_OPEN = 2**21
"""Requests that are followed at once, of all shards: 400 MB. A trace in which none ever leaves has more."""
MASKS = np.array(MASK_OF_ARGUMENTS, np.int64)

DAMAGE_SENTENCES = {
    request_table.UNKNOWN_REQUEST: ("unknown", "a record of a request whose beginning is not in the trace"),
    request_table.OUT_OF_PLACE: ("repeated", "a record came twice, or behind later ones of its request"),
    request_table.MISSING: ("missing", "records of a request are missing before this one"),
    request_table.MALFORMED: ("malformed", "a record's integers are not those of its kind"),
    request_table.TOO_MANY: ("too many", "more requests are open at once than are followed"),
    request_table.KNOWN_REQUEST: ("repeated", "a request arrives that is known already"),
}


class Report(msgspec.Struct, kw_only=True):
    """What came of a trace."""

    verdict: str
    paths: list[str]
    engine: str = ""
    engine_version: str = ""
    num_records: int = 0
    num_judged: int = 0
    """Records that were replayed and held against the accounting."""
    num_requests: int = 0
    num_diverged: int = 0
    """Requests that diverged where the file is undamaged."""
    num_suspect: int = 0
    """Requests that diverged where damage may be the cause."""
    num_incomplete: int = 0
    """Records that were not judged because something of their request is missing, or had diverged."""
    by_theorem: dict[str, int] = {}
    checked: dict[str, int] = {}
    """By theorem, at how many events or exits it was checked."""
    not_checked: dict[str, str] = {}
    """By theorem, why it was not."""
    divergences: list[Divergence] = []
    damages: list[str] = []
    damage_counts: dict[str, int] = {}
    remarks: list[str] = []
    """What a live checker wrote into the trace."""


class Shard:
    """The requests of one share of the numbers."""

    def __init__(self, rules: Rules, shard: int, num_shards: int, capacity: int = FIRST_CAPACITY) -> None:
        from draftproof.impl.traces import compiled

        self.rules, self.shard, self.num_shards = rules, shard, num_shards
        self._replay = compiled.replay()
        self.table = request_table.new_table(capacity, NUM_REMEMBERED, NUM_FINDINGS)

    def feed(self, chunk: Chunk) -> list[Any]:
        """Replay the chunk; returns findings."""
        self._make_room(chunk)
        found = []
        start, num_rows = 0, chunk.num_records
        while start < num_rows:
            start = self._replay(
                self.rules, chunk.lines, chunk.tainted, MASKS, self.table, start, self.shard, self.num_shards
            )
            count = int(self.table.counts[request_table.NUM_FINDINGS])
            if count:
                found.append(self.table.findings[:count].copy())
                self.table.counts[request_table.NUM_FINDINGS] = 0
        return found

    def numbers(self) -> set[int]:
        """The requests in the table."""
        keys = self.table.keys
        return set(keys[keys >= 0].tolist())

    def _make_room(self, chunk: Chunk) -> None:
        counts = self.table.counts
        arrivals = int(np.count_nonzero(chunk.lines[CODE] == REQUEST))
        capacity = self.table.requests.shape[0]
        num_keys = self.table.keys.shape[0]
        used = capacity - int(counts[request_table.NUM_FREE]) + int(counts[request_table.NUM_REMOVED])
        largest = max(MAX_OPEN // self.num_shards, FIRST_CAPACITY)
        if counts[request_table.NUM_FREE] < arrivals and capacity < largest:
            while capacity < largest and capacity < self.table.requests.shape[0] + arrivals:
                capacity *= 2
            self._lay_out(capacity)
        elif 2 * (used + arrivals) > num_keys:
            self._lay_out(capacity)

    def _lay_out(self, capacity: int) -> None:
        """The same requests in a table of another size, without the keys of those that are gone."""
        old = self.table
        new = request_table.new_table(capacity, NUM_REMEMBERED, NUM_FINDINGS)
        size = old.requests.shape[0]
        new.requests[:size] = old.requests
        num_free = int(old.counts[request_table.NUM_FREE])
        free = np.concatenate([np.arange(capacity - 1, size - 1, -1, np.int32), old.free[:num_free]])
        new.free[: free.size] = free
        new.finished[:] = old.finished
        new.told[:] = old.told
        new.counts[:] = old.counts
        new.counts[request_table.NUM_FREE] = free.size
        new.counts[request_table.NUM_REMOVED] = 0
        live = np.flatnonzero(old.keys >= 0)
        for number, slot in zip(old.keys[live].tolist(), old.slots[live].tolist(), strict=True):
            place = request_table.place_of(new.keys, number)
            new.keys[place], new.slots[place] = number, slot
        self.table = new


class Checker:
    """One trace being checked."""

    def __init__(self, source: Source, pool: Executor, num_shards: int) -> None:
        self.source, self.pool, self.num_shards = source, pool, num_shards
        self.report = Report(verdict=UNCHECKED, paths=list(source.paths))
        self.header: Header | None = None
        self.shards: list[Shard] = []
        self.told = Told()
        self._names: dict[int, str] = {}
        self._next_sequence = 0
        self._path = source.paths[0]
        self._end: End | Continued | None = None
        self._is_covered = True
        self._num_in_part = 0
        self._is_finished = False
        """Whether it has been said what the part lacks."""
        self._has_other_rules = False
        """Whether the part's header contradicts the trace's: what diverges in it may be due to that."""

    def begin(self, header: Header) -> None:
        """A header: of the trace's beginning, of its next part, or of another trace in the same file."""
        continues = (
            self.header is not None
            and isinstance(self._end, Continued)
            and header.trace == self.header.trace
            and header.part > self.header.part
        )
        self.finish_part()
        self._has_other_rules = False
        if continues:
            assert self.header is not None
            rules = self.shards[0].rules
            if any(getattr(header, name) != getattr(rules, name) for name in RULES):
                self._has_other_rules = True
                sentence = f"part {header.part} has other rules than the first"
                self.damage(Damage("header", sentence, self._path))
            if header.part != self.header.part + 1:
                sentence = f"parts between {self.header.part} and {header.part} are missing"
                self.damage(Damage("missing", sentence))
        else:
            if header.part > 0:
                sentence = f"the trace begins with part {header.part}: earlier ones are missing"
                self.damage(Damage("missing", sentence))
            elif header.sequence > 0:
                sentence = f"the trace begins with record {header.sequence}: earlier ones are missing"
                self.damage(Damage("missing", sentence, self._path))
            self.told_so_far()
            rules = Rules(
                num_speculative_tokens=header.num_speculative_tokens,
                block_size=header.block_size,
                asynchronous=header.asynchronous,
                registration_fence=header.registration_fence,
            )
            self.shards = [Shard(rules, shard, self.num_shards) for shard in range(self.num_shards)]
            self._names.clear()
            self._next_sequence = header.sequence
        self.header, self._end, self._num_in_part, self._is_finished = header, None, 0, False
        self.report.engine, self.report.engine_version = header.engine, header.engine_version

    def feed(self, chunk: Chunk) -> None:
        """Records, in their order."""
        if not self.shards:
            self.damage(Damage("header", "records come before any header", self._path))
            return
        self._check_sequences(chunk)
        if self._has_other_rules:
            chunk.tainted[:] = True
        tasks = [self.pool.submit(shard.feed, chunk) for shard in self.shards]
        found = [finding for task in tasks for part in task.result() for finding in part]
        num_records = int(np.count_nonzero(chunk.lines[CODE] >= 0))
        self.report.num_records += num_records
        self._num_in_part += num_records
        for finding in sorted(found, key=lambda one: int(one[1])):
            self._take(chunk, finding)

    def named(self, named: Named) -> None:
        """Names, remarks and the end."""
        for _, record in named.records:
            if isinstance(record, Request) and record.id:
                self._names[record.request] = record.id
        if len(self._names) > 50_000:
            live = set().union(*[shard.numbers() for shard in self.shards])
            if len(live) * 2 < len(self._names):
                self._names = {number: name for number, name in self._names.items() if number in live}
        for _, remark in named.remarks:
            self._num_in_part += 1
            if len(self.report.remarks) < MAX_SHOWN:
                self.report.remarks.append(f"step {remark.step}, request {remark.request}: {remark.sentence}")
        if named.end is not None:
            if self._end is not None:
                self.damage(Damage("repeated", "the trace ends twice", self._path))
            self._end, self._is_covered = named.end, named.is_covered

    def finish_part(self) -> None:
        """What is missing at the end of a part; said once."""
        if self.header is None or self._is_finished:
            return
        self._is_finished = True
        if self._end is None:
            self.damage(Damage("cut", "the trace has no end: how much is missing is not known", self._path))
        elif self._end.num_records != self._num_in_part:
            told, found = self._end.num_records, self._num_in_part
            sentence = f"{told} records should be here, {found} were read"
            self.damage(Damage("missing", sentence, self._path))
        elif self._end.sequence != self._next_sequence:
            sentence = f"the end says {self._end.sequence} is next, {self._next_sequence} would be"
            self.damage(Damage("missing", sentence, self._path))
        elif self.header.checksums and not self._is_covered:
            self.damage(Damage("checksum", "the checksum before the end is missing", self._path))

    def damage(self, damage: Damage) -> None:
        """Something that could not be read."""
        report = self.report
        report.damage_counts[damage.kind] = report.damage_counts.get(damage.kind, 0) + damage.num_alike
        if len(report.damages) < MAX_DAMAGES:
            where = f"{damage.place}: " if damage.place else ""
            report.damages.append(where + damage.sentence)

    def run(self, parts: Iterable[tuple[str, Part]]) -> Report:
        """All parts of the trace."""
        for path, part in parts:
            if path != self._path:
                self.finish_part()
                self._path = path
            if isinstance(part, Header):
                self.begin(part)
            elif isinstance(part, Chunk):
                self.feed(part)
            elif isinstance(part, Named):
                self.named(part)
            else:
                self.damage(part)
        if isinstance(self._end, Continued):
            self.damage(Damage("cut", "the trace goes on in a part that is missing", self._path))
        self.finish_part()
        return self.verdict()

    def told_so_far(self) -> None:
        """Take in what the shards have counted."""
        for shard in self.shards:
            self.told.add(shard.table.told)
            self.report.num_requests += int(shard.table.counts[request_table.NUM_OPENED])
            self.report.num_judged += int(shard.table.counts[request_table.NUM_JUDGED])
            self.report.num_incomplete += int(shard.table.counts[request_table.NUM_SKIPPED])
        self.shards = []

    def verdict(self) -> Report:
        """The report, complete."""
        report = self.report
        self.told_so_far()
        if self.header is not None:
            report.checked, report.not_checked = coverage.of(self.told, self.header)
        if report.num_diverged:
            report.verdict = VIOLATED
        elif report.damage_counts or report.num_suspect:
            report.verdict = UNREADABLE
        elif report.checked:
            report.verdict = CLEAN
        return report

    def _check_sequences(self, chunk: Chunk) -> None:
        """Each record's place must follow the last one's."""
        sequences = chunk.sequences[chunk.sequences >= 0]
        if sequences.size == 0:
            return
        steps = np.diff(sequences, prepend=self._next_sequence - 1)
        for place in np.flatnonzero(steps != 1)[:MAX_DAMAGES].tolist():
            found, step = int(sequences[place]), int(steps[place])
            if step > 1:
                sentence = f"{step - 1} records are missing before record {found}"
                self.damage(Damage("missing", sentence, self._path))
            else:
                self.damage(Damage("order", f"record {found} comes behind record {found - step}", self._path))
        self._next_sequence = int(sequences[-1]) + 1

    def _take(self, chunk: Chunk, finding: Any) -> None:
        kind, row = int(finding[0]), int(finding[1])
        number = int(chunk.lines[REQUEST_NUMBER, row])
        report = self.report
        if kind >= request_table.NUM_VIOLATIONS:
            name, sentence = DAMAGE_SENTENCES[kind]
            where = f"{self._path}, record {int(chunk.sequences[row])}, request {number}"
            self.damage(Damage(name, sentence, where))
            return
        found = explained(chunk, finding, self.shards[0].rules)
        if found.is_suspect:
            report.num_suspect += 1
        else:
            report.num_diverged += 1
            for theorem in found.theorems:
                report.by_theorem[theorem] = report.by_theorem.get(theorem, 0) + 1
        if len(report.divergences) < MAX_SHOWN:
            report.divergences.append(
                msgspec.structs.replace(found, id=self._names.get(number, ""), path=self._path)
            )


def parts_of(
    source: Source, pool: Executor, depth: int, advance: Callable[[int], None]
) -> Iterator[tuple[str, Part]]:
    """Everything in a trace's files, each with its path. A file that cannot be read is a damage."""
    for path in source.paths:
        try:
            if kind_of(path) == "parquet":
                from draftproof.impl.traces.parquet import read_parquet

                parts = read_parquet(path, pool, depth, advance)
            else:
                parts = read_ndjson(path, pool, depth, advance)
            for part in parts:
                yield path, part
        except TraceError as problem:
            yield path, Damage("unreadable", str(problem))


def check_source(
    source: Source, *, num_threads: int | None = None, advance: Callable[[int], None] = lambda count: None
) -> Report:
    """Check one trace. Never raises for what is in its files."""
    count = num_threads or os.cpu_count() or 1
    with ThreadPoolExecutor(count, "draftproof check") as pool, ThreadPoolExecutor(count) as readers:
        checker = Checker(source, pool, count)
        report = checker.run(parts_of(source, readers, count + 1, advance))
    _add_names(report)
    return report


def _add_names(report: Report) -> None:
    """Ids of diverged requests; those of a Parquet trace are read only now that they are asked for."""
    wanted = {found.request for found in report.divergences if not found.id}
    if not wanted:
        return
    names: dict[int, str] = {}
    for path in report.paths:
        try:
            if kind_of(path) == "parquet":
                from draftproof.impl.traces.parquet import read_names

                names |= read_names(path, wanted)
        except TraceError:
            continue
    report.divergences = [
        found if found.id else msgspec.structs.replace(found, id=names.get(found.request, ""))
        for found in report.divergences
    ]


def by_theorem(reports: Sequence[Report]) -> Counter[str]:
    """Diverged requests of all reports by theorem."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.by_theorem)
    return total
