"""The block pool, proved from its own source (P1 to P7 and memory safety): all its claims in one place.

No number is fixed: blocks, chains, owners and block size are symbolic. The obligations are free of
quantifiers but for the row loop's, so z3 decides each in a fraction of a second; cvc5 decides them too, in
several times as long. What stands in between source and claim: three functions are replaced by contracts
that are proved about their own source (`pool_rows`), and the ghosts are the specification's.
"""

from __future__ import annotations

from typing import Any

from draftproof.proofs import pool_bounded, pool_mutants, pool_proof, pool_rows, pool_search
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation


def obligations() -> list[Obligation]:
    """The base case, every primitive, the search and the small pieces."""
    return [*pool_rows.obligations(), *pool_proof.obligations(), *pool_search.obligations()]


def controls() -> list[Control]:
    """Faults of the running source that must be refuted."""
    return pool_mutants.controls()


def witnesses() -> dict[str, dict[str, Any]]:
    """Small pools in which the hypotheses hold, and states worth showing."""
    return pool_bounded.witnesses()
