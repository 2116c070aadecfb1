"""What does a record's event do to its request? What the proven accounting says, if its guard allows it.

The guard is asked, the transition is run (the very function of `draftproof.impl.accounting`), and the ghosts
change as the specification says. These functions are looked up by the event's name, once; compiled, each
event has machine code of its own, as if it were written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.impl.traces import conditions
from draftproof.impl.traces.columns import (
    CODE,
    DROP,
    NUM_ACCEPTED,
    NUM_CHUNK,
    NUM_DRAFTS,
    NUM_HIT_TOKENS,
    NUM_KEPT,
    NUM_NEW_TOKENS,
    NUM_RETURNED,
    STOPPED,
)
from draftproof.impl.traces.format import EVENT_NAMES
from draftproof.impl.traces.request_table import load_ghosts, load_ledger, store_state
from draftproof.spec import guards
from draftproof.spec.events import EVENTS, Event
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules

(
    ADMIT,
    SCHEDULE,
    DRAFT,
    CHUNK_OUTPUT,
    OUTPUT,
    PREEMPT,
    STALE_OUTPUT,
    END_TURN,
    FOLD,
    FINISH,
    ABORT,
) = range(len(EVENT_NAMES))
"""The events' codes."""

Happening = Callable[..., bool]


def no_facts(state: State, rules: Rules, event: Event) -> bool:
    """For an event about which the queue says nothing."""
    return True


def happening(name: str) -> Happening:
    """What the event of this name does to a slot's request, if it may come; it says whether it may."""
    control, ghosts_after = conditions.control(name), conditions.ghosts_after(name)
    facts = conditions.queue_facts(name) if name in guards.QUEUE_FACTS else no_facts
    kind = cast(Callable[..., Event], EVENTS[name])
    transition = plain(accounting.TRANSITIONS[name])

    def happens(rules: Rules, requests: Any, slot: int, *integers: int) -> bool:
        event = kind(*integers)
        ledger = load_ledger(requests, slot)
        state = State(ledger, load_ghosts(requests, slot))
        if not (control(state, rules, event) and facts(state, rules, event)):
            return False
        store_state(requests, slot, transition(ledger, rules, *integers), ghosts_after(state, rules, event))
        return True

    return happens


admit = happening("admit")
schedule = happening("schedule")
draft = happening("draft")
chunk_output = happening("chunk_output")
output = happening("output")
preempt = happening("preempt")
stale_output = happening("stale_output")
end_turn = happening("end_turn")
fold = happening("fold")
finish = happening("finish")
abort = happening("abort")


def advance(rules: Rules, requests: Any, slot: int, lines: Any, row: int) -> bool:
    """The row's event happens to the slot's request, if its guard allows it; says whether it does."""
    code = lines[CODE, row]
    if code == SCHEDULE:
        return schedule(rules, requests, slot, lines[NUM_NEW_TOKENS, row])
    if code == OUTPUT:
        returned, num_drafts = lines[NUM_RETURNED, row], lines[NUM_DRAFTS, row]
        accepted, kept, stopped = lines[NUM_ACCEPTED, row], lines[NUM_KEPT, row], lines[STOPPED, row]
        return output(rules, requests, slot, returned, num_drafts, accepted, kept, stopped)
    if code == DRAFT:
        return draft(rules, requests, slot, lines[NUM_DRAFTS, row])
    if code == CHUNK_OUTPUT:
        return chunk_output(rules, requests, slot, lines[NUM_RETURNED, row])
    if code == ADMIT:
        return admit(rules, requests, slot, lines[NUM_HIT_TOKENS, row])
    if code == PREEMPT:
        return preempt(rules, requests, slot, lines[DROP, row] != 0)
    if code == STALE_OUTPUT:
        returned, kept, stopped = lines[NUM_RETURNED, row], lines[NUM_KEPT, row], lines[STOPPED, row]
        return stale_output(rules, requests, slot, returned, kept, stopped)
    if code == FOLD:
        return fold(rules, requests, slot, lines[NUM_CHUNK, row])
    if code == END_TURN:
        return end_turn(rules, requests, slot)
    if code == FINISH:
        return finish(rules, requests, slot)
    return abort(rules, requests, slot)
