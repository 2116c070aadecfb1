"""What does a runner's trace say? Read and checked, line by line, before anything is made of it.

A trace may come from anywhere: its size is bounded, every field is checked, and what does not fit is a
TraceError that names the line. `draftproof.gpu.recording` writes traces, `draftproof.gpu.replay` runs them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from draftproof.gpu.drafters.step import MAX_SPECULATIVE_TOKENS
from draftproof.gpu.recording import MAX_TRACE_BYTES, SCHEMA
from draftproof.impl.scheduler import ConfigError, SchedulerConfig
from draftproof.impl.scheduler.batch import batch_size
from draftproof.impl.scheduler.memory import settings_for

MAX_FILE_BYTES = MAX_TRACE_BYTES + 2**20
MAX_CELLS, MAX_SLOTS = 2**27, 2**24
"""Of the tables that a replay makes: texts, and what steps may hold; KV slots."""
MAX_ROWS, MAX_STEPS_AHEAD, MAX_STOPS = 2**16, 64, 2**12
MAX_INTEGER = 2**31 - 1
MAX_TEXT = 10_000

LIMITS = {"max_tokens": int, "min_tokens": int, "stop_token_ids": list, "ignore_eos": bool}
FIELDS: dict[str, dict[str, type]] = {
    "run": {"schema": int, "version": str, "config": dict, "num_groups": int, "eos_token_ids": list,
            "first_step": int, "why_incomplete": str},
    "add": {"request": str, "is_session": bool, "token_ids": list, **LIMITS},
    "append": {"request": str, "token_ids": list, **LIMITS},
    "close": {"request": str},
    "abort": {"request": str},
    "step": {},
    "launch": {"step": int, "rows": list},
    "failed": {"step": int, "where": str},
    "outcome": {"step": int, "sampled": list, "drafts": list},
    "violation": {"error": str, "request": str, "step": int, "sentence": str},
}  # fmt: skip
"""By kind; a violation has more, by its error."""
VIOLATIONS: dict[str, dict[str, type]] = {
    "CanaryError": {"position": int, "block": int, "expected": str, "found": str},
    "LedgerError": {"counter": str, "on_host": int, "on_device": int},
}
CALLS = ("add", "append", "close", "abort", "step")


class TraceError(ValueError):
    """A file that is no trace, or cannot be run again; the message says where and why."""


class Found(NamedTuple):
    """A violation: what it is, and where."""

    error: str
    """`CanaryError`, `LedgerError`, or the name of another error that only the replay came to."""
    step: int
    request: str
    place: int | str
    """The position that was read, or the counter."""
    sentence: str

    def is_same(self, other: Found) -> bool:
        """Whether both name the same error, step, request and position or counter."""
        return self[:4] == other[:4]


class Call(NamedTuple):
    """What was asked of the engine."""

    kind: str
    fields: dict[str, Any]
    line: int


class Step(NamedTuple):
    """A step that was launched. Lists have its rows' order."""

    request_ids: tuple[str, ...]
    num_tokens: tuple[int, ...]
    num_drafts: tuple[int, ...]
    failed: str = ""
    """`launch` or `read`, if it did not come to an outcome."""
    sampled: list[list[int]] | None = None
    """What each row sampled: accepted drafts and the token after them; None if that is not known."""
    drafts: list[list[int]] | None = None
    """What was drafted for each row's next step."""


class Trace(NamedTuple):
    """A run up to its violation."""

    config: SchedulerConfig
    eos_token_ids: tuple[int, ...]
    first_step: int
    calls: tuple[Call, ...]
    steps: dict[int, Step]
    violation: Found


