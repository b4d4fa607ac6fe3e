"""A run on 1, 2, 4 and 8 devices has the same noise to the bit, and the same parameters up to rounding."""

import pytest

from tests.eight_devices import report_of


@pytest.fixture(scope="module", params=["devices", pytest.param("more_devices", marks=pytest.mark.slow)])
def report(request):
    return report_of(f"tests.training.{request.param}", "--xla_backend_optimization_level=0")


def test_the_noise_does_not_depend_on_the_devices(report):
    """Trap 13: noise is added once on every mesh; on data without examples it alone moves the parameters."""
    runs = report["runs"]
    assert len(runs) == 2
    for case in runs.values():
        assert case["same_noise"], report


def test_the_run_does_not_depend_on_the_devices(report):
    """The parameters after a run on several devices are those of one device, up to rounding."""
    for name, case in report["runs"].items():
        assert case["error"] <= 2e-5, (name, case)


def test_no_noise_is_sent_between_devices(report):
    """Each device of a mesh draws the noise of its own parts of the parameters."""
    assert report["collectives of noise"] == []


def test_a_chunk_leaves_a_state_spread_as_it_was(report):
    """A restored state is: else the run would go on with another program, and the same noise on other bits."""
    assert report["moved"] == []
