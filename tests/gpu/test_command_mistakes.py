"""Is every mistake at the command line one sentence, and does a command end as it should?"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.command_world import COMMAND, interpret, process, write_model  # noqa: E402

from draftproof.gpu import generate_command  # noqa: E402
from draftproof.gpu.generate_arguments import add_parser  # noqa: E402
from draftproof.impl.cli import main  # noqa: E402

ENDLESS = ("generate", "random:llama", "--token-ids", "1,2,3", "--max-tokens", "1900", "--ignore-eos")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


P = "{model} p "
WRONG = {
    "no prompt": ("{model}", 2, "there is no prompt"),
    "no model": ("nowhere.gguf p", 1, "there is no model 'nowhere.gguf'"),
    "not a model": ("{here} p", 1, "config.json"),
    "speculation": (P + "--speculate ngram", 2, "speculate must be"),
    "speculation before the model": ("nowhere.gguf p --speculate medusa:3", 2, "speculate must be"),
    "temperature": (P + "--temperature -1", 2, "temperature must be 0"),
    "not a number": (P + "--temperature nan", 2, "temperature must be 0"),
    "top-p": (P + "--top-p 2", 2, "top_p must be"),
    "min-tokens": (P + "--min-tokens 500", 2, "min_tokens=500 is more than max_tokens"),
    "max-tokens": (P + "--max-tokens 0", 2, "max_tokens must be an integer from 1"),
    "empty stop": (P + "--stop=", 2, "at least one character"),
    "stop token": (P + "--stop-token-id 99999", 2, "token 99999"),
    "long prompt": (P + "--max-model-len 8 long-long-long-prompt", 2, "prompt 1: "),
    "model length": (P + "--max-model-len 99999", 1, "max_model_len must be"),
    "memory": (P + "--kv-cache-bytes 10", 1, "does not hold one request"),
    "blocks": (P + "--num-blocks 0", 1, "num_blocks must be"),
    "device": (P + "--device abacus", 1, "device must be"),
    "no ids": (P + "--token-ids", 2, "a prompt is numbers such as 1,2,3, not 'p'"),
    "unknown id": ("{model} 9999 --token-ids", 2, "token 9999"),
    "chat of ids": ("{model} 1 --token-ids --chat", 2, "use one of them"),
    "no text": ("random:llama p", 2, "has no tokenizer"),
    "no template": ("random:llama p --chat", 2, "no chat template"),
    "no file": (P + "--file nowhere", 1, "cannot be read: No such file"),
    "folder": (P + "--file {here}", 1, "cannot be read: Is a directory"),
    "empty file": ("{model} --file {here}/empty", 2, "holds none"),
    "binary file": (P + "--file {here}/binary", 1, "is no UTF-8 text: byte 1 "),
    "draft vocabulary": (P + "--speculate draft:random:llama:3", 1, "vocabulary"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_one_sentence(
    mistake: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "binary").write_bytes(b"a\xff\xfe")
    line, status, sentence = WRONG[mistake]
    arguments = [word.format(model=model, here=tmp_path) for word in line.split()]
    assert main(["generate", *arguments]) == status
    found = capsys.readouterr()
    assert sentence in found.err and found.err.startswith("draftproof: ") and found.out == ""
    assert len(found.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("M p --max-tokens many", "--max-tokens"),
        ("M p --kv-cache-bytes 3X", "a size is a number of bytes, such as 512M or 2G, not '3X'"),
        ("M p --num-blocks 3 --kv-cache-bytes 3", "not allowed with"),
        ("M p --dtype int4", "invalid choice"),
        ("M p --no-such-option 3", "unrecognized arguments: --no-such-option"),
        ("", "MODEL"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_else(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", *line.split()])
    assert caught.value.code == 2 and sentence in capsys.readouterr().err


def test_a_file_too_large_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(generate_command.MAX_FILE_BYTES + 1)
    assert main(["generate", "M", "--file", str(tmp_path / "large")]) == 1
    assert "more than 64 MiB" in capsys.readouterr().err


def test_prompts_stand_anywhere() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    for line in ("M --json a b", "M a --json b", "M a b --json", "--json M a --seed 3 b", "M --json -- a b"):
        options = parser.parse_args(["generate", *line.split()])
        assert (options.model, options.prompts, options.json) == ("M", ["a", "b"], True), line


# ---- in a process of its own ----


def test_a_text_that_was_streamed_is_followed_by_a_clean_end() -> None:
    """The thread that steps has ended before the interpreter does."""
    one = process(COMMAND, "generate", "random:llama", "--token-ids", "1,2,3", "--max-tokens", "5")
    out, error = one.communicate(timeout=60)
    assert one.returncode == 0 and len(out.split()) == 5 and len(error.strip().splitlines()) == 2


def test_ctrl_c_ends_it_with_130() -> None:
    one = process(COMMAND, *ENDLESS)
    assert one.stdout.read(1)  # it has begun to write
    one.send_signal(signal.SIGINT)
    _, error = one.communicate(timeout=60)
    assert one.returncode == 130 and error.strip() == "draftproof: interrupted"


def test_a_closed_pipe_ends_it_quietly() -> None:
    one = process(COMMAND, *ENDLESS)
    assert one.stdout.read(1)
    one.stdout.close()
    error = one.stderr.read()
    assert one.wait(timeout=60) == 0 and error == ""


def test_what_waits_in_the_buffer_of_a_closed_pipe_is_dropped_quietly() -> None:
    code = """
import sys
from draftproof.gpu.command_errors import pipe_may_close
sys.stdin.read()  # until the reader has gone
with pipe_may_close():
    print("text")
"""
    one = process(code)
    one.stdout.close()
    one.stdin.close()
    assert one.stderr.read() == "" and one.wait(timeout=60) == 0


def test_torch_is_not_needed_to_ask_for_help() -> None:
    code = """
import contextlib, io, sys
from draftproof.impl.cli import main
for arguments in (["--help"], ["generate", "--help"], ["generate", "M"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(arguments)
assert "torch" not in sys.modules and "numba" not in sys.modules, "loaded"
sys.modules["torch"] = None  # as if it were not installed
print(main(["generate", "M", "p"]), main(["demo"]), main(["fetch", "gpt5"]))
"""
    one = process(code)
    out, error = one.communicate(timeout=60)
    assert (
        out.split() == ["1", "1", "2"] and error.count("torch cannot be imported: the runner needs it") == 2
    )
    assert "Traceback" not in error
