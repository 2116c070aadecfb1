"""Two solvers, one question: is this formula unsatisfiable? Bounded by resources, never by wall time.

An answer is `unsat`, `sat` or `unknown`; an exhausted resource is `unknown`. cvc5 reads the SMT-LIB 2
text that is also exported for anybody's solver, so the two share no code after the term builder.
"""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any, NamedTuple

import cvc5
import z3

Z3_RESOURCES = 5_000_000
"""z3 `rlimit` units: about ten times what the hardest obligation needs; a false one gives up in seconds."""
MODEL_RESOURCES = 20_000_000
"""z3 `rlimit` units to find a model: over a small pool written out it costs more than a proof, and several
times more or less by what the process was asked before."""
CVC5_RESOURCES = 1_000_000
"""cvc5 `rlimit` units, likewise."""


class Answer(NamedTuple):
    """What a solver said, how long it took, and for `sat` its model (z3 only)."""

    verdict: str
    seconds: float
    model: Any = None


def versions() -> dict[str, str]:
    """The solvers' versions, as installed."""
    return {name: importlib.metadata.version(name) for name in ("z3-solver", "cvc5")}


def new_solver(formulas: list[Any], resources: int = Z3_RESOURCES) -> Any:
    """A z3 solver holding the formulas."""
    solver = z3.Solver()
    solver.set("rlimit", resources)
    solver.set("random_seed", 0)
    solver.add(*formulas)
    return solver


def model_solver(formulas: list[Any], resources: int = MODEL_RESOURCES) -> Any:
    """A z3 solver for questions that should have a model: its older arithmetic finds one of a small pool
    in a third of the time."""
    solver = new_solver(formulas, resources)
    solver.set("smt.arith.solver", 2)
    return solver


def ask_z3(formulas: list[Any], resources: int = Z3_RESOURCES) -> Answer:
    """z3's verdict on the conjunction of the formulas."""
    return answer_of(new_solver(formulas, resources))


def answer_of(solver: Any) -> Answer:
    """The verdict of a z3 solver that holds what is asked."""
    start = time.perf_counter()
    verdict = str(solver.check())
    model = solver.model() if verdict == "sat" else None
    return Answer(verdict, time.perf_counter() - start, model)


def to_smtlib(formulas: list[Any], comment: str = "") -> str:
    """The conjunction as an SMT-LIB 2 script, for any solver."""
    return script_of(new_solver(formulas), comment)


def script_of(solver: Any, comment: str = "") -> str:
    """What a z3 solver holds, as an SMT-LIB 2 script."""
    header = "".join(f"; {line}\n" for line in comment.splitlines())
    body: str = solver.to_smt2()
    body = body.replace("; benchmark generated from python API\n", "")
    return f"{header}(set-logic ALL)\n" + body.replace("(set-info :status unknown)\n", "")


def ask_cvc5(script: str, resources: int = CVC5_RESOURCES) -> Answer:
    """cvc5's verdict on an SMT-LIB 2 script with one `check-sat`."""
    start = time.perf_counter()
    solver = cvc5.Solver()
    solver.setOption("rlimit", str(resources))
    solver.setOption("incremental", "false")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "obligation")
    manager = parser.getSymbolManager()
    answers = []
    while True:
        command = parser.nextCommand()
        if command.isNull():
            break
        answers.append(command.invoke(solver, manager).strip())
    verdict = next((answer for answer in answers if answer in ("sat", "unsat", "unknown")), "unknown")
    return Answer(verdict, time.perf_counter() - start)
