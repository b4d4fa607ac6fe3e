"""Options of the compiler reach the programs that can have them, and no transformation is lost by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax._core import xla
from gdpjax._core.checks import at_once


@xla.jit
def cubed(x):
    return x**3 + jnp.cumsum(x)


X = np.array([1.0, 2.0], np.float32)
EXPECTED = [2.0, 11.0]


def test_it_is_jit_at_the_top_and_inside_every_transformation():
    np.testing.assert_array_equal(cubed(X), EXPECTED)
    np.testing.assert_array_equal(jax.jit(lambda x: cubed(x))(X), EXPECTED)
    np.testing.assert_array_equal(jax.jit(lambda y: cubed(X) + y)(0.0), EXPECTED)
    np.testing.assert_array_equal(jax.vmap(cubed)(X[None])[0], EXPECTED)
    np.testing.assert_array_equal(jax.grad(lambda x: cubed(x).sum())(X), [5.0, 13.0])
    np.testing.assert_array_equal(jax.lax.scan(lambda x, _: (cubed(x), None), X, length=1)[0], EXPECTED)

    @jax.jit
    def with_constants(y):
        with at_once():
            now = np.asarray(cubed(jnp.asarray(X)))
        return y + now

    np.testing.assert_array_equal(with_constants(0.0), EXPECTED)


def test_static_arguments_are_passed_on():
    scaled = xla.jit(lambda x, factor: x * factor, static_argnames="factor")
    np.testing.assert_array_equal(scaled(X, factor=2), [2.0, 4.0])


@pytest.mark.skipif(not xla._KNOWN, reason="this jaxlib has no such option")
def test_the_outermost_call_gets_the_options_and_an_inner_one_does_not(monkeypatch):
    """An option that no compiler knows tells who got it."""
    monkeypatch.setattr(xla, "OPTIONS", {"xla_no_such_option": False})
    plus = xla.jit(lambda x: x + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        plus(X)
    np.testing.assert_array_equal(jax.jit(lambda x: plus(x))(X), X + 1)


def test_an_accountant_works_where_everything_but_the_trace_is_concrete():
    inside = jax.jit(lambda scale: scale * gdpjax.accounting.gdp_delta(1.0, 1.0))(1.0)
    np.testing.assert_allclose(inside, gdpjax.accounting.gdp_delta(1.0, 1.0), rtol=1e-6)
