"""When is the KV in a slot the KV of a token? The lemmas that let one position stand for all. (R2)

The identity of a token in its context is a digest of its predecessor's identity and itself. Everything
that the pointwise model takes for granted about identities follows by induction over positions; each
step of those inductions is an obligation. Only "differs" needs that the digest has no collisions.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.proofs.controls import Control
from draftproof.proofs.device import ASSUMPTIONS
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import function, integers

Facts = dict[str, Any]

DIGEST = function("digest", 2)
PARENT_OF = function("parent_of", 1)
TOKEN_OF = function("token_of", 1)


def _lemmas(*, injective: bool) -> list[Obligation]:
    """Two sequences, the device's true one and another, at one position and the one before it."""
    parent, token = integers("parent token")
    true_before, true_token, other_before, other_token = integers(
        "true_before true_token other_before other_token"
    )
    true, other = DIGEST(true_before, true_token), DIGEST(other_before, other_token)
    facts: Facts = {}
    if injective:
        facts["digest_has_no_collisions"] = z3.ForAll(
            [parent, token],
            z3.And(PARENT_OF(DIGEST(parent, token)) == parent, TOKEN_OF(DIGEST(parent, token)) == token),
            patterns=[DIGEST(parent, token)],
        )
    same_context = true_before == other_before
    lemmas: dict[str, tuple[Facts, Any]] = {
        # An accepted draft, and a token that the host appends at the device's own length, are true ones.
        "same_token_in_same_context_is_equal": (
            {"same_context": same_context, "same_token": true_token == other_token},
            true == other,
        ),
        "other_token_in_same_context_differs": (
            {"same_context": same_context, "other_token": true_token != other_token},
            true != other,
        ),
        # What follows a rejected draft, or a token that a chunk has replaced, differs to the end.
        "any_token_in_another_context_differs": ({"other_context": z3.Not(same_context)}, true != other),
    }
    return [
        Obligation(f"R2/identity/{name}", "refinement", "R2", facts | own, goal, f"R2/identity/{name}")
        for name, (own, goal) in lemmas.items()
    ]


def obligations() -> list[Obligation]:
    """The lemmas, for any digest without collisions."""
    return _lemmas(injective=True)


def controls() -> list[Control]:
    """With collisions, two contexts may look alike."""
    lemmas = [
        lemma._replace(name=f"R2/control/{lemma.name}")
        for lemma in _lemmas(injective=False)
        if lemma.name.endswith("differs")
    ]
    return [
        Control(
            f"R2/assumption/no_collisions/{lemma.assumption_group.rpartition('/')[2]}",
            f"Dropped: {ASSUMPTIONS['no_collisions'].sentence}",
            "assumption",
            [lemma],
        )
        for lemma in lemmas
    ]


def witnesses() -> dict[str, Facts]:
    """Without the quantifier: the digest without collisions at the only two places the lemmas look at."""
    found = {}
    parents = integers("true_before other_before"), integers("true_token other_token")
    for lemma in _lemmas(injective=False):
        facts = dict(lemma.hypotheses)
        for parent, token in zip(*parents, strict=True):
            facts[f"no_collision_at:{parent}"] = z3.And(
                PARENT_OF(DIGEST(parent, token)) == parent, TOKEN_OF(DIGEST(parent, token)) == token
            )
        found[lemma.assumption_group] = facts
    return found
