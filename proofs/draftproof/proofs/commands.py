"""The commands of the proofs: prove, theorems, faults, explain, tables, report, export, mutants.

Everything heavy is imported inside a command, so that `draftproof --help` is quick and a missing solver
is one sentence and not a traceback.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from draftproof.impl.cli import UserError

Subparsers = Any


def register(commands: Subparsers) -> None:
    """Add the commands to the parser of `draftproof`."""
    prove = commands.add_parser("prove", help="prove every theorem for all sizes, and find every known fault")
    prove.add_argument("theorem", nargs="*", help="only these theorems (a quick look, not a full check)")
    prove.add_argument("--full", action="store_true", help="ask cvc5 about the pool too, search traces anew")
    prove.add_argument("--fault", metavar="NAME", help="prove the code with this fault put in: it must fail")
    prove.add_argument("--overview", metavar="FILE", type=Path, help="also write the overview as Markdown")
    prove.add_argument("--json", action="store_true", help="print the result as JSON")
    prove.set_defaults(run=_prove)

    theorems = commands.add_parser("theorems", help="list the theorems")
    theorems.add_argument("--json", action="store_true", help="print them as JSON")
    theorems.set_defaults(run=_theorems)

    faults = commands.add_parser("faults", help="list the known faults")
    faults.add_argument("--output", metavar="FILE", type=Path, help="write them as a Markdown page instead")
    faults.add_argument("--json", action="store_true", help="print them as JSON")
    faults.set_defaults(run=_faults)

    explain = commands.add_parser("explain", help="show a fault's shortest trace, or what a theorem says")
    explain.add_argument("name", help="a fault or a theorem")
    explain.add_argument("--pinned", action="store_true", help="with the numbers of the report it comes from")
    explain.add_argument("--json", action="store_true", help="print it as JSON")
    explain.set_defaults(run=_explain)

    tables = commands.add_parser(
        "tables", help="show the pinned tables: a trimmed session, finished requests"
    )
    tables.add_argument("--json", action="store_true", help="print them as JSON")
    tables.set_defaults(run=_tables)

    report = commands.add_parser("report", help="write everything as one self-contained HTML page")
    report.add_argument("--output", type=Path, default=Path("build/report.html"), help="the file to write")
    report.add_argument("--json", action="store_true", help="print a line of JSON about the page")
    report.set_defaults(run=_report)

    export = commands.add_parser("export", help="write every obligation as an SMT-LIB 2 file")
    export.add_argument("folder", type=Path, help="a folder that does not exist yet, or an earlier export")
    export.add_argument("--json", action="store_true", help="print a line of JSON about the files")
    export.set_defaults(run=_export)

    mutants = commands.add_parser("mutants", help="break the code at every site and count what proofs notice")
    mutants.add_argument("--output", type=Path, help="also write the table as Markdown")
    mutants.add_argument("--json", action="store_true", help="print the result as JSON")
    mutants.set_defaults(run=_mutants)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def _prove(options: argparse.Namespace) -> int:
    from draftproof.proofs import names, requirements

    requirements.check()
    if options.fault:
        return _prove_fault(options.fault, options.json)
    from draftproof.proofs import output, overview, present, results, run

    chosen = frozenset(names.theorem(name) for name in options.theorem)
    if chosen and (options.full or options.overview):
        raise UserError("--full and --overview are about everything: leave the theorems out", 2)
    if options.full and options.overview:
        raise UserError("the overview is that of a standard run: leave --full out", 2)
    if options.overview:
        output.check_writable(options.overview)
    found = run.prove(chosen, quiet=options.json, full=options.full)
    if options.overview:
        output.write_text(options.overview, overview.render(found))
    if options.json:
        _print_json(results.summary(found))
    else:
        present.show(found)
    return 0 if results.passed(found) else 1


def _fault(name: str) -> Any:
    """The fault of that name; a wrong one is a user's mistake."""
    from draftproof.proofs import names
    from draftproof.proofs.faults import UnknownName, all_faults, find

    try:
        return find(name)
    except UnknownName as error:
        raise names.unknown("fault", name, [fault.name for fault in all_faults()]) from error


def _prove_fault(name: str, as_json: bool) -> int:
    """The faulty variant must fail; so the exit status is 1, as for any code that is not proved."""
    fault = _fault(name)
    from draftproof.proofs.faults.refute import refute_all
    from draftproof.proofs.faults.variant import describe

    verdicts = refute_all(fault)
    refuted = [verdict for verdict in verdicts if verdict.verdict == "refuted"]
    if as_json:
        _print_json(
            {
                "fault": fault.name,
                "theorem": fault.theorem,
                "obligations": len(verdicts),
                "refuted": [
                    {"obligation": one.path, "counterexample": one.counterexample} for one in refuted
                ],
                "unknown": [one.path for one in verdicts if one.verdict == "unknown"],
            }
        )
    else:
        print(describe(fault, verdicts))
    return 1


