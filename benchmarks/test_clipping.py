"""Tiny runs of the clipping benchmark are complete, and everybody's clipped sum is the same; never a time."""

import json
from typing import Any

import pytest

from benchmarks.bench_clipping import Settings, merge, run
from benchmarks.clipping import report

# What needs no package of the extra: torch and jax_privacy stay out of a suite in which warnings are errors.
WITHOUT_PEERS = (
    "no privacy",
    "gdpjax auto",
    "gdpjax ghost",
    "gdpjax microbatch",
    "plain vmap",
)
TINY = {
    "cpu-tiny": ("mlp", "cnn", "flax_transformer", "lora"),
    "gpu-tiny": ("mlp_256_bf16", "vit_s16_f32"),
}
OF_CONTENDER = {"seconds", "compile_seconds", "temp_bytes", "flops", "over_no_privacy"}


@pytest.fixture(scope="module", params=TINY)
def result(request) -> dict[str, Any]:
    settings = Settings(
        request.param,
        repetitions=1,
        models=TINY[request.param],
        contenders=WITHOUT_PEERS,
    )
    return run(settings)


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    for model in again["models"].values():
        for name, contender in model["contenders"].items():
            assert set(contender) >= OF_CONTENDER, name
            assert contender["refused"] == {}, name
    for name, target in again["targets"].items():
        assert {"target", "measured", "met"} <= set(target), name

    # Everybody and every model is in the tables.
    tables = report.markdown(result | {"command": "pytest"})
    titles = [model["title"] for model in again["models"].values()]
    for name in (*WITHOUT_PEERS, *titles):
        assert name in tables


@pytest.mark.slow
def test_everybody_s_clipped_sum_is_the_same(result):
    for model, measured in result["models"].items():
        # The slack for rounding shortens our gradients, here by about 2^-13 in float32; a wrong clip is far more off.
        limit = 3e-2 if model.endswith("bf16") else 1e-3
        for name in ("gdpjax auto", "gdpjax microbatch"):
            contender = measured["contenders"][name]
            assert contender["relative_error"] < limit, (model, name)


def _part(model: str, **settings: Any) -> dict[str, Any]:
    """Return a result of one model, as far as merging reads it."""
    times = {
        "seconds": {"median": 1.0},
        "compile_seconds": 1.0,
        "over_no_privacy": {"time": 1.0},
    }
    return {
        "machine": {"cpu": "some"},
        "settings": {"preset": "cpu", "threads": 1, "repetitions": 5} | settings,
        "missing": {},
        "models": {model: {"contenders": {"no privacy": times, "gdpjax auto": times}}},
        "load_average_before": 1.0,
        "load_average_after": 1.0,
        "total_seconds": 2.0,
        "command": f"measure {model}",
    }


def test_parts_of_a_run_are_merged_in_the_preset_s_order():
    merged = merge(_part("cnn"), _part("mlp"))
    assert list(merged["models"]) == ["mlp", "cnn"]
    models_of_targets = {name.partition(":")[0] for name in merged["targets"]}
    assert models_of_targets == {"mlp", "cnn"}
    assert merged["total_seconds"] == 4.0
    assert merged["command"] == "measure cnn; measure mlp"


def test_parts_with_other_settings_are_not_merged():
    with pytest.raises(ValueError, match="threads 2, this one with 1"):
        merge(_part("cnn", threads=2), _part("mlp"))


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown model 'none'"):
        run(Settings("cpu-tiny", models=("none",)))
