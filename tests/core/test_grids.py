"""The language of grids."""

import pytest

from gdpjax._core.grids import values_of


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [
        ("0.5", False, [0.5]),
        ("1,0.5,1", False, [1.0, 0.5]),
        ("0.1:0.3:3", False, [0.1, 0.2, 0.3]),
        ("2:1:3", False, [2.0, 1.5, 1.0]),
        ("128:1024:log4", False, [128.0, 256.0, 512.0, 1024.0]),
        ("1e-7:1e-5:log3", False, [1e-7, 1e-6, 1e-5]),
        ("1000:10000:log4, 20000", True, [1000.0, 2154.0, 4642.0, 10000.0, 20000.0]),
        ("1:2:5", True, [1.0, 2.0]),
    ],
)
def test_values(text, whole, expected):
    """Numbers and ranges give their values in order, each once."""
    assert values_of(text, whole=whole) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:2", "not enough values"),
        ("1:2:3:4", "too many values"),
        ("1:2:1", "a range has 2 to 1000000 values"),
        ("1:2:9000000", "a range has 2 to 1000000 values"),
        ("1:2:x", "invalid literal"),
        ("0:2:log4", "above 0"),
        ("1:inf:4", "finite"),
        ("1,,2", "could not convert"),
    ],
)
def test_what_is_no_grid_is_refused(text, message):
    """The message has the form that is expected, the text, and what is wrong with it."""
    with pytest.raises(ValueError, match=f"expected numbers, .*{message}"):
        values_of(text)
