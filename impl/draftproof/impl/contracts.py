"""The contract switch: with `DRAFTPROOF_DEBUG=1` every transition is checked, otherwise nothing is there.

The switch is read once, at import. In debug mode a transition requires its guard and ensures its
textbook equality, its effects and the invariants. The effects speak about ghosts (what is really
valid, settled, awaited), so a debug ledger carries its ghosts along: start a request with `observe`
and pass each transition's result to the next. A plain `Ledger` (its ghosts are unknown) is checked
against the textbook only.

A ledger that was loaded from a table also remembers which events it has been through since, and a
violation carries what it is about (`breach_of`), so that whoever runs a transition can name the request.

Contracts cost 50 to 150 microseconds a call (icontract); without the switch the functions are plain.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from draftproof.spec import effects, ghosts, guards, textbook
from draftproof.spec.events import EVENT_SYMBOLS, EVENTS, Event
from draftproof.spec.ghosts import GHOST_SYMBOLS, Ghosts, State
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import SYMBOLS, Ledger, Rules, initial

MODE = os.environ.get("DRAFTPROOF_DEBUG", "")
MIDDLE = MODE == "middle"
"""Compiled code with every index checked (`draftproof.impl.code_cache`), and no contracts."""
DEBUG = MODE not in ("", "0", "middle")
"""Contracts on; nothing is compiled."""

Transition = TypeVar("Transition", bound=Callable[..., Ledger])


class ObservedLedger(Ledger):
    """A ledger whose ghosts are known, for debug mode. Compares and unpacks like its ledger."""

    ghosts: Ghosts
    column: int
    """Where in its table it was loaded from; -1 for a ledger that comes from none."""
    version: int
    """How often the column had been written to when it was loaded."""
    events: tuple[Event, ...]
    """What happened to it since."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        ghosts: Ghosts,
        column: int = -1,
        version: int = 0,
        events: tuple[Event, ...] = (),
    ) -> ObservedLedger:
        """The ledger with these ghosts beside it."""
        observed = cls(*ledger)
        observed.ghosts = ghosts
        observed.column, observed.version, observed.events = column, version, events
        return observed


class Breach(NamedTuple):
    """What a violation is about."""

    name: str
    """The transition."""
    rules: Rules
    event: Event
    before: Ledger
    after: Ledger | None
    """None where the event may not come at all."""
    broken: tuple[str, ...]
    """The guard's conditions, effects and invariants that do not hold, or `textbook`."""
    ghosts_after: Ghosts | None = None


def breach_of(error: BaseException) -> Breach | None:
    """What a violation is about; None if the error is not a contract's."""
    return getattr(error, "breach", None)


def observe(num_prompt_tokens: int) -> ObservedLedger:
    """A new request whose truth is tracked from the start. Requires at least one prompt token."""
    if num_prompt_tokens < 1:
        raise ValueError(f"a prompt has at least one token, got {num_prompt_tokens}")
    return ObservedLedger.of(initial(num_prompt_tokens), Ghosts(0, 0, 0, 0, 0))


def format_event(event: Event, name: str) -> str:
    """`output(n=4, d=3, a=2, k=2, stop=1)`."""
    arguments = ", ".join(f"{EVENT_SYMBOLS[field]}={value}" for field, value in event._asdict().items())
    return f"{name}({arguments})"


def format_changes(before: State, after: State) -> str:
    """`N 46 to 48, C 49 to 48`: every counter that differs, ghosts last."""
    changes = [
        f"{symbol} {old} to {new}"
        for symbols, records in (
            (SYMBOLS, (before.ledger, after.ledger)),
            (GHOST_SYMBOLS, (before.ghosts, after.ghosts)),
        )
        for field, symbol in symbols.items()
        if (old := getattr(records[0], field)) != (new := getattr(records[1], field))
    ]
    return ", ".join(changes) or "nothing changed"


def broken_guard(name: str, state: State, rules: Rules, event: Event) -> list[str]:
    """The guard conditions of the transition that do not hold."""
    return [key for key, holds in guards.conditions(name, state, rules, event).items() if not holds]


def broken_effects(name: str, before: State, rules: Rules, event: Event, after: State) -> list[str]:
    """The effects and invariants that do not hold between before and after."""
    found = [key for key, holds in effects.effects(name, before, rules, event, after).items() if not holds]
    return found + [key for key, holds in invariants(after, rules).items() if not holds and key not in found]


