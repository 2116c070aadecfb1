"""Every obligation as an SMT-LIB 2 file, for anybody's solver. The expected answer is always `unsat`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from draftproof.proofs.obligations import Obligation, formulas
from draftproof.proofs.output import OutputError, make_folder
from draftproof.proofs.results import theorem_text
from draftproof.proofs.solvers import to_smtlib

MARK = "EXPORTED-BY-DRAFTPROOF"
"""A file in every exported folder, so that only such a folder is ever replaced."""


def file_name(obligation: Obligation) -> str:
    """`output/effect/frontier` becomes `output.effect.frontier.smt2`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", obligation.name.replace("/", ".")) + ".smt2"


def meaning(obligation: Obligation) -> str:
    """What the obligation says, in a sentence."""
    name, sentence, _ = theorem_text(obligation.theorem)
    return f"Part of {obligation.theorem}, {name}: {sentence}"


def script(obligation: Obligation) -> str:
    """The obligation's counterexample as a script: its hypotheses and the negation of its goal."""
    hypotheses = ", ".join(obligation.hypotheses) or "none"
    comment = "\n".join(
        (
            obligation.name,
            meaning(obligation),
            "Assumed: " + hypotheses,
            "Expected: unsat. The goal is negated, so an answer of sat would be a counterexample.",
        )
    )
    text = to_smtlib(formulas(obligation), comment)
    return text.replace("(set-logic ALL)\n", "(set-logic ALL)\n(set-info :status unsat)\n", 1)


def export(obligations: Iterable[Obligation], folder: Path) -> int:
    """Write one file per obligation and return how many.

    The files are written into a temporary folder beside `folder`, which then takes its place: `folder`
    is complete or as it was. It may exist if it is empty or an earlier export; anything else, and a
    place that cannot be written, is an `OutputError`.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file, not a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise OutputError(f"{folder} holds other files; name a folder that is new or an earlier export")
    folder = folder.absolute()
    make_folder(folder.parent)
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        (temporary / MARK).write_text("SMT-LIB 2 scripts; a solver must answer unsat to each.\n")
        names = set()
        for obligation in obligations:
            name = file_name(obligation)
            if name in names:
                raise ValueError(f"two obligations are called {obligation.name}")
            names.add(name)
            (temporary / name).write_text(script(obligation), encoding="utf-8")
        os.chmod(temporary, 0o755)
        _take_place(temporary, folder)
        return len(names)
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {(error.strerror or str(error)).lower()}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`; what stood there is moved aside first and put back if that fails."""
    if not folder.exists():
        os.rename(new, folder)
        return
    aside = new.with_name(new.name + ".old")
    os.rename(folder, aside)
    try:
        os.rename(new, folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
