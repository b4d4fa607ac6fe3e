"""The scripts in `examples/` run, at small size where that is shorter, and keep to the privacy that they print."""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

import gdpjax

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def example(name):
    """Return the names of a script, which is read but not run."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


def test_nnx_cnn(capsys):
    accuracy, plan = example("nnx_cnn")["main"](epochs=5)
    assert accuracy > 0.5
    assert plan.epsilon_bounds().upper <= 3.0
    assert "removing one image" in capsys.readouterr().out


def test_csv_with_users(tmp_path, capsys):
    script = example("csv_with_users")
    files = tmp_path / "private.csv", tmp_path / "public.csv"
    for seed, file in enumerate(files):
        script["write_made_up_table"](file, num_users=700, seed=seed)
    accuracy, plan = script["main"](*files)
    assert accuracy > 0.7
    assert plan.unit == "user"
    assert plan.epsilon_bounds().upper <= 2.0
    assert plan.statement() in capsys.readouterr().out


def test_a_row_of_the_table_is_read_without_looking_at_others(tmp_path):
    """Else one user would change the features of all, and the clip norm would bound nothing."""
    script = example("csv_with_users")
    table, larger = tmp_path / "table.csv", tmp_path / "larger.csv"
    script["write_made_up_table"](table, num_users=20, seed=0)
    larger.write_text(table.read_text() + "outlier,1e6,,-1e6,1\n")
    _, x, _ = script["read_table"](table)
    _, with_outlier, _ = script["read_table"](larger)
    np.testing.assert_array_equal(with_outlier[:-1], x)
    np.testing.assert_array_equal(with_outlier[-1], [1, 0, -1, 0, 1, 0])


def test_lora(capsys):
    before, after, plan = example("lora")["main"](public_steps=100, epochs=5)
    assert after < 0.7 * before
    assert plan.epsilon_bounds().upper <= 3.0
    assert "frozen: 14512; the base is the same: True" in capsys.readouterr().out


def test_own_chain():
    accuracy, ledger = example("own_chain")["main"](num_steps=100)
    assert accuracy > 0.8
    assert ledger.num_steps == 100
    assert gdpjax.accounting.epsilon_bounds(ledger, delta=1e-6).upper <= 1.0


@pytest.mark.slow
def test_sweep(tmp_path, capsys):
    script = example("sweep")
    few = script["HYPERPARAMETERS"] | {"learning_rate": 0.03, "l2_clip_norm": 1.0, "epsilon": [2.0, 30.0]}
    result, trained = script["main"](tmp_path, few)
    assert not result.any_failed
    assert result.best(epsilon=2.0)["epsilon_upper"] <= 2.0 < result.best()["epsilon_upper"]
    assert trained.plan.epsilon_bounds().upper <= 2.0
    assert trained.scores["accuracy"] > 0.6
    assert "Tuned: learning rate" in capsys.readouterr().out


def test_total_budget(tmp_path, capsys):
    accuracy, budget = example("total_budget")["main"](tmp_path / "budget.json")
    assert accuracy > 0.8
    assert [type(event).__name__ for event in budget.spent] == ["GaussianEvent", "LaplaceEvent", "Event"]
    assert budget.epsilon_bounds().upper <= 1.0
    assert gdpjax.Budget.open(tmp_path / "budget.json").spent == budget.spent
    assert "another count is refused" in capsys.readouterr().out


def test_somebody_elses_run(capsys):
    certified, card = example("somebody_elses_run")["main"]()
    for place, bounds in enumerate(certified):
        assert card.figure("epsilon_clt", place) < bounds.lower
        assert bounds.upper < card.figure("epsilon_moments_accountant", place)
    assert "too small" in capsys.readouterr().out


def test_several_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", ROOT / "examples" / "several_devices.py"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 devices; of the weights (16, 256) each holds (16, 64)" in done.stdout
    assert float(re.findall(r"public rows: (.*)", done.stdout)[0]) > 0.8
    assert float(re.findall(r"epsilon <= ([\d.]+)", done.stdout)[0]) <= 4.0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_tested_and_in_the_list(script):
    assert 40 <= len(script.read_text().splitlines()) <= 90
    assert f"def test_{script.stem}(" in pathlib.Path(__file__).read_text()
    assert f"/examples/{script.name}" in (ROOT / "docs" / "index.md").read_text()
