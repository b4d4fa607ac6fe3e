"""Low-rank adapters over a frozen language model.

    lora = LoraConfig(rank=8, targets="query|value")
    base = frozen(params)                                   # bfloat16
    adapters = init_adapters(base, lora, key)
    loss = sequence_loss(config, joined(adapters, base), tokens, lora=lora)
    weights = merge(adapters, base, lora)                   # of a model without adapters

An adapted weight W computes x W + (alpha / rank) (x A) B, where A has ``rank`` columns and B as many rows. Only A and B
are trained. B starts at zero, so that the adapted model begins equal to the base. Under differential privacy the norm
of an example's gradient, the clipped sum and the noise are those of A and B alone.

Reference: Hu et al., arXiv:2106.09685.
"""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PRNGKeyArray

from gdpjax.sweeps import UserError

Params = dict[str, Any]
"""Nested dictionaries of arrays."""


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """The configuration of adapters: the weights that get one, and its rank.

    Attributes:
      rank: columns of A and rows of B.
      alpha: the product of A and B is multiplied by alpha / rank.
      targets: a regular expression that is searched for in the path of a weight, such as "layers/attention/query".

    >>> lora = LoraConfig(rank=4, alpha=8.0, targets="query|value")
    >>> lora.scale, lora.adapts("layers/attention/value"), lora.adapts("layers/attention/key")
    (2.0, True, False)
    """

    rank: int = 8
    alpha: float = 16.0
    targets: str = "layers/attention/(query|value)"

    @property
    def scale(self) -> float:
        """Return the number by which the product of A and B is multiplied."""
        return self.alpha / self.rank

    def adapts(self, path: str) -> bool:
        """Return whether the weight at this path gets an adapter."""
        return re.search(self.targets, path) is not None


def flat(params: Params) -> dict[str, Any]:
    """Return the arrays by their paths, such as "layers/attention/query/kernel"."""
    return dict(flatten_dict(params, sep="/"))


def nested(arrays: dict[str, Any]) -> Params:
    """Return arrays that are named by their paths as nested dictionaries."""
    return unflatten_dict(arrays, sep="/")


def init_adapters(params: Params, lora: LoraConfig, key: PRNGKeyArray) -> Params:
    """Return new adapters for a model: A random, and B zero.

    The entries of A are normal with variance 1 / inputs. Weights [L, inputs, outputs] of a stack of layers get stacks
    A [L, inputs, rank] and B [L, rank, outputs]. Adapters are in float32, whatever the type of the model.

    Args:
      params: the parameters of the model, or their shapes.
      lora: which weights get adapters.
      key: a key for A.

    Raises:
      UserError: the regular expression matches no weight.

    >>> shapes = {"head": {"kernel": jax.ShapeDtypeStruct((3, 16, 32), jnp.float32)}}
    >>> adapters = init_adapters(shapes, LoraConfig(rank=2, targets="head"), jax.random.key(0))
    >>> jax.tree.map(jnp.shape, adapters)
    {'head': {'lora_a': (3, 16, 2), 'lora_b': (3, 2, 32)}}
    """
    arrays = flat(params)
    weights = sorted(name.removesuffix("/kernel") for name in arrays if name.endswith("/kernel"))
    chosen = [path for path in weights if lora.adapts(path)]
    if not chosen:
        raise UserError(f"targets {lora.targets!r} of the adapters match none of the weights: {', '.join(weights)}")
    adapters = {}
    for path, own_key in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
        *stack, inputs, outputs = arrays[f"{path}/kernel"].shape
        adapters[f"{path}/lora_a"] = jax.random.normal(own_key, (*stack, inputs, lora.rank)) / math.sqrt(inputs)
        adapters[f"{path}/lora_b"] = jnp.zeros((*stack, lora.rank, outputs))
    return nested(adapters)


def frozen(params: Params, dtype: Any = jnp.bfloat16) -> Params:
    """Return parameters that will not be trained, cast to a narrow type."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def joined(adapters: Params, base: Params) -> Params:
    """Return the parameters of the adapted model.

    >>> joined({"head": {"lora_a": 1, "lora_b": 2}}, {"head": {"kernel": 3}, "norm": {"scale": 4}})
    {'head': {'kernel': 3, 'lora_a': 1, 'lora_b': 2}, 'norm': {'scale': 4}}
    """
    return nested(flat(base) | flat(adapters))


def merge(adapters: Params, base: Params, lora: LoraConfig) -> Params:
    """Return the weights W + (alpha / rank) A B of a model without adapters that computes the same.

    Products and sums are in float32. The result has the type of the base: in bfloat16 the sum is rounded, which may
    lose small changes. Cast the base to float32 first to keep them.
    """
    arrays = flat(base)
    parts = flat(adapters)
    for name in parts:
        if name.endswith("/lora_a"):
            path = name.removesuffix("lora_a")
            product = jnp.matmul(parts[name], parts[f"{path}lora_b"], precision=jax.lax.Precision.HIGHEST)
            kernel = arrays[f"{path}kernel"]
            merged = kernel.astype(jnp.float32) + lora.scale * product
            arrays[f"{path}kernel"] = merged.astype(kernel.dtype)
    return nested(arrays)
