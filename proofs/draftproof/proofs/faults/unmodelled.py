"""Which public reports have no fault here, and why? Each is argued by name."""

from __future__ import annotations

UNMODELLED: dict[str, str] = {
    "mixed-penalty-batch-sentinels": "Sentinel ids of one request's row are scattered by another request's "
    "penalty: the contents of a sampling tensor across rows. No count of any request is wrong.",
    "output-list-nested-on-multi-token": "A runner writes a whole list into one position of another. "
    "How many outputs are awaited was right all the time; what stands in a list is not a count.",
    "runner-scheduler-output-diverge": "The runner keeps a list of output tokens beside the scheduler's. The "
    "scheduler's counts, which are what a ledger is, were right; a second list is not part of it.",
    "offload-fallback-disables-serving": "A fallback takes every attention group for the drafter's. Which "
    "group is whose is a classification outside a request; a look-up here is told whether it drops a block.",
    "sglang-jax-future-ring-wraps": "A ring shared by all requests is sized for running requests but filled "
    "by padded batches. Padding and the ring belong to the runner; a ledger speaks about one request.",
    "rdma-then-late-zeroing": "Two writers of one block, a zero fill and a remote transfer, run in the wrong "
    "order on the device. Same-stream ordering is an assumption here, not a count.",
    "waiting-request-keeps-blocks": "A request that could not be scheduled keeps blocks it owns although its "
    "computed count is 0. Ownership of blocks is the pool's; the ledger knows positions only.",
    "sglang-retract-logprob-cursor": "The streamer's cursor into log-probabilities is moved without a token. "
    "What was already sent to a client is not part of the ledger.",
    "session-mm-rehash-wrong-extra-keys": "An incremental hash restarts at the wrong image. How many hashes "
    "stay is modelled (`hashes-only-grow`); what a block's key contains is not a count.",
    "v0-cached-count-computed-once": "The hit is remembered from an earlier look-up, after which a block was "
    "evicted. A decision here is asked once, with what the cache holds then; eviction belongs to the pool.",
}
