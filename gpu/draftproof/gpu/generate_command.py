"""What does `draftproof generate` do? Prompts in, texts on stdout, a table of what they took on stderr.

One prompt is written as it comes; several are generated together and written when all are there. What the
user got wrong is one sentence: 2 is the exit status for an argument, 1 for something that cannot be done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from draftproof.gpu.command_errors import pipe_may_close, told_in_a_sentence
from draftproof.impl.cli import UserError

MAX_FILE_BYTES = 2**26
"""Of a file of prompts."""
NUM_ROWS = 8
"""The table has a row for each request up to so many; beyond, one for all."""
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "min_tokens",
    "ignore_eos", "logprobs",
)  # fmt: skip
MODEL_OPTIONS = (
    "speculate", "asynchronous", "dtype", "device", "max_model_len", "max_num_seqs", "num_blocks",
    "kv_cache_bytes", "runner_process",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 if a request failed."""
    prompts = prompts_of(options)
    with told_in_a_sentence(), pipe_may_close():
        parameters = _parameters(options)
        given = {name: value for name in MODEL_OPTIONS if (value := getattr(options, name)) is not None}
        from draftproof.gpu.llm import LLM

        _check_speculate(options.speculate)
        with LLM(options.model, **given) as llm:
            if options.chat:
                prompts = [_chat(llm, prompt) for prompt in prompts]
            return generate(llm, prompts, parameters, as_json=options.json)
    return 0  # the reader has gone


def generate(llm: Any, prompts: Sequence[Any], parameters: Any, *, as_json: bool) -> int:
    """Generate and write; exit status 1 if a request failed."""
    _be_lenient(sys.stdout)
    begin, steps = time.monotonic(), llm.engine.totals.num_steps
    if len(prompts) == 1 and not as_json:
        results = [asyncio.run(_streamed(llm, prompts[0], parameters))]
    else:
        results = llm.generate(prompts, parameters)
        for place, result in enumerate(results):
            _write(json.dumps(record(result)) if as_json else _with_title(place, result), "\n")
    num_steps, seconds = llm.engine.totals.num_steps - steps, time.monotonic() - begin
    if not as_json:
        print("\n" + _table(results, num_steps, seconds), file=sys.stderr)
    failed = [(place, result) for place, result in enumerate(results) if result.error is not None]
    for place, result in failed:
        print(f"draftproof: prompt {place} failed: {result.error}", file=sys.stderr)
    return 1 if failed else 0


async def _streamed(llm: Any, prompt: Any, parameters: Any) -> Any:
    result = None
    # Closed before the event loop is, also when ctrl-C comes between two outputs.
    async with aclosing(llm.stream(prompt, parameters)) as outputs:
        async for output in outputs:
            result = output.result
            if llm.tokenizer is None:
                _write("".join(f"{token} " for token in output.token_ids))
            else:
                _write(output.text)
    _write("\n")
    return result


def _with_title(place: int, result: Any) -> str:
    return f"--- prompt {place}\n{text_of(result)}"


def text_of(result: Any) -> str:
    """Its text, or its token ids where the model has no tokenizer."""
    return " ".join(map(str, result.token_ids)) if result.text is None else str(result.text)


def record(result: Any) -> dict[str, Any]:
    """A result as JSON says it; `top` maps token ids to log-probabilities, the likeliest first."""
    logprobs = None
    if result.logprobs is not None:
        logprobs = [
            {"token_id": one.token_id, "logprob": one.logprob, "rank": one.rank, "top": dict(one.top)}
            for one in result.logprobs
        ]
    names = (
        "text", "token_ids", "finish_reason", "stop_reason", "error", "num_cached_tokens",
        "num_draft_tokens", "num_accepted_tokens",
    )  # fmt: skip
    found = {name: getattr(result, name) for name in names}
    found["num_prompt_tokens"] = len(result.prompt_token_ids)
    return found | {"logprobs": logprobs, "timings": result.timings._asdict()}


def _table(results: Sequence[Any], num_steps: int, seconds: float) -> str:
    from draftproof.gpu.figures import figures_of, table

    if len(results) == 1:
        return table([figures_of("", results, num_steps, seconds)])
    rows = []
    if len(results) <= NUM_ROWS:
        for place, result in enumerate(results):
            rows.append(figures_of(f"prompt {place}", [result], None, result.timings.total))
    return table([*rows, figures_of(f"all {len(results)}", results, num_steps, seconds)])


# ---- what comes in ----


def prompts_of(options: argparse.Namespace) -> list[Any]:
    """Texts, or lists of token ids. Raises UserError."""
    prompts = [*options.prompts, *([] if options.file is None else _lines(options.file))]
    if not prompts:
        where = "" if options.file is None else f", and {options.file} holds none"
        raise UserError(f"there is no prompt{where}: write one behind the model, or give --file", 2)
    if options.chat and options.token_ids:
        raise UserError("--chat makes text of messages, and --token-ids takes no text: use one of them", 2)
    return [_token_ids(prompt) for prompt in prompts] if options.token_ids else prompts


def _lines(path: str) -> list[str]:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the prompts in {path} cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"{path} holds more than {MAX_FILE_BYTES >> 20} MiB of prompts: split it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text: byte {error.start} fits no character") from None
    # Only what ends lines in files: a prompt may well hold one of the characters that str.splitlines knows.
    return [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]


def _token_ids(prompt: str) -> list[int]:
    parts = re.split(r"[\s,]+", prompt.strip(" ,"))
    if not all(re.fullmatch(r"[0-9]{1,9}", part, re.ASCII) for part in parts):
        raise UserError(f"with --token-ids a prompt is numbers such as 1,2,3, not {prompt!r:.80}", 2)
    return [int(part) for part in parts]


def _parameters(options: argparse.Namespace) -> Any:
    from draftproof.gpu.sampling.parameters import SamplingParameters

    given = {name: value for name in SAMPLING if (value := getattr(options, name)) is not None}
    return SamplingParameters(
        **given, stop=tuple(options.stop or ()), stop_token_ids=tuple(options.stop_token_id or ())
    )


def _check_speculate(speculate: str | None) -> None:
    """Before any weight is loaded. Raises UserError."""
    from draftproof.gpu.errors import ModelError
    from draftproof.gpu.loading import drafter_option

    if speculate is not None:
        try:
            drafter_option(speculate)
        except ModelError as problem:
            raise UserError(str(problem), 2) from None


def _chat(llm: Any, prompt: str) -> list[int]:
    if llm.tokenizer is None:
        raise UserError("this model has no tokenizer, and so no chat template: use --token-ids", 2)
    return list(llm.tokenizer.encode_chat([{"role": "user", "content": prompt}]))


def _be_lenient(stream: Any) -> None:
    """A terminal that cannot show a character shows another one."""
    reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _write(*parts: str) -> None:
    sys.stdout.write("".join(parts))
    sys.stdout.flush()
