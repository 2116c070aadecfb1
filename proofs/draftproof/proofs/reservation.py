"""Do the blocks that the scheduler takes hold every slot a step writes, and does what is let in fit? (T10)

The scheduler turns slots into blocks (`allocation.blocks_for`), checks once, when a request arrives, that it
fits alone in the pool (`requests.check_fits`), and counts at admission what it will take. Their own text runs
here on terms, with the decisions and the transition that it calls. A block size is any number of at least 1,
and each of several groups has its own: what holds of each holds of their sum.

Where counters of the scheduler meet those of the ledger, three things are assumed, by name: `schedule` is
called only while fewer than J steps are undelivered (it raises otherwise), so that by R1's bounds at most
(J - 1)(1 + K) samples are awaited (`R1:awaited`); a turn ends at `min(L + max_tokens, max_model_len)` tokens;
and, for the exact bound alone, that the scheduler's count of awaited outputs is that of the queue (`host:`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import z3

from draftproof.impl import decisions as code_of
from draftproof.impl.scheduler import allocation, requests, step
from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.induction import hypotheses
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.scheduler_code import Changes, assigned, on_terms, summand
from draftproof.proofs.terms import integer, integers
from draftproof.spec.algebra import maximum, minimum
from draftproof.spec.decision_inputs import TokensToSchedule
from draftproof.spec.decisions import assume_tokens_to_schedule
from draftproof.spec.invariants import frontier

Facts = dict[str, Any]
Texts = Mapping[str, Changes]
"""Changes of the scheduler's functions, by name; none: the running source."""

SIZE, SLOTS, MODEL, SLOT = integers("group_block_size num_slots max_model_len slot")
LOOKAHEAD, STEPS = integers("num_lookahead_tokens max_in_flight_steps")
GENERATED = integer("num_generated_in_flight")
SETTINGS = SimpleNamespace(num_lookahead_tokens=LOOKAHEAD, max_model_len=MODEL)


def claim(group: str, name: str, facts: Facts, goal: Any) -> Obligation:
    return Obligation(f"T10/{group}/{name}", "theorem", "T10", facts, goal, f"T10/{group}")


def _sizes() -> Facts:
    return {"sizes": z3.And(SIZE >= 1, MODEL >= 1, SLOTS >= 1, LOOKAHEAD >= 0, STEPS >= 1)}


def _between(first: Any, end: Any) -> Any:
    """The slot is one of these positions."""
    return z3.And(first <= SLOT, end > SLOT)


def _has_a_block(blocks: Any) -> Any:
    """The slot is in one of so many blocks."""
    place = SLOT / SIZE
    return z3.And(place >= 0, place < blocks)


def blocks_of(function: str, num_slots: Any, texts: Texts) -> Any:
    """How many blocks `reserve` gives a row for so many slots, or how many `num_missing_blocks` counts."""
    groups = SimpleNamespace(block_size=[SIZE])
    return assigned(
        getattr(allocation, function),
        ("needed",),
        texts.get(function, ()),
        state=SimpleNamespace(groups=groups, settings=SETTINGS),
        groups=groups,
        max_model_len=MODEL,
        group=0,
        num_slots=num_slots,
        blocks_for=on_terms(allocation.blocks_for, texts.get("blocks_for", ())),
    )["needed"]


def in_blocks(texts: Texts) -> list[Obligation]:
    """Slots to blocks: enough, no more than needed, and more slots never need fewer blocks."""
    group, blocks, wanted = "reserve", blocks_of("reserve", SLOTS, texts), minimum(SLOTS, MODEL)
    more = integer("more_slots")
    return [
        claim(group, "slot_has_a_block", _sizes(), z3.Implies(_between(0, wanted), _has_a_block(blocks))),
        # One block less would leave this slot without one.
        claim(group, "last_slot_is_in_the_last_block", _sizes(), (wanted - 1) / SIZE == blocks - 1),
        claim(
            group,
            "more_slots_need_no_fewer_blocks",
            _sizes(),
            z3.Implies(more >= SLOTS, blocks_of("num_missing_blocks", more, texts) >= blocks),
        ),
    ]


# ---- the blocks of a step ---------------------------------------------------------------------------------


