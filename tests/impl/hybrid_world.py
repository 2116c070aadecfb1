"""What must a scheduler of a hybrid model keep? The world of `scheduler_world`, for any groups, and M4.

Which states are to be kept is told here from what was dispatched: those of a prefill's chunk ends, if these
are boundaries or the prompt's checkpoint, and those of every boundary after the prefill. A request that
leaves must be found as far as that, unless a block was evicted.
"""

from __future__ import annotations

import copy
import dataclasses

from tests.impl.device import Row
from tests.impl.findable import Exit
from tests.impl.request_truth import Choices, Request
from tests.impl.scheduler_world import VOCAB_SIZE, Settings, World, written
from tests.impl.watched import WatchedScheduler

from draftproof.impl.decisions import checkpoint_to_keep
from draftproof.impl.scheduler.batch import RUNNING, Batch
from draftproof.impl.scheduler.checks import assert_accounting
from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.requests import num_state_blocks
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.spec import ledger as status
from draftproof.spec.lookups import closed_form


def hybrid_config(settings: Settings, groups: tuple[KVGroup, ...]) -> SchedulerConfig:
    """The settings with these groups; as many blocks as the longest request can need, and the extra ones."""
    config = settings.config()
    alignment = max([group.block_size for group in groups if group.kind == "recurrent"], default=1)
    least = max(settings.lookahead, 1) + alignment - 1
    config = dataclasses.replace(
        config,
        groups=groups,
        block_size=groups[0].block_size,
        num_blocks=1000,
        max_num_batched_tokens=max(config.max_num_batched_tokens, least),
        long_prefill_token_threshold=settings.threshold and max(settings.threshold, least),
    )
    needed = sum(
        num_state_blocks(config, group)
        if group.kind == "recurrent"
        else -(-config.max_model_len // group.block_size)
        for group in groups
    )
    return dataclasses.replace(config, num_blocks=needed + settings.extra_blocks)


@dataclasses.dataclass
class Life:
    """At which positions of a request's life a state is to be kept."""

    num_hit_tokens: int
    turns: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Where each turn that it saw started, and where the known tokens ended then: its prefill."""
    chunk_ends: set[int] = dataclasses.field(default_factory=set)
    """Boundaries and checkpoints at which a prefill chunk ended."""

    def keeps(self, end: int, size: int) -> bool:
        """A hit is there already. A prefill keeps what its chunks end on; after it every boundary is kept."""
        if end <= self.num_hit_tokens:
            return end in (0, self.num_hit_tokens)
        if any(start < end <= known for start, known in self.turns):
            return end in self.chunk_ends
        return end % size == 0


class HybridWatched(WatchedScheduler):
    """Notes what is to be kept."""

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler | None = None, *, checks: bool) -> None:
        super().__init__(config, scheduler, checks=checks)
        self.ignores_source_slot = False
        """The fault of vLLM #56531: the runner starts a row without drafts from slot 0."""
        self.lives: dict[int, Life] = {}
        """By request: what is to be kept of its present life."""
        self.in_failed_steps: set[int] = set()
        """Requests of which more may have been withdrawn than was lost."""
        self.exits_of_lives: list[tuple[Exit, Life]] = []
        """Requests that gave their KV up, each with what was to be kept of it."""
        self.num_checks = 0
        self.least_unpublished = config.num_blocks
        """Free blocks that are not published: while there are some, nothing is evicted."""

    def check(self) -> None:
        super().check()
        if not self.checks:
            return
        self._check_paused()
        self.num_checks += 1
        if self.num_checks % 8 == 0:  # each one takes long
            assert_accounting(self.scheduler)
        pool = self.scheduler.state.pool
        unpublished = (pool.ref_count[1:] == 0) & (pool.next_in_chain[1 : pool.ref_count.size] == 0)
        self.least_unpublished = min(self.least_unpublished, int(unpublished.sum()))

    def fail(self) -> None:
        self.in_failed_steps.update(one.number for _, requests in self.steps for one in requests)
        super().fail()

    def _check_paused(self) -> None:
        """A session between two turns keeps its working slots, and no targets."""
        held = self.scheduler.state.tables.num_blocks
        most = 1 + self.config.num_speculative_tokens
        for request in self.by_row.values():
            for place, group in enumerate(self.config.groups):
                if group.kind == "recurrent" and request.ledger.status == status.PAUSED:
                    assert held[place, request.row] <= most, (
                        f"{request.request_id} keeps more than {most} slots"
                    )

    def _exits(self, kind: str, request: Request) -> None:
        if request.number not in self.in_failed_steps:
            one = Exit(kind, tuple(request.token_ids), request.salt, request.num_settled_tokens)
            life = self.lives.get(request.number, Life(0))
            self.exits_of_lives.append((one, copy.deepcopy(life)))

    def _dispatched(self, batch: Batch, index: int, request: Request, choices: Choices) -> Row:
        self._note_life(batch, index, request)
        row = super()._dispatched(batch, index, request, choices)
        self.seen["another slot"] += row.source_slot > 0
        self.seen["another slot, no drafts"] += row.source_slot > 0 and row.num_drafts == 0
        if self.ignores_source_slot and row.num_drafts == 0:
            return row._replace(source_slot=0)
        return row

    def _note_life(self, batch: Batch, index: int, request: Request) -> None:
        """What the step means for what is to be kept. Before it is dispatched in the truth."""
        sizes = [group.block_size for group in self.config.groups if group.kind == "recurrent"]
        first, known = int(batch.num_computed_tokens[index]), len(request.token_ids)
        end = first + int(batch.num_scheduled_tokens[index])
        if batch.kind[index] != RUNNING:
            if request.ledger.num_computed_tokens == 0:
                self.lives[request.number] = Life(first)
            self.lives[request.number].turns.append((first, known))
        if not sizes or end > known or not self.config.enable_prefix_caching:
            return
        checkpoint = int(checkpoint_to_keep(request.ledger, self.rules, self.config.drops_block))
        is_boundary = end % sizes[0] == 0 or end == checkpoint
        if end < known:
            assert is_boundary and not first < checkpoint < end, f"a chunk ends at {end}, past {checkpoint}"
        if is_boundary:
            self.lives[request.number].chunk_ends.add(end)


class HybridWorld(World):
    """Who uses a scheduler of a hybrid model."""

    def __init__(
        self,
        settings: Settings,
        groups: tuple[KVGroup, ...],
        scheduler: Scheduler | None = None,
        *,
        checks: bool = True,
    ) -> None:
        super().__init__(settings, checks=checks, sweeps=False)
        self.hybrid = HybridWatched(hybrid_config(settings, groups), scheduler, checks=checks)
        self.watched = self.hybrid
        self.num_exits_checked = 0

    def advance_alone(self, choices: int) -> None:
        """One more step, or the oldest returns; nobody arrives."""
        chosen = Choices(choices)
        if self.watched.can_schedule() and chosen.below(2) == 0:
            self.schedule(chosen.below(2**24))
        else:
            self.settle(chosen.below(2**6), proposes=not self.settings.asynchronous)

    def look_up(self, length: int, *, text: int = 0, other: int = 1, switch: int = 99) -> None:
        """Somebody asks what of a prompt is in the cache."""
        super().look_up(length, text=text, other=other, switch=switch)
        if not self.watched.steps and len(self.watched.by_row) < self.watched.config.max_num_requests:
            prompt = written(text, other, switch, min(length, self.settings.max_model_len))
            self.watched.seen["looked up"] += self.watched.scheduler.num_cached_tokens(prompt) > 0

    def _check_exits(self) -> None:
        for one, life in self.hybrid.exits_of_lives:
            self._check_exit(one, life)
        self.hybrid.exits_of_lives.clear()

    def _check_exit(self, one: Exit, life: Life) -> None:
        """What was settled is found as far as a state was to be kept (M4), if nothing was evicted."""
        watched, config = self.hybrid, self.hybrid.config
        if not (watched.checks and config.enable_prefix_caching) or watched.least_unpublished == 0:
            return
        if len(watched.by_row) == config.max_num_requests:
            return
        token_ids = [*one.token_ids[: one.num_settled_tokens], VOCAB_SIZE - 1][: config.max_model_len]
        attention = closed_form(one.num_settled_tokens, len(token_ids), watched.rules, config.drops_block)
        sizes = [group.block_size for group in config.groups if group.kind == "recurrent"]
        least = max(end for end in range(attention + 1) if life.keeps(end, sizes[0])) if sizes else attention
        hit = watched.scheduler.num_cached_tokens(token_ids, one.salt)
        assert hit >= least, f"{one.kind} of {one.token_ids}: {hit} tokens are found, must be {least}"
        self.num_exits_checked += 1
