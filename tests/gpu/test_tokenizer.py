"""Are texts and tokens what the library itself makes of them, also in a stream and from a GGUF file?"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from draftproof.gpu import tokenizer as module  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.tokenizer import QWEN2_WORDS, Tokenizer, load_tokenizer  # noqa: E402

TEXTS = (
    "",
    "the cat, the hat; it's 2024!",
    "  3 spaces,\t a tab\r\n\nand 12345",
    "naïve café e\u0301 日本 🤖👩‍👩‍👧 ﬁ",
    "<|im_start|>user\nthe<|im_end|> and <tool> the",
    "\x00\x7f\x80ÿ\ufffd",
)
SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [{"role": "system", "content": "be <brief>"}, {"role": "user", "content": "why? 🤖"}]


@cache
def tiny(rule: str) -> Any:
    """The library's own BPE on bytes: 3 special tokens, 256 letters, merges, one token of the user's."""
    before = tokenizers.pre_tokenizers
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    if rule == "qwen2":
        backend.normalizer = tokenizers.normalizers.NFC()
        words = before.Split(tokenizers.Regex(QWEN2_WORDS), behavior="isolated")
        steps = [words, before.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = before.Sequence(steps)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL),
        initial_alphabet=before.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*TEXTS, "the cat and the hat  that  sat  "] * 4, trainer)
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return backend


def add_tokenizer(writer: Any, rule: str, **changes: Any) -> None:
    """The library's tokenizer as llama.cpp's metadata."""
    backend = tiny(rule)
    content = json.loads(backend.to_str())
    tokens = [backend.id_to_token(number) for number in range(backend.get_vocab_size())]
    kinds = [3 if token in SPECIAL else 4 if token == "<tool>" else 1 for token in tokens]
    writer.add_tokenizer_model(changes.get("model", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", rule))
    writer.add_token_list(changes.get("tokens", tokens))
    writer.add_token_types(changes.get("kinds", kinds))
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    writer.add_token_merges(changes.get("merges", merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(changes.get("eos", 2))
    if changes.get("add_bos"):
        writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def write_gguf(path: Path, rule: str, **changes: Any) -> Path:
    """A file with a tokenizer and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, rule, **changes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, rule: str = "smollm", **config: Any) -> Path:
    (folder / "tokenizer.json").write_text(tiny(rule).to_str(), encoding="utf-8")
    whole = {
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "bos_token": "<|im_start|>",
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(whole))
    return folder


