"""What is judged when a request gives its blocks back: by a preemption, a finish or an abort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.impl.attach.vllm import exits
from draftproof.impl.attach.vllm.watched import Watched

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch

FINISH, TRIMMED, ABORT, PREEMPTION = "finish", "trimmed stop", "abort", "preemption"
"""The exits, as the counters name them."""


def published(scheduler: Any) -> Any:
    """The index of published blocks: another object after every reset of the prefix cache."""
    return scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block


class Leaving:
    """The exits of one watch's requests."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def preempt(self, scheduler: Any, watched: Watched, *, alone: bool) -> None:
        """A request has lost its blocks. `alone`: it is the only one in this call."""
        watch = self._watch
        drop = bool(watched.request.drop_stale_output)
        table = watched.table
        watch.accounts.move("preempt", [watched], drop)
        if watch.view.blocks:
            watch.owners.give(watched)
            watch.tails.forget(watched.row)
        if watched.life is not None:
            watched.life.over, watched.life = True, None
        if alone and watch.view.caching and watched.judged:
            size = watch.view.rules.block_size
            settled = watch.accounts.state(watched).ledger.num_registered_at_preemption
            found = exits.loss_at_preemption(scheduler, watched, table, settled, size)
            self._exit(watched, PREEMPTION, found)

    def leave(
        self, scheduler: Any, watched: Watched, event: str, kind: str, *, known: bool | None = None
    ) -> None:
        """A request is gone: what it leaves behind is judged. `known`: the core's ledger is right."""
        watch = self._watch
        known = watched.judged if known is None else known
        watch.accounts.move(event, [watched])
        ledger = watch.accounts.state(watched).ledger
        table = watched.table
        if watch.view.blocks:
            watch.owners.give(watched)
            watch.tails.forget(watched.row)
        kept_index = watch.index is published(scheduler)
        if watch.view.caching and known and kept_index:
            size = watch.view.rules.block_size
            self._exit(watched, kind, exits.loss(scheduler, watched, ledger.num_registered_tokens, size))
        if watch.recording is not None and kept_index:
            watch.recording.exit(scheduler, watched, table, watch.accounts.step)
        idle = event == "finish" or ledger.num_in_flight_tokens == 0
        if watch.shadow is not None and watch.view.caching and kept_index and idle:
            wrong = exits.wrongly_published(scheduler, watched, table, watch.shadow)
            if wrong is not None:
                watch.accounts.tell(
                    watched, "content", ("P6", "T3"), ("published_is_settled",),
                    f"block {wrong.block_id} is left findable, and its slot for position {wrong.position} "
                    + (f"holds the KV of token {wrong.token_id}" if wrong.written else "was never written"),
                )  # fmt: skip
        if watched.life is not None:
            watched.life.over = True
        if watch.recording is not None:
            watch.recording.leave(watched)
        watch.accounts.leave(watched)
        del watch.watched[watched.request_id]

    def _exit(self, watched: Watched, kind: str, found: exits.Loss) -> None:
        """Count an exit, and what it lost."""
        watch = self._watch
        size = watch.view.rules.block_size
        watch.report.count("exits", exit=kind)
        watch.report.count("blocks_settled", found.num_settled // size, exit=kind)
        num_lost = (found.num_settled - found.num_findable) // size
        if not num_lost:
            return
        watch.report.count("exits_with_lost_blocks", exit=kind)
        watch.report.count("blocks_lost", num_lost, exit=kind)
        article = "an" if kind == ABORT else "a"
        watch.accounts.tell(
            watched, "completeness", ("T4", "T13"), (f"settled is findable after {article} {kind}",),
            f"{found.num_settled} tokens were settled in whole blocks, a repeat finds {found.num_findable}",
        )  # fmt: skip
