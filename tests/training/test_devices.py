"""One run on 1, 2, 4 and 8 devices: the same noise to the bit, the same parameters up to rounding."""

import pytest

from tests.eight_devices import report_of


@pytest.fixture(scope="module", params=["devices", pytest.param("more_devices", marks=pytest.mark.slow)])
def report(request):
    return report_of(f"tests.training.{request.param}", "--xla_backend_optimization_level=0")


def test_the_noise_does_not_depend_on_the_devices(report):
    """Trap 13: added once, whatever the mesh: on data without examples only the noise moves the parameters."""
    runs = report["runs"]
    assert len(runs) == 2
    assert all(found["same_noise"] for found in runs.values()), runs


def test_the_run_does_not_depend_on_the_devices(report):
    for name, found in report["runs"].items():
        assert found["error"] <= 2e-5, (name, found)


def test_no_noise_is_sent_between_devices(report):
    """Each device of a mesh draws the noise of its own parts of the parameters."""
    assert report["collectives of noise"] == []