@pytest.fixture(params=["smollm", "qwen2", "folder", "smollm2"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    """From a GGUF file of either kind, from a folder, and the real one where it is in the cache."""
    if request.param == "folder":
        return load_tokenizer(write_folder(tmp_path))
    if request.param == "smollm2":
        return smollm2()
    return load_tokenizer(write_gguf(tmp_path / "model.gguf", request.param))


def smollm2() -> Tokenizer:
    from draftproof.gpu.fetch import DTYPES, folder_of, is_complete

    for dtype in DTYPES:
        if is_complete(folder_of("smollm2", dtype)):
            return load_tokenizer(folder_of("smollm2", dtype))
    pytest.skip("SmolLM2 is not in the cache: draftproof fetch smollm2")


@pytest.mark.parametrize("rule", ["smollm", "qwen2"])
def test_a_gguf_file_and_a_folder_give_the_tokens_of_the_library(rule: str, tmp_path: Path) -> None:
    expected = tiny(rule)
    for path in (write_gguf(tmp_path / "model.gguf", rule), write_folder(tmp_path, rule)):
        read = load_tokenizer(path)
        assert read.vocab_size == expected.get_vocab_size()
        assert (read.bos_token_id, read.eos_token_id, set(read.special_token_ids)) == (1, 2, {0, 1, 2})
        for text in TEXTS:
            ids = read.encode(text)
            assert ids == expected.encode(text).ids
            for skip in (False, True):
                assert read.decode(ids, skip) == expected.decode(ids, skip_special_tokens=skip)


def test_smollm2_gives_the_tokens_that_transformers_reads_from_the_same_file() -> None:
    read = smollm2()
    # transformers 5.24, AutoTokenizer.from_pretrained(..., gguf_file=...)
    assert read.encode("Hello world, it's 2024!") == [19556, 905, 28, 357, 506, 216, 34, 32, 34, 36, 17]
    code = "naïve café 日本 🤖\r\n\tdef f(x):\n    return x"
    expected = [3546, 46494, 37366, 17097, 241, 115, 40993, 15107, 114, 240, 2738, 197]
    assert read.encode(code) == [*expected, 1604, 275, 24, 104, 727, 472, 1003, 1792]
    assert read.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    # Digits first, as in the model's own tokenizer.json: the spaces before one belong together.
    assert read.encode("x  3") == [104, 256, 35]


@pytest.mark.parametrize("skip", [False, True])
def test_a_stream_is_the_whole_text_at_every_split(tokenizer: Tokenizer, skip: bool) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for split in range(len(ids) + 1):
            stream = tokenizer.stream(skip)
            joined = "".join(map(stream.push, ids[:split])) + stream.finish()
            assert joined == tokenizer.decode(ids[:split], skip)


def test_a_stream_never_splits_a_character(tokenizer: Tokenizer) -> None:
    text = "日本 🤖👩‍👩‍👧 é naïve"
    stream = tokenizer.stream()
    pieces = [stream.push(token_id) for token_id in tokenizer.encode(text)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces, "no character had more than one token: the test shows nothing"
    assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text)) and stream.finish() == ""


def test_odd_bytes_come_out_of_a_stream_as_out_of_the_whole(tokenizer: Tokenizer) -> None:
    rng = random.Random(7)
    for _ in range(300):
        # Beyond the vocabulary too: a model's output may be padded.
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randrange(10))]
        for skip in (False, True):
            stream = tokenizer.stream(skip)
            assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids, skip)


def test_a_stream_keeps_the_spaces_that_another_decoder_drops_at_the_beginning(tmp_path: Path) -> None:
    write_folder(tmp_path, eos_token=None, bos_token=None)
    words = {"▁the": 0, "▁cat": 1, "<0xC3>": 2, "<0xA9>": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(words, [], byte_fallback=True))
    steps = [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    backend.decoder = tokenizers.decoders.Sequence(steps)
    backend.enable_truncation(1)  # no text is ever cut short, whatever the file says
    backend.enable_padding(length=8)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    read = load_tokenizer(tmp_path)
    stream = read.stream()
    assert [stream.push(token_id) for token_id in (0, 1, 2, 3, 1)] == ["the", " cat", "", "é", " cat"]
    assert read.encode("▁éé") == [2, 3, 2, 3] and read.eos_token_id is None


def test_special_tokens_are_kept_or_skipped(tmp_path: Path) -> None:
    read = load_tokenizer(write_gguf(tmp_path / "model.gguf", "smollm"))
    ids = read.encode("<|im_start|>the<tool><|im_end|>")
    assert ids[0] == 1 and ids[-1] == 2 and len(ids) == 4
    assert read.decode(ids) == "the<tool>"
    assert read.decode(ids, skip_special_tokens=False) == "<|im_start|>the<tool><|im_end|>"
    assert read.decode([read.vocab_size, 10**6]) == ""


def test_a_chat_is_written_as_transformers_writes_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    template = "{%- if tools %}\n  {{ tools | tojson(indent=1) }}\n{%- endif %}\n" + TEMPLATE
    read = load_tokenizer(write_folder(tmp_path, chat_template=template))
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {}}}]
    for add in (False, True):
        for given in (None, tools):
            variables = {"tools": given, "add_generation_prompt": add}
            expected = peer.apply_chat_template(MESSAGES, tokenize=False, **variables)
            assert read.render_chat(MESSAGES, **variables) == expected
    assert read.encode_chat(MESSAGES) == read.encode(read.render_chat(MESSAGES))
    assert read.encode_chat(MESSAGES)[0] == 1
    assert read.render_chat(MESSAGES).endswith("<|im_start|>assistant\n")