class Reserved(NamedTuple):
    """A step that is dispatched, and what its row holds then."""

    facts: Facts
    start: Any
    """Where the device starts to write."""
    end: Any
    num_slots: Any


def reserved(function: str, texts: Texts) -> Reserved:
    """As `decide_running` or `admit_row` reserves it, for a size that the decision chose."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    asked = symbols(TokensToSchedule, "input.")._replace(max_model_len=MODEL)
    names = ("after", "num_slots") if function == "decide_running" else ("num_slots",)
    num_slots = assigned(
        getattr(step, function),
        names,
        texts.get(function, ()),
        ledger=before.ledger,
        started=before.ledger,
        rules=rules,
        num_tokens=event.num_new_tokens,
        settings=SETTINGS,
        num_lookahead=LOOKAHEAD,
    )["num_slots"]
    num_awaited = before.ghosts.num_awaited_samples
    facts = hypotheses("schedule", before, rules, event) | _sizes()
    facts |= {
        "device:generated": z3.And(GENERATED >= 0, num_awaited >= GENERATED),
        "chosen": event.num_new_tokens == code_of.tokens_to_schedule(before.ledger, rules, *asked),
    }
    facts |= {f"assumed:{key}": fact for key, fact in assume_tokens_to_schedule(before, rules, asked).items()}
    start = frontier(before) + GENERATED
    return Reserved(facts, start, start + event.num_new_tokens, num_slots)


def of_a_step(function: str, texts: Texts) -> list[Obligation]:
    """Every position that the step writes is in a block of its row, and so is the drafter's look-ahead as far
    as the model reaches."""
    this = reserved(function, texts)
    inside = _has_a_block(blocks_of("reserve", this.num_slots, texts))
    written = _between(this.start, this.end)
    ahead = z3.And(_between(this.end, this.end + LOOKAHEAD), SLOT < MODEL)
    return [
        claim(function, "written_slot_has_a_block", this.facts, z3.Implies(written, inside)),
        claim(function, "look_ahead_has_blocks", this.facts, z3.Implies(ahead, inside)),
        # Only look-ahead is ever cut at the model's length.
        claim(function, "writes_within_the_model", this.facts, this.end <= MODEL - 1),
    ]


def at_admission(texts: Texts) -> list[Obligation]:
    """What `admit_row` counts as missing is at least what `reserve` takes once the hits are the row's."""
    state, rules, num_tokens = symbolic_state(), symbolic_rules(), integer("num_new_tokens")
    hit, known = state.ledger.num_computed_tokens, state.ledger.num_tokens
    num_slots = hit + num_tokens + LOOKAHEAD
    to_fit = assigned(
        step.admit_row,
        ("num_slots_to_fit",),
        texts.get("admit_row", ()),
        num_slots=num_slots,
        started=state.ledger,
        rules=rules,
        num_lookahead=LOOKAHEAD,
    )["num_slots_to_fit"]
    blocks, counted = blocks_of("reserve", num_slots, texts), blocks_of("num_missing_blocks", to_fit, texts)
    facts = _sizes() | {
        "hit": z3.And(hit >= 0, hit <= known - 1, num_tokens >= 1),
        "model": z3.And(hit + num_tokens <= MODEL - 1, known <= MODEL),
    }
    # Both proved in `in_blocks`, the second of the slot at the hit's end: here for terms without a product.
    taken, missing, hit_blocks = integers("reserved_blocks counted_blocks hit_blocks")
    lemmas = {
        "lemma:more_slots_need_no_fewer_blocks": z3.Implies(to_fit >= num_slots, missing >= taken),
        "lemma:slot_has_a_block": hit_blocks < taken,
    }
    enough = maximum(taken - hit_blocks, 0) <= missing - hit_blocks
    return [
        claim("admit_row/hit", "hit_is_in_its_blocks", facts, hit / SIZE < blocks),
        claim("admit_row/hit", "all_known_tokens_fit", facts, known <= counted * SIZE),
        claim("admit_row/counted", "takes_no_more_than_counted", facts | lemmas, enough),
    ]


# ---- what is let in ---------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A request that passed `check_fits`, at any later step."""

    facts: Facts
    exact_facts: Facts
    num_slots: Any
    """What a step needs, at most the model's length."""
    num_slots_to_admit: Any
    num_checked_slots: Any
    num_most_slots: Any
    """The most that any step really needs: the last token but one, and K drafts for each of J steps."""


