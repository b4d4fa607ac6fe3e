"""Scale, then privatize: gradients are clipped and noised in units that earlier steps found.

    training = private_training(plan, loss_fn, optax.adam(1e-3), scale=adam_scale(epsilon=0.01))

Noise of one size on every coordinate drowns those whose gradients are small. With positive factors s_t, one for each
coordinate, a step is

    h_i = s_t * g_i                                                         for the examples i of the batch B_t
    mean_t = (sum_{i in B_t} clip(h_i) + N(0, (s Delta)^2 I)) / (expected batch size * s_t)

and mean_t goes into the optimizer. Clip norm, sensitivity Delta and noise are those of the scaled gradients h_i.

Why the privacy is that of the same steps without factors: s_t is a function of the optimizer's state before the step,
and so of earlier noisy means, which are counted as released. Given those, the step is the same Gaussian mechanism on a
sum in which one example moves at most Delta, whatever s_t is; and dividing by s_t is post-processing. Composition, and
the matrix mechanism for correlated noise, allow that the function of a step depends on earlier outputs.

The scaled gradients are gradients of the loss itself, in other coordinates: at parameters theta + s_t * phi the
derivative with respect to phi is s_t * g_i. So `gdpjax.clipped_grad` computes, clips and adds them up as any others.

Reference: Ganesh, McMahan, Thakurta, arXiv:2507.01129, algorithm 8.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core.checks import OPEN_UNIT, Domain, checked_scalar
from gdpjax._core.shown import shown
from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, nodes_of, num_elements, wide_dtype
from gdpjax._core.types import Array, PyTree, Scalar

Scale = Callable[[Any], PyTree]
"""From the optimizer's state before a step to the factors of the step."""

_EPSILON = Domain("a number > 0, from 1e-15 to 1e15", lambda x: (x >= 1e-15) & (x <= 1e15))
"""Neither its square nor a quotient of two such numbers leaves the range of float32."""


def adam_scale(*, epsilon: Scalar, b2: Scalar = 0.999) -> Scale:
    """Return the factors of Adam's own preconditioner, for ``private_training(..., scale=adam_scale(epsilon=0.01))``.

    s = r / (sqrt(v / (1 - b2^t)) + epsilon), with v the second moments after t steps

    The number r makes the root mean square of 1 / s over all coordinates 1. Then the noise of the mean has the same
    total variance as without factors, and the clip norm is in the units of the gradients as before. (A mean square of s
    itself would be that of the few coordinates whose second moments happen to be small after the first steps; the
    others would get noise a hundred times as large.) This normalisation is not in the paper; r is computed from v, so
    it costs no privacy. A leaf whose second moments are all zero has the factor 1 and does not enter r: every leaf at
    the first step, and frozen leaves always.

    Args:
      epsilon: from 1e-15 to 1e15, in the units of the gradient; the larger, the closer the factors are to 1. Begin with
        the standard deviation of the noise of the mean, noise_multiplier * clip / expected_batch_size. It is not the
        optimizer's own, and must not be as small: where v is mostly noise, a coordinate that drew little of it at the
        first step gets a large factor, and so little noise from then on. Such coordinates decide the norms of all
        scaled gradients.
      b2: in (0, 1), the decay of the second moments; the same as the optimizer's, where it corrects the bias.

    Returns:
      A function from the state of an optimizer with one `optax.scale_by_adam` in it (adam, adamw, nadam) to a tree like
      the parameters.

    Raises:
      ValueError: numbers out of range; in the returned function, not exactly one state of scale_by_adam.

    Reference: Ganesh, McMahan, Thakurta, arXiv:2507.01129, algorithm 8.

    >>> optimizer = optax.adam(0.1)
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> scale = jax.jit(adam_scale(epsilon=1e-8))
    >>> scale(state).tolist()
    [1.0, 1.0]
    >>> _, state = jax.jit(optimizer.update)(jnp.array([1.0, 7.0]), state, params)
    >>> [round(float(1 / factor), 4) for factor in scale(state)]  # in proportion to 1 and 7
    [0.2, 1.4]
    """
    epsilon = checked_scalar("epsilon", epsilon, _EPSILON)
    b2 = checked_scalar("b2", b2, OPEN_UNIT)

    def scale(optimizer_state: Any) -> PyTree:
        moments = _adam_state(optimizer_state)
        steps = jnp.asarray(moments.count, jnp.float32)

        # 1 - b2^t without cancellation. Before the first step it is 0, and so are the second moments.
        unbiased = jnp.where(steps > 0, -jnp.expm1(steps * jnp.log(b2)), 1)

        def denominator(second: Array) -> Array:
            wide = second.astype(wide_dtype(second))
            return jnp.sqrt(wide / unbiased) + epsilon

        # r is the root mean square of the denominators, over the leaves that have second moments.
        total = jnp.zeros(())
        count = jnp.zeros(())
        for second in jax.tree.leaves(moments.nu):
            total += jnp.where(_has_moments(second), jnp.sum(denominator(second) ** 2), 0)
            count += jnp.where(_has_moments(second), float(num_elements(second)), 0)
        root_mean_square = jnp.sqrt(total / jnp.maximum(count, 1))

        def factors(second: Array) -> Array:
            return jnp.where(_has_moments(second), root_mean_square / denominator(second), 1)

        return jax.tree.map(factors, moments.nu)

    return scale


