"""The reference figures, and small helpers that call the package one direction at a time."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax.accounting._numeric import _driver
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

_DATA = json.loads((pathlib.Path(__file__).parents[2] / "data" / "subsampled_gaussian.json").read_text())
COMPOSED, ONE_STEP = _DATA["composed"], _DATA["one_step"]
DIRECTIONS = {"remove": 1.0, "add": -1.0}


def columns(rows, *names):
    """The named columns as float64 arrays."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


def run(noise_multiplier, sampling_prob, num_steps, direction):
    """A `Run` of one phase; call it with x64 enabled."""
    values = (noise_multiplier, sampling_prob, num_steps, DIRECTIONS[direction], 1.0)
    return Run(Step(*(jnp.asarray([float(value)]) for value in values)))


ROWS = 40  # one shape, so one compilation


@functools.partial(jax.jit, static_argnums=0)
def _mapped(function, count, *rows):
    def body(i, out):
        return jax.tree.map(lambda old, new: old.at[i].set(new), out, function(*(row[i] for row in rows)))

    zeros = jnp.zeros(ROWS)
    return jax.lax.fori_loop(0, count, body, _driver.Answer(zeros, zeros, zeros))


def _run(function, sigma, p, steps, direction, last):
    count = len(sigma)
    rows = np.broadcast_arrays(sigma, p, steps, DIRECTIONS[direction], last)
    with jax.enable_x64(True):
        answer = _mapped(function, count, *(np.pad(row, (0, ROWS - count), mode="edge") for row in rows))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], answer)


def _epsilon(sigma, p, steps, sign, log_delta):
    one = Run(Step(sigma[None], p[None], steps[None], sign[None], jnp.ones(1)))
    return _driver.direction_epsilon(one, log_delta, jnp.zeros_like(log_delta), _driver.RELATIVE_WIDTH)


def _log_delta(sigma, p, steps, sign, epsilon):
    one = Run(Step(sigma[None], p[None], steps[None], sign[None], jnp.ones(1)))
    answer = _driver.direction_log_deltas(one, epsilon[None], jnp.full(1, -jnp.inf))
    return jax.tree.map(lambda leaf: leaf[0], answer)


def direction_epsilon(sigma, p, steps, direction, delta):
    """Brackets on epsilon in one direction, arrays of equal length."""
    return _run(_epsilon, sigma, p, steps, direction, np.log(delta))


def direction_log_delta(sigma, p, steps, direction, epsilon):
    """Brackets on log delta in one direction, arrays of equal length."""
    return _run(_log_delta, sigma, p, steps, direction, epsilon)
