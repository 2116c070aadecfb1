"""Named faults in the accounting that runs, and what a finished request leaves, in the cache or elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.impl.contracts import DEBUG, MIDDLE, plain  # noqa: E402
from draftproof.impl.decisions import lookup_hit  # noqa: E402
from draftproof.proofs.faults.patching import patched  # noqa: E402
from draftproof.proofs.faults.registry import find  # noqa: E402
from draftproof.spec.ledger import Ledger, Rules  # noqa: E402

TOLERANCE = 1e-4
modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
without_other_checks = pytest.mark.skipif(
    DEBUG or MIDDLE,
    reason="with DRAFTPROOF_DEBUG the transitions check themselves, and refuse the fault before it does harm",
)


def put_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The named fault, wherever the right transition runs: on the host, and on the device alike."""
    fault = find(name)
    changed = patched(fault.changes).transitions
    for function in {change.function for change in fault.changes}:
        right = getattr(accounting, function)
        assert plain(right) is plain(accounting.TRANSITIONS[function])
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(("draftproof.impl", "draftproof.gpu")):
                for key, value in list(vars(module).items()):
                    if value is right:
                        monkeypatch.setattr(module, key, changed[function])
        assert getattr(accounting, function) is changed[function]


def hit(num_settled: int, num_tokens: int, block_size: int) -> int:
    """What a request of so many tokens reuses if as many of them were settled: the closed form (T13)."""
    nothing: Any = dict.fromkeys(Ledger._fields, 0)
    ledger = Ledger(**nothing)._replace(num_tokens=num_tokens)
    rules = Rules(0, block_size, False, 0)
    return int(lookup_hit(ledger, rules, num_settled // block_size * block_size, False))


class Trims:
    """How many sampled tokens the last step of each request dropped; watches a scheduler while it runs."""

    def __init__(self, one: LLM) -> None:
        self.by_request: dict[str, int] = {}
        self.num_trimmed = 0
        scheduler, settle = one.engine.scheduler, one.engine.scheduler.settle

        def watched(batch: Any, sampled: Any, num_sampled: Any) -> None:
            ids = [scheduler.request_ids[row] for row in batch.rows[: batch.num_requests].tolist()]
            settle(batch, sampled, num_sampled)
            for place, request_id in enumerate(ids):
                kept = int(batch.num_kept_tokens[place])
                if kept > 0 and request_id is not None:
                    self.by_request[request_id] = int(num_sampled[place]) - kept
                    self.num_trimmed += self.by_request[request_id]

        scheduler.settle = watched  # type: ignore[method-assign, assignment]

    def num_settled(self, result: RequestResult) -> int:
        """Tokens of a finished request that have KV: the last one too if it was a draft, that is, if another
        one was sampled after it."""
        num_tokens = len(result.prompt_token_ids) + len(result.token_ids)
        return num_tokens - (self.by_request[result.request_id] == 0)


def difference(result: RequestResult, expected: RequestResult) -> float:
    """The largest of the log-probabilities; infinite where the tokens are not the same."""
    if result.token_ids != expected.token_ids:
        return float("inf")
    assert result.logprobs is not None and expected.logprobs is not None
    pairs = zip(result.logprobs, expected.logprobs, strict=True)
    return max((abs(one.logprob - other.logprob) for one, other in pairs), default=0.0)


def is_idle(one: LLM) -> bool:
    """Whether nothing is left of any request: no row, no block that is held, nobody who waits."""
    with one._lock:
        engine = one.engine
        while engine.has_work():  # asynchronously a step is still under way
            engine.step()
        held = int((engine.scheduler.state.pool.ref_count[1:] > 0).sum())
        return not engine.requests and not engine.scheduler.rows and held == 0 and not one._sinks
