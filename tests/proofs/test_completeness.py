"""The effects determine every field of every transition's result."""

from __future__ import annotations

from collections import Counter

from draftproof.proofs.completeness import obligations, transition_obligations
from draftproof.proofs.obligations import decide, satisfiable
from draftproof.spec.events import EVENTS
from draftproof.spec.ledger import Ledger


def test_two_results_that_satisfy_the_effects_agree_on_every_field() -> None:
    every = obligations()
    assert len(every) == len(EVENTS) * len(Ledger._fields)
    assert Counter(decide(obligation).outcome for obligation in every) == {"proved": len(every)}


def test_some_two_results_satisfy_the_effects() -> None:
    for name in EVENTS:
        assert satisfiable(transition_obligations(name)[0].hypotheses), name


def test_without_the_trim_the_results_may_differ_in_it_and_nowhere_else() -> None:
    without = transition_obligations("output", without="trimmed")
    refuted = [claim.name for claim in without if decide(claim).outcome != "proved"]
    assert refuted == ["completeness/output/without_trimmed/num_trimmed_tokens"]
