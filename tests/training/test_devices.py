"""One run on 1, 2, 4 and 8 devices: the same noise to the bit, the same parameters up to rounding."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.training.devices"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_the_noise_does_not_depend_on_the_devices(report):
    """Trap 13: added once, whatever the mesh: on data without examples only the noise moves the parameters."""
    assert len(report) == 4
    assert all(found["same_noise"] for found in report.values()), report


def test_the_run_does_not_depend_on_the_devices(report):
    for name, found in report.items():
        assert found["error"] <= 2e-5, (name, found)
