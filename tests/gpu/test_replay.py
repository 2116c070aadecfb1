"""Does a violation's trace show the violation again, without the model?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("z3", reason="the prover's packages are not installed")

from tests.gpu.canary_world import without_other_checks  # noqa: E402
from tests.gpu.debug_world import (  # noqa: E402
    EDITS,
    decoder_with_a_fault,
    edit,
    generate,
    scripted,
    session_turns,
    trimming,
)
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    PARAMETERS,
    decoder,
    drafter,
    llm,
    prompts,
)

from draftproof.gpu import recording as recording_module  # noqa: E402
from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.replay import Replayed, replay  # noqa: E402
from draftproof.gpu.runner import LedgerError  # noqa: E402
from draftproof.gpu.trace import TraceError, read_trace  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.proofs.faults.patching import patched  # noqa: E402

pytestmark = without_other_checks
both_modes = pytest.mark.parametrize("asynchronous", [False, True])
GREEDY = PARAMETERS["greedy"][0]


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_TRACE_DIR", str(tmp_path / "traces"))
    return tmp_path / "traces"


def violation(run: Callable[[], Any]) -> Any:
    """What the run raises; its trace's path is in the message."""
    with pytest.raises((CanaryError, LedgerError)) as caught:
        run()
    error: Any = caught.value
    assert str(error).endswith(f". Trace: {error.trace}")
    return error


@pytest.mark.parametrize("name", ["rejections-stay-computed", "trim-uncounted", "one too few"])
@both_modes
def test_the_same_violation_again_until_the_code_is_right(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, name: str, traces: Path
) -> None:
    def run() -> None:
        if name == "trim-uncounted":
            session_turns(llm(trimming(), max_num_seqs=1, asynchronous=asynchronous))
        else:
            generate(llm(scripted(), asynchronous=asynchronous, **CONFIGURATIONS["both"]))

    run()
    with monkeypatch.context() as within:
        if name == "one too few":  # on one side
            within.setattr(accounting, "output", patched_output(name))
        else:
            edit(within, name)
        error = violation(run)
        again = replay(error.trace)
    assert Path(error.trace).parent == traces
    assert Path(error.trace).name == f"draftproof-violation-{error.request}-{error.step}.ndjson"
    found, expected = again.found, error.position if isinstance(error, CanaryError) else error.counter
    assert again.is_same and found is not None and again.differs_at is None
    assert found[:4] == (type(error).__name__, error.step, error.request, expected)
    assert again.sentence == f"the same violation again: {str(error).partition('. Trace')[0]}"
    # Of the code of today nothing of it is left.
    after = replay(error.trace)
    assert not after.is_same and after.found is None
    assert after.sentence.startswith(f"no longer happens: {after.num_steps} steps ran again")


def patched_output(name: str) -> Any:
    return patched(EDITS[name]).transitions["output"]


def test_another_violation_is_said_to_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as within:
        edit(within, "rejections-stay-computed")
        error = violation(lambda: generate(llm(scripted())))
    monkeypatch.setattr(accounting, "output", patched_output("one too few"))
    again = replay(error.trace)
    assert not again.is_same and again.found is not None
    assert again.found.error == "LedgerError" and again.found.step < error.step
    assert again.sentence.startswith("another violation") and again.recorded.sentence in again.sentence


# ---- a whole run ----


def run_again(one: Any) -> Replayed:
    """Of a run without a violation: the trace that one at its end would have written."""
    engine = one.engine
    assert engine.recording.why_incomplete == ""
    trace = engine.recording.write(CanaryError("none", 10**6, 0, 1, 0, 0, "made up"))
    again = replay(trace)
    assert (again.found, again.differs_at) == (None, None)
    return again


@pytest.mark.parametrize(
    ("kind", "configuration"),
    [
        ("none", "both"),
        ("null", "both"),
        ("ngram", "plain"),
        ("ngram", "chunked"),
        ("scripted", "both"),
        ("draft", "preempted"),
        ("eagle", "both"),
    ],
)
@both_modes
def test_a_run_is_repeated_step_by_step(kind: str, configuration: str, asynchronous: bool) -> None:
    speculate = scripted() if kind == "scripted" else drafter(kind, 3, [])
    one = llm(speculate, asynchronous=asynchronous, **CONFIGURATIONS[configuration])
    generate(one)
    one.generate(prompts()[:2], replace(GREEDY, max_tokens=9))  # with hits
    again = run_again(one)
    # Run ahead, the last step may not have been read.
    assert again.num_steps == one.engine.totals.num_steps + len(one.engine._in_flight)
    assert one.engine.totals.num_accepted_drafts > 0 or kind in ("none", "null")
    assert one.engine.totals.num_preemptions > 0 or configuration in ("plain", "chunked")


