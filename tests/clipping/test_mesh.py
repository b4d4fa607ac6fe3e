"""A batch over 1, 2 and 8 devices: the same sum, by one float32 all-reduce of the size of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.eight_devices import report_of


@pytest.fixture(scope="module")
def report():
    return report_of("tests.clipping.mesh_check")


def test_the_sum_does_not_depend_on_the_devices(report):
    """On any mesh it is that of one device, but for rounding."""
    report = {name: found for name, found in report.items() if name != "checked shard_map"}
    assert len(report) == 4
    for name, found in report.items():
        assert found["error"] <= 1e-5, (
            name,
            found,
        )  # rounding, and a slack that holds the devices' share


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


def test_inside_a_sweep_and_a_donating_step():
    """A step that donates its parameters, in a sweep over clip norms and rates, is compiled once."""
    traces = []

    def step(w, x, rate, bound):
        traces.append(1)
        return w - rate * gdpjax.clipped_grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)), bound)(w, x)

    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    fast = {"xla_backend_optimization_level": 0}
    plain = jax.jit(step, compiler_options=fast)
    donating = jax.jit(step, donate_argnums=0, compiler_options=fast)
    w = jnp.ones((3, 2))
    for rate, bound in [(0.1, 1.0), (0.2, 0.5), (0.3, 2.0)]:
        expected = plain(w, x, rate, bound)
        w = donating(w, x, rate, bound)
        np.testing.assert_allclose(w, expected, rtol=1e-5)
    assert len(traces) <= 2  # one trace for each compiled step, which JAX may share
    sweep = jax.jit(jax.vmap(step, (None, None, 0, 0)), compiler_options=fast)
    many = sweep(w, x, np.array([0.1, 0.2], np.float32), np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(many[1], plain(w, x, 0.2, 0.5), rtol=1e-5)
