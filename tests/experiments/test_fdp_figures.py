"""The figures are drawn by one command, with the Adult data or without them."""

import gzip

import numpy as np

from experiments import cli
from experiments.data.adult_education import EDUCATION, education_levels, find_adult, synthetic_levels

ROW = "39, State-gov, 77516, {}, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, X, <=50K"


def test_every_figure_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GDPJAX_DATA", raising=False)
    assert cli.main(["figures", "--output", str(tmp_path)]) == 0
    assert "synthetic people" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.svg"))) == 7


def test_adult_is_read(tmp_path, monkeypatch):
    path = tmp_path / "adult.data.gz"
    path.write_bytes(gzip.compress("\n".join([ROW.format("Bachelors"), ROW.format("9th"), ""]).encode()))
    monkeypatch.setenv("GDPJAX_DATA", str(tmp_path))
    assert find_adult() == path
    np.testing.assert_array_equal(education_levels(path), [EDUCATION.index("Bachelors"), EDUCATION.index("9th")])
    assert len(synthetic_levels()) == 32_561
