"""Values that transformations after the noise are given beside the updates: public ones, named ``public_...``.

    tx = optax.chain(gdpjax.privatize(...), optax.adam(1e-3), gdpjax.public_values(optax.contrib.reduce_on_plateau()))
    updates, state = tx.update(clipped_sum, state, params, public_value=validation_loss)

A chain gives the extra arguments of ``update`` to all its transformations. One after the noise that is given a training
loss or gradient (a line search, a learning rate that is lowered on a plateau) releases it without noise, so a private
transform refuses every extra argument that is not named as public.
"""

from typing import Any

import optax

from gdpjax._core.arguments import check_transformation
from gdpjax._core.types import PyTree

_PREFIX = "public_"


def public_values(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Give ``inner`` the extra arguments of ``update`` that are named ``public_...``, without that prefix.

    update(updates, state, params, public_value=v) calls inner.update(updates, state, params, value=v)

    Args:
      inner: a transformation after the noise, such as `optax.contrib.reduce_on_plateau`. What it is given must be
        public: a loss on public data, or on data whose use is accounted for elsewhere. Nothing checks that.

    Returns:
      An optax transformation with the state of ``inner``. Extra arguments of other names do not reach ``inner``.

    Raises:
      ValueError: inner is no optax transformation.

    >>> import gdpjax, jax, jax.numpy as jnp
    >>> batches = gdpjax.sampling.Poisson(num_examples=100, expected_batch_size=10, num_steps=20)
    >>> private = gdpjax.privatize(gdpjax.Sensitivity(1.0), noise_multiplier=1.0, batches=batches,
    ...                            key=jax.random.key(0))
    >>> tx = optax.chain(private, optax.sgd(0.1), public_values(optax.contrib.reduce_on_plateau()))
    >>> params = jnp.zeros(2)
    >>> updates, state = tx.update(jnp.ones(2), tx.init(params), params, public_value=0.5)
    """
    check_transformation("inner", inner, "optax.contrib.reduce_on_plateau()")
    with_values = optax.with_extra_args_support(inner)

    def update(updates: PyTree, state: Any, params: PyTree | None = None, **extra_args: Any) -> tuple[PyTree, PyTree]:
        values = {name.removeprefix(_PREFIX): value for name, value in extra_args.items() if name.startswith(_PREFIX)}
        return with_values.update(updates, state, params, **values)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def refuse_private_values(extra_args: dict[str, Any]) -> None:
    """Raise ValueError for extra arguments of ``update`` that are not named as public."""
    for name in extra_args:
        if not name.startswith(_PREFIX):
            raise ValueError(
                f"update of a private transform got {name}=, which transformations after the noise would use as it "
                "is. If it is public, such as a loss on public data, wrap the transformation that needs it, "
                f"gdpjax.public_values(...), and pass {_PREFIX}{name}="
            )
