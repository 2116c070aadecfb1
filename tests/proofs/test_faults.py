"""Every known fault is found: refuted by the statements it names, and reached from a new request."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from draftproof.impl import accounting, decisions
from draftproof.impl.contracts import plain
from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.faults import UNMODELLED, Change, Fault, UnknownName, all_faults, find, reports
from draftproof.proofs.faults.checking import check_fault, replay_problems
from draftproof.proofs.faults.explain import explain
from draftproof.proofs.faults.fault import ACCOUNTING, DECISIONS
from draftproof.proofs.faults.patching import SourceMoved, patched, right_code
from draftproof.proofs.faults.refute import changes_guard, faulty_obligations, refute, refute_all
from draftproof.proofs.faults.replay import replay, replay_trace
from draftproof.proofs.faults.story import tell
from draftproof.proofs.faults.trace import committed, from_data, to_data, to_text
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.obligations import formulas, satisfiable
from draftproof.proofs.solvers import ask_z3
from draftproof.spec import guards
from draftproof.spec.decision_inputs import DECISIONS as DECISION_NAMES
from draftproof.spec.events import Admit, EndTurn, Fold
from draftproof.spec.ledger import Rules, initial

FAULTS = all_faults()
NAMES = [fault.name for fault in FAULTS]
SEED = (
    "trim-uncounted",
    "trim-placeholders-kept",
    "finish-registers-nothing-synchronous",
    "finish-registers-nothing-asynchronous",
    "finish-registers-in-flight",
    "finish-registers-beyond-known",
    "finish-forgets-trimmed",
    "finish-registers-preempted",
    "fold-cuts-at-computed",
    "hashes-cut-at-overshot-computed",
    "turn-end-counts-in-flight",
    "rejections-stay-computed",
    "rejections-stay-reserved",
    "preemption-loses-settled",
    "abort-loses-settled",
)
OURS = (
    "fence-forgotten",
    "one-placeholder-per-output",
    "trimmed-tokens-stay-known",
    "draft-groups-never-served",
    "chunk-cuts-lookahead",
    "short-prompt-waits-for-lookahead",
    "idle-session-keeps-its-count",
    "idle-session-starts-by-itself",
)
"""Faults that no report tells: each is the only one of its kind (the fence ignored everywhere, accepted
drafts that stay reserved, trimmed tokens in N, a look-up that gives everything back, a chunk that cuts the
drafter's look-ahead, one that waits for it for ever, a session that loses its blocks between turns)."""
AREAS = {
    "trim": 6,
    "reject-rollback": 3,
    "placeholders-async": 5,
    "in-flight": 5,
    "stale-output": 6,
    "preempt": 3,
    "resume": 5,
    "session-fold": 7,
    "terminal-registration": 4,
    "max-len-clamp": 3,
    "chunked-prefill": 3,
    "budget": 6,
    "mtp-eagle-fence": 5,
    "abort": 3,
    "metrics": 4,
}
NO_CHANGE = Change(ACCOUNTING, "output", "num_accepted + 1  # the token", "1 + num_accepted  # the token")


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_the_fault_is_found(fault: Fault) -> None:
    verdict = check_fault(fault)
    assert verdict.found, verdict.detail


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_the_right_code_keeps_the_statement_or_refuses_the_trace(fault: Fault) -> None:
    done = replay(fault)
    assert done.right_holds
    guards_changed = any(change.module.endswith("guards") for change in fault.changes)
    if done.right.refused is not None:
        # Only a guard, or a queue fact that the fault destroyed, may stand in the way of the right code.
        assert guards_changed or "head_is_live" in done.right.refusal


def test_names_are_unique_and_in_kebab_case() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert [name for name in NAMES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


def test_the_seed_pairs_faults_are_there() -> None:
    assert set(SEED) <= set(NAMES)


def test_every_report_is_modelled_or_argued_and_never_both() -> None:
    assert Counter(report.area for report in reports().values()) == AREAS
    modelled = {report for fault in FAULTS for report in fault.reports}
    assert modelled | set(UNMODELLED) == set(reports())
    assert modelled & set(UNMODELLED) == set()
    assert len(UNMODELLED) <= 10
    assert all(len(reason) > 40 for reason in UNMODELLED.values())


def test_faults_without_a_report_are_those_of_the_seed_pair_and_a_few_of_ours() -> None:
    unreported = {fault.name for fault in FAULTS if not fault.reports}
    assert unreported - set(SEED) == set(OURS)


def test_violated_statements_are_claims_of_the_running_proofs() -> None:
    known = {claim.name for name in accounting.TRANSITIONS for claim in transition_obligations(name)}
    for fault in FAULTS:
        for path in (*fault.violated, fault.trace_breaks):
            assert path in known or path.partition("/")[0] in DECISION_NAMES, path


# ---- the checks themselves can fail ------------------------------------------------------------------------


def test_a_change_that_changes_nothing_is_not_found() -> None:
    fault = find("trim-uncounted")._replace(changes=(NO_CHANGE,))
    verdict = check_fault(fault)
    assert not verdict.refuted
    assert not verdict.replayed
    assert not verdict.found
    assert "is proved" in verdict.detail


def test_a_fault_without_a_trace_is_not_found() -> None:
    verdict = check_fault(find("trim-uncounted")._replace(name="no-such-trace"))
    assert (verdict.refuted, verdict.replayed, verdict.found) == (True, False, False)
    assert "no trace is committed" in verdict.detail


def test_a_fault_whose_source_or_statement_is_gone_is_not_found() -> None:
    fault = find("trim-uncounted")
    moved = check_fault(fault._replace(changes=(fault.changes[0]._replace(before="was edited"),)))
    assert not moved.found
    assert "the source moved" in moved.detail
    unclaimed = check_fault(fault._replace(violated=("output/effect/no_such",)))
    assert (unclaimed.refuted, unclaimed.found) == (False, False)
    assert "output/effect/no_such is not claimed" in unclaimed.detail


def test_a_trace_with_an_impossible_event_does_not_show_the_fault() -> None:
    fault, trace = find("trim-uncounted"), committed("trim-uncounted")
    without_draft = trace._replace(events=(trace.events[0], *trace.events[2:]))
    problems = replay_problems(fault, replay(fault, without_draft))
    assert len(problems) == 1
    assert "not possible: at_most_wanted" in problems[0]


def test_a_trace_that_stops_short_or_speaks_of_something_else_does_not_show_the_fault() -> None:
    fault, trace = find("reset-discards-when-drained"), committed("reset-discards-when-drained")
    other = trace._replace(violated="preempt/effect/starts_over")
    assert replay_problems(fault, replay(fault, other))
    wrong_mode = find("trim-uncounted")._replace(asynchronous=True)
    assert replay_problems(wrong_mode, replay(wrong_mode)) == ["the trace is in the other mode"]


def test_a_trace_that_breaks_the_right_code_too_accuses_the_statement() -> None:
    fault = find("trim-uncounted")
    faulty = patched(fault.changes)
    done = replay_trace(committed(fault.name), faulty, right=faulty)
    assert done.breaks
    assert not done.right_holds
    assert replay_problems(fault, done) == [f"{fault.trace_breaks} is false on the right code too"]


def test_a_statement_that_holds_at_the_end_of_the_trace_shows_nothing() -> None:
    fault = find("trim-uncounted")._replace(shown_by="fold/effect/waiting")
    done = replay(fault, committed(fault.name)._replace(violated="fold/effect/waiting"))
    assert replay_problems(fault, done) == ["fold/effect/waiting holds at the end of the trace"]


def test_an_exhausted_solver_is_not_a_refutation() -> None:
    assert [one.verdict for one in refute(find("trim-uncounted"), resources=1)] == ["unknown"] * 2


def test_everything_else_the_fault_breaks_can_be_listed() -> None:
    verdicts = {one.path: one.verdict for one in refute_all(find("fold-keeps-last-token"))}
    assert verdicts["fold/theorem/T7/fold_keeps_all_but_one"] == "refuted"
    assert verdicts["fold/effect/waiting"] == "proved"
    assert "unknown" not in verdicts.values()


# ---- faults of guards: nothing about the queue is assumed --------------------------------------------------

OF_GUARDS = [fault for fault in FAULTS if changes_guard(fault)]


def test_the_faults_of_guards() -> None:
    assert {fault.name for fault in OF_GUARDS} == {
        "scheduled-before-its-token",
        "late-output-finishes-again",
        "fold-while-running",
        "verified-more-than-scheduled",
    }


@pytest.mark.parametrize("fault", OF_GUARDS, ids=lambda fault: fault.name)
def test_a_fault_of_a_guard_is_refuted_without_the_facts_that_the_right_guards_give(fault: Fault) -> None:
    for function in {path.partition("/")[0] for path in fault.violated}:
        symbols = (symbolic_state(), symbolic_rules(), symbolic_event(function))
        known = set(guards.QUEUE_FACTS[function](*symbols)) if function in guards.QUEUE_FACTS else set()
        for claim in faulty_obligations(fault, function):
            assert not {f"guard:{fact}" for fact in known} & set(claim.hypotheses)
    assert {one.verdict for one in refute(fault)} == {"refuted"}


@pytest.mark.parametrize("fault", OF_GUARDS, ids=lambda fault: fault.name)
def test_with_the_right_guards_and_code_the_same_hypotheses_prove_it(fault: Fault) -> None:
    for path in fault.violated:
        function = path.partition("/")[0]
        claims = {claim.name: claim for claim in faulty_obligations(fault, function, right_code())}
        assert satisfiable(claims[path].hypotheses)
        assert ask_z3(formulas(claims[path])).verdict == "unsat"


def test_a_claim_that_needs_facts_about_the_queue_is_not_held_against_a_guard() -> None:
    """Without them it is refuted of the right code too, so the refutation says nothing about the change."""
    fault = find("verified-more-than-scheduled")._replace(violated=("output/theorem/T5/no_underflow",))
    assert [one.verdict for one in refute(fault)] == ["about the queue"]
    assert not check_fault(fault).refuted


def test_a_decoding_request_is_scheduled_again_before_its_token() -> None:
    """Both steps in flight at the end are decode steps, and the second starts at a token nobody knows."""
    last = replay(find("scheduled-before-its-token")).faulty.runs[-1]
    assert [(step.prefill, step.samples) for step in last.queue] == [(False, True), (False, True)]
    start = last.state.ledger.num_computed_tokens - last.queue[-1].num_tokens
    assert start == last.state.ledger.num_tokens


def test_a_decoding_request_is_what_the_refutation_speaks_of_too() -> None:
    """Also with no prefill in flight, where the invariant about the completing step says nothing."""
    fault = find("scheduled-before-its-token")
    verdicts = {}
    for claim in faulty_obligations(fault, "schedule"):
        decode = {**claim.hypotheses, "decode": symbolic_state().ghosts.num_prefill_in_flight == 0}
        verdicts[claim.name] = ask_z3(formulas(claim._replace(hypotheses=decode))).verdict
    assert [path for path, verdict in verdicts.items() if verdict != "unsat"] == [
        "schedule/theorem/T2/step_starts_at_known_token"
    ]


# ---- changes are made in memory ----------------------------------------------------------------------------


def test_the_running_code_is_not_touched() -> None:
    before = plain(accounting.output)
    faulty = patched(find("trim-uncounted").changes).transitions["output"]
    assert plain(accounting.output) is before
    ledger = initial(3)._replace(num_computed_tokens=6, num_tokens=4, num_in_flight_tokens=3)
    rules = Rules(2, 16, False, 0)
    assert faulty(ledger, rules, 3, 2, 2, 1, 1).num_computed_tokens == 6
    assert before(ledger, rules, 3, 2, 2, 1, 1).num_computed_tokens == 4
    assert right_code().transitions["output"] is before


def test_only_the_changed_functions_differ() -> None:
    code = patched(find("hashes-only-grow").changes)
    assert code.transitions == right_code().transitions
    ledger = initial(16)
    for name in ("drafts_allowed", "slots_to_admit"):
        assert code.decisions[name](ledger, Rules(3, 16, False, 0), 20) == decisions.FUNCTIONS[name](
            ledger, Rules(3, 16, False, 0), 20
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change(ACCOUNTING, "output", "not in there", ""), "occurs 0 times"),
        (Change(DECISIONS, "no_such", "return", ""), "no function no_such"),
        (Change(ACCOUNTING, "finish", "ledger.", ""), r"occurs \d\d times"),
    ],
)
def test_moved_source_is_named(change: Change, message: str) -> None:
    with pytest.raises(SourceMoved, match=message):
        patched((change,))


