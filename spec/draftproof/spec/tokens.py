"""What does each KV slot really hold? The token-level reference model that the ghosts are held against.

A KV entry is determined by the token at its position and by everything before it. So a slot is modelled
as the token prefix it was computed from, and is valid if that prefix is the request's own. The model
runs beside the exact queue (`draftproof.spec.queue.Run`) and never looks at the counters under test, with
one exception that the device shares: a prefill step starts to write where the host says (C).

Tokens are names that are used once: whatever the device samples, guesses wrongly or the client sends is
a token never seen before. No two different prefixes are ever equal by chance, so what is valid here is
valid on any device, and what is not could be wrong on some.

Assumed of the device: a decode step starts at the device's own length less one and continues from
accepted tokens only; outputs return in order and report the true acceptance; a prefix-cache hit is valid;
once blocks are given back, steps still in flight no longer write to this request.

Plain Python; meant for tests and explanations, where requests are short.
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.spec import queue
from draftproof.spec.events import Admit, ChunkOutput, Event, Fold, Output, Preempt, Schedule, StaleOutput
from draftproof.spec.ledger import FINISHED, PAUSED, Rules
from draftproof.spec.queue import Run, Transitions, dispatched

Prefix = tuple[int, ...]
"""The tokens that a slot's KV was computed from, its own token last."""
Slots = tuple[Prefix | None, ...]
"""The request's slots by position; None holds the KV of no token prefix."""


class DeviceStep(NamedTuple):
    """What a dispatched step does on the device: settled when it runs, told to the host when it returns."""

    first_slot: int
    written: Slots
    num_accepted: int
    generated: tuple[int, ...]
    blocks_freed: bool


class Reference(NamedTuple):
    """A run with the truth beside it: tokens, slots, and what the steps in flight do."""

    run: Run
    tokens: Prefix
    """The committed tokens: prompt and output, as the host knows them."""
    sequence: Prefix
    """The device's own tokens: ahead of the host by what is in flight."""
    enqueued: Slots
    """The slots once every dispatched step has run."""
    returned: Slots
    """The slots as written by the steps that have returned."""
    in_flight: tuple[DeviceStep, ...]
    num_tokens_made: int
    """How many token names have been given out."""


def start(num_prompt_tokens: int) -> Reference:
    """A request that has just arrived: no slot holds anything."""
    prompt = tuple(range(num_prompt_tokens))
    return Reference(queue.start(num_prompt_tokens), prompt, prompt, (), (), (), num_prompt_tokens)


def num_valid_tokens(reference: Reference) -> int:
    """The true V: leading committed tokens whose slot is theirs once every dispatched step has run."""
    return _num_leading(reference.enqueued, reference.tokens)


def num_settled_tokens(reference: Reference) -> int:
    """The true W: the same, counting only steps that have returned."""
    return _num_leading(reference.returned, reference.tokens)


def possible(reference: Reference, rules: Rules, event: Event) -> bool:
    """The event may come next, and reports what the device really did."""
    if not queue.possible(reference.run, rules, event):
        return False
    if isinstance(event, Output):
        return event.num_accepted == reference.in_flight[0].num_accepted
    if isinstance(event, StaleOutput):
        # Only a stop keeps less than was generated, unless nothing of it is kept at all.
        num_generated = len(reference.in_flight[0].generated)
        whole = event.num_kept == num_generated or event.stopped == 1
        return event.num_kept <= num_generated and (whole or reference.run.state.ledger.drop_stale)
    return True


def advance(
    reference: Reference, rules: Rules, event: Event, transitions: Transitions, num_accepted: int = 0
) -> Reference:
    """The reference after a possible event, under the given code.

    `num_accepted` counts for a schedule: how many of the step's drafts the device will find right.
    """
    after = _on_device(reference, event, num_accepted)
    return after._replace(run=queue.advance(reference.run, rules, event, transitions))


def num_drafts_dispatched(reference: Reference, event: Schedule) -> int:
    """How many drafts the step would verify: the bound on its `num_accepted`."""
    return dispatched(reference.run.state, event).num_drafts


def disagreements(reference: Reference) -> list[str]:
    """Where ghosts and truth part. Empty in every state, if the ghosts mean what they say.

    Never above the truth (soundness), and equal to it (completeness), except between turns: there the
    last known token counts as not computed, because the next chunk will overwrite its position, although
    it may have KV. A finished request keeps its last ghosts, so there only soundness is asked.
    """
    ledger, ghosts = reference.run.state
    found = []
    if ledger.num_tokens != len(reference.tokens):
        found.append(f"N is {ledger.num_tokens}, there are {len(reference.tokens)} tokens")
    for symbol, ghost, truth in (
        ("V", ghosts.num_valid_tokens, num_valid_tokens(reference)),
        ("W", ghosts.num_settled_tokens, num_settled_tokens(reference)),
    ):
        allowed = 1 if ledger.status == PAUSED else 0
        if ghost > truth:
            found.append(f"unsound: {symbol} is {ghost}, in truth {truth}")
        elif truth - ghost > allowed and ledger.status != FINISHED:
            found.append(f"incomplete: {symbol} is {ghost}, in truth {truth}")
    return found


