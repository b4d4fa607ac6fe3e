"""Worst cases of this installation's private step: pairs of neighbouring data sets made to show what could go wrong.

Two steps of Poisson sampling, `clipped_grad` and `privatize` on a data set of one ordinary example and one canary,
which is there or not. The loss is linear, its gradient is the example, so the attacker chooses both gradients of the
canary:

* ``steady``: norm C in one direction, the worst case of the accounting itself: noise too small, drawn too coarsely.
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
from gdpjax.sampling import poisson_sample
from gdpjax.tradeoff import Curve, Gaussian, subsample
from gdpjax.transforms import privatize

_CLIP_NORM = 1.0
_NUM_STEPS = 2
_NUM_EXAMPLES = 2
_CANARY = 1


class WorstCase(NamedTuple):
    """A release for `gdpjax.auditing.audit_step` and the run that it is accounted as."""

    release: Any
    noise_multiplier: float
    sampling_prob: float
    num_steps: int

    @property
    def run(self) -> tuple[float, float, int]:
        """(noise_multiplier, sampling_prob, num_steps), as the accountants take them."""
        return self.noise_multiplier, self.sampling_prob, self.num_steps

    def claimed(self) -> Curve:
        """The trade-off curve: exact, steps being all of the data or a single one."""
        if self.sampling_prob < 1 and self.num_steps > 1:
            raise ValueError("no closed form of several sampled steps; use gdpjax.accounting.tradeoff_bounds")
        return subsample(Gaussian(math.sqrt(self.num_steps) / self.noise_multiplier), self.sampling_prob)


def worst_cases() -> dict[str, WorstCase]:
    """Every worst case by name; those with a linear loss share one compiled program."""
    release = _linear_release()

    def case(
        first: PyTree, second: PyTree, noise_multiplier: float = 1.0, sampling_prob: float = 1.0,
        num_steps: int = _NUM_STEPS,
    ) -> WorstCase:  # fmt: skip
        canary = jax.tree.map(lambda a, b: np.stack([a, b]).astype(np.float32), first, second)
        arrays = (canary, np.float32(noise_multiplier), np.float32(sampling_prob))
        return WorstCase(jax.tree_util.Partial(release, *arrays), noise_multiplier, sampling_prob, num_steps)

    ones = {"first": np.ones(4), "second": np.ones((2, 4))}
    unit = _times(ones, _CLIP_NORM / math.sqrt(12))
    turned = {"first": unit["first"] * [1, -1, 1, -1], "second": unit["second"] * [[-1], [1]]}
    return {
        "steady": case(unit, unit),
        "turning": case(unit, turned),
        "huge": case(_times(ones, 1e4), _times(ones, 1e4)),
        "overflowing": case(_times(ones, 1e30), _times(ones, 1e30)),
        "missing": case(_times(ones, math.nan), _times(ones, math.nan)),
        "silent": case(_times(ones, 0.0), _times(ones, 0.0)),
        "sampled": case(unit, _times(ones, 0.0), noise_multiplier=0.25, sampling_prob=0.25, num_steps=1),
        "mislabeled": WorstCase(_network_release(), 1.0, 1.0, 1),
    }


def _times(tree: PyTree, factor: float) -> PyTree:
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def _linear_release() -> Callable[..., list[PyTree]]:
    def loss(params: PyTree, gradient: PyTree) -> Array:
        return sum(jax.tree.leaves(jax.tree.map(lambda p, g: jnp.sum(p * g), params, gradient)))  # pyright: ignore

    grad_fn = clipped_grad(loss, _CLIP_NORM)
    params = {"first": np.zeros(4, np.float32), "second": np.zeros((2, 4), np.float32)}
    # At right angles to the canary, so that the coming and going of this example hides nothing.
    signs = np.array([0.1, -0.1, 0.1, -0.1], np.float32)
    ordinary = jax.tree.map(lambda leaf: np.broadcast_to(signs, leaf.shape), params)

    def release(
        canary: PyTree, noise_multiplier: Array, sampling_prob: Array, key: Array, included: Array
    ) -> list[PyTree]:
        sample_key, noise_key = jax.random.split(key)
        tx = privatize(
            grad_fn, noise_multiplier=noise_multiplier, sampling_prob=sampling_prob,
            expected_batch_size=sampling_prob * _NUM_EXAMPLES, key=noise_key,
        )  # fmt: skip

        def step(state: Any, gradient: tuple[Array, PyTree]) -> tuple[Any, PyTree]:
            rows = jax.tree.map(lambda a, b: jnp.stack([a, b]), ordinary, gradient[1])
            step_key = jax.random.fold_in(sample_key, gradient[0])
            batch = poisson_sample(step_key, _NUM_EXAMPLES, sampling_prob, _NUM_EXAMPLES + 1)
            is_padding = batch.is_padding | ((batch.indices == _CANARY) & ~included)
            picked = jax.tree.map(lambda leaf: leaf[batch.indices], rows)
            update, state = tx.update(grad_fn(params, picked, is_padding=is_padding), state, params)
            return state, update

        return jax.lax.scan(step, tx.init(params), (jnp.arange(_NUM_STEPS), canary))[1]

    return release


def _network_release() -> Callable[..., PyTree]:
    normal = np.random.default_rng(0).normal
    params = {
        "hidden": {"kernel": normal(size=(3, 4)).astype(np.float32), "bias": np.zeros(4, np.float32)},
        "output": {"kernel": normal(size=(4, 2)).astype(np.float32), "bias": np.zeros(2, np.float32)},
    }
    inputs = normal(size=(_NUM_EXAMPLES, 3)).astype(np.float32)
    labels = np.argmax(np.tanh(inputs @ params["hidden"]["kernel"]) @ params["output"]["kernel"], axis=-1)
    labels[_CANARY] = 1 - labels[_CANARY]  # there are two classes

    def loss(params: PyTree, x: Array, y: Array) -> Array:
        hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return -jax.nn.log_softmax(hidden @ params["output"]["kernel"] + params["output"]["bias"])[y]

    grad_fn = clipped_grad(loss, _CLIP_NORM, batch_argnums=(1, 2))

    def release(key: Array, included: Array) -> PyTree:
        tx = privatize(grad_fn, noise_multiplier=1.0, sampling_prob=1.0, expected_batch_size=_NUM_EXAMPLES, key=key)
        is_padding = (jnp.arange(_NUM_EXAMPLES) == _CANARY) & ~included
        return tx.update(grad_fn(params, inputs, labels, is_padding=is_padding), tx.init(params), params)[0]

    return release
