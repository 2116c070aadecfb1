"""What may stand behind `draftproof generate`? A model, prompts, and options of three kinds."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

MAX_TOKENS = 128
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class PromptsAnywhere(argparse.ArgumentParser):
    """Prompts may stand before, between and behind options; behind `--` they may begin with a dash."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """What argparse does not place is a prompt, unless it looks like an option."""
        found, rest = super().parse_known_args(args, namespace)
        behind = rest.index("--") if "--" in rest else len(rest)
        options = [one for one in rest[:behind] if one.startswith("-")]
        found.prompts += [one for one in rest[:behind] if not one.startswith("-")] + rest[behind + 1 :]
        return found, options


def add_parser(commands: Any) -> Any:
    """The command's arguments; torch is not needed to read them."""
    parser = commands.add_parser(
        "generate",
        help="generate text with a model, with or without speculation",
        usage="draftproof generate MODEL PROMPT... [options]",
    )
    # argparse takes prompts in one place only; and which class a command's parser has, it does not ask.
    parser.__class__ = PromptsAnywhere
    parser.add_argument(
        "model", metavar="MODEL", help="smollm2, a folder of safetensors, a .gguf file, a name on the Hub"
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="what to go on from")
    _add_input(parser.add_argument_group("input and output"))
    _add_sampling(parser.add_argument_group("sampling"))
    _add_model(parser.add_argument_group("model and engine"))
    return parser


def _add_input(group: Any) -> None:
    add = group.add_argument
    add("--file", metavar="PATH", help="more prompts, one a line; - for stdin; empty lines are left out")
    add("--chat", action="store_true", help="each prompt is a message, put into the model's chat template")
    add("--token-ids", action="store_true", help="each prompt is token ids, such as 1,2,3")
    add("--json", action="store_true", help="one line of JSON for each prompt, and no table")


def _add_sampling(group: Any) -> None:
    add = group.add_argument
    add("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"at most so many ({MAX_TOKENS})")
    add("--min-tokens", type=int, metavar="N", help="no EOS or stop token before so many")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 takes the most likely token (0)")
    add("--top-p", type=float, metavar="P", help="only the most likely tokens that together reach P")
    add("--top-k", type=int, metavar="K", help="only the K most likely tokens")
    add("--min-p", type=float, metavar="P", help="only tokens P times as likely as the most likely one")
    add("--repetition-penalty", type=float, metavar="X", help="above 1: tokens seen become less likely")
    add("--seed", type=int, metavar="N", help="the same samples every time")
    add("--stop", action="append", metavar="TEXT", help="end at this text; may be given several times")
    add("--stop-token-id", action="append", type=int, metavar="ID", help="end at this token; likewise")
    add("--ignore-eos", action="store_true", default=None, help="go on behind the model's end of text")
    add("--logprobs", type=int, metavar="N", help="with --json: log-probabilities, and the N most likely")


def _add_model(group: Any) -> None:
    add = group.add_argument
    add("--speculate", metavar="HOW", help="ngram:3, draft:MODEL:3, eagle:FOLDER:3 or null:3")
    add("--async", action="store_true", default=None, dest="asynchronous",
        help="launch each step before the last one has been read")  # fmt: skip
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights and the KV cache")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:1")
    add("--max-model-len", type=int, metavar="N", help="tokens of prompt and output together")
    add("--max-num-seqs", type=int, metavar="N", help="requests that run at the same time")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--num-blocks", type=int, metavar="N", help="of the KV cache")
    size.add_argument("--kv-cache-bytes", type=_bytes, metavar="N", help="of the KV cache, such as 512M (1G)")
    add("--runner-process", action="store_true", default=None, help="the model runs in its own process")


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18})([KMGT]?)", text.upper(), re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number of bytes, such as 512M or 2G, not {text!r:.80}")
    return int(found[1]) * UNITS[found[2]]
