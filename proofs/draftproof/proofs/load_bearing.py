"""Does every invariant and every effect carry something? What fails when one is left out, or turned round.

An invariant that nothing needs would be decoration, and an effect that the others imply would say the
same thing twice. The unit is one conjunct of a named invariant: `no_negative_counter` has several. It is
left out of the hypotheses *and* of the claims, so that it does not count as needing itself. One that
follows from the others is not needed by anything, and shows as such. Only z3 is asked: a counterexample
is evidence by itself, and what it cannot decide counts as no evidence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import z3

from draftproof.proofs import capacity, commutation, decisions, integers, sessions
from draftproof.proofs.carrier_z3 import floor_facts
from draftproof.proofs.completeness import RESULTS, results
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.quick import refinements_of_small_queues
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.events import EVENTS


def _formula(value: Any) -> Any:
    return z3.BoolVal(value) if isinstance(value, bool) else value


def conjuncts(name: str, formula: Any) -> dict[str, Any]:
    """The parts of a conjunction, however nested, as `name#1`, `name#2`, ...; a single part as `name`.

    What implies several things, or is an alternative to them, is taken apart too: it implies each.
    """

    def split(part: Any) -> list[Any]:
        if z3.is_and(part):
            return [piece for child in part.children() for piece in split(child)]
        if z3.is_or(part):
            choices = itertools.product(*(split(child) for child in part.children()))
            return [z3.Or(*choice) for choice in choices]
        return [part]

    parts = split(_formula(formula))
    return {name: parts[0]} if len(parts) == 1 else {f"{name}#{n}": part for n, part in enumerate(parts, 1)}


class Group(NamedTuple):
    """Claims that share their hypotheses: one transition, or one decision."""

    name: str
    hypotheses: dict[str, Any]
    """Invariants split into conjuncts, under `invariant:name#n`."""
    claims: dict[str, Any]


def grouped(claims: Iterable[Obligation]) -> list[Group]:
    """The claims by hypotheses."""
    found: dict[tuple[str, ...], list[Obligation]] = {}
    for claim in claims:
        found.setdefault((claim.assumption_group, *claim.hypotheses), []).append(claim)
    return [Group(key[0], *_split(members)) for key, members in found.items()]


def _induction() -> list[Group]:
    return grouped(claim for name in EVENTS for claim in transition_obligations(name))


def _other_theorems() -> list[Group]:
    modules = (decisions, sessions, commutation, capacity, integers)
    return grouped(claim for module in modules for claim in module.obligations())


def _refinement() -> list[Group]:
    return grouped(refinements_of_small_queues())


LATER_TIERS: tuple[Callable[[], list[Group]], ...] = (_other_theorems, _refinement)
"""Where a need is looked for if the induction itself has none, one after the other."""


def _unit(name: str) -> str:
    """The invariant conjunct that a hypothesis or claim states, or nothing."""
    for mark in ("invariant:", "/invariant/"):
        if mark in name:
            return name.rpartition(mark)[2]
    return ""


def _split(claims: list[Obligation]) -> tuple[dict[str, Any], dict[str, Any]]:
    assumed: dict[str, Any] = {}
    for name, fact in claims[0].hypotheses.items():
        assumed |= conjuncts(name, fact) if _unit(name) else {name: _formula(fact)}
    goals: dict[str, Any] = {}
    for claim in claims:
        is_invariant = claim.kind == "invariant" and _unit(claim.name)
        goals |= conjuncts(claim.name, claim.goal) if is_invariant else {claim.name: _formula(claim.goal)}
    return assumed, goals


def failing(group: Group, unit: str) -> list[str]:
    """Claims of the group, other than the conjunct's own, that break in a state without the conjunct.

    One counterexample is looked for; the claims it breaks are returned. Empty if all are still proved,
    or if z3 cannot tell.
    """
    assumed = [fact for name, fact in group.hypotheses.items() if _unit(name) != unit]
    if len(assumed) == len(group.hypotheses):
        return []
    claims = {name: goal for name, goal in group.claims.items() if _unit(name) != unit}
    asked = [*assumed, z3.Not(z3.And(*claims.values()))]
    answer = ask_z3(asked + floor_facts(asked))
    if answer.verdict != "sat":
        return []
    broken = {name: answer.model.eval(goal, model_completion=True) for name, goal in claims.items()}
    return [name for name, value in broken.items() if z3.is_false(value)] or [group.name]


def invariant_units() -> list[str]:
    """Every conjunct of every invariant."""
    return [unit for name in _induction()[0].hypotheses if (unit := _unit(name))]


def needed_by() -> dict[str, list[str]]:
    """For every invariant conjunct the claims that break without it; an empty list means it is not needed."""
    steps = _induction()
    found = {unit: [claim for group in steps for claim in failing(group, unit)] for unit in invariant_units()}
    for tier in LATER_TIERS:
        open_units = [unit for unit, claims in found.items() if not claims]
        every = tier() if open_units else []
        for unit in open_units:
            # One group that needs it is enough.
            found[unit] = next((claims for group in every if (claims := failing(group, unit))), [])
    return found


def implied_effects() -> list[tuple[str, str]]:
    """The effects, by transition and name, without which the others still determine every field: none."""
    return [(name, effect) for name in EVENTS for effect in _implied(name)]


def _implied(name: str) -> list[str]:
    found = results(name)
    different = z3.Not(z3.And(*found.agreement.values()))
    implied = []
    for left_out in found.effects[RESULTS[0]]:
        stated = [_formula(fact) for fact in found.assumed.values()]
        for effects in found.effects.values():
            stated += [_formula(fact) for key, fact in effects.items() if key != left_out]
        if ask_z3([*stated, different, *floor_facts([*stated, different])]).verdict != "sat":
            implied.append(left_out)
    return implied


def not_refuted_when_negated() -> list[str]:
    """Effects and invariants whose negation the running code does not refute: there should be none."""
    kept = []
    for name in EVENTS:
        for claim in transition_obligations(name):
            if claim.kind in ("effect", "invariant"):
                stated = [_formula(fact) for fact in claim.hypotheses.values()] + [_formula(claim.goal)]
                if ask_z3(stated + floor_facts(stated)).verdict != "sat":
                    kept.append(claim.name)
    return kept
