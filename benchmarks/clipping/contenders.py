"""Everybody's gradient step on JAX, without noise and update: ``step(params, x, y)``.

Each is called as its own documentation does. Those with a microbatch size are tried over several. What a contender
needs is imported when it is built, so that a missing package is reported and not fatal.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.clipping.cases import AUTO, NO_PRIVACY, OPACUS_GHOST, TORCH_NO_PRIVACY
from benchmarks.harness import Contender
from gdpjax import clipped_grad

MICROBATCH_SIZES = (1, 4, 16, 64, 256)
ALL_SIZES = (None, *MICROBATCH_SIZES)
BATCH_ARGNUMS = (1, 2)

Loss = Callable[..., Any]
"""``loss(params, x, y)``, of ONE example."""
Step = Callable[..., Any]
Build = Callable[[Loss, float, int | None], Step]
"""``build(loss, clip_norm, microbatch_size)`` gives the step; None for those of `torch_steps`."""


AXES = (None, 0, 0)
"""The batch axis of each argument of a loss."""


def _no_privacy(loss: Loss, clip_norm: float, size: int | None) -> Step:
    """The step returns the gradient of the batch's mean loss."""

    def step(params: Any, x: Any, y: Any) -> Any:
        def mean_loss(params: Any) -> Any:
            losses = jax.vmap(loss, AXES)(params, x, y)
            return losses.mean()

        return jax.grad(mean_loss)(params)

    return step


def _per_example_gradients(loss: Loss, params: Any, x: Any, y: Any) -> Any:
    """Return a tree whose leaves have a leading axis of examples."""
    gradients = jax.vmap(jax.grad(loss), AXES)
    return gradients(params, x, y)


def _plain_vmap(loss: Loss, clip_norm: float, size: int | None) -> Step:
    """The step forms all gradients and returns sum_i min(1, C / |g_i|) g_i."""

    def step(params: Any, x: Any, y: Any) -> Any:
        grads = _per_example_gradients(loss, params, x, y)

        # The norm of each example's gradient, over all leaves.
        flat = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(grads)]
        squared_norms = sum(jnp.square(leaf).sum(1) for leaf in flat)
        norms = jnp.sqrt(squared_norms)

        scale = jnp.minimum(1.0, clip_norm / norms)
        return jax.tree.map(lambda leaf: jnp.tensordot(scale, leaf, 1), grads)

    return step


def _gdpjax(strategy: str) -> Build:
    def build(loss: Loss, clip_norm: float, size: int | None) -> Step:
        grad_fn = clipped_grad(
            loss,
            clip_norm,
            batch_argnums=BATCH_ARGNUMS,
            strategy=strategy,
            microbatch_size=size,
        )
        return grad_fn.__call__

    return build


def _jax_privacy(loss: Loss, clip_norm: float, size: int | None) -> Step:
    package = importlib.import_module("jax_privacy")
    return package.clipped_grad(
        loss,
        l2_clip_norm=clip_norm,
        batch_argnums=BATCH_ARGNUMS,
        keep_batch_dim=False,
        microbatch_size=size,
    )


def _optax(loss: Loss, clip_norm: float, size: int | None) -> Step:
    """It divides by the batch size, which is undone, and draws its noise even when that is zero, which stays."""
    contrib = importlib.import_module("optax.contrib")

    def step(params: Any, x: Any, y: Any) -> Any:
        aggregate = contrib.differentially_private_aggregate(clip_norm, 0.0, key=jax.random.key(0))
        grads = _per_example_gradients(loss, params, x, y)
        state = aggregate.init(params)
        mean, _ = aggregate.update(grads, state)
        batch_size = x.shape[0]
        return jax.tree.map(lambda leaf: leaf * batch_size, mean)

    return step


PLAIN_VMAP = "plain vmap"

TORCH = ("torch", "opacus")

CONTENDERS = (
    Contender(NO_PRIVACY, _no_privacy),
    Contender(AUTO, _gdpjax("auto")),
    Contender("gdpjax ghost", _gdpjax("ghost"), sizes=ALL_SIZES),
    Contender("gdpjax microbatch", _gdpjax("microbatch"), sizes=MICROBATCH_SIZES),
    Contender("gdpjax vmap", _gdpjax("vmap")),
    Contender(PLAIN_VMAP, _plain_vmap),
    Contender("jax_privacy", _jax_privacy, ("jax_privacy",), ALL_SIZES),
    Contender("optax.contrib", _optax, ("optax.contrib",)),
    Contender(TORCH_NO_PRIVACY, None, TORCH),
    Contender("Opacus hooks", None, TORCH),
    Contender(OPACUS_GHOST, None, TORCH),
)
