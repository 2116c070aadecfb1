"""Do the commands do what the library does? With a tiny model."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.command_world import interpret, write_model  # noqa: E402

from draftproof.gpu import demo, generate_command  # noqa: E402
from draftproof.gpu import llm as llm_module  # noqa: E402
from draftproof.gpu.figures import Figures, table  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.impl.cli import main  # noqa: E402

PROMPTS = ("the cat and the hat", "that sat and the cat the cat the", "why?")
SMALL = (
    "--num-blocks",
    "200",
    "--max-model-len",
    "256",
    "--max-tokens",
    "12",
    "--ignore-eos",
    "--dtype",
    "float32",
)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: str) -> list[Any]:
    """What the library makes of the prompts."""
    one = LLM(model, num_blocks=200, max_model_len=256, dtype="float32", compiled=False)
    return one.generate(
        PROMPTS, SamplingParameters(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    )


def records(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["generate", *arguments, "--json"]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return [json.loads(line) for line in found.out.splitlines()]


# ---- what comes out ----


@pytest.mark.parametrize("how", ["", "--async", "--speculate ngram:3", "--speculate null:2 --async"])
def test_json_says_what_the_library_says(
    how: str, model: str, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = records(capsys, model, *PROMPTS, *SMALL, *how.split(), "--logprobs", "2")
    for one, result in zip(found, expected, strict=True):
        assert one["text"] == result.text and tuple(one["token_ids"]) == result.token_ids
        assert one["finish_reason"] == "length" and one["stop_reason"] is one["error"] is None
        assert one["num_prompt_tokens"] == len(result.prompt_token_ids) and one["num_cached_tokens"] == 0
        assert 0 <= one["num_accepted_tokens"] <= one["num_draft_tokens"]
        assert 0 < one["timings"]["first_token"] <= one["timings"]["total"]
        for said, logprob in zip(one["logprobs"], result.logprobs, strict=True):
            assert said["token_id"] == logprob.token_id and said["rank"] == 1
            assert abs(said["logprob"] - logprob.logprob) < 1e-4
            assert list(said["top"]) == [str(token) for token, _ in logprob.top]
    assert (sum(one["num_draft_tokens"] for one in found) > 0) == ("ngram:3" in how)


def test_one_prompt_is_written_as_it_comes(
    model: str, expected: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    write = generate_command._write

    def watched(*parts: str) -> None:
        pieces.extend(parts)
        write(*parts)

    monkeypatch.setattr(generate_command, "_write", watched)
    assert main(["generate", model, PROMPTS[0], *SMALL]) == 0
    found = capsys.readouterr()
    assert found.out == expected[0].text + "\n" and len([piece for piece in pieces if piece.strip()]) > 3
    titles, numbers = found.err.strip().splitlines()
    assert titles.split()[:3] == ["tokens", "steps", "tokens/step"]
    assert numbers.split()[:5] == ["12", "12", "1.00", "-", "0"]


def test_several_prompts_are_written_in_their_order(
    model: str, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", model, *PROMPTS, *SMALL]) == 0
    found = capsys.readouterr()
    assert found.out == "".join(f"--- prompt {place}\n{one.text}\n" for place, one in enumerate(expected))
    rows = found.err.strip().splitlines()
    assert [row.split()[:3] for row in rows[1:4]] == [["prompt", str(place), "12"] for place in range(3)]
    assert rows[4].split()[:4] == ["all", "3", "36", "12"]
    assert main(["generate", model, *PROMPTS * 3, *SMALL, "--max-tokens", "1"]) == 0
    assert len(capsys.readouterr().err.strip().splitlines()) == 2  # nine prompts are one row


def test_token_ids_go_in_and_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("random:llama", "--token-ids", "1, 2,3", *SMALL)
    (found,) = records(capsys, *given)
    assert found["text"] is None and found["num_prompt_tokens"] == 3
    for prompts in ((), ("4",)):
        assert main(["generate", *given, *prompts]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [int(token) for token in lines[0 if not prompts else 1].split()] == found["token_ids"]


def test_chat_goes_through_the_template(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = records(capsys, model, "why?", "--chat", *SMALL)
    one = LLM(model, num_blocks=200, max_model_len=256, dtype="float32", compiled=False)
    parameters = SamplingParameters(temperature=0, max_tokens=12, ignore_eos=True)
    result = one.chat([{"role": "user", "content": "why?"}], parameters)
    assert tuple(found["token_ids"]) == result.token_ids
    assert found["num_prompt_tokens"] == len(result.prompt_token_ids) > len(one.tokenizer.encode("why?"))


def test_prompts_come_from_files_and_from_stdin(
    model: str, expected: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    content = f"\ufeff{PROMPTS[1]}\r\n\n  \n{PROMPTS[2]}\n".encode()
    (tmp_path / "prompts").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    for path in (str(tmp_path / "prompts"), "-"):
        found = records(capsys, model, PROMPTS[0], "--file", path, *SMALL)
        assert [one["text"] for one in found] == [result.text for result in expected]


def test_a_stop_string_ends_the_text(
    model: str, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text, tokens = expected[0].text, expected[0].token_ids
    (found,) = records(capsys, model, PROMPTS[0], *SMALL, "--stop", "never", "--stop", text[4:6])
    assert found["text"] == text[: text.index(text[4:6])] and found["stop_reason"] == text[4:6]
    (found,) = records(capsys, model, PROMPTS[0], *SMALL, "--stop-token-id", str(tokens[3]))
    assert found["token_ids"] == list(tokens[: tokens.index(tokens[3]) + 1])
    assert found["finish_reason"] == "stop" and found["stop_reason"] == tokens[3]


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Recorder:
        def __init__(self, name: str, **options: Any) -> None:
            given.update(options, model=name)

        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None:
            given["closed"] = True

    def generate(llm: Any, prompts: Any, parameters: Any, *, as_json: bool) -> int:
        given.update(prompts=prompts, parameters=parameters)
        return 0

    monkeypatch.setattr(llm_module, "LLM", Recorder)
    monkeypatch.setattr(generate_command, "generate", generate)
    line = (
        "generate M --speculate draft:a:b:3 one --async --max-tokens 9 --temperature 0.5 --top-p 0.9 "
        "--top-k 7 --min-p 0.1 --repetition-penalty 1.5 two --seed 4 --stop a --stop b --stop-token-id 5 "
        "--stop-token-id 6 --ignore-eos --min-tokens 2 --logprobs 3 --dtype bfloat16 --device cpu "
        "--max-model-len 64 --max-num-seqs 2 --kv-cache-bytes 3M --runner-process three -- --four"
    )
    assert main(line.split()) == 0
    parameters = given.pop("parameters")
    assert parameters == SamplingParameters(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.5, seed=4, max_tokens=9,
        min_tokens=2, stop=("a", "b"), stop_token_ids=(5, 6), ignore_eos=True, logprobs=3,
    )  # fmt: skip
    assert given == {
        "model": "M", "prompts": ["one", "two", "three", "--four"], "speculate": "draft:a:b:3",
        "asynchronous": True, "dtype": "bfloat16", "device": "cpu", "max_model_len": 64, "max_num_seqs": 2,
        "kv_cache_bytes": 3 * 2**20, "runner_process": True, "closed": True,
    }  # fmt: skip
    given.clear()
    assert main(["generate", "M", "p"]) == 0
    assert given.pop("parameters") == SamplingParameters(temperature=0, max_tokens=128)
    assert given == {"model": "M", "prompts": ["p"], "closed": True}  # the library's own defaults


def test_a_request_that_fails_is_told_and_ends_with_1(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftproof.gpu.models.decoder import Decoder

    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: logits(self, hidden) * float("nan"))
    assert main(["generate", model, *PROMPTS[:2], *SMALL]) == 1
    error = capsys.readouterr().err
    assert "draftproof: prompt 0 failed: the model's logits were not numbers" in error


# ---- the demo, and the table ----


def test_the_demo_says_the_same_in_every_mode(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[str]] = []
    chat = LLM.chat

    def watched(one: LLM, messages: Any, parameters: Any) -> Any:
        result = chat(one, messages, parameters)
        said.append([*[message["content"] for message in messages], str(result.text)])
        return result

    monkeypatch.setattr(LLM, "chat", watched)
    assert main(["demo", "--model", model, "--max-tokens", "10"]) == 0
    for place in range(0, len(said), 4):
        opened, continued = said[place + 2 : place + 4]
        assert continued[:2] == opened and len(continued) == 4  # the question with its answer, and one more
    out = capsys.readouterr().out
    assert out.rstrip().endswith("The texts are identical in all 4 runs.")
    for name, _ in demo.MODES:
        assert f"\n{name}\n" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("open, continued ")]
    cached = [int(row[6]) for row in rows]
    assert len(rows) == 4 and min(cached) > 0


def test_the_demo_says_so_if_a_text_differs(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [("one", {}), ("two", {"max_num_batched_tokens": 64})]
    answers = demo._answers
    monkeypatch.setattr(demo, "MODES", others)

    def changed(loaded: Any, parameters: Any, options: Any) -> Any:
        found = answers(loaded, parameters, options)
        if options:
            found["summary"] = found["summary"]._replace(token_ids=(1,))
        return found

    monkeypatch.setattr(demo, "_answers", changed)
    assert main(["demo", "--model", model, "--max-tokens", "2"]) == 1
    assert "The texts are NOT identical: summary differ" in capsys.readouterr().out


def test_the_demo_needs_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "random:llama"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["demo", "--max-tokens", "0"]) == 2


def test_the_table_leaves_out_what_is_not_known() -> None:
    rows = table([
        Figures("a", 12, 4, 9, 6, 48, 0.25, 2.0),
        Figures("longer", 0, None, 0, 0, 0, None, 0.0),
    ]).splitlines()  # fmt: skip
    assert rows[1].split() == ["a", "12", "4", "3.00", "67%", "48", "0.25", "s", "2.00", "6.0"]
    assert rows[2].split() == ["longer", "0", "-", "-", "-", "0", "-", "0.00", "-"]
    assert len({len(row) for row in rows}) == 1
