"""How does text become tokens, and tokens text? By the package `tokenizers`, from a folder or a GGUF file.

A folder holds `tokenizer.json` and `tokenizer_config.json`; a GGUF file has it all in its metadata. Chat
templates run in jinja2's sandbox, with bounds on what goes in and comes out: they are kept from files and
Python's objects, not from wasting time and memory.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from draftproof.gpu.errors import ModelError, refuse_unless
from draftproof.gpu.output_text import TokenStream

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
FILE_LIMIT = 256 << 20  # bytes; the largest published vocabularies take 35 MB
TEMPLATE_LIMIT = 1 << 20  # characters; published templates have up to 20 thousand
CHAT_LIMIT = 64 << 20  # characters of all messages together, and of what a template makes of them
CONTROL, USER_DEFINED = 3, 4  # llama.cpp's kinds of tokens that are never cut into pieces
SPECIAL_NAMES = ("bos", "eos")

# Qwen2's rule for where words end. Source: transformers' Qwen2 tokenizer; llama.cpp has the same.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class NoTokenizer(ModelError):
    """A model without a tokenizer, which can still be given token ids."""


class Tokenizer:
    """A vocabulary with its special tokens and, where the model has one, its chat template.

    `eos_token_id` and `bos_token_id` are None where the model names none; `special_token_ids` are the tokens
    that stand for no text.
    """

    def __init__(self, backend: Any, special: Mapping[str, str], chat_template: str | None = None) -> None:
        """`backend` is a `tokenizers.Tokenizer`; `special` maps "bos" and "eos" to the tokens' texts."""
        self.backend = backend
        self.special = dict(special)
        for name, text in self.special.items():
            known = backend.token_to_id(text) is not None
            refuse_unless(known, f"the {name} token {text[:80]!r} is not in the vocabulary")
        ids = {name: int(backend.token_to_id(text)) for name, text in self.special.items()}
        self.bos_token_id, self.eos_token_id = (ids.get(name) for name in SPECIAL_NAMES)
        added = backend.get_added_tokens_decoder().items()
        self.special_token_ids = frozenset(number for number, token in added if token.special)
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        refuse_unless(self.vocab_size > 0, "the vocabulary is empty")
        self.chat_template = chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. The text of a special token in it becomes that token, as with vLLM.

        `add_special_tokens` puts around it what the model's own rules ask for (often a BOS token).
        """
        whole = isinstance(text, str) and not re.search("[\ud800-\udfff]", text)
        refuse_unless(whole, "the text to encode must be a str without halves of surrogate pairs")
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; ids beyond the vocabulary (a padded one) have none. Raises `ModelError`."""
        return str(self.backend.decode(_checked(token_ids), skip_special_tokens=skip_special_tokens))

    def token_of(self, token_id: int) -> str | None:
        """How the vocabulary writes a token; None for an id beyond it. Raises `ModelError`."""
        token: str | None = self.backend.id_to_token(*_checked([token_id]))
        return token

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self, skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The messages (`role` and `content` each) as the model's template writes them. Raises `ModelError`.

        It ends where the assistant begins, unless `add_generation_prompt=False`. Others (`tools`) go as are.
        """
        if self.chat_template is None:
            raise ModelError("this model has no chat template: give it a prompt instead of messages")
        _check_messages(messages)
        special = {f"{name}_token": text for name, text in self.special.items()}
        variables = {"add_generation_prompt": True, **special, **variables}
        return _rendered(self.chat_template, messages=list(messages), **variables)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """The token ids of `render_chat`, whose template writes the special tokens itself."""
        return self.encode(self.render_chat(messages, **variables), add_special_tokens=False)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder or `.gguf` file. Raises `ModelError`, `NoTokenizer` without one."""
    path = Path(path)
    try:
        import tokenizers
    except ImportError:
        raise ModelError(f"{path} needs the package tokenizers: install it") from None
    refuse_unless(path.exists(), f"{path} does not exist: check the path")
    try:
        return _from_folder(tokenizers, path) if path.is_dir() else _from_gguf(tokenizers, path)
    except ModelError as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from None


def _from_folder(tokenizers: Any, folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER_FILE).exists():
        raise NoTokenizer(f"{folder / TOKENIZER_FILE} is missing: without it there are tokens, but no text")
    text = _text(folder / TOKENIZER_FILE)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more special
        raise ModelError(f"{folder / TOKENIZER_FILE} is no tokenizer ({_reason(error)})") from None
    backend.no_truncation()  # settings of training that some files have kept
    backend.no_padding()
    config = _config(folder / CONFIG_FILE)
    special: dict[str, Any] = {}
    for name in SPECIAL_NAMES:
        value = config.get(f"{name}_token")
        value = value.get("content") if isinstance(value, dict) else value
        refuse_unless(value is None or isinstance(value, str), f"its {name}_token must be a text")
        special |= {name: value} if value else {}
    return Tokenizer(backend, special, _template(folder, config))


