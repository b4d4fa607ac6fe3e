"""Several processes on one machine, gloo collectives on a loopback coordinator: one run, killed and resumed."""

import pathlib

import jax
import numpy as np
import pytest

from gdpjax.training import start_run
from tests.several_processes import result_of
from tests.training import processes
from tests.training.interrupted import committed

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
