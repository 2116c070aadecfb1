"""How fast does the runner generate, beside Hugging Face transformers and beside what memory allows?

A benchmark, not a test: nothing is asserted about time. Both sides run in this process, with the same
weights, dtype and threads, one after the other, round by round, and must generate the same tokens (float32;
in bfloat16 it is counted). A figure is the ratio of the fastest rounds; beside it stands the ratio of the
medians. `python -m tests.benchmarks.runner` prints the table and writes build/bench/runner.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.runner_prompts import BATCH, SINGLE
from tests.benchmarks.runner_sides import Ours, Prompts, Run, Transformers, median_step

from draftproof.gpu.fetch import fetch
from draftproof.gpu.tokenizer import load_tokenizer

OUTPUT = Path("build/bench/runner.json")
NUM_DRAFTS = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GOALS = {"batch 1": 0.9, "batch 8": 1.5, "ngram repetitive": 1.2, "ngram code": 1.2, "ngram summary": 1.2}
"""Of the tokens per second of transformers."""
OVERHEAD_GOAL = 0.05


def bandwidth(num_bytes: int, num_rounds: int) -> float:
    """Bytes a second that all threads together read, the best of a sum, a dot and a matrix-vector product.

    Over as much memory as the weights take, so that no cache holds it.
    """
    matrix = torch.ones(-(-num_bytes // (4 * 4096)), 4096)
    flat, vector = matrix.flatten(), torch.ones(4096)
    reads: tuple[Callable[[], Any], ...] = (flat.sum, lambda: torch.dot(flat, flat), lambda: matrix @ vector)
    fastest = float("inf")
    for _ in range(num_rounds + 1):
        for read in reads:
            begin = time.perf_counter()
            read()
            fastest = min(fastest, time.perf_counter() - begin)
    return float(matrix.nbytes / fastest)


def compare(
    sides: Mapping[str, Any], prompts: Prompts, num_tokens: int, num_drafts: int, num_rounds: int, exact: bool
) -> dict[str, list[Run]]:
    """Rounds in turns, after one that warms up. Raises RuntimeError if the sides do not say the same."""
    for side in sides.values():
        side.generate(prompts, min(num_tokens, 8), num_drafts)
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for number in range(num_rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            runs[name].append(sides[name].generate(prompts, num_tokens, num_drafts))
    said = [run.token_ids for of_side in runs.values() for run in of_side]
    if exact and any(one != said[0] for one in said):
        raise RuntimeError("the two sides generated different tokens, so their times cannot be compared")
    return runs


def figures(
    name: str, runs: Mapping[str, Sequence[Run]], num_tokens: int, num_prompts: int
) -> dict[str, Any]:
    """One row of the table."""
    ours, theirs = runs["ours"], runs["transformers"]
    row: dict[str, Any] = {"name": name, "goal": GOALS.get(name)}
    for clock in ("wall", "processor"):
        own, peer = ([getattr(run, clock) for run in side] for side in (ours, theirs))
        row[f"ratio_{clock}"] = round(min(peer) / min(own), 3)
        row[f"ratio_of_medians_{clock}"] = round(statistics.median(peer) / statistics.median(own), 3)
        # How far the middle of a side's rounds lies above its best: what the neighbours did.
        row[f"noise_{clock}"] = round(max(statistics.median(one) / min(one) - 1 for one in (own, peer)), 3)
    for label, side in (("ours", ours), ("transformers", theirs)):
        run = min(side, key=lambda run: run.wall)
        row[f"tokens_per_second_{label}"] = round(num_tokens * num_prompts / run.wall, 1)
        row[f"tokens_per_step_{label}"] = round(num_tokens / len(run.passes), 3)
        row[f"acceptance_{label}"] = round(run.num_accepted / run.num_drafts, 3) if run.num_drafts else None
    pairs = zip(ours[0].token_ids, theirs[0].token_ids, strict=True)
    row["same_texts"] = sum(one == other for one, other in pairs) / num_prompts
    return row


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """All rows."""
    say("loading SmolLM2")
    folder, dtype = fetch("smollm2"), DTYPES[arguments.dtype]
    tokenizer = load_tokenizer(folder)
    ours = Ours(folder, dtype)
    sides = {"transformers": Transformers(folder, dtype), "ours": ours}
    exact, num_tokens = dtype == torch.float32, arguments.tokens
    report: dict[str, Any] = {"rows": []}

    def encoded(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]

    def add(name: str, texts: Sequence[str], num_drafts: int) -> list[Run]:
        say(name)
        runs = compare(sides, encoded(texts), num_tokens, num_drafts, arguments.rounds, exact)
        report["rows"].append(figures(name, runs, num_tokens, len(texts)))
        return runs["ours"]

    steps = {}
    for size, texts in ((1, [SINGLE["open"]]), (len(BATCH), BATCH)):
        runs = add(f"batch {size}", texts, 0)
        milliseconds, outside = median_step(runs, size)
        steps[size] = milliseconds
        report[f"step_ms_batch_{size}"] = round(milliseconds, 2)
        report[f"overhead_batch_{size}"] = round(outside, 4)
    for kind, text in SINGLE.items():
        add(f"ngram {kind}", [text], NUM_DRAFTS)
    say("memory bandwidth")
    speed = bandwidth(ours.bytes_per_step, arguments.rounds)
    floor = ours.bytes_per_step / speed * 1e3
    report |= {"bandwidth_gb_per_s": round(speed / 1e9, 1), "floor_ms": round(floor, 2)}
    report |= {f"floor_share_batch_{size}": round(floor / time_of, 3) for size, time_of in steps.items()}
    return report


def table(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    machine = report["machine"]
    lines = [
        f"SmolLM2-135M, {machine['dtype']}, {machine['threads']} threads, {machine['tokens']} tokens, greedy",
        "",
        f"{'':18}{'tokens per second':>22}{'ratio of tokens per second':>32}{'':8}{'tokens per step':>18}"
        f"{'acceptance':>16}",
        f"{'':18}{'ours':>11}{'peer':>11}{'wall':>10}{'processor':>11}{'medians':>11}{'goal':>8}"
        f"{'ours':>10}{'peer':>8}{'ours':>9}{'peer':>7}",
    ]
    for row in report["rows"]:
        shares = ["" if (one := row[f"acceptance_{side}"]) is None else f"{one:.0%}"
                  for side in ("ours", "transformers")]  # fmt: skip
        lines.append(
            f"{row['name']:18}{row['tokens_per_second_ours']:>11,.1f}"
            f"{row['tokens_per_second_transformers']:>11,.1f}{row['ratio_wall']:>10.2f}"
            f"{row['ratio_processor']:>11.2f}{row['ratio_of_medians_wall']:>11.2f}"
            f"{row['goal'] or '':>8}{row['tokens_per_step_ours']:>10.2f}"
            f"{row['tokens_per_step_transformers']:>8.2f}{shares[0]:>9}{shares[1]:>7}"
        )
    lines += [
        "",
        f"memory read at {report['bandwidth_gb_per_s']} GB/s: no step under {report['floor_ms']} ms",
    ]
    for size in (1, len(BATCH)):
        lines.append(
            f"batch {size}: {report[f'step_ms_batch_{size}']} ms a step, "
            f"{report[f'floor_share_batch_{size}']:.0%} of the floor reached, "
            f"{report[f'overhead_batch_{size}']:.1%} of it outside the model"
            + (f" (goal: under {OVERHEAD_GOAL:.0%})" if size > 1 else "")
        )
    noise = max(row["noise_wall"] for row in report["rows"])
    same = statistics.mean(row["same_texts"] for row in report["rows"])
    lines.append(f"texts that are the same on both sides: {same:.0%}; noise between rounds up to {noise:.0%}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time the runner and transformers on the same prompts.")
    parser.add_argument("--json", type=Path, default=OUTPUT, help="where the figures go")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both sides")
    parser.add_argument("--tokens", type=int, default=128, help="to generate for each prompt")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side does each job")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and arithmetic")
    parser.add_argument("--quick", action="store_true", help="two rounds of 32 tokens")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tokens, arguments.rounds = 32, 2
    torch.set_num_threads(arguments.threads)
    watched = sys.stderr.isatty()

    def say(text: str) -> None:
        if watched:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    report = measure(arguments, say)
    say("")
    report["machine"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": arguments.threads,
        "dtype": arguments.dtype,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
