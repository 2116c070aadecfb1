"""Where does a prefill chunk end, and does it get its turn? The two decisions that size it, composed.

The budget is cut to the drafter's look-ahead, then the step is sized within it, on the alignment. What is
claimed of the running functions together is in `draftproof.spec.chunks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.impl import decisions as code_of
from draftproof.proofs.carrier_z3 import rules_hold, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer
from draftproof.spec import chunks
from draftproof.spec.decision_inputs import TokensBeforeLookahead, TokensToSchedule
from draftproof.spec.decisions import ASSUMPTIONS
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Rules

Facts = dict[str, Any]
Decide = Callable[..., Any]

GROUP = "tokens_before_lookahead/tokens_to_schedule"


class _Sized(NamedTuple):
    """A chunk that the two decisions have sized."""

    facts: Facts
    """What the caller sees to."""
    gets_its_turn: Facts
    """What the request must meet beside to be certain of its turn."""
    ends: Facts
    chosen: Any


def _sized(before_lookahead: Decide | None = None, to_schedule: Decide | None = None) -> _Sized:
    state, rules, asked = symbolic_state(), symbolic_rules(), symbols(TokensToSchedule, "input.")
    lookahead = integer("num_prefill_lookahead_tokens")
    cut = TokensBeforeLookahead(asked.token_budget, lookahead)
    budget = (before_lookahead or code_of.tokens_before_lookahead)(state.ledger, rules, *cut)
    size: Decide = to_schedule or code_of.tokens_to_schedule
    chosen = size(state.ledger, rules, *asked._replace(token_budget=budget))
    facts = {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    for name, inputs in (("tokens_to_schedule", asked), ("tokens_before_lookahead", cut)):
        facts |= {f"assumed:{key}": fact for key, fact in ASSUMPTIONS[name](state, rules, inputs).items()}
    facts |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    facts["assumed:fits_the_model"] = chunks.fits_the_model(state.ledger, asked)
    turn = chunks.gets_its_turn(state.ledger, asked, lookahead)
    return _Sized(
        facts,
        {f"turn:{key}": fact for key, fact in turn.items()},
        chunks.chunk_end(state.ledger, asked, lookahead, chosen),
        chosen,
    )


def obligations(
    before_lookahead: Decide | None = None, to_schedule: Decide | None = None
) -> list[Obligation]:
    """Where the chunk ends, and that the request is not left out for ever. The arguments replace the running
    decisions."""
    this = _sized(before_lookahead, to_schedule)
    found = [
        Obligation(f"{GROUP}/{name}", "decision", "decisions", this.facts, goal, GROUP)
        for name, goal in this.ends.items()
    ]
    turn = f"{GROUP}/turn"
    return [
        *found,
        Obligation(
            f"{turn}/is_not_passed_over",
            "decision",
            "T6",
            this.facts | this.gets_its_turn,
            this.chosen >= 1,
            turn,
        ),
    ]


def _too_little(ledger: Any, rules: Rules, num_new_tokens: Any, num_lookahead_tokens: Any) -> Any:
    """The decision is offered a token less."""
    return code_of.tokens_before_lookahead(ledger, rules, num_new_tokens - 1, num_lookahead_tokens)


def _uncut(ledger: Any, rules: Rules, num_new_tokens: Any, num_lookahead_tokens: Any) -> Any:
    """The budget is left as it is."""
    return num_new_tokens


def _aligned_first(ledger: Any, rules: Rules, *asked: Any) -> Any:
    """The step is sized and aligned, and cut to the look-ahead afterwards."""
    aligned = code_of.tokens_to_schedule(ledger, rules, *asked)
    lookahead = integer("num_prefill_lookahead_tokens")
    return code_of.tokens_before_lookahead(ledger, rules, aligned, lookahead)


def controls() -> list[Control]:
    """A prompt that does not fit, a token less of budget, and the two decisions the other way round."""
    this, less, swapped = _sized(), _sized(_too_little), _sized(_uncut, _aligned_first)
    unfit = {name: fact for name, fact in this.facts.items() if name != "assumed:fits_the_model"}
    several = {"lookahead:several": integer("num_prefill_lookahead_tokens") >= 2}
    table = {
        "model_cuts_the_chunk": (
            "The drafter has its look-ahead although the model's length cuts a prompt.",
            "assumption",
            unfit,
            this.ends["leaves_none_or_the_lookahead"],
        ),
        "a_token_less_of_budget": (
            "A chunk gets its turn with a token less of budget.",
            "statement",
            less.facts | less.gets_its_turn | several,
            less.chosen >= 1,
        ),
        "aligned_before_it_is_cut": (
            "A chunk that is aligned first and cut to the look-ahead afterwards ends on the alignment.",
            "statement",
            swapped.facts,
            swapped.ends["ends_on_the_alignment"],
        ),
    }
    return [
        Control(
            f"decisions/{name}",
            sentence,
            kind,
            [
                Obligation(
                    f"decisions/control/{name}", "decision", "decisions", facts, goal, "decisions/control"
                )
            ],
        )
        for name, (sentence, kind, facts, goal) in table.items()
    ]
