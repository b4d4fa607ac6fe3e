"""The reference figures, and small helpers that call the package one direction at a time."""

import json
import pathlib

import numpy as np

from tests.accounting.numeric.inside import RunDescription, SubsampledGaussian, _directions

_DATA = json.loads((pathlib.Path(__file__).parents[2] / "data" / "subsampled_gaussian.json").read_text())
COMPOSED, ONE_STEP = _DATA["composed"], _DATA["one_step"]
DIRECTIONS = {"remove": 1.0, "add": -1.0}


def columns(rows, *names):
    """The named columns as float64 arrays."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


def run(noise_multiplier, sampling_prob, num_steps, direction):
    """A `RunDescription` of one phase."""
    return RunDescription(
        (SubsampledGaussian(float(noise_multiplier), float(sampling_prob), float(num_steps), DIRECTIONS[direction]),)
    )


def _run(function, sigma, p, steps, direction, last):
    with np.errstate(all="ignore"):
        rows = [function(run(*row[:3], direction), row[3]) for row in np.broadcast(sigma, p, steps, last)]
    return _directions.EstimatedBounds(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))


def direction_epsilon(sigma, p, steps, direction, delta):
    """Brackets on epsilon in one direction, arrays of equal length."""
    width = _directions.RELATIVE_WIDTH
    return _run(
        lambda one, at: _directions.direction_epsilon(one, at, 0.0, width), sigma, p, steps, direction, np.log(delta)
    )


def direction_log_delta(sigma, p, steps, direction, epsilon):
    """Brackets on log delta in one direction, arrays of equal length."""

    def one_log_delta(one, at):
        answer = _directions.direction_log_deltas(one, np.array([at]), np.full(1, -np.inf))
        return [leaf[0] for leaf in answer]

    return _run(one_log_delta, sigma, p, steps, direction, epsilon)
