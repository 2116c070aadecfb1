"""How are more traces checked than one machine can? As a Ray job: a task for each, wherever there is room.

Traces are independent, so nothing is exchanged but the reports. A worker that dies takes its task with it:
Ray starts the task again elsewhere, a few times; after that the trace's report says so, and the others stand.
Workers read the files themselves, so paths must be the same everywhere: a shared folder, or URLs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from draftproof.impl.traces.checking import UNREADABLE, Report, check_source
from draftproof.impl.traces.format import TraceError
from draftproof.impl.traces.sources import Source

MAX_RETRIES = 3


def check_one(source: Source) -> bytes:
    """One trace's report, as it travels. On one core: the cluster deals out the others."""
    return msgspec.msgpack.encode(check_source(source, num_threads=1))


def check_on_cluster(
    sources: Sequence[Source],
    *,
    address: str | None = None,
    advance: Callable[[int], None] = lambda count: None,
    check: Callable[[Source], bytes] = check_one,
) -> list[Report]:
    """Check traces on a Ray cluster: the one at `address`, else the one around, else one on this machine.

    Raises TraceError without Ray, or if the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        raise TraceError("this needs Ray: pip install 'draftproof[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as problem:  # Ray's, gRPC's, the system's
            text = (str(problem) or type(problem).__name__).partition("\n")[0][:200]
            raise TraceError(f"the Ray cluster cannot be used: {text}") from None
    task = ray.remote(check).options(num_cpus=1, max_retries=MAX_RETRIES)
    places = {task.remote(source): place for place, source in enumerate(sources)}
    reports: dict[int, Report] = {}
    pending = list(places)
    while pending:
        (done, *_), pending = ray.wait(pending, num_returns=1)
        place = places[done]
        reports[place] = _report(ray, done, sources[place])
        advance(sources[place].num_bytes)
    return [reports[place] for place in range(len(sources))]


def _report(ray: Any, done: Any, source: Source) -> Report:
    try:
        return msgspec.msgpack.decode(ray.get(done), type=Report)
    except Exception as problem:  # the worker died too often, or could not import this package
        text = (str(problem) or type(problem).__name__).strip().rpartition("\n")[2][:200]
        return Report(
            verdict=UNREADABLE,
            paths=list(source.paths),
            damages=[f"it was not checked: {text}"],
            damage_counts={"cluster": 1},
        )
