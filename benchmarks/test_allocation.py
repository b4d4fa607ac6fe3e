"""A tiny run of the benchmark of random allocation is complete, and the two brackets meet; never a time."""

import json
from typing import Any

import pytest

from benchmarks.bench_allocation import Settings, markdown, run


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(configurations=2, repetitions=1, patience=0.0))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    assert len(again["rows"]) == 2
    for name, target in again["targets"].items():
        assert {"target", "measured", "met"} <= set(target), name
    assert "times faster" in markdown(result)


@pytest.mark.slow
def test_the_brackets_meet_and_nothing_compiles_twice(result):
    for row in result["rows"]:
        assert row["brackets_meet"]
    assert result["compilations_after_the_first_call"] == 0
