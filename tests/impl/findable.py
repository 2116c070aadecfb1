"""What can be found in the prefix cache? What was settled when a request gave its KV up; nothing unreal."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from tests.impl.agreement import content_of, published_blocks

from draftproof.spec.lookups import closed_form

if TYPE_CHECKING:
    from tests.impl.watched import WatchedScheduler


class Exit(NamedTuple):
    """A request gave its KV up; what was settled of it must be findable then."""

    kind: str
    token_ids: tuple[int, ...]
    salt: str
    num_settled_tokens: int


def check_exit(watched: WatchedScheduler, one: Exit) -> None:
    """What was settled of a request that has just left is found (T4): at least T13's closed form.

    At least, for others may have stored more of the same tokens. Recurrent groups keep few states, and a
    window has given back what a shorter hit needs, as a drafter's drop or fence makes it: no claim there.
    """
    config = watched.config
    kinds = {group.kind for group in config.groups}
    if not config.enable_prefix_caching or "recurrent" in kinds:
        return
    if "sliding_window" in kinds and config.num_prefill_lookahead_tokens > 0:
        return
    if len(watched.by_row) == config.max_num_requests:
        return  # nobody can look anything up
    # All that was settled, and one token more where the model's length allows.
    filler = [config.vocab_size - 1]
    token_ids = [*one.token_ids[: one.num_settled_tokens], *filler][: config.max_model_len]
    hit = watched.scheduler.num_cached_tokens(token_ids, one.salt)
    least = closed_form(one.num_settled_tokens, len(token_ids), watched.rules, config.drops_block)
    assert hit >= least, f"{one.kind} of {one.token_ids}: {hit} tokens are found, must be {least}"


def check_look_up(watched: WatchedScheduler, token_ids: Sequence[int], salt: str = "") -> None:
    """A look-up finds exactly what is there, by the rules.

    What is there is told from what the published blocks hold on the device, so nothing may be in flight.
    """
    hit = watched.scheduler.num_cached_tokens(token_ids, salt)
    if watched.steps or not watched.config.enable_prefix_caching:
        return
    there = {content_of(watched, block) for block in published_blocks(watched)}
    expected = possible_hit(watched, there, token_ids, salt)
    assert hit == expected, f"a look-up of {token_ids} hits {hit} tokens, {expected} can be used"


def possible_hit(
    watched: WatchedScheduler,
    there: Set[tuple[int, int, tuple[int, ...]]],
    token_ids: Sequence[int],
    salt: str,
) -> int:
    """The longest hit that all groups can serve: in whole units of the cache, and not the last token.

    Full attention needs all blocks, a sliding window those it looks at, recurrent groups the state at the
    end. A drafter's drop takes one unit off before the others are asked.
    """
    config, unit = watched.config, watched.config.rules_block_size
    num_ahead = watched.scheduler.state.settings.num_hash_lookahead_tokens
    prefixes = [watched.device.prefixes.root(salt)]
    for token in token_ids:
        prefixes.append(watched.device.prefixes.after(prefixes[-1], token))

    def has(number: int, end: int) -> bool:
        ahead = token_ids[end : end + num_ahead] if config.groups[number].kind != "recurrent" else ()
        return (number, prefixes[end], tuple(ahead)) in there

    def serves(number: int, num_tokens: int) -> bool:
        group, size = config.groups[number], config.groups[number].block_size
        if group.kind == "recurrent":
            return has(number, num_tokens)
        first = max(num_tokens - group.window + 1, 0) // size if group.window else 0
        return all(has(number, (index + 1) * size) for index in range(first, num_tokens // size))

    longest = max(len(token_ids) - max(num_ahead, 1), 0) // unit * unit
    full = [number for number, group in enumerate(config.groups) if group.kind == "full_attention"]
    rest = [number for number in range(len(config.groups)) if number not in full]
    for run in range(longest, 0, -unit):
        hit = max(run - unit, 0) if config.drops_block else run
        if all(serves(number, run) for number in full) and all(serves(number, hit) for number in rest):
            return hit
    return 0
