"""Stories for the report's tests: real transitions, a few with a fault put in, and one hostile story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.impl.accounting import TRANSITIONS
from draftproof.spec import events, ghosts, invariants
from draftproof.spec.ghosts import GHOST_SYMBOLS, State, initial_state
from draftproof.spec.ledger import STATUS_NAMES, SYMBOLS, Ledger, Rules

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE_TOKEN = "<script>alert(3)</script>"

Transition = Callable[..., Ledger]
Moment = tuple[Any, list[str]]
"""An event, and all tokens after it, drafts under way included."""


def _counters(state: State) -> dict[str, Any]:
    ledger = {symbol: getattr(state.ledger, name) for name, symbol in SYMBOLS.items()}
    truth = {symbol: getattr(state.ghosts, name) for name, symbol in GHOST_SYMBOLS.items()}
    return {**ledger, "status": STATUS_NAMES[state.ledger.status], **truth}


def _strip(state: State, tokens: list[str]) -> list[dict[str, Any]]:
    ledger, truth = state
    return [
        {
            "position": position,
            "token": token,
            "kv": "valid"
            if position < truth.num_settled_tokens
            else "enqueued"
            if position < truth.num_valid_tokens
            else "draft"
            if position < ledger.num_computed_tokens
            else "none",
            "registered": position < ledger.num_registered_tokens,
            "known": position < ledger.num_tokens,
            "holds": "",
        }
        for position, token in enumerate(tokens)
    ]


def _told(event: Any) -> str:
    words = ", ".join(f"{events.EVENT_SYMBOLS[name]}={value}" for name, value in event._asdict().items())
    return f"{events.event_name(event)}({words})"


def _advance(state: State, rules: Rules, event: Any, transition: Transition) -> State:
    truth = getattr(ghosts, events.event_name(event))(state, rules, event)
    return State(transition(state.ledger, rules, *event), truth)


def run(
    name: str, faulty: Transition, rules: Rules, num_prompt_tokens: int, moments: list[Moment]
) -> list[dict[str, Any]]:
    """The rows of a story in which transition `name` is replaced by `faulty`."""
    wrong_state = right_state = initial_state(num_prompt_tokens)
    rows = []
    for event, tokens in moments:
        transition = events.event_name(event)
        code = faulty if transition == name else TRANSITIONS[transition]
        wrong_state = _advance(wrong_state, rules, event, code)
        right_state = _advance(right_state, rules, event, TRANSITIONS[transition])
        wrong, right = _counters(wrong_state), _counters(right_state)
        rows.append(
            {
                "event": _told(event),
                "faulty": wrong,
                "right": right,
                "wrong": [letter for letter in wrong if wrong[letter] != right[letter]],
                "note": "",
                "strip": {
                    "faulty": _strip(wrong_state, tokens),
                    "right": _strip(right_state, tokens),
                    "faulty_frontier": invariants.frontier(wrong_state),
                    "right_frontier": invariants.frontier(right_state),
                },
            }
        )
    return rows


def _untrimmed(ledger: Ledger, rules: Rules, *event: int) -> Ledger:
    _, _, num_accepted, num_kept, _ = event
    right = TRANSITIONS["output"](ledger, rules, *event)
    return right._replace(num_computed_tokens=right.num_computed_tokens + num_accepted + 1 - num_kept)


def _finish_unregistered(ledger: Ledger, rules: Rules) -> Ledger:
    right = TRANSITIONS["finish"](ledger, rules)
    return right._replace(num_registered_tokens=ledger.num_registered_tokens)


def trim_story() -> dict[str, Any]:
    """The trim fault, with the numbers of its report: C is 6 where 4 is right."""
    rules = Rules(2, 16, False, 0)
    prompt, drafted = ["1", "2", "3"], ["1", "2", "3", "10", "11", "12"]
    rows = run(
        "output",
        _untrimmed,
        rules,
        3,
        [
            (events.Admit(0), prompt),
            (events.Schedule(3), prompt),
            (events.Output(3, 0, 0, 1, 0), drafted[:4]),
            (events.Draft(2), drafted[:4]),
            (events.Schedule(3), drafted),
            (events.Output(3, 2, 2, 1, 1), drafted[:5]),
            (events.EndTurn(), drafted[:5]),
            (events.Fold(2), [*drafted[:4], "7", "8"]),
            (events.Admit(0), [*drafted[:4], "7", "8"]),
        ],
    )
    rows[5]["note"] = "The stop cut one accepted draft and the bonus token; both stay counted."
    return {
        "fault": "trim-uncounted",
        "title": "Trimmed tokens stay counted as computed",
        "meaning": "A user stops a reply in the middle of an accepted draft and sends the next message. The "
        "session skips the first tokens of that message and answers from the KV of a draft nobody saw.",
        "reports": [
            {
                "id": "trim-stop-on-accepted-draft-sync",
                "source": "vllm-project/vllm#58259",
                "engine": "vLLM",
                "what_happens": "When a verify step stops on an accepted draft, the later tokens are cut "
                "from the "
                "history but the computed counter keeps counting them.",
            }
        ],
        "area": "trim",
        "theorem": "T2",
        "violated": ["output/effect/frontier", "output/theorem/T2/output_moves_frontier_by_kept"],
        "change": {
            "function": "output",
            "before": "    num_rejected = num_drafts - num_accepted\n"
            "    num_trimmed = num_generated - num_kept\n"
            "    num_computed_tokens = ledger.num_computed_tokens - num_rejected - num_trimmed\n"
            "    num_output_placeholders = where(",
            "after": "    num_rejected = num_drafts - num_accepted\n"
            "    num_trimmed = num_generated - num_kept\n"
            "    num_computed_tokens = ledger.num_computed_tokens - num_rejected\n"
            "    num_output_placeholders = where(",
        },
        "rules": rules_data(rules),
        "num_prompt_tokens": 3,
        "rows": rows,
        "outcome": "After the fold C is 6 where 4 is right: only 8 is computed, and 7 reuses draft 12’s KV.",
        "decision": None,
    }


def rules_data(rules: Rules) -> dict[str, Any]:
    return {
        "K": rules.num_speculative_tokens,
        "B": rules.block_size,
        "asynchronous": rules.asynchronous,
        "fence": rules.registration_fence,
    }


def registration_story() -> dict[str, Any]:
    """Terminal registration left out: a long strip, 49 tokens."""
    rules = Rules(3, 16, False, 0)
    known = [str(100 + position) for position in range(45)]
    rows = run(
        "finish",
        _finish_unregistered,
        rules,
        45,
        [
            (events.Admit(0), known),
            (events.Schedule(45), known),
            (events.Output(45, 0, 0, 1, 0), [*known, "7"]),
            (events.Draft(3), [*known, "7"]),
            (events.Schedule(4), [*known, "7", "8", "9", "10"]),
            (events.Output(4, 3, 3, 3, 1), [*known, "7", "8", "9", "10"]),
            (events.Finish(), [*known, "7", "8", "9", "10"]),
        ],
    )
    return {
        "fault": "finish-registers-nothing",
        "title": "The last full block is never published",
        "meaning": "A finished request throws away its last whole block. The next request that starts with "
        "the same "
        "conversation computes it again; the text is right and nobody notices.",
        "reports": [
            {
                "id": "terminal-registration",
                "source": "vllm-project/vllm#54979",
                "engine": "vLLM",
                "what_happens": "Blocks completed by the last accepted drafts are freed before they are "
                "hashed.",
            },
            {"id": "no-thread", "source": "seed 002", "engine": "SGLang", "what_happens": ""},
        ],
        "area": "terminal-registration",
        "theorem": "T4",
        "violated": ["finish/theorem/T4/leaving_registers_settled"],
        "change": {
            "function": "finish",
            "before": "        num_registered_tokens=where(\n            ledger.status == RUNNING,\n"
            "            maximum(ledger.num_registered_tokens, registrable(settled, rules)),\n"
            "            ledger.num_registered_tokens,\n        ),",
            "after": "        num_registered_tokens=ledger.num_registered_tokens,",
        },
        "rules": rules_data(rules),
        "num_prompt_tokens": 45,
        "rows": rows,
        "outcome": "R stays 32 where 48 is right.",
        "decision": None,
    }


def _leaky(ledger: Ledger, rules: Rules, *event: int) -> Ledger:
    _, _, num_accepted, num_kept, _ = event
    right = TRANSITIONS["output"](ledger, rules, *event)
    return right._replace(num_output_placeholders=right.num_output_placeholders + num_accepted + 1 - num_kept)


def placeholders_story() -> dict[str, Any]:
    """Placeholders of trimmed tokens kept: asynchronous, blocks of four, another step under way."""
    rules = Rules(2, 4, True, 0)
    known = ["5", "6", "7", "8", "9"]
    rows = run(
        "output",
        _leaky,
        rules,
        5,
        [
            (events.Admit(0), known),
            (events.Schedule(5), known),
            (events.Schedule(3), [*known, "?", "?", "?"]),
            (events.Output(5, 0, 0, 1, 0), [*known, "10", "11", "12"]),
            (events.Schedule(3), [*known, "10", "11", "12", "?", "?", "?"]),
            (events.Output(3, 2, 2, 1, 1), [*known, "10", "11", "12", "?", "?", "?"]),
            (events.EndTurn(), [*known, "10", "11"]),
        ],
    )
    return {
        **trim_story(),
        "fault": "placeholders-leak",
        "title": "Placeholders of trimmed tokens are never given back",
        "area": "placeholders-async",
        "theorem": "effects",
        "rules": rules_data(rules),
        "num_prompt_tokens": 5,
        "rows": rows,
        "outcome": "P stays above what is awaited, and the frontier falls behind.",
    }


def decision_story() -> dict[str, Any]:
    """A fault of a decision: no rows, one call."""
    return {
        "fault": "lookup-hits-everything",
        "title": "A cache hit covers the whole prompt",
        "meaning": "Nothing is left to compute, so there are no logits to sample the first token from.",
        "reports": [
            {"id": "x", "source": "sgl-project/sglang#1", "engine": "SGLang", "what_happens": "It hangs."}
        ],
        "area": "prefix-hash",
        "theorem": "decisions",
        "violated": ["lookup_hit/relation/leaves_one"],
        "change": {
            "function": "lookup_hit",
            "before": "floor_to_block(n - 1, B)",
            "after": "floor_to_block(n, B)",
        },
        "rules": None,
        "rows": [],
        "outcome": "The hit is 32 where 16 is right.",
        "decision": {
            "call": "lookup_hit(num_tokens=32, num_found=32)",
            "faulty": {"num_hit_tokens": 32, "num_blocks": 2},
            "right": {"num_hit_tokens": 16, "num_blocks": 2},
            "broken": ["leaves_one"],
        },
    }


def hostile_story() -> dict[str, Any]:
    """Markup in every text that comes from outside."""
    story = trim_story()
    for row in story["rows"]:
        row["note"] = HOSTILE
        row["event"] += HOSTILE
        row["strip"]["faulty"][0]["token"] = HOSTILE_TOKEN
    return {
        **story,
        "fault": 'hostile"><b>',
        "title": f"A title with markup {HOSTILE}",
        "meaning": HOSTILE,
        "area": HOSTILE,
        "theorem": "T3",
        "violated": [HOSTILE],
        "outcome": HOSTILE,
        "reports": [
            {
                "id": HOSTILE,
                "source": "javascript:alert(4)",
                "engine": HOSTILE,
                "what_happens": HOSTILE + "\u2028\ud800 -->",
            }
        ],
        "change": {"function": HOSTILE, "before": HOSTILE, "after": f"{HOSTILE} {HOSTILE}"},
        "decision": {"call": HOSTILE, "faulty": HOSTILE, "right": HOSTILE, "broken": [HOSTILE]},
    }


def stories() -> list[dict[str, Any]]:
    return [trim_story(), registration_story(), placeholders_story(), decision_story(), hostile_story()]
