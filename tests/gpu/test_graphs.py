"""Does a step that is replayed do what an eager one does, and nothing to anybody else's rows?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.graph_stand_in import StandIn  # noqa: E402
from tests.gpu.graph_world import (  # noqa: E402
    GREEDY,
    MAX_MODEL_LEN,
    compare,
    graphs_of,
    pair,
    row_by_row,
)
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    PARAMETERS,
    VOCAB_SIZE,
    decoder,
    llm,
    prompts,
)

from draftproof.gpu.attention import GatherAttention  # noqa: E402
from draftproof.gpu.drafters import NullDrafter, ScriptedDrafter  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import model_part, static_step  # noqa: E402
from draftproof.gpu.runner.graphs import Graphs  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

__all__ = ["row_by_row"]
ALL = ((1, "greedy"), (2, "sampled"), (3, "greedy"), (3, "sampled"), (5, "sampled"))
FEW = ((3, "sampled"), (3, "greedy"))
KINDS = [("none", 0, ALL), ("scripted", 3, ALL), ("null", 3, FEW), ("ngram", 3, FEW), ("draft", 3, FEW),
         ("eagle", 3, FEW)]  # fmt: skip
"""Drafters, K, and how many requests of which parameters come together."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("kind", "num_drafts", "batches"), KINDS)
def test_graphs_change_nothing(
    kind: str, num_drafts: int, batches: tuple[tuple[int, str], ...], asynchronous: bool
) -> None:
    """Requests end one after the other, so batches shrink; three rows are padded to four, five to eight."""
    eager, graphed = pair(kind, num_drafts, asynchronous=asynchronous)
    for number, sampling in batches:
        given = PARAMETERS[sampling][:number]
        parameters = [replace(one, max_tokens=9 + 3 * place) for place, one in enumerate(given)]
        compare(eager, graphed, prompts()[:number], parameters)
    found = graphs_of(graphed)
    if batches is ALL:
        assert {key.num_rows for key in found._graphs} == {1, 2, 4, 8}
    assert found.num_replays > 0 and found.num_eager > 0 and found.num_warm_ups > 0
    check_padding_line(graphed)


def check_padding_line(one: LLM) -> None:
    state = one.engine.runner.state
    assert state.ledger.table[:, -1].abs().sum() == 1  # it has stopped, and that is all
    assert (state.drafts[-1] == -1).all()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("kind", "num_drafts"), [("none", 0), ("scripted", 3), ("draft", 3)])
def test_requests_that_join_in_the_middle_and_preemptions(
    kind: str, num_drafts: int, asynchronous: bool
) -> None:
    options = CONFIGURATIONS["both"] | {"asynchronous": asynchronous, "max_num_seqs": 4}
    eager, graphed = pair(kind, num_drafts, **options)
    compare(eager, graphed, prompts(), PARAMETERS["greedy"])
    assert graphed.engine.totals.num_preemptions > 0
    assert graphs_of(graphed).num_replays > 0 and graphs_of(graphed).num_eager > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_request_keeps_its_own_parameters(asynchronous: bool) -> None:
    """Rows come and go, and the same rows come back with other parameters."""
    eager, graphed = pair("null", 3, asynchronous=asynchronous, max_num_seqs=4)
    texts_of = []
    for seed in range(3):
        parameters = [
            SamplingParameters(
                temperature=0.5 + 0.4 * place, seed=10 * seed + place, max_tokens=6 + place, ignore_eos=True,
                logprobs=0, top_k=5 + seed,
            )
            for place in range(5)
        ]  # fmt: skip
        results = compare(eager, graphed, prompts(), parameters)
        texts_of.append([result.token_ids for result in results])
    assert texts_of[0] != texts_of[1] != texts_of[2]
    assert graphs_of(graphed).num_graphs > 0
    numbers = [key.max_top_k for key in graphs_of(graphed)._graphs]
    assert set(numbers) <= {0, 8}  # 5, 6 and 7, rounded up


@pytest.mark.parametrize(("kind", "num_drafts"), [("none", 0), ("draft", 3), ("ngram", 3)])
def test_short_texts_are_served_as_such(kind: str, num_drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_step, "SHORT", 12)
    eager, graphed = pair(kind, num_drafts, asynchronous=True)
    compare(eager, graphed, [prompts()[1][:5], prompts()[2]], [replace(GREEDY, max_tokens=30)] * 2)
    compare(eager, graphed, [prompts()[1][:5]] * 2, [replace(GREEDY, max_tokens=30)] * 2)
    lengths = {key.max_length for key in graphs_of(graphed)._graphs}
    assert lengths >= {12, 48} and lengths <= {12, 48, MAX_MODEL_LEN}


