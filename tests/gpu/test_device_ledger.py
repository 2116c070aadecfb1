"""Do the device's columns count as the host's integers do, in another order, and is every difference told?"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.host_reads import HostReadError, no_host_reads  # noqa: E402
from tests.gpu.ledger_lines import numbers, table  # noqa: E402
from tests.gpu.ledger_world import World  # noqa: E402

from draftproof.gpu.device_ledger import COMPARED, DeviceLedger, differences  # noqa: E402
from draftproof.impl import accounting  # noqa: E402
from draftproof.impl.contracts import plain  # noqa: E402
from draftproof.impl.ledger_table import NUM_REGISTERED_TOKENS, load_plain  # noqa: E402
from draftproof.proofs.faults import find  # noqa: E402
from draftproof.proofs.faults.patching import patched  # noqa: E402
from draftproof.spec.ledger import RUNNING, Ledger, Rules, initial  # noqa: E402

ALWAYS = (
    "prefill chunks", "accepted", "rejected", "stopped", "trimmed", "preempted", "aborted", "folds", "hits",
    "starts", "at dispatch", "at end",
)  # fmt: skip
AHEAD = ("past a stop", "preempted in flight", "delivered late", "bounded", "registered less on the host")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_host_and_device_agree_on_random_lives(asynchronous: bool) -> None:
    did: Counter[str] = Counter()
    for seed in range(6):
        sizes = np.random.default_rng(seed)
        num_drafts, block_size, fence = int(sizes.integers(0, 6)), int(sizes.integers(1, 6)), seed % 3
        world = World(seed, Rules(num_drafts, block_size, asynchronous, fence))
        world.run(60)
        did += world.did
    for what in (*ALWAYS, *AHEAD * asynchronous):
        assert did[what] > 20, what
    assert asynchronous or did["past a stop"] == 0


@pytest.mark.parametrize("name", ["rejections-stay-computed", "rejections-stay-reserved"])
def test_a_device_with_a_known_fault_disagrees(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The transition is changed where the device takes it from, and the host's is not. (What only goes wrong
    at a stop has no effect there: the line is left alone, and starts with the host's counters again.)"""
    world = World(0, Rules(4, 4, find(name).asynchronous is not False, 0))
    monkeypatch.setattr(accounting, "output", patched(find(name).changes).transitions["output"])
    with pytest.raises(AssertionError):
        world.run(60)


def test_a_dispatch_that_reads_a_value_on_the_host_is_noticed() -> None:
    ledger = DeviceLedger(2, Rules(1, 4, True, 0), DEVICE)
    with pytest.raises(HostReadError), no_host_reads():
        int(ledger.table[0, 0])


def test_each_counter_that_differs_is_told() -> None:
    rules = Rules(3, 4, True, 0)
    host = table([initial(9)._replace(status=RUNNING, num_in_flight_tokens=5, num_stale_tokens=2)] * 3)
    assert differences(host, host.astype(np.int32)) == []
    told = {field: Ledger._fields[field] for field in COMPARED}
    told |= dict.fromkeys((4, 5), "live num_in_flight_tokens")
    for field in range(len(Ledger._fields)):
        for change in (-1, 1):
            device = host.astype(np.int32)
            device[field, 1] += change
            found = differences(host, device)
            if field in told:
                on_host, on_device = found[0][2:]
                assert found[0][:2] == (1, told[field]) and len(found) == 1
                assert on_device - on_host == (-change if field == 5 else change)
            elif field == NUM_REGISTERED_TOKENS and change < 0:
                assert found == [(1, "num_registered_tokens", 0, -1)]
            else:
                assert found == []  # kept back on the host, or of no step
    both = host.astype(np.int32)
    both[4:6, 1] += 1  # a step of an earlier life more is none of the device's business
    assert differences(host, both) == []
    several = host.astype(np.int32)
    several[1, 2] += 1
    several[2, 0] -= 1
    assert [one[:2] for one in differences(host, several)] == [(0, "num_computed_tokens"), (2, "num_tokens")]
    assert rules.block_size == 4


def test_lines_do_not_touch_each_other() -> None:
    """A step of some lines, in any order, moves these; the others, and the padding line, stay."""
    rules = Rules(2, 4, True, 0)
    ledger = DeviceLedger(6, rules, DEVICE)
    before = [initial(5 + line)._replace(status=RUNNING) for line in range(6)]
    ledger.start(torch.arange(6, device=DEVICE), torch.from_numpy(table(before).astype(np.int32)).to(DEVICE))
    lines = torch.tensor([4, 1], device=DEVICE)
    sizes, zeros = numbers([9, 6]), numbers([0, 0])
    step = ledger.dispatch(lines, zeros, sizes)
    assert step.sequence_lengths.tolist() == [9, 6] and step.num_tokens_before.tolist() == [9, 6]
    ledger.settle(lines, step, sizes, zeros, numbers([1, 1]), numbers([1, 1]), numbers([0, 1]))
    for line, one in enumerate(before):
        expected: Any = one
        if line in (1, 4):
            expected = plain(accounting.schedule)(plain(accounting.draft)(one, rules, 0), rules, 5 + line)
            expected = plain(accounting.output)(expected, rules, 5 + line, 0, 0, 1, int(line == 1))
        assert load_plain(ledger.table.cpu().numpy(), line) == expected
    # The line that stopped is left alone by a step that the host had dispatched before it knew.
    held = ledger.table[:, 1].tolist()
    again = ledger.dispatch(lines, numbers([2, 2]), numbers([3, 3]))
    assert again.is_live.tolist() == [True, False] and again.sequence_lengths.tolist() == [12, 0]
    ledger.settle(lines, again, numbers([3, 3]), numbers([2, 2]), numbers([1, 1]), numbers([1, 1]), zeros)
    assert ledger.table[:, 1].tolist() == held


def test_counters_up_to_the_largest_model_length_stay_32_bits() -> None:
    """Near 2**31 no sum leaves int32 (T11): a step of a request of almost so many tokens."""
    rules = Rules(4, 16, True, 0)
    ledger, length = DeviceLedger(1, rules, DEVICE), 2**31 - 64
    one = initial(length)._replace(status=RUNNING, num_computed_tokens=length - 1)
    line = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    ledger.start(line, torch.from_numpy(table([one]).astype(np.int32)).to(DEVICE))
    expected: Any = one
    for most_accepted in (0, 4, 2):
        drafts = expected.num_draft_tokens
        accepted = min(most_accepted, drafts)
        sizes = numbers([1 + drafts])
        step = ledger.dispatch(line, numbers([drafts]), sizes)
        count = numbers([accepted + 1])
        ledger.settle(line, step, sizes, numbers([drafts]), count, count, numbers([0]))
        expected = plain(accounting.schedule)(expected, rules, 1 + drafts)
        expected = plain(accounting.output)(expected, rules, 1 + drafts, drafts, accepted, accepted + 1, 0)
        found = load_plain(ledger.table.cpu().numpy(), 0)
        assert found._replace(num_registered_tokens=0) == expected._replace(num_registered_tokens=0)
        assert ledger.table.dtype == torch.int32 and int(ledger.table.min()) >= 0
