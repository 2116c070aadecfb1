"""Is it the same with the model in a process of its own, and what if that process fails or ends?"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu import process_world  # noqa: E402
from tests.gpu.process_world import (  # noqa: E402
    NUM_DRAFTS,
    CannotBeFound,
    ForgetfulError,
    Orders,
    StrangeError,
    failing_model,
    llm,
    quitting_model,
    setup,
)
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    MAX_TOKENS,
    PARAMETERS,
    TOLERANCE,
    decoder,
    largest_difference,
    prompts,
)
from tests.gpu.runner_world import llm as in_process_llm  # noqa: E402

from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.drafters import NullDrafter  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult, process  # noqa: E402
from draftproof.gpu.runner.model_part import ModelSetup  # noqa: E402
from draftproof.gpu.runner.process import ProcessPart, packed_setup  # noqa: E402
from draftproof.gpu.runner.server import LAUNCH, LOAD, Problem, Server, sendable  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

ALL_PROMPTS = prompts() * 2
ALL_PARAMETERS = [*PARAMETERS["greedy"], *PARAMETERS["sampled"]]
GREEDY = SamplingParameters(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
NUM_THREADS = 3
"""Of torch in the other processes; not what it takes if nothing is said."""
Part = Callable[[str], ProcessPart]


@cache
def baseline() -> list[RequestResult]:
    """In this process, without speculation, chunks or preemption: greedy requests, then sampled ones."""
    return in_process_llm().generate(ALL_PROMPTS, ALL_PARAMETERS)


@cache
def texts() -> list[list[int]]:
    longer = [replace(one, max_tokens=MAX_TOKENS + 6) for one in ALL_PARAMETERS]
    found = in_process_llm().generate(ALL_PROMPTS, longer)
    return [[*result.prompt_token_ids, *result.token_ids] for result in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def part(folder: Path) -> Iterator[Part]:
    """One process for each kind of drafts; another one if a test has ended it."""
    made: dict[str, ProcessPart] = {}

    def part_of(kind: str) -> ProcessPart:
        if kind not in made or not made[kind]._child.process.is_alive():
            speculate: Any = None
            if kind == "ngram":
                speculate = partial(process_world.spoiling_drafter, str(folder))
            if kind == "scripted":
                speculate = partial(process_world.scripted_drafter, texts())
            num_threads = torch.get_num_threads()
            torch.set_num_threads(NUM_THREADS)
            made[kind] = ProcessPart(setup(folder, speculate), BLOCK_SIZE)
            torch.set_num_threads(num_threads)
        return made[kind]

    yield part_of
    for one in made.values():
        one.close()
        assert not one._child.process.is_alive()


@pytest.fixture
def orders(folder: Path) -> Iterator[Orders]:
    yield Orders(str(folder))
    for file in folder.iterdir():
        file.unlink()


def check(results: list[RequestResult], expected: list[RequestResult] | None = None) -> None:
    assert largest_difference(results, baseline() if expected is None else expected) < TOLERANCE


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("kind", ["ngram", "scripted"])
def test_it_is_the_same_as_in_one_process(
    part: Part, kind: str, configuration: str, asynchronous: bool
) -> None:
    options = {"asynchronous": asynchronous, **CONFIGURATIONS[configuration]}
    one = llm(part(kind), **options)
    results = one.generate(ALL_PROMPTS, ALL_PARAMETERS)
    check(results)
    totals = one.engine.totals
    assert totals.num_compared > totals.num_steps  # host and device counted alike
    assert (totals.num_accepted_drafts > 0) == (totals.num_rejected_drafts > 0) == (kind != "none")
    assert (totals.num_prefill_chunks > 0) == (configuration in ("chunked", "both"))
    assert (totals.num_preemptions > 0) == (configuration in ("preempted", "both"))
    if configuration == "both" and kind == "ngram":
        here = in_process_llm(f"ngram:{NUM_DRAFTS}", **options)
        expected = here.generate(ALL_PROMPTS, ALL_PARAMETERS)
        assert totals == here.engine.totals
        for result, other in zip(results, expected, strict=True):
            assert (result.num_draft_tokens, result.num_accepted_tokens, result.num_cached_tokens) == (
                other.num_draft_tokens, other.num_accepted_tokens, other.num_cached_tokens,
            )  # fmt: skip


def test_the_next_step_is_launched_while_one_is_computed(part: Part, orders: Orders) -> None:
    one = llm(part("none"), asynchronous=True)
    orders.give("hold")
    requests = one._checked(prompts(), PARAMETERS["greedy"])
    for request in requests[:4]:
        one.engine.add(request)
    assert one.engine._launch() == (True, [])
    assert one.engine._launch() == (True, [])
    assert len(one.engine._in_flight) == 2 and one.engine.totals.num_steps == 0
    orders.withdraw("hold")
    results: dict[str, RequestResult] = {}
    while len(results) < 4:
        outputs = one.engine._settle() if len(one.engine._in_flight) == 2 else one.engine.step()
        results |= {output.request_id: output.result for output in outputs if output.result is not None}
    check([results[request.request_id] for request in requests[:4]], baseline()[:4])


def test_threads_are_as_many_as_were_here(part: Part, orders: Orders) -> None:
    orders.give("threads")
    llm(part("none")).generate(prompts()[:1], PARAMETERS["greedy"][:1])
    assert int((orders.folder / "num_threads").read_text()) == NUM_THREADS


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("num_steps", [0, 3, 12])
def test_a_step_without_memory_ends_one_request(
    part: Part, orders: Orders, num_steps: int, asynchronous: bool
) -> None:
    """The largest; the others start over, and nothing that the step was to compute is taken for computed."""
    one = llm(part("ngram"), max_num_batched_tokens=16, asynchronous=asynchronous)
    orders.give("memory", num_steps)
    results = one.generate(prompts(), PARAMETERS["greedy"])
    (failed,) = [result for result in results if result.finish_reason == "error"]
    assert failed.error is not None and "lower max_num_batched_tokens" in failed.error
    pairs = [pair for pair in zip(results, baseline()[:5], strict=True) if pair[0] is not failed]
    check([one for one, _ in pairs], [other for _, other in pairs])
    assert not one.engine.requests and not one.engine.has_work()
    check(one.generate(ALL_PROMPTS, ALL_PARAMETERS))


def step_of(number: int, lines: list[int], started: list[int], freed_blocks: list[int]) -> Any:
    starts = SimpleNamespace(lines=np.array(started)) if started else None
    return SimpleNamespace(
        step=number, lines=np.array(lines), starts=starts, freed_blocks=np.array(freed_blocks)
    )


def test_a_step_that_goes_on_from_one_that_failed_is_dropped() -> None:
    """Until its rows have started over; the blocks that nobody may read are poisoned all the same."""
    launched: list[int] = []
    poisoned: list[int] = []

    def launch(step: Any) -> int:
        launched.append(step.step)
        if step.step == 1:
            raise ZeroDivisionError("the model")
        return int(step.step)

    server = Server()
    server.runner = SimpleNamespace(launch=launch, read=lambda step: step, poison=poisoned.extend)  # type: ignore[assignment]
    outcomes = [
        server.take(LAUNCH, step_of(*step))
        for step in (
            (0, [1, 2, 3], [1, 2, 3], []),
            (1, [1, 2], [], []),  # fails
            (2, [2, 3, 4], [4], [7, 8]),  # row 2 lacks step 1
            (3, [5, 4], [5], []),  # and row 4 step 2
            (4, [6], [6], []),
            (5, [1, 4], [1, 4], []),
            (6, [1, 4, 6], [], []),
            (7, [2, 5], [2], []),  # row 5 lacks step 3
        )
    ]
    assert launched == [0, 1, 4, 5, 6] and poisoned == [7, 8]
    for number, outcome in enumerate(outcomes):
        if number in (0, 4, 5, 6):
            assert not isinstance(outcome, Problem) and outcome() == number
        else:
            assert isinstance(outcome, Problem)
            assert ("the model" if number == 1 else "was dropped") in str(outcome.exception())


@pytest.mark.parametrize("num_aborted", [1, 2])
def test_a_step_without_memory_whose_largest_request_has_left(
    part: Part, orders: Orders, num_aborted: int
) -> None:
    one = llm(part("none"), asynchronous=True)
    requests = one._checked(prompts()[:2], GREEDY)
    for request in requests:
        one.engine.add(request)
    orders.give("hold")
    orders.give("memory")
    assert one.engine._launch() == (True, [])
    for request in requests[:num_aborted]:
        one.engine.abort(request.request_id)
    orders.withdraw("hold")
    outputs = one.engine._settle()
    assert [output.request_id for output in outputs] == [one.request_id for one in requests[num_aborted:]]
    assert not one.engine.has_work()
    check(one.generate(prompts(), PARAMETERS["greedy"]), baseline()[:5])


def test_a_session_without_memory_ends_with_its_waiting_chunks(
    part: Part, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = llm(part("none"))
    steps = iter([one._step] * 100)  # no more: rather fail than wait for ever
    monkeypatch.setattr(one, "step_for", lambda _: next(steps)())
    session = one.session(GREEDY)
    session.append(prompts()[0])
    session.append([1, 2, 3])
    orders.give("memory", 2)
    error = session.turn().error
    assert error is not None and "lower max_num_batched_tokens" in error
    error = session.turn().error
    assert error is not None and "the session ended before this chunk" in error


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("order", "kind", "sentence"),
    [
        ("divide", ZeroDivisionError, "^the model\n"),
        ("strange", RuntimeError, "^StrangeError: .*strange at 7"),
    ],
)
def test_a_step_that_fails_leaves_the_engine_usable(
    part: Part, orders: Orders, order: str, kind: type[Exception], sentence: str, asynchronous: bool
) -> None:
    one = llm(part("ngram"), max_num_batched_tokens=16, asynchronous=asynchronous)
    orders.give(order, 5)
    with pytest.raises(kind, match=sentence) as caught:
        one.generate(prompts(), PARAMETERS["greedy"])
    assert "obeying" in "".join(caught.value.__notes__)  # where it came from, there
    assert not one.engine.requests and not one.engine.has_work()
    check(one.generate(ALL_PROMPTS, ALL_PARAMETERS))


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (CanaryError("r", 1, 2, 3, 4, 5, "nothing"), CanaryError),  # its __init__ wants other arguments
        (ModelError("no memory for this"), ModelError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
        (FileNotFoundError(2, "No such file", "/there"), FileNotFoundError),
        (ForgetfulError("what", "ever"), ForgetfulError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "wrong"), RuntimeError),  # says nothing without its __init__
        (StrangeError(7), RuntimeError),
        (SystemExit("not here"), RuntimeError),  # which would end this process
    ],
)
def test_a_problem_is_told_as_it_is_or_in_words(problem: BaseException, kind: type[Exception]) -> None:
    found = pickle.loads(pickle.dumps(sendable(problem))).exception()
    assert type(found) is kind
    if kind is RuntimeError:
        assert str(found) == f"{type(problem).__name__}: {problem}"
    else:
        assert str(found) == str(problem) and found.args == problem.args
    assert getattr(found, "request", None) == getattr(problem, "request", None)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_canary_is_heard(part: Part, orders: Orders, asynchronous: bool) -> None:
    one = llm(part("ngram"), asynchronous=asynchronous)
    orders.give("spoil", 4)
    with pytest.raises(CanaryError, match="reads position") as caught:
        one.generate(prompts(), PARAMETERS["greedy"])
    assert caught.value.request in "01234" and f"of request {caught.value.request} " in str(caught.value)
    assert not one.engine.requests and not one.engine.has_work()
    check(one.generate(ALL_PROMPTS, ALL_PARAMETERS))


def test_an_interrupt_is_for_this_process(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other does not hear it; answers to steps that were given up are not taken for later ones."""
    child = part("none")._child
    os.kill(child.process.pid or 0, signal.SIGINT)
    one = llm(part("none"), asynchronous=True)
    read, calls = one.engine.runner.read, iter(range(1000))

    def interrupted(number: int) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return read(number)

    monkeypatch.setattr(one.engine.runner, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.generate(prompts(), PARAMETERS["greedy"])
    check(one.generate(ALL_PROMPTS, ALL_PARAMETERS))


def test_memory_that_only_the_other_process_can_take(part: Part) -> None:
    config = llm(part("none")).config
    with pytest.raises(ModelError, match=r"^no memory for|does not suffice"):
        part("none").runner(replace(config, num_blocks=2**30))
    check(llm(part("none")).generate(ALL_PROMPTS, ALL_PARAMETERS))


def test_a_process_that_is_killed_is_told_to_all_who_wait(folder: Path, orders: Orders) -> None:
    """Also of an LLM of one's own, from the top: its requests end, its with-statement, and later requests."""
    model = setup(folder, None).model
    options: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_blocks": 200, "compiled": False}
    with LLM(model, runner_process=True, asynchronous=True, speculate="ngram:3", **options) as one:
        assert one.shape == decoder().shape and one.tokenizer is None
        check(one.generate(ALL_PROMPTS, ALL_PARAMETERS))
        session = one.session(SamplingParameters(temperature=0, max_tokens=40, ignore_eos=True))
        session.append(prompts()[0])
        orders.give("kill", 4)
        with pytest.raises(ModelError, match=r"process ended \(killed by signal 9.*make another LLM$"):
            one.generate(prompts(), PARAMETERS["greedy"])
        with pytest.raises(ModelError, match=r"killed by signal 9"):
            session.turn()
        assert not one.engine.requests and not one.engine.has_work()
        with pytest.raises(ModelError, match=r"killed by signal 9"):
            one.generate(prompts(), PARAMETERS["greedy"])
    with pytest.raises(ModelError, match=r"killed by signal 9"):
        one.generate(prompts(), PARAMETERS["greedy"])

    async def stream() -> None:
        async for _ in one.stream(prompts()[0]):
            pass

    with pytest.raises(ModelError, match=r"killed by signal 9"):
        asyncio.run(stream())


def test_a_closed_one_says_so_even_in_the_middle_of_a_step(
    part: Part, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = part("scripted")
    one = llm(own, asynchronous=True)
    orders.give("hold")
    one.engine.add(one._checked(prompts()[0], None)[0])
    assert one.engine._launch() == (True, [])
    monkeypatch.setattr(process, "SECONDS_TO_END", 0.01)
    one.close()
    one.close()
    assert not own._child.process.is_alive()
    with pytest.raises(ModelError, match="has been closed"):
        one.generate(prompts(), PARAMETERS["greedy"])
    assert not one.engine.requests and not one.engine.has_work()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model": decoder()},
            "model must be a name, a path, or a function that makes a Decoder there, got <",
        ),
        ({"model": None}, "model must be a name, a path, or a function"),
        ({"model": lambda: None}, "model must be a name, or a function at the top level of a module"),
        ({"speculate": NullDrafter(3)}, "speculate must be None, a name such as"),
        ({"speculate": lambda _: None}, "speculate must be a name, or a function at the top level"),
        ({"attention_backend": lambda *_: None}, "attention_backend must be a name, or a function"),
    ],
)
def test_what_cannot_be_sent(changes: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"model": "random:llama"} | changes
    with pytest.raises(ModelError, match=f"^with runner_process=True, {sentence}"):
        LLM(**given, runner_process=True, compiled=False)


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        (ModelSetup("no such model"), ModelError, "^there is no model 'no such model'"),
        (ModelSetup("random:llama", speculate="eagle"), ModelError, "^speculate must be"),
        (ModelSetup(failing_model), ZeroDivisionError, "^no model today"),
        (ModelSetup(quitting_model), RuntimeError, "^SystemExit: not here"),
        (ModelSetup(CannotBeFound()), ModelError, "^the runner's process does not find what model"),
    ],
)
def test_what_fails_there(part: Part, given: ModelSetup, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        part("none")._child.ask(LOAD, (packed_setup(given), BLOCK_SIZE, 1))


PROGRAM = """
import time
from draftproof.gpu import LLM

if {guard}:
    llm = LLM("random:llama", runner_process=True, num_blocks=200, compiled=False)
    print(llm._part._child.process.pid, flush=True)
    if {stays}:
        time.sleep(60)
"""


def started(tmp_path: Path, **values: Any) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(**values))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def is_gone(pid: int) -> bool:
    for _ in range(2000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("stays", [False, True])
def test_the_process_ends_with_its_program(tmp_path: Path, stays: bool) -> None:
    """Whether that ends by itself, its LLM still open, or is killed."""
    program = started(tmp_path, guard="__name__ == '__main__'", stays=stays)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    if stays:
        program.kill()
    assert program.wait(30) == (-signal.SIGKILL if stays else 0)
    assert is_gone(child)


def test_a_program_without_a_guard_is_told(tmp_path: Path) -> None:
    program = started(tmp_path, guard="True", stays=False)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 1
    assert 'must do so behind `if __name__ == "__main__":`' in errors
    assert errors.strip().splitlines()[-1].endswith("(exit code 1): make another LLM")