@both_modes
def test_a_run_with_sessions_aborts_and_failures_is_repeated(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, traces: Path
) -> None:
    one = llm("ngram:3", asynchronous=asynchronous, max_num_batched_tokens=16)
    eos = tuple(set(prompts()[0]))
    with one.session(replace(GREEDY, max_tokens=5)) as session:
        for chunk in (prompts()[0], [1, 2, 3], [4] * 9):
            session.append(chunk)
        one.generate(prompts()[:2], replace(GREEDY, stop_token_ids=eos[:3], ignore_eos=False))
        for _ in range(3):
            session.turn()
        session.append([3, 3], replace(GREEDY, max_tokens=2, min_tokens=1))
        session.turn()
    other = one.session(GREEDY)
    other.append(prompts()[2])
    one._step()
    other.abort()
    forward, logits, calls = decoder().forward, decoder().logits, list[int]()

    def failing(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) in (4, 9):
            raise torch.OutOfMemoryError("CUDA out of memory") if len(calls) == 4 else ZeroDivisionError
        return forward(*arguments)

    def broken(hidden: Any) -> Any:
        return logits(hidden) * (float("nan") if len(calls) == 6 else 1)

    with monkeypatch.context() as within:
        within.setattr(decoder(), "forward", failing)
        within.setattr(decoder(), "logits", broken)
        with pytest.raises(ZeroDivisionError):
            generate(one)
    generate(one)
    again = run_again(one)
    # Of the steps that were launched two failed.
    assert one.engine.totals.num_steps < again.num_steps <= one.engine.totals.num_steps + 4
    assert one.engine.totals.num_folds == 3
    noted = read_trace(next(traces.iterdir())).calls
    assert {call.kind for call in noted} == {"add", "append", "close", "abort", "step"}


# ---- bounds ----


def test_a_long_run_leaves_its_last_events_and_begins_anew_when_all_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording_module.Recording, "__init__", bounded(3000))
    one: Any = llm("ngram:3", enable_prefix_caching=False)
    generate(one)
    trace = one.engine.recording.write(CanaryError("none", 1, 0, 1, 0, 0, "made up"))
    assert 1000 < trace.stat().st_size < 5000
    with pytest.raises(TraceError, match=r"begins in the middle of a run .*longer than a trace may be"):
        replay(trace)
    num_steps = one.engine.totals.num_steps
    one.generate(prompts()[:1], replace(GREEDY, max_tokens=8))
    again = run_again(one)
    assert again.num_steps == one.engine.totals.num_steps - num_steps
    assert one.engine.recording.first_step == num_steps > 0
    # Steps keep their numbers.
    one.engine.recording.why_incomplete = "made up"
    with monkeypatch.context() as within:
        edit(within, "rejections-stay-computed")
        error = violation(lambda: one.generate(prompts(), replace(GREEDY, max_tokens=8)))
        assert error.step > num_steps and replay(error.trace).is_same
    # Nobody knows what the device holds after it.
    later = one.engine.recording.write(CanaryError("none", 1, 0, 1, 0, 0, "made up"))
    with pytest.raises(TraceError, match="another violation came before"):
        replay(later)


def bounded(num_bytes: int) -> Any:
    original = recording_module.Recording.__init__

    def init(self: Any, config: Any, eos: Any, max_bytes: int) -> None:
        original(self, config, eos, num_bytes)

    return init


def test_a_trace_that_cannot_be_written_does_not_hide_the_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_TRACE_DIR", str(tmp_path / "file" / "folder"))
    edit(monkeypatch, "rejections-stay-computed")
    with pytest.raises(CanaryError, match=r"a rejected draft's.*No trace: ") as caught:
        generate(llm(scripted()))
    assert caught.value.trace == ""


def test_a_violation_in_a_process_of_its_own_leaves_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faulty code is there only: here nothing of it is left."""
    one = LLM(
        decoder_with_a_fault, speculate="null:3", asynchronous=True, runner_process=True, debug=True,
        block_size=BLOCK_SIZE, num_blocks=200, max_num_seqs=4, compiled=False,
    )  # fmt: skip
    with one:
        error = violation(lambda: generate(one))
    assert isinstance(error, CanaryError)
    assert replay(error.trace).found is None
    monkeypatch.setattr(accounting, "output", patched_output("one too many"))
    again = replay(error.trace)
    assert again.is_same and again.found is not None and str(error).startswith(again.found.sentence)
