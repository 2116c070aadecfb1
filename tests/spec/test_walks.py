"""Every claim, evaluated on integers along random runs in sizes no exploration exhausts.

The proofs say that all of it holds for all sizes. This looks at the same statements from the other side: on
plain integers, with the exact queue, from the arrival of a request, without a solver.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from draftproof.impl import decisions as code_of
from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs.samples import samples
from draftproof.spec import decisions, guards, queue
from draftproof.spec.decision_inputs import DECISIONS
from draftproof.spec.effects import effects
from draftproof.spec.events import Event, Output, event_name
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Ledger, Rules
from draftproof.spec.queue import Run
from draftproof.spec.theorems import STEP_THEOREMS
from draftproof.spec.walks import Sizes, choices, pick

CODE: dict[str, Callable[..., Ledger]] = {name: plain(code) for name, code in TRANSITIONS.items()}
SIZES = Sizes(max_num_tokens=25, max_num_chunk_tokens=5, max_num_steps_in_flight=5)


class Moment(NamedTuple):
    """One event of a random run."""

    before: Run
    rules: Rules
    event: Event
    after: Run


def walk(seed: int, num_events: int, code: Mapping[str, Callable[..., Ledger]] = CODE) -> Iterator[Moment]:
    """Random runs, one after the other: up to three drafts, fences up to two, several steps in flight."""
    chosen = random.Random(seed)
    while True:
        rules = Rules(chosen.randint(0, 3), chosen.randint(1, 4), chosen.random() < 0.5, chosen.randint(0, 2))
        run = queue.start(chosen.randint(1, 6))
        for _ in range(40):
            possible = choices(run, rules, SIZES)
            if not possible:
                break
            event = pick(possible, chosen.randrange(1_000_000), lambda option: option)
            after = queue.advance(run, rules, event, code)
            yield Moment(run, rules, event, after)
            num_events -= 1
            if num_events == 0:
                return
            run = after


def broken_claims(moment: Moment) -> list[str]:
    """Every claim about a step that is false of this one."""
    before, rules, event, after = moment.before.state, moment.rules, moment.event, moment.after.state
    name = event_name(event)
    claims = {f"guard/{key}": so for key, so in guards.conditions(name, before, rules, event).items()}
    claims |= {f"invariant/{key}": so for key, so in invariants(after, rules).items()}
    claims |= {f"effect/{key}": so for key, so in effects(name, before, rules, event, after).items()}
    claims |= {
        f"theorem/{theorem.theorem}/{theorem.name}": theorem.predicate(before, rules, event, after)
        for theorem in STEP_THEOREMS
        if name in theorem.transitions
    }
    assert all(type(so) is bool for so in claims.values())
    return [f"{name}/{key}" for key, so in claims.items() if not so]


def test_every_invariant_effect_and_theorem_holds_along_random_runs() -> None:
    """The guard's queue facts too, which possible events never consult."""
    kinds: Counter[str] = Counter()
    deepest = 0
    for moment in walk(seed=11, num_events=6_000):
        assert broken_claims(moment) == [], moment
        kinds[event_name(moment.event)] += 1
        deepest = max(deepest, len(moment.after.queue))
    assert set(kinds) == set(TRANSITIONS)
    assert min(kinds.values()) >= 20, kinds
    assert deepest == SIZES.max_num_steps_in_flight


def broken_relations(state: State, rules: Rules) -> list[str]:
    """Every relation of a decision that is false of some sample input."""
    found = []
    for name, inputs in samples(state, rules):
        result = code_of.FUNCTIONS[name](state.ledger, rules, *inputs)
        relation = decisions.RELATIONS[name](state, rules, inputs, result)
        found += [f"{name}/{key} {inputs}" for key, so in relation.items() if not so]
    return found


def test_every_decision_satisfies_its_relation_along_random_runs() -> None:
    asked: Counter[str] = Counter()
    for number, moment in enumerate(walk(seed=12, num_events=3_000)):
        if number % 4 == 0:
            assert broken_relations(moment.after.state, moment.rules) == [], moment
            asked.update(name for name, _ in samples(moment.after.state, moment.rules))
    assert set(asked) == set(DECISIONS)
    assert min(asked.values()) >= 20, asked


def trim_uncounted(
    ledger: Ledger,
    rules: Rules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    stopped: int,
) -> Ledger:
    """A fault: what a stop trimmed stays counted as computed."""
    right = CODE["output"](ledger, rules, *Output(num_returned, num_drafts, num_accepted, num_kept, stopped))
    return right._replace(num_computed_tokens=right.num_computed_tokens + right.num_trimmed_tokens)


def finish_without_trimmed(ledger: Ledger, rules: Rules) -> Ledger:
    """A fault: the last kept token, an accepted draft, is not counted as settled."""
    right = CODE["finish"](ledger._replace(num_trimmed_tokens=0), rules)
    return right


def registers_everything(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """A fault: a dispatch publishes what it has no room for, drafts included."""
    right = CODE["schedule"](ledger, rules, num_new_tokens)
    return right._replace(
        num_registered_tokens=right.num_computed_tokens // rules.block_size * rules.block_size
    )


@pytest.mark.parametrize(
    ("name", "fault", "claim"),
    [
        ("output", trim_uncounted, "output/effect/frontier"),
        ("finish", finish_without_trimmed, "finish/effect/published"),
        ("schedule", registers_everything, "schedule/effect/published"),
    ],
    ids=["trim_uncounted", "finish_without_trimmed", "registers_everything"],
)
def test_a_random_run_meets_a_fault(name: str, fault: Callable[..., Ledger], claim: str) -> None:
    broken: set[str] = set()
    for moment in walk(seed=13, num_events=3_000, code={**CODE, name: fault}):
        broken.update(broken_claims(moment))
        if claim in broken:
            return
    pytest.fail(f"{claim} was never false")


def test_runs_are_the_same_for_the_same_seed_and_differ_for_another() -> None:
    first, again, other = (list(walk(seed, 200)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
