"""Does a violation still happen? Its trace is run again, on the code of today, without a model.

The engine, the scheduler, the device's accounting and the canary are the real ones. What the model and the
drafter said is in the trace; keys and values there are none, for the canary looks at token ids and block
tables only. Where the scheduler decides otherwise than it did, the trace cannot say what the model would have
answered: that step is still checked, and the replay ends with it.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention.step_rows import BlockTableError
from draftproof.gpu.canary import Canary, CanaryError
from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.runner.comparison import LedgerError
from draftproof.gpu.runner.engine import Engine
from draftproof.gpu.runner.outcome import Outcome
from draftproof.gpu.runner.requests import Request, Turn
from draftproof.gpu.runner.runner import Launched, Runner
from draftproof.gpu.runner.step_input import StepInput
from draftproof.gpu.sampling import SamplingParameters, Verified
from draftproof.gpu.sampling.parameters import ParameterError
from draftproof.gpu.trace import Call, Found, Step, Trace, TraceError, read_trace
from draftproof.impl.scheduler import RequestError, Scheduler, SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, NUM_SETTLED

NOT_RECORDED = Step((), (), ())


class Replayed(NamedTuple):
    """What came of a trace."""

    is_same: bool
    """Whether the violation happens as it did: same error, step, request, and position or counter."""
    sentence: str
    """For whoever asked."""
    recorded: Found
    found: Found | None
    """What happened now; None if nothing did."""
    num_steps: int
    """Steps that were run again."""
    differs_at: int | None
    """The first step that the scheduler decided otherwise than it had."""


def replay(path: Path | str) -> Replayed:
    """Run a trace of the runner again. Raises TraceError, with one sentence, if it is none.

    With `DRAFTPROOF_DEBUG=1` the accounting's contracts look on as well.
    """
    trace = read_trace(path)
    runner = ReplayRunner(trace)
    scheduler = Scheduler(trace.config, compiled=False)
    # Steps have the numbers that they had.
    scheduler.state.counts[[NUM_DISPATCHED, NUM_SETTLED]] = trace.first_step
    engine = Engine(runner, trace.config, eos_token_ids=trace.eos_token_ids, scheduler=scheduler, debug=True)
    found = _run(engine, runner, trace)
    is_same = found is not None and found.is_same(trace.violation)
    sentence = _sentence(trace.violation, found, is_same, runner.num_steps, runner.differs_at)
    return Replayed(is_same, sentence, trace.violation, found, runner.num_steps, runner.differs_at)


def _run(engine: Engine, runner: ReplayRunner, trace: Trace) -> Found | None:
    """All calls, up to the first violation."""
    try:
        for call in trace.calls:
            _make(engine, runner, call)
            if runner.differs_at is not None and not engine._in_flight:
                return None
        engine._drain(np.zeros(0, np.int64))  # a step that differs may not have been read
    except (CanaryError, LedgerError) as problem:
        place = problem.position if isinstance(problem, CanaryError) else problem.counter
        return Found(type(problem).__name__, problem.step, problem.request, place, str(problem))
    except (AssertionError, OutcomeError, BlockTableError) as problem:
        # A contract, a check of the scheduler's own, or what the runner refuses.
        request = getattr(problem, "request_id", "")
        return Found(type(problem).__name__, runner.last_step, request, "", str(problem))
    return None


def _make(engine: Engine, runner: ReplayRunner, call: Call) -> None:
    """One call. Raises TraceError for one that cannot be made, unless the run had come to differ before."""
    fields = call.fields
    try:
        if call.kind == "step":
            if runner.differs_at is None:
                engine.step()
            else:
                engine._drain(np.zeros(0, np.int64))
        elif call.kind == "add":
            name, tokens = fields["request"], tuple(fields["token_ids"])
            engine.add(Request(name, tokens, _parameters(fields), 0, is_session=fields["is_session"]))
        elif call.kind == "append":
            turn = Turn(tuple(fields["token_ids"]), _parameters(fields), 0, None, time.monotonic())
            engine.append(fields["request"], turn)
        elif call.kind == "close":
            engine.close(fields["request"])
        else:
            engine.abort(fields["request"])
    except ReplayedFailure:
        pass
    except (RequestError, ParameterError) as problem:
        if runner.differs_at is None:
            raise TraceError(f"line {call.line}: {problem}") from problem


def _parameters(fields: dict[str, Any]) -> SamplingParameters:
    return SamplingParameters(
        max_tokens=fields["max_tokens"],
        min_tokens=fields["min_tokens"],
        stop_token_ids=tuple(fields["stop_token_ids"]),
        ignore_eos=fields["ignore_eos"],
    )


def _sentence(
    recorded: Found, found: Found | None, is_same: bool, num_steps: int, differs_at: int | None
) -> str:
    if is_same:
        assert found is not None
        return f"the same violation again: {found.sentence}"
    differs = "" if differs_at is None else f"; the scheduler decides otherwise from step {differs_at} on"
    if found is None:
        return f"no longer happens: {num_steps} steps ran again, and nothing was found{differs}"
    return (
        f"another violation than the recorded one: {found.sentence}; recorded: {recorded.sentence}{differs}"
    )


class ReplayedFailure(Exception):
    """A step failed when it was recorded, too."""


class Answers(NamedTuple):
    """What the model and the drafter say to a step, of R rows."""

    sampled_token_ids: Any
    """int32[R, 1 + K]"""
    num_sampled_tokens: Any
    """int32[R]; of rows that sample"""
    draft_token_ids: Any
    """int64[R, K]"""
    num_draft_tokens: Any
    """int64[R]"""


class ReplayRunner(Runner):
    """A runner over no model: its answers are the trace's."""

    def __init__(self, trace: Trace) -> None:
        config, num_drafts = trace.config, trace.config.num_speculative_tokens
        self.recorded, self.vocab_size = trace.steps, config.vocab_size
        self.differs_at: int | None = None
        self.num_steps, self.last_step = 0, 0
        self.answers: Answers | None = None
        model = SimpleNamespace(
            shape=SimpleNamespace(vocab_size=config.vocab_size, num_heads=1, num_kv_heads=1),
            device=torch.device("cpu"),
            dtype=torch.float32,
            forward=self._no_model,
        )
        cache = SimpleNamespace(block_size=config.block_size, poison=lambda block_ids: None)
        lines = config.max_num_requests + 1
        super().__init__(
            model,  # type: ignore[arg-type]
            cache,  # type: ignore[arg-type]
            config,
            ReplayDrafter(self, num_drafts) if num_drafts else None,
            lambda *_: None,
            Canary(lines, config.max_model_len, config.num_blocks, config.block_size),
        )

    def launch(self, step: StepInput) -> Launched:
        """See `Runner.launch`."""
        recorded = self.recorded.get(step.step, NOT_RECORDED)
        sizes = tuple(step.num_tokens.tolist()), tuple(step.num_drafts.tolist())
        if self.differs_at is None and (step.request_ids, *sizes) != recorded[:3]:
            self.differs_at = step.step
        is_known = self.differs_at is None and recorded.sampled is not None
        self.answers = _answers(recorded if is_known else None, step.num_rows, self.config)
        self.num_steps, self.last_step = self.num_steps + 1, step.step
        return super().launch(step)

    def read(self, launched: Launched) -> Outcome:
        """See `Runner.read`."""
        self.last_step = step = launched.step.step
        if self.recorded.get(step, NOT_RECORDED).failed == "read":
            raise ReplayedFailure
        return super().read(launched)

    def _no_model(self, token_ids: Any, positions: Any, attend: Any) -> Any:
        if self.recorded.get(self.last_step, NOT_RECORDED).failed == "launch":
            raise ReplayedFailure
        return torch.zeros((len(token_ids), 1))

    def _rows_to_sample(self, step: StepInput) -> Any:
        return None

    def _verify(self, step: StepInput, given: Any, dispatched: Any, sampling: Any, hidden: Any) -> Any:
        """The recorded outcome, in the shapes of `Runner._verify`."""
        assert self.answers is not None
        places, width = given.sampling_places, step.rectangle.shape[1] - 1
        num_drafts = given.num_drafts[places]
        counted = torch.arange(width) < num_drafts[:, None]
        drafts = self.state.drafts[given.lines[places], :width]
        tokens = self.answers.sampled_token_ids[places, : 1 + width].contiguous()
        are_numbers = torch.ones(len(step.sampling_places), dtype=torch.bool)
        verified = Verified(tokens, self.answers.num_sampled_tokens[places], None, are_numbers)
        return verified, (counted & (drafts < 0)).sum(1)


