"""Is a wrong count caught in the first step that reads it, although no token changes?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("z3", reason="the prover's packages are not installed")

from tests.gpu.canary_world import without_other_checks  # noqa: E402
from tests.gpu.debug_world import (  # noqa: E402
    EDITS,
    edit,
    generate,
    scripted,
    session_turns,
    tampered,
    trimming,
)
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    llm,
    prompts,
)

from draftproof.gpu import device_ledger  # noqa: E402
from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.device_ledger import DeviceLedger, differences  # noqa: E402
from draftproof.gpu.runner import LedgerError, comparison  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.impl.ledger_table import (  # noqa: E402
    NUM_COMPUTED_TOKENS,
    NUM_FIELDS,
    NUM_TOKENS,
    load_plain,
    store_plain,
)
from draftproof.impl.scheduler import settle  # noqa: E402
from draftproof.proofs.faults import find  # noqa: E402
from draftproof.proofs.faults.patching import patched, right_code  # noqa: E402
from draftproof.proofs.faults.refute import faulty_obligations  # noqa: E402
from draftproof.proofs.obligations import formulas  # noqa: E402
from draftproof.proofs.solvers import Z3_RESOURCES, ask_z3  # noqa: E402
from draftproof.spec import textbook  # noqa: E402
from draftproof.spec.ledger import RUNNING, Rules, initial  # noqa: E402

pytestmark = without_other_checks
OFF_BY_ONE = [("one too many", 1), ("one too few", -1)]
both_modes = pytest.mark.parametrize("asynchronous", [False, True])


@pytest.mark.parametrize("difference", [1, -1])
@both_modes
def test_a_length_that_is_wrong_on_the_device_is_caught_by_the_step_that_reads_it(
    asynchronous: bool, difference: int
) -> None:
    one = llm(scripted(), asynchronous=asynchronous)

    def tamper(row: int) -> None:
        one.engine.runner.state.ledger.table[NUM_COMPUTED_TOKENS, row] += difference

    when = tampered(one, tamper)
    with pytest.raises((CanaryError, LedgerError)) as caught:
        generate(one)
    error: Any = caught.value
    assert (error.step, error.request) == when[0]
    assert difference < 0 or isinstance(error, CanaryError)


@pytest.mark.parametrize("difference", [1, -1])
@both_modes
def test_a_length_that_is_wrong_on_the_host_is_caught_by_the_step_that_reads_it(
    asynchronous: bool, difference: int
) -> None:
    one = llm(scripted(), asynchronous=asynchronous)

    def tamper(row: int) -> None:
        one.engine.scheduler.state.requests.ledgers[NUM_COMPUTED_TOKENS, row] += difference

    when = tampered(one, tamper)
    with pytest.raises((CanaryError, LedgerError)) as caught:
        generate(one)
    # Run ahead, the step before has not been settled, and is compared first.
    error: Any = caught.value
    assert error.request == when[0][1]
    assert when[0][0] - asynchronous <= error.step <= when[0][0]


@both_modes
def test_a_block_table_with_swapped_entries_is_caught(asynchronous: bool) -> None:
    one = llm(scripted(), asynchronous=asynchronous)

    def tamper(row: int) -> None:
        table = one.engine.scheduler.state.tables.block_ids[0, row]
        table[[0, 1]] = table[[1, 0]]

    when = tampered(one, tamper)
    with pytest.raises(CanaryError) as caught:
        generate(one)
    assert (caught.value.step, caught.value.request, caught.value.position) == (*when[0], 0)


@pytest.mark.parametrize(("name", "difference"), OFF_BY_ONE)
@pytest.mark.parametrize("side", ["device", "host"])
@both_modes
def test_a_transition_that_is_wrong_on_one_side_is_caught_before_anything_else_happens(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, side: str, name: str, difference: int
) -> None:
    """When the step is settled; run ahead, with the next one, which has been dispatched by then."""
    one, faulty = llm(scripted(), asynchronous=asynchronous), patched(EDITS[name]).transitions["output"]
    assert vars(settle)["output"] is accounting.output
    monkeypatch.setattr(accounting if side == "device" else settle, "output", faulty)
    with pytest.raises(
        (LedgerError, CanaryError) if asynchronous and difference > 0 else LedgerError
    ) as caught:
        generate(one)
    error: Any = caught.value
    assert error.step == (2 if asynchronous else 1)  # the first rejections are those of step 1
    if isinstance(error, LedgerError):
        assert error.counter == "num_computed_tokens"
        assert error.on_device - error.on_host == (difference if side == "device" else -difference)


@both_modes
def test_without_the_comparison_the_canary_sees_one_too_many_and_not_one_too_few(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """Too few on the device alone: what is computed again is right, but the row samples a place too early."""
    monkeypatch.setattr(comparison, "differences", lambda *_: [])
    right = generate(llm(scripted()))
    monkeypatch.setattr(accounting, "output", patched(EDITS["one too many"]).transitions["output"])
    with pytest.raises(CanaryError):
        generate(llm(scripted(), asynchronous=asynchronous))
    monkeypatch.setattr(accounting, "output", patched(EDITS["one too few"]).transitions["output"])
    assert generate(llm(scripted(), asynchronous=asynchronous)) != right


def test_one_too_few_on_both_sides_changes_nothing_that_the_device_could_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token is computed again from the same prefix into the same slot. The contracts see it: below."""
    right = generate(llm(scripted()))
    edit(monkeypatch, "one too few")
    one = llm(scripted())
    assert generate(one) == right and one.engine.totals.num_rejected_drafts > 0


