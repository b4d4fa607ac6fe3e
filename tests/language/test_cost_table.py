"""The command that predicts the costs of a step: its table, and the largest microbatch that fits."""

import dataclasses

import pytest

from experiments import cli
from experiments.config import LanguageCostConfig
from experiments.errors import UserError
from experiments.language.config import PRESETS
from experiments.language.cost import largest_microbatch, step_cost
from experiments.language.cost_table import cost_table
from experiments.language.lora import LoraConfig


@pytest.mark.parametrize("strategy", ["auto", "microbatch"])
@pytest.mark.parametrize("lora", [None, LoraConfig()])
@pytest.mark.parametrize("name", ["124M", "1B"])
def test_the_largest_microbatch_fits_and_one_more_unit_does_not(name, lora, strategy):
    options = dict(num_units=1024, length=512, strategy=strategy, lora=lora)
    size = largest_microbatch(PRESETS[name], 40e9, **options)
    assert 1 <= size < 1024
    assert step_cost(PRESETS[name], microbatch_size=size, **options).fits(40e9)
    assert not step_cost(PRESETS[name], microbatch_size=size + 1, **options).fits(40e9)


def test_what_is_taken_at_a_time_is_no_more_than_there_is():
    assert largest_microbatch(PRESETS["tiny"], 80e9, num_units=3, length=64) == 3
    assert largest_microbatch(PRESETS["7B"], 80e9, num_units=3, length=64) == 0


def values_of(text, name):
    """The cells of a row."""
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line.removeprefix(name).split()


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_table_has_what_the_model_of_the_costs_says(preset, method, capsys):
    words = ["language-cost", "--preset", preset, "--device-gb", "24", "--method", method, "--units", "16"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "predicted, not measured" in text

    model = PRESETS[preset]
    lora = LoraConfig() if method == "lora" else None
    length = min(1024, model.max_length)
    options = dict(num_units=16, length=length, lora=lora, donated=True)
    costs = [step_cost(model, strategy=name, **options) for name in ("auto", "microbatch")]
    assert values_of(text, "parameters") == [f"{model.num_params:,}"] * 2
    assert values_of(text, "trained") == [f"{sum(part.num_trained for part in cost.parts):,}" for cost in costs]
    assert values_of(text, "  peak, the larger of the two") == [f"{cost.peak_bytes / 1e9:,.2f}" for cost in costs]
    activations = values_of(text, "activations of a unit, when they are most, GB")
    assert activations == [f"{cost.activation_bytes / 1e9:,.2f}" for cost in costs]
    assert values_of(text, "  all") == [f"{cost.flops_per_token / 1e6:,.2f}" for cost in costs]


def test_a_model_that_does_not_fit_says_none():
    text = cost_table(LanguageCostConfig(preset="7B"))
    assert values_of(text, "largest microbatch that fits") == ["none", "none"]


def test_the_parts_of_the_model_are_there_if_asked_for():
    config = LanguageCostConfig(preset="tiny")
    assert "feed_forward/gate" not in cost_table(config)
    assert cost_table(dataclasses.replace(config, parts=True)).count("feed_forward/gate") == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (dict(device_gb=0.0), "device_gb"),
        (dict(device_gb=float("nan")), "device_gb"),
        (dict(units=0), "num_units"),
        (dict(sequences=0), "num_sequences"),
        (dict(length=2048), "at most 1024"),
        (dict(method="lora", targets="nothing"), "match a weight"),
    ],
)
def test_what_is_refused(change, expected):
    with pytest.raises(UserError, match=expected):
        cost_table(LanguageCostConfig(preset="124M", **change))


def test_an_error_is_one_line(capsys):
    assert cli.main(["language-cost", "--units", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: expected num_units")
