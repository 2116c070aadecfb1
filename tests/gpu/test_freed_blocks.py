"""Does it show when somebody reads a block that was freed? By the canary, and in the logits without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("z3", reason="the prover's packages are not installed")

from tests.gpu.canary_world import without_other_checks  # noqa: E402
from tests.gpu.debug_world import generate, scripted, tampered  # noqa: E402
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    PARAMETERS,
    drafter,
    llm,
    prompts,
)

from draftproof.gpu.attention import KVCache  # noqa: E402
from draftproof.gpu.canary import FORGOTTEN, CanaryError  # noqa: E402
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS  # noqa: E402
from draftproof.impl.pool import publish, published, release, withdraw  # noqa: E402

pytestmark = without_other_checks


def freed_too_early(one: Any) -> list[tuple[int, str]]:
    """The block that a row is about to write on in is given back a step too early."""
    state = one.engine.scheduler.state

    def tamper(row: int) -> None:
        computed = int(state.requests.ledgers[NUM_COMPUTED_TOKENS, row])
        block = int(state.tables.block_ids[0, row, computed // BLOCK_SIZE])
        assert not published(state.pool, block) and state.pool.ref_count[block] == 1
        release(state.pool, block, True)

    # Where the step needs a new block it would be this one.
    return tampered(
        one, tamper, lambda row: bool(state.requests.ledgers[NUM_COMPUTED_TOKENS, row] % BLOCK_SIZE)
    )


def test_a_block_that_was_freed_too_early_is_caught() -> None:
    one = llm(max_num_seqs=1)
    when = freed_too_early(one)
    with pytest.raises(CanaryError, match="a block that was freed") as caught:
        generate(one)
    assert caught.value.found == FORGOTTEN and (caught.value.step, caught.value.request) == when[0]


def test_without_a_canary_a_freed_block_shows_in_the_logits() -> None:
    one = llm(max_num_seqs=1)
    one.engine.runner.canary = None
    when = freed_too_early(one)
    result = one.generate(prompts()[:1], PARAMETERS["greedy"][:1])[0]
    assert result.finish_reason == "error" and result.error == "the model's logits were not numbers"
    assert result.request_id == when[0][1] and len(result.token_ids) == when[0][0]


@pytest.mark.parametrize("has_canary", [True, False])
def test_a_hit_on_a_block_that_was_withdrawn_is_caught(has_canary: bool) -> None:
    one = llm(scripted(), max_num_seqs=1)
    pool, one_prompt = one.engine.scheduler.state.pool, prompts()[0]
    if not has_canary:
        one.engine.runner.canary = None
    one.generate([one_prompt], PARAMETERS["greedy"][0])
    blocks = [block for block in range(1, 201) if published(pool, block)]
    words = [(int(pool.digest_first[block]), int(pool.digest_second[block])) for block in blocks]
    for block in blocks:
        withdraw(pool, block, True)
    one.generate([[1]], PARAMETERS["greedy"][0])  # a step, before which they are poisoned
    for block, (first, second) in zip(blocks, words, strict=True):
        if pool.ref_count[block] == 0 and pool.num_tokens[block] == BLOCK_SIZE:
            publish(pool, block, first, second, True)
    if has_canary:
        with pytest.raises(CanaryError, match="a block that was freed"):
            one.generate([one_prompt], PARAMETERS["greedy"][0])
    else:
        result = one.generate([one_prompt], PARAMETERS["greedy"][0])[0]
        assert result.num_cached_tokens > 0 and result.finish_reason == "error"


@pytest.mark.parametrize("kind", ["draft", "eagle"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_drafters_own_blocks_are_poisoned_too(kind: str, asynchronous: bool) -> None:
    one = llm(drafter(kind, 3, []), asynchronous=asynchronous, **CONFIGURATIONS["preempted"])
    runner: Any = one.engine.runner
    caches: list[KVCache] = [runner.cache, runner.drafter.cache.cache]
    poison, num_poisoned = runner.poison, SimpleNamespace(blocks=0)

    def watched(block_ids: Any) -> None:
        poison(block_ids)
        num_poisoned.blocks += len(block_ids)
        chosen = torch.from_numpy(block_ids).to(runner.cache.device)
        assert all(bool(cache.storage[:, :, chosen].isnan().all()) for cache in caches)
        assert bool((runner.canary.blocks[chosen] == FORGOTTEN).all())

    runner.poison = watched
    generate(one)
    assert num_poisoned.blocks > 0 and one.engine.totals.num_preemptions > 0
    assert one.engine.totals.num_accepted_drafts > 0