@pytest.mark.parametrize("name", ["one too many", "rejections-stay-computed"])
@both_modes
def test_a_rejected_draft_that_both_sides_count_is_caught_by_the_next_step(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, name: str
) -> None:
    one = llm(scripted(), asynchronous=asynchronous)
    edit(monkeypatch, name)
    with pytest.raises(CanaryError, match="a rejected draft's") as caught:
        generate(one)
    # The step before accepted some drafts and rejected others; nothing had read a wrong slot until then.
    assert caught.value.step == 2 and one.engine.totals.num_rejected_drafts > 0


def test_a_trimmed_token_that_stays_counted_is_caught_although_no_token_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = session_turns(llm(trimming(), max_num_seqs=1))
    edit(monkeypatch, "trim-uncounted")
    blind = llm(trimming(), max_num_seqs=1, debug=False)
    assert session_turns(blind) == right  # nobody would have noticed
    assert blind.engine.totals.num_folds == 1 and blind.engine.totals.num_accepted_drafts > 0
    with pytest.raises(CanaryError) as caught:
        session_turns(llm(trimming(), max_num_seqs=1))
    assert caught.value.step == 2  # the second turn's first step, which reads the last token of the first
    assert caught.value.position == len(prompts()[0]) + 1


@pytest.fixture(scope="module")
def with_contracts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the interpreted scheduler's contracts say of each edit, in a process of its own."""
    names = ("one too many", "one too few", "rejections-stay-computed", "trim-uncounted")
    environment = {**os.environ, "DRAFTPROOF_DEBUG": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment["DRAFTPROOF_TRACE_DIR"] = str(tmp_path_factory.mktemp("traces"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.debug_world", *names],
        capture_output=True, text=True, env=environment, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_contracts_catch_what_both_sides_count_wrongly(with_contracts: Any) -> None:
    """One too few, too, which no canary can see: in the very call that counts."""
    for name, found in with_contracts.items():
        assert found["check"] == "frontier", name
        assert "in settle, step " in found["message"] and "contradicts T" in found["message"]


# ---- one source of truth ----


@pytest.mark.parametrize("name", ["trim-uncounted", "rejections-stay-computed"])
def test_one_edit_fails_proof_host_and_device(
    monkeypatch: pytest.MonkeyPatch, with_contracts: Any, name: str
) -> None:
    assert vars(settle)["output"] is accounting.output is accounting.TRANSITIONS["output"]
    seen: list[Any] = []

    def watched(transition: Any, *arguments: Any) -> Any:
        seen.append(transition)
        return apply(transition, *arguments)

    apply = vars(device_ledger)["apply"]
    monkeypatch.setattr(device_ledger, "apply", watched)
    assert refuted(name) == [] and wrong_on_device() == []
    edit(monkeypatch, name)
    # The proof, of the function object that is there.
    assert set(refuted(name)) == set(find(name).violated)
    # The interpreted host, by its contracts.
    assert with_contracts[name]["check"] == "frontier"
    # The device: its counters, and what it reads.
    assert "num_computed_tokens" in wrong_on_device()
    with pytest.raises(CanaryError):
        if name == "trim-uncounted":
            session_turns(llm(trimming(), max_num_seqs=1))
        else:
            generate(llm(scripted()))
    running = {accounting.draft, accounting.schedule, accounting.output, accounting.chunk_output}
    assert {id(one) for one in seen} == {id(one) for one in running}


def refuted(name: str) -> list[str]:
    """Of what the fault must violate, the statements that the running transition does."""
    claims = [
        claim
        for claim in faulty_obligations(find(name), "output", right_code())
        if claim.name in find(name).violated
    ]
    assert len(claims) == len(find(name).violated)
    return [claim.name for claim in claims if ask_z3(formulas(claim), Z3_RESOURCES).verdict == "sat"]


def wrong_on_device() -> list[str]:
    """A step of four drafts of which one is accepted and cut off: the device's counters, the textbook's."""
    rules = Rules(4, BLOCK_SIZE, False, 0)
    before = initial(5)._replace(status=RUNNING, num_computed_tokens=5, num_tokens=6)
    lines = torch.tensor([1])

    def number(value: int) -> Any:
        return torch.tensor([value], dtype=torch.int32)

    ledger, table = DeviceLedger(2, rules), np.zeros((NUM_FIELDS, 1), np.int64)
    store_plain(table, 0, before)
    ledger.start(lines, torch.from_numpy(table.astype(np.int32)))
    step = ledger.dispatch(lines, number(4), number(5))
    after = ledger.settle(lines, step, number(5), number(4), number(2), number(1), number(1))
    expected = textbook.schedule(textbook.draft(before, rules, 4), rules, 5)
    store_plain(table, 0, textbook.output(expected, rules, 5, 4, 1, 1, 1))
    assert load_plain(after.numpy(), 0).num_tokens == table[NUM_TOKENS, 0]
    return [counter for _, counter, _, _ in differences(table, after.numpy())]
