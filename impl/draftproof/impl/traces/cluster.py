"""How are more traces checked than one machine can? As a Ray Data job over the files that the driver lists.

The driver sends names only; workers open the files, so names must mean the same everywhere: a shared folder,
or URLs. Traces travel in batches, many small ones together. Ray Data keeps as many batches under way as the
cluster has cores, hands over reports as they come, so that the driver holds nothing else, and begins a batch
again when its worker or the worker's machine dies. If that happens too often, the traces of the batch are
tried one by one, and only what kills its workers costs its report.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from draftproof.impl import interrupts
from draftproof.impl.traces.checking import UNREADABLE, Report, check_source
from draftproof.impl.traces.format import TraceError
from draftproof.impl.traces.sources import Beginning, Source, beginning_of

MAX_RETRIES = 3
"""A batch whose worker dies is begun again so many times."""
BATCH_BYTES = 256 * 2**20
BATCH_ITEMS = 64
BATCHES_PER_CORE = 4
"""At least, if there are so many traces: a core that is done early gets another batch."""
OBJECT_STORE_BYTES = 200 * 2**20
"""Of a cluster that is started here: nothing but names and reports is in it."""
CONNECT_SECONDS = 10.0
ADDRESS = re.compile(r"auto|local|(ray://)?(\[[0-9A-Fa-f:]+\]|[\w.-]+):\d{1,5}")
"""What can be the address of a cluster."""
HTTP2_SETTINGS = b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + b"\0" * 5
"""How a client of gRPC begins; its server answers in kind."""
LOST = "its worker died {} times"


def check_one(source: Source) -> bytes:
    """One trace's report, as it travels. On one core: the cluster deals out the others."""
    return msgspec.msgpack.encode(check_source(source, num_threads=1))


def begin_one(path: str) -> bytes:
    """One file's header, as it travels."""
    return msgspec.msgpack.encode(beginning_of(path))


