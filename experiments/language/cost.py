"""The costs of a step of private training: operations and memory, from shapes alone.

    cost = step_cost(PRESETS["124M"], num_units=256, length=1024, microbatch_size=4)
    print(cost)
    cost.flops_per_token, cost.peak_bytes, cost.mfu(seconds=2.5, device_flops=989e12)

The operations are those of gdpjax's engine. For each unit there is one forward and one backward pass, in which the
values inside of a layer are computed again. Then the gradient of each weight is formed: one product of the activations
and cotangents at all positions, as without privacy, of which the norm is taken and which is added to the sum. There is
no second backward pass. Noise and the optimizer cost something for each parameter, once a step.

The model of the memory follows what XLA allocates, which it may do in many ways: it was fitted to a few programs that
were compiled for CPUs, and holds for others within some 20 % (tests/language/test_cost.py compiles some of them).
Compilers for accelerators may fuse more. That of CPUs has no products in bfloat16, and keeps a frozen base in float32
beside the one that it was given: add 4 bytes for each of its parameters there.
"""

import dataclasses
import math
from typing import Any

from experiments.errors import UserError
from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig, adapted_paths
from experiments.language.model import param_shapes

# Operations that are not matrix products, for each entry of an array. Counted in programs that XLA compiled.
_SCORE_FLOPS = 20
"""Mask, softmax, and their derivatives, with recomputation."""
_ACTIVATION_FLOPS = 6
"""Norms, rotations, gates and residual sums, with derivatives and recomputation."""
_LOGIT_FLOPS = 8
"""Softmax and cross entropy."""
_CLIP_FLOPS = 8
"""The norm of a formed gradient, and its weighted addition to the sum."""
_NOISE_FLOPS = 105
"""Random bits, which are counted like other operations, and the inverse of the normal tail."""
_OPTIMIZER_FLOPS = 16
"""Adam."""

# Copies of arrays that are alive at the same time.
_LAYER_COPIES = 2
"""Values inside of a layer, and their cotangents."""
_SCORE_COPIES = 4
"""Scores, probabilities and their cotangents, in float32."""
_LOGIT_COPIES = 2
"""Logits and their cotangents, in float32."""

_DONATED_COPIES = 3.5
"""The noisy mean and the new state, where the latter takes the place of the old one in the end."""

_FLOAT32_BYTES = 4
_BYTES = {"float32": 4, "bfloat16": 2}

STRATEGIES = ("auto", "microbatch")
"""The strategies of `gdpjax.clipped_grad` that are modelled."""


