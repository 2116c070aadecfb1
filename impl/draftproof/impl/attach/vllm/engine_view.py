"""What does vLLM say about itself? The only place that reads its objects' fields.

A `View` is built once per scheduler, at the first call that is judged, and says what of this configuration
can be judged at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Rules

NOTHING = np.zeros(0, np.int64)
QUEUES = ("running", "waiting", "kv_holding_waiting", "skipped_waiting")
"""Where a live request can stand. Not every version has all of them."""


def status_codes(kind: Any) -> dict[Any, int]:
    """The specification's status for each status of `vllm.v1.request.RequestStatus`."""
    codes = {}
    for status in kind:
        if kind.is_finished(status):
            codes[status] = FINISHED
        else:
            codes[status] = {
                "RUNNING": RUNNING,
                "PREEMPTED": PREEMPTED,
                "WAITING_FOR_STREAMING_REQ": PAUSED,
            }.get(status.name, WAITING)
    return codes


def status_table(codes: dict[Any, int]) -> Any:
    """The same by a status's own number: int64."""
    table = np.zeros(1 + max(int(status) for status in codes), np.int64)
    for status, code in codes.items():
        table[int(status)] = code
    return table


class View(NamedTuple):
    """What holds for one scheduler."""

    rules: Rules
    max_model_len: int
    counts: bool
    """Whether the counters mean what they mean for text: one token is sampled a step."""
    blocks: bool
    """Whether there is one group of full attention whose block tables this process alone changes."""
    caching: bool
    """Whether blocks are published, and can be looked up block by block."""
    connected: bool
    """Whether KV may come from outside: then a request that waits may have computed tokens already."""
    left_out: tuple[str, ...]
    """What is not judged, and why."""


def view(scheduler: Any, *, asynchronous: bool) -> View:
    """What can be judged of this scheduler."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    left_out = []
    counts = getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1
    if not counts:
        left_out.append("counters and content: this model samples no token a step (pooling, diffusion)")
    plain = len(managers) == 1 and type(managers[0]).__name__ == "FullAttentionManager"
    if not plain:
        left_out.append("blocks, content and lost blocks: the KV cache is not one group of full attention")
    connected = any(getattr(scheduler, name, None) is not None for name in ("connector", "ec_connector"))
    connected = connected or bool(getattr(scheduler, "defer_block_free", False))
    if connected:
        left_out.append("blocks, content and lost blocks: a connector moves KV from outside")
    block_size = int(managers[0].block_size) if plain else int(scheduler.block_size)
    hashed = getattr(scheduler, "hash_block_size", block_size) == block_size
    if plain and not hashed:
        left_out.append("blocks, content and lost blocks: hashes are finer than blocks")
    blocks = plain and not connected and hashed
    caching = blocks and bool(scheduler.kv_cache_manager.enable_caching)
    lookahead = int(getattr(scheduler, "num_prefill_lookahead", 0) or 0)
    return View(
        rules=Rules(
            num_speculative_tokens=int(scheduler.num_spec_tokens),
            block_size=block_size,
            asynchronous=asynchronous,
            registration_fence=max(0, lookahead - 1),
        ),
        max_model_len=int(scheduler.max_model_len),
        counts=counts,
        blocks=blocks,
        caching=caching,
        connected=connected,
        left_out=tuple(left_out),
    )


def counters(request: Any, codes: dict[Any, int]) -> tuple[int, int, int, int, int, int, int]:
    """N, C, P, F, S, D and the status, in the order of `draftproof.impl.attach.vllm.naming.COMPARED`."""
    return (
        request.num_tokens,
        request.num_computed_tokens,
        request.num_output_placeholders,
        request.num_in_flight_tokens,
        request.num_stale_output_tokens,
        len(request.spec_token_ids),
        codes[request.status],
    )


_numbers_of = attrgetter(
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "status",
)
_drafts_of = attrgetter("spec_token_ids")


def read(requests: Sequence[Any]) -> tuple[Any, Any]:
    """The counters of many requests at once: int64[6 n], for each N, C, P, F, S and the status's own number,
    and int64[n], D, or of length 0 if no drafts wait for anybody."""
    count = len(requests)
    numbers = np.fromiter(chain.from_iterable(map(_numbers_of, requests)), np.int64, 6 * count)
    return numbers, num_drafts(requests) if any(map(_drafts_of, requests)) else NOTHING


def num_drafts(requests: Sequence[Any]) -> Any:
    """How many drafts wait for each request: int64[n]."""
    return np.fromiter(map(len, map(_drafts_of, requests)), np.int64, len(requests))


def tokens(request: Any, start: int = 0) -> Sequence[int]:
    """A request's known tokens from a position on."""
    found: Sequence[int] = request.all_token_ids[start:]
    return found


def block_table(scheduler: Any, request_id: str) -> list[Any]:
    """The blocks that a request holds, in the order of its positions."""
    table: list[Any] = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks.get(
        request_id, []
    )
    return table


def num_registered_blocks(scheduler: Any, request_ids: Sequence[str]) -> Any:
    """What the engine has published for each request in its present life: int64[n]."""
    cached: dict[str, int] = scheduler.kv_cache_manager.coordinator.single_type_managers[0].num_cached_block
    return np.fromiter(map(cached.get, request_ids, repeat(0)), np.int64, len(request_ids))


def findable(scheduler: Any, block_hash: Any) -> Any:
    """A block that a look-up of this hash would take, or None."""
    found = scheduler.kv_cache_manager.block_pool.get_cached_block(block_hash, [0])
    return found[0] if found else None


def queues(scheduler: Any) -> Callable[[Any], Sequence[Any]]:
    """What gives the scheduler's queues, of those it has."""
    names = [name for name in QUEUES if hasattr(scheduler, name)]
    found = attrgetter(*names)
    return found if len(names) > 1 else lambda scheduler: (found(scheduler),)


def queued(scheduler: Any) -> Iterator[Any]:
    """Every request in every queue."""
    for name in QUEUES:
        yield from getattr(scheduler, name, ())


def sampled(output: Any, request_id: str) -> list[int]:
    """What the runner brought for a request; a copy, since the engine cuts it."""
    place = output.req_id_to_index.get(request_id)
    if place is None or not output.sampled_token_ids:
        return []
    return list(output.sampled_token_ids[place])


def has_failed_loads(output: Any) -> bool:
    """Whether KV that a connector was to bring did not come: what was computed is then counted anew."""
    loaded = getattr(output, "kv_connector_output", None)
    names = ("invalid_block_ids", "failed_recving")
    return loaded is not None and any(getattr(loaded, name, None) for name in names)


def num_sampled(output: Any, request_ids: Sequence[str]) -> Any:
    """How many tokens the runner brought for each request: int64[n]."""
    tokens, places = output.sampled_token_ids, output.req_id_to_index
    if not tokens:
        return np.zeros(len(request_ids), np.int64)
    try:
        found = map(len, map(tokens.__getitem__, map(places.__getitem__, request_ids)))
        return np.fromiter(found, np.int64, len(request_ids))
    except KeyError:
        return np.array([len(sampled(output, request_id)) for request_id in request_ids], np.int64)