def _arguments(_ARGS: tuple[Any, ...], _KWARGS: dict[str, Any], name: str) -> tuple[Ledger, Rules, Event]:
    """Ledger, rules and event of a call, however its arguments were passed."""
    values = dict(zip(("ledger", "rules", *EVENTS[name]._fields), _ARGS, strict=False)) | _KWARGS
    event: Any = EVENTS[name]
    return values["ledger"], values["rules"], event(**{field: values[field] for field in event._fields})


def _observed(ledger: Ledger) -> State | None:
    """The ledger with its ghosts, when they are known."""
    return State(Ledger(*ledger), ledger.ghosts) if isinstance(ledger, ObservedLedger) else None


def checked(function: Transition) -> Transition:
    """The transition with its contracts on; the conditions are named, so a violation names them too."""
    import icontract  # only debug mode pays for the import

    def violation(text: str, breach: Breach) -> Exception:
        error: Any = icontract.ViolationError(text)
        error.breach = breach
        return error  # type: ignore[no-any-return]

    name = function.__name__
    plain_textbook = getattr(textbook, name)
    ghosts_of = getattr(ghosts, name)

    def guard_holds(_ARGS: Any, _KWARGS: Any) -> bool:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        state = _observed(ledger)
        return state is None or not broken_guard(name, state, rules, event)

    def explain_guard(_ARGS: Any, _KWARGS: Any) -> Exception:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        state = _observed(ledger)
        assert state is not None
        broken = broken_guard(name, state, rules, event)
        return violation(
            f"{format_event(event, name)} came when it may not: {', '.join(broken)}; {format_state(state)}",
            Breach(name, rules, event, ledger, None, tuple(broken)),
        )

    def equals_textbook(_ARGS: Any, _KWARGS: Any, result: Ledger) -> bool:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        return bool(tuple(result) == tuple(plain_textbook(Ledger(*ledger), rules, *event)))

    def explain_textbook(_ARGS: Any, _KWARGS: Any, result: Ledger) -> Exception:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        expected = plain_textbook(Ledger(*ledger), rules, *event)
        wrong = ", ".join(
            f"{symbol} is {getattr(result, field)}, the textbook says {getattr(expected, field)}"
            for field, symbol in SYMBOLS.items()
            if getattr(result, field) != getattr(expected, field)
        )
        return violation(
            f"{format_event(event, name)}: {wrong}", Breach(name, rules, event, ledger, result, ("textbook",))
        )

    def effects_hold(_ARGS: Any, _KWARGS: Any, result: Ledger) -> bool:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        before = _observed(ledger)
        if before is None:
            return True
        after = State(Ledger(*result), ghosts_of(before, rules, event))
        return not broken_effects(name, before, rules, event, after)

    def explain_effects(_ARGS: Any, _KWARGS: Any, result: Ledger) -> Exception:
        ledger, rules, event = _arguments(_ARGS, _KWARGS, name)
        before = _observed(ledger)
        assert before is not None
        after = State(Ledger(*result), ghosts_of(before, rules, event))
        broken = broken_effects(name, before, rules, event, after)
        return violation(
            f"{format_event(event, name)} broke {', '.join(broken)}; {format_changes(before, after)}",
            Breach(name, rules, event, ledger, after.ledger, tuple(broken), after.ghosts),
        )

    guarded = icontract.require(guard_holds, error=explain_guard)
    equal = icontract.ensure(equals_textbook, error=explain_textbook)
    effective = icontract.ensure(effects_hold, error=explain_effects)
    contracted = guarded(equal(effective(function)))  # the effects are asked first: they name the counters

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Ledger:
        result = contracted(*args, **kwargs)
        ledger, rules, event = _arguments(args, kwargs, name)
        if not isinstance(ledger, ObservedLedger):
            return result
        after = ghosts_of(State(Ledger(*ledger), ledger.ghosts), rules, event)
        return ObservedLedger.of(result, after, ledger.column, ledger.version, (*ledger.events, event))

    observed.__wrapped__ = function
    return observed  # type: ignore[return-value]


def format_state(state: State) -> str:
    """`N 46, C 49, ...`: every counter and ghost under its symbol."""
    pairs = [(symbol, getattr(state.ledger, field)) for field, symbol in SYMBOLS.items()]
    pairs += [(symbol, getattr(state.ghosts, field)) for field, symbol in GHOST_SYMBOLS.items()]
    return ", ".join(f"{symbol} {value}" for symbol, value in pairs)


def transition(function: Transition) -> Transition:
    """Mark a function as a transition: contract-checked in debug mode, itself otherwise."""
    return checked(function) if DEBUG else function


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The transition without its contracts, whatever the mode: what is proven, searched and compiled."""
    return getattr(function, "__wrapped__", function)
