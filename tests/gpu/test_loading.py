"""Does a name mean the right model, and is what cannot run refused before a weight is read?"""

from __future__ import annotations

import fnmatch
import json
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from tests.gpu.test_gguf import write_gguf  # noqa: E402
from tests.gpu.test_tokenizer import add_tokenizer as add_metadata  # noqa: E402
from tests.gpu.test_tokenizer import tiny  # noqa: E402
from tests.gpu.test_tokenizer import write_folder as add_tokenizer  # noqa: E402
from tests.gpu.test_weights import CONFIG, shape, write_folder  # noqa: E402

from draftproof.gpu import loading, memory  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.loading import drafter_option, load  # noqa: E402
from draftproof.gpu.memory import free_bytes, num_bytes_to_load  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.weights.gguf_file import gguf_name  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

NUM_TOKENS = tiny("smollm").get_vocab_size()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def whole_folder(folder: Path, num_shards: int = 1, **changes: Any) -> Path:
    """Weights and a tokenizer, as the Hub has them."""
    config = {**CONFIG, "vocab_size": NUM_TOKENS, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, random_weights(shape(**config), seed=4), num_shards, config)
    return add_tokenizer(folder)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading or drawing a weight fails the test."""

    def never(*_: Any) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "load_weights", never)
    monkeypatch.setattr(loading, "random_weights", never)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_folder_is_loaded_with_its_tokenizer(num_shards: int, tmp_path: Path) -> None:
    whole_folder(tmp_path, num_shards)
    for model in (tmp_path, str(tmp_path)):
        decoder, tokenizer, name = load(model, device="cpu")
        assert name == str(tmp_path) and tokenizer is not None
        assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
        expected = random_weights(decoder.shape, seed=4)["model.embed_tokens.weight"]
        assert decoder.dtype == torch.float32 and torch.equal(decoder.embedding, expected)


def test_a_model_without_a_tokenizer_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights(shape(), seed=1)
    (tmp_path / "folder").mkdir()
    write_folder(tmp_path / "folder", weights)
    write_gguf(tmp_path / "tiny.gguf", "llama", weights)
    monkeypatch.chdir(tmp_path)
    for model in ("folder", "tiny.gguf", "./tiny.gguf"):
        loaded = load(model, device="cpu")
        assert loaded.tokenizer is None and loaded.name == model
        assert torch.equal(loaded.decoder.embedding, weights["model.embed_tokens.weight"])


def test_a_gguf_file_brings_its_tokenizer(tmp_path: Path) -> None:
    sizes = shape(vocab_size=NUM_TOKENS, tie_word_embeddings=True)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(sizes.num_layers)
    writer.add_context_length(sizes.max_position_embeddings)
    writer.add_embedding_length(sizes.hidden_size)
    writer.add_feed_forward_length(sizes.intermediate_size)
    writer.add_head_count(sizes.num_heads)
    writer.add_head_count_kv(sizes.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    add_metadata(writer, "smollm")
    for name, tensor in random_weights(sizes, seed=3).items():
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    decoder, tokenizer, _ = load(tmp_path / "tiny.gguf", device="cpu")
    assert tokenizer is not None and tokenizer.vocab_size == decoder.shape.vocab_size
    assert tokenizer.decode(tokenizer.encode("the hat")) == "the hat"


def test_the_dtype_is_as_asked_for(tmp_path: Path) -> None:
    whole_folder(tmp_path)
    for dtype, expected in (
        ("bfloat16", torch.bfloat16),
        (torch.float16, torch.float16),
        (None, torch.float32),
    ):
        assert load(tmp_path, dtype=dtype, device="cpu").decoder.dtype == expected
        assert load("random:llama", dtype=dtype, device="cpu").decoder.dtype == expected
    for device, expected in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        assert loading._dtype(None, torch.device(device)) == expected


def test_no_device_means_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert loading._device(None).type == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert loading._device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ModelError, match=r"'cuda:2' is not there \(CUDA devices found: 2\)"):
        loading._device("cuda:2")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_random_weights_come_from_the_seed_in_the_sizes_asked_for(family: str) -> None:
    def embedding(seed: int) -> Any:
        return load(f"random:{family}", device="cpu", seed=seed).decoder.embedding

    assert torch.equal(embedding(1), embedding(1)) and not torch.equal(embedding(1), embedding(2))
    name = f"random:{family},hidden_size=48,num_layers=3,num_heads=3,vocab_size=20"
    decoder, tokenizer, called = load(name, device="cpu")
    assert (called, tokenizer) == (name, None)
    sizes = decoder.shape
    assert (sizes.family, sizes.hidden_size, sizes.num_layers, sizes.num_heads) == (family, 48, 3, 3)
    assert (sizes.vocab_size, sizes.head_dim, sizes.num_kv_heads) == (20, 16, 1)
    assert (sizes.attention_bias, sizes.qk_norm) == (family == "qwen2", family == "qwen3")
    assert loading.random_shape(f"random:{family},head_dim=32,num_kv_heads=4").head_dim == 32
    assert loading.random_shape(f"random:{family},num_kv_heads=4").num_kv_heads == 4


def test_a_decoder_is_taken_as_it_is() -> None:
    decoder = Decoder(shape(), random_weights(shape(), seed=1))
    loaded = load(decoder)
    assert loaded.decoder is decoder and loaded.tokenizer is None
    assert load(decoder, dtype="float32", device="cpu").decoder is decoder
    with pytest.raises(ModelError, match=r"Decoder is torch\.float32"):
        load(decoder, dtype="bfloat16")
    for model in (None, 7, ["smollm2"]):
        with pytest.raises(ModelError, match="must be a name, a path or a Decoder"):
            load(model)


def test_the_built_in_model_is_fetched_unless_what_is_there_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(name: str, dtype: str) -> Path:
        fetched.append(f"{name} {dtype}")
        return whole_folder(tmp_path / "float32")

    monkeypatch.setattr(loading, "fetch", fetch)
    monkeypatch.setattr(loading, "folder_of", lambda _, dtype: tmp_path / dtype)
    (tmp_path / "smollm2").mkdir()  # a folder of that name is written ./smollm2
    monkeypatch.chdir(tmp_path)
    for dtype in ("float32", "bfloat16", "float16"):
        assert load("smollm2", dtype=dtype, device="cpu").tokenizer is not None
    assert fetched == ["smollm2 float32"] * 3
    whole_folder(tmp_path / "bfloat16", max_position_embeddings=77)
    monkeypatch.setattr(loading, "is_complete", Path.is_dir)
    found = [
        load("smollm2", dtype=dtype, device="cpu").decoder.shape.max_position_embeddings
        for dtype in ("bfloat16", "float16")
    ]
    assert found == [77, 128] and len(fetched) == 4
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load("./smollm2")


NAMES = [
    ("nowhere", "there is no model 'nowhere'"),
    ("", "there is no model ''"),
    ("./nowhere", "neither built in"),
    ("/nowhere/at/all", "neither built in"),
    ("owner/nowhere.gguf", "neither built in"),
    ("../owner", "neither built in"),
    ("owner/name@", "neither built in"),
    ("a" * 5000, "there is no model 'aaa"),
    ("a/" * 300, "there is no model 'a/a"),
    ("nul\0", "there is no model"),
    ("~no user of this name/model", "there is no model"),
    ("random:gpt", "must name one of llama, qwen2, qwen3"),
    ("random:", "must name one of llama, qwen2, qwen3"),
    ("random:llama,layers=2", "'layers=2', which is no size: write vocab_size"),
    ("random:llama,num_layers=x", "'num_layers=x', which is no size"),
    ("random:llama,num_layers", "'num_layers', which is no size"),
    ("random:llama,num_layers=2,num_layers=3", "once each"),
    ("random:llama,num_layers=0", "num_layers must be an integer from 1"),
    ("random:llama,num_layers=9999999999", "num_layers must be an integer"),
    ("random:llama,num_heads=0", "num_heads must be an integer from 1"),
    ("random:llama,num_heads=4,num_kv_heads=3", "multiple of num_kv_heads"),
    ("random:llama,hidden_size=20", "head_dim must be even"),
]


@pytest.mark.parametrize(("name", "sentence"), NAMES)
def test_a_name_that_means_nothing_is_one_sentence(name: str, sentence: str, no_weights: None) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        load(name, device="cpu")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"dtype": torch.float64}, "dtype must be one of"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "meta"}, "device must be"),
        ({"device": 1.5}, "device must be"),
        ({"seed": -1}, "seed must be an integer"),
        ({"seed": 1 << 63}, "seed must be an integer"),
        ({"seed": True}, "seed must be an integer"),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence(
    options: dict[str, Any], sentence: str, no_weights: None
) -> None:
    with pytest.raises(ModelError, match=sentence):
        load("random:llama", **{"device": "cpu", **options})


def test_what_the_configuration_forbids_is_refused_before_a_weight_is_read(
    tmp_path: Path, no_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_folder(tmp_path)
    weights = random_weights(shape(), seed=1)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", weights)
    strange = write_gguf(tmp_path / "strange.gguf", "llama", weights, metadata={"rope.scaling.type": "odd"})
    other = tmp_path / "weights.bin"
    other.write_bytes(b"\x80\x04.")
    for model, sentence in (
        (shutil.copy(path, tmp_path / "tiny.bin"), "is no model: give a .gguf file"),
        (other, "is no model: give a .gguf file"),
        (strange, r"strange\.gguf: RoPE scaling of kind 'odd' is not supported"),
    ):
        with pytest.raises(ModelError, match=sentence):
            load(model, device="cpu")
    for changes, sentence in (
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported"),
        ({"hidden_size": 1 << 40}, "hidden_size must be an integer"),
        ({"vocab_size": NUM_TOKENS - 1}, f"tokenizer of {NUM_TOKENS} tokens and a model of {NUM_TOKENS - 1}"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": NUM_TOKENS, **changes}))
        with pytest.raises(ModelError, match=sentence) as caught:
            load(tmp_path, device="cpu")
        assert str(tmp_path) in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": NUM_TOKENS}))
    monkeypatch.setattr(loading, "free_bytes", lambda _: 3 << 10)
    for model in (str(tmp_path), str(path), "random:llama"):
        with pytest.raises(ModelError, match=r"needs 0\.00 GiB to load its weights as float32, but cpu has"):
            load(model, device="cpu")
    with pytest.raises(ModelError, match="random:llama,hidden_size=100000,head_dim=8,num_layers=4096 needs"):
        load("random:llama,hidden_size=100000,head_dim=8,num_layers=4096", dtype="bfloat16", device="cpu")


def tensors_of(decoder: Decoder) -> Iterator[Any]:
    """Of its layers: plain ones, and those that a matrix keeps."""
    for layer in decoder.layers:
        for part in layer:
            values = [part] if isinstance(part, torch.Tensor) else vars(part).values() if part else []
            yield from (value for value in values if isinstance(value, torch.Tensor))


def test_the_memory_that_loading_needs_is_that_of_the_weights_and_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cpu")
    for dtype in (torch.float32, torch.bfloat16):
        for vocab_size in (8, 4096):
            small = shape(attention_bias=True, vocab_size=vocab_size, eos_token_id=2)
            weights = random_weights(small, seed=1, dtype=dtype)
            held = [tensor.untyped_storage().data_ptr() for tensor in weights.values()]
            fused = packed = 0
            for tensor in tensors_of(Decoder(small, weights)):
                if tensor.is_mkldnn:
                    packed += tensor.numel()
                elif tensor.untyped_storage().data_ptr() not in held:
                    fused += tensor.numel()
            head = vocab_size * small.hidden_size if packed else 0
            most = sum(tensor.numel() for tensor in weights.values()) + packed + max(fused, head)
            assert num_bytes_to_load(small, dtype, device) == dtype.itemsize * most
    needed = num_bytes_to_load(loading.random_shape("random:qwen3"), torch.float32, device)
    for free, possible in ((needed, True), (needed - 1, False), (None, True)):
        monkeypatch.setattr(loading, "free_bytes", lambda _, free=free: free)
        if possible:
            load("random:qwen3", device="cpu")
        else:
            with pytest.raises(ModelError, match="use a smaller model or dtype bfloat16"):
                load("random:qwen3", device="cpu")


def test_free_memory_is_the_least_of_machine_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  900 kB\nMemAvailable:  500 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    monkeypatch.setattr(memory, "CONTROL_GROUP_ROOT", tmp_path)
    device = torch.device("cpu")
    assert free_bytes(device) == 500 * 1024
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("400000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("300000\n")
    (tmp_path / "memory" / "memory.stat").write_text("cache 7\ntotal_cache 50000\n")
    assert free_bytes(device) == 150_000
    for limit, expected in (("300000", 100_000), ("100", 0), ("max", 150_000)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("250000\n")
        (tmp_path / "memory.stat").write_text("anon 1\nfile 50000\n")
        assert free_bytes(device) == expected
    shutil.rmtree(tmp_path / "memory")
    for name in ("meminfo", "memory.max"):
        (tmp_path / name).unlink()
    assert free_bytes(device) is None


def test_memory_that_ends_while_loading_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("can't allocate memory\ntrace"), MemoryError()):

        def fail(*_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(loading, "random_weights", fail)
        with pytest.raises(ModelError, match="random:llama cannot be loaded on cpu") as caught:
            load("random:llama", device="cpu")
        assert "\n" not in str(caught.value)


class Hub:
    """A module like huggingface_hub: one repository, whose main branch may move."""

    def __init__(self, home: Path) -> None:
        self.source = whole_folder(home / "source", num_shards=2)
        for name in ("pytorch_model.bin", "modeling.py", "consolidated.safetensors", "README.md"):
            (self.source / name).write_bytes(b"\x80\x04.")
        (self.source / "original").mkdir()
        (self.source / "original" / "model.safetensors").write_bytes(b"")
        self.cache, self.calls = home / "cache", list[tuple[str, Any]]()
        self.error: Exception | None = None

    def snapshot_download(
        self, repo_id: str, *, revision: Any, allow_patterns: Any, ignore_patterns: Any
    ) -> str:
        if self.error is not None:
            raise self.error
        self.calls.append((repo_id, revision))
        folder = self.cache / COMMIT
        for path in sorted(self.source.rglob("*")):
            name = path.relative_to(self.source).as_posix()
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if path.is_file() and wanted and not any(fnmatch.fnmatch(name, one) for one in ignore_patterns):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / name)
        return str(folder)

    def files(self) -> set[str]:
        folder = self.cache / COMMIT
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path)
    module: Any = types.ModuleType("huggingface_hub")
    module.snapshot_download = found.snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    return found


SMALL_FILES = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"}


def test_a_model_of_the_hub_is_downloaded_without_what_is_not_needed(hub: Hub) -> None:
    loaded = load("owner/na.me-1", device="cpu")
    assert loaded.name == "owner/na.me-1" and loaded.tokenizer is not None
    assert hub.files() == SMALL_FILES | {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    assert hub.calls == [("owner/na.me-1", None), ("owner/na.me-1", COMMIT)]  # what was examined is loaded
    load("owner/name@refs/pr/1", device="cpu")
    assert hub.calls[2:] == [("owner/name", "refs/pr/1"), ("owner/name", COMMIT)]


def test_a_model_of_the_hub_is_refused_before_its_weights_are_downloaded(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, no_weights: None
) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda _: 1000)
    with pytest.raises(ModelError, match="owner/name needs"):
        load("owner/name", device="cpu")
    assert hub.files() == SMALL_FILES and len(hub.calls) == 1


def test_a_model_of_the_hub_that_has_only_pickles_is_refused(hub: Hub) -> None:
    for path in hub.source.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ModelError, match="owner/name has no safetensors on the Hugging Face Hub"):
        load("owner/name", device="cpu")
    assert hub.files() == SMALL_FILES


def test_a_hub_that_cannot_be_asked_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.error = ConnectionError("no route to host\nat all")
    with pytest.raises(ModelError, match=r"ConnectionError: no route to host\): check its name") as caught:
        load("owner/name", device="cpu")
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="needs the package huggingface_hub"):
        load("owner/name", device="cpu")


def test_a_folder_here_goes_before_the_hub(hub: Hub, tmp_path: Path) -> None:
    whole_folder(tmp_path / "owner" / "name", max_position_embeddings=99)
    assert load("owner/name", device="cpu").decoder.shape.max_position_embeddings == 99
    assert hub.calls == []


@pytest.mark.parametrize(
    ("speculate", "expected"),
    [
        ("ngram:3", ("ngram", None, 3)),
        ("null:64", ("null", None, 64)),
        ("draft:smollm2:3", ("draft", "smollm2", 3)),
        ("draft:random:qwen3,num_layers=1:2", ("draft", "random:qwen3,num_layers=1", 2)),
        ("draft:C:\\models\\small:5", ("draft", "C:\\models\\small", 5)),
        ("draft:owner/name@main:1", ("draft", "owner/name@main", 1)),
        ("eagle:random:4", ("eagle", "random", 4)),
        ("eagle:./head:4", ("eagle", "./head", 4)),
    ],
)
def test_a_drafter_is_read_from_its_option(speculate: str, expected: Any) -> None:
    assert drafter_option(speculate) == expected


@pytest.mark.parametrize(
    "speculate",
    [
        *("ngram", "ngram:", "ngram:0", "ngram:65", "ngram:x", "ngram:²", "ngram:-1", "ngram:9999"),
        *("ngram:a:3", "ngram::3", "null:3:", "draft:3", "draft::3", "draft:smollm2", "eagle:3"),
        *("medusa:x:3", "", 3, None),
    ],
)
def test_another_option_is_one_sentence_that_names_the_forms(speculate: Any) -> None:
    with pytest.raises(ModelError, match=r'"ngram:3", "null:3", "draft:MODEL:3" or "eagle:FOLDER:3"'):
        drafter_option(speculate)