def fit(texts: Texts) -> Fit:
    """The step's side is the running decisions and `decide_running`, the check's side its own text."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    ledger, drafts, num_awaited = (
        before.ledger,
        rules.num_speculative_tokens,
        before.ghosts.num_awaited_samples,
    )
    num_tokens, max_tokens = integers("num_tokens_at_arrival max_tokens")
    config = SimpleNamespace(**vars(SETTINGS), max_in_flight_steps=STEPS, num_speculative_tokens=drafts)
    checked = assigned(
        requests.check_fits,
        ("num_ahead", "num_slots"),
        texts.get("check_fits", ()),
        config=config,
        num_tokens=num_tokens,
        max_tokens=max_tokens,
    )["num_slots"]
    last = minimum(num_tokens + max_tokens, MODEL)
    asked = symbols(TokensToSchedule, "input.")._replace(max_model_len=MODEL, max_num_tokens=last)
    facts = hypotheses("schedule", before, rules, event) | _sizes()
    facts |= {
        "arrived": z3.And(num_tokens >= 1, num_tokens < MODEL, max_tokens >= 1),
        "chosen": event.num_new_tokens == code_of.tokens_to_schedule(ledger, rules, *asked),
        # R1/bounds/arithmetic/sum_leaves_room_for_one_step
        "R1:awaited": num_awaited <= STEPS * (1 + drafts) - (1 + drafts),
    }
    facts |= {f"assumed:{key}": fact for key, fact in assume_tokens_to_schedule(before, rules, asked).items()}
    awaited_outputs = asked.num_awaited_outputs
    exact = {
        "host:awaited": num_awaited <= awaited_outputs * (1 + drafts),
        "host:undelivered": awaited_outputs <= STEPS - 1,
    }
    return Fit(
        facts,
        facts | exact,
        minimum(reserved("decide_running", texts).num_slots, MODEL),
        minimum(code_of.slots_to_admit(ledger, rules, LOOKAHEAD), MODEL),
        checked,
        minimum(last - 1 + STEPS * drafts + LOOKAHEAD, MODEL),
    )


def let_in(texts: Texts) -> list[Obligation]:
    """A request that passed the check is never short of blocks when it is alone in the pool."""
    this, group = fit(texts), "check_fits"
    counted = summand(
        requests.check_fits,
        "needed",
        texts.get("check_fits", ()),
        group=SimpleNamespace(block_size=SIZE),
        num_slots=SLOTS,
    )
    sizes = _sizes() | {"checked": SLOTS <= MODEL}
    blocks = blocks_of("reserve", SLOTS, texts)
    return [
        claim(group, "slots_of_a_step", this.facts, this.num_slots <= this.num_checked_slots),
        claim(group, "slots_to_admit", this.facts, this.num_slots_to_admit <= this.num_checked_slots),
        claim(group, "within_the_model", this.facts, this.num_checked_slots <= MODEL),
        claim(f"{group}/exactly", "slots_of_a_step", this.exact_facts, this.num_slots <= this.num_most_slots),
        # With `more_slots_need_no_fewer_blocks`: the blocks that were checked are enough, in every group.
        claim(f"{group}/blocks", "enough", sizes, blocks <= counted),
        claim(f"{group}/blocks", "no_more_than_needed", sizes, (counted - 1) * SIZE < SLOTS),
    ]


def obligations(texts: Texts | None = None) -> list[Obligation]:
    """Blocks, the blocks of a step, what an admission takes, what is let in; `texts` are planted faults."""
    used = texts or {}
    return [
        *in_blocks(used),
        *of_a_step("decide_running", used),
        *of_a_step("admit_row", used),
        *at_admission(used),
        *let_in(used),
    ]


def witnesses() -> dict[str, Facts]:
    """Beside the groups: a step that runs ahead with drafts, of a request that just passed the check."""
    this, before = fit({}), symbolic_state()
    ahead = z3.And(before.ghosts.num_awaited_samples >= 3, before.ledger.num_draft_tokens >= 2, STEPS == 2)
    shown = {"shown": z3.And(ahead, symbolic_rules().num_speculative_tokens == 2)}
    return {"T10/check_fits/ahead": this.exact_facts | shown}
