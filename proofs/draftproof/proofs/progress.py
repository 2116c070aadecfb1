"""Does a request that can go on go on? What T6 needs beside single steps: the host's choice, and an end.

A step theorem says that a running request could be scheduled with at least one token. Here the host's own
decision is asked: with nothing awaited, below the model's length and its own limit, and with budget for
one aligned chunk, it chooses at least one. And the measure that returning steps lower has a least value.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.impl.decisions import tokens_to_schedule
from draftproof.proofs.carrier_z3 import rules_hold, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer
from draftproof.spec.decision_inputs import TokensToSchedule
from draftproof.spec.decisions import assume_tokens_to_schedule
from draftproof.spec.invariants import invariants

Facts = dict[str, Any]


def _in_every_state() -> Facts:
    state, rules = symbolic_state(), symbolic_rules()
    facts = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    return facts | {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}


def _choice() -> tuple[Facts, Any]:
    """When the host must go on, and that it does."""
    state, rules = symbolic_state(), symbolic_rules()
    asked = symbols(TokensToSchedule, "input.")
    num_tokens = state.ledger.num_tokens
    facts = _in_every_state()
    facts |= {f"asked:{key}": fact for key, fact in assume_tokens_to_schedule(state, rules, asked).items()}
    facts |= {
        "host:nothing_awaited": z3.And(state.ghosts.num_awaited_samples == 0, asked.num_awaited_outputs == 0),
        "host:below_model_length": num_tokens < asked.max_model_len,
        "host:below_limit": num_tokens < asked.max_num_tokens,
        "host:budget": asked.token_budget >= asked.chunk_alignment,
    }
    return facts, tokens_to_schedule(state.ledger, rules, *asked) >= 1


def _measure() -> tuple[Facts, Any]:
    """Neither number of (2M - N - W, F) is ever negative."""
    ledger, ghosts = symbolic_state()
    limit = integer("max_num_tokens")
    facts = _in_every_state() | {"host:length": ledger.num_tokens <= limit}
    goal = z3.And(
        2 * limit - ledger.num_tokens - ghosts.num_settled_tokens >= 0, ledger.num_in_flight_tokens >= 0
    )
    return facts, goal


def obligations() -> list[Obligation]:
    """Both halves of T6 that no single step shows."""
    claims = {"host_goes_on": _choice(), "measure_is_not_negative": _measure()}
    return [
        Obligation(f"T6/{name}", "theorem", "T6", facts, goal, f"T6/{name}")
        for name, (facts, goal) in claims.items()
    ]


SENTENCES = {
    "host:nothing_awaited": "The host goes on although samples are awaited.",
    "host:below_model_length": "The host goes on at the model's length.",
    "host:below_limit": "The host goes on at the request's own limit.",
    "host:budget": "The host goes on without budget for one aligned chunk.",
    "host:length": "The measure has a least value although nothing limits N.",
}


def controls() -> list[Control]:
    """Each condition on the host is needed."""
    found = []
    for dropped, sentence in SENTENCES.items():
        path = f"T6/control/{dropped.removeprefix('host:')}"
        facts, goal = _measure() if dropped == "host:length" else _choice()
        fewer = {key: fact for key, fact in facts.items() if key != dropped}
        claim = Obligation(path, "theorem", "T6", fewer, goal, path)
        found.append(Control(f"T6/without_{dropped.removeprefix('host:')}", sentence, "assumption", [claim]))
    return found
