"""Does a recurrent state follow the accepted tokens? Against dense recomputation; faults must show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.gpu.attention_world import DEVICE, dense, difference  # noqa: E402
from tests.gpu.hybrid_truth import (  # noqa: E402
    NUM_DRAFTS,
    SHAPE,
    VOCAB_SIZE,
    Model,
    dense_recurrence,
)
from tests.gpu.hybrid_world import TOLERANCE, Arrival, Engine, WrongState  # noqa: E402
from torch.nn import functional  # noqa: E402

from draftproof.gpu.attention import StepRows  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.hybrid import HybridDecoder  # noqa: E402
from draftproof.gpu.recurrent import StateMoves, StateRows  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """Its tensors are so small that threads would only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Model()
    torch.set_num_threads(num_threads)


def arrivals(model: Model, seed: int = 3) -> list[Arrival]:
    """Prompts that begin alike, some of them with what an earlier request has said, and some sessions."""
    numbers = np.random.default_rng(seed)
    shared = numbers.integers(0, VOCAB_SIZE, 28).tolist()
    found: list[Arrival] = []
    turn = 0
    for index in range(9):
        prompt = [*shared[: numbers.integers(16, 29)], *[index] * int(numbers.integers(0, 5))]
        if index > 3:
            earlier = found[int(numbers.integers(0, index - 3))]
            said = model.truth(earlier.prompt, earlier.max_tokens).output
            prompt = [*earlier.prompt, *said, index][:50]
        max_tokens = min(int(numbers.integers(6, 20)), 63 - len(prompt))
        num_chunks = (63 - len(prompt) - max_tokens) // (max_tokens + 6)
        chunks = ([index] * 3, shared[:6])[: max(num_chunks, 0)]
        found.append(Arrival(turn, prompt, max_tokens, chunks if index % 3 == 1 else ()))
        turn += int(numbers.integers(2, 8))
    return found


# ---- whole runs


@pytest.mark.parametrize("group_block_size", [8, 16])
@modes
def test_what_a_scheduler_drives_equals_dense_recomputation(
    model: Model, asynchronous: bool, group_block_size: int
) -> None:
    """Chunks, drafts kept and rejected, hits on kept states, copies, preemptions, sessions; freed blocks
    poisoned; steps ahead of the host, under a guard that lets nothing be read."""
    engine = Engine(model, asynchronous=asynchronous, group_block_size=group_block_size)
    engine.run(arrivals(model))
    assert engine.largest < TOLERANCE
    expected = ["chunks", "hits", "copies", "preemptions", "accepted", "rejected"]
    expected.append("stop inside an accepted run")
    if asynchronous:
        expected += ["slot of the device", "ahead of the host"]
    else:
        expected += ["another slot", "another slot, no drafts", "turns"]
    for what in expected:
        assert engine.did[what] > 0, what


@modes
def test_other_requests_in_other_pools(model: Model, asynchronous: bool) -> None:
    for seed in (1, 2):
        engine = Engine(model, asynchronous=asynchronous, num_blocks=26 + 4 * seed)
        engine.num_padding_rows = seed % 2
        engine.run(arrivals(model, seed))
        assert engine.largest < TOLERANCE


# ---- faults


class AlwaysSlotZero(Engine):
    """As if every draft had been rejected."""

    def state_rows(self, lines: Any) -> StateRows:
        rows = super().state_rows(lines)
        return rows._replace(source_slots=torch.zeros_like(rows.source_slots))


class AlwaysLastSlot(Engine):
    """As if every draft had been accepted: of a draft that was rejected the state keeps something."""

    def moves(self, states: StateRows, rows: StepRows) -> StateMoves:
        self.device.accepted_slots.copy_(torch.where(self.device.accepted_slots > 0, NUM_DRAFTS, 0))
        return super().moves(states, rows)


class SlotZeroWithoutDrafts(Engine):
    """As vLLM #56531: a row without drafts of its own starts from slot 0."""

    def state_rows(self, lines: Any) -> StateRows:
        rows = super().state_rows(lines)
        return rows._replace(source_slots=torch.where(rows.num_drafts == 0, 0, rows.source_slots))


class NotCleared(Engine):
    """A row that starts anew takes over what its block held."""

    def poison(self) -> None:
        """Not even NaN is needed to see it."""

    def state_rows(self, lines: Any) -> StateRows:
        rows = super().state_rows(lines)
        return rows._replace(starts_anew=torch.zeros_like(rows.starts_anew))


