"""How long does one `output` take: interpreted, with contracts, and compiled per row of a table?

A benchmark, not a test: nothing is asserted. Each figure is the best of several repeats, in nanoseconds per
ledger. Run it as `make bench`, or with `--json` for a machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from draftproof.impl import accounting, carrier_numpy, code_cache, compiled
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import load_plain, store_plain
from draftproof.spec.ledger import Rules, initial

NUM_ROWS = 1_024
RULES = Rules(num_speculative_tokens=3, block_size=16, asynchronous=True, registration_fence=0)
OUTPUT = (4, 3, 2, 3, 0)
"""A step of 4 returned: of 3 drafts 2 were accepted, all 3 generated tokens are kept, no stop."""
GOALS = {"interpreted": 5_000.0, "compiled, per row of 1,024": 50.0}
"""Nanoseconds."""


def best(action: Callable[[], object], number: int, repeats: int = 7) -> float:
    """The shortest time of one action, in nanoseconds: the others were disturbed."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        for _ in range(number):
            action()
        times.append((time.perf_counter_ns() - begin) / number)
    return min(times)


def decoding(code: Any, ledger: Any) -> Any:
    """An asynchronous request of 45 prompt tokens with a decode step of 4 in flight."""
    ledger = code.admit(ledger, RULES, 0)
    ledger = code.schedule(ledger, RULES, 45)
    ledger = code.output(ledger, RULES, 45, 0, 0, 1, 0)
    return code.schedule(ledger, RULES, 4)


def with_contracts() -> tuple[Any, Any]:
    """The two modules as debug mode loads them, beside the plain ones."""
    names = ("draftproof.impl.contracts", "draftproof.impl.accounting")
    kept = {name: sys.modules.pop(name) for name in names}
    before = os.environ.get("DRAFTPROOF_DEBUG")
    os.environ["DRAFTPROOF_DEBUG"] = "1"
    try:
        contracts, checked = (importlib.import_module(name) for name in names)
    finally:
        sys.modules.update(kept)
        if before is None:
            del os.environ["DRAFTPROOF_DEBUG"]
        else:
            os.environ["DRAFTPROOF_DEBUG"] = before
    return contracts, checked


OUTPUT_CODE: Any = plain(accounting.output)


def scattered(table: Any, rules: Rules, outputs: Any, order: Any) -> None:
    """Every row's output, the rows in an order of their own, as they come in a scheduler's list."""
    for index in range(order.shape[0]):
        row = order[index]
        ledger = load_plain(table, row)
        after = OUTPUT_CODE(
            ledger,
            rules,
            outputs[0, row],
            outputs[1, row],
            outputs[2, row],
            outputs[3, row],
            outputs[4, row],
        )
        store_plain(table, row, after)


def compiled_figures(table: Any) -> dict[str, float]:
    """Nanoseconds per row of a table of 1,024 rows; the same without the padding of its lines."""
    outputs = np.repeat(np.array(OUTPUT, dtype=np.int64)[:, np.newaxis], NUM_ROWS, axis=1)
    order = np.random.default_rng(0).permutation(NUM_ROWS)
    in_order, in_any_order = compiled.output_rows(), code_cache.compile(scattered)
    unpadded = np.ascontiguousarray(table[:, :NUM_ROWS])  # its lines are 8,192 bytes apart
    assert table.shape[1] > NUM_ROWS, "1,024 rows are padded"
    in_any_order(table.copy(), RULES, outputs, order)  # compiles
    # The tables move on from call to call; the work per row stays the same.
    return {
        "compiled, per row of 1,024": best(lambda: in_order(table, RULES, outputs), 500) / NUM_ROWS,
        "  without padding": best(lambda: in_order(unpadded, RULES, outputs), 500) / NUM_ROWS,
        "  in any order": best(lambda: in_any_order(table, RULES, outputs, order), 500) / NUM_ROWS,
        "  in any order, no padding": best(lambda: in_any_order(unpadded, RULES, outputs, order), 500)
        / NUM_ROWS,
    }


def measure() -> dict[str, float]:
    """Nanoseconds per ledger, by way of running."""
    output = plain(accounting.output)
    ledger = decoding(accounting, initial(45))
    contracts, checked = with_contracts()
    observed = decoding(checked, contracts.observe(45))
    columns = carrier_numpy.columns([ledger] * NUM_ROWS)
    return {
        "interpreted": best(lambda: output(ledger, RULES, *OUTPUT), 20_000),
        "with contracts": best(lambda: checked.output(observed, RULES, *OUTPUT), 300),
        "numpy, per row of 1,024": best(lambda: carrier_numpy.apply(output, columns, RULES, *OUTPUT), 200)
        / NUM_ROWS,
        **compiled_figures(compiled.table_of([ledger] * NUM_ROWS)),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Time the transition `output`.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures = measure()
    if arguments.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
        print(json.dumps({"nanoseconds": figures, "goals": GOALS, **machine}))
        return
    print(f"{'output, one ledger':28}{'ns':>10}{'goal':>12}")
    for name, nanoseconds in figures.items():
        goal = f"<= {GOALS[name]:,.0f}" if name in GOALS else ""
        print(f"{name:28}{nanoseconds:>10,.1f}{goal:>12}")


if __name__ == "__main__":
    main()
