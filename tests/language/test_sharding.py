"""One private training of a language model on 1, 4 and 8 devices."""

import pytest

from experiments.language.config import PRESETS
from experiments.language.model import param_shapes
from experiments.language.sharding import mesh_of, shardings
from tests.eight_devices import report_of


@pytest.fixture(scope="module")
def report():
    return report_of("tests.language.on_a_mesh", "--xla_backend_optimization_level=0")


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "devices"), [("eight", 8), ("four", 4), ("explicit", 8)])
def test_the_run_does_not_depend_on_the_devices_and_its_memory_does(report, mesh, devices):
    """Trap 13: one noise. Norms and step counts are on every device; all else is spread.

    With noise alone the parameters are the same to the bit, but for an Explicit mesh: other operations are fused there,
    and round otherwise.
    """
    found = report[mesh]
    assert found["sharded"]
    assert found["noise_error"] <= (1e-6 if mesh == "explicit" else 0)
    assert found["error"] <= 2e-5
    assert found["bytes"] <= 1.1 / devices


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["eight", "four", "explicit"])
def test_no_noise_is_sent_between_devices(report, mesh):
    """Parameters are gathered once, and their gradients added up once; there is nothing else to gather or to add."""
    sent, num_params = report[mesh]["sent"], report[mesh]["num_params"]
    assert set(sent) == {"all-gather", "all-reduce"}
    assert sent["all-gather"] <= num_params
    assert sent["all-reduce"] <= num_params


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["on one", "on four"])
def test_a_checkpoint_of_eight_devices_goes_on_elsewhere(report, mesh):
    is_finite, lost = report[mesh]
    assert is_finite
    assert lost == 0


def test_each_weight_has_its_axis():
    found = shardings(param_shapes(PRESETS["1B"]), mesh_of(1))
    layers = found["layers"]
    assert tuple(layers["attention"]["query"]["kernel"].spec) == (None, "data", None)
    assert tuple(layers["attention"]["output"]["kernel"].spec) == (None, None, "data")
    assert tuple(layers["attention_norm"]["scale"].spec) == (None, None)
    assert tuple(found["embedding"]["table"].spec) == (None, "data")
    assert tuple(found["head"]["kernel"].spec) == ("data", None)
