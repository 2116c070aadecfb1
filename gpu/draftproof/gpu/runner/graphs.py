"""Which steps need not be enqueued kernel by kernel? Those that are alike: captured once, then replayed.

A captured graph repeats the same kernels on the same memory. So one serves all steps of a kind
(`static_step`): every row samples and has as many drafts, and their parameters need the same kernels. Mixed
steps, and those of kinds that are rare, run eagerly.

The first step of a kind runs eagerly too, but padded: whatever is compiled or allocated at first use is there
when the second one is captured. A capture runs nothing, so no step is counted twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from draftproof.gpu.runner.static_step import Key, StaticStep, key_of
from draftproof.gpu.runner.step_input import StepInput
from draftproof.gpu.sampling import SamplingRows

if TYPE_CHECKING:
    from draftproof.gpu.runner.runner import Runner

MAX_GRAPHS = 64
"""Each holds memory for its outcome; the memory in between they share."""

Body = Callable[[], dict[str, Any]]


class Capture(Protocol):
    """Makes graphs; `CudaCapture`, or a stand-in for it."""

    def warm_up(self, body: Body) -> dict[str, Any]:
        """Run a step as one that will be captured; its tensors."""
        ...

    def capture(self, body: Body) -> tuple[Callable[[], None], dict[str, Any]]:
        """What enqueues the step from now on, and the tensors that it then fills. Runs nothing."""
        ...


class CudaCapture:
    """CUDA graphs, captured on a stream of their own.

    They share one pool of memory: they run one after the other, and what a graph brings is copied before the
    next one runs.
    """

    def __init__(self, device: Any) -> None:
        self._cuda: Any = torch.cuda
        self._device = device
        self._stream: Any = self._cuda.Stream(device)
        self._pool: Any = self._cuda.graph_pool_handle()

    def warm_up(self, body: Body) -> dict[str, Any]:
        """On the stream of the captures, for which libraries take memory of their own."""
        current = self._cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with self._cuda.stream(self._stream):
                return body()
        finally:  # what a failed step has enqueued is waited for as well
            current.wait_stream(self._stream)

    def capture(self, body: Body) -> tuple[Callable[[], None], dict[str, Any]]:
        """Other threads may use the device meanwhile. Raises RuntimeError for what cannot be captured."""
        graph = self._cuda.CUDAGraph()
        with (
            self._cuda.device(self._device),
            # A capture that fails does not leave its stream by itself.
            self._cuda.stream(self._cuda.current_stream(self._device)),
            self._cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            tensors = body()
        return graph.replay, tensors


class Graph(NamedTuple):
    """A captured step."""

    static: StaticStep
    replay: Callable[[], None]
    tensors: dict[str, Any]
    """Filled by each replay."""


class Graphs:
    """The graphs of one runner."""

    def __init__(self, capture: Capture, max_graphs: int = MAX_GRAPHS) -> None:
        self._capture, self.max_graphs = capture, max_graphs
        self._graphs: dict[Key, Graph] = {}
        self._warm: dict[Key, None] = {}
        """Kinds of which a step has run, the oldest first; as many as there may be graphs."""
        self.num_replays = self.num_warm_ups = self.num_eager = 0

    @property
    def num_graphs(self) -> int:
        """Captured so far."""
        return len(self._graphs)

    def run(self, runner: Runner, step: StepInput, sampling: SamplingRows) -> dict[str, Any] | None:
        """The tensors of a step, which the next one overwrites; None if it has to run eagerly.

        Its rows must have been started. Raises whatever torch raises where memory does not suffice.
        """
        key = key_of(runner, step, sampling)
        tensors = None if key is None else self._run(key, runner, step, sampling)
        if tensors is None:
            self.num_eager += 1
            return None
        return {name: _of_rows(name, tensor, step.num_rows) for name, tensor in tensors.items()}

    def _run(
        self, key: Key, runner: Runner, step: StepInput, sampling: SamplingRows
    ) -> dict[str, Any] | None:
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) >= self.max_graphs:
                return None
            static = StaticStep(runner, step, sampling, key)
            if key not in self._warm:
                return self._warm_up(key, static, step, sampling)
            graph = self._captured(static)
            if graph is None:
                return None
            self._graphs[key] = graph
        graph.static.put(step, sampling)
        graph.replay()
        self.num_replays += 1
        return graph.tensors

    def _warm_up(
        self, key: Key, static: StaticStep, step: StepInput, sampling: SamplingRows
    ) -> dict[str, Any]:
        static.put(step, sampling)
        tensors = self._capture.warm_up(static.run)
        self.num_warm_ups += 1
        self._warm[key] = None
        if len(self._warm) > self.max_graphs:
            del self._warm[next(iter(self._warm))]
        return tensors

    def _captured(self, static: StaticStep) -> Graph | None:
        """None if it cannot be captured: then nothing has run, and no other capture is tried."""
        try:
            return Graph(static, *self._capture.capture(static.run))
        except RuntimeError as problem:  # too little memory, or an operation that waits for the device
            self.max_graphs = 0
            reason = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
            warnings.warn(
                f"no further CUDA graphs, steps run eagerly: a step could not be captured ({reason}). "
                "cuda_graphs=False keeps this from being tried",
                RuntimeWarning,
                stacklevel=2,
            )
            return None


def _of_rows(name: str, tensor: Any, num_rows: int) -> Any:
    """Without padding rows; counters have a column for each row."""
    return tensor[:, :num_rows] if name.startswith("ledgers") else tensor[:num_rows]
