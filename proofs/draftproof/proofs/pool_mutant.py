"""A fault of the pool: which text is changed, and which claim must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """One replacement in the text of one function (as `ast.unparse` prints it)."""

    function: str
    before: str
    after: str


class PoolMutant(NamedTuple):
    """A fault. `subject` is the primitive whose claims are asked, `look_up`, or a piece of `pool_rows`."""

    name: str
    subject: str
    claim: str
    """The claim about the subject that must be refuted, whichever others are."""
    changes: tuple[Change, ...]

    @property
    def refuted_by(self) -> str:
        """The obligation's full name."""
        return f"pool/{self.subject}/{self.claim}"


def one_change(
    name: str, subject: str, claim: str, before: str, after: str, function: str = ""
) -> PoolMutant:
    """A fault of one replacement, by default in the subject itself."""
    return PoolMutant(name, subject, claim, (Change(function or subject, before, after),))
