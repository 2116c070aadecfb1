"""Nothing is proved about nothing: every antecedent is witnessed, and what is not witnessed is noticed."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs.coverage import Coverage, Witness, cover
from draftproof.proofs.modes import IMPOSSIBLE, MODES, Impossible
from draftproof.spec import algebra, effects, invariants, queue, theorems
from draftproof.spec.algebra import negate
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import frontier
from draftproof.spec.ledger import PAUSED, PREEMPTED
from draftproof.spec.queue import Run
from draftproof.spec.theorems import ALL, STEP_THEOREMS, StepTheorem

MODULES = (invariants, effects, theorems)
CODE = {name: plain(code) for name, code in TRANSITIONS.items()}


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    return cover()


def test_every_antecedent_has_a_reachable_witness_in_every_mode_it_can_occur_in(coverage: Coverage) -> None:
    assert coverage.missing == []
    verdicts = Counter(row["verdict"] for row in coverage.table)
    assert verdicts["missing"] == 0
    assert verdicts.total() == len(coverage.antecedents) * len(MODES)
    assert verdicts["witnessed"] > verdicts["impossible"] > 0


def test_every_call_of_implies_in_the_specification_is_an_antecedent(coverage: Coverage) -> None:
    names = [site.name for site in coverage.antecedents]
    assert len(set(names)) == len(names)
    calls = sum(Path(module.__file__ or "").read_text().count(" implies(") for module in MODULES)
    assert len(names) == calls + len(EVENTS)


def replayed(witness: Witness) -> tuple[Run, Run]:
    """The runs before and after the witness's last event, every event checked to be possible."""
    before = after = queue.start(witness.num_prompt_tokens)
    for event in witness.events:
        assert queue.possible(after, witness.rules, event)
        before, after = after, queue.advance(after, witness.rules, event, CODE)
    return before, after


def test_witnesses_replay_from_the_arrival_of_a_request(coverage: Coverage) -> None:
    for (name, mode), witness in coverage.witnesses.items():
        before, after = replayed(witness)
        concerned = after.state if name.startswith("invariants/") else before.state
        is_prefill = (
            frontier(concerned) < concerned.ledger.num_tokens - 1
            or concerned.ghosts.num_prefill_in_flight > 0
        )
        assert (witness.rules.asynchronous, is_prefill) == (mode.asynchronous, mode.prefill), (name, witness)


PREMISES: dict[str, Callable[[State], bool]] = {
    "invariants/preempted_has_no_kv": lambda after: after.ledger.status == PREEMPTED,
    "invariants/trim_awaits_its_stop": lambda after: after.ledger.num_trimmed_tokens > 0,
    "invariants/paused_drops_late_output": lambda after: (
        after.ledger.status == PAUSED and after.ledger.num_stale_tokens > 0
    ),
    "invariants/completing_step_is_in_flight": lambda after: after.ghosts.completes_prompt == 1,
    # The inner one of two calls: both premises.
    "invariants/stop_pending_shape#2": lambda after: after.ledger.stop_pending == 1,
}


@pytest.mark.parametrize("name", PREMISES)
def test_witnesses_make_their_premise_true(coverage: Coverage, name: str) -> None:
    found = [witness for (site, _), witness in coverage.witnesses.items() if site == name]
    assert found
    for witness in found:
        assert PREMISES[name](replayed(witness)[1].state)


PLANTED = """
from draftproof.spec.algebra import implies, negate


def never(before, rules, event, after):
    return implies(after.ledger.num_tokens < 1, after.ledger.num_tokens == 7)


def only_inside(before, rules, event, after):
    return implies(after.ledger.num_tokens < 1, implies(after.ledger.num_tokens >= 1, True))


def only_synchronous(before, rules, event, after):
    return implies(negate(rules.asynchronous), True)


def forgotten(before, rules, event, after):
    return implies(after.ledger.num_tokens >= 1, True)
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of specification with antecedents that are never, or not always, true."""
    path = tmp_path / "planted.py"
    path.write_text(PLANTED)
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", module)
    spec.loader.exec_module(module)
    return module


def missing_with(planted: ModuleType, *names: str) -> list[str]:
    more = [StepTheorem("T0", name, ALL, getattr(planted, name)) for name in names]
    return cover((*MODULES, planted), (*STEP_THEOREMS, *more)).missing


def test_an_antecedent_that_is_never_true_is_missing(planted: ModuleType) -> None:
    missing = missing_with(planted, "never", "only_inside", "only_synchronous", "forgotten")
    assert "planted/never: no reachable state makes `after.ledger.num_tokens < 1` true" in missing
    # The inner premise alone is often true, but never where the outer one is.
    assert [message.partition(":")[0] for message in missing if "only_inside" in message] == [
        "planted/only_inside",
        "planted/only_inside#2",
    ]
    one_mode = "planted/only_synchronous: not seen when asynchronous, decode, trimmed, not preempted"
    assert one_mode in missing
    assert len([message for message in missing if "only_synchronous" in message]) == 8
    assert not [message for message in missing if "forgotten" in message]


def test_an_antecedent_that_nothing_evaluates_is_missing(planted: ModuleType) -> None:
    assert any(
        message.startswith("planted/forgotten: no reachable state") for message in missing_with(planted)
    )


def test_a_wrong_argument_for_impossibility_is_missing() -> None:
    wrong = Impossible(("guards/fold",), "nobody folds asynchronously", asynchronous=True)
    idle = Impossible(("guards/merge",), "there is no such event")
    missing = cover(impossible=(*IMPOSSIBLE, wrong, idle)).missing
    assert "the argument about guards/merge concerns no antecedent" in missing
    assert any(message.startswith("guards/fold: argued impossible when asynchronous") for message in missing)


def test_a_mode_without_its_argument_is_missing() -> None:
    fewer = [reason for reason in IMPOSSIBLE if "guards/draft" not in reason.patterns]
    missing = cover(impossible=fewer).missing
    assert len(missing) == 12
    assert all(message.startswith("guards/draft: not seen when") for message in missing)


def test_an_exploration_cut_short_is_no_pass() -> None:
    assert cover(max_num_events=100).missing


def test_the_specification_is_left_as_it_was(coverage: Coverage) -> None:
    for module in MODULES:
        assert vars(module)["implies"] is algebra.implies
    assert vars(theorems)["negate"] is negate
