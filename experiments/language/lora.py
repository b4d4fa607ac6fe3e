"""Low-rank adapters over a frozen language model.

    lora = LoraConfig(rank=8, targets="query|value")
    base = frozen(params)                                   # bfloat16
    adapters = init_adapters(base, lora, key)
    loss = sequence_loss(config, joined(adapters, base), tokens, lora=lora)
    weights = merge(adapters, base, lora)                   # of a model without adapters

An adapted weight W computes x W + (alpha / rank) (x A) B, where A has ``rank`` columns and B as many rows. Only A and B
are trained. B starts at zero, so that the adapted model begins equal to the base. Under differential privacy the norm
of an example's gradient, the clipped sum and the noise are those of A and B alone.

Train the adapters as the parameters, and hand the base to the loss as an array that all examples share: then neither
the optimizer nor the noise has anything to do with the base. Where the base has to be among the parameters, give
`trainable_mask` to `trainable=` of `gdpjax.training.private_training` and of `gdpjax.clipped_grad`.

Reference: Hu et al., arXiv:2106.09685.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from experiments.errors import UserError

Params = Mapping[str, Any]
"""Nested dictionaries of arrays."""

KERNEL = "kernel"
LORA_A = "lora_a"
LORA_B = "lora_b"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """The configuration of adapters: the weights that get one, and its rank.

    Attributes:
      rank: columns of A and rows of B.
      alpha: the product of A and B is multiplied by alpha / rank.
      targets: a regular expression that is searched for in the path of a weight, such as "layers/attention/query".

    Raises:
      UserError: a rank below 1, an alpha that is no positive number, or no regular expression.

    >>> lora = LoraConfig(rank=4, alpha=8.0, targets="query|value")
    >>> lora.scale, lora.adapts("layers/attention/value"), lora.adapts("layers/attention/key")
    (2.0, True, False)
    """

    rank: int = 8
    alpha: float = 16.0
    targets: str = "layers/attention/(query|value)"

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UserError(f"expected a rank of LoRA of at least 1, got {self.rank!r}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise UserError(f"expected alpha of LoRA to be a positive number, got {self.alpha!r}")
        try:
            re.compile(self.targets)
        except re.error as error:
            raise UserError(
                f"expected targets of LoRA to be a regular expression, got {self.targets!r}: {error}"
            ) from None

    @property
    def scale(self) -> float:
        """Return the number by which the product of A and B is multiplied."""
        return self.alpha / self.rank

    def adapts(self, path: str) -> bool:
        """Return whether the weight at this path gets an adapter."""
        return re.search(self.targets, path) is not None


def weight_paths(params: Params, prefix: str = "") -> list[str]:
    """Return the paths of all weights that may be adapted: those that are multiplied by activations.

    Args:
      params: the parameters of a model, or their shapes.
      prefix: the path of ``params`` itself.
    """
    paths = []
    for name, child in params.items():
        path = f"{prefix}/{name}" if prefix else name
        if not isinstance(child, Mapping):
            continue
        if KERNEL in child:
            paths.append(path)
        else:
            paths.extend(weight_paths(child, path))
    return sorted(paths)


def adapted_paths(params: Params, lora: LoraConfig) -> list[str]:
    """Return the paths of the weights that get adapters.

    Raises:
      UserError: the regular expression matches no weight.
    """
    paths = weight_paths(params)
    chosen = [path for path in paths if lora.adapts(path)]
    if not chosen:
        raise UserError(
            f"expected targets of LoRA to match a weight, but {lora.targets!r} matches none of: {', '.join(paths)}"
        )
    return chosen


def init_adapters(params: Params, lora: LoraConfig, key: PRNGKeyArray) -> dict[str, Any]:
    """Return new adapters for a model: A random, and B zero.

    The entries of A are normal with variance 1 / inputs. Weights [L, inputs, outputs] of a stack of layers get stacks
    A [L, inputs, rank] and B [L, rank, outputs]. Adapters are in float32, whatever the type of the model.

    Args:
      params: the parameters of the model, or their shapes.
      lora: which weights get adapters.
      key: a key for A.

    Raises:
      UserError: the regular expression matches no weight, or a weight is smaller than the rank.

    >>> shapes = {"head": {"kernel": jax.ShapeDtypeStruct((3, 16, 32), jnp.float32)}}
    >>> adapters = init_adapters(shapes, LoraConfig(rank=2, targets="head"), jax.random.key(0))
    >>> jax.tree.map(jnp.shape, adapters)
    {'head': {'lora_a': (3, 16, 2), 'lora_b': (3, 2, 32)}}
    """
    adapters: dict[str, Any] = {}
    paths = adapted_paths(params, lora)
    for path, path_key in zip(paths, jax.random.split(key, len(paths)), strict=True):
        *stack, inputs, outputs = _at(params, path)[KERNEL].shape
        if lora.rank > min(inputs, outputs):
            raise UserError(
                f"expected a rank of LoRA of at most {min(inputs, outputs)} for {path} [{inputs}, {outputs}], got "
                f"{lora.rank}"
            )
        a = jax.random.normal(path_key, (*stack, inputs, lora.rank)) / math.sqrt(inputs)
        b = jnp.zeros((*stack, lora.rank, outputs))

        # Put both in place, under the same names as in the model.
        *parents, name = path.split("/")
        place = adapters
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = {LORA_A: a, LORA_B: b}
    return adapters


def frozen(params: Params, dtype: Any = jnp.bfloat16) -> dict[str, Any]:
    """Return parameters that will not be trained, cast to a narrow type."""
    return jax.tree.map(lambda x: x.astype(dtype), dict(params))


def joined(adapters: Params, base: Params) -> dict[str, Any]:
    """Return the parameters of the adapted model.

    >>> joined({"head": {"lora_a": 1, "lora_b": 2}}, {"head": {"kernel": 3}, "norm": {"scale": 4}})
    {'head': {'kernel': 3, 'lora_a': 1, 'lora_b': 2}, 'norm': {'scale': 4}}
    """
    result = dict(base)
    for name, child in adapters.items():
        if name in base and isinstance(child, Mapping):
            child = joined(child, base[name])
        result[name] = child
    return result


def split_adapters(params: Params) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the adapters and the base of an adapted model; `joined` puts them together again.

    >>> split_adapters({"head": {"kernel": 3, "lora_a": 1, "lora_b": 2}, "norm": {"scale": 4}})
    ({'head': {'lora_a': 1, 'lora_b': 2}}, {'head': {'kernel': 3}, 'norm': {'scale': 4}})
    """
    adapters: dict[str, Any] = {}
    base: dict[str, Any] = {}
    for name, child in params.items():
        if isinstance(child, Mapping):
            of_adapters, of_base = split_adapters(child)
            if of_adapters:
                adapters[name] = of_adapters
            if of_base:
                base[name] = of_base
        elif name in (LORA_A, LORA_B):
            adapters[name] = child
        else:
            base[name] = child
    return adapters, base


