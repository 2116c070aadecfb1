"""Does a value keep to a JSON schema? The few keywords that a trace's schema has; any other is an error."""

from __future__ import annotations

import re
from typing import Any

KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
REMARKS = {"$schema", "$defs", "title", "description", "default", "discriminator"}
"""Keywords that refuse nothing."""


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether the value is one that the schema describes; `root` holds what `$ref` refers to."""
    return all(_holds(word, schema, value, root) for word in schema.keys() - REMARKS)


def _holds(word: str, schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    wanted = schema[word]
    if word == "$ref":
        return is_valid(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
    if word == "anyOf":
        return any(is_valid(value, one, root) for one in wanted)
    if word == "enum":
        return any(type(one) is type(value) and one == value for one in wanted)
    if word == "type":
        return isinstance(value, KINDS[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
    if word in ("minimum", "maximum"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return not is_number or (value >= wanted if word == "minimum" else value <= wanted)
    if word in ("maxLength", "pattern"):
        is_text = isinstance(value, str)
        return not is_text or (
            len(value) <= wanted if word == "maxLength" else bool(re.search(wanted, value))
        )
    if word in ("maxItems", "items"):
        is_list = isinstance(value, list)
        if word == "maxItems":
            return not is_list or len(value) <= wanted
        return not is_list or all(is_valid(one, wanted, root) for one in value)
    if not isinstance(value, dict):
        if word in ("properties", "required", "additionalProperties"):
            return True
    elif word == "properties":
        return all(is_valid(value[name], one, root) for name, one in wanted.items() if name in value)
    elif word == "required":
        return value.keys() >= set(wanted)
    elif word == "additionalProperties":
        return bool(wanted) or value.keys() <= schema["properties"].keys()
    raise AssertionError(f"a schema keyword that is not known here: {word}")