class Cluster:
    """A Ray cluster that is connected."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.num_cores = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def beginnings_of(self, paths: Sequence[str]) -> list[Beginning]:
        """The headers of these files, read by the workers."""
        results = self._each(begin_one, paths, [0] * len(paths))
        return [
            msgspec.msgpack.decode(result, type=Beginning)
            if isinstance(result, bytes)
            else Beginning(path, None, sentence=f"{path} was not read: {result}")
            for path, result in zip(paths, results, strict=True)
        ]

    def check(
        self,
        sources: Sequence[Source],
        advance: Callable[[int], None] = lambda count: None,
        check: Callable[[Source], bytes] = check_one,
    ) -> list[Report]:
        """The traces' reports, in this order. Never raises for what is in a trace or happens to a worker."""

        def check_item(item: Any) -> bytes:
            return check(msgspec.convert(item, Source))

        results = self._each(check_item, sources, [source.num_bytes for source in sources], advance)
        return [
            msgspec.msgpack.decode(result, type=Report)
            if isinstance(result, bytes)
            else _not_checked(source, result)
            for source, result in zip(sources, results, strict=True)
        ]

    def _each(
        self,
        function: Callable[[Any], bytes],
        items: Sequence[Any],
        sizes: Sequence[int],
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[bytes | str]:
        """The function of each item, worked out by the workers; for those that have none, why."""
        results: dict[int, bytes | str] = {}
        groups = batches(sizes, self.num_cores)
        problem = ""
        while groups and not problem:
            rows = [_row([(place, items[place]) for place in group]) for group in groups]
            try:
                for place, result in self._rows(function, rows):
                    results[place] = result
                    advance(sizes[place])
            except Exception as error:  # the cluster is gone
                problem = f"the Ray cluster failed: {_last_line(error)}"
            groups = [
                [place] for group in groups if len(group) > 1 for place in group if place not in results
            ]
        lost = problem or LOST.format(MAX_RETRIES + 1)
        return [results.get(place, lost) for place in range(len(items))]

    def _rows(
        self, function: Callable[[Any], bytes], rows: list[dict[str, bytes]]
    ) -> Iterator[tuple[int, bytes | str]]:
        """The results as they come. A batch that cannot be worked out has none."""
        folder = os.getcwd()

        def work(row: dict[str, bytes]) -> list[dict[str, Any]]:  # by value: its module may not be there
            found = []
            with contextlib.suppress(OSError):
                os.chdir(folder)  # for names that begin there
            for place, item in msgspec.msgpack.decode(row["batch"]):
                try:
                    result, problem = function(item), ""
                except Exception as error:  # the report of this trace only
                    result, problem = b"", f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                found.append({"place": place, "result": result, "problem": problem})
            return found

        context = self._ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.max_errored_blocks = -1
        # Without `max_retries` Ray Data tries without end. Ray 2.64 takes it away: see pyproject.toml.
        data = self._ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(
            work, num_cpus=1, max_retries=MAX_RETRIES
        )
        for row in data.iter_rows():
            yield row["place"], row["problem"] or row["result"]


def batches(sizes: Sequence[int], num_cores: int) -> list[list[int]]:
    """Places of items that are worked on together: few large ones, many small ones."""
    most = min(BATCH_ITEMS, -(-len(sizes) // (BATCHES_PER_CORE * num_cores)))
    found: list[list[int]] = []
    num_bytes = 0
    for place, size in enumerate(sizes):
        if not found or len(found[-1]) >= most or num_bytes + size > BATCH_BYTES:
            found.append([])
            num_bytes = 0
        found[-1].append(place)
        num_bytes += size
    return found


@contextlib.contextmanager
def connected(address: str = "", num_cores: int | None = None) -> Iterator[Cluster]:
    """The cluster at `address`, else the one around (Ray's RAY_ADDRESS, or one on this machine), else one of
    `num_cores` started on this machine, which ends here. Raises TraceError if there is none to be had."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # Ray writes its workers' deaths to standard output, where the reports go.
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        address = address or os.environ.get("RAY_ADDRESS", "") or _address_around()
        ray = _ray(address)
        warnings.simplefilter("ignore")  # Ray tells users what only programs can change
        try:
            try:
                if not ray.is_initialized():
                    _join(ray, address, num_cores, stack)
                _refuse_other_versions(ray)
            except TraceError:
                raise
            except Exception as problem:  # Ray's, gRPC's, the system's
                raise TraceError(f"the Ray cluster cannot be used: {_last_line(problem)}") from None
            yield Cluster(ray)
        except KeyboardInterrupt:
            interrupts.finished()  # ending a cluster takes longer than a command is given
            raise


def _address_around() -> str:
    """The address of the cluster that runs on this machine, as `ray start` wrote it down; else `local`."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
        _refuse_silence(address)
    except (OSError, TraceError):
        return "local"
    return address


def _ray(address: str) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == "local":
        # Else Ray leaves a token in the home folder.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
        import ray.data
    except ImportError:
        raise TraceError("this needs Ray: pip install 'draftproof[ray]'") from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ray


def _join(ray: Any, address: str, num_cores: int | None, stack: contextlib.ExitStack) -> None:
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
    if address == "local":
        # In a folder of a short name: names of sockets have 107 characters at most.
        short = os.environ.get("RAY_TMPDIR") or ("/tmp" if os.name == "posix" else None)
        folder = tempfile.mkdtemp(prefix="ray-", dir=short)
        stack.push(lambda *_: shutil.rmtree(folder, ignore_errors=True))
        options |= {"num_cpus": num_cores, "include_dashboard": False, "_temp_dir": folder}
        options["object_store_memory"] = OBJECT_STORE_BYTES
    elif address != "auto":
        _refuse_silence(address)
    stack.callback(ray.shutdown)
    ray.init(**options)


def _refuse_silence(address: str) -> None:
    """Ray itself tries for minutes, and then may end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    answer = HTTP2_SETTINGS
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as server:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                server.sendall(HTTP2_GREETING)
                answer = server.recv(4)[3:]
    except (OSError, ValueError, OverflowError) as problem:
        text = getattr(problem, "strerror", None) or problem
        raise TraceError(f"no Ray cluster answers at {address}: {text}") from None
    if answer != HTTP2_SETTINGS:
        raise TraceError(f"what answers at {address} is no Ray cluster")


def _refuse_other_versions(ray: Any) -> None:
    """A worker without this package would fail at every batch; one with another may judge otherwise."""

    def version() -> str:
        import draftproof.impl.traces.cluster  # noqa: F401 - can it be imported there?

        return importlib.metadata.version("draftproof")

    here = version()
    try:
        there = ray.get(ray.remote(version).options(num_cpus=1).remote())
    except ray.exceptions.RayTaskError as problem:
        raise TraceError(
            f"draftproof cannot be imported on the Ray cluster ({_last_line(problem)}): "
            "pip install 'draftproof[ray]' on each of its machines"
        ) from None
    if there != here:
        raise TraceError(f"draftproof is {here} here and {there} on the Ray cluster: install the same")


def _row(batch: list[tuple[int, Any]]) -> dict[str, bytes]:
    return {"batch": msgspec.msgpack.encode(batch)}


def _not_checked(source: Source, problem: str) -> Report:
    return Report(
        verdict=UNREADABLE,
        paths=list(source.paths),
        damages=[f"it was not checked: {problem}"],
        damage_counts={"cluster": 1},
    )


def _last_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).strip().rpartition("\n")[2][:200]
