"""One source, many carriers: plain integers, Numba, numpy, torch and solver terms give the same ledgers.

Compared on calls from random walks over the exact queue (states that occur) and on arbitrary integers
(negative ones too, where carriers round and wrap differently), for every transition.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.impl import accounting, carrier_numpy, compiled, dispatch
from draftproof.impl.contracts import plain
from draftproof.proofs import carrier_z3
from draftproof.spec import algebra, queue
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Event, Finish, Schedule, event_name
from draftproof.spec.ledger import Ledger, Rules, initial
from draftproof.spec.walks import Sizes, choices, pick

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

CODE: dict[str, Callable[..., Ledger]] = {name: plain(code) for name, code in accounting.TRANSITIONS.items()}


class Call(NamedTuple):
    """A ledger and the event that moves it."""

    ledger: Ledger
    event: Event


def on_integers(name: str, rules: Rules, calls: Sequence[Call]) -> list[Ledger]:
    return [CODE[name](call.ledger, rules, *call.event) for call in calls]


def on_numba(name: str, rules: Rules, calls: Sequence[Call]) -> list[Ledger]:
    return [compiled.compiled(name)(call.ledger, rules, *call.event) for call in calls]


def argument_columns(calls: Sequence[Call]) -> list[list[Any]]:
    return [list(column) for column in zip(*[tuple(call.event) for call in calls], strict=True)]


def on_numpy(name: str, rules: Rules, calls: Sequence[Call]) -> list[Ledger]:
    arguments = [np.array(column) for column in argument_columns(calls)]
    ledgers = carrier_numpy.columns([call.ledger for call in calls])
    after = carrier_numpy.apply(CODE[name], ledgers, rules, *arguments)
    return [carrier_numpy.row(after, index) for index in range(carrier_numpy.row_count(after))]


def on_torch(kind: str) -> Callable[[str, Rules, Sequence[Call]], list[Ledger]]:
    def run(name: str, rules: Rules, calls: Sequence[Call]) -> list[Ledger]:
        import torch

        from draftproof.gpu import carrier_torch

        dtype = getattr(torch, kind)
        arguments = [
            torch.tensor(column, dtype=torch.bool if type(column[0]) is bool else dtype)
            for column in argument_columns(calls)
        ]
        ledgers = carrier_torch.columns([call.ledger for call in calls], dtype)
        after = carrier_torch.apply(CODE[name], ledgers, rules, *arguments)
        return [carrier_torch.row(after, index) for index in range(carrier_torch.row_count(after))]

    return run


def constant(term: Any) -> Any:
    """The Python scalar that a closed term folds to."""
    folded = z3.simplify(term)
    if z3.is_int_value(folded):
        return folded.as_long()
    assert z3.is_true(folded) or z3.is_false(folded), f"{folded} is no constant"
    return z3.is_true(folded)


def on_z3(name: str, rules: Rules, calls: Sequence[Call]) -> list[Ledger]:
    results = []
    for call in calls:
        event = carrier_z3.as_terms(call.event)
        after = CODE[name](carrier_z3.as_terms(call.ledger), rules, *event)
        results.append(Ledger(*[constant(term) for term in carrier_z3.as_terms(after)]))
    return results


CARRIERS: dict[str, Callable[[str, Rules, Sequence[Call]], list[Ledger]]] = {
    "numba": on_numba,
    "numpy": on_numpy,
    "torch int64": on_torch("int64"),
    "torch int32": on_torch("int32"),
    "z3": on_z3,
}
EACH_CARRIER = [
    pytest.param(carrier, marks=needs_torch if carrier.startswith("torch") else ()) for carrier in CARRIERS
]
NUM_CALLS_FOR_Z3 = 2  # building terms costs milliseconds


def agree(carrier: str, name: str, rules: Rules, calls: Sequence[Call]) -> int:
    """Assert that a carrier gives the ledgers of plain integers, kinds of value included."""
    if carrier == "z3":
        calls = calls[:NUM_CALLS_FOR_Z3]
    expected = on_integers(name, rules, calls)
    found = CARRIERS[carrier](name, rules, calls)
    assert [typed(ledger) for ledger in found] == [typed(ledger) for ledger in expected], (name, rules, calls)
    return len(calls)


def typed(ledger: Ledger) -> dict[str, tuple[str, int]]:
    """Values with their kinds: True is not 1 here."""
    return {field: (type(value).__name__, value) for field, value in ledger._asdict().items()}


@st.composite
def walked(draw: st.DrawFn) -> tuple[Rules, dict[str, list[Call]]]:
    """Rules, and the calls of a random walk over the exact queue, by transition."""
    rules = Rules(
        num_speculative_tokens=draw(st.integers(0, 4)),
        block_size=draw(st.integers(1, 20)),
        asynchronous=draw(st.booleans()),
        registration_fence=draw(st.integers(0, 3)),
    )
    sizes = Sizes(max_num_tokens=100, max_num_chunk_tokens=20, max_num_steps_in_flight=4)
    run = queue.start(draw(st.integers(1, 40)))
    calls: dict[str, list[Call]] = {}
    for number in draw(st.lists(st.integers(0, 2**20), min_size=30, max_size=50)):
        options = choices(run, rules, sizes)
        if not options:
            break
        event = pick(options, number, lambda option: option)
        calls.setdefault(event_name(event), []).append(Call(run.state.ledger, event))
        run = queue.advance(run, rules, event, CODE)
    return rules, calls


@pytest.mark.parametrize("carrier", EACH_CARRIER)
def test_carriers_agree_on_ledgers_that_occur(carrier: str) -> None:
    compared: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(walked())
    def compare(setup: tuple[Rules, dict[str, list[Call]]]) -> None:
        rules, calls = setup
        for name in calls:
            compared[name] += agree(carrier, name, rules, calls[name])

    compare()
    assert set(compared) == set(EVENTS), "some transition was never compared"


COUNTS = st.integers(-(2**20), 2**20)
RULES = st.builds(Rules, COUNTS, st.integers(1, 2**12), st.booleans(), COUNTS)
LEDGERS = st.builds(
    Ledger,
    *[COUNTS] * (len(Ledger._fields) - 2),
    status=st.integers(0, 4),
    drop_stale=st.booleans(),
)


def events(name: str) -> st.SearchStrategy[Any]:
    fields = EVENTS[name]._fields
    return st.builds(
        EVENTS[name], *[st.booleans() if field in BOOLEAN_ARGUMENTS else COUNTS for field in fields]
    )


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("carrier", EACH_CARRIER)
def test_carriers_agree_on_any_integers(carrier: str, name: str) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(RULES, st.lists(st.builds(Call, LEDGERS, events(name)), min_size=1, max_size=6))
    def compare(rules: Rules, calls: list[Call]) -> None:
        agree(carrier, name, rules, calls)

    compare()


# ---- what a step will bring back --------------------------------------------------------------------------

TOLD: dict[str, Callable[[Ledger, Any], Any]] = {
    "num_drafts": dispatch.num_drafts_in_step,
    "samples": dispatch.samples_in_step,
}


def num_new_tokens(call: Call) -> int:
    assert isinstance(call.event, Schedule)
    return call.event.num_new_tokens


@functools.cache
def told_by_numba(name: str) -> Callable[[Ledger, Any], Any]:
    return numba.njit(TOLD[name])  # type: ignore[no-any-return]


def told(carrier: str, name: str, calls: Sequence[Call]) -> list[Any]:
    """The answers of a carrier to calls of `schedule`, as Python scalars."""
    code, asked = TOLD[name], [num_new_tokens(call) for call in calls]
    ledgers = [call.ledger for call in calls]
    if carrier == "numba":
        return [told_by_numba(name)(ledger, number) for ledger, number in zip(ledgers, asked, strict=True)]
    if carrier == "z3":
        pairs = [(carrier_z3.as_terms(call.ledger), z3.IntVal(num_new_tokens(call))) for call in calls]
        return [constant(code(ledger, number)) for ledger, number in pairs]
    if carrier == "numpy":
        return list(code(carrier_numpy.columns(ledgers), np.array(asked)).tolist())
    import torch

    from draftproof.gpu import carrier_torch

    dtype = getattr(torch, carrier.removeprefix("torch "))
    found = code(carrier_torch.columns(ledgers, dtype), torch.tensor(asked, dtype=dtype))
    assert found.dtype == (torch.bool if name == "samples" else dtype)
    return list(found.tolist())


def agree_on_what_is_told(carrier: str, name: str, calls: Sequence[Call]) -> None:
    """Assert that a carrier answers as plain integers do, kinds of value included."""
    expected = [TOLD[name](call.ledger, num_new_tokens(call)) for call in calls]
    found = told(carrier, name, calls)
    assert [(type(one), one) for one in found] == [(type(one), one) for one in expected], (name, calls)


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("carrier", EACH_CARRIER)
def test_carriers_agree_on_what_a_step_will_bring_back(carrier: str, name: str) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.lists(st.builds(Call, LEDGERS, st.builds(Schedule, COUNTS)), min_size=1, max_size=6))
    def compare(calls: list[Call]) -> None:
        agree_on_what_is_told(carrier, name, calls)

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(walked())
    def compare_what_occurs(setup: tuple[Rules, dict[str, list[Call]]]) -> None:
        if "schedule" in setup[1]:
            agree_on_what_is_told(carrier, name, setup[1]["schedule"])

    compare()
    compare_what_occurs()


@pytest.mark.parametrize("carrier", EACH_CARRIER)
def test_a_carrier_that_tells_something_else_is_caught(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft too many where all of the prompt is in one step."""
    calls = [Call(initial(5), Schedule(5)), Call(initial(5), Schedule(7))]
    agree_on_what_is_told(carrier, "num_drafts", calls)
    right = told
    monkeypatch.setitem(globals(), "told", lambda *call: [one + 1 for one in right(*call)])
    with pytest.raises(AssertionError):
        agree_on_what_is_told(carrier, "num_drafts", calls)


