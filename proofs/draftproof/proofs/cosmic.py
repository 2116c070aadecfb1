"""What does a mutation tool find that knows nothing of this project? cosmic-ray, run on copies of the tree.

cosmic-ray changes files in place, so each module is mutated in a copy of its own below `build/mutants`;
the working tree is never touched. A change is noticed by proof alone (`draftproof.proofs.quick`).
cosmic-ray calls every failing exit a kill; here only a refutation is one. What no proof decides is
`unknown`, what cannot run is `cannot run`. What survives in the accounting must be proved to compute the
same. What survives in the invariants must be proved to say the same, or more: an invariant that could say
less is as much of a hole as one that could go. `python -m draftproof.proofs.cosmic [--sample N]`
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import z3

from draftproof.impl.cli import UserError
from draftproof.impl.contracts import plain
from draftproof.proofs.carrier_z3 import rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation, formulas
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.events import EVENTS

CONFIGURATION = Path("tests/mutants.toml")
COPIES = Path("build/mutants")
ROOTS = ("spec", "impl", "proofs")
ACCOUNTING = "impl/draftproof/impl/accounting.py"
INVARIANTS = "spec/draftproof/spec/invariants.py"
MODULES = (ACCOUNTING, INVARIANTS)
COMMAND = "draftproof.proofs.quick"
COMMANDS = {ACCOUNTING: COMMAND, INVARIANTS: f"{COMMAND} --everything"}
"""The accounting is held by the induction alone; an invariant may be there for a theorem beyond it."""

NOTICED = ("refuted", "vacuous", "cannot run", "equivalent")
HOLES = ("unknown", "survived", "weaker")
"""A `stronger` invariant is none: it holds in every reachable state too, and nothing needs it."""


class Outcome(NamedTuple):
    """One change that cosmic-ray made, and what became of it."""

    module: str
    outcome: str
    """`refuted`, `vacuous`, `cannot run` or `unknown`; of what no proof noticed `equivalent`, `weaker`,
    `stronger` or `survived`."""
    operator: str
    line: int
    detail: str


def _environment() -> dict[str, str]:
    """The copy's sources come first, this interpreter is `python`, contracts are off."""
    found = {name: value for name, value in os.environ.items() if name != "DRAFTPROOF_DEBUG"}
    found["PYTHONPATH"] = os.pathsep.join(ROOTS)
    found["PYTHONDONTWRITEBYTECODE"] = "1"  # a change within one second would find the old bytecode
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return found


def prepare(module: str, sample: int | None, seed: int = 0) -> Path:
    """A fresh copy of the sources with a session for one module; the folder is returned.

    With `sample`, only that many changes are kept, chosen by the seed.
    """
    folder = COPIES / Path(module).stem
    shutil.rmtree(folder, ignore_errors=True)
    for root in ROOTS:
        shutil.copytree(root, folder / root, ignore=shutil.ignore_patterns("__pycache__"))
    text = CONFIGURATION.read_text()
    listed = ", ".join(f'"{name}"' for name in MODULES)
    if listed not in text or f'{COMMAND}"' not in text:
        raise UserError(f"{CONFIGURATION} no longer names {listed} and {COMMAND}")
    text = text.replace(listed, f'"{module}"').replace(f'{COMMAND}"', f'{COMMANDS[module]}"')
    (folder / "mutants.toml").write_text(text)
    _cosmic_ray(folder, "init", "mutants.toml", "session.sqlite").wait()
    if sample is not None:
        _keep(folder / "session.sqlite", sample, seed)
    return folder


