"""Can the hypotheses of the proofs be met? One state for as many groups of them as it serves.

From a contradiction everything follows, so every group of hypotheses needs a state that meets it. A state
that z3 found for one group is tried on the next by evaluation, which is cheap; only a group that none of
them meets is asked about anew. Evaluation accepts no more than z3 does: all of the group must come out true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import z3

from draftproof.proofs.carrier_z3 import floor_facts
from draftproof.proofs.obligations import meeting

Groups = Mapping[str, Mapping[str, Any]]


def _meets(model: Any, facts: Mapping[str, Any]) -> bool:
    def holds(fact: Any) -> bool:
        if isinstance(fact, bool):
            return fact
        return bool(z3.is_true(model.eval(fact, model_completion=True)))

    return all(map(holds, facts.values())) and all(map(holds, floor_facts(facts.values())))


def met(groups: Groups) -> dict[str, bool]:
    """Whether some state meets each group's facts. False also if z3 cannot tell."""
    models: list[Any] = []
    found = {}
    for group, facts in groups.items():
        if not any(_meets(model, facts) for model in models):
            model = meeting(facts)
            if model is None:
                found[group] = False
                continue
            models.append(model)
        found[group] = True
    return found
