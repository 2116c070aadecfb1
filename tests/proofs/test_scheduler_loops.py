"""The list of the scheduler's loops is complete, and what it calls proved is proved."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.impl.test_scheduler_stateful import NUM_RULES

from draftproof.impl.scheduler import compiled, recurrent_blocks
from draftproof.proofs import scheduler_loops
from draftproof.proofs.scheduler_loops import ALL, TOPICS, Loops
from draftproof.proofs.sources import SOURCES, built

ROOMS: list[ModuleType] = list(
    dict.fromkeys(
        [room for room in compiled.ROOMS if room.__name__.startswith("draftproof.impl.scheduler.")]
        + [recurrent_blocks]
    )
)
"""What is compiled of the scheduler, and what will be; sweeps and debug mode only look."""


def name_of(room: ModuleType) -> str:
    return room.__name__.rpartition(".")[2]


def with_loops(room: ModuleType) -> Iterator[str]:
    """The functions and methods of a module that have a loop."""
    for node in ast.walk(ast.parse(inspect.getsource(room))):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(inner, ast.For | ast.While) for inner in ast.walk(node)
        ):
            yield node.name


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_every_loop_is_listed_and_every_entry_has_one(room: ModuleType) -> None:
    listed = {loops.function for loops in ALL if loops.room == name_of(room)}
    assert listed == {""} or listed == set(with_loops(room)), (
        f"list the loops of {name_of(room)} in draftproof.proofs.scheduler_loops"
    )


def test_the_list_is_about_rooms_that_there_are_and_lists_nothing_twice() -> None:
    assert {loops.room for loops in ALL} <= {name_of(room) for room in ROOMS}
    places = [(loops.room, loops.function) for loops in ALL]
    assert len(places) == len(set(places))


def test_what_is_called_proved_is_an_obligation() -> None:
    queued = ("refinement_", "queue_bounds", "token_identity")
    names = {claim.name for source in SOURCES if not source.startswith(queued) for claim in built(source)}
    missing = {
        path for loops in ALL for path in loops.proved if not any(name.startswith(path) for name in names)
    }
    assert missing == set()


def test_an_entry_says_what_is_left_or_is_proved_as_a_whole() -> None:
    whole = [loops for loops in ALL if not loops.explored]
    assert [loops.function for loops in whole] == ["fill_block"]
    parts = {path.split("/")[2] for loops in whole for path in names_of_whole(loops)}
    assert parts >= {"starts", "round", "ends"}


def names_of_whole(loops: Loops) -> list[str]:
    """The obligations of a loop that is proved by its invariant: its start, a round, its end."""
    return [claim.name for claim in built(loops.proved[0].rstrip("/"))]


def test_the_bound_is_that_of_the_tests() -> None:
    told = [topic.bound for topic in TOPICS if "calls" in topic.bound]
    assert told
    assert all(f"up to {NUM_RULES} calls" in bound for bound in told), "the report states another bound"


def test_the_report_shows_every_loop_that_is_not_proved_as_a_whole() -> None:
    shown = scheduler_loops.explored()
    assert len(shown) == len(TOPICS)
    text = " ".join(entry["what"] for entry in shown)
    assert [loops for loops in ALL if loops.explored and (loops.function or loops.room) not in text] == []
