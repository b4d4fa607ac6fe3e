"""Bracketed search."""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.roots import bisect, geometric_midpoint, whole_midpoint


def test_returns_the_side_that_holds_even_at_a_jump():
    edges = jnp.array([0.3, 2.0, 700.0])
    holds, fails, first_held, last_held = bisect(
        lambda x: x >= edges, jnp.full(3, 1e6), jnp.full(3, 1e-6), midpoint=geometric_midpoint, num_iterations=40
    )
    assert first_held.all()
    assert not last_held.any()
    assert (holds >= edges).all()
    assert (fails < edges).all()
    np.testing.assert_allclose(holds, edges, rtol=1e-6)


def test_a_bracket_that_is_none_is_reported():
    found = bisect(lambda x: x > 5, jnp.ones(1), jnp.full(1, 9.0), midpoint=geometric_midpoint, num_iterations=5)
    assert not found.first_held
    assert found.last_held


def test_whole_numbers_and_jit():
    def largest(limit):
        return bisect(lambda n: n <= limit, 1.0, 2.0**20, midpoint=whole_midpoint, num_iterations=21).holds

    assert [int(jax.jit(largest)(x)) for x in (1.0, 2.5, 777.0, 1e6)] == [1, 2, 777, 1_000_000]
