"""Did a step read what it believed to read? Judged when it returns, just before its own writes are noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.accounts import Accounts
from draftproof.impl.attach.vllm.content import Shadow
from draftproof.impl.attach.vllm.kernel import FIRST_ARGUMENT
from draftproof.impl.attach.vllm.watched import Dispatched, Life, Watched


def verify(
    accounts: Accounts,
    shadow: Shadow,
    step: Dispatched,
    sampled: Sequence[list[int]],
    drafted: Mapping[str, Sequence[int]],
) -> None:
    """Look at the slots that each request of the step has read, then note what it has written."""
    several, sizes = step.party.watched, step.work[FIRST_ARGUMENT].tolist()
    for place, watched in enumerate(several):
        life = step.lives[place]
        if life is None:
            continue
        chunk = step.chunks.get(place)
        start = chunk.start if chunk is not None else life.num_device_tokens - 1
        num_tokens = sizes[place]
        if not life.over and life is watched.life and life.num_verified < start:
            _read(accounts, shadow, watched, life, start)
        drafts = drafted.get(watched.request_id, ())
        shadow.returned(life, chunk, num_tokens, sampled[place], drafts)
        if not life.over and life.num_verified >= start:
            written = num_tokens if chunk is not None else max(len(sampled[place]), 1)
            life.num_verified = max(life.num_verified, start + written)


def _read(accounts: Accounts, shadow: Shadow, watched: Watched, life: Life, start: int) -> None:
    first = life.num_verified
    wrong = shadow.mismatch(life.table, first, watched.digests[first:start])
    life.num_verified = start
    if wrong is None:
        return
    token_id = engine_view.tokens(watched.request, wrong.position)[0]
    holds = f"holds the KV of token {wrong.token_id}" if wrong.written else "was never written"
    if wrong.written and wrong.token_id == token_id:
        holds = f"holds the KV of token {token_id} in another context"
    accounts.tell(
        watched, "content", ("T3", "P3"), ("step_reads_valid_kv",),
        f"position {wrong.position} of block {wrong.block_id} {holds}, the sequence says token {token_id}",
    )  # fmt: skip
