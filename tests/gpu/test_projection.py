"""Is a packed product the plain one, for every number of rows, and are norms those of torch?"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional  # noqa: E402

from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.projection import FEW_ROWS, MANY_ROWS, Matrix, product  # noqa: E402
from draftproof.gpu.models.shape import ModelShape  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.005}


def drawn(*sizes: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("sizes", [(24, 40), (7, 11), (1, 5)])
def test_a_product_is_that_of_the_plain_matrix(sizes: tuple[int, int], dtype: Any, with_bias: bool) -> None:
    """For as many rows as it was packed for, for fewer, for more, and for none."""
    weight = drawn(*sizes, dtype=dtype)
    bias = drawn(sizes[0], dtype=dtype) if with_bias else None
    matrix = Matrix(weight, bias)
    for count in (0, 1, FEW_ROWS, FEW_ROWS + 1, 16, 17, MANY_ROWS - 1, MANY_ROWS):
        rows = drawn(count, sizes[1], dtype=dtype)
        result = product(rows, matrix)
        assert result.dtype == dtype and result.shape == (count, sizes[0])
        exact = functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(result.double(), exact, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_rows_may_lie_apart() -> None:
    matrix = Matrix(drawn(24, 40))
    rows = drawn(5, 80)[:, ::2]
    torch.testing.assert_close(product(rows, matrix), product(rows.contiguous(), matrix))


def test_a_matrix_that_learns_is_not_packed() -> None:
    weight = drawn(8, 8).requires_grad_()
    product(drawn(4, 8), Matrix(weight)).sum().backward()
    assert weight.grad is not None and bool(weight.grad.any())


def test_logits_follow_a_head_that_is_exchanged() -> None:
    decoder = Decoder(small(), random_weights(small(), seed=1))
    hidden = drawn(4, 32)
    torch.testing.assert_close(decoder.logits(hidden), functional.linear(hidden, decoder.head))
    decoder.head = drawn(50, 32)
    torch.testing.assert_close(decoder.logits(hidden), functional.linear(hidden, decoder.head))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_norms_are_those_of_torch(dtype: Any) -> None:
    decoder = Decoder(small(), random_weights(small(), seed=1))
    for hidden in (
        drawn(3, 32, dtype=dtype),
        drawn(3, 4, 32, dtype=dtype) * 50,
        torch.zeros(1, 32, dtype=dtype),
    ):
        for weight in (drawn(32, dtype=dtype), None):
            expected = functional.rms_norm(
                hidden.double(), (32,), None if weight is None else weight.double(), 1e-5
            )
            result = decoder._norm(hidden, weight)
            assert result.dtype == dtype
            torch.testing.assert_close(
                result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
            )


def small() -> ModelShape:
    return ModelShape(
        family="llama", vocab_size=50, hidden_size=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8,
        intermediate_size=48, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
        max_position_embeddings=64, tie_word_embeddings=False, attention_bias=False, qk_norm=False,
        eos_token_ids=(), bos_token_id=None,
    )  # fmt: skip
