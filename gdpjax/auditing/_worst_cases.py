"""Worst cases of this installation's private step: pairs of neighbouring data sets made to show what could go wrong.

Two steps of Poisson sampling, `clipped_grad` and `privatize` on a data set of one ordinary example and one canary,
which is there or not. The loss is linear, its gradient is the example, so the attacker chooses both gradients of the
canary:

* ``steady``: norm C in one direction, the worst case of the accounting itself: noise too small, drawn too coarsely.
* ``opposed``: 20 C, against an ordinary example of -10 C: a sum that is clipped, in place of each example.
* ``turning``: another direction in the second step: noise that is used twice cancels.
* ``huge``: 10^4 C in every leaf: clipping that is off, or skips a leaf.
* ``overflowing``: 10^30, whose square is infinite in float32: a norm that comes out as inf or NaN.
* ``missing``: NaN, which must count as no gradient at all.
* ``silent``: zero, so that only its presence could show: a divisor or a noise that follows the realised batch.
* ``sampled``: norm C, in a quarter of the batches of the first step only (so that the curve has a closed form), and
  little noise: an example sampled more often than was accounted for.
* ``mislabeled``: an example with a wrong label in a small network, one step with everything in the batch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, PyTree
from gdpjax.clipping import clipped_grad
from gdpjax.sampling import PoissonNumbers, poisson_sample
from gdpjax.tradeoff import Curve, Gaussian, subsample
from gdpjax.transforms import privatize

CLIP_NORM = 1.0
NUM_COORDINATES = 12


class WorstCase(NamedTuple):
    """A release for `gdpjax.auditing.audit_step` and the run that it is accounted as.

    Attributes:
      release: ``release(key, included)``, which returns what the steps make public.
      noise_multiplier: of every step.
      sampling_prob: of every step.
      num_steps: how many steps the release has.
    """

    release: Any
    noise_multiplier: float = 1.0
    sampling_prob: float = 1.0
    num_steps: int = 2

    @property
    def run(self) -> tuple[float, float, int]:
        """(noise_multiplier, sampling_prob, num_steps), as the accountants take them."""
        return self.noise_multiplier, self.sampling_prob, self.num_steps

    def claimed(self) -> Curve:
        """Return the exact trade-off curve of several steps on all of the data, or of one sampled step."""
        mu = math.sqrt(self.num_steps) / self.noise_multiplier
        return subsample(Gaussian(mu), self.sampling_prob)


def worst_cases() -> dict[str, WorstCase]:
    """Return every worst case by name; those with a linear loss share one compiled program.

    `audit_installation` audits each: ``audit_step(case.release, key, delta=..., claimed=case.claimed())``.

    >>> worst_cases()["sampled"].run
    (0.25, 0.25, 1)
    """
    steps = linear_steps()

    def release(gradients: Array, noise_multiplier: Array, sampling_prob: Array, key: Array, included: Array) -> PyTree:
        is_absent = jnp.stack([jnp.zeros((), bool), ~included])
        return steps(gradients, is_absent, noise_multiplier, sampling_prob, key)[0]

    def case(canary: list[np.ndarray], ordinary: np.ndarray, *run: Any) -> WorstCase:
        # gradients[t, i] is the gradient of example i in step t; the canary is the second example.
        gradients = np.stack([[ordinary, of_step] for of_step in canary]).astype(np.float32)
        claim = WorstCase(release, *run)
        numbers = np.asarray(claim.run[:2], np.float32)
        return claim._replace(release=jax.tree_util.Partial(release, gradients, *numbers))

    # The ordinary example is at right angles to the canary, so that its coming and going hides nothing.
    ones = np.ones(NUM_COORDINATES)
    unit = ones * (CLIP_NORM / np.linalg.norm(ones))
    turned = unit * [1, -1, 1, -1, -1, -1, -1, -1, 1, 1, 1, 1]
    small = 0.1 * np.tile([1, 1, -1, -1], 3)
    return {
        "steady": case([unit, unit], small),
        "opposed": case([20 * unit, 20 * unit], -10 * unit),
        "turning": case([unit, turned], small),
        "huge": case([1e4 * ones, 1e4 * ones], small),
        "overflowing": case([1e30 * ones, 1e30 * ones], small),
        "missing": case([math.nan * ones, math.nan * ones], small),
        "silent": case([0 * ones, 0 * ones], small),
        "sampled": case([unit, 0 * ones], small, 0.25, 0.25, 1),
        "mislabeled": WorstCase(_network_release(), num_steps=1),
    }


def as_params(vector: Array) -> PyTree:
    """Return a vector of `NUM_COORDINATES` numbers as the two leaves of the linear model."""
    return {"first": vector[:4], "second": vector[4:].reshape(2, 4)}


def linear_steps() -> Callable[..., tuple[PyTree, Any]]:
    """Return a function that makes private steps of a linear loss, whose gradients are data.

    The function takes ``(gradients, is_absent, noise_multiplier, sampling_prob, key)``: float32[steps, examples,
    coordinates], bool[examples] for the examples that are masked out of every batch, the two numbers of the mechanism
    and a key. It returns what the steps release, a tree with a leading axis of steps, and the final optimizer state.
    """

    def loss(params: PyTree, gradient: PyTree) -> Array:
        products = jax.tree.map(lambda param, coordinate: jnp.sum(param * coordinate), params, gradient)
        return products["first"] + products["second"]

    grad_fn = clipped_grad(loss, CLIP_NORM)
    params = as_params(np.zeros(NUM_COORDINATES, np.float32))

    def run(
        gradients: Array, is_absent: Array, noise_multiplier: Array, sampling_prob: Array, key: Array
    ) -> tuple[PyTree, Any]:
        num_steps, num_examples, _ = gradients.shape
        sample_key, noise_key = jax.random.split(key)
        batches = PoissonNumbers(sampling_prob, expected_batch_size=sampling_prob * num_examples)
        tx = privatize(grad_fn, noise_multiplier=noise_multiplier, batches=batches, key=noise_key)

        def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, PyTree]:
            # Every batch fits, with two slots to spare; those hold example 0 and must be masked.
            index, gradients = inputs
            step_key = jax.random.fold_in(sample_key, index)
            batch = poisson_sample(step_key, num_examples, sampling_prob, num_examples + 2)
            rows, is_row_absent, is_padding = batch.take(gradients, is_absent)
            clipped_sum = grad_fn(params, jax.vmap(as_params)(rows), is_padding=is_padding | is_row_absent)
            update, state = tx.update(clipped_sum, state, params)
            return state, update

        state, updates = jax.lax.scan(step, tx.init(params), (jnp.arange(num_steps), gradients))
        return updates, state

    return run


def _network_release() -> Callable[..., PyTree]:
    """Return the release of one step of a small network, on two examples of which the canary has a wrong label."""
    normal = np.random.default_rng(0).normal
    params = {"hidden": normal(size=(3, 4)).astype(np.float32), "output": normal(size=(4, 2)).astype(np.float32)}
    inputs = normal(size=(2, 3)).astype(np.float32)

    def logits(params: PyTree, features: Array) -> Array:
        return jnp.tanh(features @ params["hidden"]) @ params["output"]

    def loss(params: PyTree, features: Array, label: Array) -> Array:
        return -jax.nn.log_softmax(logits(params, features))[label]

    # The network is right about the ordinary example. There are two classes: the canary has the other one.
    labels = np.argmax(logits(params, inputs), axis=-1) ^ np.array([0, 1])
    grad_fn = clipped_grad(loss, CLIP_NORM, batch_argnums=(1, 2))

    def release(key: Array, included: Array) -> PyTree:
        batches = PoissonNumbers(1.0, expected_batch_size=2)
        tx = privatize(grad_fn, noise_multiplier=1.0, batches=batches, key=key)
        is_absent = jnp.stack([jnp.zeros((), bool), ~included])
        clipped_sum = grad_fn(params, inputs, labels, is_padding=is_absent)
        update, _ = tx.update(clipped_sum, tx.init(params), params)
        return update

    return release
