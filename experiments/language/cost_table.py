"""``language-cost``: what a private step of a language model costs, predicted from shapes alone.

    python -m experiments language-cost --preset 1B --device-gb 80 --method lora

Nothing is trained and no weights are made, so that it says in a moment, on any machine, whether a model fits a device.
The model of the memory, and how well it holds, is `experiments.language.cost`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.config import LanguageCostConfig
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.cost import STRATEGIES, largest_microbatch, step_memory
from experiments.language.lora import LoraConfig, init_adapters, joined
from experiments.language.model import param_shapes, sequence_loss
from gdpjax.clipping import product_flops

DEFAULT_LENGTH = 1024
"""Tokens of a sequence, where the model takes so many."""


def run(config: LanguageCostConfig) -> None:
    """Print the table."""
    print(cost_table(config))


def cost_table(config: LanguageCostConfig) -> str:
    """Return the costs of a step as text, with a column for each strategy of `gdpjax.clipped_grad` that is modelled."""
    model = PRESETS[config.preset]
    length = config.length or min(DEFAULT_LENGTH, model.max_length)
    lora = LoraConfig(rank=config.rank) if config.method == "lora" else None
    options: dict[str, Any] = {
        "num_units": config.units,
        "length": length,
        "num_sequences": config.sequences,
        "lora": lora,
    }
    products = unit_flops(model, lora, config.sequences, length)
    rows: dict[str, list[str]] = {}
    for strategy in STRATEGIES:
        memory = step_memory(model, strategy=strategy, **options)
        largest = largest_microbatch(model, 1e9 * config.device_gb, strategy=strategy, **options)
        cells = {
            "strategy": strategy,
            "parameters": f"{model.num_params:,}",
            "trained": f"{memory.num_trained:,}",
            "memory, one unit at a time, GB": f"{memory.peak_bytes / 1e9:,.2f}",
            "of it before the step": f"{sum(memory.arguments.values()) / 1e9:,.2f}",
            "largest microbatch that fits": f"{largest:,}" if largest else "none",
            "operations for each token, 10^6": f"{products / config.sequences / length / 1e6:,.2f}",
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    trained = "all weights" if config.method == "full" else f"adapters of rank {config.rank}"
    units = f"{config.units:,} units of {config.sequences} x {length:,} tokens"
    lines = [f"{config.preset}, {trained}, {units}, {config.device_gb:g} GB", "predicted, not measured"]
    for name, columns in rows.items():
        lines.append(f"{name:32}" + "".join(f"{cell:>15}" for cell in columns))
    return "\n".join(lines)


def unit_flops(model: ModelConfig, lora: LoraConfig | None, num_sequences: int, length: int) -> float:
    """Return the operations of the matrix products for one unit, recomputation included, from the traced gradient."""
    base = param_shapes(model)
    trained = base if lora is None else jax.eval_shape(lambda key: init_adapters(base, lora, key), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((num_sequences, length), jnp.int32)

    def loss(trained: Any, base: Any, tokens: Any) -> Any:
        params = trained if lora is None else joined(trained, base)
        return sequence_loss(model, params, tokens, lora=lora)

    flops = product_flops(jax.make_jaxpr(jax.grad(loss))(trained, base, tokens))
    assert flops is not None  # no loop of the model is of unknown length
    return flops
