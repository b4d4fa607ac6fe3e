"""The demo ends with the score, the privacy table and every caveat, and a figure."""

import dataclasses

from experiments import cli, data
from experiments.config import PRESETS


def test_demo(tmp_path, capsys, monkeypatch, small_config, small_digits):
    monkeypatch.setitem(PRESETS, "digits", dataclasses.replace(small_config))
    monkeypatch.setitem(data.LOADERS, "digits", lambda: small_digits)
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "demo"
    assert cli.main(["demo", "--out", str(out), "--seed", "1"]) == 0
    text = capsys.readouterr().out
    for words in (
        "test accuracy",
        "epsilon, certified",
        "moments epsilon",
        "CLT estimate of mu",
        "upper bound",
        "asymptotic",
    ):
        assert words in text
    assert "NOT private" in text
    assert "NOT_FOR_RELEASE" in text
    figure = out / "accuracy_and_epsilon.png"
    assert str(figure) in text
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["demo", "--out", str(out)]) == 2
    assert "already holds a run" in capsys.readouterr().err
