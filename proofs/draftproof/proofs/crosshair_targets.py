"""Does each transition, as Python runs it, equal its textbook version? The contracts CrossHair confirms.

One wrapper per transition around the very function that runs (`contracts.plain`), with one postcondition:
the result is the textbook's. CrossHair executes the bytecode on symbolic integers and knows nothing of
the term builder that the solvers' proofs rest on, so it is an independent reader of the same code. The
ledger is any integers at all, reachable or not, but for the named preconditions.

No block size is fixed: all eleven are confirmed for every block size of at least 1.
"""

from __future__ import annotations

from collections.abc import Callable

import icontract

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.spec import textbook
from draftproof.spec.ledger import Ledger, Rules

CODE: dict[str, Callable[..., Ledger]] = {
    name: plain(function) for name, function in accounting.TRANSITIONS.items()
}
"""What the wrappers call: the running functions. Looked up at each call, so that a mutant can stand in."""


def rules_are_valid(rules: Rules) -> bool:
    """A block holds at least one token, and a fence is not negative."""
    return rules.block_size >= 1 and rules.registration_fence >= 0


def registered_not_negative(ledger: Ledger) -> bool:
    """The textbook leaves a negative R alone where the code would raise it to 0."""
    return ledger.num_registered_tokens >= 0


def admit_is_textbook(ledger: Ledger, rules: Rules, num_hit_tokens: int, result: Ledger) -> bool:
    return result == textbook.admit(ledger, rules, num_hit_tokens)


@icontract.ensure(admit_is_textbook)
def admit(ledger: Ledger, rules: Rules, num_hit_tokens: int) -> Ledger:
    """Any hit, any ledger."""
    return CODE["admit"](ledger, rules, num_hit_tokens)


def schedule_is_textbook(ledger: Ledger, rules: Rules, num_new_tokens: int, result: Ledger) -> bool:
    return result == textbook.schedule(ledger, rules, num_new_tokens)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(schedule_is_textbook)
def schedule(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """Any step size, any ledger."""
    return CODE["schedule"](ledger, rules, num_new_tokens)


def draft_is_textbook(ledger: Ledger, rules: Rules, num_drafts: int, result: Ledger) -> bool:
    return result == textbook.draft(ledger, rules, num_drafts)


@icontract.ensure(draft_is_textbook)
def draft(ledger: Ledger, rules: Rules, num_drafts: int) -> Ledger:
    """Any number of drafts, any ledger."""
    return CODE["draft"](ledger, rules, num_drafts)


def chunk_output_is_textbook(ledger: Ledger, rules: Rules, num_returned: int, result: Ledger) -> bool:
    return result == textbook.chunk_output(ledger, rules, num_returned)


@icontract.ensure(chunk_output_is_textbook)
def chunk_output(ledger: Ledger, rules: Rules, num_returned: int) -> Ledger:
    """Any chunk, any ledger."""
    return CODE["chunk_output"](ledger, rules, num_returned)


def output_is_textbook(
    ledger: Ledger,
    rules: Rules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    stopped: int,
    result: Ledger,
) -> bool:
    return result == textbook.output(ledger, rules, num_returned, num_drafts, num_accepted, num_kept, stopped)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(output_is_textbook)
def output(
    ledger: Ledger,
    rules: Rules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    stopped: int,
) -> Ledger:
    """Any counts, also ones that no step returns; any ledger."""
    return CODE["output"](ledger, rules, num_returned, num_drafts, num_accepted, num_kept, stopped)


def preempt_is_textbook(ledger: Ledger, rules: Rules, drop: bool, result: Ledger) -> bool:
    return result == textbook.preempt(ledger, rules, drop)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(preempt_is_textbook)
def preempt(ledger: Ledger, rules: Rules, drop: bool) -> Ledger:
    """Any ledger."""
    return CODE["preempt"](ledger, rules, drop)


def stale_output_is_textbook(
    ledger: Ledger, rules: Rules, num_returned: int, num_kept: int, stopped: int, result: Ledger
) -> bool:
    return result == textbook.stale_output(ledger, rules, num_returned, num_kept, stopped)


@icontract.ensure(stale_output_is_textbook)
def stale_output(ledger: Ledger, rules: Rules, num_returned: int, num_kept: int, stopped: int) -> Ledger:
    """Any counts, any ledger."""
    return CODE["stale_output"](ledger, rules, num_returned, num_kept, stopped)


def end_turn_is_textbook(ledger: Ledger, rules: Rules, result: Ledger) -> bool:
    return result == textbook.end_turn(ledger, rules)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(end_turn_is_textbook)
def end_turn(ledger: Ledger, rules: Rules) -> Ledger:
    """Any ledger."""
    return CODE["end_turn"](ledger, rules)


def fold_is_textbook(ledger: Ledger, rules: Rules, num_chunk_tokens: int, result: Ledger) -> bool:
    return result == textbook.fold(ledger, rules, num_chunk_tokens)


@icontract.ensure(fold_is_textbook)
def fold(ledger: Ledger, rules: Rules, num_chunk_tokens: int) -> Ledger:
    """Any chunk, any ledger."""
    return CODE["fold"](ledger, rules, num_chunk_tokens)


def finish_is_textbook(ledger: Ledger, rules: Rules, result: Ledger) -> bool:
    return result == textbook.finish(ledger, rules)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(finish_is_textbook)
def finish(ledger: Ledger, rules: Rules) -> Ledger:
    """Any ledger."""
    return CODE["finish"](ledger, rules)


def abort_is_textbook(ledger: Ledger, rules: Rules, result: Ledger) -> bool:
    return result == textbook.abort(ledger, rules)


@icontract.require(rules_are_valid)
@icontract.require(registered_not_negative)
@icontract.ensure(abort_is_textbook)
def abort(ledger: Ledger, rules: Rules) -> Ledger:
    """Any ledger."""
    return CODE["abort"](ledger, rules)


TARGETS: dict[str, Callable[..., Ledger]] = {
    "admit": admit,
    "schedule": schedule,
    "draft": draft,
    "chunk_output": chunk_output,
    "output": output,
    "preempt": preempt,
    "stale_output": stale_output,
    "end_turn": end_turn,
    "fold": fold,
    "finish": finish,
    "abort": abort,
}
"""One target per transition, by its name."""