def renamed(reference: Reference) -> Reference:
    """The same reference with tokens named in order of first mention, so that equal situations are equal."""
    names: dict[int, int] = {}

    def rename(prefix: Prefix) -> Prefix:
        return tuple([names.setdefault(token, len(names)) for token in prefix])

    def rename_slots(slots: Slots) -> Slots:
        return tuple([None if prefix is None else rename(prefix) for prefix in slots])

    return Reference(
        run=reference.run,
        tokens=rename(reference.tokens),
        sequence=rename(reference.sequence),
        enqueued=rename_slots(reference.enqueued),
        returned=rename_slots(reference.returned),
        in_flight=tuple(
            [
                step._replace(written=rename_slots(step.written), generated=rename(step.generated))
                for step in reference.in_flight
            ]
        ),
        num_tokens_made=len(names),
    )


def _num_leading(slots: Slots, tokens: Prefix) -> int:
    """How many leading positions hold the KV of these tokens."""
    count = 0
    while count < min(len(slots), len(tokens)) and slots[count] == tokens[: count + 1]:
        count += 1
    return count


def _computed(slots: Slots, first_slot: int, tokens: Prefix) -> Slots:
    """What a step writes for `tokens` from `first_slot` on, reading the slots below.

    Over a slot that is empty, or beside one of another sequence, it computes the KV of no prefix.
    """
    below = slots[:first_slot]
    context = below[-1] if below else ()
    if len(below) < first_slot or context is None or _num_leading(below, context) < first_slot:
        return (None,) * len(tokens)
    return tuple([context + tokens[: count + 1] for count in range(len(tokens))])


def _written(slots: Slots, step: DeviceStep) -> Slots:
    """The slots after the step's writes."""
    end = step.first_slot + len(step.written)
    padded = slots + (None,) * (end - len(slots))
    return padded[: step.first_slot] + step.written + padded[end:]


def _on_device(reference: Reference, event: Event, num_accepted: int) -> Reference:
    """Everything but the run after an event."""
    if isinstance(event, Admit):
        return _admitted(reference, event)
    if isinstance(event, Schedule):
        step, sequence = _device_step(reference, event, num_accepted)
        num_named = len(step.generated) + num_drafts_dispatched(reference, event) - num_accepted
        return reference._replace(
            sequence=sequence,
            enqueued=_written(reference.enqueued, step),
            in_flight=(*reference.in_flight, step),
            num_tokens_made=reference.num_tokens_made + num_named,
        )
    if isinstance(event, ChunkOutput | Output | StaleOutput):
        return _returned(reference, event)
    if isinstance(event, Preempt):
        freed = tuple([step._replace(blocks_freed=True) for step in reference.in_flight])
        return reference._replace(enqueued=(), returned=(), in_flight=freed)
    if isinstance(event, Fold):
        end = reference.num_tokens_made + event.num_chunk_tokens
        chunk = tuple(range(reference.num_tokens_made, end))
        return reference._replace(tokens=reference.tokens[:-1] + chunk, num_tokens_made=end)
    return reference  # proposing drafts, ending a turn and leaving write nothing


def _admitted(reference: Reference, event: Admit) -> Reference:
    """The device continues from the committed tokens; a request without KV starts on the blocks it hit."""
    reference = reference._replace(sequence=reference.tokens)
    if reference.run.state.ledger.num_computed_tokens > 0:
        return reference
    hit = tuple([reference.tokens[: count + 1] for count in range(event.num_hit_tokens)])
    return reference._replace(enqueued=hit, returned=hit)


def _device_step(reference: Reference, event: Schedule, num_accepted: int) -> tuple[DeviceStep, Prefix]:
    """What a dispatched step does, and the device's sequence after it."""
    planned = dispatched(reference.run.state, event)
    made = reference.num_tokens_made
    if planned.prefill:
        first_slot = reference.run.state.ledger.num_computed_tokens
        computed = reference.tokens[first_slot : first_slot + planned.num_tokens]
        generated: tuple[int, ...] = (made,) if planned.samples else ()
        sequence = reference.tokens + generated
    else:
        first_slot = len(reference.sequence) - 1
        generated = tuple(range(made, made + num_accepted + 1))
        wrong = tuple(range(made + num_accepted + 1, made + planned.num_drafts + 1))
        computed = reference.sequence[first_slot:] + generated[:num_accepted] + wrong
        sequence = reference.sequence + generated
    written = _computed(reference.enqueued, first_slot, computed)
    return DeviceStep(first_slot, written, num_accepted, generated, blocks_freed=False), sequence


def _returned(reference: Reference, event: ChunkOutput | Output | StaleOutput) -> Reference:
    """The oldest step has returned: its writes are settled, what is kept of its tokens is committed."""
    step = reference.in_flight[0]
    dropped = isinstance(event, StaleOutput) and reference.run.state.ledger.drop_stale
    num_kept = 0 if isinstance(event, ChunkOutput) or dropped else event.num_kept
    return reference._replace(
        tokens=reference.tokens + step.generated[:num_kept],
        returned=reference.returned if step.blocks_freed else _written(reference.returned, step),
        in_flight=reference.in_flight[1:],
    )
