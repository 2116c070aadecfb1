"""Whatever a caller does wrong is one clear error, and leaves the scheduler as it was, byte for byte."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.impl.agreement import everything_of

from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.config import ConfigError, KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError, RequestError, StepError
from draftproof.impl.scheduler.scheduler import Scheduler

VOCAB_SIZE, MAX_MODEL_LEN, NUM_DRAFTS = 100, 32, 2
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])


class Busy(NamedTuple):
    """A scheduler in the middle of its work, and its steps: two that are settled, two in flight."""

    scheduler: Scheduler
    settled: Batch
    oldest: Batch
    """Rows: "decodes" with two drafts, and "prefill", a chunk that does not sample."""
    newest: Batch


def busy(compiled: bool) -> Busy:
    """Requests "decodes", "prefill" and "waits"; "session" has ended its turn, "told" has a chunk to come."""
    config = SchedulerConfig(
        max_model_len=MAX_MODEL_LEN,
        num_blocks=24,
        block_size=4,
        max_num_seqs=3,
        max_num_requests=6,
        max_num_batched_tokens=10,
        num_speculative_tokens=NUM_DRAFTS,
        asynchronous=True,
        vocab_size=VOCAB_SIZE,
        max_stop_token_ids=2,
        hash_seed=1,
    )
    scheduler = Scheduler(config, compiled=compiled)
    scheduler.add("session", [1, 2, 3], max_tokens=1, resumable=True)
    scheduler.add("decodes", [4, 5, 6], max_tokens=20)
    first = scheduler.schedule()
    second = scheduler.schedule()
    scheduler.settle(first, [[7, 0, 0], [8, 0, 0]], [1, 1])
    scheduler.add("prefill", list(range(10, 30)), max_tokens=4)
    scheduler.add("told", [9] * 5, max_tokens=2, resumable=True)
    scheduler.append_chunk("told", [3, 3])
    oldest = scheduler.schedule()
    scheduler.settle(second, [[9, 9, 9]], [1])
    newest = scheduler.schedule()
    assert scheduler.num_in_flight_steps() == 2
    return Busy(scheduler, second, oldest, newest)


Call = Callable[[Busy], Any]


def add(request_id: Any = "new", token_ids: Any = (1, 2, 3), **options: Any) -> Call:
    """Add a request."""
    return lambda busy: busy.scheduler.add(request_id, token_ids, **options)


def chunk(request_id: Any = "session", token_ids: Any = (1, 2), **options: Any) -> Call:
    """Append a chunk."""
    return lambda busy: busy.scheduler.append_chunk(request_id, token_ids, **options)


def close(request_id: Any) -> Call:
    """Close a session."""
    return lambda busy: busy.scheduler.close_session(request_id)


def abort(request_id: Any) -> Call:
    """Abort a request."""
    return lambda busy: busy.scheduler.abort(request_id)


def look_up(token_ids: Any, cache_salt: Any = "") -> Call:
    """Ask what is cached."""
    return lambda busy: busy.scheduler.num_cached_tokens(token_ids, cache_salt)


def settle(sampled: Any, counts: Any) -> Call:
    """Settle the oldest step."""
    return lambda busy: busy.scheduler.settle(busy.oldest, sampled, counts)


def drafts(rows: Any, draft_token_ids: Any, counts: Any) -> Call:
    """Take drafts."""
    return lambda busy: busy.scheduler.take_drafts(rows, draft_token_ids, counts)


class Wrong(NamedTuple):
    """A call that cannot be, and what is said to it."""

    name: str
    call: Call
    error: type[Exception]
    says: str


@functools.cache
def another() -> Busy:
    """Another scheduler."""
    return busy(False)


FITS = [[1, 2, 3], [0, 0, 0]]
"""Tokens for the oldest step, with counts [1 to 3, 0]."""

REQUESTS = [
    Wrong("a known id", add("waits"), RequestError, "known already"),
    Wrong("an id that is a number", add(5), RequestError, "must be a string"),
    Wrong("no tokens", add(token_ids=[]), RequestError, "the prompt is empty"),
    Wrong("nested tokens", add(token_ids=[[1, 2]]), RequestError, "flat list"),
    Wrong("ragged tokens", add(token_ids=[[1], [2, 3]]), RequestError, "flat list"),
    Wrong("fractions", add(token_ids=[1.5]), RequestError, "must hold integers"),
    Wrong("words", add(token_ids=["a"]), RequestError, "must hold integers"),
    Wrong("a token too high", add(token_ids=[1, 100]), RequestError, "token 100 at position 1"),
    Wrong("a negative token", add(token_ids=[-1]), RequestError, "token -1 at position 0"),
    Wrong("a token beyond 64 bits", add(token_ids=[2**70]), RequestError, "integers|outside"),
    Wrong("a prompt as long as the model", add(token_ids=[1] * 32), RequestError, "no room for an answer"),
    Wrong("a prompt longer than the model", add(token_ids=[1] * 33), RequestError, "no room for an answer"),
    Wrong("no answer", add(max_tokens=0), RequestError, "max_tokens must be"),
    Wrong("half an answer", add(max_tokens=1.5), RequestError, "max_tokens must be"),
    Wrong("a flag as a limit", add(max_tokens=True), RequestError, "max_tokens must be"),
    Wrong("no limit", add(max_tokens=None), RequestError, "max_tokens must be"),
    Wrong("a negative least", add(min_tokens=-1), RequestError, "min_tokens must be"),
    Wrong("limits crossed", add(max_tokens=2, min_tokens=3), RequestError, "min_tokens=3 is more"),
    Wrong("too many stop tokens", add(stop_token_ids=[1, 2, 3]), RequestError, "3 stop tokens"),
    Wrong("a stop token too high", add(stop_token_ids=[100]), RequestError, "outside the vocabulary"),
    Wrong("a stop word", add(stop_token_ids=["x"]), RequestError, "stop_token_ids"),
    Wrong("stop tokens that are none", add(stop_token_ids=None), RequestError, "stop_token_ids"),
    Wrong("an EOS too high", add(eos_token_id=100), RequestError, "eos_token_id"),
    Wrong("a negative EOS", add(eos_token_id=-1), RequestError, "eos_token_id"),
    Wrong("an EOS word", add(eos_token_id="x"), RequestError, "eos_token_id"),
    Wrong("a priority in words", add(priority="high"), RequestError, "priority"),
    Wrong("a priority too high", add(priority=2**31), RequestError, "priority"),
    Wrong("a salt that is a number", add(cache_salt=5), RequestError, "cache_salt"),
    Wrong("a salt that is none", add(cache_salt=None), RequestError, "cache_salt"),
    Wrong("a chunk for nobody", chunk("nobody"), RequestError, "not known"),
    Wrong("a chunk for no session", chunk("decodes"), RequestError, "no session"),
    Wrong("an empty chunk", chunk(token_ids=[]), RequestError, "the chunk is empty"),
    Wrong("a chunk too high", chunk(token_ids=[100]), RequestError, "outside the vocabulary"),
    Wrong("a chunk too long", chunk(token_ids=[1] * 29), RequestError, "no room for an answer"),
    Wrong("a waiting chunk too long", chunk("told", token_ids=[1] * 27), RequestError, "no room"),
    Wrong("a chunk without answer", chunk(max_tokens=0), RequestError, "max_tokens must be"),
    Wrong("a chunk's limits crossed", chunk(max_tokens=1, min_tokens=2), RequestError, "is more"),
    Wrong("nobody's end", close("x"), RequestError, "not known"),
    Wrong("no session's end", close("waits"), RequestError, "no session"),
    Wrong("nobody's abort", abort("nobody"), RequestError, "not known"),
    Wrong(
        "a list's abort",
        abort(["decodes"]),
        RequestError,
        "not known|string",
    ),
    Wrong("no look-up", look_up([]), RequestError, "empty"),
    Wrong("too long a look-up", look_up([1] * 33), RequestError, "33"),
    Wrong("a look-up's salt", look_up([1], 5), RequestError, "salt"),
]

STEPS = [
    Wrong("one step too many", lambda busy: busy.scheduler.schedule(), StepError, "are in flight"),
    Wrong(
        "a step twice",
        lambda busy: busy.scheduler.settle(busy.settled, [[9, 9, 9]], [1]),
        StepError,
        "not in flight",
    ),
    Wrong(
        "a step too early",
        lambda busy: busy.scheduler.settle(busy.newest, FITS, [1, 0]),
        StepError,
        "not the oldest",
    ),
    Wrong(
        "another scheduler's step",
        lambda busy: busy.scheduler.settle(another().oldest, FITS, [1, 0]),
        StepError,
        "not one of this scheduler's",
    ),
    Wrong("a settled step lost", lambda busy: busy.scheduler.fail(busy.settled), StepError, "oldest"),
    Wrong("a later step lost", lambda busy: busy.scheduler.fail(busy.newest), StepError, "oldest"),
]

OUTCOMES = [
    Wrong("more accepted than drafted", settle([[1] * 4, [0] * 4], [4, 0]), OutcomeError, "1 to 3"),
    Wrong("nothing sampled", settle(FITS, [0, 0]), OutcomeError, "1 to 3"),
    Wrong("a negative count", settle(FITS, [-1, 0]), OutcomeError, "1 to 3"),
    Wrong("a chunk that sampled", settle(FITS, [1, 1]), OutcomeError, "prefill chunk"),
    Wrong("a row that was not scheduled", settle([*FITS, [1, 2, 3]], [1, 0, 1]), OutcomeError, "another"),
    Wrong("a row too few", settle(FITS[:1], [1]), OutcomeError, "2 requests"),
    Wrong("a count too few", settle(FITS, [1]), OutcomeError, "2 requests"),
    Wrong("fewer tokens than counted", settle([[1], [0]], [2, 0]), OutcomeError, "shape"),
    Wrong("a sampled token too high", settle([[1, 100, 0], [0] * 3], [2, 0]), OutcomeError, "vocabulary"),
    Wrong("a sampled token below 0", settle([[1, -1, 0], [0] * 3], [2, 0]), OutcomeError, "vocabulary"),
    Wrong("tokens in one row", settle([1, 2], [1, 0]), OutcomeError, "2 dimensions"),
    Wrong("counts in two", settle(FITS, [[1, 0]]), OutcomeError, "1 dimension"),
    Wrong("half tokens", settle(np.ones((2, 3)), [1, 0]), OutcomeError, "integers"),
    Wrong("half counts", settle(FITS, [1.0, 0.0]), OutcomeError, "integers"),
    Wrong("a token beyond 32 bits", settle([[2**40, 0, 0], [0, 0, 0]], [1, 0]), OutcomeError, "32 bits"),
    Wrong("ragged tokens", settle([[1, 2], [3]], [2, 0]), OutcomeError, "rectangular"),
    Wrong("no outcome", settle([], []), OutcomeError, "2 dimensions"),
    Wrong("no counts", settle([[1], [0]], []), OutcomeError, "2 requests"),
    Wrong("no tokens", settle([[], []], [1, 0]), OutcomeError, "shape"),
    Wrong("nothing at all", settle(None, None), OutcomeError, "integers|dimensions"),
    Wrong("no drafts", drafts([], [], []), OutcomeError, "2 dimensions"),
    Wrong("drafts of row -1", drafts([-1], [[1, 2]], [2]), OutcomeError, "row -1"),
    Wrong("drafts of a row too high", drafts([6], [[1, 2]], [2]), OutcomeError, "row 6"),
    Wrong("a negative count of drafts", drafts([1], [[1, 2]], [-1]), OutcomeError, "-1 drafts"),
    Wrong("fewer drafts than counted", drafts([1], [[1, 2]], [3]), OutcomeError, "3 drafts"),
    Wrong("a draft too high", drafts([1], [[1, 100]], [2]), OutcomeError, "100"),
    Wrong("a draft below -1", drafts([1], [[1, -2]], [2]), OutcomeError, "-2"),
    Wrong("half a draft", drafts([1], [[1.5]], [1]), OutcomeError, "integers"),
    Wrong("drafts in one row", drafts([1], [1, 2], [2]), OutcomeError, "2 dimensions"),
    Wrong("drafts for fewer rows", drafts([1, 2], [[1, 2]], [2, 2]), OutcomeError, "each request"),
    Wrong("the second of two", drafts([1, 2], [[1, 2], [1, 100]], [2, 2]), OutcomeError, "row 2"),
]


@COMPILED
@pytest.mark.parametrize("wrong", [*REQUESTS, *STEPS, *OUTCOMES], ids=lambda wrong: wrong.name)
def test_a_wrong_call_says_what_is_wrong_and_changes_nothing(wrong: Wrong, compiled: bool) -> None:
    now = busy(compiled)
    now.scheduler.add("waits", [1, 2])
    now.scheduler._converts = not compiled  # as if nothing but int32 arrays had come yet
    before = everything_of(now.scheduler)
    with pytest.raises(wrong.error, match=wrong.says):
        wrong.call(now)
    assert everything_of(now.scheduler) == before


OUTCOME: Any = np.array(FITS, np.int32)
FORMS = {
    "lists": OUTCOME.tolist(),
    "64 bits": OUTCOME.astype(np.int64),
    "read-only": np.broadcast_to(OUTCOME[:1], OUTCOME.shape),
    "by columns": np.asfortranarray(OUTCOME),
    "a part of each row": np.hstack([OUTCOME, OUTCOME])[:, : OUTCOME.shape[1]],
    "the other byte order": OUTCOME.astype(">i4"),
}


@COMPILED
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_array_of_int32_counts_as_one(form: str, compiled: bool) -> None:
    ends = []
    for tokens in (OUTCOME, FORMS[form]):
        now = busy(compiled)
        now.scheduler._converts = not compiled
        now.scheduler.settle(now.oldest, tokens, [1, 0])
        assert now.scheduler._converts
        now.scheduler.take_drafts([1], tokens[:1], [2])
        ends.append(everything_of(now.scheduler))
    assert ends[0] == ends[1]


@COMPILED
def test_more_requests_than_rows_are_refused(compiled: bool) -> None:
    scheduler = busy(compiled).scheduler
    while len(scheduler.rows) < 6:
        scheduler.add(str(len(scheduler.rows)), [1])
    before = everything_of(scheduler)
    with pytest.raises(RequestError, match="max_num_requests=6"):
        scheduler.add("one more", [1])
    with pytest.raises(RequestError, match="every row is in use"):
        scheduler.num_cached_tokens([1])
    assert everything_of(scheduler) == before


@COMPILED
@pytest.mark.parametrize("num_invalid", [-1, 3])
def test_a_runner_that_miscounts_invalid_drafts_is_told(compiled: bool, num_invalid: int) -> None:
    now = busy(compiled)
    now.oldest.num_invalid_drafts[0] = num_invalid
    before = everything_of(now.scheduler)
    with pytest.raises(OutcomeError, match="drafts"):
        now.scheduler.settle(now.oldest, FITS, [1, 0])
    assert everything_of(now.scheduler) == before


@COMPILED
def test_a_session_is_closed_once_and_told_nothing_after(compiled: bool) -> None:
    now = busy(compiled)
    now.scheduler.close_session("told")
    before = everything_of(now.scheduler)
    for call in (close("told"), chunk("told")):
        with pytest.raises(RequestError, match="closed"):
            call(now)
    assert everything_of(now.scheduler) == before


@COMPILED
def test_who_has_left_is_not_known_any_more(compiled: bool) -> None:
    now = busy(compiled)
    now.scheduler.abort("decodes")
    before = everything_of(now.scheduler)
    for call in (abort("decodes"), chunk("decodes"), close("decodes")):
        with pytest.raises(RequestError, match="not known"):
            call(now)
    assert everything_of(now.scheduler) == before


@COMPILED
def test_an_empty_step_is_neither_settled_nor_lost(compiled: bool) -> None:
    scheduler = Scheduler(SchedulerConfig(max_model_len=32, num_blocks=24, hash_seed=1), compiled=compiled)
    empty = scheduler.schedule()
    before = everything_of(scheduler)
    with pytest.raises(StepError, match="not in flight"):
        scheduler.settle(empty, np.zeros((0, 1), np.int32), np.zeros(0, np.int32))
    with pytest.raises(StepError, match="oldest"):
        scheduler.fail(empty)
    assert everything_of(scheduler) == before


RIGHT: dict[str, Any] = {"max_model_len": 64, "num_blocks": 40, "block_size": 4}
CONFIGURATIONS = [
    ({"num_blocks": 0}, "num_blocks must be"),
    ({"block_size": -1}, "block_size must be"),
    ({"max_model_len": 2.5}, "max_model_len must be"),
    ({"max_num_seqs": None}, "max_num_seqs must be"),
    ({"num_speculative_tokens": -1}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": 63}, "does not fit max_model_len=64"),
    ({"num_speculative_tokens": 3, "max_num_batched_tokens": 3}, "less than one decode step"),
    ({"max_num_seqs": 8, "max_num_requests": 7}, "max_num_requests=7 is below"),
    ({"max_in_flight_steps": 2}, "synchronous scheduling has one step"),
    ({"num_speculative_tokens": 5, "num_prefill_lookahead_tokens": 5}, "look-ahead"),
    (
        {"num_prefill_lookahead_tokens": 4, "long_prefill_token_threshold": 3},
        "long_prefill_token_threshold=3 is too small",
    ),
    ({"policy": "random"}, "policy must be one of"),
    ({"lookahead": "none"}, "lookahead must be one of"),
    ({"release": "never"}, "release must be one of"),
    ({"hash_seed": -1}, "hash_seed must be"),
    ({"hash_seed": "secret"}, "hash_seed must be"),
    ({"block_size": 16, "groups": (KVGroup(4, "circular"),)}, "kind must be one of"),
    ({"block_size": 4, "groups": (KVGroup(4, "sliding_window"),)}, "window"),
    ({"block_size": 4, "groups": (KVGroup(4, window=3),)}, "window"),
    ({"block_size": 4, "groups": (KVGroup(4, "sliding_window", window="all"),)}, "window"),  # type: ignore[arg-type]
    ({"groups": (16,)}, "groups must be KVGroups"),
    ({"groups": 16}, "groups must be KVGroups"),
    ({"groups": (KVGroup(0),)}, "block_size must be an integer from 1"),
    ({"groups": (KVGroup("4"),)}, "block_size must be an integer from 1"),  # type: ignore[arg-type]
    ({"groups": (KVGroup(4, []),)}, "kind must be one of"),  # type: ignore[arg-type]
    ({"asynchronous": "no"}, "asynchronous must be True or False"),
    ({"enable_prefix_caching": 1}, "enable_prefix_caching must be True or False"),
    ({"drop_stale_output": None}, "drop_stale_output must be True or False"),
]


@pytest.mark.parametrize(("settings", "says"), CONFIGURATIONS, ids=str)
def test_a_wrong_configuration_says_what_is_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SchedulerConfig(**{**RIGHT, **settings})


def test_the_right_configuration_beside_them_is_accepted() -> None:
    SchedulerConfig(**RIGHT)
    SchedulerConfig(**RIGHT, num_speculative_tokens=62)
    SchedulerConfig(**RIGHT, num_prefill_lookahead_tokens=4)
    # Without caching nothing of the look-ahead has to fit a block.
    SchedulerConfig(**RIGHT, num_prefill_lookahead_tokens=5, enable_prefix_caching=False)
