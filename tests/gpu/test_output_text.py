"""Is a request's text that of all its tokens, and does it end at the right stop string, however they came?"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.test_tokenizer import TEXTS, smollm2, tiny  # noqa: E402

from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.output_text import (  # noqa: E402
    MAX_STOP_CHARACTERS,
    OutputText,
    StopStrings,
    TokenStream,
    byte_of_letter,
)
from draftproof.gpu.sampling.parameters import ParameterError  # noqa: E402
from draftproof.gpu.tokenizer import Tokenizer  # noqa: E402

UNKNOWN = "\ufffd"
END, START = 2, 1  # special tokens of the tiny vocabulary


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(tiny("smollm"), {"eos": "<|im_end|>"})


def ids_of(*pieces: str) -> list[int]:
    """One token at least for each piece, so that the boundaries are where a test wants them."""
    return [token_id for piece in pieces for token_id in tiny_tokenizer().encode(piece)]


def pushed(output: OutputText, ids: list[int], sizes: list[int]) -> list[str]:
    """The text of each push, in groups of these sizes and then the rest, and of the end."""
    pieces, begin = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(output.push(ids[begin : begin + size]))
        begin += size
    return [*pieces, output.finish()]


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first stop string ends, and which: the definition, tried at every place."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


@st.composite
def outputs(draw: Any) -> tuple[list[int], list[str], list[int]]:
    """Tokens, of texts and at random; stop strings, mostly parts of the text; sizes of groups."""
    tokenizer = tiny_tokenizer()
    texts = st.sampled_from([*TEXTS, "the the the cat", "ababac", "aaaa", "🤖🤖", "日本日"])
    some = st.lists(
        st.one_of(
            texts.map(tokenizer.encode),
            st.integers(0, tokenizer.vocab_size + 2).map(lambda token_id: [token_id]),
        ),
        max_size=8,
    )
    ids = [token_id for part in draw(some) for token_id in part]
    text = tokenizer.decode(ids)
    places = st.tuples(st.integers(0, len(text)), st.integers(1, 6))
    parts = places.map(lambda place: text[place[0] : place[0] + place[1]])
    stop = st.one_of(parts, st.text("atheb 日🤖", max_size=4), st.tuples(parts, st.just("#")).map("".join))
    stops = [stop for stop in draw(st.lists(stop, max_size=4)) if stop]
    return ids, stops, draw(st.lists(st.integers(0, 7), max_size=10))


@settings(max_examples=400, deadline=None)
@given(outputs(), st.booleans())
def test_groups_change_nothing_and_the_first_stop_ends_the_text(
    case: tuple[list[int], list[str], list[int]], include_stop: bool
) -> None:
    ids, stops, sizes = case
    tokenizer = tiny_tokenizer()
    output = OutputText(tokenizer, stops, include_stop)
    alone = OutputText(tokenizer, stops, include_stop)
    text = "".join(pushed(output, ids, sizes))
    assert text == "".join(pushed(alone, ids, [1] * len(ids)))
    assert (output.stopped, output.num_tokens_to_keep) == (alone.stopped, alone.num_tokens_to_keep)
    whole = tokenizer.decode(ids)
    expected = first_stop(whole, stops)
    if expected is None:
        assert (text, output.stopped, output.num_tokens_to_keep) == (whole, None, len(ids))
        return
    end, stop = expected
    assert output.stopped == stop
    assert text == whole[: end if include_stop else end - len(stop)]
    if not stop.endswith(UNKNOWN):  # a character cut off is one only when the next token shows it
        kept = [n for n in range(len(ids) + 1) if tokenizer.decode(ids[:n])[:end] == whole[:end]]
        assert output.num_tokens_to_keep == min(kept)


@settings(max_examples=300, deadline=None)
@given(outputs())
def test_only_what_may_begin_a_stop_or_a_character_is_held_back(
    case: tuple[list[int], list[str], list[int]],
) -> None:
    ids, stops, _ = case
    output, given_text = OutputText(tiny_tokenizer(), stops), ""
    for count, token_id in enumerate(ids, 1):
        given_text += output.push([token_id])
        if output.stopped is not None:
            return
        text = tiny_tokenizer().decode(ids[:count])
        assert text.startswith(given_text)
        if text.endswith(UNKNOWN):  # perhaps a character of its own, perhaps half of another
            continue
        begun = [
            length
            for length in range(len(text) + 1)
            if length == 0
            or any(stop != text[-length:] and stop.startswith(text[-length:]) for stop in stops)
        ]
        assert len(text) - len(given_text) == max(begun)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stopped", "num_kept"),
    [
        (["the", " cat", " s", "at"], ["cat sa"], "the ", "cat sa", 4),  # across tokens
        (["a", "b", "c", "d"], ["cd", "bc"], "a", "bc", 3),  # the earlier end
        (["a", "b", "c", "d"], ["abcd", "bc"], "a", "bc", 3),  # though another began before
        (["a", "b", "c", "d"], ["c", "abc", "bc"], "", "abc", 3),  # the longest of one end
        (["a", "b", "a", "b", "a", "c"], ["abac"], "ab", "abac", 6),  # begins inside a failed one
        (["a", "a", "a", "b"], ["aab"], "a", "aab", 4),
        (["a", "b", "c"], ["bcd"], "abc", None, 3),  # what was held back comes at the end
        (["日", "本"], ["本"], "日", "本", 2),
    ],
)
def test_which_stop_string_counts(
    pieces: list[str], stops: list[str], text: str, stopped: str | None, num_kept: int
) -> None:
    ids = ids_of(*pieces)
    for sizes in ([], [1] * len(ids), [2], [3, 1]):
        output = OutputText(tiny_tokenizer(), stops)
        assert "".join(pushed(output, [*ids, *ids_of("z")] if stopped else ids, sizes)) == text
        assert output.stopped == stopped
        assert output.num_tokens_to_keep == len(ids_of(*pieces[:num_kept]))


def test_nothing_follows_a_stop() -> None:
    for include_stop, text in ((False, "the"), (True, "the cat")):
        output = OutputText(tiny_tokenizer(), [" cat"], include_stop)
        assert output.push(ids_of("the", " cat", " the")) == text
        assert output.push(ids_of("more")) == "" and output.finish() == ""
        assert (output.stopped, output.num_tokens_to_keep) == (" cat", len(ids_of("the", " cat")))


def test_a_stop_within_the_first_tokens_does_not_count() -> None:
    ids = ids_of("a", "#", "b", "#", "c")
    for min_tokens, text, count in ((0, "a", 2), (1, "a", 2), (2, "a#b", 4), (3, "a#b", 4), (4, "a#b#c", 5)):
        for sizes in ([], [1] * 5, [2]):
            output = OutputText(tiny_tokenizer(), ["#"], min_tokens=min_tokens)
            assert "".join(pushed(output, ids, sizes)) == text
            assert output.num_tokens_to_keep == count


def test_text_before_half_a_character_is_given_at_once() -> None:
    half, *rest = (tiny_tokenizer().backend.token_to_id(letter) for letter in letters_of("é"))
    output = OutputText(tiny_tokenizer(), ["\n"])
    assert output.push([*ids_of("a"), half]) == "a"
    assert output.push(rest) == "é"
    assert output.push([half]) == "" and output.finish() == UNKNOWN


def letters_of(text: str) -> list[str]:
    letter = {byte: letter for letter, byte in byte_of_letter().items()}
    return [letter[byte] for byte in text.encode()]


def test_the_letters_of_bytes_are_the_librarys() -> None:
    assert set(byte_of_letter()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_of_letter().values()) == list(range(256))


def test_an_added_token_stands_for_its_own_letters() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny("smollm").to_str())
    backend.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("<a 日>", "é")])
    tokenizer = Tokenizer(backend, {})
    for ids in ([last := tokenizer.vocab_size - 2, 5, last], [5, last + 1, last + 1, 5]):
        assert "".join(pushed(OutputText(tokenizer), ids, [1])) == backend.decode(ids)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_the_text_is_that_of_transformers_without_special_tokens(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizer = tiny_tokenizer() if name == "tiny" else smollm2()
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    for text in (*TEXTS, "日本語のテキスト 🤖👩‍👩‍👧🏳️‍🌈 naïve\n\n\tcode(x) ≠ y", "  <|im_end|> the  end"):
        ids = tokenizer.encode(text)
        for end in range(len(ids) + 1):  # some in the middle of a character
            expected = peer.decode(ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert "".join(pushed(OutputText(tokenizer), ids[:end], [3, 1])) == expected
    special = [START, *tokenizer.encode("é"), END]
    assert "".join(pushed(OutputText(tokenizer), special, [])) == "é"


class Counting:
    """A tokenizer of bytes that counts the tokens it decodes."""

    special_token_ids: frozenset[int] = frozenset()

    def __init__(self, backend: Any) -> None:
        self.backend, self.num_decoded = backend, 0

    def token_of(self, token_id: int) -> Any:
        return self.backend.id_to_token(token_id)

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(token_ids)
        return str(self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens))


def test_work_is_linear_in_the_tokens_also_for_bytes_that_are_no_text() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<0xC3>": 0, "a": 1}, [], byte_fallback=True))
    backend.decoder = tokenizers.decoders.ByteFallback()
    counting: Any = Counting(backend)
    stream = TokenStream(counting)
    text = "".join(map(stream.push, [0] * 2000)) + stream.finish()
    assert text == UNKNOWN * 2000
    assert counting.num_decoded < 50 * 2000


def test_stop_strings_are_found_in_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 1000
    strings = StopStrings(["a" * length + "b", *(f"{'a' * n}c" for n in range(0, length, 50))])
    steps = 0

    class Shorter(list[int]):
        def __getitem__(self, place: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().__getitem__(place)

    strings._shorter = Shorter(strings._shorter)
    found = [strings.push(character) for character in "a" * 5000 + "d" + "a" * 70 + "c"]
    assert set(found[:-1]) == {None} and found[-1] == "a" * 50 + "c"
    assert 0 < steps <= len(found)


def test_what_cannot_be_is_refused() -> None:
    OutputText(tiny_tokenizer(), ["a" * MAX_STOP_CHARACTERS])
    with pytest.raises(ParameterError, match="at most 65536 characters"):
        OutputText(tiny_tokenizer(), ["a" * MAX_STOP_CHARACTERS, "b"])
    for token_id in (-1, 1.5, "1"):
        with pytest.raises(ModelError, match="a token id must be"):
            OutputText(tiny_tokenizer()).push([token_id])  # type: ignore[list-item]
    assert OutputText(tiny_tokenizer()).push([10**6]) == ""


def test_text_needs_no_torch() -> None:
    code = "import sys, draftproof.gpu.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    from draftproof.gpu.tokenizer import NoTokenizer, load_tokenizer

    with pytest.raises(NoTokenizer, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