@dataclasses.dataclass(frozen=True)
class PartCost:
    """Operations of one part of the model, in all layers and for all units of a step.

    Attributes:
      name: the part.
      num_params: its parameters, trained or not.
      num_trained: its trained parameters, adapters included.
      gradient: how the gradient of one unit is held: "formed", "table rows", or "" if it is not trained.
      forward: operations of the forward pass.
      backward: operations for the cotangents of activations.
      recompute: operations of the forward pass that the backward pass does again.
      weight_gradient: operations for the sums of gradients: the products of activations and cotangents.
      clipping: operations that only privacy needs: norms, and weights of units.
    """

    name: str
    num_params: int
    num_trained: int
    gradient: str
    forward: float
    backward: float
    recompute: float
    weight_gradient: float
    clipping: float

    @property
    def flops(self) -> float:
        """All operations."""
        return self.forward + self.backward + self.recompute + self.weight_gradient + self.clipping


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one step; ``print`` it for a table.

    Attributes:
      parts: the operations of each part of the model.
      noise_flops: operations of the noise.
      optimizer_flops: operations of the optimizer.
      num_tokens: tokens of a step, padding included.
      arguments: bytes that are there before a step: "parameters", "frozen parameters", "optimizer", "state kept".
      gradient_memory: bytes of a step until the sum is there, beside the arguments: "sum", "unit gradients",
        "factors", "activations", "casts".
      update_memory: bytes of a step from then on, beside the arguments: "noise" and "new state".
      activation_bytes: bytes of the activations of the units that are taken at a time, when they are most. In
        ``gradient_memory`` there are fewer where they are gone before the most memory is needed.
    """

    parts: tuple[PartCost, ...]
    noise_flops: float
    optimizer_flops: float
    num_tokens: int
    arguments: dict[str, float]
    gradient_memory: dict[str, float]
    update_memory: dict[str, float]
    activation_bytes: float

    @property
    def flops(self) -> float:
        """All operations of a step."""
        return sum(part.flops for part in self.parts) + self.noise_flops + self.optimizer_flops

    @property
    def model_flops(self) -> float:
        """The operations that any training needs: without recomputation, clipping, noise and optimizer."""
        return sum(part.forward + part.backward + part.weight_gradient for part in self.parts)

    @property
    def flops_per_token(self) -> float:
        """All operations of a step, for each of its tokens."""
        return self.flops / self.num_tokens

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a step until the sum is there, beside the arguments."""
        return sum(self.gradient_memory.values())

    @property
    def update_bytes(self) -> float:
        """Bytes of the noise and of the new state, beside the arguments."""
        return sum(self.update_memory.values())

    @property
    def peak_bytes(self) -> float:
        """The largest number of bytes that are held at a time."""
        return sum(self.arguments.values()) + max(self.gradient_bytes, self.update_bytes)

    def fits(self, device_bytes: float) -> bool:
        """Return whether a device with so many bytes is large enough.

        >>> from experiments.language.config import PRESETS
        >>> for name in ("124M", "1B", "7B"):
        ...     full = step_cost(PRESETS[name], num_units=1024, length=1024)
        ...     adapters = step_cost(PRESETS[name], num_units=1024, length=1024, lora=LoraConfig(rank=16))
        ...     print(f"{name:4} {full.peak_bytes / 1e9:5.1f} {full.fits(80e9)} {adapters.peak_bytes / 1e9:4.1f} GB")
        124M   3.5 True  0.8 GB
        1B    30.8 True  3.3 GB
        7B   188.7 False 15.8 GB
        """
        return self.peak_bytes <= device_bytes

    def seconds(self, flops_per_second: float) -> float:
        """Return how long a step takes at so many operations a second."""
        return self.flops / _positive("flops_per_second", flops_per_second)

    def mfu(self, seconds: float, device_flops: float) -> float:
        """Return the model flops utilisation of a step: `model_flops` over what the device could do in that time.

        Args:
          seconds: how long the step took.
          device_flops: operations that the device can do in a second.

        Reference: Chowdhery et al., arXiv:2204.02311, appendix B.
        """
        return self.model_flops / (_positive("seconds", seconds) * _positive("device_flops", device_flops))

    def __str__(self) -> str:
        head = ("part", "parameters", "trained", "gradient", "forward", "backward", "recompute", "weights", "clipping")
        rows: list[tuple[str, ...]] = [head]
        for part in self.parts:
            flops = (part.forward, part.backward, part.recompute, part.weight_gradient, part.clipping)
            cells = [f"{value / 1e9:,.1f}" for value in flops]
            rows.append((part.name, f"{part.num_params:,}", f"{part.num_trained:,}", part.gradient, *cells))
        lines = _aligned(rows)
        lines.append("operations in units of 10^9")
        lines.append(f"noise {self.noise_flops / 1e9:,.1f}, optimizer {self.optimizer_flops / 1e9:,.1f}")
        lines.append(f"all {self.flops / 1e9:,.1f}, {self.flops_per_token / 1e6:,.1f} million for each token")
        lines.append("")

        memory: list[tuple[str, ...]] = [("memory", "GiB")]
        for group in (self.arguments, self.gradient_memory, self.update_memory):
            for name, num_bytes in group.items():
                memory.append((name, _in_gib(num_bytes)))
        lines.extend(_aligned(memory))
        lines.append(
            f"peak {_in_gib(self.peak_bytes)} GiB, the larger of {_in_gib(self.gradient_bytes)} until the sum is there "
            f"and {_in_gib(self.update_bytes)} afterwards, beside the arguments"
        )
        return "\n".join(lines)


