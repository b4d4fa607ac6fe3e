"""A tiny run of the benchmark of random allocation is complete, and the two brackets meet; never a time."""

import json
from typing import Any

import pytest

from benchmarks.bench_allocation import Settings, markdown, run


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(2, 1, 0.0))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    assert len(again["rows"]) == 2
    assert all({"target", "measured", "met"} <= set(target) for target in again["targets"].values())
    assert "times faster" in markdown(result)


@pytest.mark.slow
def test_the_brackets_meet_and_nothing_compiles_twice(result):
    assert all(row["brackets_meet"] for row in result["rows"])
    assert result["compilations_after_the_first_call"] == 0
