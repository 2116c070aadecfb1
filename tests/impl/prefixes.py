"""Which token sequence is it? Sequences as numbers: equal ones are equal numbers, no two others ever are."""

from __future__ import annotations

EMPTY = -1
"""The KV of no sequence."""


class Prefixes:
    """Each sequence is known by the sequence before its last token, and that token."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int | str], int] = {}
        self._parts: list[tuple[int, int | str]] = []

    def root(self, salt: str) -> int:
        """The sequence without a token. Requests with different salts share nothing, so theirs differ."""
        return self._number(EMPTY, salt)

    def after(self, prefix: int, token: int) -> int:
        """The sequence with one token more."""
        return self._number(prefix, token)

    def path(self, prefix: int) -> list[int]:
        """The sequences of its first one, two, ... tokens, itself last."""
        path: list[int] = []
        while self._parts[prefix][0] != EMPTY:
            path.append(prefix)
            prefix = self._parts[prefix][0]
        return path[::-1]

    def tokens(self, prefix: int) -> list[int]:
        """The tokens of a sequence."""
        return [int(self._parts[one][1]) for one in self.path(prefix)]

    def salt(self, prefix: int) -> str:
        """The salt that a sequence begins with."""
        while self._parts[prefix][0] != EMPTY:
            prefix = self._parts[prefix][0]
        return str(self._parts[prefix][1])

    def words(self, prefix: int) -> str:
        """For messages."""
        return "nothing" if prefix == EMPTY else str(self.tokens(prefix))

    def _number(self, prefix: int, token: int | str) -> int:
        key = (prefix, token)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._parts)
            self._parts.append(key)
        return number