def trainable_mask(params: Params) -> dict[str, Any]:
    """Return a tree of bools like the parameters of an adapted model: True for its adapters, False for its base.

    >>> trainable_mask({"head": {"kernel": 3, "lora_a": 1, "lora_b": 2}})
    {'head': {'kernel': False, 'lora_a': True, 'lora_b': True}}
    """
    mask: dict[str, Any] = {}
    for name, child in params.items():
        is_parent = isinstance(child, Mapping)
        mask[name] = trainable_mask(child) if is_parent else name in (LORA_A, LORA_B)
    return mask


def merge(adapters: Params, base: Params, lora: LoraConfig) -> dict[str, Any]:
    """Return the weights W + (alpha / rank) A B of a model without adapters that computes the same.

    Products and sums are in float32. The result has the type of the base: in bfloat16 the sum is rounded, which may
    lose small changes. Cast the base to float32 first to keep them.

    Raises:
      UserError: the base lacks a weight that the adapters belong to.
    """
    result = dict(base)
    for name, child in adapters.items():
        if name not in base:
            raise UserError(f"expected adapters of the same model as the base, but the base has no {name!r}")
        if LORA_A in child:
            kernel: Array = base[name][KERNEL]
            product = jnp.matmul(child[LORA_A], child[LORA_B], precision=jax.lax.Precision.HIGHEST)
            merged = kernel.astype(jnp.float32) + lora.scale * product
            result[name] = {**base[name], KERNEL: merged.astype(kernel.dtype)}
        else:
            result[name] = merge(child, base[name], lora)
    return result


def _at(params: Params, path: str) -> Params:
    """Return the subtree at a path."""
    for name in path.split("/"):
        params = params[name]
    return params
