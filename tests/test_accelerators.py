"""The comparison of counts behind `make test-accelerators`, which itself needs a compiler for TPUs."""

import json
import pathlib

import pytest

from benchmarks.accelerators import counts
from benchmarks.accelerators.programs import programs

EXPECTED = pathlib.Path(__file__).parent / "data" / "accelerators.json"
FIGURES = {"lines": 1000, "bytes": 10_000_000, "temp": 0, "float64": 0, "seconds": 1.0}


def known():
    return counts.expected({}, {"tpu": {"noise": FIGURES}})


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (FIGURES | {"bytes": 11_500_000}, "noise: bytes 11,500,000, expected at most 10,000,000 and a tenth"),
        (FIGURES | {"temp": 4_000_000}, "noise: temp 4,000,000, expected at most 0 and a tenth"),
        (FIGURES | {"float64": 1}, "noise: float64 1, expected at most 0 and a tenth"),
        (FIGURES | {"all-gather": 1}, "noise: all-gather 1"),
        ({"failed": "more than 600 seconds"}, "noise: more than 600 seconds"),
    ],
)
def test_a_count_above_its_expectation_is_named(figures, message):
    (line,) = counts.compare(known(), {"tpu": {"noise": figures}}, complete=True)
    assert message in line


def test_what_is_as_expected_passes_and_what_is_missing_does_not():
    assert counts.compare(known(), {"tpu": {"noise": FIGURES | {"lines": 1090}}}, complete=True) == []
    (missing,) = counts.compare(known(), {"tpu": {}}, complete=True)
    assert "noise: expected, and not compiled" in missing
    (new,) = counts.compare(known(), {"tpu": {"noise": FIGURES, "other": FIGURES}}, complete=True)
    assert "other: no expectation" in new


def test_every_checked_program_is_expected():
    checked = {name for name, program in programs().items() if program.checked}
    for place, rows in json.loads(EXPECTED.read_text()).items():
        assert set(rows) == checked, place
