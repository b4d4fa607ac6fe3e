"""The costs of a step of private training: operations and memory, from shapes alone.

    cost = step_cost(PRESETS["124M"], num_units=256, length=1024, microbatch_size=4)
    cost.flops, cost.peak_bytes, cost.mfu(seconds=2.5, device_flops=989e12)

The operations are those of gdpjax's engine. For each unit there is one forward and one backward pass, in which the
values inside of a layer are computed again. Then the gradient of each weight is formed: one product of the activations
and cotangents at all positions, as without privacy, of which the norm is taken and which is added to the sum. There is
no second backward pass. Noise and the optimizer cost something for each parameter, once a step.

The model of the memory follows what XLA allocates, which it may do in many ways: it was fitted to a few programs that
were compiled for CPUs, and holds for others within some 20 % (tests/language/test_cost.py compiles some of them).
Compilers for accelerators may fuse more. That of CPUs has no products in bfloat16, and keeps a frozen base in float32
beside the one that it was given: add 4 bytes for each of its parameters there.
"""

import bisect
import dataclasses
from typing import Any, NamedTuple

from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig

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
_MOMENTS = 2
"""Arrays that Adam keeps for each parameter."""

_FLOAT32_BYTES = 4
_BYTES = {"float32": 4, "bfloat16": 2}

STRATEGIES = ("auto", "microbatch")
"""The strategies of `gdpjax.clipped_grad` that are modelled."""


class PartCost(NamedTuple):
    """Operations of one part of the model, in all layers and for all units of a step.

    Attributes:
      name: the part.
      num_params: its parameters, trained or not.
      num_trained: its trained parameters, adapters included.
      forward: operations of the forward pass.
      backward: operations for the cotangents of activations.
      recompute: operations of the forward pass that the backward pass does again.
      weight_gradient: operations for the sums of gradients: the products of activations and cotangents.
      clipping: operations that only privacy needs: norms, and weights of units.
    """

    name: str
    num_params: int = 0
    num_trained: int = 0
    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    weight_gradient: float = 0.0
    clipping: float = 0.0

    @property
    def model_flops(self) -> float:
        """The operations that any training needs."""
        return self.forward + self.backward + self.weight_gradient

    @property
    def flops(self) -> float:
        """All operations."""
        return self.model_flops + self.recompute + self.clipping


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one step.

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

    parts: list[PartCost]
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
        return sum(part.model_flops for part in self.parts)

    @property
    def gradient_bytes(self) -> float:
        """Bytes that are held until the sum is there, arguments included."""
        return sum(self.arguments.values()) + sum(self.gradient_memory.values())

    @property
    def update_bytes(self) -> float:
        """Bytes that are held for noise and update, arguments included."""
        return sum(self.arguments.values()) + sum(self.update_memory.values())

    @property
    def peak_bytes(self) -> float:
        """The largest number of bytes that are held at a time.

        >>> from experiments.language.config import PRESETS
        >>> for name in ("124M", "1B", "7B"):
        ...     full = step_cost(PRESETS[name], num_units=1024, length=1024)
        ...     adapters = step_cost(PRESETS[name], num_units=1024, length=1024, lora=LoraConfig(rank=16))
        ...     print(f"{name:4} {full.peak_bytes / 1e9:5.1f} GB, {adapters.peak_bytes / 1e9:4.1f} GB")
        124M   3.5 GB,  0.8 GB
        1B    30.8 GB,  4.5 GB
        7B   188.7 GB, 27.2 GB
        """
        return max(self.gradient_bytes, self.update_bytes)

    def mfu(self, seconds: float, device_flops: float) -> float:
        """Return the model flops utilisation of a step: `model_flops` over what the device could do in that time.

        Args:
          seconds: how long the step took.
          device_flops: operations that the device can do in a second.

        Reference: Chowdhery et al., arXiv:2204.02311, appendix B.
        """
        return self.model_flops / (seconds * device_flops)


def step_cost(
    config: ModelConfig,
    *,
    num_units: int,
    length: int,
    num_sequences: int = 1,
    microbatch_size: int = 1,
    strategy: str = "auto",
    lora: LoraConfig | None = None,
    donated: bool = False,
) -> StepCost:
    """Return what one private step of Adam costs.

    Args:
      config: the shape of the model.
      num_units: units that are computed in a step: the plan's capacity, or what is expected where chunks of padding are
        skipped.
      length: tokens of a sequence.
      num_sequences: sequences of a unit.
      microbatch_size: units that are taken at a time.
      strategy: of `gdpjax.clipped_grad`. "microbatch" lets JAX form all gradients; "auto" reads them off factors.
      lora: the adapters, of which alone the parameters consist then; the base, in bfloat16, is an argument of the loss.
      donated: whether the new state takes the place of the old one, as in a run in a folder, which also keeps what is
        trained as it was at its last checkpoint. Otherwise both states are there until a step is done.

    >>> from experiments.language.config import PRESETS
    >>> cost = step_cost(PRESETS["124M"], num_units=8, length=1024, strategy="microbatch")
    >>> round(cost.flops / cost.num_tokens / PRESETS["124M"].num_params, 1)  # 6 and recomputation, attention, clipping
    8.3
    """
    unit = _Unit(config, num_sequences * length, num_sequences * config.num_heads * length**2, strategy, lora)
    parts = [_times(part, num_units) for part in unit.parts()]
    num_trained = sum(part.num_trained for part in parts)

    # The state: parameters in float32 with what the optimizer keeps of them, and a frozen base.
    trained_bytes = float(_FLOAT32_BYTES * num_trained)
    arguments = {"parameters": trained_bytes, "optimizer": _MOMENTS * trained_bytes}
    if lora is not None:
        arguments["frozen parameters"] = float(_BYTES["bfloat16"] * config.num_params)

    # Chunks of units are added to the sum. Then noise is added, and the new state is made.
    rows = min(microbatch_size, num_units)
    update_memory = {"noise": trained_bytes}
    if donated:
        arguments["state kept"] = (1 + _MOMENTS) * trained_bytes
        update_memory["noise"] = _DONATED_COPIES * trained_bytes
    else:
        # The program returns a copy of the frozen base as well.
        update_memory["new state"] = (1 + _MOMENTS) * trained_bytes + arguments.get("frozen parameters", 0.0)
    return StepCost(
        parts=parts,
        noise_flops=float(_NOISE_FLOPS * num_trained),
        optimizer_flops=float(_OPTIMIZER_FLOPS * num_trained),
        num_tokens=num_units * num_sequences * length,
        arguments=arguments,
        gradient_memory={"sum": trained_bytes, **unit.memory(rows), "casts": unit.cast_bytes()},
        update_memory=update_memory,
        activation_bytes=rows * unit.activation_bytes(),
    )


def largest_microbatch(config: ModelConfig, device_bytes: float, *, num_units: int, **options: Any) -> int:
    """Return how many units can be taken at a time on a device with so many bytes; 0 if not even one fits.

    ``options`` are those of `step_cost`. Memory never shrinks with the units that are taken at a time, so that the
    answer is found by bisection.

    >>> from experiments.language.config import PRESETS
    >>> largest_microbatch(PRESETS["7B"], 80e9, num_units=1024, length=1024)
    0
    >>> largest_microbatch(PRESETS["tiny"], 80e9, num_units=8, length=128)
    8
    """

    def needed(size: int) -> float:
        return step_cost(config, num_units=num_units, microbatch_size=size, **options).peak_bytes

    return bisect.bisect_right(range(1, num_units + 1), device_bytes, key=needed)


class _Weight(NamedTuple):
    """A weight that is multiplied by activations.

    Attributes:
      name: its name in the table.
      num_blocks: how many layers have one.
      inputs, outputs: its shape.
      trained: the shapes of what is trained in one block: the weight itself, the two parts of its adapter, or nothing.
    """

    name: str
    num_blocks: int
    inputs: int
    outputs: int
    trained: tuple[tuple[int, int], ...]


class _Unit(NamedTuple):
    """The computation for one unit of privacy.

    Attributes:
      config: the shape of the model.
      positions: the tokens of a unit, which are the positions at which each weight is used.
      scores: the entries of the attention's scores of one layer.
      strategy: how gradients are computed.
      lora: the adapters.
    """

    config: ModelConfig
    positions: int
    scores: int
    strategy: str
    lora: LoraConfig | None

    @property
    def layer_width(self) -> int:
        """The entries of all values inside of a layer, for one token."""
        config = self.config
        heads = config.num_heads + config.num_kv_heads
        return 4 * config.model_width + 2 * heads * config.head_width + 4 * config.hidden_width

    @property
    def table_size(self) -> int:
        """The entries of the table of embeddings."""
        return self.config.vocab_size * self.config.model_width

    def weights(self) -> list[_Weight]:
        """Return the weights of the layers, and the head."""
        config, lora = self.config, self.lora
        shapes = {f"layers/{name}": (config.num_layers, *shape) for name, shape in config.weight_shapes.items()}
        shapes["head"] = (1, config.model_width, config.vocab_size)
        weights = []
        for path, (num_blocks, inputs, outputs) in shapes.items():
            trained: tuple[tuple[int, int], ...] = ((inputs, outputs),)
            if lora is not None:
                is_table = path == "head" and config.tied_head
                is_adapted = lora.adapts(path) and not is_table
                trained = ((inputs, lora.rank), (lora.rank, outputs)) if is_adapted else ()
            weights.append(_Weight(path.removeprefix("layers/"), num_blocks, inputs, outputs, trained))
        return weights

    # Operations.

    def parts(self) -> list[PartCost]:
        """Return the operations for one unit."""
        config = self.config

        # The products of queries, keys and values have no parameters.
        attention = 4.0 * config.num_layers * self.scores * config.head_width
        scores = PartCost("scores", forward=attention, backward=2 * attention, recompute=attention)

        # What is no matrix product. A half is counted as forward, although it is not known which.
        norms = (2 * config.num_layers + 1) * config.model_width
        of_layers = _ACTIVATION_FLOPS * self.positions * self.layer_width + _SCORE_FLOPS * self.scores
        of_logits = _LOGIT_FLOPS * self.positions * config.vocab_size
        half = (config.num_layers * of_layers + of_logits) / 2
        trained_norms = norms if self.lora is None else 0
        others = PartCost("norms and others", norms, trained_norms, half, half)
        return [self._table(), *(self._weight(weight) for weight in self.weights()), scores, others]

    def _weight(self, weight: _Weight) -> PartCost:
        """Return the operations of the products with one weight, in all layers."""
        size = weight.num_blocks * weight.inputs * weight.outputs
        product = 2.0 * self.positions * size
        num_trained = weight.num_blocks * sum(inputs * outputs for inputs, outputs in weight.trained)
        of_trained = 2.0 * self.positions * num_trained

        # An adapter is a further product, forward and backward. The last product of a layer is needed by no derivative
        # inside of it, and is not computed again.
        of_adapter = 0.0 if self.lora is None else of_trained
        in_layer = weight.name != "head"
        recompute = product if in_layer and weight.name != "feed_forward/down" else 0.0

        # A tied head has no parameters of its own.
        is_tied = self.config.tied_head and not in_layer
        return PartCost(
            name=weight.name,
            num_params=0 if is_tied else size,
            num_trained=0 if is_tied else num_trained,
            forward=product + of_adapter,
            backward=product + of_adapter,
            recompute=recompute + of_adapter * in_layer,
            weight_gradient=of_trained,
            clipping=float(_CLIP_FLOPS * num_trained),
        )

    def _table(self) -> PartCost:
        """Return the operations of looking up embeddings, which are additions in the backward pass."""
        if self.lora is not None:
            return PartCost("embedding", self.table_size)
        looked_up = float(self.positions * self.config.model_width)
        clipping = 0.0
        if not self.config.tied_head:
            clipping = _CLIP_FLOPS * (looked_up if self.strategy == "auto" else float(self.table_size))
        return PartCost("embedding", self.table_size, self.table_size, backward=looked_up, clipping=clipping)

    # Memory.

    def activation_bytes(self) -> float:
        """Return the bytes of one unit's activations at their peak."""
        config = self.config
        width = _BYTES[config.compute_dtype]
        carried = width * config.num_layers * self.positions * config.model_width
        in_layer = width * self.positions * self.layer_width
        of_layer = _LAYER_COPIES * in_layer + _SCORE_COPIES * _FLOAT32_BYTES * self.scores
        of_head = _LOGIT_COPIES * _FLOAT32_BYTES * self.positions * config.vocab_size
        return float(carried + max(of_layer, of_head))

    def cast_bytes(self) -> float:
        """Return the bytes of weights that are cast to the type of the products.

        Of weights that are trained these are the table or head, and one layer. A frozen base is the same for all units,
        and the compiler casts all of it before the loop over them.
        """
        config = self.config
        held_dtype = "float32" if self.lora is None else "bfloat16"
        if held_dtype == config.compute_dtype:
            return 0.0
        num_cast = self.table_size + config.num_layer_params if self.lora is None else config.num_params
        return float(_BYTES[config.compute_dtype] * num_cast)

    def memory(self, rows: int) -> dict[str, float]:
        """Return the bytes of the gradients and activations of a chunk of units, at their peak."""
        config = self.config
        width = _BYTES[config.compute_dtype]
        in_layers = in_head = factors = 0.0
        for weight in self.weights():
            for inputs, outputs in weight.trained:
                size = weight.num_blocks * inputs * outputs
                if weight.name == "head":
                    in_head += _FLOAT32_BYTES * size
                else:
                    in_layers += _FLOAT32_BYTES * size

                # The activations and the cotangents at each position.
                cotangent = _FLOAT32_BYTES if weight.name == "head" else width
                factors += weight.num_blocks * self.positions * (width * inputs + cotangent * outputs)
        if self.lora is None and not config.tied_head:
            if self.strategy == "auto":
                factors += _FLOAT32_BYTES * self.positions * config.model_width
            else:
                in_head += _FLOAT32_BYTES * self.table_size

        # Formed gradients are held until they are clipped. Those of the layers are held twice when a loop hands them
        # over, but then activations are no longer needed.
        formed, activations = in_layers + in_head, self.activation_bytes()
        if self.strategy == "microbatch":
            phases = [(formed, 0.0, max(activations, in_layers))]
        else:
            # Activations are needed until all factors are there, and then gradients are formed of the factors.
            phases = [(0.0, factors, activations), (formed, factors, 0.0), (formed + in_layers, 0.0, 0.0)]
        largest = max(phases, key=sum)
        names = ("unit gradients", "factors", "activations")
        return {name: rows * num_bytes for name, num_bytes in zip(names, largest, strict=True)}


def _times(part: PartCost, num_units: int) -> PartCost:
    """Return the operations for so many units."""
    name, num_params, num_trained, *flops = part
    return PartCost(name, num_params, num_trained, *(num_units * value for value in flops))
