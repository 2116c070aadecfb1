"""The `draftproof` command. Upper layers add their commands through an entry-point group.

A user's mistake gets one sentence on standard error and a non-zero exit: 2 for a wrong name or
argument, 1 for something that could not be done. Ctrl-C ends with 130.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Sequence

from draftproof.impl import interrupts

ENTRY_POINTS = "draftproof.commands"


class UserError(Exception):
    """A mistake of the user's, in one sentence that says what to do; `status` is the exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def build_parser() -> argparse.ArgumentParser:
    """The parser with every installed layer's commands."""
    parser = argparse.ArgumentParser(
        prog="draftproof",
        description="The accounting of speculative-decoding schedulers: proven, compiled, attached.",
    )
    parser.add_argument("--version", action="version", version=importlib.metadata.version("draftproof"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for entry_point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS)):
        register: Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None] = entry_point.load()
        register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        options = build_parser().parse_args(arguments)
        return int(options.run(options))
    except UserError as mistake:
        print(f"draftproof: {mistake}", file=sys.stderr)
        return mistake.status
    except KeyboardInterrupt:
        interrupts.finished()
        print(interrupts.SENTENCE, file=sys.stderr)
        return interrupts.STATUS
    except BrokenPipeError:  # `draftproof faults | head`
        sys.stderr.close()
        return 0


def command() -> int:
    """What the `draftproof` script calls: `main`, and an end at once on Ctrl-C."""
    interrupts.end_on_interrupt()
    return main()


if __name__ == "__main__":
    sys.exit(command())
