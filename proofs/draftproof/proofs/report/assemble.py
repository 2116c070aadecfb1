"""What the page shows, gathered: the run, the stories of the faults, and what must be believed."""

from __future__ import annotations

import datetime
import importlib.metadata
from typing import Any

from draftproof.proofs.faults import all_faults
from draftproof.proofs.faults.story import has_pin, tell
from draftproof.proofs.results import Run, summary

TRUSTED = (
    "The solvers z3 and cvc5, which must agree, and the term builder that they share.",
    "The carriers: that where, both and the like mean the same on integers, terms, columns and tensors.",
    "Numba, LLVM and torch's integer kernels.",
    "The device: outputs arrive in the order of dispatch, steps of a request run in order, acceptance is "
    "reported truthfully, preempted steps write no block that was given back, hits are what they say.",
    "The keyed digest by which blocks are found does not collide over ancestors.",
    "The mapping from another engine's fields to these events, when one is attached.",
)

EXPLORED = (
    {
        "what": "shortest traces of the faults",
        "bound": "fixed block size, a few events deep: no shorter trace within the search's limits",
    },
    {
        "what": "equality of the running bytecode with the textbook versions",
        "bound": "CrossHair: confirmed over all paths, which is its word and not a proof",
    },
    {
        "what": "witnesses of antecedents",
        "bound": "an exact walk over small prompts and two drafts; what it reaches is a fact",
    },
)


def assemble(run: Run) -> dict[str, Any]:
    """The data of the page; everything in it is plain."""
    return {
        "generated": datetime.date.today().isoformat(),
        "version": importlib.metadata.version("draftproof"),
        "prove": {**summary(run), "explored": list(EXPLORED)},
        "stories": [tell(fault.name, pinned=has_pin(fault.name)) for fault in all_faults()],
        "trusted": list(TRUSTED),
    }
