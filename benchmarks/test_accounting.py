"""A tiny run of the accounting benchmark is complete, contradicts nobody and compiles nothing twice; never a time."""

import json
from typing import Any

import pytest

from benchmarks.accounting import arbiter, ours, report
from benchmarks.bench_accounting import Settings, run
from gdpjax import accounting


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(12, 2, 1, 1000, 0.0, 0.5, processes=False))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    assert set(again["batched"]["per_second"]) | set(again["gaussian"]) == set(ours.FUNCTIONS)
    assert all({"target", "measured", "met"} <= set(target) for target in again["targets"].values())
    named = [*again["comparison"]["libraries"], *again["comparison"]["missing"]]
    assert len(again["comparison"]["subset"]) == 2
    tables = report.markdown(result | {"command": "pytest"})
    assert all(name in tables for name in [*ours.FUNCTIONS, *named])


@pytest.mark.slow
def test_nobody_s_bracket_contradicts_ours(result):
    assert result["accuracy"]["epsilon_bounds"]["relative_width"]["count"] == 12
    assert result["accuracy"]["moments_accountant_epsilon"]["below_certified_lower"] == 0
    for name, at in result["comparison"]["libraries"].items():
        assert at["wrong_side"] == [], name
        assert at["standing"] != "upper" or at["relative_error"]["min"] > -1e-3, name


def test_the_arbiter_tells_a_false_end_from_a_true_one():
    run = (2.0, 0.05, 100, 1e-6)
    low, high = (float(end) for end in accounting.epsilon_bounds(*run))
    assert arbiter.verdict(run, "upper", 0.99 * low, [low, high]) == "the peer"
    assert arbiter.verdict(run, "lower", 1.01 * high, [low, high]) == "the peer"
    assert arbiter.verdict(run, "upper", 1.01 * high, [1.02 * high, 1.03 * high]) == "gdpjax"
    assert arbiter.verdict(run, "lower", 0.99 * low, [0.97 * low, 0.98 * low]) == "gdpjax"
    assert arbiter.verdict(run, "upper", high, [low, high]) == "undecided"


@pytest.mark.slow
def test_nothing_compiles_per_configuration(result):
    for name, counts in result["batched"]["compilations"].items():
        assert counts["first_call"] <= 1, name
        assert counts["other_values"] == 0, name
        assert counts["one_alone"] <= 2, name
        assert counts["others_alone"] == 0, name
    for name, at in result["gaussian"].items():
        assert at["compilations"]["first_call"] <= 1, name
        assert at["compilations"]["other_values"] == 0, name
