"""``language-cost``: what a private step of a language model costs, predicted from shapes alone.

    python -m experiments language-cost --preset 1B --device-gb 80 --method lora

Nothing is trained and no weights are made, so that it says in a moment, on any machine, whether a model fits a device.
The model of the costs, and how well it holds, is `experiments.language.cost`.
"""

from typing import Any

from experiments.config import LanguageCostConfig
from experiments.language.config import PRESETS
from experiments.language.cost import STRATEGIES, largest_microbatch, step_cost
from experiments.language.lora import LoraConfig

DEFAULT_LENGTH = 1024
"""Tokens of a sequence, where the model takes so many."""


def run(config: LanguageCostConfig) -> None:
    """Print the table."""
    print(cost_table(config))


def cost_table(config: LanguageCostConfig) -> str:
    """Return the costs of a step as text, with a column for each strategy of `gdpjax.clipped_grad` that is modelled."""
    model = PRESETS[config.preset]
    length = config.length or min(DEFAULT_LENGTH, model.max_length)
    options: dict[str, Any] = {
        "num_units": config.units,
        "length": length,
        "num_sequences": config.sequences,
        "lora": LoraConfig(rank=config.rank) if config.method == "lora" else None,
        "donated": True,
    }
    rows: dict[str, list[str]] = {}
    for strategy in STRATEGIES:
        cost = step_cost(model, strategy=strategy, **options)
        largest = largest_microbatch(model, 1e9 * config.device_gb, strategy=strategy, **options)
        cells = {
            "strategy": strategy,
            "parameters": f"{model.num_params:,}",
            "trained": f"{sum(part.num_trained for part in cost.parts):,}",
            "memory, one unit at a time, GB": f"{cost.peak_bytes / 1e9:,.2f}",
            "of it before the step": f"{sum(cost.arguments.values()) / 1e9:,.2f}",
            "largest microbatch that fits": f"{largest:,}" if largest else "none",
            "operations for each token, 10^6": f"{cost.flops / cost.num_tokens / 1e6:,.2f}",
            "forward, backward, weights": f"{cost.model_flops / cost.num_tokens / 1e6:,.2f}",
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    trained = "all weights" if config.method == "full" else f"adapters of rank {config.rank}"
    units = f"{config.units:,} units of {config.sequences} x {length:,} tokens"
    lines = [f"{config.preset}, {trained}, {units}, {config.device_gb:g} GB", "predicted, not measured"]
    for name, columns in rows.items():
        lines.append(f"{name:32}" + "".join(f"{cell:>15}" for cell in columns))
    return "\n".join(lines)
