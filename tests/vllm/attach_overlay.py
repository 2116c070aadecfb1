"""What do the checks say about another version of vLLM, whose wheel for CPUs does not exist?

Its Python files are laid over the installed 0.32.0, whose compiled part no scheduler needs.
`python -m tests.vllm.attach_overlay [FOLDER [SEEDS]]`, in vLLM's environment, prints what moved, who loses
blocks, and what random clients find; as text, and on the last line as JSON. Without FOLDER they come from
where `attach_tree` says.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

NUM_SEEDS = 4
"""Of random clients, each with sixty requests in sixteen settings."""


def lay_over(folder: str) -> None:
    """Take vLLM's Python files from a folder. The platform is set by hand: it would look for a GPU build."""
    if not (Path(folder) / "vllm" / "__init__.py").is_file():
        raise SystemExit(f"{folder} holds no unpacked vLLM: {folder}/vllm/__init__.py is not there")
    os.environ["VLLM_CACHE_ROOT"] = tempfile.mkdtemp(prefix="draftproof-vllm-")
    sys.path.insert(0, str(Path(folder).resolve()))
    import vllm.platforms as platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()


def losses() -> list[dict[str, Any]]:
    """The six hundred requests of `test_losses`: by exit, how many lose a block, and how many there were."""
    from tests.vllm.losses import random_requests
    from tests.vllm.side import events
    from tests.vllm.theirs import Theirs

    from draftproof.impl.attach.vllm.around import Around
    from draftproof.impl.attach.vllm.install import Installed
    from draftproof.impl.attach.vllm.leaving import ABORT, FINISH, TRIMMED
    from draftproof.impl.attach.vllm.reports import Report
    from draftproof.impl.attach.vllm.settings import Settings

    found: list[dict[str, Any]] = []
    for asynchronous in (False, True):
        for abort_percent in (0, 26):
            report = Report()
            installed = Installed(Around(Settings(content=False), report))
            for _ in events(Theirs(random_requests(asynchronous, abort_percent=abort_percent))):
                pass
            installed.remove()
            exits = {
                kind: [report.total("exits_with_lost_blocks", exit=kind), report.total("exits", exit=kind)]
                for kind in (FINISH, TRIMMED, ABORT)
            }
            found.append({"asynchronous": asynchronous, "abort percent": abort_percent, "exits": exits})
    return found


def clients(num_seeds: int) -> dict[str, Any]:
    """Random requests of all kinds, as in `test_attach_traffic`, on the scheduler as it is."""
    from tests.vllm.attach_traffic import Plan, Traffic
    from tests.vllm.attach_world import world
    from tests.vllm.test_attach_traffic import CASES, settings

    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    failures: Counter[str] = Counter()
    unjudged: Counter[str] = Counter()
    num_requests = 0
    for seed in range(num_seeds):
        for case in CASES:
            there = world(settings(case))
            try:
                Traffic(Plan(seed, settings(case), num_requests=60), there.scheduler).run()
            except AssertionError as error:
                failures[f"{type(error).__name__}: {error}"[:200]] += 1
            num_requests += there.report.total("requests")
            unjudged.update(there.report.unjudged)
            for violation in there.report.violations:
                wrong = violation.key[-1] if violation.kind == "accounting" else violation.rules
                key = f"{violation.kind}: {', '.join(wrong)}"
                kinds[key] += 1
                examples.setdefault(key, violation.message)
    return {
        "requests": num_requests,
        "findings": dict(kinds.most_common()),
        "examples": examples,
        "failures": dict(failures),
        "unjudged": dict(unjudged),
    }


def priority() -> bool:
    """Whether blocks that nobody computed are read, of a victim that stood in the step."""
    from tests.vllm import test_attach

    try:
        test_attach.test_under_priority_a_victim_leaves_blocks_that_nobody_computed()
    except AssertionError:
        return False
    return True


def look(num_seeds: int) -> dict[str, Any]:
    """Everything, about the vLLM that is imported now."""
    import vllm

    from draftproof.impl.attach.vllm import versions

    return {
        "version": vllm.__version__,
        "from": str(Path(str(vllm.__file__)).parent),
        "moved": versions.moved(),
        "losses": losses(),
        "clients": clients(num_seeds),
        "priority": priority(),
    }


def as_text(found: dict[str, Any]) -> str:
    """For a person."""
    lines = [
        f"vLLM {found['version']} from {found['from']}",
        f"what the checks rely on and is not there: {', '.join(found['moved']) or 'nothing'}",
        "six hundred requests, three drafts, 70% accepted, blocks of 16:",
    ]
    for loss in found["losses"]:
        exits = ", ".join(f"{kind} {lost} of {left}" for kind, (lost, left) in loss["exits"].items())
        lines.append(f"  {'asynchronous' if loss['asynchronous'] else 'synchronous'}: {exits} lose a block")
    seen = found["clients"]
    lines.append(f"random clients: {seen['requests']} requests")
    for kind, count in seen["findings"].items():
        lines.append(f"  {count:5} {kind}: {seen['examples'][kind]}")
    for title in ("failures", "unjudged"):
        lines += [f"  {count:5} {title}: {what}" for what, count in seen[title].items()]
    answer = "yes" if found["priority"] else "no"
    lines.append(f"by priority, a victim's blocks that nobody computed are read: {answer}")
    return "\n".join(lines)


def main() -> None:
    """Print what is found."""
    if len(sys.argv) > 3 or not all(argument.isdigit() for argument in sys.argv[2:]):
        raise SystemExit("usage: python -m tests.vllm.attach_overlay [FOLDER [SEEDS]]")
    from tests.vllm.attach_tree import NoTreeError, tree

    try:
        lay_over(sys.argv[1] if len(sys.argv) > 1 else str(tree()))
    except NoTreeError as problem:
        raise SystemExit(str(problem)) from None
    logging.getLogger("draftproof.attach.vllm").setLevel(logging.CRITICAL)
    found = look(int(sys.argv[2]) if len(sys.argv) > 2 else NUM_SEEDS)
    print(as_text(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
