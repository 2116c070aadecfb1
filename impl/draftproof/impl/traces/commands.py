"""The commands about traces: check, replay, shrink, diff, and trace pack, unpack, chrome.

What needs pyarrow and the like is imported when a command runs, not before. Standard output has the answer
only; a mistake is a sentence on standard error. `check --json` prints its document whatever could be read.
A file is written under another name first, so that it is there when it is complete or not at all, and nothing
is written over.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.impl import interrupts
from draftproof.impl.cli import UserError
from draftproof.impl.traces.outputs import USAGE, new_file
from draftproof.impl.traces.progress import Progress

if TYPE_CHECKING:
    from draftproof.impl.traces.checking import Report
    from draftproof.impl.traces.sources import Source, Unreadable

Subparsers = Any

ENDS = "Exit status: 0 clean, 1 violations, 2 wrong usage, or input that cannot be read or checked."
CHECK_HELP = f"""\
Replays recorded traces through the proven accounting and says, request by request, whether the engine's
counters were right; if not, at which event they first went wrong, and which theorems that breaks. Theorems
that could not be checked are listed: a trace is never called clean for those. vLLM records traces with
DRAFTPROOF_VLLM=record; docs/trace-format.md says how any other engine does.

TRACE is a file (NDJSON, also .zst, or Parquet), a pattern, a folder, or any URL that fsspec knows, such as
s3://bucket/folder (needs that store's driver: s3fs, gcsfs, aiohttp, ...). The parts of one recording are put
together. What can be read is judged, even if the rest cannot be read.

{ENDS}
A violation outweighs what cannot be read.
"""
CHECK_EXAMPLES = """\
examples:
  draftproof check draftproof-vllm-*.ndjson
  draftproof check recordings/ --json > verdict.json
  draftproof check s3://bucket/recordings --ray 10.0.0.1:6379
"""
REPLAY_HELP = f"""\
Shows each event of one request with the accounting's counters and what the engine told, up to the first event
where the two differ.

{ENDS}
"""
SHRINK_HELP = """\
Writes a small trace that still shows what the first diverging request shows: events are taken out and numbers
made smaller for as long as the same theorems are broken by the same counters.

Exit status: 0 if it was written, 2 wrong usage, nothing to shrink, or input that cannot be read.
"""
DIFF_HELP = """\
Matches the requests of two recordings, say of two versions of an engine or with and without speculation, and
shows for each pair the first event where they part.

Exit status: 0 if all requests are the same, 1 if some differ, 2 wrong usage or input that cannot be read.
"""
DRIVERS = ("adlfs", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "s3fs")
TRACE_HELP = "a file, a folder or pattern with one recording, or a URL"


def register(commands: Subparsers) -> None:
    """Add the commands to the parser of `draftproof`."""
    check = commands.add_parser(
        "check",
        help="hold recorded traces against the proven accounting",
        description=CHECK_HELP,
        epilog=CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("traces", nargs="*", metavar="TRACE", help="a file, pattern, folder or URL")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.add_argument("--threads", type=int, metavar="N", help="use N cores (default: all)")
    check.add_argument(
        "--show",
        type=_count,
        default=10,
        metavar="N",
        help="print at most N findings of a trace (default: 10)",
    )
    check.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="check on a Ray cluster, whose workers open the files: at ADDRESS (host:port), else at "
        "RAY_ADDRESS, else the one that runs here, else one started here for this; needs "
        "pip install 'draftproof[ray]'",
    )
    check.set_defaults(run=_check)

    replay = _parser(commands, "replay", "show a recorded request step by step", REPLAY_HELP)
    replay.add_argument("trace", metavar="TRACE", help=TRACE_HELP)
    replay.add_argument("--request", required=True, metavar="ID", help="its id, or its number in the trace")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write a page instead, a new file")
    replay.set_defaults(run=_replay)

    shrink = _parser(commands, "shrink", "make a violating trace as small as it can be", SHRINK_HELP)
    shrink.add_argument("trace", metavar="TRACE", help=TRACE_HELP)
    shrink.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="the new file (NDJSON, or .zst)"
    )
    shrink.add_argument("--request", metavar="ID", help="of the requests that diverge, this one")
    shrink.set_defaults(run=_shrink)

    diff = _parser(commands, "diff", "show where two recordings of the same work part", DIFF_HELP)
    diff.add_argument("first", metavar="A", help=TRACE_HELP)
    diff.add_argument("second", metavar="B", help="the other one")
    diff.add_argument("--json", action="store_true", help="print it as JSON")
    diff.add_argument(
        "--show", type=_count, default=20, metavar="N", help="print at most N requests (default: 20)"
    )
    diff.set_defaults(run=_diff)

    trace = commands.add_parser("trace", help="turn traces into other forms")
    forms = trace.add_subparsers(dest="form", metavar="FORM", required=True)
    for name, run, what, condition in (
        ("pack", _pack, "as Parquet: small, and quick to check", "A damaged trace is refused."),
        ("unpack", _unpack, "as NDJSON, compressed if OUT ends in .zst", "A damaged trace is refused."),
        ("chrome", _chrome, "as Chrome's trace format", "Open the file at https://ui.perfetto.dev."),
    ):
        form = _parser(forms, name, f"write a trace {what}", f"Writes a trace {what}. {condition}")
        form.add_argument("trace", metavar="TRACE", help=TRACE_HELP)
        form.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the new file")
        form.set_defaults(run=run)


def _parser(commands: Subparsers, name: str, sentence: str, description: str) -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=sentence, description=description, formatter_class=shape
    )
    return parser


def _count(text: str) -> int:
    """A number of things to print."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number from 0 up is wanted, got {text!r}")
    return int(text)


