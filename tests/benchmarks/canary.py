"""What does debug mode cost on the device? A step with the KV canary beside one without it.

A benchmark, not a test: nothing is asserted about time. Both sides share one model and run in this process,
round by round in turns; a figure is the ratio of the fastest rounds' median decode step, beside it the ratio
of the medians of all. The goal: a step with the canary takes at most twice as long (one extra step time).
`debug=True` alone is measured, with the trace's recording and the poisoning of freed blocks; what
`DRAFTPROOF_DEBUG=1` adds to it, the accounting's contracts, is timed in a process of its own.
`python -m tests.benchmarks.canary` prints the table and writes build/bench/canary.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.runner_prompts import BATCH, SINGLE

from draftproof.gpu.fetch import fetch
from draftproof.gpu.llm import LLM
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.sampling import SamplingParameters
from draftproof.gpu.tokenizer import load_tokenizer
from draftproof.gpu.weights import load_weights

OUTPUT = Path("build/bench/canary.json")
GOAL = 2.0
"""A step with the canary, in steps without it."""
LONG_PROMPT = 1024
"""Tokens: every one of them is compared in every step."""
Jobs = dict[str, tuple[list[list[int]], str | None]]


def llm_of(decoder: Any, debug: bool, speculate: str | None) -> LLM:
    """Without a prefix cache: rounds repeat prompts."""
    return LLM(
        decoder, speculate=speculate, debug=debug, num_blocks=1024, max_model_len=2048, max_num_seqs=8,
        enable_prefix_caching=False,
    )  # fmt: skip


def decode_steps(llm: LLM, prompts: list[list[int]], num_tokens: int) -> list[float]:
    """Seconds of each step behind the last one that had a prompt to compute."""
    engine, times = llm.engine, list[tuple[float, int]]()
    step, launch = engine.step, engine.runner.launch
    sizes: list[int] = []

    def launched(step_input: Any) -> Any:
        sizes.append(int(step_input.num_tokens.max()))
        return launch(step_input)

    def timed() -> Any:
        begin = time.perf_counter()
        outputs = step()
        times.append((time.perf_counter() - begin, sizes[-1]))
        return outputs

    longest = 1 + llm.config.num_speculative_tokens
    try:
        engine.step, engine.runner.launch = timed, launched  # type: ignore[method-assign]
        llm.generate(prompts, SamplingParameters(temperature=0, max_tokens=num_tokens, ignore_eos=True))
    finally:
        engine.step, engine.runner.launch = step, launch  # type: ignore[method-assign]
    return [seconds for seconds, size in times if size <= longest]


def median_ms(llm: LLM, prompts: list[list[int]], num_tokens: int) -> float:
    """Milliseconds of a decode step."""
    return statistics.median(decode_steps(llm, prompts, num_tokens)) * 1e3


def jobs() -> Jobs:
    """Prompts by name, and how to speculate."""
    tokenizer = load_tokenizer(fetch("smollm2"))
    batch = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in BATCH]
    single = tokenizer.encode_chat([{"role": "user", "content": SINGLE["open"]}])
    long = (single * (LONG_PROMPT // len(single) + 1))[:LONG_PROMPT]
    return {
        "batch 1": ([single], None),
        f"batch {len(batch)}": (batch, None),
        "batch 1, ngram:3": ([single], "ngram:3"),
        f"batch 1, {LONG_PROMPT} tokens": ([long], None),
    }


def decoder() -> Any:
    """SmolLM2, in float32."""
    made: Any = Decoder
    return made(*load_weights(fetch("smollm2"), torch.float32))


def measure(num_tokens: int, num_rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each job, milliseconds a step."""
    say("loading SmolLM2")
    model, rows = decoder(), []
    for name, (prompts, speculate) in jobs().items():
        say(name)
        sides = {debug: llm_of(model, debug, speculate) for debug in (False, True)}
        medians: dict[bool, list[float]] = {False: [], True: []}
        for side in sides.values():
            decode_steps(side, prompts, 4)
        for number in range(num_rounds):
            for debug in (False, True) if number % 2 == 0 else (True, False):
                medians[debug].append(median_ms(sides[debug], prompts, num_tokens))
        best = {debug: min(times) for debug, times in medians.items()}
        middle = {debug: statistics.median(times) for debug, times in medians.items()}
        rows.append(
            {
                "name": name,
                "ms_without": round(best[False], 2),
                "ms_with": round(best[True], 2),
                "ratio": round(best[True] / best[False], 3),
                "ratio_of_medians": round(middle[True] / middle[False], 3),
                "goal": GOAL,
            }
        )
    return rows


def with_contracts(num_tokens: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds a step of each job with the contracts as well, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.canary", "--debug-side", "--tokens", str(num_tokens),
         "--threads", str(arguments.threads)],
        capture_output=True, text=True, env={**os.environ, "DRAFTPROOF_DEBUG": "1"}, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def debug_side(num_tokens: int) -> dict[str, float]:
    """In the mode of this process."""
    model = decoder()
    return {
        name: round(median_ms(llm_of(model, True, speculate), prompts, num_tokens), 2)
        for name, (prompts, speculate) in jobs().items()
    }


def table(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    machine = report["machine"]
    lines = [
        f"SmolLM2-135M, float32, {machine['threads']} threads: milliseconds of a decode step",
        "",
        f"{'':24}{'without':>9}{'canary':>9}{'ratio':>8}{'medians':>9}{'goal':>7}{'and contracts':>15}",
    ]
    for row in report["rows"]:
        contracts = report["ms_with_contracts"].get(row["name"])
        lines.append(
            f"{row['name']:24}{row['ms_without']:>9.1f}{row['ms_with']:>9.1f}{row['ratio']:>8.2f}"
            f"{row['ratio_of_medians']:>9.2f}{row['goal']:>7.1f}"
            + (f"{contracts:>15.1f}" if contracts is not None else "")
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time steps with the KV canary and without it.")
    parser.add_argument("--json", type=Path, default=OUTPUT, help="where the figures go")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both sides")
    parser.add_argument("--tokens", type=int, default=32, help="to generate for each prompt")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side does each job")
    parser.add_argument("--debug-side", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.debug_side:
        print(json.dumps(debug_side(arguments.tokens)))
        return
    watched = sys.stderr.isatty()

    def say(text: str) -> None:
        if watched:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    report: dict[str, Any] = {"rows": measure(arguments.tokens, arguments.rounds, say)}
    say("with contracts")
    report["ms_with_contracts"] = with_contracts(min(arguments.tokens, 8), arguments)
    say("")
    report["machine"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": arguments.threads,
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
