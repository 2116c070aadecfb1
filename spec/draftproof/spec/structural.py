"""What do T8 to T11 say? Predicates about two ledgers, two orders, slots and machine integers.

They are about more than one step of one request, so they have set-ups of their own in the proofs
(`draftproof.proofs`: `sessions`, `commutation`, `capacity`, `integers`), which use the predicates here.
"""

from __future__ import annotations

from draftproof.spec.algebra import all_of, both
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import Ledger

INT32_LIMIT = 2**31


def equal(first: Ledger | Ghosts, second: Ledger | Ghosts, fields: tuple[str, ...]) -> bool:
    """Two records agree on the named fields."""
    return all_of(*[getattr(first, field) == getattr(second, field) for field in fields])


def turns_end_equal(first: Ledger, second: Ledger) -> bool:
    """T8: the two ledgers agree on (N, C, P, D, T, E, L, R)."""
    return equal(
        first,
        second,
        (
            "num_tokens",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_draft_tokens",
            "num_trimmed_tokens",
            "stop_pending",
            "num_prompt_tokens",
            "num_registered_tokens",
        ),
    )


def orders_agree(host: State, device: State) -> bool:
    """T9: host and device agree on every field but R, and on what is really so."""
    fields = tuple(field for field in Ledger._fields if field != "num_registered_tokens")
    return both(equal(host.ledger, device.ledger, fields), equal(host.ghosts, device.ghosts, Ghosts._fields))


def registered_between(host: Ledger, device: Ledger, low: int, high: int) -> bool:
    """T9: low <= R_host <= R_device <= high."""
    on_host, on_device = host.num_registered_tokens, device.num_registered_tokens
    return all_of(low <= on_host, on_host <= on_device, on_device <= high)


def writes_within_reservation(first_slot: int, num_tokens: int, num_reserved_slots: int) -> bool:
    """T10: a step that writes one slot per token from `first_slot` on stays below what is reserved."""
    return first_slot + num_tokens <= num_reserved_slots


def writes_above(first_slot: int, num_kept_tokens: int) -> bool:
    """T10: a step that still writes leaves the positions below `num_kept_tokens` alone."""
    return first_slot >= num_kept_tokens


def fits_in_32_bits(number: int) -> bool:
    """T11: a signed 32-bit integer."""
    return both(number >= -INT32_LIMIT, number < INT32_LIMIT)
