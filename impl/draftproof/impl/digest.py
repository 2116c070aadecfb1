"""By what is a block known? A keyed 128-bit digest of its tokens and of the digest of all before them.

The function is SipHash-2-4 with 128 bits of output (Aumasson and Bernstein 2012; reference code and vectors:
github.com/veorq/SipHash), over 16 bytes of parent digest followed by the tokens as 32-bit words, all little
endian. Keyed with a secret, nobody can prepare two prompts that collide. A digest is two int64 words.

The source is integer arithmetic modulo 2**64. Interpreted, `unsigned` cuts Python integers to 64 bits;
compiled, it is a conversion to uint64 and the cut costs nothing (`draftproof.impl.compiled_pool`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

MASK = 0xFFFFFFFFFFFFFFFF
TOKEN_MASK = 0xFFFFFFFF

Words = tuple[Any, Any, Any, Any]


class Digest(NamedTuple):
    """128 bits as two signed words."""

    first: int
    second: int


NO_PARENT = Digest(0, 0)
"""The parent of a sequence's first block."""


def unsigned(value: int) -> int:
    """The value modulo 2**64."""
    return int(value) & MASK


def signed(value: int) -> int:
    """The same 64 bits as a signed number."""
    return value - (MASK + 1) if value > MASK >> 1 else value


def rotated(word: Any, bits: int) -> Any:
    """The word rotated to the left."""
    return unsigned(word << unsigned(bits)) | (word >> unsigned(64 - bits))


def sip_round(v0: Any, v1: Any, v2: Any, v3: Any) -> Words:
    """One SipRound."""
    v0 = unsigned(v0 + v1)
    v1 = rotated(v1, 13) ^ v0
    v0 = rotated(v0, 32)
    v2 = unsigned(v2 + v3)
    v3 = rotated(v3, 16) ^ v2
    v0 = unsigned(v0 + v3)
    v3 = rotated(v3, 21) ^ v0
    v2 = unsigned(v2 + v1)
    v1 = rotated(v1, 17) ^ v2
    v2 = rotated(v2, 32)
    return v0, v1, v2, v3


def absorbed(v0: Any, v1: Any, v2: Any, v3: Any, word: Any) -> Words:
    """The state after one more word: two rounds."""
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3 ^ word)
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


def finalised(v0: Any, v1: Any, v2: Any, v3: Any) -> Words:
    """The state after four more rounds."""
    for _ in range(4):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return v0, v1, v2, v3


def block_digest(
    key_first: int, key_second: int, parent_first: int, parent_second: int, tokens: Any, num_tokens: int
) -> tuple[int, int]:
    """The digest of the first `num_tokens` tokens after a parent. Tokens are below 2**32; words are int64."""
    key0, key1 = unsigned(key_first), unsigned(key_second)
    v0 = key0 ^ unsigned(0x736F6D6570736575)
    v1 = key1 ^ unsigned(0x646F72616E646F6D) ^ unsigned(0xEE)
    v2 = key0 ^ unsigned(0x6C7967656E657261)
    v3 = key1 ^ unsigned(0x7465646279746573)
    v0, v1, v2, v3 = absorbed(v0, v1, v2, v3, unsigned(parent_first))
    v0, v1, v2, v3 = absorbed(v0, v1, v2, v3, unsigned(parent_second))
    token_mask = unsigned(TOKEN_MASK)
    for offset in range(0, num_tokens - 1, 2):
        low = unsigned(tokens[offset]) & token_mask
        high = unsigned(tokens[offset + 1]) & token_mask
        v0, v1, v2, v3 = absorbed(v0, v1, v2, v3, low | unsigned(high << unsigned(32)))
    last = unsigned(unsigned(16 + 4 * num_tokens) << unsigned(56))  # the message's length modulo 256
    if num_tokens % 2 == 1:
        last = last | (unsigned(tokens[num_tokens - 1]) & token_mask)
    v0, v1, v2, v3 = absorbed(v0, v1, v2, v3, last)
    v0, v1, v2, v3 = finalised(v0, v1, v2 ^ unsigned(0xEE), v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = finalised(v0, v1 ^ unsigned(0xDD), v2, v3)
    return signed(first), signed(v0 ^ v1 ^ v2 ^ v3)
