"""Does speculation change the text? The same prompts with and without, in step and ahead, side by side.

Four prompts: something to copy, something to sum up, an open question, and that question again with its
answer and one question more, whose beginning is found in the prefix cache. Greedy, in float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from draftproof.gpu.figures import Figures, figures_of, table
from draftproof.gpu.llm import LLM
from draftproof.gpu.loading import Loaded, load
from draftproof.gpu.sampling.parameters import SamplingParameters
from draftproof.impl.cli import UserError
from draftproof.impl.progress_line import progress_line

SPECULATE = "ngram:3"
MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one token a step", {}),
    ("one token a step, asynchronous", {"asynchronous": True}),
    (f"{SPECULATE}", {"speculate": SPECULATE}),
    (f"{SPECULATE}, asynchronous", {"speculate": SPECULATE, "asynchronous": True}),
)
LINES = "\n".join(f"The {animal} sleeps in the {place}." for animal, place in (
    ("fox", "den"), ("bear", "cave"), ("bird", "nest"), ("horse", "stable"),
))  # fmt: skip
ARTICLE = (
    "A lighthouse is a tower that sends out light from lamps and lenses to guide ships. Lighthouses "
    "mark dangerous coasts and safe entries to harbours. Before ports were built, sailors were led by fires "
    "on hilltops. Today most lamps are automatic, and many towers whose keepers have left are museums."
)
OPEN = "Why is the sea salty? Answer in two sentences."
QUESTIONS = {
    "copy": f"Repeat these lines exactly:\n{LINES}",
    "summary": f"Summarize this text in one sentence and reuse its wording:\n{ARTICLE}",
    "open": OPEN,
}
FOLLOW_UP = "And why are lakes not salty?"
MAX_MODEL_LEN = 1024


class Answer(NamedTuple):
    """What one prompt came to in one mode."""

    text: str
    token_ids: tuple[int, ...]
    figures: Figures


def run(model: str, max_tokens: int) -> int:
    """Print texts and tables; exit status 1 if the texts are not the same in every mode."""
    parameters = SamplingParameters(temperature=0, max_tokens=max_tokens)
    loaded = load(model, dtype=torch.float32)
    if loaded.tokenizer is None:
        raise UserError(f"{model} has no tokenizer: the demo needs one with a chat template")
    answers = {}
    for name, options in MODES:
        with progress_line(f"draftproof: {name}"):
            answers[name] = _answers(loaded, parameters, options)
    first = answers[MODES[0][0]]
    for kind, answer in first.items():
        print(f"--- {kind}: {_question(kind)}\n{answer.text.strip()}\n")
    for name, found in answers.items():
        print(f"{name}\n{table([answer.figures for answer in found.values()])}\n")
    different = _different(list(answers.values()))
    print(_verdict(different))
    return 1 if different else 0


def _question(kind: str) -> str:
    question = QUESTIONS.get(kind, FOLLOW_UP).splitlines()[0]
    return f"{question} ..." if kind in ("copy", "summary") else question


def _answers(loaded: Loaded, parameters: SamplingParameters, options: dict[str, Any]) -> dict[str, Answer]:
    """One prompt after the other, so that each one's steps are its own."""
    with LLM(loaded.decoder, max_model_len=_max_model_len(loaded), max_num_seqs=4, **options) as llm:
        llm.tokenizer = loaded.tokenizer
        llm.generate([[0]], SamplingParameters(temperature=0, max_tokens=2, ignore_eos=True))  # warm
        found = {kind: _answer(llm, kind, [_user(text)], parameters) for kind, text in QUESTIONS.items()}
        conversation = [_user(OPEN), {"role": "assistant", "content": found["open"].text}, _user(FOLLOW_UP)]
        return found | {"open, continued": _answer(llm, "open, continued", conversation, parameters)}


def _max_model_len(loaded: Loaded) -> int:
    return min(MAX_MODEL_LEN, int(loaded.decoder.shape.max_position_embeddings))


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _answer(
    llm: LLM, kind: str, messages: Sequence[dict[str, str]], parameters: SamplingParameters
) -> Answer:
    begin, steps = time.monotonic(), llm.engine.totals.num_steps
    result = llm.chat(messages, parameters)
    num_steps, seconds = llm.engine.totals.num_steps - steps, time.monotonic() - begin
    if result.error is not None:
        raise UserError(f"the answer to the prompt {kind!r} failed: {result.error}")
    return Answer(result.text or "", result.token_ids, figures_of(kind, [result], num_steps, seconds))


def _different(modes: Sequence[dict[str, Answer]]) -> list[str]:
    """The prompts that were not answered alike."""
    return [kind for kind in modes[0] if len({mode[kind].token_ids for mode in modes}) > 1]


def _verdict(different: Sequence[str]) -> str:
    if different:
        return f"The texts are NOT identical: {'; '.join(different)} differ between the runs."
    return f"The texts are identical in all {len(MODES)} runs."