class ReplayDrafter(Drafter):
    """Proposes what was proposed."""

    def __init__(self, runner: ReplayRunner, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._runner = runner

    def propose(self, step: DraftStep) -> Proposal:
        """See `Drafter.propose`."""
        answers = self._runner.answers
        assert answers is not None
        return Proposal(answers.draft_token_ids, answers.num_draft_tokens)


def _answers(recorded: Step | None, num_rows: int, config: SchedulerConfig) -> Answers:
    """The recorded ones. If there are none every row rejects its drafts, samples token 0 and has none new."""
    num_drafts = config.num_speculative_tokens
    sampled = np.full((num_rows, 1 + num_drafts), -1, np.int32)
    drafts = np.full((num_rows, num_drafts), -1, np.int64)
    counts = np.ones(num_rows, np.int32), np.zeros(num_rows, np.int64)
    if recorded is None or recorded.sampled is None or recorded.drafts is None:
        sampled[:, 0] = 0
    else:
        for place, (tokens, more) in enumerate(zip(recorded.sampled, recorded.drafts, strict=True)):
            sampled[place, : len(tokens)], drafts[place, : len(more)] = tokens, more
            counts[0][place], counts[1][place] = len(tokens), len(more)
    return Answers(*[torch.from_numpy(one) for one in (sampled, counts[0], drafts, counts[1])])
