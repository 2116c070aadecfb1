"""What is remembered about one request, and about one step that has been dispatched."""

from __future__ import annotations

from typing import Any, NamedTuple


class Watched:
    """A request under watch."""

    __slots__ = ("digests", "judged", "life", "request", "request_id", "row", "start_digest", "table")

    def __init__(self, request: Any, row: int) -> None:
        self.request_id: str = request.request_id
        self.request = request
        self.row = row
        """In the reference ledgers; -1 once it has left."""
        self.judged = True
        """False after its first wrong counter: what follows from that is not told as news."""
        self.table: list[Any] = []
        """The blocks it holds, as far as the messages told."""
        self.digests: list[int] = []
        """By position: the chained digest of the known tokens up to and with it."""
        self.start_digest = 0
        self.life: Life | None = None


class Life:
    """One admission of a request: what the device knows of it."""

    __slots__ = ("digest", "num_device_tokens", "num_verified", "over", "table", "token_id")

    def __init__(
        self, table: list[Any], num_device_tokens: int, digest: int, token_id: int, num_verified: int
    ) -> None:
        self.table = table
        self.num_device_tokens = num_device_tokens
        """Length of the device's own sequence: the host's, and what a stop has cut off on the host."""
        self.digest = digest
        """Of that sequence."""
        self.token_id = token_id
        """Its last token."""
        self.num_verified = num_verified
        """Leading slots that were seen to hold what they must."""
        self.over = False
        """Preempted, between turns or gone: its steps in flight compute nothing for the present one."""


class Chunk(NamedTuple):
    """A prefill step's part of a request: where it starts to write, and what."""

    start: int
    digests: list[int]
    token_ids: list[int]


class Dispatched(NamedTuple):
    """A step on its way. Columns are int64 or bool, one entry a request."""

    output: Any
    """The engine's own object, by which the step is known when it returns."""
    watched: list[Watched]
    num_tokens: Any
    num_drafts: Any
    samples: Any
    lives: list[Life | None]
    """With content checks only."""
    chunks: dict[int, Chunk]
    """By place, for prefill steps: with content checks only."""
