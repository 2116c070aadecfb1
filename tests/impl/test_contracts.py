"""Debug mode: a wrong call or a wrong transition is named where it happens; without it nothing is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import icontract
import pytest

from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import Ghosts
from draftproof.spec.ledger import Ledger, Rules, initial

MODULES = ("draftproof.impl.contracts", "draftproof.impl.accounting")
RULES = Rules(num_speculative_tokens=3, block_size=16, asynchronous=False, registration_fence=0)


class Loaded(NamedTuple):
    contracts: Any
    accounting: Any


def load(monkeypatch: pytest.MonkeyPatch, debug: str | None) -> Loaded:
    """The two modules as a process with this environment would import them."""
    if debug is None:
        monkeypatch.delenv("DRAFTPROOF_DEBUG", raising=False)
    else:
        monkeypatch.setenv("DRAFTPROOF_DEBUG", debug)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Loaded(*[importlib.import_module(name) for name in MODULES])


@pytest.fixture
def original_modules() -> Iterator[None]:
    """Put the modules that other tests use back, also as attributes of their package."""
    package = importlib.import_module("draftproof.impl")
    before = {name: importlib.import_module(name) for name in MODULES}
    yield
    for name, module in before.items():
        sys.modules[name] = module
        setattr(package, name.rpartition(".")[2], module)


@pytest.fixture
def debug(original_modules: None, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    return load(monkeypatch, "1")


def trimmed_stop(loaded: Loaded) -> Any:
    """A decoding request with three drafts in flight; its next output may stop and trim."""
    accounting = loaded.accounting
    ledger = loaded.contracts.observe(45)
    ledger = accounting.admit(ledger, RULES, 0)
    ledger = accounting.schedule(ledger, RULES, 45)
    ledger = accounting.output(ledger, RULES, 45, 0, 0, 1, 0)
    ledger = accounting.draft(ledger, RULES, 3)
    return accounting.schedule(ledger, RULES, 4)


def test_a_right_run_passes_and_its_ledgers_carry_their_ghosts(debug: Loaded) -> None:
    ledger = debug.accounting.output(trimmed_stop(debug), RULES, 4, 3, 2, 2, 1)
    assert (ledger.num_tokens, ledger.num_computed_tokens, ledger.num_trimmed_tokens) == (48, 47, 1)
    assert ledger.ghosts == Ghosts(0, 0, 0, 48, 48)
    finished = debug.accounting.finish(ledger, RULES)
    assert finished.num_registered_tokens == 48


def test_a_wrong_transition_is_reported_with_event_breaches_and_counters(debug: Loaded) -> None:
    right = debug.contracts.plain(debug.accounting.output)

    def output(ledger: Ledger, rules: Rules, *event: int) -> Ledger:
        after: Ledger = right(ledger, rules, *event)
        return after._replace(num_computed_tokens=after.num_computed_tokens + after.num_trimmed_tokens)

    with pytest.raises(icontract.ViolationError) as caught:
        debug.contracts.transition(output)(trimmed_stop(debug), RULES, 4, 3, 2, 2, 1)
    message = str(caught.value)
    assert message.startswith("output(n=4, d=3, a=2, k=2, stop=1) broke frontier")
    assert "N 46 to 48" in message
    assert "C 49 to 48" in message
    assert "settled_is_computed_less_live" in message


def test_a_transition_that_differs_from_the_textbook_is_reported_counter_by_counter(debug: Loaded) -> None:
    right = debug.contracts.plain(debug.accounting.fold)

    def fold(ledger: Ledger, rules: Rules, num_chunk_tokens: int) -> Ledger:
        after: Ledger = right(ledger, rules, num_chunk_tokens)
        return after._replace(num_tokens=after.num_tokens + 1)

    with pytest.raises(icontract.ViolationError, match=r"fold\(chunk=2\): N is 12, the textbook says 11"):
        debug.contracts.transition(fold)(initial(10), RULES, 2)


def test_a_wrong_event_is_refused_by_its_guard(debug: Loaded) -> None:
    with pytest.raises(icontract.ViolationError) as caught:
        debug.accounting.output(trimmed_stop(debug), RULES, 4, 3, 2, 2, 0)
    message = str(caught.value)
    assert message.startswith("output(n=4, d=3, a=2, k=2, stop=0) came when it may not: only_a_stop_trims")
    assert "N 46" in message and "C 49" in message
    with pytest.raises(icontract.ViolationError, match="came when it may not: paused"):
        debug.accounting.fold(trimmed_stop(debug), RULES, 1)


def test_keyword_arguments_are_checked_too(debug: Loaded) -> None:
    with pytest.raises(icontract.ViolationError, match=r"admit\(hit=46\) came when it may not"):
        debug.accounting.admit(ledger=debug.contracts.observe(45), rules=RULES, num_hit_tokens=46)


def test_a_ledger_of_unknown_ghosts_is_still_held_against_the_textbook(debug: Loaded) -> None:
    after = debug.accounting.admit(initial(5), RULES, 0)
    assert type(after) is Ledger
    assert after.status == 1


def test_a_prompt_of_nothing_is_refused(debug: Loaded) -> None:
    with pytest.raises(ValueError, match="a prompt has at least one token, got 0"):
        debug.contracts.observe(0)


@pytest.mark.parametrize("value", [None, "", "0", "middle"])
def test_without_the_switch_the_transitions_are_undecorated(
    original_modules: None, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    loaded = load(monkeypatch, value)
    assert set(loaded.accounting.TRANSITIONS) == set(EVENTS)
    for name, function in loaded.accounting.TRANSITIONS.items():
        assert not hasattr(function, "__wrapped__")
        assert function.__code__.co_filename == loaded.accounting.__file__
        assert loaded.contracts.plain(function) is function
        assert getattr(loaded.accounting, name) is function


def test_with_the_switch_every_transition_is_decorated_and_its_source_can_be_had(debug: Loaded) -> None:
    for name, function in debug.accounting.TRANSITIONS.items():
        inner = debug.contracts.plain(function)
        assert inner is not function
        assert inner.__name__ == name
        assert inner.__code__.co_filename == debug.accounting.__file__


def test_the_switch_is_read_from_the_environment_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without it icontract is not even imported."""
    program = (
        "import sys; from draftproof.impl import accounting; "
        "print(hasattr(accounting.output, '__wrapped__'), 'icontract' in sys.modules)"
    )
    answers = []
    for value in ("0", "middle", "1"):
        monkeypatch.setenv("DRAFTPROOF_DEBUG", value)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        answers.append(done.stdout.strip())
    assert answers == ["False False", "False False", "True True"]