# ---- names, traces and stories -----------------------------------------------------------------------------


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(UnknownName, match="trim-uncounted") as caught:
        find("trim-uncouted")
    assert caught.value.nearest[0] == "trim-uncounted"
    with pytest.raises(UnknownName, match=r"no fault named zzz$"):
        find("zzz")


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_survives_its_file(name: str) -> None:
    trace = committed(name)
    assert from_data(to_data(name, trace)) == trace
    assert from_data(json.loads(to_text(name, trace))) == trace


@pytest.mark.parametrize("name", NAMES)
def test_a_story_is_plain_data_and_reads_in_a_terminal(name: str) -> None:
    story = json.loads(json.dumps(tell(name)))
    assert len(story["rows"]) == len(committed(name).events) + 1
    assert story["rows"][0]["event"].startswith("arrives(prompt=")
    assert all(not row["event"].startswith("arrives") for row in story["rows"][1:])
    last = story["rows"][-1]
    broken = last["broke"] if story["decision"] is None else story["decision"]["broken"]
    assert find(name).trace_breaks.partition("/")[2].rpartition("relation/")[2] in broken
    # Something visible is wrong: a counter, an answer, or an event that the right code refuses.
    decided = story["decision"] is not None and story["decision"]["faulty"] != story["decision"]["right"]
    assert last["wrong"] or last["right"] is None or decided
    text = explain(story)
    assert story["outcome"].split(".")[0].split()[0] in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_story_begins_on_common_ground() -> None:
    for name in NAMES:
        rows = tell(name)["rows"]
        assert rows[0]["wrong"] == []
        assert rows[0]["faulty"] == rows[0]["right"]


