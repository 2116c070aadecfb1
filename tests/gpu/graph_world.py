"""Two of the same LLM, one of which replays its steps; and how they are compared."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.graph_stand_in import StandIn  # noqa: E402
from tests.gpu.runner_world import BLOCK_SIZE, TOLERANCE, drafter, largest_difference, llm, prompts  # noqa: E402

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models import projection  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.runner.graphs import CudaCapture, Graphs  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

MAX_MODEL_LEN = 64
GREEDY = SamplingParameters(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)


def texts() -> list[list[int]]:
    """For a script: it need not be right."""
    return [[*prompt, *range(10), *range(10), *range(10)] for prompt in prompts()]


def world(kind: str, num_drafts: int, *, graphed: bool, **options: Any) -> LLM:
    given: dict[str, Any] = {"debug": False, "max_num_seqs": 8, "max_model_len": MAX_MODEL_LEN} | options
    one = llm(drafter(kind, num_drafts, texts()), **given)
    one.engine.runner.graphs = Graphs(capture()) if graphed else None
    return one


def capture() -> Any:
    """CUDA's own where there is a device."""
    return StandIn() if DEVICE == "cpu" else CudaCapture(torch.device(DEVICE, 0))


def pair(kind: str, num_drafts: int, **options: Any) -> tuple[LLM, LLM]:
    """Two alike, one of them with graphs."""
    eager, graphed = [world(kind, num_drafts, graphed=graphed, **options) for graphed in (False, True)]
    return eager, graphed


def graphs_of(one: LLM) -> Graphs:
    found: Graphs = one.engine.runner.graphs
    return found


def compare(eager: LLM, graphed: LLM, token_ids: list[list[int]], parameters: Any) -> list[RequestResult]:
    results = graphed.generate(token_ids, parameters)
    assert largest_difference(results, eager.generate(token_ids, parameters)) < TOLERANCE
    first, second = [one.engine.totals for one in (eager, graphed)]
    assert first == second and second.num_compared > 0
    return results


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows a step has, and however long they are, a row's sums are in the same order: products are
    taken row by row, and eager steps, too, attend as if all rows were of the model's length."""

    def row_product(self: Any, rows: Any) -> Any:
        return torch.cat([torch.nn.functional.linear(row, self.weight, self.bias) for row in rows.split(1)])

    def long_input(*arguments: Any, **options: Any) -> Any:
        step = step_input(*arguments, **options)
        table_width = -(-(MAX_MODEL_LEN + options["num_lookahead_tokens"]) // BLOCK_SIZE)
        missing = table_width - step.rows.block_tables.shape[1]
        rows = step.rows._replace(
            block_tables=np.pad(step.rows.block_tables, ((0, 0), (0, missing))),
            spans=tuple([span._replace(max_sequence_length=MAX_MODEL_LEN) for span in step.rows.spans]),
            parts=(),
        )
        return step._replace(rows=rows, max_num_tokens=MAX_MODEL_LEN + 1)

    engine: Any = import_module("draftproof.gpu.runner.engine")
    step_input = engine.step_input
    monkeypatch.setattr(projection.Matrix, "product", row_product)
    monkeypatch.setattr(engine, "step_input", long_input)
