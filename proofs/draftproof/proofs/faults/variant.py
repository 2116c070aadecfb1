"""What `draftproof prove --fault` says: the change, the claims that fail, and a step that shows the first."""

from __future__ import annotations

from draftproof.proofs.failures import concrete_step
from draftproof.proofs.faults.fault import Fault, theorem_of
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.refute import Refutation
from draftproof.proofs.results import theorem_text

MOST_NAMES = 10


def describe(fault: Fault, verdicts: list[Refutation]) -> str:
    """The text for a terminal: the named claims first."""
    lines = [f"{fault.name}: {fault.title}", "", fault.meaning, ""]
    for change in fault.changes:
        lines += [f"in {change.function}:", f"  - {change.before}", f"  + {change.after}", ""]
    refuted = [verdict for verdict in verdicts if verdict.verdict == "refuted"]
    named = [verdict for verdict in refuted if verdict.path in fault.violated]
    code = patched(fault.changes)
    for verdict in named:
        key = theorem_of(verdict.path)
        name, meaning, _ = theorem_text(key)
        lines += [f"refuted: {verdict.path}", f"  {key}, {name}: {meaning}"]
        step = concrete_step(verdict.path, verdict.counterexample, code.transitions)
        if step:
            lines += [f"    {line}" for line in step.splitlines()]
        else:
            values = ", ".join(f"{key} {value}" for key, value in verdict.counterexample.items())
            lines.append(f"    for example {values}")
        lines.append("")
    others = [verdict.path for verdict in refuted if verdict not in named]
    if others:
        shown = ", ".join(others[:MOST_NAMES]) + (" ..." if len(others) > MOST_NAMES else "")
        lines += [f"refuted besides: {shown}", ""]
    unasked = len([verdict for verdict in verdicts if verdict.verdict == "about the queue"])
    if unasked:
        lines += [f"{unasked} obligations rest on facts about the queue, which a changed guard gives up.", ""]
    lines += [
        f"Not proved, as it should be: {len(refuted)} of {len(verdicts)} obligations are refuted.",
        f"Its shortest trace: draftproof explain {fault.name}",
    ]
    return "\n".join(lines)