def step_cost(
    config: ModelConfig,
    *,
    num_units: int,
    length: int,
    num_sequences: int = 1,
    microbatch_size: int = 1,
    strategy: str = "auto",
    lora: LoraConfig | None = None,
    frozen_dtype: str = "bfloat16",
    optimizer_slots: int = 2,
    donated: bool = False,
) -> StepCost:
    """Return what one private step costs.

    Args:
      config: the shape of the model.
      num_units: units that are computed in a step: the plan's capacity, or what is expected where chunks of padding are
        skipped.
      length: tokens of a sequence.
      num_sequences: sequences of a unit.
      microbatch_size: units that are taken at a time.
      strategy: of `gdpjax.clipped_grad`. "microbatch" lets JAX form all gradients; "auto" reads them off factors.
      lora: the adapters, of which alone the parameters consist then; the base is an argument of the loss.
      frozen_dtype: the type of a frozen base.
      optimizer_slots: arrays that the optimizer keeps for each parameter: 2 for Adam, 0 for SGD.
      donated: whether the new state takes the place of the old one, as in a run in a folder, which also keeps what is
        trained as it was at its last checkpoint. Otherwise both states are there until a step is done.

    Raises:
      UserError: a number out of range.

    >>> from experiments.language.config import PRESETS
    >>> cost = step_cost(PRESETS["124M"], num_units=8, length=1024, strategy="microbatch")
    >>> round(cost.flops_per_token / PRESETS["124M"].num_params, 1)  # 6 and recomputation, attention, clipping
    8.3
    """
    for name, value in (
        ("num_units", num_units),
        ("length", length),
        ("num_sequences", num_sequences),
        ("microbatch_size", microbatch_size),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"expected {name} to be a whole number of at least 1, got {value!r}")
    if strategy not in STRATEGIES:
        raise UserError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")
    if frozen_dtype not in _BYTES:
        raise UserError(f"expected a frozen_dtype of {', '.join(_BYTES)}, got {frozen_dtype!r}")
    if not isinstance(optimizer_slots, int) or optimizer_slots < 0:
        raise UserError(f"expected optimizer_slots to be a whole number of at least 0, got {optimizer_slots!r}")

    unit = _Unit(config, length, num_sequences, strategy, lora)
    parts = tuple(unit.parts(num_units))
    num_trained = sum(part.num_trained for part in parts)

    # The state: parameters in float32 with what the optimizer keeps of them, and a frozen base.
    trained_bytes = float(_FLOAT32_BYTES * num_trained)
    arguments = {"parameters": trained_bytes, "optimizer": optimizer_slots * trained_bytes}
    if lora is not None:
        arguments["frozen parameters"] = float(_BYTES[frozen_dtype] * config.num_params)

    # Chunks of units are added to the sum. Then noise is added, and the new state is made.
    rows = min(microbatch_size, num_units)
    held_dtype = "float32" if lora is None else frozen_dtype
    gradient_memory = {"sum": trained_bytes, **unit.memory(rows), "casts": unit.cast_bytes(held_dtype)}
    update_memory = {"noise": trained_bytes}
    if donated:
        arguments["state kept"] = (1 + optimizer_slots) * trained_bytes
        update_memory["noise"] = _DONATED_COPIES * trained_bytes
    else:
        # The program returns a copy of the frozen base as well.
        update_memory["new state"] = (1 + optimizer_slots) * trained_bytes + arguments.get("frozen parameters", 0.0)
    return StepCost(
        parts=parts,
        noise_flops=float(_NOISE_FLOPS * num_trained),
        optimizer_flops=float(_OPTIMIZER_FLOPS * num_trained),
        num_tokens=num_units * num_sequences * length,
        arguments=arguments,
        gradient_memory=gradient_memory,
        update_memory=update_memory,
        activation_bytes=rows * unit.activation_bytes(),
    )


def largest_microbatch(config: ModelConfig, device_bytes: float, *, num_units: int, **options: Any) -> int:
    """Return how many units can be taken at a time on a device with so many bytes; 0 if not even one fits.

    Memory never shrinks with the units that are taken at a time, so that the answer is found by bisection.

    Args:
      config: the shape of the model.
      device_bytes: bytes of the device.
      num_units: units of a step, which is the largest answer.
      **options: those of `step_cost`, without ``microbatch_size``.

    >>> from experiments.language.config import PRESETS
    >>> largest_microbatch(PRESETS["7B"], 80e9, num_units=1024, length=1024)
    0
    >>> largest_microbatch(PRESETS["tiny"], 80e9, num_units=8, length=128)
    8
    """
    _positive("device_bytes", device_bytes)

    def fits(size: int) -> bool:
        cost = step_cost(config, num_units=num_units, microbatch_size=size, **options)
        return cost.fits(device_bytes)

    if not fits(1):
        return 0

    # The answer is at least `fitting`, and less than `too_large`.
    fitting, too_large = 1, num_units + 1
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


