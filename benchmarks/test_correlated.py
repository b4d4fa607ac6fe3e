"""A quick run of the benchmark of correlated noise: it is complete, and errors and losses are right; never a time."""

import json
from typing import Any

import pytest

from benchmarks.bench_correlated import QUICK_SIZES, Settings, run
from benchmarks.correlated import costs, report


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(quick=True, repetitions=2, peer=False))


def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    contenders = again["costs"][str(QUICK_SIZES[0])]
    assert list(contenders) == list(costs.strategies())
    for name, contender in contenders.items():
        assert {"seconds", "over_independent", "state_bytes"} <= set(contender), name
    for name, target in again["targets"].items():
        assert {"target", "measured", "met", "at_least"} <= set(target), name

    tables = report.markdown(result | {"command": "pytest"})
    for words in (*contenders, "BLT, 3 buffers", "times faster"):
        assert words in tables


def test_correlation_pays_and_no_loss_is_worse_than_the_record(result):
    for run_errors in result["errors"]:
        independent, *others = run_errors["families"]
        assert independent["of_independent"] == 1.0
        for family in others:
            assert family["rmse"] < independent["rmse"]
    for row in result["optimizers"]:
        assert row["loss_ratio"] <= 1.001


def test_what_is_drawn_again_has_no_state(result):
    # The state of each beside that of independent noise, in float32 copies of the parameters.
    num_parameters = QUICK_SIZES[0]
    contenders = result["costs"][str(num_parameters)]
    independent = contenders["gdpjax independent"]["state_bytes"]
    extra = {}
    for name, contender in contenders.items():
        extra[name] = (contender["state_bytes"] - independent) // (4 * num_parameters)
    assert extra["gdpjax lambda-CGD"] == extra["gdpjax BISR 8, drawn again"] == 0
    assert extra["gdpjax BISR 8, ring buffer"] == 8
    assert extra["gdpjax BandMF 8, ring buffer"] == 7
    assert extra["gdpjax BLT 3"] == 3
