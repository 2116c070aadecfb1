"""What the page about the format says is so: every counter is in its table, its example's calls exist.

That vLLM has the fields of its column is in `tests/vllm/test_attach_mapping.py`.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
from tests.impl.traces.json_schema import is_valid
from tests.impl.traces.trace_world import recorded

from draftproof.impl.traces.format import ANY_RECORD, COUNTERS, After, Exit, decode
from draftproof.spec.events import EVENTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "trace-format.md").read_text()
MAPPING = PAGE.partition("## Whose field is which")[2].partition("## What a verdict says")[0]
EXAMPLE = MAPPING.partition("```python\n")[2].partition("```")[0]
ROWS = [line.strip("|\n ").split(" | ") for line in MAPPING.splitlines() if line.startswith("| `")]
OTHERS: tuple[Any, ...] = (-1, 2**40, "x", 1.5, None, True, [], {})
"""Values that most fields may not have."""


def test_every_counter_is_in_the_table() -> None:
    told = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])}
    assert set(COUNTERS) <= told and all(len(row) == 4 for row in ROWS)


def test_the_calls_in_the_example_are_calls_of_the_recorder() -> None:
    calls = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, ast.Call)]
    events = set()
    for call in calls:
        assert isinstance(call.func, ast.Attribute) or ast.unparse(call.func) == "len"
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if ast.unparse(call.func) == "trace.emit":
            name = ast.literal_eval(call.args[0])
            events.add(name)
            assert set(given) - {"step", "after"} == set(EVENTS[name]._fields)
            if "after" in given:
                after = given["after"]
                assert isinstance(after, ast.Dict)
                assert {ast.literal_eval(key) for key in after.keys if key} <= set(After.__struct_fields__)
        elif ast.unparse(call.func) == "trace.exit":
            assert set(given) - {"step"} <= set(Exit.__struct_fields__)
    assert events == {"admit", "schedule", "chunk_output", "output", "stale_output", "preempt", "finish"}


def test_the_schema_accepts_what_the_types_accept(tmp_path: Path) -> None:
    """Each line of a recording, and each such line with a field less, more or of another kind."""
    schema = json.loads((ROOT / "docs" / "trace-schema.json").read_text())
    decoder = msgspec.json.Decoder(ANY_RECORD)
    lines = recorded(tmp_path / "a.ndjson", True).read_bytes().splitlines()
    kinds = {decode(line).__struct_config__.tag: line for line in lines}
    assert set(EVENTS) <= set(kinds)
    for line in kinds.values():
        record = json.loads(line)
        changed = [record, record | {"more": 1}]
        for field in record:
            changed.append({key: value for key, value in record.items() if key != field})
            changed += [record | {field: value} for value in OTHERS]
        for one in changed:
            try:
                decoder.decode(msgspec.json.encode(one))
                is_accepted = True
            except msgspec.ValidationError:
                is_accepted = False
            assert is_valid(one, schema, schema) == is_accepted, one
