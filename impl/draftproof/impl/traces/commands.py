"""The commands about traces: check, replay, shrink, diff, and trace pack, unpack, chrome.

What needs pyarrow and the like is imported when a command runs, not before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.impl.cli import UserError

if TYPE_CHECKING:
    from draftproof.impl.traces.checking import Report
    from draftproof.impl.traces.sources import Source

Subparsers = Any
USAGE = 2
"""The exit status of a command that was used wrongly, or could not read its input."""


def register(commands: Subparsers) -> None:
    """Add the commands to the parser of `draftproof`."""
    check = commands.add_parser("check", help="hold recorded traces against the proven accounting")
    check.add_argument("traces", nargs="+", metavar="TRACE", help="a file, pattern, folder or URL")
    check.add_argument("--json", action="store_true", help="print the reports as JSON")
    check.add_argument("--threads", type=int, metavar="N", help="cores to use (all)")
    check.add_argument("--show", type=int, default=10, metavar="N", help="diverging requests to print (10)")
    check.add_argument("--ray", action="store_true", help="check on a Ray cluster, a task for each trace")
    check.add_argument("--ray-address", metavar="ADDRESS", help="of the cluster; by default any around")
    check.set_defaults(run=_check)

    replay = commands.add_parser("replay", help="show a recorded request step by step")
    replay.add_argument("trace", metavar="TRACE")
    replay.add_argument("--request", required=True, metavar="ID", help="its id, or its number in the trace")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page instead")
    replay.set_defaults(run=_replay)

    shrink = commands.add_parser("shrink", help="make a violating trace as small as it can be")
    shrink.add_argument("trace", metavar="TRACE")
    shrink.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    shrink.add_argument("--request", metavar="ID", help="of the requests that diverge, this one")
    shrink.set_defaults(run=_shrink)

    diff = commands.add_parser("diff", help="show where two recordings of the same work part")
    diff.add_argument("first", metavar="A")
    diff.add_argument("second", metavar="B")
    diff.add_argument("--json", action="store_true", help="print it as JSON")
    diff.add_argument("--show", type=int, default=20, metavar="N", help="differing requests to print (20)")
    diff.set_defaults(run=_diff)

    trace = commands.add_parser("trace", help="turn traces into other forms")
    forms = trace.add_subparsers(dest="form", metavar="FORM", required=True)
    for name, run, what in (
        ("pack", _pack, "as Parquet: small, and quick to check"),
        ("unpack", _unpack, "as NDJSON, compressed if OUT ends in .zst"),
        ("chrome", _chrome, "as Chrome's trace format, for Perfetto"),
    ):
        form = forms.add_parser(name, help=f"write a trace {what}")
        form.add_argument("trace", metavar="TRACE")
        form.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
        form.set_defaults(run=run)


@contextmanager
def _told_in_a_sentence() -> Iterator[None]:
    try:
        from draftproof.impl.traces.format import TraceError
    except ImportError as problem:
        raise UserError(
            f"this needs more packages ({problem}): pip install 'draftproof[traces]'", USAGE
        ) from None
    try:
        yield
    except TraceError as problem:
        raise UserError(str(problem), USAGE) from None
    except OSError as problem:
        raise UserError(f"{problem.filename or 'the trace'}: {problem.strerror or problem}", USAGE) from None


def _one_source(name: str) -> Source:
    """The one trace that a name stands for."""
    from draftproof.impl.traces.format import TraceError
    from draftproof.impl.traces.sources import files_of, sources_of

    sources, unreadable = sources_of(files_of([name]))
    if unreadable:
        raise TraceError(unreadable[0].sentence)
    if len(sources) != 1:
        raise TraceError(f"{name} is {len(sources)} traces: give one of them")
    return sources[0]


class Progress:
    """How much has been read, how fast, and how long it will take: a line on a terminal, nothing else."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self._begin = self._last = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def advance(self, num_bytes: int) -> None:
        """So many bytes more."""
        self.count += num_bytes
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.25:
            return
        self._last = now
        rate = self.count / (now - self._begin)
        left = ""
        if self.total > self.count and rate > 0:
            left = f" of {self.total / 1e6:.0f} MB, about {(self.total - self.count) / rate:.0f} s left"
        sys.stderr.write(f"\r\x1b[K{self.count / 1e6:.0f} MB read{left}, {rate / 1e6:.0f} MB/s")
        sys.stderr.flush()

    def end(self) -> None:
        """The line goes."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _check(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces import reports
        from draftproof.impl.traces.checking import check_source
        from draftproof.impl.traces.sources import files_of, sources_of

        if options.threads is not None and not 1 <= options.threads <= 1024:
            raise UserError(f"--threads must be from 1 to 1024, got {options.threads}", USAGE)
        sources, unreadable = sources_of(files_of(options.traces))
        progress = Progress(sum(source.num_bytes for source in sources))
        found: list[Report] = []
        try:
            if options.ray or options.ray_address:
                from draftproof.impl.traces.cluster import check_on_cluster

                found = check_on_cluster(sources, address=options.ray_address, advance=progress.advance)
            else:
                for source in sources:
                    found.append(check_source(source, num_threads=options.threads, advance=progress.advance))
        finally:
            progress.end()
        if options.json:
            print(reports.as_json(found, unreadable))
        else:
            print(reports.as_text(found, unreadable, options.show), end="")
        return reports.exit_status(found, unreadable)


def _replay(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces import timeline
        from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of

        header, records, damages = records_of_request(_one_source(options.trace), options.request)
        happened = list(replayed(records, rules_of(header)))
        if options.html is not None:
            options.html.write_text(timeline.as_html(header, options.request, happened), encoding="utf-8")
        else:
            print(timeline.as_text(header, options.request, happened), end="")
        for damage in damages[:10]:
            print(f"draftproof: the trace is damaged: {timeline.printable(damage)}", file=sys.stderr)
        if happened[-1].divergence is not None:
            return 1
        return USAGE if damages else 0


def _shrink(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces import shrinking, timeline
        from draftproof.impl.traces.checking import check_source
        from draftproof.impl.traces.format import TraceError
        from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of

        source = _one_source(options.trace)
        name = options.request
        if name is None:
            found = check_source(source).divergences
            if not found:
                raise TraceError(f"{options.trace} violates nothing: there is nothing to shrink")
            name = str(found[0].request)
        header, records, _ = records_of_request(source, name)
        smallest = shrinking.shrink(records, header)
        shrinking.write(smallest, header, options.output)
        happened = list(replayed(smallest, rules_of(header)))
        print(timeline.as_text(header, "0", happened), end="")
        print(f"{len(records)} records became {len(smallest)}: {options.output}")
        return 0


def _diff(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        import msgspec

        from draftproof.impl.traces.differing import compare
        from draftproof.impl.traces.timeline import printable

        found = compare(_one_source(options.first), _one_source(options.second))
        if options.json:
            print(msgspec.json.encode(found).decode())
        else:
            for name, (first, second) in found.header.items():
                print(printable(f"{name}: {first} against {second}"))
            for one in found.differences[: options.show]:
                print(printable(one.sentence))
            left = len(found.differences) - options.show
            if left > 0:
                print(f"and {left} more")
            total = found.num_equal + len(found.differences)
            print(f"{found.num_equal} of {total} requests are the same (matched by {found.matched_by})")
        return 1 if found.differences else 0


def _write(options: argparse.Namespace, action: Callable[..., int]) -> int:
    source = _one_source(options.trace)
    progress = Progress(source.num_bytes)
    try:
        count = action(source, options.output, progress.advance)
    finally:
        progress.end()
    print(f"{count} records: {options.output}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces.packing import pack

        return _write(options, pack)


def _unpack(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces.packing import unpack

        return _write(options, unpack)


def _chrome(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces.chrome import export

        source = _one_source(options.trace)
        with open(options.output, "x", encoding="utf-8") as target:
            count = export(source, target)
        print(f"{count} entries: {options.output}")
        return 0