def read_trace(path: Path | str) -> Trace:
    """A trace that can be run again. Raises TraceError for anything else."""
    records = [(number, _record(number, line)) for number, line in enumerate(_lines(path), 1)]
    if not records or records[0][1]["kind"] != "run":
        raise TraceError(f"{path} is no trace of the runner: its first line must be of the kind 'run'")
    first = records[0][1]
    if first["schema"] != SCHEMA:
        raise TraceError(f"{path} has schema {first['schema']}, and this version reads schema {SCHEMA}")
    if first["why_incomplete"]:
        raise TraceError(
            f"{path} begins in the middle of a run ({first['why_incomplete'][:100]}): it can be read, but "
            "not run again"
        )
    if records[-1][1]["kind"] != "violation":
        raise TraceError(f"{path} is cut off: its last line must be of the kind 'violation'")
    config = _config(first)
    for number, record in records[1:-1]:
        if record["kind"] in ("run", "violation"):
            _refuse(number, f"a {record['kind']} cannot be in the middle of a trace")
    between = records[1:-1]
    return Trace(
        config,
        tuple(_integers(1, "eos_token_ids", first["eos_token_ids"], config.vocab_size - 1)),
        _integer(1, "first_step", first["first_step"], MAX_INTEGER),
        tuple([_call(number, one, config) for number, one in between if one["kind"] in CALLS]),
        _steps(between, config),
        _violation(*records[-1]),
    )


def _lines(path: Path | str) -> list[str]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise TraceError(f"{path} cannot be read: {problem.strerror or problem}") from problem
    if len(content) > MAX_FILE_BYTES:
        raise TraceError(f"{path} is larger than a trace can be, {MAX_FILE_BYTES} bytes")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as problem:
        raise TraceError(f"{path} is no trace: it is not text") from problem
    return lines if lines[-1] else lines[:-1]


