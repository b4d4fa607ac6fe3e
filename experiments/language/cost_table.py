"""``language-cost``: what a private step of a language model costs, predicted from shapes alone.

    python -m experiments language-cost --preset 1B --device-gb 80 --method lora

Nothing is trained and no weights are made, so that it says in a moment, on any machine, whether a model fits a device.
The model of the costs, and how well it holds, is `experiments.language.cost`.
"""

from experiments.config import LanguageCostConfig
from experiments.errors import UserError
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.cost import STRATEGIES, StepCost, largest_microbatch, step_cost
from experiments.language.lora import LoraConfig

DEFAULT_LENGTH = 1024
"""Tokens of a sequence, where the model takes so many."""
UNIT_MEMORY = ("unit gradients", "factors", "activations")
"""The memory that grows with the units that are taken at a time."""
LABELS = {
    "state kept": "state of the last checkpoint",
    "sum": "clipped sum",
    "noise": "noise and updates",
    "casts": "weights in the type of products",
    "activations": "activations, or gradients twice",
}
"""Longer names for some memory of `StepCost`."""
_NAME_WIDTH, _CELL_WIDTH = 46, 14


def run(config: LanguageCostConfig) -> None:
    """Print the table."""
    print(cost_table(config))


def cost_table(config: LanguageCostConfig) -> str:
    """Return the costs of a step as text, with a column for each strategy of `gdpjax.clipped_grad` that is modelled.

    Raises:
      UserError: a number out of range, or adapters that fit no weight.
    """
    model = PRESETS[config.preset]
    length = min(DEFAULT_LENGTH, model.max_length) if config.length is None else config.length
    if length > model.max_length:
        raise UserError(f"expected a length of at most {model.max_length}, which is the model's, got {length}")
    if not config.device_gb > 0:
        raise UserError(f"expected device_gb to be a positive number, got {config.device_gb}")
    lora = LoraConfig(rank=config.rank, targets=config.targets) if config.method == "lora" else None

    # One unit at a time, and as many as fit.
    costs: dict[str, StepCost] = {}
    largest: dict[str, int] = {}
    for strategy in STRATEGIES:
        costs[strategy] = step_cost(
            model,
            num_units=config.units,
            length=length,
            num_sequences=config.sequences,
            strategy=strategy,
            lora=lora,
            donated=True,
        )
        largest[strategy] = largest_microbatch(
            model,
            1e9 * config.device_gb,
            num_units=config.units,
            length=length,
            num_sequences=config.sequences,
            strategy=strategy,
            lora=lora,
            donated=True,
        )

    lines = _title(config, length)
    lines.append(_row("strategy", list(STRATEGIES)))
    lines.extend(_parameters(model, list(costs.values())))
    lines.extend(_memory(list(costs.values())))
    sizes = [f"{size:,}" if size else "none" for size in largest.values()]
    lines.append(_row("largest microbatch that fits", sizes))
    lines.extend(_operations(list(costs.values())))
    if config.parts:
        for strategy, cost in costs.items():
            lines.extend(["", f"strategy {strategy}, one unit at a time", str(cost)])
    return "\n".join(lines)


def _title(config: LanguageCostConfig, length: int) -> list[str]:
    """Return what is predicted, and that it is predicted."""
    trained = "all weights" if config.method == "full" else f"adapters of rank {config.rank}"
    units = f"{config.units:,} units of {config.sequences} x {length:,} tokens"
    return [
        f"{config.preset}, {trained}, {units}, {config.device_gb:g} GB",
        "predicted, not measured",
    ]


def _parameters(model: ModelConfig, costs: list[StepCost]) -> list[str]:
    """Return how many parameters there are, and how many of them are trained."""
    trained = [sum(part.num_trained for part in cost.parts) for cost in costs]
    return [
        _row("parameters", [f"{model.num_params:,}"] * len(costs)),
        _row("trained", [f"{count:,}" for count in trained]),
    ]


def _memory(costs: list[StepCost]) -> list[str]:
    """Return the bytes of a step that takes one unit at a time."""
    activations = [_gigabytes(cost.activation_bytes) for cost in costs]
    lines = [_row("activations of a unit, when they are most, GB", activations)]
    lines.append("memory when it is most, GB, one unit at a time")
    groups = [{**cost.arguments, **cost.gradient_memory, **cost.update_memory} for cost in costs]
    for name in _names(groups):
        values = [group.get(name, 0.0) for group in groups]
        label = LABELS.get(name, name)
        if name in UNIT_MEMORY:
            label = f"{label} (each unit)"
        if any(values):
            lines.append(_row(f"  {label}", [_gigabytes(value) for value in values]))

    # Not all of this is held at a time.
    totals = {
        "held until the clipped sum is there": [_arguments(cost) + cost.gradient_bytes for cost in costs],
        "held for noise and update": [_arguments(cost) + cost.update_bytes for cost in costs],
        "peak, the larger of the two": [cost.peak_bytes for cost in costs],
    }
    for name, values in totals.items():
        lines.append(_row(f"  {name}", [_gigabytes(value) for value in values]))
    return lines


def _operations(costs: list[StepCost]) -> list[str]:
    """Return the operations for each token, by what they are for."""
    rows: dict[str, list[float]] = {
        "forward, backward, weight gradients": [cost.model_flops for cost in costs],
        "recomputation": [sum(part.recompute for part in cost.parts) for cost in costs],
        "clipping": [sum(part.clipping for part in cost.parts) for cost in costs],
        "noise": [cost.noise_flops for cost in costs],
        "optimizer": [cost.optimizer_flops for cost in costs],
        "all": [cost.flops for cost in costs],
    }
    lines = ["operations for each token, 10^6"]
    for name, flops in rows.items():
        cells = []
        for value, cost in zip(flops, costs, strict=True):
            cells.append(f"{value / cost.num_tokens / 1e6:,.2f}")
        lines.append(_row(f"  {name}", cells))
    return lines


def _arguments(cost: StepCost) -> float:
    """Return the bytes that are there before a step."""
    return sum(cost.arguments.values())


def _names(groups: list[dict[str, float]]) -> list[str]:
    """Return the names of all groups, each once, in order."""
    names: dict[str, None] = {}
    for group in groups:
        names |= dict.fromkeys(group)
    return list(names)


def _row(name: str, cells: list[str]) -> str:
    """Return the line of one row."""
    aligned = [cell.rjust(_CELL_WIDTH) for cell in cells]
    return name.ljust(_NAME_WIDTH) + "".join(aligned)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f}"
