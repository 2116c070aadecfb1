"""What would a CUDA graph do with a step? The same here: operators are recorded, and repeated without Python.

A capture leaves no trace but the record. A replay repeats the operators on the same memory, whatever Python
objects have become since; so what is not on the device stays as it was at the capture.
"""

# torch's dispatch modes have no types.

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.gpu.host_reads import HostReadError, no_host_reads
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

FORBIDDEN = (
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.lift_fresh", "aten._pin_memory",
    "aten.unique",
)  # fmt: skip
"""What a capture does not allow: it waits for the device, or brings something from the host."""


def storage_of(tensor: Any) -> int:
    """Where its memory begins; 0 for a packed matrix, which nobody writes."""
    return 0 if tensor.is_mkldnn else int(tensor.untyped_storage().data_ptr())


class Recorder(TorchDispatchMode):
    """Operators as they come, and what they change, to be put back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []
        self.before: dict[int, tuple[Any, Any]] = {}
        self._own: set[int] = set()
        """Memory that the step itself has taken."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A number as a tensor of no dimension is an argument of a kernel.
        is_number = str(func).startswith("aten.lift_fresh") and args[0].dim() == 0
        if str(func).startswith(FORBIDDEN) and not is_number:
            raise HostReadError(f"{func} cannot be captured")
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if func._schema.is_mutable:
            for value in given:
                self._keep(value)
        result = func(*args, **kwargs)
        known = {storage_of(value) for value in given}
        results = [value for value in tree_flatten(result)[0] if isinstance(value, torch.Tensor)]
        fresh = [value if storage_of(value) not in known else None for value in results]
        self._own |= {storage_of(value) for value in fresh if value is not None}
        if func._schema.is_mutable or any(value is not None for value in fresh):
            self.calls.append((func, args, kwargs, fresh))
        return result

    def _keep(self, tensor: Any) -> None:
        storage = storage_of(tensor)
        if storage not in self._own and storage not in self.before:
            whole = tensor.untyped_storage()
            self.before[storage] = whole, whole.clone()

    def restore(self) -> None:
        for storage, content in self.before.values():
            storage.copy_(content)


class StandIn:
    """In place of `CudaCapture`."""

    def __init__(self) -> None:
        self.num_warm_ups = self.num_captures = 0

    def warm_up(self, body: Callable[[], Any]) -> Any:
        self.num_warm_ups += 1
        with no_host_reads():
            return body()

    def capture(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.num_captures += 1
        recorder = Recorder()
        with no_host_reads(), recorder:
            tensors = body()
        recorder.restore()
        for tensor in tensors.values():  # nothing has been computed yet
            tensor.fill_(1 if tensor.dtype == torch.bool else 99)

        def replay() -> None:
            for func, args, kwargs, targets in recorder.calls:
                results = tree_flatten(func(*args, **kwargs))[0]
                found = [value for value in results if isinstance(value, torch.Tensor)]
                for target, value in zip(targets, found, strict=True):
                    if target is not None:
                        target.copy_(value)

        return replay, tensors
