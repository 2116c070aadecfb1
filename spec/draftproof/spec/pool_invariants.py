"""What holds in every state of the pool? All invariants by name, and their layers.

The layers are owners, the count of free blocks, the free list, the index, and the content. A layer's proofs
use its own invariants and a few of the layers below it.
"""

from __future__ import annotations

from draftproof.spec.pool_free_list import FREE_LIST_INVARIANTS, Invariant
from draftproof.spec.pool_index import INDEX_INVARIANTS

INVARIANTS: dict[str, Invariant] = FREE_LIST_INVARIANTS | INDEX_INVARIANTS

LAYERS: dict[str, tuple[str, ...]] = {
    "owners": ("owner_is_counted", "count_is_owned"),
    "free_count": ("free_is_counted", "counted_is_free", "free_count_is_not_negative"),
    "free_list": (
        "null_block_stays_out",
        "free_list_is_a_ring",
        "links_are_in_range",
        "stamps_differ",
        "stamps_are_bounded",
        "stamps_ascend",
        "no_stamp_is_skipped",
        "free_list_has_ends",
    ),
    "index": (
        "chains_are_rings",
        "publications_are_counted",
        "serials_are_bounded",
        "serials_differ",
        "serials_descend",
        "no_serial_is_skipped",
        "chain_starts_with_the_newest",
    ),
    "content": ("rows_hold_their_tokens", "digest_is_of_the_content", "tokens_are_of_the_content"),
}
"""Every invariant belongs to one layer."""