def _config(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not valid JSON: download it again") from None
    if isinstance(config, dict):
        return config
    raise ModelError(f"{path} must hold a JSON object, not {type(config).__name__}")


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """From a file of its own, as transformers prefers it, or from the configuration."""
    if (folder / TEMPLATE_FILE).is_file():
        return _text(folder / TEMPLATE_FILE)
    value = config.get("chat_template")
    if isinstance(value, list):  # several, with names
        named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
        value = named.get("default")
    if value is None or isinstance(value, str):
        return value
    raise ModelError("its chat_template must be a text")


def _text(path: Path) -> str:
    """A file of bounded size."""
    refuse_unless(path.is_file(), f"{path} is missing: a model's folder needs it")
    size = path.stat().st_size
    refuse_unless(size <= FILE_LIMIT, f"{path} has {size} bytes, more than any tokenizer: check the file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({_reason(error)}): download it again") from None


def _from_gguf(tokenizers: Any, path: Path) -> Tokenizer:
    """llama.cpp's model "gpt2" is BPE on bytes; its `pre` names the rule for where words end."""
    metadata: Any = _gguf_metadata(path)
    kind, rule = metadata.get("ggml.model"), metadata.get("ggml.pre")
    if kind is None:
        raise NoTokenizer("it holds no tokenizer: without one there are tokens, but no text")
    if kind != "gpt2" or rule not in ("smollm", "qwen2"):
        raise ModelError(
            f"its tokenizer {kind!r}, {rule!r} is not supported: only gpt2 with smollm or qwen2 is"
        )
    adds = any(metadata.get(f"ggml.add_{name}_token") for name in SPECIAL_NAMES)
    refuse_unless(not adds, f"its tokenizer adds tokens around every text, which {rule} models do not")
    tokens, merges, kinds = (metadata.get(f"ggml.{name}") for name in ("tokens", "merges", "token_type"))
    if not all(isinstance(one, list) for one in (tokens, merges, kinds)) or len(tokens) != len(kinds):
        raise ModelError("its tokens, their types or its merges are missing: download it again")
    pairs = [tuple(str(merge).split(" ")) for merge in merges]
    refuse_unless(all(len(pair) == 2 for pair in pairs), "a merge is no pair of tokens: download it again")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    refuse_unless(len(vocabulary) == len(tokens), "one of its tokens is there twice: download it again")
    try:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # the library raises nothing more special
        raise ModelError(f"its merges do not fit its tokens ({_reason(error)}): download it again") from None
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = tokenizers.AddedToken(token, normalized=False, special=kind == CONTROL)
            (backend.add_special_tokens if added.special else backend.add_tokens)([added])
    _set_rules(tokenizers, backend, rule)
    ids = {name: metadata.get(f"ggml.{name}_token_id") for name in SPECIAL_NAMES}
    ids = {name: number for name, number in ids.items() if number is not None}
    known = all(type(number) is int and 0 <= number < len(tokens) for number in ids.values())
    refuse_unless(known, "its BOS or EOS token is not in the vocabulary: download it again")
    special = {name: tokens[number] for name, number in ids.items()}
    return Tokenizer(backend, special, metadata.get("chat_template"))


def _gguf_metadata(path: Path) -> dict[str, Any]:
    """What the file says about the tokenizer, by the keys' names after `tokenizer.`."""
    try:
        from gguf import GGUFReader

        from draftproof.gpu.weights.gguf_file import check_header
    except ImportError:
        raise ModelError(f"{path} cannot be read without the packages gguf and torch: install them") from None
    try:
        with path.open("rb") as stream:
            check_header(stream, path.stat().st_size)
        fields = [field for field in GGUFReader(path).fields.values() if field.name.startswith("tokenizer.")]
        return {field.name.removeprefix("tokenizer."): field.contents() for field in fields}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, struct.error) as error:
        raise ModelError(f"{path} is not a whole GGUF file ({_reason(error)}): download it again") from None


def _set_rules(tokenizers: Any, backend: Any, rule: str) -> None:
    """As the model's own `tokenizer.json` has them; llama.cpp writes the same as regular expressions."""
    before = tokenizers.pre_tokenizers
    if rule == "smollm":
        steps = [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    else:
        backend.normalizer = tokenizers.normalizers.NFC()
        words = before.Split(tokenizers.Regex(QWEN2_WORDS), behavior="isolated")
        steps = [words, before.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = before.Sequence(steps)
    backend.decoder = tokenizers.decoders.ByteLevel()


def _rendered(template: str, **variables: Any) -> str:
    """The template's output in jinja2's sandbox, cut short as an error where it is too long."""
    try:
        import jinja2.sandbox
    except ImportError:
        raise ModelError("a chat template needs the package jinja2: install it") from None

    def refuse(sentence: object) -> None:
        raise jinja2.TemplateError(str(sentence))

    fits = len(template) <= TEMPLATE_LIMIT
    refuse_unless(fits, f"the chat template has more than {TEMPLATE_LIMIT} characters: check the file")
    # The settings and functions are those of transformers, for which templates are written.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    text = StringIO()
    try:
        for piece in environment.from_string(template).generate(**variables):
            if text.tell() + len(piece) > CHAT_LIMIT:
                refuse(f"it writes more than {CHAT_LIMIT} characters")
            text.write(piece)
    except Exception as error:  # a template may do anything
        raise ModelError(f"the chat template cannot write these messages ({_reason(error)})") from None
    return text.getvalue()


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    refuse_unless(bool(messages), "a chat needs one message at least")
    for number, message in enumerate(messages):
        possible = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        refuse_unless(possible, f"message {number} must be a mapping with a role and a content")
    length = sum(len(str(message.get("content", ""))) for message in messages)
    refuse_unless(length <= CHAT_LIMIT, f"the messages have {length} characters, more than {CHAT_LIMIT}")


def _checked(token_ids: Sequence[int]) -> list[int]:
    for token_id in token_ids:  # numpy's integers too
        possible = hasattr(token_id, "__index__") and 0 <= token_id < 1 << 32
        refuse_unless(possible, f"a token id must be an integer from 0 to {(1 << 32) - 1}, not {token_id!r}")
    return [int(token_id) for token_id in token_ids]


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
