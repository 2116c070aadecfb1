"""What does the page's script need to know about each fault? Stories, joined with their verdicts, compact.

A story has two strips per event with one entry per position; written out they would make most of the
page's size, so a strip travels as three short columns and the script unfolds it (`strip.js`).
"""

from __future__ import annotations

from typing import Any

KV_CODES = {"valid": "v", "enqueued": "e", "draft": "d", "none": "n"}


def compact_strip(cells: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """One strip as columns: first position, tokens, and a letter or digit per position for the rest.

    `known` is 0 for a draft that is not part of the text, `holds` names another token whose KV is there.

    Positions follow each other. Raises `ValueError` for cells that do not.
    """
    if not cells:
        return None
    first = int(cells[0].get("position", 0))
    if [int(cell.get("position", first + index)) for index, cell in enumerate(cells)] != list(
        range(first, first + len(cells))
    ):
        raise ValueError("the positions of a strip do not follow each other")
    return {
        "first": first,
        "tokens": ["" if cell.get("token") is None else str(cell["token"]) for cell in cells],
        "kv": "".join(KV_CODES.get(str(cell.get("kv", "none")), "n") for cell in cells),
        "registered": "".join("1" if cell.get("registered") else "0" for cell in cells),
        "known": "".join("1" if cell.get("known", True) else "0" for cell in cells),
        "holds": [str(cell.get("holds") or "") for cell in cells]
        if any(cell.get("holds") for cell in cells)
        else [],
    }


def _remark(note: str, wrong: list[str]) -> str:
    """A note without what the page says by itself: which counters are wrong, and what is right."""
    pieces = note.split("; ")
    return "; ".join(piece for piece in pieces if piece.partition(" is ")[0] not in wrong)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """One event. Without a `right` ledger the right code refuses the event; an equal one is left out."""
    strip = row.get("strip") or {}
    faulty, right = row.get("faulty") or {}, row.get("right")
    wrong = [str(letter) for letter in row.get("wrong") or []]
    same = (strip.get("faulty"), strip.get("faulty_frontier")) == (
        strip.get("right"),
        strip.get("right_frontier"),
    )
    return {
        "event": str(row.get("event", "")),
        "note": _remark(str(row.get("note") or ""), wrong),
        "faulty": faulty,
        "right": right if right != faulty else None,
        "refused": right is None,
        "wrong": wrong,
        "strip": {
            "faulty": compact_strip(strip.get("faulty")),
            "right": None if same else compact_strip(strip.get("right")),
            "faultyFrontier": strip.get("faulty_frontier"),
            "rightFrontier": None if same else strip.get("right_frontier"),
        }
        if strip.get("faulty") or strip.get("right")
        else None,
    }


def _unique(values: list[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def _changes(story: dict[str, Any]) -> list[dict[str, Any]]:
    """A fault may change several places; `change` alone is the older form."""
    changes = story.get("changes") or [story.get("change")]
    return [change for change in changes if isinstance(change, dict)]


def _story(story: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    reports = [report for report in story.get("reports") or [] if isinstance(report, dict)]
    return {
        "name": str(story.get("fault") or verdict.get("name") or "?"),
        "title": str(story.get("title") or verdict.get("title") or ""),
        "meaning": str(story.get("meaning") or ""),
        "theorem": str(story.get("theorem") or verdict.get("theorem") or ""),
        "engines": _unique([report.get("engine") for report in reports]),
        "areas": _unique([story.get("area"), *(report.get("area") for report in reports)]),
        "violated": [str(name) for name in story.get("violated") or []],
        "reports": [
            {key: str(report.get(key) or "") for key in ("id", "source", "engine", "what_happens")}
            for report in reports
        ],
        "changes": _changes(story),
        "rules": story.get("rules"),
        "promptTokens": story.get("num_prompt_tokens"),
        "rows": [_row(row) for row in story.get("rows") or []],
        "pinned": bool(story.get("pinned")),
        "ownNumbers": str(story.get("own_numbers") or ""),
        "outcome": str(story.get("outcome") or ""),
        "decision": story.get("decision"),
        "verdict": {key: verdict.get(key) for key in ("refuted", "replayed", "found")} if verdict else None,
    }


def fault_data(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Every fault that has a story or a verdict, stories first, each once."""
    details = (data.get("prove") or {}).get("details") or {}
    verdicts = {str(entry.get("name")): entry for entry in details.get("faults") or []}
    told = [
        _story(story, verdicts.pop(str(story.get("fault")), {}))
        for story in data.get("stories") or []
        if story
    ]
    return told + [_story({}, verdict) for verdict in verdicts.values()]
