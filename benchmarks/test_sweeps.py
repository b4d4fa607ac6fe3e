"""A tiny run of the sweeps benchmark is complete, and its ways compile as often as they say; never a time."""

import json

import pytest

from benchmarks.bench_sweeps import LOOP, ONE, SCAN, Settings, draw, markdown, run


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(tmp_path):
    settings = Settings(
        "digits",
        configurations=8,
        steps=4,
        repetitions=1,
        alone=1,
        batch_size=32,
        epochs=1,
        report_trials=80,
    )
    result = json.loads(json.dumps(run(settings), allow_nan=False))
    result["command"] = "pytest"

    # Every way was timed.
    ways = result["ways"]
    assert set(ways) == {ONE, SCAN, LOOP}
    for name, way in ways.items():
        assert way["steps_per_second"]["median"] > way["with_compilation"] > 0, name
        assert way["compilations"] > 0, name

    # One program for all trainings compiles less often than one for each.
    assert ways[ONE]["programs"] == 1
    assert ways[ONE]["compilations"] < ways[SCAN]["compilations"]

    assert set(result["targets"]) == {f"{ONE} / {SCAN}", f"{ONE} / {LOOP}"}
    assert result["report"]["trials"] == 80
    tables = markdown(result)
    for name in (ONE, SCAN, LOOP):
        assert name in tables
    draw(result, tmp_path / "sweeps.png")
    assert (tmp_path / "sweeps.png").stat().st_size > 5_000