class NotedOnlyWhenSampled(Engine):
    """Behind a prefill chunk a row starts from the slot of its earlier life."""

    def note_accepted(self, states: StateRows, num_sampled: Any) -> None:
        slots = self.device.accepted_slots
        before = slots.index_select(0, states.row_ids) + 1
        super().note_accepted(states, torch.where(num_sampled > 0, num_sampled, before))


class NotCopied(Engine):
    def copy(self, copies: Any) -> None:
        pass


class NotKept(Engine):
    """States at boundaries are not written."""

    def moves(self, states: StateRows, rows: StepRows) -> StateMoves:
        moves = super().moves(states, rows)
        targets = moves.targets.view(-1, NUM_DRAFTS + 2).clone()
        targets[:, -1] = 0
        return moves._replace(targets=targets.flatten())


class HostLengths(Engine):
    """Boundaries by the host's count, which takes drafts in flight for accepted."""

    host_lengths: Any = None

    def at_lengths(self, rows: StepRows, lengths: Any) -> StepRows:
        self.host_lengths = rows.sequence_lengths
        return super().at_lengths(rows, lengths)

    def moves(self, states: StateRows, rows: StepRows) -> StateMoves:
        return super().moves(states, rows._replace(sequence_lengths=self.host_lengths))


FAULTS = (
    (AlwaysSlotZero, False), (AlwaysSlotZero, True), (AlwaysLastSlot, True), (SlotZeroWithoutDrafts, False),
    (NotCleared, False), (NotCleared, True), (NotCopied, False), (NotCopied, True),
    (NotKept, False), (NotKept, True), (HostLengths, True), (NotedOnlyWhenSampled, True),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "asynchronous"), FAULTS)
def test_a_wrong_state_shows(model: Model, kind: type[Engine], asynchronous: bool) -> None:
    # In the second pool more stays findable.
    with pytest.raises(WrongState):
        for num_blocks in (26, 40):
            kind(model, asynchronous=asynchronous, num_blocks=num_blocks).run(arrivals(model))


# ---- the model


TOKENS = torch.arange(20, device=DEVICE) * 7 % VOCAB_SIZE


def attend_densely(layer: int, query: Any, key: Any, value: Any) -> Any:
    return dense(query, key, value, 2).to(query.dtype)


