"""What do the checks say about another version of vLLM, whose wheel for CPUs does not exist?

Its Python files are laid over the installed 0.32.0, whose compiled part no scheduler needs. Unpack a wheel
(`pip download vllm==0.33.0 --no-deps`, then `unzip`), and run, in vLLM's environment,
`python -m tests.vllm.attach_overlay FOLDER`. Prints what moved, who loses blocks, what random clients find.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

NUM_SEEDS = 4


def lay_over(folder: str) -> None:
    """Take vLLM's Python files from a folder. The platform is set by hand: it would look for a GPU build."""
    if not (Path(folder) / "vllm" / "__init__.py").is_file():
        raise SystemExit(f"{folder} holds no unpacked vLLM: {folder}/vllm/__init__.py is not there")
    os.environ["VLLM_CACHE_ROOT"] = tempfile.mkdtemp(prefix="draftproof-vllm-")
    sys.path.insert(0, str(Path(folder).resolve()))
    import vllm.platforms as platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()


def losses() -> None:
    """The six hundred requests of `test_losses`."""
    from tests.vllm.losses import random_requests
    from tests.vllm.side import events
    from tests.vllm.theirs import Theirs

    from draftproof.impl.attach.vllm.around import Around
    from draftproof.impl.attach.vllm.install import Installed
    from draftproof.impl.attach.vllm.leaving import ABORT, FINISH, TRIMMED
    from draftproof.impl.attach.vllm.reports import Report
    from draftproof.impl.attach.vllm.settings import Settings

    for asynchronous in (False, True):
        for abort_percent in (0, 26):
            report = Report()
            installed = Installed(Around(Settings(content=False), report))
            for _ in events(Theirs(random_requests(asynchronous, abort_percent=abort_percent))):
                pass
            installed.remove()
            lost, left = "exits_with_lost_blocks", "exits"
            exits = ", ".join(
                f"{kind} {report.total(lost, exit=kind)} of {report.total(left, exit=kind)}"
                for kind in (FINISH, TRIMMED, ABORT)
            )
            print(f"  {'asynchronous' if asynchronous else 'synchronous'}: {exits} lose a block")


def clients() -> None:
    """Random requests of all kinds, as in `test_attach_traffic`, on the scheduler as it is."""
    from tests.vllm.attach_traffic import Plan, Traffic
    from tests.vllm.attach_world import world
    from tests.vllm.test_attach_traffic import CASES, settings

    kinds: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], str] = {}
    num_requests = 0
    for seed in range(NUM_SEEDS):
        for case in CASES:
            there = world(settings(case))
            try:
                Traffic(Plan(seed, settings(case), num_requests=60), there.scheduler).run()
            except AssertionError as error:
                kinds["the engine or the run failed", type(error).__name__] += 1
            num_requests += there.report.total("requests")
            for violation in there.report.violations:
                key = violation.key if violation.kind != "accounting" else ("accounting", violation.key[-1])
                kinds[key] += 1
                examples.setdefault(key, violation.message)
    print(f"  {num_requests} requests")
    for key, count in kinds.most_common():
        print(f"  {count:5} {' '.join(map(str, key))}: {examples.get(key, '')}")


def priority() -> None:
    """The victim that stood in the step."""
    from tests.vllm import test_attach

    try:
        test_attach.test_under_priority_a_victim_leaves_blocks_that_nobody_computed()
    except AssertionError:
        print("  no")
    else:
        print("  yes")


def main() -> None:
    """Print what is found."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tests.vllm.attach_overlay FOLDER")
    lay_over(sys.argv[1])
    logging.getLogger("draftproof.attach.vllm").setLevel(logging.CRITICAL)
    import vllm

    from draftproof.impl.attach.vllm import versions

    print(f"vLLM {vllm.__version__} from {Path(str(vllm.__file__)).parent}")
    print("what the checks rely on and is not there:", versions.moved() or "nothing")
    print("six hundred requests, three drafts, 70% accepted, blocks of 16:")
    losses()
    print("random clients:")
    clients()
    print("by priority, a victim's blocks that nobody computed are read:")
    priority()


if __name__ == "__main__":
    main()
