"""A tiny run of the sweeps benchmark is complete, and its ways compile as often as they say; never a time."""

import json

import pytest

from benchmarks.bench_sweeps import LOOP, ONE, SCAN, Settings, draw, markdown, run


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(tmp_path):
    settings = Settings("digits", configurations=8, steps=4, repetitions=1, alone=1, batch_size=32, epochs=1)
    settings = settings._replace(report_trials=80)
    result = json.loads(json.dumps(run(settings), allow_nan=False)) | {"command": "pytest"}
    assert set(result["ways"]) == {ONE, SCAN, LOOP}
    for at in result["ways"].values():
        assert at["steps_per_second"]["median"] > at["with_compilation"] > 0
        assert at["compilations"] > 0
    assert result["ways"][ONE]["programs"] == 1
    assert result["ways"][ONE]["compilations"] < result["ways"][SCAN]["compilations"]
    assert set(result["targets"]) == {f"{ONE} / {SCAN}", f"{ONE} / {LOOP}"}
    assert result["report"]["trials"] == 80
    assert all(name in markdown(result) for name in (ONE, SCAN, LOOP))
    draw(result, tmp_path / "sweeps.png")
    assert (tmp_path / "sweeps.png").stat().st_size > 5_000
