"""How is a matrix multiplied with a few rows? On x86 CPUs by oneDNN, which wants it packed in its own order.

A decode step multiplies every matrix with 1 to some tens of rows: so few that reading the matrix is most of
the work. `torch.nn.functional.linear` reads it well for one row of float32; for several rows MKL is far from
the memory's speed, and for bfloat16 oneDNN would bring it into its own order anew in every call. Packed once,
it is 1.3 to 2 times faster. In float32 the packed copy is kept beside the matrix, so it doubles the memory.

The packed product sums in another order: equal within rounding, as the products of other row counts are.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch.nn import functional

PACKED_FOR = 64
"""Rows that oneDNN is told to expect; others work as well."""
FEW_ROWS, MANY_ROWS = 3, 128
"""In float32, up to so few rows and from so many on MKL's product of the plain matrix is the faster one."""


class Matrix:
    """A matrix `[outputs, inputs]` of fixed content with its bias, packed where that pays."""

    def __init__(self, weight: Any, bias: Any | None = None) -> None:
        self.bias = bias
        self.packed = _packed(weight)
        # What is always multiplied packed need not be kept as it was.
        self.weight: Any = None if self.packed is not None and weight.dtype != torch.float32 else weight

    def product(self, rows: Any) -> Any:
        """`[R, outputs]` from `[R, inputs]`, both in the matrix's dtype."""
        if self.packed is not None and (self.weight is None or FEW_ROWS < len(rows) < MANY_ROWS):
            return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return functional.linear(rows, self.weight, self.bias)


def product(rows: Any, matrix: Any) -> Any:
    """`[R, outputs]` from `[R, inputs]` and a `Matrix`, or a tensor `[outputs, inputs]`."""
    return matrix.product(rows) if isinstance(matrix, Matrix) else functional.linear(rows, matrix)


def _packed(weight: Any) -> Any | None:
    """The packed copy; None where there is no such product, or gradients are wanted, which it has not."""
    if weight.device.type != "cpu" or weight.requires_grad or not _has_packed_product(weight.dtype):
        return None
    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)


def _has_packed_product(dtype: Any) -> bool:
    mkldnn: Any = torch.backends.mkldnn
    if platform.machine() not in ("x86_64", "AMD64") or not mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(dtype == torch.float32)
