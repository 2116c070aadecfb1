"""Wrong counts, made on purpose: transitions edited in memory, counters and tables tampered with.

As a program, `DRAFTPROOF_DEBUG=1 python -m tests.gpu.debug_world EDIT...` generates with each edit, the
accounting's contracts on, and prints what was raised, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.gpu.runner_world import CONFIGURATIONS, PARAMETERS, VOCAB_SIZE, decoder, drafter, llm, prompts

from draftproof.gpu.drafters import ScriptedDrafter
from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS, STATUS
from draftproof.impl.scheduler.checks import AccountingError
from draftproof.proofs.faults import Change, find
from draftproof.proofs.faults.fault import ACCOUNTING
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.registry_output import COMPUTED, VLLM_FOLD
from draftproof.spec.ledger import RUNNING

EDITS: dict[str, tuple[Change, ...]] = {
    "one too many": (Change(ACCOUNTING, "output", COMPUTED, f"{COMPUTED} + minimum(num_rejected, 1)"),),
    "one too few": (Change(ACCOUNTING, "output", COMPUTED, f"{COMPUTED} - minimum(num_rejected, 1)"),),
    "rejections-stay-computed": find("rejections-stay-computed").changes,
    "trim-uncounted": find("trim-uncounted").changes,
    "trim-uncounted, and vLLM's fold": (*find("trim-uncounted").changes, VLLM_FOLD),
}
"""The first two: after a step with a rejection C is one off."""


def edit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Edit transitions where they are: the code of the very function objects that everybody uses."""
    faulty = patched(EDITS[name]).transitions
    for function in {change.function for change in EDITS[name]}:
        right = plain(getattr(accounting, function))
        monkeypatch.setattr(right, "__code__", faulty[function].__code__)


def decoder_with_a_fault() -> Any:
    """For a process of its own, in which the device counts one too many."""
    accounting.output = patched(EDITS["one too many"]).transitions["output"]
    return decoder()


def before_steps(one: Any, tamper: Callable[[], None]) -> None:
    """Before each step of an LLM something happens."""
    scheduler = one.engine.scheduler
    schedule = scheduler.schedule

    def watched() -> Any:
        tamper()
        return schedule()

    scheduler.schedule = watched


def decoding(one: Any) -> list[int]:
    """Rows that decode, with nothing of them in flight unless steps run ahead."""
    ledgers = one.engine.scheduler.state.requests.ledgers
    running = np.flatnonzero(ledgers[STATUS] == RUNNING)
    return [int(row) for row in running if ledgers[NUM_COMPUTED_TOKENS, row] > ledgers[0, row]]


def tampered(
    one: Any, tamper: Callable[[int], None], is_time: Callable[[int], bool] = lambda row: True
) -> list[tuple[int, str]]:
    """Once, as soon as a row decodes; the next step and the row's request."""
    when: list[tuple[int, str]] = []

    def once() -> None:
        rows = [row for row in decoding(one) if is_time(row)]
        if rows and not when:
            tamper(rows[0])
            scheduler = one.engine.scheduler
            when.append(
                (
                    scheduler.num_in_flight_steps() + one.engine.totals.num_steps,
                    scheduler.request_ids[rows[0]],
                )
            )

    before_steps(one, once)
    return when


def generate(one: Any) -> list[list[int]]:
    """What the usual prompts lead to, greedily."""
    return [list(result.token_ids) for result in one.generate(prompts(), PARAMETERS["greedy"])]


@cache
def texts() -> list[list[int]]:
    """The usual prompts and what follows, a little longer than anybody asks for."""
    longer = [replace(one, max_tokens=one.max_tokens + 6) for one in PARAMETERS["greedy"]]
    results = llm(debug=False).generate(prompts(), longer)
    return [[*result.prompt_token_ids, *result.token_ids] for result in results]


def scripted() -> Any:
    """A drafter that always has drafts, some right and some wrong."""
    return drafter("scripted", 3, texts())


def trimming() -> Any:
    """A drafter whose drafts are all right, so that a stop trims some."""
    return ScriptedDrafter(3, texts(), (3,), VOCAB_SIZE)


def raised_with(name: str) -> dict[str, str]:
    """What a run with the edit raises, with contracts on."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        one = llm("ngram:3", **CONFIGURATIONS["both"])
        edit(monkeypatch, name)
        try:
            if name.startswith("trim"):
                session_turns(llm(trimming(), max_num_seqs=1))
            else:
                generate(one)
        except AccountingError as problem:
            return {"check": problem.check, "message": str(problem)}
        except Exception as problem:
            return {"check": "", "message": f"{type(problem).__name__}: {problem}"}
    return {"check": "", "message": "nothing"}


def session_turns(one: Any) -> list[list[int]]:
    """Two turns of two tokens each; the first stops on an accepted draft, with others behind it."""
    short = replace(PARAMETERS["greedy"][0], max_tokens=2)
    turns = []
    with one.session(short) as session:
        for chunk in (prompts()[0], [1, 2, 3, 4, 5]):
            session.append(chunk)
            turns.append(list(session.turn().token_ids))
    return turns


if __name__ == "__main__":
    print(json.dumps({name: raised_with(name) for name in sys.argv[1:]}))
