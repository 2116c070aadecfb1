"""Which theorems did a trace let us check? Those whose counters the engine tells; for the others, why not.

A trace without an engine's counters still shows its events, so a request that keeps to the accounting's order
is no proof that its counters do. A theorem counts as checked at an event if the engine told every counter it
speaks about there; the counters themselves are then held against the accounting, for which it is proved. What
was checked at some of its events only is said, too: an engine that told its counters once has not shown much.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.traces.format import COUNTERS, EVENT_NAMES, EXIT, Header

ALL = EVENT_NAMES
EXITS = ("preempt", "end_turn", "finish", "abort")
PUBLISHING = ("schedule", "output", "preempt", "end_turn", "finish", "abort")


class Need(NamedTuple):
    """What a theorem speaks about."""

    events: tuple[str, ...]
    counters: tuple[str, ...]
    asynchronously: tuple[str, ...] = ()
    """Further counters, where scheduling is asynchronous."""
    also: tuple[str, ...] = ()
    """Counters that it speaks about, too, but that not every engine has."""


NEEDS: dict[str, Need] = {
    "T1": Need(ALL, ("num_tokens", "num_computed_tokens"), ("num_output_placeholders",)),
    "T2": Need(("output", "finish"), ("num_tokens", "num_computed_tokens"), ("num_output_placeholders",)),
    "T3": Need(PUBLISHING, ("num_computed_tokens", "num_registered_tokens")),
    "T5": Need(
        ALL,
        ("num_computed_tokens",),
        ("num_output_placeholders",),
        ("num_draft_tokens", "num_in_flight_tokens", "num_stale_tokens"),
    ),
    "T6": Need(
        ("schedule", "draft", "output", "chunk_output"),
        ("num_tokens", "num_computed_tokens", "num_draft_tokens"),
        ("num_output_placeholders",),
    ),
    "T7": Need(("fold",), ("num_tokens", "num_computed_tokens")),
    "T12": Need(PUBLISHING, ("num_registered_tokens",)),
    "T14": Need(
        ("finish", "abort"),
        ("status",),
        also=("num_tokens", "num_computed_tokens", "num_registered_tokens"),
    ),
}
NEVER: dict[str, str] = {
    "T8": "it compares two runs: `draftproof diff`",
    "T9": "it is about a device's ledger, which is not in a trace",
    "T10": "it is about slots, which are not in a trace",
    "T11": "it is about an engine's machine integers; here only 32 bits can be written down",
    "KV content": "what lies in the slots is not in a trace",
    "pool (P1 to P7)": "blocks, their owners and references are not in a trace",
    "recurrent state (M1 to M4)": "states and their copies are not in a trace",
}
"""What no trace can show."""
IN_PART = "in part"
"""Among what was not checked: what was checked at some of its events only."""


class Told:
    """How often which counters came with which event."""

    def __init__(self) -> None:
        self.counts: Any = np.zeros((len(EVENT_NAMES) + 2, 1 << len(COUNTERS)), np.int64)

    def add(self, counts: Any) -> None:
        """Counts of a shard."""
        self.counts += counts

    def num_events(self, names: tuple[str, ...]) -> int:
        """So many of these events were judged."""
        return int(sum(self.counts[EVENT_NAMES.index(name)].sum() for name in names))

    def num_telling(self, names: tuple[str, ...], counters: tuple[str, ...]) -> int:
        """At so many of these events all of these counters were told."""
        wanted = sum(1 << COUNTERS.index(counter) for counter in counters)
        masks = np.arange(1 << len(COUNTERS))
        tells = masks & wanted == wanted
        return int(sum(self.counts[EVENT_NAMES.index(name)][tells].sum() for name in names))


def of(told: Told, header: Header) -> tuple[dict[str, int], dict[str, str]]:
    """What was checked, at how many events; and what was not, and why."""
    checked: dict[str, int] = {}
    not_checked: dict[str, str] = {}
    for theorem, need in NEEDS.items():
        counters = need.counters + (need.asynchronously if header.asynchronous else ())
        _tell(checked, not_checked, theorem, need, counters, told)
    num_exits, num_look_ups = int(told.counts[EXIT].sum()), int(told.counts[EXIT, 1])
    if num_exits:
        checked["T4"] = num_exits
    elif told.num_events(EXITS):
        not_checked["T4"] = "the engine does not say what is registered at an exit (no `exit` records)"
    else:
        not_checked["T4"] = "no request leaves in this trace"
    if num_look_ups:
        checked["T13"] = num_look_ups
    else:
        not_checked["T13"] = "the engine does not look a finished request up again (`look_up`)"
    order = [f"T{number}" for number in range(1, 15)]
    checked = {name: checked[name] for name in order if name in checked}
    if partly := _partly(checked, told):
        not_checked[IN_PART] = partly
    return checked, not_checked | NEVER


def _partly(checked: dict[str, int], told: Told) -> str:
    """Of which theorems some events, or some counters, were never shown."""
    parts = []
    for theorem, count in checked.items():
        need = NEEDS.get(theorem)
        events = EXITS if theorem == "T4" else need.events if need is not None else ()
        total = told.num_events(events)
        if 0 < count < total:
            parts.append(f"{theorem} at {count:,} of {total:,} events")
        unseen = [name for name in need.also if not told.num_telling(ALL, (name,))] if need else []
        if unseen:
            parts.append(f"{theorem} without {', '.join(unseen)}")
    return "; ".join(parts)


def _tell(
    checked: dict[str, int],
    not_checked: dict[str, str],
    theorem: str,
    need: Need,
    counters: tuple[str, ...],
    told: Told,
) -> None:
    count = told.num_telling(need.events, counters)
    if count:
        checked[theorem] = count
    elif told.num_events(need.events) == 0:
        not_checked[theorem] = f"none of its events is in the trace ({', '.join(need.events)})"
    else:
        missing = [counter for counter in counters if not told.num_telling(need.events, (counter,))]
        what = ", ".join(missing) or f"{', '.join(counters)} at once"
        not_checked[theorem] = f"the engine does not tell {what}"
