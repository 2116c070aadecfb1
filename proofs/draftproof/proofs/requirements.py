"""Are the solvers there, and new enough? Asked before anything is proved, so that a user gets a sentence."""

from __future__ import annotations

import importlib.metadata
import re

from draftproof.impl.cli import UserError

INSTALL = "pip install 'draftproof[prove]' (in this repository: make prove)"


def numbers(version: str) -> tuple[int, ...]:
    """`4.15.2.post1` as (4, 15, 2), enough to compare a version with a minimum."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def minimums() -> dict[str, str]:
    """The packages that proofs need and their minimal versions, as this distribution declares them."""
    found = {}
    for line in importlib.metadata.requires("draftproof") or []:
        requirement, _, marker = line.partition(";")
        match = re.match(r"\s*([A-Za-z0-9_.-]+).*?>=\s*([0-9.]+)", requirement)
        if match and re.search(r"extra\s*==\s*['\"]prove['\"]", marker):
            found[match.group(1)] = match.group(2)
    return found


def check(required: dict[str, str] | None = None) -> None:
    """Raise `UserError` naming the first package that is missing or too old, and how to get it."""
    for package, minimum in (minimums() if required is None else required).items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise UserError(f"{package} is not installed; install it with {INSTALL}", 2) from None
        if numbers(installed) < numbers(minimum):
            raise UserError(
                f"{package} {installed} is too old, {minimum} or newer is needed; install it with {INSTALL}",
                2,
            )
