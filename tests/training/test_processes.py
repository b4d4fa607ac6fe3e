"""Several processes on one machine, gloo collectives on a loopback coordinator: one run, killed and resumed."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from gdpjax.training import start_run
from tests.several_processes import free_port, result_of
from tests.training import processes
from tests.training.interrupted import committed

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = pathlib.Path(__file__).with_name("processes.py")


def launch(count, folder, *options):
    """Run ``count`` processes; (steps at the start, lost, charged, final parameters), or None where one died."""
    result = result_of(SCRIPT, count, folder, *options)
    if not result:
        return None
    began, lost, charged, *values = result
    return int(began), int(lost), int(charged), np.array(values, float)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The parameters after the run of one process, which is this one."""
    parts = processes.build(index=0, correlated=False)
    folder = tmp_path_factory.mktemp("alone") / "run"
    run = start_run(folder, *parts, key=jax.random.key(processes.SEED), scan=False)
    return processes.finished(committed(run))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_make_the_run_of_one_and_survive_a_kill(count, alone, tmp_path):
    """Traps 10, 13: one noise for all. Trap 12: after a death in the middle of a chunk as many processes go on."""
    folder = tmp_path / "run"
    assert launch(count, folder, "whole", "die") is None
    whole = np.load(folder.with_suffix(".npy"))
    np.testing.assert_allclose(whole, alone, rtol=2e-4, atol=2e-5)
    began, lost, charged, resumed = launch(count, folder, "resume")
    assert (began, lost, charged) == (5, 0, 12)
    np.testing.assert_array_equal(resumed.astype(np.float32), whole)


@pytest.mark.slow
def test_several_processes_add_the_same_correlated_noise(tmp_path):
    """The noise of step 5 takes back that of steps 3 and 4, also where the process that drew them has died."""
    *_, alone = launch(1, tmp_path / "alone", "correlated")
    *_, values = launch(2, tmp_path / "whole", "correlated")
    np.testing.assert_allclose(values, alone, rtol=2e-4, atol=2e-5)
    assert launch(2, tmp_path / "killed", "correlated", "die") is None
    began, lost, charged, resumed = launch(2, tmp_path / "killed", "correlated", "resume")
    assert (began, lost, charged) == (5, 0, 12)
    np.testing.assert_array_equal(resumed, values)


PRELUDE = """
import atexit, os, sys, time
import jax, jax.numpy as jnp, numpy as np, optax, gdpjax
from gdpjax.training import private_training, start_run

sys.argv = ["train.py", "--process", os.environ["PROCESS"], "--of", "2"]
plan = gdpjax.make_plan(
    clip=1.0, max_examples=96, expected_batch_size=24, num_steps=3, delta=1e-5, noise_multiplier=2.0
)
x, folder = np.random.default_rng(0).normal(size=(90, 16)).astype(np.float32), os.environ["FOLDER"]
y = (x[:, 0] > 0).astype(np.int32)
loss_fn = lambda w, x, y: optax.softmax_cross_entropy_with_integer_labels(x @ w["w"] + w["b"], y)
training = private_training(plan, loss_fn, optax.adam(1e-2))
"""
RESULT = """
params = {"w": jnp.zeros((16, 2)), "b": jnp.zeros(2)}
MESH
run.advance(3)
print("RESULT", run.step, float(run.state.params["w"].addressable_data(0).sum()), flush=True)
"""


@pytest.mark.slow
def test_the_recipe_for_two_processes_runs_as_it_is_written(tmp_path):
    """The two blocks of docs/training.md, with parameters as `jnp.zeros` makes them: one run, one key, on both."""
    section = (ROOT / "docs/training.md").read_text().split("## Many devices, many hosts")[1]
    mesh, begin = section.split("```py\n")[1].split("```")[0], section.split("```py\n")[2].split("```")[0]
    port = str(free_port())
    assert "9911" in begin
    program = begin.replace("9911", port)
    # The program's own arguments come first, then JAX, then whatever makes an array.
    body = PRELUDE.replace("plan =", program + "\nplan =", 1) + RESULT.replace("MESH", mesh)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "FOLDER": str(tmp_path / "run")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", body],
            cwd=ROOT, env=environment | {"PROCESS": index}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in "01"
    ]  # fmt: skip
    found = []
    for process in started:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        found.append(next(line for line in out.splitlines() if line.startswith("RESULT")))
    assert found[0] == found[1]
    assert found[0].split()[1] == "3"


@pytest.mark.slow
def test_another_number_of_processes_pays_again(tmp_path):
    """Trap 12: sums are added in another order there, so the lost chunk gets new noise and is charged."""
    assert launch(2, tmp_path / "killed", "die") is None
    began, lost, charged, values = launch(1, tmp_path / "killed", "resume")
    assert (began, lost, charged) == (10, 5, 12)
    assert np.isfinite(values).all()