def test_the_trim_faults_pinned_story_shows_the_tables_numbers() -> None:
    story = tell("trim-uncounted", pinned=True)
    last = story["rows"][-1]
    assert (last["faulty"]["C"], last["right"]["C"]) == (6, 4)
    tokens = {side: [cell["token"] for cell in last["strip"][side]] for side in ("faulty", "right")}
    assert tokens["faulty"] == ["1", "2", "3", "10", "11", "7", "8"]
    assert tokens["right"][:6] == ["1", "2", "3", "10", "7", "8"]
    seven = last["strip"]["faulty"][5]
    assert (seven["token"], seven["kv"], seven["holds"]) == ("7", "draft", "12")
    assert "The next step computes 8 of 1 2 3 10 11 7 8; right is 7 8 of 1 2 3 10 7 8." in story["outcome"]
    text = explain(story)
    assert "6 not 4" in text
    assert "1 2 3 10 11 7~12 | 8-" in text
    assert [change["function"] for change in story["changes"]] == ["output", "fold"]


def test_a_pinned_story_of_a_fault_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="no pinned numbers"):
        tell("rejections-stay-computed", pinned=True)


def test_every_pinned_story_can_be_told() -> None:
    for fault in FAULTS:
        if fault.pin is not None:
            story = tell(fault.name, pinned=True)
            assert str(fault.pin.wrong) in json.dumps(story)
            assert explain(story)


def test_what_a_preemption_loses_is_seen_in_the_strip() -> None:
    """The registered block is there before the preemption and gone after it, on both codes."""
    rows = tell("preemption-loses-settled", pinned=True)["rows"]
    assert sum(cell["registered"] for cell in rows[-2]["strip"]["faulty"]) == 32
    assert sum(cell["registered"] for cell in rows[-1]["strip"]["faulty"]) == 0
    assert (rows[-1]["faulty"]["X"], rows[-1]["right"]["X"]) == (32, 48)


def test_events_without_arguments_are_told_as_such() -> None:
    story = tell("trim-uncounted")
    told = [row["event"] for row in story["rows"]]
    events = committed("trim-uncounted").events
    assert isinstance(events[0], Admit) and isinstance(events[-2], EndTurn) and isinstance(events[-1], Fold)
    assert told[1] == "admit(hit=0)"
    assert told[-2] == "end_turn()"
