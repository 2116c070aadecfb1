"""Which text do a request's tokens make, and where does it stop? Token by token, whatever came together.

`TokenStream` turns tokens into characters, and never gives half of one. `OutputText` looks for stop strings
in them: text that may be the beginning of one waits until that is known. Both take linear time.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.gpu.tokenizer import Tokenizer

UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
MAX_STOP_CHARACTERS = 1 << 16  # of all stop strings of a request together; each takes some 200 bytes
MAX_WAITING_TOKENS = 16  # that have no certain text: a character has 4 bytes at most


class TokenStream:
    """Decodes tokens one by one; with BPE on bytes the pieces joined are always the text of all tokens.

    Other tokenizers may write invalid bytes, which no text has, otherwise than they would all at once.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        on_bytes = type(tokenizer.backend.decoder).__name__ == "ByteLevel"
        self._bytes: Any = codecs.getincrementaldecoder("utf-8")("replace") if on_bytes else None
        self._settled: list[int] = []  # decoded before; a decoder may drop a space at the very beginning
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        """The characters that this token completes; may be empty. Raises `ModelError` for what is no id."""
        letters = self._tokenizer.token_of(token_id)
        if letters is None or int(token_id) in self._skipped:
            return ""
        if self._bytes is not None:
            return str(self._bytes.decode(_bytes_of(letters)))
        self._waiting.append(int(token_id))
        text = self._new_text()
        if len(self._waiting) < MAX_WAITING_TOKENS and (not text or text.endswith(UNKNOWN)):
            return ""  # perhaps half of a character
        self._settled, self._waiting = self._waiting, []
        return text

    def finish(self) -> str:
        """What still waits when no token follows: U+FFFD for a character that was cut off."""
        if self._bytes is not None:
            return str(self._bytes.decode(b"", final=True))
        text, self._waiting = self._new_text(), []
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._settled, self._skip_special_tokens)
        whole = self._tokenizer.decode(self._settled + self._waiting, self._skip_special_tokens)
        return whole[len(before) :]


@cache
def byte_of_letter() -> dict[str, int]:
    """What BPE on bytes writes for each byte: itself where it is printable, else a letter from 256 on.

    Source: `bytes_to_unicode` in GPT-2's encoder.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_of(letters: str) -> bytes:
    """As the library's decoder: an added token may have other letters, which stand for themselves."""
    known = byte_of_letter()
    try:
        return bytes([known[letter] for letter in letters])
    except KeyError:
        return letters.encode()


class StopStrings:
    """Finds the first end of any of several strings, one character at a time.

    It is the automaton of Aho and Corasick (1975): a node for each beginning of a string; the current one is
    the longest beginning that the text ends with.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._shorter = [0]  # the next shorter beginning that the text ends with too
        self._found: list[str | None] = [None]  # the longest string that ends here
        self._node = 0
        for string in strings:
            self._add(string)
        self._connect()

    @property
    def num_begun(self) -> int:
        """How many characters at the end of the text may belong to a string that ends later."""
        return self._depth[self._node]

    def push(self, character: str) -> str | None:
        """The longest string that ends with this character, if any does."""
        self._node = self._next(self._node, character)
        return self._found[self._node]

    def _next(self, node: int, character: str) -> int:
        while node and character not in self._children[node]:
            node = self._shorter[node]
        return self._children[node].get(character, 0)

    def _add(self, string: str) -> None:
        node = 0
        for character in string:
            if character not in self._children[node]:
                self._children[node][character] = len(self._children)
                self._children.append({})
                self._depth.append(self._depth[node] + 1)
                self._shorter.append(0)
                self._found.append(None)
            node = self._children[node][character]
        self._found[node] = string

    def _connect(self) -> None:
        """Level by level, since a node's shorter beginnings lie above it."""
        level = list(self._children[0].values())
        while level:
            below = []
            for node in level:
                if self._found[node] is None:
                    self._found[node] = self._found[self._shorter[node]]
                for character, child in self._children[node].items():
                    self._shorter[child] = self._next(self._shorter[node], character)
                    below.append(child)
            level = below


class OutputText:
    """The text of one request's output, as it grows; special tokens have none.

    `stopped` is the stop string that ended it, or None. Of several the one that ends first counts, and of
    those the longest. `num_tokens_to_keep` counts the tokens that the text up to its end was made from, all
    if there is none. How tokens are grouped into pushes changes nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False, min_tokens: int = 0
    ) -> None:
        """`include_stop` leaves the stop string in the text. One that ends within the first `min_tokens`
        tokens is no stop (as in vLLM). Raises `ParameterError` for more than `MAX_STOP_CHARACTERS`.
        """
        if sum(map(len, stop)) > MAX_STOP_CHARACTERS:
            # Only here, since it brings torch, which text does not need.
            from draftproof.gpu.sampling.parameters import ParameterError

            raise ParameterError(f"stop may hold at most {MAX_STOP_CHARACTERS} characters altogether")
        self.stopped: str | None = None
        self.num_tokens_to_keep = 0
        self._min_tokens, self._include_stop = min_tokens, include_stop
        self._stream = TokenStream(tokenizer)
        self._stop = StopStrings(stop) if stop else None
        self._held: deque[str] = deque()  # characters that may begin a stop string

    def push(self, token_ids: Iterable[int]) -> str:
        """The new text that is certain, whatever follows. Tokens behind a stop string are ignored."""
        pieces = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            piece = self._stream.push(token_id)
            self.num_tokens_to_keep += 1
            pieces.append(self._certain(piece))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest of the text when no token follows; nothing behind a stop string."""
        if self.stopped is not None:
            return ""
        text = self._certain(self._stream.finish())
        return text if self.stopped is not None else text + self._released(0)

    def _certain(self, piece: str) -> str:
        """What of the text held back and the new piece is certain; sets `stopped`."""
        if self._stop is None:
            return piece
        for character in piece:
            self._held.append(character)
            found = self._stop.push(character)
            if found is not None and self.num_tokens_to_keep > self._min_tokens:
                self.stopped = found
                return self._released(0 if self._include_stop else len(found))
        return self._released(0 if self._include_stop else self._stop.num_begun)

    def _released(self, num_held: int) -> str:
        """All but the last characters."""
        return "".join(self._held.popleft() for _ in range(len(self._held) - num_held))
