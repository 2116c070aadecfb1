"""What does each theorem say to an engineer, and where does its rule come from?"""

from __future__ import annotations

from typing import NamedTuple


class Theorem(NamedTuple):
    """What a theorem says, in a sentence for an engineer, and the source of the rule."""

    name: str
    meaning: str
    source: str


THEOREMS: dict[str, Theorem] = {
    "T1": Theorem(
        "computed never exceeds known",
        "Work that has returned is never counted beyond the known tokens: C - (F - S) <= N, so C <= N "
        "whenever nothing live is in flight, in particular when the next chunk of a session arrives.",
        "the trim fault; vLLM #58259, #44526",
    ),
    "T2": Theorem(
        "the frontier is exact",
        "While a sample is awaited the next known token goes to position N - 1, and an output moves the "
        "frontier C - Q by exactly the tokens it kept, whether or not a stop trimmed any. It commits no more "
        "tokens than its step was scheduled for. A step starts at a known token, or at one that a "
        "placeholder stands for.",
        "speculative sampling, Leviathan et al. 2023; the trim fault",
    ),
    "T3": Theorem(
        "nothing unreal is read, kept or published",
        "Registered, settled and kept tokens never exceed the positions whose KV is really theirs, and "
        "a step starts to write where valid KV ends.",
        "vLLM #49377, #58259",
    ),
    "T4": Theorem(
        "nothing settled is lost",
        "At all four exits (finish, preempt, abort, end of turn) every whole block of settled KV has "
        "been published, and nothing that is not settled is added. A running request that finishes has "
        "registered exactly floor_B(W) where no fence holds blocks back. What a session keeps between turns "
        "was published when its turn ended, so whoever takes it away then loses nothing.",
        "vLLM #54979 and its composition with the trim fix",
    ),
    "T5": Theorem(
        "no counter underflows",
        "No counter goes below zero, and P never exceeds C.",
        "vLLM #48245, #52765, #50692",
    ),
    "T6": Theorem(
        "progress",
        "A running request either can be scheduled with at least one token or awaits output; below the "
        "model's length and with budget for one aligned chunk, and for what a drafter must find behind its "
        "end, the host then chooses at least one token. "
        "Every returned step brings (2M - N - W, F) closer to 0, first things first (M the limit on N): a "
        "live one the first number, a stale one at least F. So if every dispatched step returns, the "
        "request ends unless it is preempted for ever.",
        "vLLM #44526, #53970",
    ),
    "T7": Theorem(
        "a fold keeps all but the last token",
        "The next chunk of a session follows exactly N - 1 known tokens, also if the session stopped "
        "while it was preempted (C = 0).",
        "vLLM #58259",
    ),
    "T8": Theorem(
        "speculation leaves no trace",
        "Two unpreempted runs with equal committed tokens have equal (N, C, P, D, T, E, L, R) after the "
        "turn ends, whether or how they speculated, synchronously or not. For R with a drafter's fence "
        "this asks that neither run hit the prefix cache above what a step may publish; without a fence "
        "it always holds.",
        "the purpose of the accounting",
    ),
    "T9": Theorem(
        "host and device commute",
        "For the same step size, the host's order (schedule the next step, then process the output) and "
        "the device's (the output first) agree on every field but R, where "
        "floor_B(N - 1) <= R_host <= R_device <= floor_B(N).",
        "asynchronous scheduling (vLLM, SGLang overlap, TensorRT-LLM)",
    ),
    "T10": Theorem(
        "capacity",
        "Slots for every position below C + n, reserved when a step of n is scheduled, cover all it "
        "writes at any run-ahead depth; one slot less does not. A drafter's look-ahead comes on top. After "
        "a trimmed stop, and after a turn has ended, steps in flight still write, but above what is settled "
        "and published; blocks are given back only when no step is left in flight.",
        "TensorRT-LLM #16280",
    ),
    "T11": Theorem(
        "machine integers suffice",
        "With J undelivered steps, max_model_len + J(1+K) and J * max_num_batched_tokens + fence below 2^31, "
        "no integer sub-term of any transition leaves 32 bits. A device computes masked rows too: for those "
        "max_model_len + J(1+K) + K + 1 and 2J(1+K) + 1 must fit if they are given zeros, and sums with one "
        "more max_model_len or max_num_batched_tokens if they are given anything.",
        "the device ledger runs on int32",
    ),
    "T12": Theorem(
        "the drafter's fence",
        "With prefill look-ahead A, nothing within the last A - 1 valid tokens is registered: those "
        "positions still change when the drafter sees the tokens after them.",
        "multi-module MTP; vLLM #54979",
    ),
    "T13": Theorem(
        "what was stored is found",
        "With no eviction in between, a look-up of N' tokens that starts with a finished sequence hits whole "
        "blocks, at most min(W, N' - 1), and misses less than a block of min(W - fence, N' - 1); one block "
        "less where the drafter needs it. Without a fence it hits exactly min(floor_B(W), floor_B(N' - 1)), "
        "where W is N if the last kept token was an accepted draft, else N - 1; behind a fence exactly "
        "min(max(hit, floor_B(W - fence)), floor_B(N' - 1)), where hit is what the finished request had hit "
        "itself (`draftproof.spec.lookups.closed_form`).",
        "vLLM #54979",
    ),
    "T14": Theorem(
        "finished is final",
        "A request that finishes or is aborted is finished for good. Only steps that were in flight still "
        "return; they change neither its tokens nor its KV, so it is finished, and its blocks are freed, "
        "once.",
        "vLLM #33377",
    ),
}
