"""Every decision satisfies its relation, in every state the invariants allow; and what was stored is found.

The same two solvers, all sizes symbolic. T13 composes two pieces of running code: a request finishes,
then another one that starts with its tokens looks them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from draftproof.impl import decisions as code_of
from draftproof.proofs.carrier_z3 import (
    as_terms,
    rules_hold,
    symbolic_rules,
    symbolic_state,
    symbols,
)
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.spec.algebra import floor_to_block, maximum, minimum, where
from draftproof.spec.decisions import ASSUMPTIONS, DECISIONS, RELATIONS, Metrics
from draftproof.spec.events import Finish
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import RUNNING


def symbolic_inputs(name: str) -> Any:
    """Any inputs of a decision."""
    kind = DECISIONS[name]
    inputs = symbols(kind, "input.")
    if "metrics" in kind._fields:
        inputs = inputs._replace(metrics=symbols(Metrics, "metrics."))
    return inputs


def decision_obligations(name: str, code: Callable[..., Any] | None = None) -> list[Obligation]:
    """Everything claimed about one decision; `code` replaces the running function (faults, mutants)."""
    state, rules, inputs = symbolic_state(), symbolic_rules(), symbolic_inputs(name)
    run: Callable[..., Any] = code or code_of.FUNCTIONS[name]
    result = run(state.ledger, rules, *inputs)
    if isinstance(result, Metrics):
        result = as_terms(result)
    assumed = {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    assumed |= {f"assumed:{key}": fact for key, fact in ASSUMPTIONS[name](state, rules, inputs).items()}
    assumed |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    return [
        Obligation(f"{name}/relation/{key}", "decision", "decisions", assumed, goal, name)
        for key, goal in RELATIONS[name](state, rules, inputs, result).items()
    ]


def store_then_look_up() -> list[Obligation]:
    """T13: after a running request finished, a look-up of N tokens or more of the same sequence hits
    exactly min(max(R, floor_B(W - fence)), floor_B(N' - 1)), less one block under the drop rule."""
    before, rules, event = symbolic_state(), symbolic_rules(), Finish()
    after = step("finish", before, rules, event)
    other = symbolic_state("other.")
    drops_block = z3.Bool("drops_block")
    stored = after.ledger.num_registered_tokens
    hit = code_of.lookup_hit(other.ledger, rules, stored, drops_block)
    settled = before.ghosts.num_settled_tokens
    run = minimum(
        maximum(
            before.ledger.num_registered_tokens,
            floor_to_block(maximum(settled - rules.registration_fence, 0), rules.block_size),
        ),
        floor_to_block(other.ledger.num_tokens - 1, rules.block_size),
    )
    closed_form = where(drops_block, maximum(run - rules.block_size, 0), run)
    assumed = hypotheses("finish", before, rules, event)
    assumed |= {
        "running": before.ledger.status == RUNNING,
        "look_up_is_as_long": other.ledger.num_tokens >= before.ledger.num_tokens,
        "no_fence": rules.registration_fence >= 0,
    }
    from_draft = before.ledger.num_trimmed_tokens > 0
    last_is_settled = {**assumed, "idle": before.ghosts.num_awaited_samples == 0}
    claims = [
        ("hit_is_closed_form", assumed, hit == closed_form),
        (
            "settled_is_all_if_last_kept_was_a_draft",
            last_is_settled,
            settled == where(from_draft, before.ledger.num_tokens, before.ledger.num_tokens - 1),
        ),
        (
            "longer_look_up_finds_every_settled_block",
            {
                **assumed,
                "no_drop": z3.Not(drops_block),
                "longer": other.ledger.num_tokens > before.ledger.num_tokens,
            },
            hit >= floor_to_block(maximum(settled - rules.registration_fence, 0), rules.block_size),
        ),
    ]
    return [
        Obligation(f"T13/{name}", "theorem", "T13", facts, goal, f"T13/{name}")
        for name, facts, goal in claims
    ]


def obligations() -> list[Obligation]:
    """All decisions, and T13."""
    return [claim for name in DECISIONS for claim in decision_obligations(name)] + store_then_look_up()
