"""Can a step be captured: is all that it enqueues on the device, and what is asked of CUDA?"""

# torch's dispatch modes have no types.

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.graph_stand_in import FORBIDDEN  # noqa: E402
from tests.gpu.graph_world import texts, world  # noqa: E402
from tests.gpu.host_reads import HostReadError, no_host_reads  # noqa: E402
from tests.gpu.runner_world import PARAMETERS, VOCAB_SIZE, decoder, drafter, prompts, shape  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from draftproof.gpu.attention import GatherAttention, KVCache  # noqa: E402
from draftproof.gpu.drafters import drafter_of  # noqa: E402
from draftproof.gpu.drafters.draft_model import DraftModelDrafter  # noqa: E402
from draftproof.gpu.drafters.eagle import EagleDrafter, EagleHead  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.runner import graphs, runner, static_step  # noqa: E402
from draftproof.gpu.sampling import build_rows  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

# ---- what is asked of CUDA ----


class FakeCuda:
    """Writes down what is asked of it. A capture that fails stays on its stream, as torch's does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.current = "main"
        for name in ("Stream", "current_stream", "stream", "device", "CUDAGraph", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")

    def Stream(self, device: str) -> Any:
        return self._stream("side")

    def _stream(self, name: str) -> Any:
        def wait_stream(other: Any) -> None:
            self.calls.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait_stream)

    def current_stream(self, device: str) -> Any:
        return self._stream(self.current)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def device(self, device: str) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.calls.append(f"replay on {self.current}"))

    @contextmanager
    def graph(self, graph: Any, *, pool: str, stream: Any, capture_error_mode: str) -> Iterator[None]:
        before, self.current = self.current, stream.name
        self.calls.append(f"capture into {pool}, {capture_error_mode}")
        yield
        self.current = before

    def body(self) -> dict[str, Any]:
        self.calls.append(f"step on {self.current}")
        return {}

    def failing(self) -> dict[str, Any]:
        raise RuntimeError("it waits")


def test_captures_happen_on_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = inspect.signature(torch.cuda.graph.__init__)
    assert {"pool", "stream", "capture_error_mode"} <= set(signature.parameters)
    cuda = FakeCuda(monkeypatch)
    capture = graphs.CudaCapture("cuda:0")
    waits = ["side waits for main", "main waits for side"]
    assert capture.warm_up(cuda.body) == {}
    assert cuda.calls == [waits[0], "step on side", waits[1]]
    with pytest.raises(RuntimeError, match="it waits"):
        capture.warm_up(cuda.failing)
    assert cuda.calls[3:] == waits and cuda.current == "main"
    cuda.calls.clear()
    replay, tensors = capture.capture(cuda.body)
    replay()
    assert tensors == {}
    assert cuda.calls == ["capture into pool, thread_local", "step on side", "replay on main"]
    with pytest.raises(RuntimeError, match="it waits"):
        capture.capture(cuda.failing)
    assert cuda.current == "main"


# ---- nothing comes from the host ----


class Watch(TorchDispatchMode):
    """Refuses operators that bring something from another device, or that wait for this one."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        found = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        # A number may be a tensor of no dimension: it is an argument of the kernel.
        foreign = [value for value in (*given, *found) if value.device.type != "meta" and value.dim() > 0]
        is_moved = "_to_copy" in str(func) and given and given[0].device != found[0].device
        masks = (
            [index for index in args[1] if index is not None and index.dtype == torch.bool]
            if (str(func).startswith("aten.index") and isinstance(args[1], (list, tuple)))
            else []
        )
        if foreign or is_moved or masks or str(func).startswith(FORBIDDEN):
            raise HostReadError(f"{func} cannot be captured")
        return result


@pytest.mark.parametrize(
    "operation",
    [
        lambda tensor: tensor + torch.tensor([1, 2]).to("meta"),
        lambda tensor: tensor + torch.tensor(1).to("meta"),
        lambda tensor: tensor.index_put_((tensor > 0,), tensor[0]),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.to("cpu"),
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.ones(2, dtype=torch.int64) + 1,
    ],
)
def test_the_watch_sees(operation: Callable[[Any], Any]) -> None:
    tensor = torch.zeros(2, dtype=torch.int64, device="meta")
    with Watch():
        assert (tensor + 1).device.type == "meta"
    with pytest.raises((HostReadError, NotImplementedError, RuntimeError)), no_host_reads(), Watch():
        operation(tensor)


@pytest.mark.parametrize("kind", ["none", "null", "ngram", "scripted", "draft", "eagle"])
def test_a_step_is_enqueued_on_the_device_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without content: whatever came from the host, or was read there, would be seen."""

    def to_meta(arrays: Any, device: Any) -> list[Any]:
        return [torch.from_numpy(array).to("meta") for array in arrays]

    num_drafts = 0 if kind == "none" else 3
    on_host = world(kind, num_drafts, graphed=False, max_num_seqs=4)
    steps = steps_of(on_host)
    monkeypatch.setattr(static_step, "to_device", to_meta)
    monkeypatch.setattr(runner, "to_device", to_meta)
    model = on_meta(decoder())
    one = drafter_on_meta(kind, num_drafts)
    config = on_host.config
    cache = KVCache(2, config.num_blocks, config.block_size, 2, 8, device="meta")
    if one is not None:
        one.prepare(config.num_blocks, config.block_size, model, GatherAttention)
    tested = runner.Runner(model, cache, config, one)
    num_tested = 0
    for sampling in PARAMETERS.values():
        rows = build_rows(sampling[:3], [1, 2, 3], [9, 9, 9], vocab_size=VOCAB_SIZE)
        tensors = {name: value for name, value in vars(rows).items() if isinstance(value, torch.Tensor)}
        rows = replace(rows, **{name: value.to("meta") for name, value in tensors.items()})
        for step in steps:
            with torch.inference_mode():
                key = static_step.key_of(tested, step, rows)
                if step.num_rows != 3 or key is None:
                    continue
                static = static_step.StaticStep(tested, step, rows, key)
                static.put(step, rows)
                static.run()  # what is allocated at first use
                with no_host_reads(), Watch() as watch:
                    tensors = static.run()
            assert watch.num_calls > 100
            assert all(tensor.device.type == "meta" for tensor in tensors.values())
            num_tested += 1
            break
    assert num_tested == 2


def steps_of(one: LLM) -> list[Any]:
    """What the device is told while it generates."""
    steps: list[Any] = []
    launch = one.engine.runner.launch

    def watched(step: Any) -> Any:
        steps.append(step)
        return launch(step)

    one.engine.runner.launch = watched
    one.generate(prompts()[:3], PARAMETERS["greedy"][:3])
    return steps


def on_meta(original: Decoder) -> Decoder:
    weights = random_weights(shape(), 3)
    assert original.shape == shape()
    return Decoder(shape(), {name: tensor.to("meta") for name, tensor in weights.items()})


def drafter_on_meta(kind: str, num_drafts: int) -> Any:
    if kind == "draft":
        return DraftModelDrafter(on_meta(decoder()), num_drafts)
    if kind == "eagle":
        head = EagleHead.random(shape(), 4, torch.float32, "cpu")
        weights = {name: tensor.to("meta") for name, tensor in head.weights.items()}
        return EagleDrafter(EagleHead(head.shape, weights), num_drafts)
    return drafter_of(drafter(kind, num_drafts, texts()))