def _theorems(options: argparse.Namespace) -> int:
    from draftproof.proofs.results import TEXTS

    if options.json:
        _print_json(
            [
                {"key": key, "name": name, "meaning": meaning, "source": source}
                for key, (name, meaning, source) in TEXTS.items()
            ]
        )
        return 0
    for key, (name, meaning, _) in TEXTS.items():
        print(f"{key:<10} {name}")
        print(textwrap.indent(textwrap.fill(meaning, 90), " " * 11))
    return 0


def _faults(options: argparse.Namespace) -> int:
    from draftproof.proofs.faults import UNMODELLED, all_faults

    if options.output:
        from draftproof.proofs import output
        from draftproof.proofs.faults import page

        output.write_text(options.output, page.render())
        return 0
    if options.json:
        _print_json(
            {
                "faults": [
                    {
                        "name": fault.name,
                        "title": fault.title,
                        "theorem": fault.theorem,
                        "violated": fault.violated,
                        "reports": list(fault.reports),
                    }
                    for fault in all_faults()
                ],
                "unmodelled": dict(UNMODELLED),
            }
        )
        return 0
    width = max(len(fault.name) for fault in all_faults())
    for fault in all_faults():
        print(f"{fault.name:<{width}}  {fault.theorem:<9}  {fault.title}")
    print(
        f"\n{len(all_faults())} faults; {len(UNMODELLED)} public reports are not modelled (docs/faults.md)."
    )
    return 0


def _explain(options: argparse.Namespace) -> int:
    from draftproof.proofs import names
    from draftproof.proofs.faults import all_faults
    from draftproof.proofs.results import TEXTS, theorem_text

    faults = {fault.name for fault in all_faults()}
    theorems = {key.lower(): key for key in TEXTS}
    if options.name in faults:
        return _explain_fault(options)
    key = theorems.get(options.name.lower())
    if key is None:
        raise names.unknown("fault", options.name, [*faults, *theorems.values()])
    name, meaning, source = theorem_text(key)
    about = sorted(fault.name for fault in all_faults() if fault.theorem == key)
    if options.json:
        _print_json({"key": key, "name": name, "meaning": meaning, "source": source, "faults": about})
        return 0
    print(f"{key}, {name}\n")
    print(textwrap.fill(meaning, 96))
    print(f"\nSource: {source}")
    if about:
        print("Faults that break it: " + ", ".join(about))
    return 0


def _explain_fault(options: argparse.Namespace) -> int:
    from draftproof.proofs.faults.explain import explain
    from draftproof.proofs.faults.story import has_pin, tell

    if options.pinned and not has_pin(options.name):
        raise UserError(f"{options.name} has no pinned numbers; leave out --pinned for its shortest trace", 2)
    story = tell(options.name, pinned=options.pinned)
    if options.json:
        _print_json(story)
        return 0
    width = shutil.get_terminal_size((100, 24)).columns
    print(explain(story, width=max(80, min(width, 140)), color=sys.stdout.isatty()), end="")
    if has_pin(options.name) and not options.pinned:
        print(f"\nWith the numbers of the report: draftproof explain {options.name} --pinned")
    return 0


def _tables(options: argparse.Namespace) -> int:
    from rich.console import Console

    from draftproof.proofs.faults import tables

    if options.json:
        _print_json(tables.as_data())
    else:
        tables.show(Console(width=None if sys.stdout.isatty() else 110))
    return 0


def _report(options: argparse.Namespace) -> int:
    from draftproof.proofs import requirements

    requirements.check()
    from draftproof.proofs.output import check_writable
    from draftproof.proofs.report import write_report
    from draftproof.proofs.report.assemble import assemble
    from draftproof.proofs.run import prove

    check_writable(options.output)
    found = prove(quiet=options.json)
    write_report(assemble(found), options.output)
    size = options.output.stat().st_size
    if options.json:
        _print_json({"output": str(options.output), "bytes": size})
    else:
        print(f"wrote {options.output} ({size / 1024:.0f} KiB)")
    from draftproof.proofs.results import passed

    return 0 if passed(found) else 1


def _export(options: argparse.Namespace) -> int:
    from draftproof.proofs import requirements

    requirements.check()
    from draftproof.proofs.smtlib import export
    from draftproof.proofs.sources import SOURCES, built

    obligations = [obligation for source in SOURCES for obligation in built(source)]
    count = export(obligations, options.folder)
    if options.json:
        _print_json({"folder": str(options.folder), "files": count})
    else:
        print(f"wrote {count} obligations to {options.folder}; a solver must answer unsat to each")
    return 0


def _mutants(options: argparse.Namespace) -> int:
    from draftproof.proofs import requirements

    requirements.check()
    from draftproof.proofs.mutation import kill_table, show_kill_table, write_kill_table

    table = kill_table()
    if options.output:
        write_kill_table(table, options.output)
    if options.json:
        _print_json(table.summary())
    else:
        show_kill_table(table)
    return 0 if table.passed() else 1