def _cosmic_ray(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cosmic_ray.cli", *arguments],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def _keep(session: Path, sample: int, seed: int) -> None:
    work = importlib.import_module("cosmic_ray.work_db")  # an extra: the linters run without it
    with work.use_db(session, work.WorkDB.Mode.open) as database:
        items = sorted(database.work_items, key=lambda item: item.job_id)
        items.sort(key=lambda item: (item.mutations[0].operator_name, item.mutations[0].occurrence))
        kept = random.Random(seed).sample(items, min(sample, len(items)))
        database.clear()
        database.add_work_items(kept)


def run(sample: int | None = None) -> list[Outcome]:
    """Mutate every module, each in its own copy and process, and judge the outcomes."""
    folders = {module: prepare(module, sample) for module in MODULES}
    processes = [_cosmic_ray(folder, "exec", "mutants.toml", "session.sqlite") for folder in folders.values()]
    try:
        for process in processes:
            if process.wait() != 0:
                raise UserError(f"cosmic-ray ended with status {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return [found for module, folder in folders.items() for found in _outcomes(module, folder)]


def _outcomes(module: str, folder: Path) -> list[Outcome]:
    dumped, _ = _cosmic_ray(folder, "dump", "session.sqlite").communicate()
    return [_outcome(module, folder, *json.loads(line)) for line in dumped.splitlines()]


def _outcome(module: str, folder: Path, item: dict[str, Any], result: dict[str, Any] | None) -> Outcome:
    (mutation,) = item["mutations"]
    operator, line = mutation["operator_name"].partition("/")[2], mutation["start_pos"][0]
    if result is None or result["worker_outcome"] != "normal":
        return Outcome(module, "unknown", operator, line, "cosmic-ray did not run it")
    if result["test_outcome"] == "survived":
        return Outcome(module, _survivor(module, folder, mutation), operator, line, result["diff"])
    printed = (result["output"] or "").strip()
    claim, _, verdict = printed.rpartition(": ")
    if printed == "timeout" or verdict == "unknown":
        # The same said in other words can be harder to prove.
        same = _survivor(module, folder, mutation) == "equivalent"
        return Outcome(module, "equivalent" if same else "unknown", operator, line, printed)
    if verdict == "refuted":
        return Outcome(module, "refuted", operator, line, claim)
    if verdict.startswith("vacuous"):
        return Outcome(module, "vacuous", operator, line, claim)
    return Outcome(module, "cannot run", operator, line, "")


def _changed(source: Path, mutation: dict[str, Any]) -> dict[str, Any]:
    """The namespace of a copied module with one change made again, in memory."""
    operator, occurrence = mutation["operator_name"], mutation["occurrence"]
    mutating = importlib.import_module("cosmic_ray.mutating")
    operators = importlib.import_module("cosmic_ray.plugins")
    changed = operators.get_operator(operator)(**mutation["operator_args"])
    text = mutating.mutate_code(source.read_bytes(), changed, occurrence)
    if text is None:
        raise RuntimeError(f"{operator} has no occurrence {occurrence} in {source}: the copy has changed")
    namespace: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(text, str(source), "exec"), namespace)
    return namespace


def _proved(hypotheses_of: dict[str, Any], goal: Any) -> bool:
    return ask_z3(formulas(Obligation("survivor", "equivalence", "", hypotheses_of, goal))).verdict == "unsat"


def _survivor(module: str, folder: Path, mutation: dict[str, Any]) -> str:
    """Whether a change that no proof noticed is none, or makes the invariants say less or more."""
    namespace = _changed(folder / module, mutation)
    if module == ACCOUNTING:
        return "equivalent" if all(_is_same(name, namespace[name]) for name in EVENTS) else "survived"
    from draftproof.spec.invariants import invariants

    state, rules = symbolic_state(), symbolic_rules()
    assumed = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    old, new = (z3.And(*stated(state, rules).values()) for stated in (invariants, namespace["invariants"]))
    weaker = _proved({**assumed, "old": old}, new)
    stronger = _proved({**assumed, "new": new}, old)
    return {(True, True): "equivalent", (True, False): "weaker", (False, True): "stronger"}.get(
        (weaker, stronger), "survived"
    )


def _is_same(name: str, function: Any) -> bool:
    """Whether the changed transition computes the same wherever it may run."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    changed = step(name, before, rules, event, plain(function)).ledger
    right = step(name, before, rules, event).ledger
    same = z3.And(*[one == two for one, two in zip(changed, right, strict=True)])
    return _proved(hypotheses(name, before, rules, event), same)


def main() -> int:
    """Run cosmic-ray, print the counts and the survivors; 1 if the accounting has a hole."""
    parser = argparse.ArgumentParser(description="Break accounting and invariants with cosmic-ray.")
    parser.add_argument("--sample", type=int, help="only so many changes per module, chosen at random")
    options = parser.parse_args()
    if importlib.util.find_spec("cosmic_ray") is None:
        raise UserError("cosmic-ray is not installed; install it with pip install 'draftproof[mutants]'")
    if not CONFIGURATION.is_file():
        raise UserError(f"there is no {CONFIGURATION} here; run this in the repository's root")
    outcomes = run(options.sample)
    for module in MODULES:
        counts = Counter(found.outcome for found in outcomes if found.module == module)
        print(
            f"{module}: {sum(counts.values())} changes, "
            + ", ".join(f"{n} {k}" for k, n in counts.most_common())
        )
    for found in outcomes:
        if found.outcome not in NOTICED:
            print(f"{found.outcome}: {found.module}:{found.line} {found.operator}")
    return 1 if not outcomes or any(found.outcome in HOLES for found in outcomes) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as mistake:
        sys.exit(f"draftproof: {mistake}")
