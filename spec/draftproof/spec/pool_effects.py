"""What does each primitive of the pool do, and what does it leave alone? All effects by name.

Together the effects of a primitive are complete: two results that satisfy them agree in every cell that
anybody can read (`draftproof.proofs.pool_completeness`).
"""

from __future__ import annotations

from draftproof.spec.pool_content_effects import CONTENT_EFFECTS, Effect
from draftproof.spec.pool_list_effects import LIST_EFFECTS

EFFECTS: dict[str, Effect] = CONTENT_EFFECTS | LIST_EFFECTS
