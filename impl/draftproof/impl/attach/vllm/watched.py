"""What is remembered about one request, and about one step that has been dispatched."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.impl.attach.vllm.ledgers import Ledgers


class Watched:
    """A request under watch."""

    __slots__ = (
        "_judged",
        "_ledgers",
        "digests",
        "is_stranger",
        "life",
        "request",
        "request_id",
        "row",
        "start_digest",
        "table",
    )

    def __init__(self, request: Any, row: int, ledgers: Ledgers) -> None:
        self.request_id: str = request.request_id
        self.request = request
        self.row = row
        """In the reference ledgers; -1 once it has left."""
        self._ledgers = ledgers
        self._judged = True
        self.is_stranger = False
        """Whether its beginning was not seen."""
        self.table: list[Any] = []
        """The blocks it holds, as far as the messages told."""
        self.digests: list[int] = []
        """By position: the chained digest of the known tokens up to and with it."""
        self.start_digest = 0
        self.life: Life | None = None

    @property
    def judged(self) -> bool:
        """False after its first wrong counter: what follows from that is not told as news."""
        return bool(self._ledgers.judged[self.row]) if self.row >= 0 else self._judged

    @judged.setter
    def judged(self, value: bool) -> None:
        self._judged = value
        if self.row >= 0:
            self._ledgers.judged[self.row] = value

    def leave(self) -> None:
        """It has left: its row may become somebody else's."""
        self._judged, self.row = self.judged, -1


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


class Party(NamedTuple):
    """The requests of a step, in its order. The next step often has the same: then it is kept."""

    generation: int
    """Of `Accounts`, when it was put together: rows are right as long as that is the present one."""
    request_ids: list[str]
    watched: list[Watched]
    requests: list[Any]
    rows: Any
    """int64[n]"""


class Dispatched(NamedTuple):
    """A step on its way."""

    output: Any
    """The engine's own object, by which the step is known when it returns."""
    party: Party
    work: Any
    """What was dispatched, int64[WIDTH, n]: the lines of `kernel`."""
    lives: list[Life | None]
    """With content checks only."""
    chunks: dict[int, Chunk]
    """By place, for prefill steps: with content checks only."""
