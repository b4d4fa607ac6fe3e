"""Figures are rounded to their side, and tables fit the terminal."""

import pytest

from gdpjax._core.figures import rounded, text_table


@pytest.mark.parametrize("digits", [1, 3, 8])
def test_rounded(digits):
    """A number that is rounded up or down is on its side, and off by one in the last digit at most."""
    for value in (1.2345641, 9.9999999999, 0.1, 1e-300, 123456789.123, 5e-324, 2.0):
        up = float(rounded(value, digits, "up"))
        down = float(rounded(value, digits, "down"))
        assert down <= value <= up <= value * (1 + 1.01 * 10 ** (1 - digits)) + 5e-324
        assert float(rounded(value, digits, "exact")) == value
    assert rounded(float("inf"), 3, "up") == "inf"


def test_a_table_fits_into_its_width():
    """The last column is wrapped, and nothing of it is lost."""
    standing = "asymptotic estimate: may understate the true epsilon; not a guarantee"
    table = text_table([("quantity", "value", "standing"), ("epsilon_clt", "0.8516", standing)], width=50)
    assert max(map(len, table.splitlines())) <= 50
    assert standing in " ".join(table.split())
    assert table.splitlines()[0] == "quantity      value  standing"