def _record(number: int, line: str) -> dict[str, Any]:
    """A line with the fields of its kind, each of its type."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise TraceError(f"line {number}: this is not JSON") from problem
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        _refuse(number, "a record is an object with a kind")
    kind = record["kind"]
    if kind not in FIELDS:
        _refuse(number, f"there is no kind {kind[:40]!r}")
    expected = FIELDS[kind]
    if kind == "violation":
        expected = expected | VIOLATIONS.get(str(record.get("error")), {})
    if set(record) != {"kind", *expected}:
        _refuse(number, f"a record of the kind {kind!r} has the fields {', '.join(expected) or 'of no name'}")
    for name, kind_of in expected.items():
        value = record[name]
        if type(value) is not kind_of or (isinstance(value, str) and len(value) > MAX_TEXT):
            _refuse(number, f"{name} must be of the type {kind_of.__name__}")
    return record


def _config(first: dict[str, Any]) -> SchedulerConfig:
    """Raises TraceError for one that cannot be, or whose tables would be too large."""
    settings = first["config"]
    names = {field.name for field in dataclasses.fields(SchedulerConfig) if field.init}
    unknown = sorted(set(settings) - names)
    if unknown:
        _refuse(1, f"a configuration has no setting {unknown[0][:40]!r}")
    if first["num_groups"] != 1 or "groups" in settings:
        _refuse(1, "only runs with one KV cache group can be run again")
    bounds = {"max_num_requests": MAX_ROWS, "max_num_seqs": MAX_ROWS, "max_in_flight_steps": MAX_STEPS_AHEAD,
              "max_stop_token_ids": MAX_STOPS, "num_speculative_tokens": MAX_SPECULATIVE_TOKENS}  # fmt: skip
    for name, most in bounds.items():
        _integer(1, name, settings.get(name, 0), most)
    try:
        config = SchedulerConfig(**settings)
    except (ConfigError, TypeError) as problem:
        raise TraceError(f"line 1: this configuration cannot be: {problem}") from problem
    row = config.max_model_len + config.max_stop_token_ids + MAX_SPECULATIVE_TOKENS
    batches = batch_size(settings_for(config, 0)) * (config.max_in_flight_steps + 2)
    for what, cells, most in (
        ("rows of texts", (config.max_num_requests + 1) * row, MAX_CELLS),
        ("the KV cache", (config.num_blocks + 1) * config.block_size, MAX_SLOTS),
        ("batches", batches, MAX_CELLS),
    ):
        if cells > most:
            _refuse(1, f"tables of {cells} cells for {what} are more than a replay takes, {most}")
    return config


def _call(number: int, record: dict[str, Any], config: SchedulerConfig) -> Call:
    for name in ("token_ids", "stop_token_ids"):
        if name in record:
            _integers(number, name, record[name], config.vocab_size - 1)
    return Call(record["kind"], record, number)


def _steps(records: list[tuple[int, dict[str, Any]]], config: SchedulerConfig) -> dict[int, Step]:
    steps: dict[int, Step] = {}
    for number, record in records:
        kind = record["kind"]
        if kind not in ("launch", "failed", "outcome"):
            continue
        step = _integer(number, "step", record["step"], MAX_INTEGER)
        if kind == "launch":
            if step in steps:
                _refuse(number, f"step {step} was launched before")
            steps[step] = _launched(number, record["rows"], config)
            continue
        if step not in steps or steps[step].sampled is not None or steps[step].failed:
            _refuse(number, f"step {step} was not launched, or has ended before")
        if kind == "outcome":
            steps[step] = _with_outcome(number, record, steps[step], config)
        elif record["where"] not in ("launch", "read"):
            _refuse(number, "a step fails in its 'launch' or when it is 'read'")
        else:
            steps[step] = steps[step]._replace(failed=record["where"])
    return steps


def _launched(number: int, rows: list[Any], config: SchedulerConfig) -> Step:
    for row in rows:
        if type(row) is not list or len(row) != 3 or type(row[0]) is not str:
            _refuse(number, "a row of a step is a request, its tokens and how many of them are drafts")
        _integer(number, "a row's tokens", row[1], MAX_INTEGER)
        _integer(number, "a row's drafts", row[2], config.num_speculative_tokens)
    if not 1 <= len(rows) <= config.max_num_requests or len({row[0] for row in rows}) < len(rows):
        _refuse(number, f"a step has from 1 to {config.max_num_requests} rows, of different requests")
    return Step(*[tuple([row[place] for row in rows]) for place in range(3)])  # type: ignore[arg-type]


def _with_outcome(number: int, record: dict[str, Any], step: Step, config: SchedulerConfig) -> Step:
    sampled, drafts = record["sampled"], record["drafts"]
    if len(sampled) != len(step.request_ids) or len(drafts) != len(sampled):
        _refuse(number, f"the step has {len(step.request_ids)} rows, and so has its outcome")
    for tokens, more, num_drafts in zip(sampled, drafts, step.num_drafts, strict=True):
        _integers(number, "sampled", tokens, config.vocab_size - 1, num_drafts + 1)
        _integers(number, "drafts", more, config.vocab_size - 1, config.num_speculative_tokens, least=-1)
    return step._replace(sampled=sampled, drafts=drafts)


def _violation(number: int, record: dict[str, Any]) -> Found:
    if record["error"] not in VIOLATIONS:
        _refuse(number, f"error must be one of {', '.join(VIOLATIONS)}")
    place = record["position"] if record["error"] == "CanaryError" else record["counter"]
    return Found(record["error"], record["step"], record["request"], place, record["sentence"])


def _integer(number: int, name: str, value: Any, most: int, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        _refuse(number, f"{name} must be an integer from {least} to {most}")
    return int(value)


def _integers(
    number: int, name: str, values: Any, most: int, most_values: int = MAX_INTEGER, least: int = 0
) -> list[int]:
    if type(values) is not list or len(values) > most_values:
        _refuse(number, f"{name} must be a list of at most {most_values} integers")
    for value in values:
        _integer(number, name, value, most, least)
    return list(values)


def _refuse(number: int, sentence: str) -> NoReturn:
    raise TraceError(f"line {number}: {sentence}")
