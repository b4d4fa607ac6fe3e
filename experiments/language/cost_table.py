"""``language-cost``: what a private step of a language model costs, predicted from shapes alone.

    python -m experiments language-cost --preset 1B --device-gb 80 --method lora

Nothing is trained and no weights are made, so that it says in a moment, on any machine, whether a model fits a device.
The model of the costs, and how well it holds, is `experiments.language.cost`.
"""

from collections.abc import Iterable
from typing import Any

from experiments.config import LanguageCostConfig
from experiments.language.config import PRESETS
from experiments.language.cost import STRATEGIES, StepCost, largest_microbatch, step_cost
from experiments.language.lora import LoraConfig

DEFAULT_LENGTH = 1024
"""Tokens of a sequence, where the model takes so many."""
LABELS = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "frozen parameters": "frozen parameters",
    "state kept": "state of the last checkpoint",
    "sum": "clipped sum",
    "unit gradients": "unit gradients (each unit)",
    "factors": "factors (each unit)",
    "activations": "activations, or gradients twice (each unit)",
    "casts": "weights in the type of products",
    "noise": "noise and updates",
}
"""The rows of memory, in their order; some of it grows with the units that are taken at a time."""
_NAME_WIDTH, _CELL_WIDTH = 46, 14


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

    # One unit at a time, and as many as fit.
    costs = [step_cost(model, strategy=strategy, **options) for strategy in STRATEGIES]
    device_bytes = 1e9 * config.device_gb
    largest = [largest_microbatch(model, device_bytes, strategy=strategy, **options) for strategy in STRATEGIES]

    trained = "all weights" if config.method == "full" else f"adapters of rank {config.rank}"
    units = f"{config.units:,} units of {config.sequences} x {length:,} tokens"
    counts = [sum(part.num_trained for part in cost.parts) for cost in costs]
    return "\n".join(
        [
            f"{config.preset}, {trained}, {units}, {config.device_gb:g} GB",
            "predicted, not measured",
            _row("strategy", STRATEGIES),
            _row("parameters", [f"{model.num_params:,}"] * len(costs)),
            _row("trained", [f"{count:,}" for count in counts]),
            *_memory(costs),
            _row("largest microbatch that fits", [f"{size:,}" if size else "none" for size in largest]),
            *_operations(costs),
        ]
    )


def _memory(costs: list[StepCost]) -> list[str]:
    """Return the bytes of a step that takes one unit at a time."""
    rows = {}
    groups = [cost.arguments | cost.gradient_memory | cost.update_memory for cost in costs]
    for name, label in LABELS.items():
        values = [group.get(name, 0.0) for group in groups]
        if any(values):
            rows[label] = values

    # Not all of this is held at a time.
    rows["held until the clipped sum is there"] = [cost.gradient_bytes for cost in costs]
    rows["held for noise and update"] = [cost.update_bytes for cost in costs]
    rows["peak, the larger of the two"] = [cost.peak_bytes for cost in costs]
    activations = [cost.activation_bytes / 1e9 for cost in costs]
    return [
        _row("activations of a unit, when they are most, GB", _rounded(activations)),
        "memory when it is most, GB, one unit at a time",
        *(_row(f"  {name}", _rounded(value / 1e9 for value in values)) for name, values in rows.items()),
    ]


def _operations(costs: list[StepCost]) -> list[str]:
    """Return the operations for each token, by what they are for."""
    rows = {
        "forward, backward, weight gradients": [cost.model_flops for cost in costs],
        "recomputation": [sum(part.recompute for part in cost.parts) for cost in costs],
        "clipping": [sum(part.clipping for part in cost.parts) for cost in costs],
        "noise": [cost.noise_flops for cost in costs],
        "optimizer": [cost.optimizer_flops for cost in costs],
        "all": [cost.flops for cost in costs],
    }
    num_tokens = costs[0].num_tokens
    lines = ["operations for each token, 10^6"]
    for name, flops in rows.items():
        lines.append(_row(f"  {name}", _rounded(value / num_tokens / 1e6 for value in flops)))
    return lines


def _row(name: str, cells: Iterable[str]) -> str:
    """Return the line of one row."""
    return name.ljust(_NAME_WIDTH) + "".join(cell.rjust(_CELL_WIDTH) for cell in cells)


def _rounded(values: Iterable[float]) -> list[str]:
    return [f"{value:,.2f}" for value in values]
