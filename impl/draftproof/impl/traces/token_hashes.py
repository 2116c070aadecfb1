"""What stands for a token in a trace that holds no text? A keyed hash of all tokens up to it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable


class TokenHashes:
    """Hashes in place of tokens: each is of all tokens up to it, under a salt that is nowhere written down.

    Equal beginnings have equal hashes within one recording, or between recordings that are given the same
    salt, so that `draftproof diff` finds where two texts part. Single tokens cannot be guessed from them.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(16) if salt is None else salt
        self._last: dict[int, bytes] = {}

    def of(self, request: int, token_ids: Iterable[int], *, starts: bool = False) -> list[str]:
        """The hashes of further tokens of a request."""
        last = b"" if starts else self._last.get(request, b"")
        found = []
        for token_id in token_ids:
            data = last + int(token_id).to_bytes(8, "little", signed=True)
            last = hashlib.blake2b(data, key=self._salt, digest_size=8).digest()
            found.append(last.hex())
        self._last[request] = last
        return found

    def of_name(self, name: str) -> str:
        """The hash of a request's id, which may say who asked."""
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=8).hexdigest()

    def forget(self, request: int) -> None:
        """No more tokens of it will come."""
        self._last.pop(request, None)
