"""Is a file that is no trace refused in one sentence, whatever it holds?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("z3", reason="the prover's packages are not installed")

from tests.gpu.canary_world import without_other_checks  # noqa: E402
from tests.gpu.debug_world import edit, generate, scripted  # noqa: E402
from tests.gpu.runner_world import llm  # noqa: E402

from draftproof.gpu import trace as trace_module  # noqa: E402
from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.replay import replay  # noqa: E402
from draftproof.gpu.trace import TraceError  # noqa: E402

pytestmark = without_other_checks


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A small trace."""
    monkeypatch.setenv("DRAFTPROOF_TRACE_DIR", str(tmp_path))
    with monkeypatch.context() as within, pytest.raises(CanaryError) as caught:
        edit(within, "rejections-stay-computed")
        generate(llm(scripted(), asynchronous=True))
    error = caught.value
    return [json.loads(line) for line in Path(error.trace).read_text().splitlines()]


def written(records: list[Any], folder: Path) -> Path:
    path = folder / "changed.ndjson"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def changed(records: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    """With other fields in the first record of a kind."""
    place = next(place for place, record in enumerate(records) if record["kind"] == kind)
    return [*records[:place], records[place] | fields, *records[place + 1 :]]


WRONG: list[tuple[str, Callable[[Any], Any]]] = [
    ("first line must be of the kind 'run'", lambda records: records[1:]),
    ("has schema 99, and this version reads schema 1", lambda records: changed(records, "run", schema=99)),
    ("is cut off", lambda records: records[:-1]),
    ("line 2: a run cannot be in the middle", lambda records: [records[0], *records]),
    ("there is no kind 'spill'", lambda records: [records[0], {"kind": "spill"}, *records[1:]]),
    ("a record is an object with a kind", lambda records: [records[0], [1], *records[1:]]),
    ("has the fields request", lambda records: changed(records, "add", more=1)),
    ("step must be of the type int", lambda records: changed(records, "launch", step=True)),
    ("step must be an integer from 0", lambda records: changed(records, "launch", step=-1)),
    ("token_ids must be an integer from 0 to 10", lambda records: changed(records, "add", token_ids=[11])),
    ("the prompt is empty", lambda records: changed(records, "add", token_ids=[])),
    ("max_tokens must be an integer from 1", lambda records: changed(records, "add", max_tokens=0)),
    ("is known already", lambda records: [*records[:2], records[1], *records[2:]]),
    ("is not known", lambda records: [records[0], *[{"kind": "abort", "request": "x"}], *records[1:]]),
    ("was not launched", lambda records: changed(records, "outcome", step=77)),
    ("and so has its outcome", lambda records: changed(records, "outcome", sampled=[])),
    ("sampled must be a list of at most", lambda records: changed(records, "outcome", sampled=[[1] * 9] * 4)),
    ("a row of a step is", lambda records: changed(records, "launch", rows=[["0", 1]])),
    ("a step has from 1", lambda records: changed(records, "launch", rows=[["0", 1, 0], ["0", 1, 0]])),
    ("error must be one of", lambda records: [*records[:-1], {
        "kind": "violation", "error": "Other", "request": "", "step": 0, "sentence": ""}]),
    ("no setting 'secret'", lambda records: with_config(records, secret=1)),
    ("num_blocks must be an integer", lambda records: with_config(records, num_blocks=0)),
    ("cells for the KV cache are more than", lambda records: with_config(records, num_blocks=2**30)),
    ("cells for batches are more than", lambda records: with_config(records, max_num_batched_tokens=2**30)),
    ("cells for rows of texts are more than", lambda records: with_config(records, max_model_len=2**30)),
    ("max_num_seqs must be an integer from 0", lambda records: with_config(records, max_num_seqs=2**30)),
    ("one KV cache group", lambda records: changed(records, "run", num_groups=2)),
]  # fmt: skip


def with_config(records: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    return changed(records, "run", config=records[0]["config"] | settings)


def test_what_is_wrong_with_a_file_is_one_sentence(
    records: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sentence, change in WRONG:
        with pytest.raises(TraceError, match=sentence) as caught:
            replay(written(change(records), tmp_path))
        assert "\n" not in str(caught.value)
    path = tmp_path / "other"
    for content, sentence in (
        (b"", "no trace of the runner"),
        (b"\xff\xfe", "it is not text"),
        (b"{", "line 1: this is not JSON"),
        (b"[" * 100_000, "line 1: this is not JSON"),
        (b"1" * 10_000, "line 1: "),
    ):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=sentence):
            replay(path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        replay(tmp_path / "nothing")
    monkeypatch.setattr(trace_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(TraceError, match="larger than a trace can be"):
        replay(written(records, tmp_path))


def test_files_changed_at_random_are_refused_or_run(records: list[dict[str, Any]], tmp_path: Path) -> None:
    """Never another error, whatever a field holds."""
    random = np.random.default_rng(5)
    values: list[Any] = [0, 1, -1, 3, 2**31, 2**70, "", "0", "1", "x", [], [0], {}, None, True, 1.5]
    num_refused = num_run = 0
    for _ in range(150):
        text = json.loads(json.dumps(records))
        for _ in range(int(random.integers(1, 3))):
            holder: Any = text[int(random.integers(len(text)))]
            while True:
                keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
                if not keys:
                    break
                key = keys[int(random.integers(len(keys)))]
                if isinstance(holder[key], (dict, list)) and random.random() < 0.8:
                    holder = holder[key]
                    continue
                value = values[int(random.integers(len(values)))]
                nearby = type(holder[key]) is int and random.random() < 0.8
                holder[key] = holder[key] + int(random.choice([-1, 1])) if nearby else value
                break
        try:
            replay(written(text, tmp_path))
            num_run += 1
        except TraceError as problem:
            num_refused += 1
            assert "\n" not in str(problem)
    assert num_refused > 20 and num_run > 10
