"""Names a user may type: theorems and faults. A wrong one gets the nearest right ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from draftproof.impl.cli import UserError
from draftproof.proofs.results import TEXTS


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not there: the nearest ones, exit status 2."""
    choices = list(known)
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {len(choices)}"
    return UserError(f"there is no {kind} called {name!r}{hint} (list them with `draftproof {kind}s`)", 2)


def theorem(name: str) -> str:
    """The theorem's key, in whatever case it was typed."""
    for key in TEXTS:
        if key.lower() == name.lower():
            return key
    raise unknown("theorem", name, TEXTS)