def test_recurrent_layers_compute_what_is_written_down(model: Model) -> None:
    """Once more, from the weights by name, in float64; attention layers attend to nothing."""
    weights = {name: tensor.double() for name, tensor in random_weights(SHAPE, 5, device=DEVICE).items()}

    def norm(hidden: Any, weight: Any) -> Any:
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + SHAPE.rms_norm_eps) * weight

    hidden = weights["model.embed_tokens.weight"][TOKENS]
    for layer in range(SHAPE.num_layers):
        prefix = f"model.layers.{layer}."
        if layer in SHAPE.recurrent_layers:
            hidden = hidden + mixed(norm(hidden, weights[prefix + "input_layernorm.weight"]), weights, prefix)
        normed = norm(hidden, weights[prefix + "post_attention_layernorm.weight"])
        gate, up, down = [weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
        hidden = hidden + (functional.silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    called: list[tuple[str, int]] = []

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
        called.append(("attend", layer))
        return torch.zeros_like(query)

    def recur(layer: int, decay: Any, update: Any) -> Any:
        called.append(("recur", layer))
        return dense_recurrence(layer, decay, update)

    places = torch.arange(len(TOKENS), device=DEVICE)
    found = model.decoder.forward(TOKENS, places, attend, recur)
    assert difference(found, norm(hidden, weights["model.norm.weight"])) < 1e-5
    # Each with its index among its kind: that is what the caches are sized by.
    assert called == [("recur", 0), ("attend", 0), ("recur", 1), ("attend", 1)]


def mixed(normed: Any, weights: dict[str, Any], prefix: str) -> Any:
    """What a recurrent layer adds, token by token."""

    def projected(name: str) -> Any:
        bias = weights.get(f"{prefix}recurrent.{name}_proj.bias", 0)
        return normed @ weights[f"{prefix}recurrent.{name}_proj.weight"].T + bias

    value, gate = projected("input"), functional.silu(projected("gate"))
    entry, decay = torch.sigmoid(projected("input_gate")), torch.sigmoid(projected("decay")) ** (1 / 16)
    state, states = torch.zeros_like(value[0]), []
    for token in range(len(normed)):
        state = decay[token] * state + (1 - decay[token] ** 2).sqrt() * entry[token] * value[token]
        states.append(state)
    return (gate * torch.stack(states)) @ weights[prefix + "recurrent.output_proj.weight"].T


def test_attention_layers_are_those_of_the_plain_decoder() -> None:
    """With recurrent layers that add nothing, the rest is a decoder of the attention layers alone."""
    weights = random_weights(SHAPE, 5, device=DEVICE)
    for layer in SHAPE.recurrent_layers:
        weights[f"model.layers.{layer}.recurrent.output_proj.weight"].zero_()
        weights[f"model.layers.{layer}.mlp.down_proj.weight"].zero_()
    part = SHAPE.attention_part()
    renamed = {
        name: weights[name.replace("layers.1.", "layers.3.").replace("layers.0.", "layers.1.")]
        for name in part.tensor_shapes()
    }
    places = torch.arange(len(TOKENS), device=DEVICE)
    plain = Decoder(part, renamed).forward(TOKENS, places, attend_densely)
    hybrid = HybridDecoder(SHAPE, weights).forward(TOKENS, places, attend_densely, dense_recurrence)
    assert torch.equal(hybrid, plain)


def test_states_are_float32_under_other_weights(model: Model) -> None:
    decoder = HybridDecoder(SHAPE, random_weights(SHAPE, 5, torch.bfloat16, DEVICE))
    dtypes: set[Any] = set()

    def recur(layer: int, decay: Any, update: Any) -> Any:
        dtypes.update((decay.dtype, update.dtype))
        return dense_recurrence(layer, decay, update)

    places = torch.arange(len(TOKENS), device=DEVICE)
    hidden = decoder.forward(TOKENS, places, attend_densely, recur)
    assert hidden.dtype == torch.bfloat16 and dtypes == {torch.float32}
    # Of numbers around one: a few roundings to eight bits.
    assert difference(hidden, model.dense(TOKENS.tolist())) < 0.2


def test_the_shape_says_which_layers_have_what() -> None:
    assert SHAPE.attention_layers == (1, 3) and SHAPE.num_recurrent_layers == 2
    assert SHAPE.attention_part().num_layers == 2
    names = SHAPE.tensor_shapes()
    assert "model.layers.0.recurrent.decay_proj.bias" in names
    assert "model.layers.0.self_attn.q_proj.weight" not in names
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert "model.layers.1.recurrent.decay_proj.bias" not in names
    bad: Any
    for bad in ((), (0, 1, 2, 3), (2, 0), (0, 0), (0, 4), (-1,), [0], (True,)):
        with pytest.raises(ModelError, match="recurrent_layers must be some, not all, of the layers 0 to 3"):
            replace(SHAPE, recurrent_layers=bad)
    with pytest.raises(ModelError, match="recurrent_size must be an integer"):
        replace(SHAPE, recurrent_size=0)


def test_weights_that_do_not_fit_are_refused(model: Model) -> None:
    weights = random_weights(SHAPE, 5, device=DEVICE)
    name = "model.layers.2.recurrent.decay_proj.bias"
    attention = "model.layers.3.self_attn.q_proj.weight"
    bad: list[tuple[dict[str, Any], str]] = [
        ({one: tensor for one, tensor in weights.items() if one != name}, f"the weights lack {name}"),
        (weights | {"other": weights[name]}, "have an unknown tensor other"),
        (weights | {name: weights[name][1:]}, rf"{name} has shape \(23,\), but this model needs \(24,\)"),
        # Under the name that the user knows, not that of the attention part.
        (weights | {attention: weights[attention][1:]}, f"{attention} has shape"),
        (weights | {name: weights[name].double()}, f"{name} is torch.float64 on"),
        ({one: tensor.double() for one, tensor in weights.items()}, "must be float32, bfloat16 or float16"),
    ]
    for one, message in bad:
        with pytest.raises(ModelError, match=message):
            HybridDecoder(SHAPE, one)
    with pytest.raises(ModelError, match="give forward a `recur`"):
        model.decoder.forward(TOKENS, TOKENS, attend_densely)
