"""What comes out of a trace file? A header, chunks of records, what else they tell, and damages."""

from __future__ import annotations

from typing import NamedTuple

from draftproof.impl.traces.columns import Chunk
from draftproof.impl.traces.format import Continued, End, Header, RequestRecord, Violation


class Damage(NamedTuple):
    """Something in a file that cannot be read, or that shows that something is missing."""

    kind: str
    sentence: str
    place: str = ""
    """`FILE, line 12` or the like."""
    num_alike: int = 1
    """So many such damages it stands for."""


class Named(NamedTuple):
    """What else the next chunk tells: what does not fit into its columns. It comes before the chunk."""

    records: list[tuple[int, RequestRecord]]
    """Records with a name or tokens, each with its row."""
    remarks: list[tuple[int, Violation]]
    """A live checker's remarks, each with its row."""
    end: End | Continued | None
    is_covered: bool = True
    """Whether a checksum stands between the last record and the end."""


Part = Header | Chunk | Damage | Named
"""What a reader yields."""
