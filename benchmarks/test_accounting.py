"""A tiny run of the accounting benchmark is complete, contradicts nobody and compiles nothing twice; never a time."""

import json
from typing import Any

import pytest

from benchmarks.accounting import arbiter, ours, report
from benchmarks.bench_accounting import Settings, run
from gdpjax import accounting


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    settings = Settings(
        configurations=12,
        subset=2,
        repetitions=1,
        points=1000,
        patience=0.0,
        sweep_seconds=0.5,
        processes=False,
    )
    return run(settings)


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    measured = set(again["batched"]["per_second"]) | set(again["gaussian"])
    assert measured == set(ours.FUNCTIONS)
    for name, target in again["targets"].items():
        assert {"target", "measured", "met"} <= set(target), name
    comparison = again["comparison"]
    assert len(comparison["subset"]) == 2

    # Our functions and all libraries, also the missing ones, are in the tables.
    tables = report.markdown(result | {"command": "pytest"})
    for name in (*ours.FUNCTIONS, *comparison["libraries"], *comparison["missing"]):
        assert name in tables


@pytest.mark.slow
def test_nobody_s_bracket_contradicts_ours(result):
    accuracy = result["accuracy"]
    assert accuracy["epsilon_bounds"]["relative_width"]["count"] == 12
    assert accuracy["moments_accountant_epsilon"]["below_certified_lower"] == 0
    for name, library in result["comparison"]["libraries"].items():
        assert library["wrong_side"] == [], name
        if library["standing"] == "upper":
            assert library["relative_error"]["min"] > -1e-3, name


def test_the_arbiter_tells_a_false_end_from_a_true_one():
    run = (2.0, 0.05, 100, 1e-6)
    low, high = (float(end) for end in accounting.epsilon_bounds(*run))

    # Ends of the peer that are certainly false.
    assert arbiter.verdict(run, "upper", 0.99 * low, [low, high]) == "the peer"
    assert arbiter.verdict(run, "lower", 1.01 * high, [low, high]) == "the peer"

    # True ends of the peer, which a false bracket contradicts.
    too_high = [1.02 * high, 1.03 * high]
    too_low = [0.97 * low, 0.98 * low]
    assert arbiter.verdict(run, "upper", 1.01 * high, too_high) == "gdpjax"
    assert arbiter.verdict(run, "lower", 0.99 * low, too_low) == "gdpjax"

    # Two ends that nobody can tell apart.
    assert arbiter.verdict(run, "upper", high, [low, high]) == "undecided"


@pytest.mark.slow
def test_nothing_compiles_per_configuration(result):
    for name, counts in result["batched"]["compilations"].items():
        # The moments accountant compiles its moments and what turns them into epsilon.
        assert counts["first_call"] <= 2, name
        assert counts["other_values"] == 0, name
        assert counts["one_alone"] <= 2, name
        assert counts["others_alone"] == 0, name
    for name, measured in result["gaussian"].items():
        counts = measured["compilations"]
        assert counts["first_call"] <= 1, name
        assert counts["other_values"] == 0, name
