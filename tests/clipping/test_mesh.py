"""A batch over 1, 2 and 8 devices: the same sum, by one float32 all-reduce of the size of the parameters."""

import pytest

from tests.eight_devices import report_of


@pytest.fixture(scope="module")
def report():
    return report_of("tests.clipping.mesh_check")


def test_the_sum_does_not_depend_on_the_devices(report):
    """On any mesh it is that of one device, but for rounding."""
    report = {name: found for name, found in report.items() if name != "checked shard_map"}
    assert len(report) == 4
    for name, found in report.items():
        assert found["error"] <= 1e-5, (name, found)  # rounding, and a slack that holds the devices' share


def test_one_all_reduce_of_the_parameters_in_float32(report):
    """Rows stay where they are; only sums travel."""
    for name, found in report.items():
        if name == "checked shard_map":
            continue
        assert found["all_reduces"] == 1, (name, found)
        assert found["elements"] == 16 * 32 + 32 + 32 * 8, (name, found)
        assert not found["other_types"], (name, found)
        assert found["asked_types"] == ["f32"], (name, found)


def test_a_shard_map_that_adds_gradients_up_is_refused(report):
    """Unclipped sums over devices would have no bound."""
    error, refused, ghost_error, ghost_refused = report["checked shard_map"]
    assert refused is ghost_refused is True
    assert max(error, ghost_error) <= 1e-4