def test_a_template_is_found_in_each_place(tmp_path: Path) -> None:
    named = [{"name": "other", "template": "no"}, {"name": "default", "template": "listed"}]
    assert load_tokenizer(write_folder(tmp_path)).chat_template is None
    assert load_tokenizer(write_folder(tmp_path, chat_template=named)).render_chat(MESSAGES) == "listed"
    (tmp_path / "chat_template.jinja").write_text("alone")
    assert load_tokenizer(tmp_path).render_chat(MESSAGES) == "alone"
    assert load_tokenizer(write_gguf(tmp_path / "model.gguf", "qwen2")).chat_template == TEMPLATE


def test_what_a_template_gets_and_gives_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAT_LIMIT", 1000)
    monkeypatch.setattr(module, "TEMPLATE_LIMIT", 500)
    read = load_tokenizer(write_folder(tmp_path, chat_template=TEMPLATE))
    assert read.render_chat(MESSAGES)
    for template, sentence in (
        ("{% for i in range(600) %}{{ 'ab' }}{% endfor %}", "writes more than 1000 characters"),
        ("x" * 501, "more than 500 characters"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}{{ 1 / 0 }}", "cannot write"),
    ):
        read.chat_template = template
        with pytest.raises(ModelError, match=sentence):
            read.render_chat(MESSAGES)
    read.chat_template = "constant"
    with pytest.raises(ModelError, match="more than 1000"):
        read.render_chat([{"role": "user", "content": "x" * 1001}])
    for messages in ([], ["hi"], [{"content": "x"}]):
        with pytest.raises(ModelError, match="message"):
            read.render_chat(messages)  # type: ignore[arg-type]
    read.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        read.render_chat(MESSAGES)


FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
BROKEN = [
    (FILE, None, "tokenizer.json is missing"),
    (CONFIG, None, "tokenizer_config.json is missing"),
    (FILE, b"{}", "is no tokenizer"),
    (FILE, b"\xff\xfe", "cannot be read"),
    (FILE, b" " * 70_000, "more than any tokenizer"),
    (CONFIG, b"[]", "must hold a JSON object"),
    (CONFIG, b"[" * 60_000, "not valid JSON"),
    (CONFIG, b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    (CONFIG, b'{"eos_token": "<nowhere>"}', "eos token '<nowhere>' is not in"),
    (CONFIG, b'{"eos_token": 3}', "eos_token must be a text"),
    (CONFIG, b'{"chat_template": 3}', "chat_template must be a text"),
]


@pytest.mark.parametrize(("file", "content", "sentence"), BROKEN)
def test_a_broken_folder_is_one_sentence(
    file: str, content: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    monkeypatch.setattr(module, "FILE_LIMIT", 65_000)
    assert load_tokenizer(tmp_path).vocab_size == tiny("smollm").get_vocab_size()
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError, match=sentence) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "llama"}, "'llama', 'smollm' is not supported"),
        ({"pre": "llama-bpe"}, "'llama-bpe' is not supported"),
        ({"merges": ["t h e"]}, "no pair"),
        ({"merges": ["t nowhere"]}, "do not fit"),
        ({"tokens": ["a", "b"]}, "missing"),
        ({"tokens": ["a", "a"], "kinds": [1, 1], "merges": ["a a"]}, "twice"),
        ({"eos": 10**6}, "EOS token"),
        ({"add_bos": True}, "adds tokens"),
    ],
)
def test_a_gguf_file_with_another_tokenizer_is_one_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        load_tokenizer(write_gguf(tmp_path / "model.gguf", "smollm", **changes))
    assert "model.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_truncated_gguf_file_is_one_sentence(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "smollm")
    whole = path.read_bytes()
    for length in (0, 3, 20, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="not a whole GGUF file"):
            load_tokenizer(path)
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")


def test_what_cannot_be_a_text_or_a_token_is_refused(tokenizer: Tokenizer) -> None:
    for text in ("a\ud800", 7):
        with pytest.raises(ModelError, match="must be a str"):
            tokenizer.encode(text)  # type: ignore[arg-type]
    for token_id in (-1, 1 << 32, 1.5, "1"):
        with pytest.raises(ModelError, match="a token id must be"):
            tokenizer.decode([token_id])  # type: ignore[list-item]
        with pytest.raises(ModelError, match="a token id must be"):
            tokenizer.stream().push(token_id)  # type: ignore[arg-type]
