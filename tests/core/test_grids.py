"""The language of grids."""

import pytest

from gdpjax._core.figures import values_of


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [
        ("1,0.5,1", False, [1.0, 0.5]),
        ("2:1:3", False, [2.0, 1.5, 1.0]),
        ("1e-7:1e-5:log3", False, [1e-7, 1e-6, 1e-5]),
        ("1000:10000:log4, 20000", True, [1000.0, 2154.0, 4642.0, 10000.0, 20000.0]),
    ],
)
def test_values(text, whole, expected):
    """Numbers and ranges give their values in order, each once."""
    assert values_of(text, whole=whole) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [("1:2", "start:stop:count"), ("1:2:1", "2 to 1000000"), ("0:2:log4", "above 0"), ("1:inf:4", "finite")],
)
def test_what_is_no_grid_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        values_of(text)
