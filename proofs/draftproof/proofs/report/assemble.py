"""What the page shows, gathered: the run, the stories of the faults, and what must be believed."""

from __future__ import annotations

import datetime
import importlib.metadata
from typing import Any

from draftproof.proofs import scheduler_loops
from draftproof.proofs.faults import all_faults
from draftproof.proofs.faults.story import has_pin, tell
from draftproof.proofs.results import Run, summary

SOLVERS = "The solvers z3 and cvc5, which must agree, and the term builder that they share."
ONE_SOLVER = (
    "The solvers z3 and cvc5, which must agree, and the term builder that they share; about the block pool "
    "z3 alone (`draftproof prove --full` asks cvc5 about it as well)."
)

TRUSTED = (
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
        "bound": "block size 2 (or the report's own), at most three drafts, a few events deep",
    },
    {
        "what": "reachable witnesses of every antecedent",
        "bound": "exact runs with prompts of 1 to 3 tokens, two drafts, a fence of 0 or 1, at most 9 tokens",
    },
    {
        "what": "the ghosts against the token-level reference, in the tests",
        "bound": "every run of at most 5 tokens and 2 or 3 steps in flight, and random longer ones",
    },
    *scheduler_loops.explored(),
    {
        "what": "every state of tiny block pools, on the compiled functions, in the tests",
        "bound": "up to three blocks of two tokens, at most two requests, and the first tens of thousands of "
        "states of a larger pool",
    },
)


def assemble(run: Run) -> dict[str, Any]:
    """The data of the page; everything in it is plain."""
    shown = summary(run)
    return {
        "generated": datetime.date.today().isoformat(),
        "version": importlib.metadata.version("draftproof"),
        "prove": {**shown, "explored": list(EXPLORED)},
        "stories": [tell(fault.name, pinned=has_pin(fault.name)) for fault in all_faults()],
        "trusted": [ONE_SOLVER if shown["obligations"]["by_z3_alone"]["total"] else SOLVERS, *TRUSTED],
    }