@dataclasses.dataclass(frozen=True)
class _Weight:
    """A weight that is multiplied by activations.

    Attributes:
      name: its name in the table.
      inputs, outputs: its shape.
      num_blocks: how many layers have one.
      is_tied: whether it is a table that is looked up too.
      rank: the rank of its adapter; None if the weight itself is trained, 0 if it is frozen.
      is_recomputed: whether the backward pass computes its product again.
    """

    name: str
    inputs: int
    outputs: int
    num_blocks: int
    is_tied: bool
    rank: int | None
    is_recomputed: bool

    @property
    def size(self) -> int:
        """The number of entries, in all blocks."""
        return self.num_blocks * self.inputs * self.outputs

    def trained(self) -> list[tuple[int, int]]:
        """Return the shapes of what is trained, in one block."""
        if self.rank is None:
            return [(self.inputs, self.outputs)]
        if self.rank == 0:
            return []
        return [(self.inputs, self.rank), (self.rank, self.outputs)]


@dataclasses.dataclass(frozen=True)
class _Unit:
    """The computation for one unit of privacy.

    Attributes:
      config: the shape of the model.
      length: tokens of a sequence.
      num_sequences: sequences of a unit.
      strategy: how gradients are computed.
      lora: the adapters.
    """

    config: ModelConfig
    length: int
    num_sequences: int
    strategy: str
    lora: LoraConfig | None

    @property
    def positions(self) -> int:
        """The tokens of a unit, which are the positions at which each weight is used."""
        return self.num_sequences * self.length

    @property
    def scores(self) -> int:
        """The entries of the attention's scores of one layer."""
        return self.num_sequences * self.config.num_heads * self.length**2

    @property
    def layer_width(self) -> int:
        """The entries of all values inside of a layer, for one token."""
        config = self.config
        queries = config.num_heads * config.head_width
        keys = config.num_kv_heads * config.head_width
        return 4 * config.model_width + 2 * queries + 2 * keys + 4 * config.hidden_width

    def weights(self) -> list[_Weight]:
        """Return the weights of the layers, and the head."""
        config = self.config
        adapted = [] if self.lora is None else adapted_paths(param_shapes(config), self.lora)

        def rank_of(path: str) -> int | None:
            if self.lora is None:
                return None
            return self.lora.rank if path in adapted else 0

        weights = []
        for name, (inputs, outputs) in config.weight_shapes.items():
            # The last product of a layer is needed by no derivative inside of it.
            is_recomputed = config.remat and name != "feed_forward/down"
            rank = rank_of(f"layers/{name}")
            weights.append(_Weight(name, inputs, outputs, config.num_layers, False, rank, is_recomputed))
        head = rank_of("head")
        weights.append(_Weight("head", config.model_width, config.vocab_size, 1, config.tied_head, head, False))
        return weights

    # Operations.

    def parts(self, num_units: int) -> list[PartCost]:
        """Return the operations for all units."""
        parts = [self._table(), *(self._weight(weight) for weight in self.weights()), self._attention(), self._others()]
        return [_times(part, num_units) for part in parts]

    def _weight(self, weight: _Weight) -> PartCost:
        """Return the operations of the products with one weight, in all layers."""
        positions, blocks = self.positions, weight.num_blocks
        product = 2.0 * positions * weight.size
        forward = backward = product
        recompute = product if weight.is_recomputed else 0.0
        num_trained = 0
        weight_gradient = clipping = 0.0
        gradient = ""
        for inputs, outputs in weight.trained():
            size = blocks * inputs * outputs
            num_trained += size
            one_product = 2.0 * positions * size
            weight_gradient += one_product
            if weight.rank is not None:
                # An adapter is a further product, forward and backward.
                forward += one_product
                backward += one_product
                recompute += one_product if self.config.remat and blocks > 1 else 0.0
            gradient = "formed"
            clipping += _CLIP_FLOPS * size

        # A tied head has no parameters of its own.
        is_tied = weight.is_tied
        num_params = 0 if is_tied else weight.size
        return PartCost(
            weight.name,
            num_params,
            0 if is_tied and weight.rank is None else num_trained,
            gradient,
            forward,
            backward,
            recompute,
            weight_gradient,
            clipping,
        )

    def _table(self) -> PartCost:
        """Return the operations of looking up embeddings, which are additions in the backward pass."""
        size = self.config.vocab_size * self.config.model_width
        looked_up = float(self.positions * self.config.model_width)
        if self.lora is not None:
            return PartCost("embedding", size, 0, "", 0.0, 0.0, 0.0, 0.0, 0.0)
        gradient, clipping = "with the head", 0.0
        if not self.config.tied_head:
            is_kept = self.strategy == "auto"
            gradient = "table rows" if is_kept else "formed"
            clipping = _CLIP_FLOPS * (looked_up if is_kept else float(size))
        return PartCost("embedding", size, size, gradient, 0.0, looked_up, 0.0, 0.0, clipping)

    def _attention(self) -> PartCost:
        """Return the operations of the products of queries, keys and values, which have no parameters."""
        forward = 4.0 * self.config.num_layers * self.scores * self.config.head_width
        recompute = forward if self.config.remat else 0.0
        return PartCost("scores", 0, 0, "", forward, 2 * forward, recompute, 0.0, 0.0)

    def _others(self) -> PartCost:
        """Return the operations that are not matrix products."""
        config = self.config
        norms = (2 * config.num_layers + 1) * config.model_width
        of_scores = _SCORE_FLOPS * config.num_layers * self.scores
        of_layers = _ACTIVATION_FLOPS * config.num_layers * self.positions * self.layer_width
        of_logits = _LOGIT_FLOPS * self.positions * config.vocab_size

        # A half of them is counted as forward, although it is not known which.
        half = float(of_scores + of_layers + of_logits) / 2
        num_trained = norms if self.lora is None else 0
        gradient = "formed" if num_trained else ""
        return PartCost("norms and others", norms, num_trained, gradient, half, half, 0.0, 0.0, 0.0)

    # Memory.

    def activation_bytes(self) -> float:
        """Return the bytes of one unit's activations at their peak."""
        config = self.config
        width = _BYTES[config.compute_dtype]
        carried = width * config.num_layers * self.positions * config.model_width
        in_layer = width * self.positions * self.layer_width
        scores = _FLOAT32_BYTES * self.scores
        if not config.remat:
            carried += config.num_layers * (in_layer + 2 * scores)
        of_layer = _LAYER_COPIES * in_layer + _SCORE_COPIES * scores
        of_head = _LOGIT_COPIES * _FLOAT32_BYTES * self.positions * config.vocab_size
        return float(carried + max(of_layer, of_head))

    def cast_bytes(self, held_dtype: str) -> float:
        """Return the bytes of weights that are cast to the type of the products.

        Of weights that are trained these are the table or head, and one layer. A frozen base is the same for all units,
        and the compiler casts all of it before the loop over them.
        """
        config = self.config
        if held_dtype == config.compute_dtype:
            return 0.0
        if self.lora is not None:
            return float(_BYTES[config.compute_dtype] * config.num_params)
        table = config.vocab_size * config.model_width
        return float(_BYTES[config.compute_dtype] * (table + config.num_layer_params))

    def memory(self, rows: int) -> dict[str, float]:
        """Return the bytes of the gradients and activations of a chunk of units, at their peak."""
        config = self.config
        width = _BYTES[config.compute_dtype]
        formed = formed_in_layers = factors = 0.0
        for weight in self.weights():
            for inputs, outputs in weight.trained():
                size = weight.num_blocks * inputs * outputs
                formed += _FLOAT32_BYTES * size
                if weight.name != "head":
                    formed_in_layers += _FLOAT32_BYTES * size

                # The activations and the cotangents at each position.
                cotangent = _FLOAT32_BYTES if weight.name == "head" else width
                factors += weight.num_blocks * self.positions * (width * inputs + cotangent * outputs)
        if self.lora is None and not config.tied_head:
            if self.strategy == "auto":
                factors += _FLOAT32_BYTES * self.positions * config.model_width
            else:
                formed += _FLOAT32_BYTES * config.vocab_size * config.model_width

        # Formed gradients are held until they are clipped. Those of the layers are held twice when a loop hands them
        # over, but then activations are no longer needed.
        activations = self.activation_bytes()
        if self.strategy == "microbatch":
            return {
                "unit gradients": rows * formed,
                "factors": 0.0,
                "activations": rows * max(activations, formed_in_layers),
            }

        # Activations are needed until all factors are there, and then gradients are formed of the factors.
        phases = [
            {"unit gradients": 0.0, "factors": rows * factors, "activations": rows * activations},
            {"unit gradients": rows * formed, "factors": rows * factors, "activations": 0.0},
            {"unit gradients": rows * (formed + formed_in_layers), "factors": 0.0, "activations": 0.0},
        ]
        return max(phases, key=lambda phase: sum(phase.values()))


def _times(part: PartCost, num_units: int) -> PartCost:
    """Return the operations for so many units."""
    return dataclasses.replace(
        part,
        forward=num_units * part.forward,
        backward=num_units * part.backward,
        recompute=num_units * part.recompute,
        weight_gradient=num_units * part.weight_gradient,
        clipping=num_units * part.clipping,
    )


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"expected {name} to be a positive number, got {value!r}")
    return value


def _in_gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.2f}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return lines in which the cells of a column have one width: names to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines
