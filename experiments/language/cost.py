"""The memory of a step of private training, from shapes alone.

    memory = step_memory(PRESETS["124M"], num_units=256, length=1024, microbatch_size=4)
    memory.peak_bytes

The gradient of each weight of each unit is formed: one product of the activations and cotangents at all positions, as
without privacy, of which the norm is taken and which is added to the sum. The values inside of a layer are computed
again in the backward pass.

The model of the memory follows what XLA allocates, which it may do in many ways: it was fitted to a few programs that
were compiled for CPUs, and holds for others within some 20 % (tests/language/test_cost.py compiles some of them).
Compilers for accelerators may fuse more. That of CPUs has no products in bfloat16, and keeps a frozen base in float32
beside the one that it was given: add 4 bytes for each of its parameters there.
"""

import bisect
from typing import Any, NamedTuple

from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig

# Copies of arrays that are alive at the same time.
_LAYER_COPIES = 2
"""Values inside of a layer, and their cotangents."""
_SCORE_COPIES = 4
"""Scores, probabilities and their cotangents, in float32."""
_LOGIT_COPIES = 2
"""Logits and their cotangents, in float32."""
_UPDATE_COPIES = 3.5
"""The noisy mean and the new state, where the latter takes the place of the old one in the end."""
_MOMENTS = 2
"""Arrays that Adam keeps for each parameter."""

_FLOAT32_BYTES = 4
_BYTES = {"float32": 4, "bfloat16": 2}

STRATEGIES = ("auto", "microbatch")
"""The strategies of `gdpjax.clipped_grad` that are modelled."""


class StepMemory(NamedTuple):
    """The memory of one step, in bytes.

    Attributes:
      num_trained: the parameters that are trained, adapters included.
      arguments: what is there before a step: "parameters", "frozen parameters", "optimizer", "state kept".
      gradients: what a step has beside the arguments until the sum is there: "sum", "unit gradients", "factors",
        "activations", "casts".
      update: what it has from then on, beside the arguments, for noise and new state.
    """

    num_trained: int
    arguments: dict[str, float]
    gradients: dict[str, float]
    update: float

    @property
    def peak_bytes(self) -> float:
        """The largest number of bytes that are held at a time.

        >>> from experiments.language.config import PRESETS
        >>> for name in ("124M", "1B", "7B"):
        ...     full = step_memory(PRESETS[name], num_units=1024, length=1024)
        ...     adapters = step_memory(PRESETS[name], num_units=1024, length=1024, lora=LoraConfig(rank=16))
        ...     print(f"{name:4} {full.peak_bytes / 1e9:5.1f} GB, {adapters.peak_bytes / 1e9:4.1f} GB")
        124M   4.7 GB,  0.8 GB
        1B    41.8 GB,  3.3 GB
        7B   256.1 GB, 15.9 GB
        """
        return sum(self.arguments.values()) + max(sum(self.gradients.values()), self.update)


def step_memory(
    config: ModelConfig,
    *,
    num_units: int,
    length: int,
    num_sequences: int = 1,
    microbatch_size: int = 1,
    strategy: str = "auto",
    lora: LoraConfig | None = None,
) -> StepMemory:
    """Return what one private step of Adam holds, in a run in a folder.

    The new state takes the place of the old one, and what is trained is kept as it was at the last checkpoint.

    Args:
      config: the shape of the model.
      num_units: units that are computed in a step: the plan's capacity, or what is expected where chunks of padding are
        skipped.
      length: tokens of a sequence.
      num_sequences: sequences of a unit.
      microbatch_size: units that are taken at a time.
      strategy: of `gdpjax.clipped_grad`. "microbatch" lets JAX form all gradients; "auto" reads them off factors.
      lora: the adapters, of which alone the parameters consist then; the base, in bfloat16, is an argument of the loss.
    """
    unit = _Unit(config, num_sequences * length, num_sequences * config.num_heads * length**2, strategy, lora)
    num_trained = config.num_params
    if lora is not None:
        num_trained = sum(weight.num_blocks * weight.num_trained for weight in unit.weights())

    # The state: parameters in float32 with what the optimizer keeps of them, and a frozen base.
    trained_bytes = float(_FLOAT32_BYTES * num_trained)
    arguments = {"parameters": trained_bytes, "optimizer": _MOMENTS * trained_bytes}
    if lora is not None:
        arguments["frozen parameters"] = float(_BYTES["bfloat16"] * config.num_params)

    arguments["state kept"] = (1 + _MOMENTS) * trained_bytes

    # Chunks of units are added to the sum. Then noise is added, and the new state is made.
    gradients = unit.memory(min(microbatch_size, num_units))
    gradients = {"sum": trained_bytes, **gradients, "casts": unit.cast_bytes()}
    return StepMemory(num_trained, arguments, gradients, _UPDATE_COPIES * trained_bytes)


def largest_microbatch(config: ModelConfig, device_bytes: float, *, num_units: int, **options: Any) -> int:
    """Return how many units can be taken at a time on a device with so many bytes; 0 if not even one fits.

    ``options`` are those of `step_memory`. Memory never shrinks with the units that are taken at a time, so that the
    answer is found by bisection.

    >>> from experiments.language.config import PRESETS
    >>> largest_microbatch(PRESETS["7B"], 80e9, num_units=1024, length=1024)
    0
    >>> largest_microbatch(PRESETS["tiny"], 80e9, num_units=8, length=128)
    8
    """

    def needed(size: int) -> float:
        return step_memory(config, num_units=num_units, microbatch_size=size, **options).peak_bytes

    return bisect.bisect_right(range(1, num_units + 1), device_bytes, key=needed)


class _Weight(NamedTuple):
    """A weight that is multiplied by activations.

    Attributes:
      name: "head", or its path in a layer.
      num_blocks: how many layers have one.
      inputs, outputs: its shape.
      trained: the shapes of what is trained in one block: the weight itself, the two parts of its adapter, or nothing.
    """

    name: str
    num_blocks: int
    inputs: int
    outputs: int
    trained: tuple[tuple[int, int], ...]

    @property
    def num_trained(self) -> int:
        """The trained parameters of one block."""
        return sum(inputs * outputs for inputs, outputs in self.trained)


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
            size = _FLOAT32_BYTES * weight.num_blocks * weight.num_trained
            if weight.name == "head":
                in_head += size
            else:
                in_layers += size

            # The activations and the cotangents at each position.
            cotangent = _FLOAT32_BYTES if weight.name == "head" else width
            for inputs, outputs in weight.trained:
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
