"""The digest is SipHash-2-4 with 128 bits: public vectors, interpreted and compiled alike."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.impl.compiled_pool import compiled_digest
from draftproof.impl.digest import NO_PARENT, block_digest

# github.com/veorq/SipHash, vectors.h, vectors_sip128: key 00 01 .. 0f, message 00 01 .. of the given length.
# These are the lengths that a parent of 16 bytes followed by tokens of 4 bytes can have.
VECTORS = {
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    20: "9e25fc833f2290733e9344a5e83839eb",
    24: "2db479ae78bd50d8882a8a178a6132ad",
    28: "0664da1668574b88b935f3027358aef4",
    32: "7c3956ca5eeafc3e363e9d556546eb68",
    36: "3dc47d1f29c448461e9e76ed904f6711",
    40: "df6a301e95c95dad97ae0cc8c6913bd8",
    56: "1938f2cf72d54ee97e94166fa91d2a36",
    60: "e3040c00eb28f15366ca73cbd872e740",
}
WORDS = st.integers(-(2**63), 2**63 - 1)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@pytest.mark.parametrize("length", VECTORS)
@pytest.mark.parametrize("carrier", ["interpreted", "compiled"])
def test_public_vectors(carrier: str, length: int) -> None:
    digest: Any = block_digest if carrier == "interpreted" else compiled_digest()
    key = struct.unpack("<qq", bytes(range(16)))
    message = bytes(range(length))
    parent, tokens = struct.unpack("<qq", message[:16]), np.frombuffer(message[16:], np.int32)
    assert struct.pack("<qq", *digest(*key, *parent, tokens, len(tokens))).hex() == VECTORS[length]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(WORDS, WORDS, WORDS, WORDS, TOKENS)
def test_compiled_and_interpreted_digests_are_equal(
    first: int, second: int, parent_first: int, parent_second: int, tokens: list[int]
) -> None:
    array = np.array(tokens, np.int32)
    expected = block_digest(first, second, parent_first, parent_second, tokens, len(tokens))
    assert block_digest(first, second, parent_first, parent_second, array, len(tokens)) == expected
    assert compiled_digest()(first, second, parent_first, parent_second, array, len(tokens)) == expected


def test_every_input_matters() -> None:
    tokens = [5, 6, 7]
    digests = {
        block_digest(1, 2, *NO_PARENT, tokens, 3),
        block_digest(1, 3, *NO_PARENT, tokens, 3),
        block_digest(0, 2, *NO_PARENT, tokens, 3),
        block_digest(1, 2, 1, 0, tokens, 3),
        block_digest(1, 2, 0, 1, tokens, 3),
        block_digest(1, 2, *NO_PARENT, tokens, 2),
        block_digest(1, 2, *NO_PARENT, [5, 6, 8], 3),
        block_digest(1, 2, *NO_PARENT, [6, 5, 7], 3),
    }
    assert len(digests) == 8