def _has_moments(second: Array) -> Array:
    """Return whether any second moment of a leaf is not zero; NaN counts."""
    return jnp.any(second != 0)


def _adam_state(optimizer_state: Any) -> optax.ScaleByAdamState:
    """Return the one state of scale_by_adam in the state of an optimizer."""
    states = nodes_of(optimizer_state, optax.ScaleByAdamState)
    if len(states) != 1:
        raise ValueError(
            f"adam_scale wants an optimizer with one optax.scale_by_adam in it, such as optax.adamw(1e-3), got "
            f"{len(states)} in its state; for others write a function from the optimizer's state to positive factors"
        )
    return states[0]


def factors_of(
    scale: Scale,
    optimizer_state: Any,
    params: PyTree,
    trainable: PyTree | None,
) -> PyTree:
    """Return the factors of a step, checked, as a tree like the parameters.

    If any factor is not finite or not positive, all of them are NaN, and so is the noisy mean that is divided by them.

    Args:
      scale: from the optimizer's state to the factors.
      optimizer_state: the state before the step.
      params: the parameters.
      trainable: a pytree (prefix) of bools, or None.

    Raises:
      ValueError: the factors are no such tree, or a leaf is not real or does not broadcast to its parameter.
    """
    given = scale(optimizer_state)
    whole = _filled_in(given, params)

    def checked(path: Any, param: Any, factor: Any, trained: bool) -> Array:
        # Leaves that are not trained have no gradient to scale.
        if not trained:
            return jnp.ones(())
        return _checked_factor(leaf_name(path), param, factor)

    trained = is_trained(params, trainable)
    factors = jax.tree_util.tree_map_with_path(checked, params, whole, trained)

    # One factor that is not finite and positive makes all of them NaN.
    is_valid = jnp.asarray(True)
    for factor in jax.tree.leaves(factors):
        # Numbers below the normal ones may be taken for zero.
        smallest = jnp.finfo(factor.dtype).tiny
        is_positive = factor >= smallest
        is_valid &= jnp.all(is_positive & (factor < jnp.inf))
    return jax.tree.map(lambda factor: jnp.where(is_valid, factor, jnp.nan), factors)


def _filled_in(given: PyTree, params: PyTree) -> PyTree:
    """Return a tree like the parameters, of factors that are given for whole branches of it.

    An optimizer behind optax.masked keeps nothing of the other leaves, and so gives no factor for them. Those that are
    not trained need none, and `_checked_factor` refuses the rest.
    """

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    def for_branch(factor: Any, branch: PyTree) -> PyTree:
        return jax.tree.map(lambda _: factor, branch)

    return jax.tree.map(for_branch, given, params, is_leaf=is_masked)


def _checked_factor(name: str, param: Any, factor: Any) -> Array:
    """Return the factor of one trained leaf in the dtype of its sum."""
    # Broadcasting must not make the gradient larger.
    shape = jnp.shape(param)
    is_floating_factor = jnp.issubdtype(jnp.result_type(factor), jnp.floating)
    if not is_floating_factor or np.broadcast_shapes(jnp.shape(factor), shape) != shape:
        raise ValueError(
            f"scale must return positive floating-point factors that broadcast to the parameters, got {shown(factor)} "
            f"for parameter {name} of shape {shape}"
        )
    return jnp.asarray(factor).astype(wide_dtype(param))


def is_trained(params: PyTree, trainable: PyTree | None) -> PyTree:
    """Return for each leaf whether it is differentiated."""

    def is_differentiated(param: Any, mark: Any) -> bool:
        return bool(mark) and is_floating(param)

    marks = broadcast_trainable(trainable, params)
    return jax.tree.map(is_differentiated, params, marks)


def origin(params: PyTree, trainable: PyTree | None) -> PyTree:
    """Return phi = 0: zeros in float32 or wider at the trained leaves, and the other parameters as they are."""

    def at_zero(param: Any, trained: bool) -> Any:
        if not trained:
            return param
        return jnp.zeros_like(param, dtype=wide_dtype(param))

    trained = is_trained(params, trainable)
    return jax.tree.map(at_zero, params, trained)


def in_scaled_space(loss_fn: Callable[..., Any], trainable: PyTree | None) -> Callable[..., Any]:
    """Return ``loss(phi, params, factors, *example)``, the loss of one example at params + factors * phi."""

    def moved(param: Any, factor: Array, offset: Any, trained: bool) -> Any:
        # Where nothing is trained, `origin` has the parameter itself.
        if not trained:
            return offset
        step = factor * offset
        return param + step.astype(param.dtype)

    def scaled_loss(
        phi: PyTree,
        params: PyTree,
        factors: PyTree,
        *example: Any,
    ) -> Any:
        trained = is_trained(params, trainable)
        moved_params = jax.tree.map(moved, params, factors, phi, trained)
        return loss_fn(moved_params, *example)

    return scaled_loss


def unscaled(mean: PyTree, factors: PyTree) -> PyTree:
    """Return the noisy mean divided by the factors; zeros of leaves that are not trained stay so."""

    def divided(leaf: Array, factor: Array) -> Array:
        if not is_floating(leaf):
            return leaf
        return leaf / factor

    return jax.tree.map(divided, mean, factors)
