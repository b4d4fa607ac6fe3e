"""The demo ends in one table with every caveat, and a figure."""

import dataclasses

from experiments import cli, data
from experiments.config import PRESETS
from experiments.figures.training import save_accuracy_and_epsilon
from gdpjax.plotting import style
from tests.drawings import assert_nothing_is_cut


def test_demo(tmp_path, capsys, monkeypatch, small_config, small_digits):
    monkeypatch.setitem(PRESETS, "digits", dataclasses.replace(small_config))
    monkeypatch.setitem(data.LOADERS, "digits", lambda: small_digits)
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "demo"
    assert cli.main(["demo", "--out", str(out), "--seed", "1"]) == 0
    text = capsys.readouterr().out
    for row in ("test accuracy", "mu, CLT", "epsilon, CLT", "epsilon, moments accountant", "epsilon, certified"):
        assert row in text
    assert "may understate" in text
    assert "NOT private" in text
    assert "NOT_FOR_RELEASE" in text
    figure = out / "accuracy_and_epsilon.png"
    assert str(figure) in text
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["demo", "--out", str(out)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_the_figure_has_no_cut_ticks(monkeypatch, tmp_path):
    """The numbers of steps are all inside the figure, and the legend is outside its axes."""
    figures = []
    monkeypatch.setattr(style, "save_figure", lambda figure, path: figures.append(figure))
    history = []
    for step in range(6, 174, 6):
        epsilon = 0.19 * step**0.5
        numbers = {"epsilon_lower": epsilon, "epsilon_upper": 1.01 * epsilon, "epsilon_clt": 0.9 * epsilon}
        history.append(
            {"step": step, "test_accuracy": 1 - 1 / step, "epsilon_moments_accountant": 1.2 * epsilon} | numbers
        )
    save_accuracy_and_epsilon(history, 1e-5, tmp_path / "figure.png")
    assert_nothing_is_cut(figures[0])
