"""What does the user of `draftproof check` read? The verdict, then what diverged, then what is unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from draftproof.impl.traces.checking import EXIT_STATUS, UNREADABLE, VIOLATED, Report
from draftproof.impl.traces.coverage import IN_PART, NEVER
from draftproof.impl.traces.findings import ACCOUNTING, ORDER
from draftproof.impl.traces.sources import Unreadable
from draftproof.impl.traces.timeline import printable
from draftproof.spec.theorems import THEOREMS

GROUPS = {
    ORDER: "an event came where it may not come",
    ACCOUNTING: "a counter differs from the accounting's",
}


def exit_status(reports: Sequence[Report], unreadable: Sequence[Unreadable]) -> int:
    """0 clean, 1 violations, 2 something could not be read or checked."""
    statuses = {EXIT_STATUS[report.verdict] for report in reports}
    if 1 in statuses:
        return 1
    return 2 if unreadable or 2 in statuses or not reports else 0


def as_json(reports: Sequence[Report], unreadable: Sequence[Unreadable]) -> str:
    """Everything, for programs. All but ASCII is escaped: a path may hold bytes that are no text."""
    found = {
        "exit_status": exit_status(reports, unreadable),
        "reports": reports,
        "unreadable": [one._asdict() for one in unreadable],
    }
    return json.dumps(msgspec.to_builtins(found), indent=1)


def as_text(reports: Sequence[Report], unreadable: Sequence[Unreadable], num_shown: int) -> str:
    """For people."""
    lines: list[str] = []
    for report in reports:
        lines += _report(report, num_shown)
    lines += [one.sentence for one in unreadable]
    return "\n".join(printable(line) for line in lines) + "\n"


def _report(report: Report, num_shown: int) -> list[str]:
    name = (
        report.paths[0] if len(report.paths) == 1 else f"{report.paths[0]} and {len(report.paths) - 1} more"
    )
    engine = f"{report.engine} {report.engine_version}".strip()
    lines = [f"{name} ({engine}): {report.num_requests:,} requests, {report.num_records:,} records"]
    lines.append(f"  {_verdict(report)}")
    for theorem, count in sorted(report.by_theorem.items(), key=lambda item: -item[1]):
        what = THEOREMS[theorem].name if theorem in THEOREMS else GROUPS.get(theorem, "")
        lines.append(f"  {theorem}: {what}: {_requests(count)}")
    shown = report.divergences[:num_shown]
    lines += [f"    {one.sentence}{' (suspect)' if one.is_suspect else ''}" for one in shown]
    rest = report.num_diverged + report.num_suspect - len(shown)
    if rest > 0:
        lines.append(f"    and {rest:,} more")
    for kind, count in report.damage_counts.items():
        lines.append(f"  damage ({kind}): {count:,}")
    lines += [f"    {sentence}" for sentence in report.damages[:num_shown]]
    if report.remarks:
        lines.append(f"  a live checker remarked {len(report.remarks)} times: {report.remarks[0]}")
    if IN_PART in report.not_checked:
        lines.append(f"  checked in part only: {report.not_checked[IN_PART]}")
    for theorem, reason in report.not_checked.items():
        if theorem not in NEVER and theorem != IN_PART:
            lines.append(f"  {theorem} was not checked: {reason}")
    lines.append(f"  never in a trace: {', '.join(NEVER)}")
    return lines


def _verdict(report: Report) -> str:
    checked = ", ".join(report.checked) or "nothing"
    if report.verdict == VIOLATED:
        return f"VIOLATED: {_requests(report.num_diverged)} diverged from the accounting"
    if report.verdict == UNREADABLE:
        suspects = (
            f", {_requests(report.num_suspect)} diverged, perhaps for that reason"
            if report.num_suspect
            else ""
        )
        return (
            f"UNREADABLE in part: no verdict{suspects}; what was read agrees otherwise (checked: {checked})"
        )
    if report.verdict == "clean":
        return f"clean for {checked}"
    return "UNCHECKED: the trace has no counters that could be checked"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"
