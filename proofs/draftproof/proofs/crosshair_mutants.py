"""Would CrossHair notice? For every target one wrong version of the code, which it must refute.

A target that CrossHair confirms whatever the code does would be worthless. Each entry is one change of
the text of the function under test; a change whose text is not found is an error, so that the table
cannot rot.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.impl import accounting, decisions, recurrent
from draftproof.proofs import crosshair_decisions, crosshair_laws, crosshair_recurrent, crosshair_targets
from draftproof.proofs.crosshair_run import CrosshairVerdict, confirm, targets
from draftproof.spec import algebra


class CrosshairMutant(NamedTuple):
    """A target, and a change of one expression in the function it wraps."""

    target: str
    function: str
    before: str
    after: str


class Refutation(NamedTuple):
    """Whether CrossHair found a call that shows the mutant, and the call."""

    mutant: CrosshairMutant
    refuted: bool
    state: str
    message: str
    seconds: float


_MODULES: dict[str, tuple[Any, dict[str, Callable[..., Any]]]] = {
    "transition": (accounting, crosshair_targets.CODE),
    "decision": (decisions, crosshair_decisions.CODE),
    "recurrent": (recurrent, crosshair_recurrent.CODE),
    "law": (algebra, crosshair_laws.CODE),
}

_CHANGES: dict[str, tuple[str, str]] = {
    "transition/admit": ("ledger.num_computed_tokens == 0", "ledger.num_computed_tokens >= 0"),
    "transition/schedule": (
        "minimum(num_computed_tokens, ledger.num_tokens)",
        "num_computed_tokens",
    ),
    "transition/draft": ("num_draft_tokens=num_drafts", "num_draft_tokens=ledger.num_draft_tokens"),
    "transition/chunk_output": (
        "ledger.num_in_flight_tokens - num_returned",
        "ledger.num_in_flight_tokens + num_returned",
    ),
    "transition/output": ("num_rejected - num_trimmed", "num_rejected"),
    "transition/preempt": (
        "ledger.num_in_flight_tokens - ledger.num_stale_tokens)",
        "ledger.num_in_flight_tokens)",
    ),
    "transition/stale_output": (
        "where(ledger.drop_stale, ledger.num_tokens, ledger.num_tokens + num_kept)",
        "ledger.num_tokens + num_kept",
    ),
    "transition/end_turn": ("drop_stale=True", "drop_stale=ledger.drop_stale"),
    "transition/fold": ("ledger.num_tokens - 1 + num_chunk_tokens", "ledger.num_tokens + num_chunk_tokens"),
    "transition/finish": (
        "ledger.num_computed_tokens + ledger.num_trimmed_tokens",
        "ledger.num_computed_tokens",
    ),
    "transition/abort": ("ledger.status == RUNNING", "ledger.status != RUNNING"),
    "decision/tokens_to_schedule": (">= max_num_tokens", "> max_num_tokens"),
    "decision/tokens_before_lookahead": ("num_left > 0", "num_left >= 0"),
    "decision/drafts_allowed": ("max_model_len - ledger.num_tokens", "max_model_len"),
    "decision/tokens_to_keep": ("stop_index + 1", "stop_index"),
    "decision/slots_to_reserve": ("ledger.num_computed_tokens +", "ledger.num_tokens +"),
    "decision/slots_to_admit": ("ledger.num_tokens +", "ledger.num_prompt_tokens +"),
    "decision/window_to_prune": ("settled - window + 1", "settled - window"),
    "decision/may_release": ("num_pending_transfers == 0", "num_pending_transfers >= 0"),
    "decision/lookup_hit": ("ledger.num_tokens - 1", "ledger.num_tokens"),
    "decision/checkpoint_to_keep": ("ledger.num_prompt_tokens - 1", "ledger.num_prompt_tokens"),
    "decision/window_to_save": ("+ rules.block_size", "- rules.block_size"),
    "decision/hashes_to_keep": ("ledger.num_tokens - 1", "ledger.num_tokens"),
    "decision/known_lookahead": ("minimum(", "maximum("),
    "decision/draft_buffer": ("(1 + rules", "(rules"),
    "decision/seats_free": ("- num_scheduled_requests", "- num_resident_requests"),
    "decision/count_admission": ("metrics.num_admissions == 0", "metrics.num_admissions >= 0"),
    "decision/count_output": ("where(verified, num_kept, 0)", "num_kept"),
    "recurrent/start": ("running_key=num_hit_tokens", "running_key=0"),
    "recurrent/dispatch": ("num_reachable > num_tokens", "num_reachable >= num_tokens"),
    "recurrent/publish": ("end > recurrent.num_reserved_tokens", "end >= recurrent.num_reserved_tokens"),
    "recurrent/settle": ("where(num_left == 0, num_consumed, 0)", "num_consumed"),
    "recurrent/next_turn": (
        "num_checkpoint_tokens > recurrent.num_state_tokens",
        "num_checkpoint_tokens >= recurrent.num_state_tokens",
    ),
    "recurrent/first_unreserved": ("maximum(", "minimum("),
    "recurrent/slot_to_read": ("recurrent.state_slot", "0"),
    "recurrent/chunk_to_schedule": ("end >= num_tokens", "end > num_tokens"),
    "recurrent/registrable_at_exit": ("- num_live", "+ num_live"),
    "law/where": ("condition is True", "condition is False"),
    "law/minimum": ("first <= second", "first >= second"),
    "law/maximum": ("first >= second", "first <= second"),
    "law/both": ("first and second", "first or second"),
    "law/either": ("first or second", "first and second"),
    "law/negate": ("not condition", "condition"),
    "law/implies": ("negate(premise)", "premise"),
    "law/all_of": ("conditions[1:]", "conditions[2:]"),
    "law/any_of": ("either(result", "both(result"),
    "law/floor_is_close": ("tokens // block_size * block_size", "(tokens // block_size + 1) * block_size"),
    "law/floor_loses_the_remainder": ("tokens // block_size * block_size", "tokens"),
    "law/floor_is_whole_blocks": ("tokens // block_size * block_size", "tokens"),
    "law/floor_of_any_number_is_whole_blocks": (
        "tokens // block_size * block_size",
        "(tokens - 1) // block_size * block_size + 1",
    ),
    "law/floor_keeps_order": ("tokens // block_size * block_size", "tokens % block_size"),
}


def crosshair_mutants() -> list[CrosshairMutant]:
    """One mutant per target; a target without one is an error."""
    mutants = []
    for target in targets():
        before, after = _CHANGES[target.name]
        name = target.name.partition("/")[2]
        function = "floor_to_block" if name.startswith("floor_") else name
        mutants.append(CrosshairMutant(target.name, function, before, after))
    return mutants


def mutated(mutant: CrosshairMutant) -> Callable[..., Any]:
    """The changed function, compiled in the namespace of the running one."""
    module, _ = _MODULES[mutant.target.partition("/")[0]]
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(module, mutant.function))))
    source = source[source.index("def ") :]  # without the decorator
    if source.count(mutant.before) < 1:
        raise ValueError(
            f"{mutant.before!r} is not in {mutant.function}: the table of changes is out of date"
        )
    namespace = dict(vars(sys.modules[module.__name__]))
    exec(compile(source.replace(mutant.before, mutant.after), f"<{mutant.target}>", "exec"), namespace)
    changed: Callable[..., Any] = namespace[mutant.function]
    return changed


def refute(mutant: CrosshairMutant, seconds: float = 20.0) -> Refutation:
    """Put the mutant where the running function is, ask CrossHair, and put the function back."""
    _, code = _MODULES[mutant.target.partition("/")[0]]
    right = code[mutant.function]
    target = next(target for target in targets() if target.name == mutant.target)
    code[mutant.function] = mutated(mutant)
    try:
        verdict: CrosshairVerdict = confirm([target], seconds)[0]
    finally:
        code[mutant.function] = right
    # Only a broken postcondition counts: a crash or a time-out says nothing about the contract.
    return Refutation(mutant, verdict.state == "POST_FAIL", verdict.state, verdict.message, verdict.seconds)
