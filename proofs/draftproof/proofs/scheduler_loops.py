"""Which loops of the scheduler are proved, and which only explored? The honest list, function by function.

The functions that decide, count and move blocks are proved; around them stand loops over rows, groups,
blocks and tokens. For most of these the obligations speak about a function, or an expression, that a round
runs, and not about the round: that the right rounds are made, in the right order, and whatever else they do,
is explored by tests. A loop with nothing left to explore is proved as a whole, by its invariant on its body.
The tests hold this list complete: a loop that is not in it fails them.
"""

from __future__ import annotations

from typing import NamedTuple


class Loops(NamedTuple):
    """The loops of one function; of a whole room if `function` is empty."""

    room: str
    """The module below `draftproof.impl.scheduler`."""
    function: str
    proved: tuple[str, ...]
    """The obligations about what a round runs, by the beginning of their names."""
    explored: str
    """What of the loops is not proved; empty if all of it is."""


def _rounds(room: str, function: str, proved: tuple[str, ...], explored: str) -> Loops:
    return Loops(room, function, proved, explored)


BLOCKS: tuple[Loops, ...] = (
    _rounds(
        "allocation",
        "num_missing_blocks",
        ("T10/reserve/",),
        "that the rounds' numbers are added up over all groups",
    ),
    _rounds("allocation", "num_hit_blocks", ("T10/admit_row/hit/",), "the sum over groups"),
    _rounds(
        "allocation",
        "reserve",
        ("pool/take/", "pool/hits/take_keeps_hits", "T10/reserve/", "T10/decide_running/", "T10/admit_row/"),
        "that it takes for exactly the places a row lacks, and that a block is free for each",
    ),
    _rounds("allocation", "num_unowned_hits", (), "all of it: it counts hits that nobody owns"),
    _rounds(
        "allocation",
        "take_over",
        ("pool/acquire/", "pool/hits/acquire_keeps_hits", "pool/hits/acquired_is_not_taken"),
        "that it acquires each hit once, before any block is taken",
    ),
    _rounds(
        "allocation",
        "prune",
        ("pool/release/", "window_to_prune/relation/"),
        "that it releases exactly the places before the window, and none twice",
    ),
    _rounds(
        "allocation", "release_row", ("pool/release_all/",), "that it visits every place, from the last on"
    ),
    _rounds("lifecycle", "withdraw_step", ("pool/withdraw_all/",), "that it visits all of the step's list"),
    _rounds("lifecycle", "clear_cache", ("pool/withdraw_all/",), "that it visits every block"),
)

CONTENT: tuple[Loops, ...] = (
    _rounds("prefix_cache", "copy_tokens", (), "all of it: a copy"),
    _rounds(
        "prefix_cache",
        "hash_row",
        (),
        "all of it: each digest is chained to the one before and covers its own tokens",
    ),
    _rounds(
        "prefix_cache",
        "run_of_full_attention",
        ("pool/look_up/",),
        "that it ends at the first block that is not found",
    ),
    _rounds("prefix_cache", "has_window", ("pool/look_up/",), "that it asks for every block of the window"),
    _rounds(
        "prefix_cache",
        "has_states",
        ("pool/look_up/", "recurrent/"),
        "that every recurrent group is asked for the state at exactly this position",
    ),
    _rounds("prefix_cache", "all_have", (), "all of it: every group is asked"),
    _rounds(
        "prefix_cache",
        "look_up_row",
        ("lookup_hit/relation/", "T13/"),
        "that the longest run that all groups have is found",
    ),
    _rounds(
        "prefix_cache",
        "fill_block",
        ("pool/fill_block/", "pool/append/"),
        "",
    ),
    _rounds(
        "prefix_cache",
        "publish_row",
        ("pool/publish/", "pool/fill_block/"),
        "that its rounds are the blocks between the two counts, and their digests those of `hash_row`",
    ),
    _rounds(
        "step",
        "fill_step",
        ("pool/fill_block/",),
        "that its rounds are the blocks between the two counts, and that each is noted for `publish_step`",
    ),
    _rounds(
        "step",
        "publish_step",
        ("pool/publish/",),
        "that it publishes every block noted, and notes every block published for a failure",
    ),
)

EVENTS: tuple[Loops, ...] = (
    _rounds("kv_events", "note_tokens", (), "all of it: a copy"),
    _rounds("kv_events", "read", (), "all of it: events as they were written"),
    _rounds("kv_events", "as_json", (), "all of it: the same events as text"),
    _rounds("kv_notes", "is_findable", (), "all of it: whether another block has the same content"),
)

