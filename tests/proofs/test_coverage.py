"""Nothing is proved about nothing: every antecedent is witnessed, and what is not witnessed is noticed."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs.coverage import (
    MODULES,
    Coverage,
    Observer,
    Step,
    Witness,
    advanced,
    argued_impossible,
    cover,
    idle_arguments,
    start,
)
from draftproof.proofs.modes import IMPOSSIBLE, MODES, NEEDS_NO_FENCE, Impossible
from draftproof.spec import algebra, decisions, queue, theorems
from draftproof.spec.algebra import negate
from draftproof.spec.decision_inputs import DECISIONS
from draftproof.spec.events import EVENTS, Output
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import frontier
from draftproof.spec.ledger import PREEMPTED, Rules
from draftproof.spec.queue import Run
from draftproof.spec.theorems import ALL, STEP_THEOREMS, StepTheorem
from draftproof.spec.walks import Sizes, choices, pick

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
    kinds = Counter(site.name.partition("/")[0] for site in coverage.antecedents)
    assert set(kinds) == {"guards", "invariants", "effects", "theorems", "decisions"}


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
        concerned = after.state if name.startswith(("invariants/", "decisions/")) else before.state
        is_prefill = (
            frontier(concerned) < concerned.ledger.num_tokens - 1
            or concerned.ghosts.num_prefill_in_flight > 0
        )
        assert (witness.rules.asynchronous, is_prefill) == (mode.asynchronous, mode.prefill), (name, witness)


PREMISES: dict[str, Callable[[State], bool]] = {
    "invariants/preempted_has_no_kv": lambda after: after.ledger.status == PREEMPTED,
    "invariants/trim_awaits_its_stop": lambda after: after.ledger.num_trimmed_tokens > 0,
    "invariants/late_output_is_delivered_while_preempted": lambda after: (
        after.ledger.num_stale_tokens > 0 and not after.ledger.drop_stale
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


def test_a_decisions_witness_names_its_inputs_and_meets_its_assumptions(coverage: Coverage) -> None:
    found = [witness for (name, _), witness in coverage.witnesses.items() if name.startswith("decisions/")]
    assert len(found) > 100
    names = {kind: name for name, kind in DECISIONS.items()}
    for witness in found:
        state = replayed(witness)[1].state
        assumed = decisions.ASSUMPTIONS[names[type(witness.inputs)]]
        assert all(assumed(state, witness.rules, witness.inputs).values()), witness
    dropped = [witness for (name, _), witness in coverage.witnesses.items() if "gives_a_block_back" in name]
    assert dropped and all(witness.inputs.drops_block for witness in dropped)


def test_a_guards_witness_is_an_event_that_the_guard_lets_through(coverage: Coverage) -> None:
    trims = [witness for (name, _), witness in coverage.witnesses.items() if "only_a_stop_trims" in name]
    assert trims
    for witness in trims:
        event = witness.events[-1]
        assert isinstance(event, Output) and event.num_kept <= event.num_accepted


def test_every_antecedent_is_also_seen_with_a_fence_unless_it_asks_for_none(coverage: Coverage) -> None:
    assert coverage.needs_no_fence == NEEDS_NO_FENCE
    assert coverage.with_fence == {site.name for site in coverage.antecedents} - NEEDS_NO_FENCE
    less = coverage._replace(with_fence=coverage.with_fence - {"guards/fold"})
    assert less.missing == ["guards/fold: not seen with a drafter's fence"]
    (some, *_) = sorted(NEEDS_NO_FENCE)
    more = coverage._replace(with_fence=coverage.with_fence | {some})
    assert more.missing == [f"{some}: argued impossible, yet seen with a drafter's fence"]


def wandered(seed: int, num_steps: int) -> Iterator[Step]:
    """Random steps in sizes that the exploration does not reach: more drafts, fences and steps in flight."""
    chosen = random.Random(seed)
    sizes = Sizes(max_num_tokens=25, max_num_chunk_tokens=5, max_num_steps_in_flight=5)
    while True:
        rules = Rules(chosen.randint(0, 3), chosen.randint(1, 4), chosen.random() < 0.5, chosen.randint(0, 2))
        node = start(chosen.randint(1, 6), rules)
        for _ in range(40):
            possible = choices(node.run, rules, sizes)
            if not possible:
                break
            event = pick(possible, chosen.randrange(1_000_000), lambda option: option)
            node, step = advanced(node, event)
            yield step._replace(asks=num_steps % 7 == 0)
            num_steps -= 1
            if num_steps == 0:
                return


def contradicted(impossible: tuple[Impossible, ...], num_steps: int) -> set[str]:
    """The antecedents argued impossible in a mode in which random steps meet them."""
    observer = Observer()
    names = [call.site.name for call in observer.known.values()] + [f"guards/{name}" for name in EVENTS]
    argued = argued_impossible(names, impossible)
    with observer.recording():
        return {
            name
            for step in wandered(seed=1, num_steps=num_steps)
            for name, mode, _ in observer.seen(step)
            if (name, mode) in argued
        }


def test_no_argument_is_contradicted_by_random_steps_in_larger_sizes() -> None:
    assert contradicted(IMPOSSIBLE, num_steps=8_000) == set()


def test_random_steps_contradict_a_wrong_argument() -> None:
    # True where chunks are of two tokens at most: the completing step takes two, and one comes before it.
    small = Impossible(
        ("guards/_chunk_output_facts/completing_step_returns_last",),
        "after a trim only a chunk is left to compute, in one step",
        trimmed=True,
        preempted=False,
    )
    assert contradicted((small,), num_steps=8_000) == set(small.patterns)


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


def test_an_antecedent_that_is_never_true_is_missing(planted: ModuleType) -> None:
    names = ("never", "only_inside", "only_synchronous")
    more = [StepTheorem("T0", name, ALL, getattr(planted, name)) for name in names]
    missing = cover((*MODULES, planted), (*STEP_THEOREMS, *more)).missing
    assert "planted/never: no reachable state makes `after.ledger.num_tokens < 1` true" in missing
    # The inner premise alone is often true, but never where the outer one is.
    assert [message.partition(":")[0] for message in missing if "only_inside" in message] == [
        "planted/only_inside",
        "planted/only_inside#2",
    ]
    one_mode = "planted/only_synchronous: not seen when asynchronous, decode, trimmed, not preempted"
    assert one_mode in missing
    assert len([message for message in missing if "only_synchronous" in message]) == 8
    # It would be true in every state, but nothing evaluates it.
    (forgotten,) = [message for message in missing if "forgotten" in message]
    assert forgotten.startswith("planted/forgotten: no reachable state")


def under(coverage: Coverage, impossible: tuple[Impossible, ...]) -> list[str]:
    """What is missing from the same exploration under other arguments."""
    names = [site.name for site in coverage.antecedents]
    return coverage._replace(
        impossible=argued_impossible(names, impossible), idle_arguments=idle_arguments(names, impossible)
    ).missing


def test_a_wrong_argument_for_impossibility_is_missing(coverage: Coverage) -> None:
    wrong = Impossible(("guards/fold",), "nobody folds asynchronously", asynchronous=True)
    idle = Impossible(("guards/merge",), "there is no such event")
    missing = under(coverage, (*IMPOSSIBLE, wrong, idle))
    assert "the argument about guards/merge concerns no antecedent" in missing
    assert any(message.startswith("guards/fold: argued impossible when asynchronous") for message in missing)


def test_a_mode_without_its_argument_is_missing(coverage: Coverage) -> None:
    fewer = tuple(reason for reason in IMPOSSIBLE if "guards/draft" not in reason.patterns)
    missing = under(coverage, fewer)
    assert len(missing) == 8
    assert all(message.startswith("guards/draft: not seen when") for message in missing)


def test_an_exploration_cut_short_is_no_pass() -> None:
    assert cover(max_num_events=100).missing


def test_the_specification_is_left_as_it_was(coverage: Coverage) -> None:
    for module in MODULES:
        assert vars(module)["implies"] is algebra.implies
    assert vars(theorems)["negate"] is negate