@contextmanager
def _told_in_a_sentence() -> Iterator[None]:
    try:
        from draftproof.impl.traces.format import TraceError
        from draftproof.impl.traces.timeline import printable
    except ImportError as problem:
        raise UserError(
            f"this needs more packages ({problem}): pip install 'draftproof[traces]'", USAGE
        ) from None
    for name in DRIVERS:  # what they log, with tracebacks, is told as an error too
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        yield
    except TraceError as problem:
        raise UserError(printable(str(problem)), USAGE) from None
    except BrokenPipeError:
        raise
    except OSError as problem:
        sentence = f"{problem.filename or 'the trace'}: {problem.strerror or problem}"
        raise UserError(printable(sentence), USAGE) from None


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


def _check(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces import reports
        from draftproof.impl.traces.timeline import printable

        names, address = _names_and_address(options)
        if options.threads is not None and not 1 <= options.threads <= 1024:
            raise UserError(f"--threads must be from 1 to 1024, got {options.threads}", USAGE)
        paths, missing = _paths_of(names)
        if address is None or not paths:
            found, unreadable = _checked_here(paths, options.threads)
        else:
            found, unreadable = _checked_by_ray(paths, address, options.threads)
        unreadable = missing + unreadable
        if options.json:
            print(reports.as_json(found, unreadable))
        elif found:
            print(reports.as_text(found, [], options.show), end="")
        for one in unreadable if not options.json else ():
            print(f"draftproof: {printable(one.sentence)}", file=sys.stderr)
        return reports.exit_status(found, unreadable)


def _names_and_address(options: argparse.Namespace) -> tuple[list[str], str | None]:
    """The traces, and the cluster's address: None without `--ray`, which may have taken the first trace."""
    names, address = options.traces, options.ray
    if address:
        from draftproof.impl.traces.cluster import ADDRESS

        if os.path.exists(address) or not ADDRESS.fullmatch(address):
            names, address = [address, *names], ""
    if not names:
        raise UserError("name a trace to check: a file, pattern, folder or URL", USAGE)
    return names, address


def _paths_of(names: list[str]) -> tuple[list[str], list[Unreadable]]:
    """The files that the names stand for, and the names that stand for none."""
    from draftproof.impl.traces.format import TraceError
    from draftproof.impl.traces.sources import Unreadable, files_of

    paths: list[str] = []
    missing: list[Unreadable] = []
    for name in names:
        try:
            paths += files_of([name])
        except TraceError as problem:
            missing.append(Unreadable(name, str(problem)))
    return list(dict.fromkeys(paths)), missing


def _checked_here(paths: list[str], num_threads: int | None) -> tuple[list[Report], list[Unreadable]]:
    from draftproof.impl.traces.checking import check_source
    from draftproof.impl.traces.sources import sources_of

    sources, unreadable = sources_of(paths)
    progress = Progress(sum(source.num_bytes for source in sources))
    try:
        found = [
            check_source(source, num_threads=num_threads, advance=progress.advance) for source in sources
        ]
    finally:
        progress.end()
    return found, unreadable


def _checked_by_ray(
    paths: list[str], address: str, num_cores: int | None
) -> tuple[list[Report], list[Unreadable]]:
    from draftproof.impl.traces.cluster import connected
    from draftproof.impl.traces.sources import sources_of

    try:
        with connected(address, num_cores) as cluster:
            sources, unreadable = sources_of(paths, cluster.beginnings_of)
            progress = Progress(sum(source.num_bytes for source in sources))
            try:
                return cluster.check(sources, progress.advance), unreadable
            finally:
                progress.end()
    except KeyboardInterrupt:
        # Everything is cleared away; but what is left of a job that was broken off may crash at the exit.
        print(interrupts.SENTENCE, file=sys.stderr, flush=True)
        os._exit(interrupts.STATUS)


def _replay(options: argparse.Namespace) -> int:
    with _told_in_a_sentence():
        from draftproof.impl.traces import timeline
        from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of

        header, records, damages = records_of_request(_one_source(options.trace), options.request)
        happened = list(replayed(records, rules_of(header)))
        if options.html is not None:
            page = timeline.as_html(header, options.request, happened)
            with new_file(options.html) as target:
                target.write_text(page, encoding="utf-8")
        else:
            print(timeline.as_text(header, options.request, happened), end="")
        for damage in damages[:10]:
            print(f"draftproof: the trace is damaged: {timeline.printable(damage)}", file=sys.stderr)
        if happened[-1].divergence is not None:
            return 1
        return USAGE if damages else 0


def _shrink(options: argparse.Namespace) -> int:
    with _told_in_a_sentence(), new_file(options.output) as target:
        from draftproof.impl.traces import shrinking, timeline
        from draftproof.impl.traces.checking import check_source
        from draftproof.impl.traces.format import TraceError
        from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of

        source = _one_source(options.trace)
        name: str | int | None = options.request
        if name is None:
            found = [one for one in check_source(source).divergences if not one.is_suspect]
            if not found:
                raise TraceError(f"{options.trace} violates nothing: there is nothing to shrink")
            name = found[0].request  # as a number: another's id may look the same
        header, records, _ = records_of_request(source, name)
        smallest = shrinking.shrink(records, header)
        shrinking.write(smallest, header, target)
        text = timeline.as_text(header, "0", list(replayed(smallest, rules_of(header))))
    print(text, end="")
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
        with new_file(options.output) as target:
            count = action(source, target, progress.advance)
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
        with new_file(options.output) as target, open(target, "x", encoding="utf-8") as file:
            count = export(source, file)
        print(f"{count} entries: {options.output}")
        return 0
