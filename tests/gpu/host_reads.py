"""Does a step wait for the device? Here whatever reads a tensor's value on the host raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

READS = (
    "item",
    "tolist",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "nonzero",
    "numpy",
    "cpu",
    "__iter__",
)


class HostReadError(AssertionError):
    """A value was read inside a step."""


@contextlib.contextmanager
def no_host_reads() -> Iterator[None]:
    """Within it, tensors do not tell their values; on CUDA torch itself refuses whatever waits."""
    tensor: Any = torch.Tensor
    originals = {name: getattr(tensor, name) for name in READS}

    def refusing(name: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise HostReadError(f"Tensor.{name} waits for the device")

        return refuse

    originals["__getitem__"] = tensor.__getitem__

    def getitem(self: Any, index: Any) -> Any:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
                raise HostReadError("a mask as an index waits for the device")
        return originals["__getitem__"](self, index)

    cuda: Any = torch.cuda
    try:
        if cuda.is_available():
            cuda.set_sync_debug_mode("error")
        for name in READS:
            setattr(tensor, name, refusing(name))
        tensor.__getitem__ = getitem
        yield
    finally:
        if cuda.is_available():
            cuda.set_sync_debug_mode("default")
        for name, original in originals.items():
            setattr(tensor, name, original)
