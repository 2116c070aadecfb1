"""What is fixed for a scheduler? Its configuration, checked once, with one sentence for each mistake."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

MAX_TOKEN_ID = 2**31 - 1
FULL_ATTENTION, SLIDING_WINDOW, RECURRENT = 0, 1, 2
KINDS = {"full_attention": FULL_ATTENTION, "sliding_window": SLIDING_WINDOW, "recurrent": RECURRENT}


class ConfigError(ValueError):
    """The configuration cannot be: what is wrong, and what to do."""


@dataclass(frozen=True)
class KVGroup:
    """Layers that share a block table (vLLM's KV cache group)."""

    block_size: int
    """Tokens a block. Of a recurrent group: tokens between two states that may be kept."""
    kind: str = "full_attention"
    """One of `full_attention`, `sliding_window`, `recurrent`."""
    window: int = 0
    """Tokens that a sliding-window layer attends to, itself included; 0 for the other kinds."""


@dataclass(frozen=True)
class SchedulerConfig:
    """The settings of a scheduler, under vLLM's names where it has one. Counts are tokens unless said."""

    max_model_len: int
    num_blocks: int
    """Blocks that can be handed out. The null block 0 comes on top: KV tensors hold `num_blocks + 1`."""
    block_size: int = 0
    """Tokens a block; 0 for 16, or for what the first group says."""
    groups: tuple[KVGroup, ...] = ()
    """KV cache groups of a hybrid model; empty for one group of full attention with `block_size`."""
    max_num_seqs: int = 256
    """Requests that one step may hold. Those that only await their last output take none of these seats."""
    max_num_requests: int = 0
    """Requests that may be known at the same time, waiting ones included; 0 for four times `max_num_seqs`."""
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """No request gets more of one step than this; 0 for no such limit."""
    num_speculative_tokens: int = 0
    asynchronous: bool = False
    """Schedule the next step before the last one has returned."""
    max_in_flight_steps: int = 0
    """Steps that may be dispatched and not settled; 0 for 1, or 2 when asynchronous."""
    policy: str = "fcfs"
    """`fcfs`, first come first served, or `priority`: the lower number first, then the earlier arrival."""
    enable_prefix_caching: bool = True
    num_lookahead_tokens: int = 0
    """KV slots beyond a step's own that the drafter writes (vLLM: K for EAGLE, 0 for n-gram)."""
    num_prefill_lookahead_tokens: int = 0
    """A: 0 none, 1 EAGLE and single-module MTP, K multi-module MTP."""
    lookahead: str = "drop"
    """How a hit is made safe for a drafter with A > 0: `drop` gives the last block of a hit back and fences
    A - 1 tokens off; `hash` lets a block's digest cover the A tokens behind it (vLLM 0.33)."""
    drop_stale_output: bool = False
    """Whether late output of a preempted request is dropped; by default it is delivered."""
    release: str = "at_return"
    """When a finished request's blocks go: `at_return` of its last step in flight, or `at_once`, which
    relies on the device running steps in the order in which they were dispatched (vLLM)."""
    vocab_size: int = MAX_TOKEN_ID
    max_stop_token_ids: int = 8
    """Stop tokens that one request may name."""
    hash_seed: int | None = None
    """The prefix cache's key; None draws a secret. Equal seeds give equal digests in every process, as
    routers need; whoever knows the seed can prepare prompts that collide."""

    rules_block_size: int = field(init=False, default=0)
    """S: the cache's granularity, the least common multiple of the attention groups' block sizes."""
    hash_block_size: int = field(init=False, default=0)
    """h: tokens a digest covers, the greatest common divisor of the groups' block sizes."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        _check_groups(self.groups)
        set_field(self, "groups", tuple(self.groups))
        if type(self.block_size) is int and self.block_size == 0:
            set_field(self, "block_size", self.groups[0].block_size if self.groups else 16)
        if not self.groups:
            set_field(self, "groups", (KVGroup(self.block_size),))
        if self.max_num_requests == 0 and type(self.max_num_seqs) is int:
            set_field(self, "max_num_requests", 4 * self.max_num_seqs)
        if type(self.max_in_flight_steps) is int and self.max_in_flight_steps == 0:
            set_field(self, "max_in_flight_steps", 2 if self.asynchronous else 1)
        _check(self)
        sizes = [group.block_size for group in self.groups]
        attention = [group.block_size for group in self.groups if group.kind != "recurrent"]
        set_field(self, "rules_block_size", math.lcm(*(attention or sizes)))
        set_field(self, "hash_block_size", math.gcd(*sizes))
        _check_lengths(self)

    @property
    def registration_fence(self) -> int:
        """Trailing tokens that are not published yet (T12)."""
        lookahead = self.num_prefill_lookahead_tokens
        return lookahead if self.lookahead == "hash" else max(0, lookahead - 1)

    @property
    def chunk_alignment(self) -> int:
        """Prefill chunks end on its multiples: where recurrent state is kept."""
        return math.lcm(*[group.block_size for group in self.groups if group.kind == "recurrent"])

    @property
    def drops_block(self) -> bool:
        """Whether a hit gives its last block back."""
        return self.num_prefill_lookahead_tokens > 0 and self.lookahead == "drop"


_AT_LEAST_ONE = (
    "max_model_len",
    "num_blocks",
    "block_size",
    "max_num_seqs",
    "max_num_requests",
    "max_num_batched_tokens",
    "max_in_flight_steps",
    "vocab_size",
)
_AT_LEAST_ZERO = (
    "long_prefill_token_threshold",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "max_stop_token_ids",
)
_SWITCHES = ("asynchronous", "enable_prefix_caching", "drop_stale_output")
_CHOICES = {
    "policy": ("fcfs", "priority"),
    "lookahead": ("drop", "hash"),
    "release": ("at_return", "at_once"),
}


def _check_groups(groups: Any) -> None:
    """The groups, before anything is read from them."""
    if not isinstance(groups, tuple | list) or not all(type(group) is KVGroup for group in groups):
        raise ConfigError(f"groups must be KVGroups, as in groups=(KVGroup(16),), got {groups!r}")
    for group in groups:
        if type(group.kind) is not str or group.kind not in KINDS:
            raise ConfigError(f"a group's kind must be one of {', '.join(KINDS)}, got {group.kind!r}")
        if type(group.block_size) is not int or not 1 <= group.block_size <= MAX_TOKEN_ID:
            raise ConfigError(
                f"a group's block_size must be an integer from 1 to 2**31 - 1, got {group.block_size!r}"
            )
        if type(group.window) is not int or not 0 <= group.window <= MAX_TOKEN_ID:
            raise ConfigError(
                f"a group's window must be an integer from 0 to 2**31 - 1, got {group.window!r}"
            )
        if (group.window > 0) != (group.kind == "sliding_window"):
            raise ConfigError(
                f"window belongs to sliding_window groups and is at least 1 there, got {group.window!r} "
                f"for {group.kind}"
            )


def _check(config: SchedulerConfig) -> None:
    """Every other setting by itself."""
    for name in _SWITCHES:
        if type(getattr(config, name)) is not bool:
            raise ConfigError(f"{name} must be True or False, got {getattr(config, name)!r}")
    for least, names in ((1, _AT_LEAST_ONE), (0, _AT_LEAST_ZERO)):
        for name in names:
            value = getattr(config, name)
            if type(value) is not int or not least <= value <= MAX_TOKEN_ID:
                raise ConfigError(f"{name} must be an integer from {least} to 2**31 - 1, got {value!r}")
    for name, choices in _CHOICES.items():
        if type(getattr(config, name)) is not str or getattr(config, name) not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")
    if config.hash_seed is not None and (type(config.hash_seed) is not int or config.hash_seed < 0):
        raise ConfigError(f"hash_seed must be a number from 0 or None, got {config.hash_seed!r}")


def _check_lengths(config: SchedulerConfig) -> None:
    """Settings that must fit each other."""
    num_drafts = config.num_speculative_tokens
    if num_drafts + 1 > config.max_model_len - 1:
        raise ConfigError(
            f"a step of 1 + {num_drafts} tokens does not fit max_model_len={config.max_model_len}: "
            "lower num_speculative_tokens"
        )
    if config.max_num_batched_tokens < 1 + num_drafts:
        raise ConfigError(
            f"max_num_batched_tokens={config.max_num_batched_tokens} is less than one decode step of "
            f"1 + num_speculative_tokens = {1 + num_drafts}"
        )
    if config.max_num_requests < config.max_num_seqs:
        raise ConfigError(
            f"max_num_requests={config.max_num_requests} is below max_num_seqs={config.max_num_seqs}"
        )
    if config.block_size not in [group.block_size for group in config.groups]:
        raise ConfigError(f"block_size={config.block_size} is that of no group: leave it out, or the groups")
    if not config.asynchronous and config.max_in_flight_steps != 1:
        raise ConfigError("synchronous scheduling has one step in flight: leave max_in_flight_steps out")
    _check_recurrent(config)
    lookahead = config.num_prefill_lookahead_tokens
    if config.enable_prefix_caching and lookahead > config.rules_block_size:
        raise ConfigError(
            f"prefix caching needs blocks of at least the drafter's look-ahead: "
            f"num_prefill_lookahead_tokens={lookahead}, granularity {config.rules_block_size}"
        )
    least = max(lookahead, 1) + config.chunk_alignment - 1
    for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        limit = getattr(config, name)
        if 0 < limit < least:
            raise ConfigError(
                f"{name}={limit} is too small for a prefill chunk to end where it may: at least {least} "
                f"(look-ahead {lookahead}, alignment {config.chunk_alignment})"
            )


def _check_recurrent(config: SchedulerConfig) -> None:
    """Recurrent groups must fit each other, the attention groups beside them, and the drafter."""
    sizes = sorted({group.block_size for group in config.groups if group.kind == "recurrent"})
    if not sizes:
        return
    size, num_drafts = sizes[0], config.num_speculative_tokens
    if len(sizes) > 1:
        raise ConfigError(
            f"recurrent groups have block sizes {sizes}: give them one, for a row's states move together"
        )
    if size % config.rules_block_size != 0:
        raise ConfigError(
            f"a recurrent group's block_size={size} must be a multiple of {config.rules_block_size}, the "
            "least common multiple of the attention groups' block sizes"
        )
    if size < 1 + num_drafts:
        raise ConfigError(
            f"a recurrent group's block_size={size} is less than one decode step of "
            f"1 + num_speculative_tokens = {1 + num_drafts}, which would pass two states to be kept"
        )
    if config.lookahead == "hash" and config.num_prefill_lookahead_tokens > 0:
        raise ConfigError(
            'lookahead="hash" does not go with recurrent groups, since a state is kept before the tokens '
            'that its digest would cover are known: use lookahead="drop"'
        )
