"""Several processes on one machine, gloo collectives on a loopback coordinator: one run, killed and resumed."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = pathlib.Path(__file__).with_name("processes.py")


def free_port():
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def launch(count, folder, *options):
    """Run ``count`` processes; (steps at the start, lost, charged, final parameters), or None where one died."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), port, str(count), str(index), str(folder), *options],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(count)
    ]  # fmt: skip
    try:
        if options:
            assert processes[-1].wait(timeout=300) == 9
            return None
        out, errors = processes[0].communicate(timeout=300)
        assert processes[0].returncode == 0, errors
        result = next(line for line in out.splitlines() if line.startswith("RESULT")).split()
        return (*map(int, result[1:4]), np.array([float(word) for word in result[4:]]))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    return launch(1, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_make_the_run_of_one_and_survive_a_kill(count, alone, tmp_path):
    """Traps 10, 13: one noise for all. Trap 12: after a death in the middle of a chunk the same processes go on."""
    began, lost, charged, values = launch(count, tmp_path / "whole")
    assert (began, lost, charged) == (0, 0, 12)
    np.testing.assert_allclose(values, alone[-1], rtol=2e-4, atol=2e-5)
    assert launch(count, tmp_path / "killed", "die") is None
    began, lost, charged, resumed = launch(count, tmp_path / "killed")
    assert (began, lost, charged) == (5, 0, 12)
    np.testing.assert_array_equal(resumed, values)


@pytest.mark.slow
def test_another_number_of_processes_pays_again(tmp_path):
    """Trap 12: sums are added in another order there, so the lost chunk gets new noise and is charged."""
    assert launch(2, tmp_path / "killed", "die") is None
    began, lost, charged, values = launch(1, tmp_path / "killed")
    assert (began, lost, charged) == (10, 5, 12)
    assert np.isfinite(values).all()