STEPS: tuple[Loops, ...] = (
    _rounds("step", "schedule_step", (), "that all counts start from zero"),
    _rounds(
        "step",
        "decide_running",
        ("tokens_to_schedule/relation/", "T6/", "T10/decide_running/", "T10/check_fits/"),
        "budget, order and preemption: that a row is given up only if there are too few blocks, and that "
        "what was decided before is kept",
    ),
    _rounds("step", "take_back", (), "all of it: one row leaves the batch, the others keep their order"),
    _rounds(
        "step",
        "commit",
        ("schedule/", "R1/dispatch/"),
        "that each row of the batch is dispatched once, and the copies of its drafts",
    ),
    _rounds("step", "num_invalid", (), "all of it: it counts drafts that a grammar ruled out"),
    _rounds("step", "admit_waiting", ("seats_free/relation/",), "order, budget, and where it stops"),
    _rounds(
        "step",
        "admit_row",
        ("admit/", "T10/admit_row/", "count_admission/relation/"),
        "that idle sessions give blocks back until there are enough or none is left",
    ),
    _rounds("settle", "problem_of_outcome", (), "all of it: what is refused"),
    _rounds(
        "settle",
        "settle_step",
        ("output/", "chunk_output/", "count_output/relation/"),
        "that each row of the batch is settled once",
    ),
    _rounds("settle", "keep_tokens", ("tokens_to_keep/relation/",), "the copies of the tokens kept"),
    _rounds("settle", "first_stop", (), "all of it: the first token that a stop rule names"),
    _rounds("settle", "forget_stopped", (), "all of it: running rows keep their order"),
    _rounds("settle", "wrong_draft", (), "all of it: what is refused"),
    _rounds("settle", "take_drafts", ("draft/", "drafts_allowed/relation/"), "the copies of drafts"),
    _rounds("lifecycle", "drop_step", ("stale_output/",), "that each row of the step is settled once"),
)

ROWS: tuple[Loops, ...] = (
    _rounds("lifecycle", "add_row", (), "the copies of tokens"),
    _rounds("lifecycle", "fold_row", ("fold/", "hashes_to_keep/relation/"), "the copy of tokens"),
    _rounds("lifecycle", "preempt_all", ("preempt/",), "that no row is left running, and no session with KV"),
    _rounds("lifecycle", "give_up_step", ("preempt/",), "that it visits all rows of the step"),
    _rounds("lifecycle", "num_cached_tokens", (), "the copy of tokens"),
    _rounds("pressure", "num_idle_blocks", (), "all of it: a bound on what idle sessions could give back"),
    _rounds("pressure", "longest_paused", (), "all of it: which idle session gives its blocks back"),
    _rounds("pressure", "last_waiting_holder", (), "all of it: which idle session gives its blocks back"),
    _rounds("queues", "enqueue", (), "all of it: a row's place among those that wait"),
    _rounds("queues", "stop_running", (), "all of it: one row leaves, the others keep their order"),
    _rounds("queues", "lowest", (), "all of it: which row is served last"),
)

RECURRENT: tuple[Loops, ...] = (
    _rounds(
        "recurrent_blocks",
        "",
        ("recurrent/",),
        "all loops: which working slots, targets and copies a row has; when and what is the record's word",
    ),
)


class Topic(NamedTuple):
    """Loops that are about the same, and how far what is not proved of them was explored."""

    about: str
    loops: tuple[Loops, ...]
    bound: str


_STATEFUL = (
    "random sequences of up to 50 calls on small schedulers, compared with the token-level reference after "
    "every call; the runs of the lockstep with vLLM"
)

TOPICS: tuple[Topic, ...] = (
    Topic("which blocks a row takes, holds and gives back", BLOCKS, _STATEFUL),
    Topic("which digests are computed, looked up and published", CONTENT, _STATEFUL),
    Topic("what routers are told of the cache", EVENTS, "random runs, against what is found"),
    Topic("which rows a step serves, and which it settles", STEPS, _STATEFUL),
    Topic("how rows come, wait and go", ROWS, _STATEFUL),
    Topic(
        "which blocks hold recurrent state",
        RECURRENT,
        "random rows on a small pool, beside a device that holds real tokens",
    ),
)
ALL: tuple[Loops, ...] = tuple(loops for topic in TOPICS for loops in topic.loops)


def _names(several: list[Loops]) -> str:
    return ", ".join(loops.function or loops.room for loops in several)


def explored() -> list[dict[str, str]]:
    """For the report's first page: what of the scheduler's loops is not proved, a line for each topic."""
    found = []
    for topic in TOPICS:
        left = [loops for loops in topic.loops if loops.explored]
        around = [loops for loops in left if loops.proved]
        alone = [loops for loops in left if not loops.proved]
        words = f"the scheduler's loops, {topic.about}"
        if around:
            words += f"; what they make of the proved functions in them: {_names(around)}"
        if alone:
            words += f"; all they do: {_names(alone)}"
        found.append({"what": words, "bound": topic.bound})
    return found
