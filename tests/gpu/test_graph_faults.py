"""Would it show if a replayed step read or wrote the wrong rows?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.graph_world import compare, graphs_of, pair, row_by_row  # noqa: E402
from tests.gpu.runner_world import PARAMETERS, prompts  # noqa: E402

from draftproof.gpu.runner import LedgerError, graphs, outcome, runner, static_step  # noqa: E402

__all__ = ["row_by_row"]


def of_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding rows are those of line 0."""
    like = static_step._like

    def faulty(*arguments: Any) -> Any:
        step = like(*arguments)
        return step._replace(lines=step.lines * 0)

    monkeypatch.setattr(static_step, "_like", faulty)


def of_the_padding_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not stopped, and its table is that of the row before it."""
    put = static_step.StaticStep.put

    def faulty(self: Any, step: Any, sampling: Any) -> None:
        put(self, step, sampling)
        self._runner.state.ledger.table[:, -1] = self._runner.state.ledger.table[:, int(step.lines[0])]
        self._given.block_tables[step.num_rows :] = self._given.block_tables[:1]

    monkeypatch.setattr(static_step.StaticStep, "put", faulty)


def of_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters stay those of the first rows."""
    put = static_step._put_sampling
    seen: set[int] = set()

    def faulty(target: Any, source: Any) -> None:
        if id(target) not in seen:
            put(target, source)
        seen.add(id(target))

    monkeypatch.setattr(static_step, "_put_sampling", faulty)


def of_block_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables stay those of the first rows."""
    put = static_step.StaticStep.put

    def faulty(self: Any, step: Any, sampling: Any) -> None:
        before = self._given.block_tables.clone()
        put(self, step, sampling)
        if self._was_put:
            self._given.block_tables.copy_(before)
        self._was_put = True

    monkeypatch.setattr(static_step.StaticStep, "_was_put", False, raising=False)
    monkeypatch.setattr(static_step.StaticStep, "put", faulty)


def of_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not copied before the next step overwrites them."""
    monkeypatch.setattr(runner, "Pending", lambda tensors, device, are_reused: PENDING(tensors, device))


PENDING = outcome.Pending


def of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of greedy rows serves all."""
    key_of = static_step.key_of

    def faulty(*arguments: Any) -> Any:
        key = key_of(*arguments)
        return None if key is None else key._replace(all_greedy=True, max_top_k=0, any_top_p=False)

    monkeypatch.setattr(graphs, "key_of", faulty)


def run_with_graphs() -> None:
    eager, graphed = pair("scripted", 3, asynchronous=True, max_num_seqs=4)
    for token_ids in (prompts(), prompts()[::-1]):
        for sampling in PARAMETERS.values():
            parameters = [replace(one, max_tokens=11 - place) for place, one in enumerate(sampling)]
            compare(eager, graphed, token_ids, parameters)
    assert graphs_of(graphed).num_replays > 0
    first, second = [one.engine.runner.cache.storage[:, :, 1:] for one in (eager, graphed)]
    assert torch.equal(first, second)


def test_without_a_fault(row_by_row: None) -> None:
    run_with_graphs()


FAULTS = [of_padding, of_the_padding_line, of_sampling, of_block_tables, of_outcomes, of_keys]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(
    fault: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, row_by_row: None
) -> None:
    if fault is of_outcomes and DEVICE != "cpu":
        pytest.skip("what a device brings is copied in any case")
    fault(monkeypatch)
    with pytest.raises((AssertionError, LedgerError)):
        run_with_graphs()
