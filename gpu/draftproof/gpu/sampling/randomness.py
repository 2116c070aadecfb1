"""Which random number decides what? One per (seed, position, purpose), computed where it is needed.

There is no state to advance: the number is a function of the request's seed, of the position of the token
that it decides, and of what it decides. So a request's samples do not depend on the batch, on the device, on
how many drafts were verified with them, or on a preemption in between.

The function is Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2,
3"; the reference implementation is Random123): key = the 64 bits of the seed, counter = the 64 bits of the
position, the purpose, 0. Different arguments are different (key, counter) pairs, so nothing is used twice.
Its 32-bit words are held in int64, where torch's products keep all 64 bits of 32 x 32.
"""

from __future__ import annotations

from typing import Any

import torch

ACCEPT, SAMPLE, CORRECT, DRAFT = range(4)
"""Purposes: whether a draft is accepted; a token from the target distribution; the token that replaces a
rejected draft; a token that a draft model proposes. Acceptance and correction must be independent, or the
correction would be drawn only from the numbers that reject."""

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
"""What is added to the two words of the key in each round."""
WORD = 0xFFFFFFFF


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10: four random words for each counter and key. Words are int64 tensors of 0 to 2**32 - 1,
    of shapes that can be broadcast to one."""
    word_0, word_1, word_2, word_3 = counter
    for number in range(ROUNDS):
        product_0, product_2 = word_0 * MULTIPLIERS[0], word_2 * MULTIPLIERS[1]
        key_0, key_1 = (key[0] + number * WEYL[0]) & WORD, (key[1] + number * WEYL[1]) & WORD
        # `>>` keeps the sign of a product of 2**63 or more; the mask takes it off again.
        word_0, word_1, word_2, word_3 = (
            ((product_2 >> 32) & WORD) ^ word_1 ^ key_0,
            product_2 & WORD,
            ((product_0 >> 32) & WORD) ^ word_3 ^ key_1,
            product_0 & WORD,
        )
    return word_0, word_1, word_2, word_3


def uniform(seeds: Any, positions: Any, purpose: int) -> Any:
    """A number strictly between 0 and 1 for each seed and position: float64, an odd multiple of 2**-53.

    `seeds`, `positions`: int64 tensors on one device that can be broadcast to one shape, the result's.
    """
    if seeds.dtype != torch.int64 or positions.dtype != torch.int64:
        raise TypeError(f"seeds and positions must be int64, got {seeds.dtype} and {positions.dtype}")
    words = torch.full_like(positions, purpose), torch.zeros_like(positions)
    counter = positions & WORD, (positions >> 32) & WORD, *words
    high, low, _, _ = philox(counter, (seeds & WORD, (seeds >> 32) & WORD))
    bits = (high << 20) | (low >> 12)  # 52 of them: half a unit more is still exact, so 1.0 is not reached
    return (bits.to(torch.float64) + 0.5) * 2.0**-52