@pytest.mark.parametrize("package", ["numpy", pytest.param("torch", marks=needs_torch), "z3"])
def test_a_carrier_that_differs_is_caught(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planted carrier rounds up to the next block instead of down."""
    carrier = "torch int64" if package == "torch" else package
    rules, calls = Rules(1, 4, False, 0), [Call(initial(5), Schedule(5))]
    agree(carrier, "schedule", rules, calls)
    right = algebra._CARRIERS[package]
    wrong = right._replace(
        floor_to_block=lambda tokens, block: right.floor_to_block(tokens + block - 1, block)
    )
    monkeypatch.setitem(algebra._CARRIERS, package, wrong)
    with pytest.raises(AssertionError):
        agree(carrier, "schedule", rules, calls)


def test_compiled_code_that_differs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled `abort` passes for `finish`: they differ where a stop trimmed."""
    rules, calls = Rules(1, 4, False, 0), [Call(initial(5)._replace(num_trimmed_tokens=1), Finish())]
    agree("numba", "finish", rules, calls)
    right = compiled.compiled
    monkeypatch.setattr(compiled, "compiled", lambda name: right("abort" if name == "finish" else name))
    with pytest.raises(AssertionError):
        agree("numba", "finish", rules, calls)


@pytest.mark.parametrize("carrier", EACH_CARRIER)
def test_true_is_not_taken_for_one(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself sees a value of the wrong kind, also where Python calls the two equal."""
    calls = [Call(initial(5), Finish())]
    zero: dict[str, Any] = {"drop_stale": 0}
    right = CARRIERS[carrier]
    monkeypatch.setitem(CARRIERS, carrier, lambda *call: [after._replace(**zero) for after in right(*call)])
    with pytest.raises(AssertionError):
        agree(carrier, "finish", Rules(1, 4, False, 0), calls)


def test_numpy_columns_of_another_kind_are_refused() -> None:
    good = carrier_numpy.columns([initial(3), initial(4)])
    narrow: Any = np.array([3, 4], dtype=np.int32)
    with pytest.raises(TypeError, match=r"num_tokens must be a column of 2 int64, got int32\(2,\)"):
        carrier_numpy.apply(CODE["abort"], good._replace(num_tokens=narrow), Rules(1, 4, True, 0))
    with pytest.raises(TypeError, match="num_draft_tokens must be a column of 2 int64, got float64"):
        carrier_numpy.apply(CODE["draft"], good, Rules(1, 4, False, 0), np.array([0.5, 1.0]))
    with pytest.raises(TypeError, match="a condition is the result of a comparison, not int64"):
        carrier_numpy.apply(CODE["preempt"], good, Rules(1, 4, False, 0), np.array([0, 1]))


@needs_torch
def test_torch_columns_of_another_kind_are_refused() -> None:
    import torch

    from draftproof.gpu import carrier_torch

    good = carrier_torch.columns([initial(3), initial(4)], torch.int32)
    wide: Any = torch.tensor([1, 2])
    with pytest.raises(TypeError, match=r"num_draft_tokens must be a column of 2 torch.int32"):
        carrier_torch.apply(CODE["draft"], good, Rules(1, 4, False, 0), wide)
    with pytest.raises(TypeError, match=r"a condition is the result of a comparison, not torch\.int32"):
        flags = torch.tensor([0, 1], dtype=torch.int32)
        carrier_torch.apply(CODE["preempt"], good, Rules(1, 4, False, 0), flags)


@needs_torch
@pytest.mark.parametrize("name", EVENTS)
def test_torch_transitions_never_read_a_value_back(name: str) -> None:
    """Tensors on the meta device have no values: anything that waits for one fails."""
    import torch

    from draftproof.gpu import carrier_torch

    ledgers = carrier_torch.columns([initial(3)] * 4, torch.int32, "meta")
    arguments: list[Any] = [
        torch.zeros(4, dtype=torch.bool if field in BOOLEAN_ARGUMENTS else torch.int32, device="meta")
        for field in EVENTS[name]._fields
    ]
    after = carrier_torch.apply(CODE[name], ledgers, Rules(3, 16, True, 1), *arguments)
    assert carrier_torch.row_count(after) == 4
    with pytest.raises(RuntimeError):
        carrier_torch.row(after, 0)


@pytest.mark.parametrize("loop", ["schedule", "output"])
def test_compiled_loops_move_every_row_as_integers_do(loop: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(RULES, st.lists(st.builds(Call, LEDGERS, events(loop)), min_size=1, max_size=6))
    def compare(rules: Rules, calls: list[Call]) -> None:
        table = compiled.table_of([call.ledger for call in calls])
        arguments = np.array(argument_columns(calls), dtype=np.int64)
        if loop == "schedule":
            compiled.schedule_rows()(table, rules, arguments[0])
        else:
            compiled.output_rows()(table, rules, arguments)
        found = [compiled.row(table, index) for index in range(len(calls))]
        expected = on_integers(loop, rules, calls)
        assert [typed(ledger) for ledger in found] == [typed(ledger) for ledger in expected]

    compare()


@pytest.mark.parametrize("mode", [False, True])
def test_the_whole_algebra_compiles(mode: bool) -> None:
    """Also the operations that only the specification uses."""

    def derived(first: int, second: int, flag: bool) -> tuple[int, int, bool, bool, bool]:
        return (
            algebra.minimum(first, second),
            algebra.maximum(first, second),
            algebra.implies(flag, first < second),
            algebra.all_of(flag, first < second, algebra.negate(flag)),
            algebra.any_of(flag, first < second),
        )

    fast: Any = numba.njit(derived)
    for first, second in ((1, 2), (2, 1), (-3, -3)):
        assert fast(first, second, mode) == derived(first, second, mode)