def test_what_requests_may_ask_for() -> None:
    """One graph serves those that need the same kernels, and no others."""
    eager, graphed = pair("scripted", 3)
    for changes in (
        {},
        {"min_p": 0.2, "temperature": 1.5},
        {"top_p": 0.7, "temperature": 1.5},
        {"repetition_penalty": 1.5},
        {"logprobs": 5},
        {"min_tokens": 9, "stop_token_ids": (0, 1, 2, 3), "ignore_eos": False},
    ):
        num_graphs = graphs_of(graphed).num_graphs
        compare(eager, graphed, prompts()[:3], replace(GREEDY, seed=5, **changes))
        assert graphs_of(graphed).num_graphs > num_graphs
        num_graphs = graphs_of(graphed).num_graphs
        num_replays = graphs_of(graphed).num_replays
        compare(eager, graphed, prompts()[:3], replace(GREEDY, seed=7, **changes))
        assert graphs_of(graphed).num_graphs == num_graphs
        assert graphs_of(graphed).num_replays > num_replays


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("kind", "num_drafts"), [("none", 0), ("scripted", 3), ("draft", 3), ("eagle", 3)])
def test_padding_rows_write_nowhere(kind: str, num_drafts: int, asynchronous: bool, row_by_row: None) -> None:
    """Every block but the null block holds the same bits."""
    eager, graphed = pair(kind, num_drafts, asynchronous=asynchronous)
    compare(eager, graphed, prompts()[:3], GREEDY)
    assert graphs_of(graphed).num_replays > 0
    first, second = [one.engine.runner for one in (eager, graphed)]
    assert torch.equal(first.cache.storage[:, :, 1:], second.cache.storage[:, :, 1:])
    assert first.cache.storage[:, :, 1:].abs().sum() > 0
    assert torch.equal(first.state.ledger.table, second.state.ledger.table)
    assert torch.equal(first.state.token_ids[:-1], second.state.token_ids[:-1])
    assert torch.equal(first.state.drafts, second.state.drafts)
    if kind in ("draft", "eagle"):
        mine, other = [one.drafter.cache.cache.storage[:, :, 1:] for one in (first, second)]
        assert torch.equal(mine, other) and mine.abs().sum() > 0


def test_a_script_that_is_right_is_accepted_in_a_graph() -> None:
    expected = llm(debug=False).generate(prompts()[:3], replace(GREEDY, max_tokens=20))
    right = [[*result.prompt_token_ids, *result.token_ids] for result in expected]
    one = llm(ScriptedDrafter(3, right, (3,), VOCAB_SIZE), debug=False)
    one.engine.runner.graphs = Graphs(StandIn())
    results = one.generate(prompts()[:3], GREEDY)
    assert [result.token_ids for result in results] == [result.token_ids[:10] for result in expected]
    assert one.engine.totals.num_rejected_drafts == 0 < one.engine.totals.num_accepted_drafts
    assert graphs_of(one).num_replays > 0


# ---- when there is no graph ----


class OwnDrafter(NullDrafter):
    is_capturable = False


def test_steps_that_no_graph_serves() -> None:
    for one in (llm(OwnDrafter(3), debug=False), llm("null:3", debug=True)):
        one.engine.runner.graphs = Graphs(StandIn())
        one.generate(prompts()[:2], GREEDY)
        found = graphs_of(one)
        assert found.num_eager == one.engine.totals.num_steps > 0
        assert found.num_replays == found.num_warm_ups == 0


def test_a_step_is_eager_once_there_are_graphs_enough() -> None:
    eager, graphed = pair("null", 3)
    found = graphed.engine.runner.graphs = Graphs(StandIn(), max_graphs=1)
    compare(eager, graphed, prompts(), PARAMETERS["greedy"])
    num_replays = found.num_replays
    assert found.num_graphs == 1 and num_replays > 0
    compare(eager, graphed, prompts(), PARAMETERS["sampled"])
    assert found.num_graphs == 1 and found.num_replays == num_replays


class FailingCapture(StandIn):
    def capture(self, body: Callable[[], Any]) -> Any:
        self.num_captures += 1
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_be_captured_runs_eagerly(asynchronous: bool) -> None:
    eager, graphed = pair("scripted", 3, asynchronous=asynchronous)
    capture = FailingCapture()
    graphed.engine.runner.graphs = Graphs(capture)
    with pytest.warns(RuntimeWarning, match="no further CUDA graphs.*out of memory"):
        compare(eager, graphed, prompts()[:3], GREEDY)
    assert capture.num_captures == 1 and graphs_of(graphed).num_replays == 0


def test_a_drafter_that_waits_cannot_be_captured() -> None:
    class Waiting(NullDrafter):
        is_capturable = True

        def propose(self, step: Any) -> Any:
            int(step.num_tokens.sum().item())
            return super().propose(step)

    options: dict[str, Any] = {"num_blocks": 200, "block_size": BLOCK_SIZE, "max_num_seqs": 4}
    one = LLM(decoder(), speculate=Waiting(1), debug=False, compiled=False, **options)
    one.generate(prompts()[:1], GREEDY)
    one.engine.runner.graphs = Graphs(StandIn())
    with pytest.raises(AssertionError, match="waits for the device"):
        one.generate(prompts()[:1], GREEDY)


@pytest.mark.parametrize(
    ("device", "backend", "cuda_graphs", "expected"),
    [
        ("cuda", object, True, True),
        ("cuda", object, False, False),
        ("cuda", GatherAttention, True, False),
        ("cpu", object, True, False),
    ],
)
def test_where_there_are_graphs(
    device: str, backend: Any, cuda_graphs: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_part, "CudaCapture", lambda device: StandIn())
    part = model_part.ModelPart(model_part.ModelSetup(decoder(), cuda_graphs=cuda_graphs), BLOCK_SIZE)
    part.backend = backend
    part.decoder = SimpleNamespace(device=torch.device(device))
    assert (part._graphs() is not None) == expected


def test_the_option() -> None:
    assert llm(debug=False, cuda_graphs=False).engine.runner.graphs is None
    assert llm(debug=False).engine.runner.graphs is None or DEVICE != "cpu"
    with pytest.raises(ModelError, match="cuda_graphs must be True or False"):
        llm(cuda_graphs=1)
