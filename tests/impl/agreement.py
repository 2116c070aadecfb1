"""Where do a scheduler and the truth beside it part? Nowhere, or AssertionError says so in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.impl.request_truth import Answer, Request

from draftproof.impl import pool_checks
from draftproof.impl.digest import block_digest
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS, NUM_FIELDS, NUM_REGISTERED_AT_PREEMPTION
from draftproof.impl.scheduler import layout
from draftproof.impl.scheduler.batch import NUM_COPIES, RUNNING, Batch
from draftproof.impl.scheduler.memory import salt_words
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.spec import ledger as status
from draftproof.spec import tokens
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ledger import SYMBOLS

if TYPE_CHECKING:
    from tests.impl.watched import WatchedScheduler


def everything_of(scheduler: Scheduler) -> tuple[object, ...]:
    """All that a scheduler remembers, byte for byte: to be compared before and after."""
    memories = [memory for memory in scheduler.memory if memory is not None]
    memories += [batch.counts.base for batch in scheduler._batches]
    chunks = {
        row: [(one.token_ids.tobytes(), one.max_tokens, one.min_tokens) for one in waiting]
        for row, waiting in scheduler._chunks.items()
        if waiting
    }
    return (
        *[memory.tobytes() for memory in memories],
        dict(scheduler.rows),
        list(scheduler.request_ids),
        chunks,
        set(scheduler._closing),
    )


def check_row(batch: Batch, index: int, request: Request) -> None:
    """Before its step is dispatched: the batch says where the request stands."""
    said = int(batch.num_computed_tokens[index]), int(batch.num_output_placeholders[index])
    known = request.ledger.num_computed_tokens, request.ledger.num_output_placeholders
    assert said == known, f"{request.request_id}: the batch says C, P = {said}, they are {known}"


def check_answer(batch: Batch, index: int, request: Request, answer: Answer) -> None:
    """The batch says what the step does: sampling, drafts, and which of these cannot be right. A prefill
    chunk leaves the drafter the known tokens that it reads behind the chunk."""
    num_drafts = answer.num_drafts
    said = int(batch.num_draft_tokens[index]), bool(batch.samples[index])
    assert said == (num_drafts, len(answer.generated) > 0), f"{request.request_id}: the batch says {said}"
    num_left = request.ledger.num_tokens - request.ledger.num_computed_tokens
    assert answer.generated or num_left >= request.config.num_prefill_lookahead_tokens, (
        f"{request.request_id}: a chunk ends {num_left} tokens before the end, within the look-ahead"
    )
    assert batch.num_invalid_drafts[index] == num_drafts - answer.num_verified, (
        f"{request.request_id}: {batch.num_invalid_drafts[index]} of {num_drafts} drafts are said to be "
        f"certain to be rejected, there are {num_drafts - answer.num_verified}"
    )


def check_batch(watched: WatchedScheduler, batch: Batch, requests: Sequence[Request]) -> None:
    """The step as a whole keeps to the limits."""
    config, tables = watched.config, watched.scheduler.state.tables
    count = len(requests)
    assert len({request.row for request in requests}) == count, "a row is in the step twice"
    num_tokens = int(batch.num_scheduled_tokens[:count].sum())
    assert num_tokens == batch.num_tokens, f"the step has {num_tokens} tokens and says {batch.num_tokens}"
    assert num_tokens <= config.max_num_batched_tokens, f"the step has {num_tokens} tokens, beyond its budget"
    assert count <= config.max_num_seqs, f"the step has {count} rows, beyond max_num_seqs"
    ranks = [watched.order.running.index(request) for request in requests]
    assert ranks == sorted(ranks), f"rows are not scheduled in their order: {ranks}"
    for index, request in enumerate(requests):
        num_slots = min(
            request.ledger.num_computed_tokens + config.num_lookahead_tokens, config.max_model_len
        )
        for number, group in enumerate(config.groups):
            held = int(batch.num_blocks[number, index])
            told = int(tables.num_blocks[number, request.row])
            assert held == told, f"{request.request_id}: the batch says {held} blocks, the table has {told}"
            assert group.kind == "recurrent" or held * group.block_size >= num_slots, (
                f"{request.request_id} needs {num_slots} slots and holds {held} blocks of {group.block_size}"
            )


def idle_sessions_without_kv(
    watched: WatchedScheduler, batch: Batch, requests: Sequence[Request], count: int
) -> list[Request]:
    """So many idle sessions have lost their KV to make room; which ones is told from what is left of them.

    One that starts in the same step may have found in the cache exactly as much as it had before.
    """
    table = watched.scheduler.state.requests.ledgers
    starts = {
        one.row: int(batch.num_computed_tokens[index])
        for index, one in enumerate(requests)
        if batch.kind[index] != RUNNING
    }
    lost, unchanged = [], []
    for row, request in watched.by_row.items():
        ledger = request.ledger
        if ledger.status not in (status.WAITING, status.PAUSED) or ledger.num_computed_tokens == 0:
            continue
        if starts.get(row, int(table[NUM_COMPUTED_TOKENS, row])) != ledger.num_computed_tokens:
            lost.append(request)
        elif row in starts and table[NUM_REGISTERED_AT_PREEMPTION, row] == ledger.num_registered_tokens:
            unchanged.append(request)
    lost += unchanged[: count - len(lost)]
    assert len(lost) == count, f"{count} idle sessions gave up their KV, {len(lost)} have lost it"
    return lost


def check_all(watched: WatchedScheduler) -> None:
    """Everything that can be compared at any time; published content only with nothing in flight."""
    state = watched.scheduler.state
    table = state.requests.ledgers[:NUM_FIELDS].T.tolist()
    num_metrics = len(Metrics._fields)
    for row, request in watched.by_row.items():
        expected = [int(value) for value in request.ledger]
        if table[row] != expected:
            raise AssertionError(ledger_differences(watched, request, table[row], expected))
        known = state.requests.token_ids[row, : len(request.token_ids)].tolist()
        assert known == request.token_ids, f"{request.request_id} knows {known}, not {request.token_ids}"
        metrics = Metrics(*state.requests.metrics[:num_metrics, row].tolist())
        assert metrics == request.metrics, f"{request.request_id}: {metrics}, must be {request.metrics}"
        if request.ledger.status != status.FINISHED:
            truth = tokens.num_valid_tokens(request.reference)
            registered = request.ledger.num_registered_tokens
            assert registered <= truth, f"{request.request_id}: R is {registered}, in truth {truth} are valid"
    known_rows = {name: one.row for name, one in watched.requests.items()}
    assert watched.scheduler.rows == known_rows, f"known are {watched.scheduler.rows}, must be {known_rows}"
    check_queues(watched)
    check_pool(watched)
    check_digests(watched)
    if not watched.steps:
        check_published(watched)
        check_eviction_order(watched)


def ledger_differences(
    watched: WatchedScheduler, request: Request, found: Sequence[int], expected: Sequence[int]
) -> str:
    """Every counter that is not what it must be."""
    pairs = [
        f"{symbol} is {one}, must be {other}"
        for symbol, one, other in zip(SYMBOLS.values(), found, expected, strict=True)
        if one != other
    ]
    return f"request {request.request_id!r} after {watched.num_steps} steps: {', '.join(pairs)}"


def check_queues(watched: WatchedScheduler) -> None:
    """Every row is in exactly one place: running, waiting, unused, or in none while a session is paused."""
    state, counts = watched.scheduler.state, watched.scheduler.state.counts.tolist()
    running = state.queues.running[: counts[layout.NUM_RUNNING]].tolist()
    idle = state.queues.idle[: counts[layout.NUM_IDLE]].tolist()
    following, sentinel = state.queues.next_waiting.tolist(), state.settings.num_rows
    waiting: list[int] = []
    row = following[sentinel]
    while row != sentinel and len(waiting) <= sentinel:
        waiting.append(row)
        row = following[row]
    told = counts[layout.NUM_WAITING]
    assert len(waiting) == told, f"{len(waiting)} rows wait, {told} are said to"
    used = sorted(set(range(sentinel)) - set(idle))
    assert used == sorted(watched.by_row), f"rows {used} are in use, must be {sorted(watched.by_row)}"
    assert len(idle) + len(used) == sentinel, f"a row is unused twice: {idle}"
    watched.order.check(running, waiting)


def check_digests(watched: WatchedScheduler) -> None:
    """Every digest that a row remembers is that of its tokens now, from scratch."""
    state, size = watched.scheduler.state, watched.config.hash_block_size
    if state.settings.num_hash_lookahead_tokens > 0:
        return
    for row, request in watched.by_row.items():
        count = int(state.requests.num_hashed_blocks[row])
        first = state.requests.digest_first[row, :count].tolist()
        second = state.requests.digest_second[row, :count].tolist()
        ends = request.prefixes[size - 1 :: size]
        assert count <= len(ends), f"{request.request_id} has {count} digests of {len(ends)} blocks"
        for index, digest in enumerate(zip(first, second, strict=True)):
            assert digest == digest_of(watched, ends[index]), (
                f"{request.request_id}: the digest of block {index} is that of other tokens"
            )


def check_pool(watched: WatchedScheduler) -> None:
    """Reference counts are owners, lists are whole, unused rows hold nothing."""
    tables = watched.scheduler.state.tables
    owners = [0] * (watched.config.num_blocks + 1)
    for group, held in enumerate(tables.num_blocks[:, : watched.config.max_num_requests].tolist()):
        for row, count in enumerate(held):
            assert count == 0 or row in watched.by_row, f"row {row} is unused and holds {count} blocks"
            for block in tables.block_ids[group, row, :count].tolist():
                owners[block] += block != 0
    for batch, _ in watched.steps:  # both ends of a copy stay until the step has returned
        for block in batch.copies[:, : batch.counts[NUM_COPIES]].ravel().tolist():
            owners[block] += 1
    found = pool_checks.problem_of(layout.interpreted(watched.scheduler.state.pool), owners)
    assert found == 0, pool_checks.PROBLEMS[found]


def published_blocks(watched: WatchedScheduler) -> list[int]:
    """Blocks that a look-up may return."""
    following = watched.scheduler.state.pool.next_in_chain[: watched.config.num_blocks + 1].tolist()
    return [block for block, node in enumerate(following) if node != 0 and block > 0]


def content_of(watched: WatchedScheduler, block: int) -> tuple[int, int, tuple[int, ...]]:
    """Of a published block: its group, the prefix it ends with, the tokens that its digest looks ahead to."""
    device, settings = watched.device, watched.scheduler.state.settings
    number = device.owners[block]
    if device.groups[number].kind == "recurrent":
        return number, device.states[block], ()
    size = device.groups[number].block_size
    ahead = watched.scheduler.state.pool.token_ids[block, size : size + settings.num_hash_lookahead_tokens]
    return number, device.slots[block][size - 1], tuple(ahead.tolist())


def check_published(watched: WatchedScheduler) -> None:
    """With nothing in flight: every published block holds the KV or state that it is published as (P6)."""
    state, device = watched.scheduler.state, watched.device
    for block in published_blocks(watched):
        number, prefix, ahead = content_of(watched, block)
        group = device.groups[number]
        recurrent = group.kind == "recurrent"
        size = watched.config.hash_block_size if recurrent else group.block_size
        assert prefix >= 0, f"block {block} is published and holds {device.slots[block]}"
        path, told = device.prefixes.path(prefix), state.pool.token_ids[block].tolist()
        assert len(path) % size == 0, f"block {block} is published and ends after {len(path)} tokens"
        assert recurrent or device.slots[block][:size] == path[-size:], f"block {block} holds a mixture"
        assert state.pool.num_tokens[block] == size + len(ahead), f"block {block} is published, not full"
        held = device.prefixes.tokens(prefix)[-size:]
        assert told[:size] == held, f"block {block} is published as {told[:size]} and holds {held}"
        if not ahead:
            first, second = digest_of(watched, prefix)
            digest = int(state.pool.digest_first[block]), int(state.pool.digest_second[block])
            assert digest == (first, second ^ number), f"block {block} has another content's digest"


def check_eviction_order(watched: WatchedScheduler) -> None:
    """Tails are evicted before heads (P7): a free block that is published is not the last of its chain to go.

    Whoever released it held a block with its parent, and released that one later. Told from what blocks hold,
    so nothing may be in flight; after a failed step, what was withdrawn leaves gaps.
    """
    if [group.kind for group in watched.config.groups] != ["full_attention"] or watched.seen["steps lost"]:
        return
    following, size = watched.scheduler.state.pool.next_free.tolist(), watched.config.block_size
    place, block, places = 0, following[0], dict[int, int]()
    while block != 0:
        places[block], place, block = place, place + 1, following[block]
    contents = {block: content_of(watched, block)[1] for block in published_blocks(watched)}
    last: dict[int, int] = {}
    for block, prefix in contents.items():
        last[prefix] = max(last.get(prefix, 0), places.get(block, place))  # one that is held goes last
    for block, prefix in contents.items():
        path = watched.device.prefixes.path(prefix)
        if block in places and len(path) > size and path[-size - 1] in last:
            assert last[path[-size - 1]] > places[block], f"block {block} would be evicted after its head"


def digest_of(watched: WatchedScheduler, prefix: int) -> tuple[int, int]:
    """The digest of whole hash blocks of tokens, from scratch."""
    known = watched.digests.get(prefix)
    if known is None:
        settings, size = watched.scheduler.state.settings, watched.config.hash_block_size
        key, path = (settings.key_first, settings.key_second), watched.device.prefixes.path(prefix)
        if len(path) > size:
            parent = digest_of(watched, path[-size - 1])
        else:
            parent = salt_words(*key, watched.device.prefixes.salt(prefix))
        known = block_digest(*key, *parent, watched.device.prefixes.tokens(prefix)[-size:], size)
        watched.digests[prefix] = known
    return known
