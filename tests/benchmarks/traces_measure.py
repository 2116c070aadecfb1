"""What does one check cost, in a process that does nothing else? `python -m tests.benchmarks.traces_measure`.

Given a small trace to begin with, which loads what is compiled, then the one to measure, and how many threads
may be used. Prints one line of JSON: seconds of the processor, of the clock, and the most memory it ever had.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.sources import Source


def check(path: str, num_threads: int) -> None:
    """Check a trace that is clean. Raises AssertionError if it is not."""
    report = check_source(Source((path,), 0), num_threads=num_threads)
    assert report.verdict == "clean", (path, report.verdict, report.damages[:3], report.divergences[:3])


def peak_megabytes() -> float:
    """The most memory this process has had, from Linux if it says so: `getrusage` counts the parent, too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size / 2**20 if sys.platform == "darwin" else size / 1024
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Measure and print."""
    first, path, num_threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    check(first, num_threads)
    begin, clock = time.process_time(), time.perf_counter()
    check(path, num_threads)
    found = {"processor_seconds": time.process_time() - begin, "seconds": time.perf_counter() - clock}
    print(json.dumps(found | {"peak_megabytes": peak_megabytes()}))


if __name__ == "__main__":
    main()
