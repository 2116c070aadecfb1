"""Would the proofs of recurrent state notice a fault? Each is refuted, and most are reached from the start.

A fault is found if its named claim has a counterexample (over any state that the invariants allow) and if a
way to the damage exists: the token-level model is explored breadth-first with the changed functions until a
state is found for tokens that it did not consume, a step starts from a wrong one, a block is written that
others may read, or a settled state is lost. A fault without such a harm costs time or memory only.
"""

from __future__ import annotations

from draftproof.proofs import recurrent
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.recurrent_faults import FAULTS
from draftproof.proofs.recurrent_mutant import RUNNING_CODE, RecurrentFault, code_of
from draftproof.spec.recurrent import RecurrentRules
from draftproof.spec.recurrent_tokens import Reference, new_reference, unsafe
from draftproof.spec.recurrent_walks import Explored, Protocol, Walk, explore


def claims_about(fault: RecurrentFault) -> list[Obligation]:
    """What is claimed about the function in which the fault is, with the fault in it."""
    code, subject = code_of(fault), fault.refuted_by.partition("/")[0]
    if subject == "chunk_to_schedule":
        return recurrent.chunk_obligations(code)
    if subject == "limits":
        return recurrent.limit_obligations(code)
    return recurrent.event_obligations(subject, code)


def named_claims(fault: RecurrentFault) -> list[Obligation]:
    """The claim that must be refuted."""
    return [claim for claim in claims_about(fault) if claim.name == f"recurrent/{fault.refuted_by}"]


def controls() -> list[Control]:
    """Every fault as a control: the claim that it names must be refuted."""
    return [
        Control(f"recurrent/{fault.name}", fault.meaning, "statement", named_claims(fault))
        for fault in FAULTS
    ]


def harms(reference: Reference, rules: RecurrentRules) -> list[str]:
    """What anybody would notice, without the numbers: the first words of each complaint."""
    return [complaint.split("(")[0].strip() for complaint in unsafe(reference)]


def shortest_harm(fault: RecurrentFault, limit: int = 20_000) -> Explored:
    """The exploration of the changed functions, up to the first harm."""
    code, protocol = code_of(fault), Protocol()
    if fault.at_exit:
        code, protocol = RUNNING_CODE, Protocol(publish_at_exit=code.transitions[fault.function])
    walk = Walk(fault.rules, code, fault.bounds, protocol)
    start = new_reference(fault.bounds.num_prompt_tokens, fault.bounds.num_blocks)
    return explore(start, walk, harms, limit)
