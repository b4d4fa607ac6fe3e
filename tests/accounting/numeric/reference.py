"""The reference figures, and small helpers that call the package one direction at a time."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax.accounting._numeric import _driver
from gdpjax.accounting._numeric._moments import Step

_DATA = json.loads((pathlib.Path(__file__).parents[2] / "data" / "subsampled_gaussian.json").read_text())
COMPOSED, ONE_STEP = _DATA["composed"], _DATA["one_step"]
DIRECTIONS = {"remove": 1.0, "add": -1.0}


def columns(rows, *names):
    """The named columns as float64 arrays."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


def step(noise_multiplier, sampling_prob, num_steps, direction):
    """A `Step` of one phase; call it with x64 enabled."""
    values = (noise_multiplier, sampling_prob, num_steps, DIRECTIONS[direction])
    return Step(*(jnp.asarray([float(value)]) for value in values))


@functools.partial(jax.jit, static_argnums=0)
def _mapped(function, *rows):
    return jax.lax.map(lambda row: function(*row), rows)


def _epsilon(sigma, p, steps, sign, log_delta):
    one = Step(sigma[None], p[None], steps[None], sign[None])
    return _driver._direction_epsilon(one, log_delta, jnp.zeros_like(log_delta), _driver.RELATIVE_WIDTH)


def _log_delta(sigma, p, steps, sign, epsilon):
    one = Step(sigma[None], p[None], steps[None], sign[None])
    return _driver.direction_log_delta(one, epsilon, jnp.full_like(epsilon, -jnp.inf))


def direction_epsilon(sigma, p, steps, direction, delta):
    """Brackets on epsilon in one direction, arrays of equal length."""
    with jax.enable_x64(True):
        sign = np.full(np.shape(sigma), DIRECTIONS[direction])
        return jax.tree.map(np.asarray, _mapped(_epsilon, sigma, p, steps, sign, np.log(delta)))


def direction_log_delta(sigma, p, steps, direction, epsilon):
    """Brackets on log delta in one direction, arrays of equal length."""
    with jax.enable_x64(True):
        sign = np.full(np.shape(sigma), DIRECTIONS[direction])
        return jax.tree.map(np.asarray, _mapped(_log_delta, sigma, p, steps, sign, epsilon))
