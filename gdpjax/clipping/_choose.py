"""Which leaves to tap and how many rows to take at a time: decided from static shapes alone.

Tapping pays where it saves forming a gradient (one outer product per example; rows of a table; a merged product) or
where JAX forms it slowly (a convolution under vmap, a loop that adds a gradient up step by step). Where an example's
gradient is a sum of many outer products it has to be formed anyway, because only a norm of what was formed is safe from
cancellation (see docs/gradients.md), and JAX's own product is as good.

Rows are taken in chunks: what a chunk keeps should stay in a cache, but every chunk reads and writes the running sums
once, which should not cost more than its rows do. The larger of the two numbers of rows is taken. The constants are
measured (benchmarks/results/clipping_cpu.md).
"""

import math
from collections.abc import Collection
from typing import Any

import jax

from gdpjax.clipping._ghost import Plan, _sites
from gdpjax.clipping._ghost._jaxpr import Frame
from gdpjax.clipping._ghost._steps import SCALES
from gdpjax.clipping._ghost._uses import Enter, Site, Step, Use

_CACHE = {"cpu": 8 * 2**20}
_CACHE_ELSEWHERE = 2 * 2**30
_SUM_BYTES = 20
"""Memory traffic of one compensated addition: one term read, two parts of a sum read and written."""
_SUM_SHARE = 0.4
_FEWEST = 4
_MOST_UNROLLED = 4


def better_formed(plan: Plan) -> dict[int, str]:
    """The tapped parameters whose factors are not worth having, and why."""
    return {
        leaf: f"a sum of {sum(_times_of(plan, use) for use in uses)} outer products"
        for leaf, uses in plan.uses.tapped.items()
        if uses and not any(_use_pays(plan, use) for use in uses)
    }


def _times_of(plan: Plan, use: Use) -> int:
    return _times(plan.uses.sites[use.place])


def _use_pays(plan: Plan, use: Use) -> bool:
    site = plan.uses.sites[use.place]
    if site.kind != "dot_general":
        return True
    if any(not isinstance(item, Enter) and item.eqn.primitive.name == "dot_general" for item in use.path):
        return True
    if any(isinstance(item, Enter) and not item.scanned for item in use.path):
        return True
    return _times(site) == 1


def _times(site: Site) -> int:
    """Outer products of one evaluation of the site."""
    if site.rule is not None:
        return site.rule.times()
    shape = site.eqn.invars[1 - site.operand].aval.shape
    contract, batch = site.eqn.params["dimension_numbers"]
    used = (*contract[1 - site.operand], *batch[1 - site.operand])
    return math.prod(size for axis, size in enumerate(shape) if axis not in used)


def activation_bytes(frame: Frame) -> int:
    """Bytes of everything computed for one example: an upper guess of what backpropagation keeps."""
    own = 0
    for index, eqn in enumerate(frame.jaxpr.eqns):
        children = frame.children.get(index)
        if children:
            times = eqn.params.get("length", 1)
            own += times * sum(activation_bytes(child) for child in children)
        own += sum(_bytes(v.aval) for v in eqn.outvars)
    return own


def _bytes(aval: Any) -> int:
    size = getattr(aval.dtype, "itemsize", 8)
    return math.prod(getattr(aval, "shape", ())) * size


def is_scaled(plan: Plan) -> bool:
    """Whether parameters are scaled by more than a number, or a value of theirs is cut: not all factors can follow."""
    steps = [item for uses in plan.uses.tapped.values() for use in uses for item in use.path if isinstance(item, Step)]
    return bool(plan.cuts) or any(
        step.rule is None and step.eqn.primitive.name in SCALES and all(v.aval.shape for v in step.eqn.invars)
        for step in steps
    )  # fmt: skip


def row_bytes(plan: Plan, params: list[Any], known: Collection[int] = ()) -> int:
    """Bytes of one row: activations, and the gradients (those that are ``known`` to be) and tables that are formed."""
    formed = sum(8 * math.prod(p.shape) for i, p in enumerate(params) if i in known or _is_formed(plan, i))
    tables = sum(4 * p.shape[0] for leaf, p in enumerate(params) if _looks_up_several(plan, leaf))
    patches = sum(_patch_bytes(site.eqn) for site in plan.uses.sites.values())
    own = sum(_shared_bytes(plan)) if plan.cuts else 0
    return max(activation_bytes(plan.frame) - own + formed + tables + patches, 1)


def _shared_bytes(plan: Plan) -> list[int]:
    """What is computed once for all rows, where values of parameters alone are told apart anyway."""
    data = set(plan.frame.jaxpr.invars[plan.num_params + len(plan.cuts) :])
    shared = []
    for index, eqn in enumerate(plan.frame.jaxpr.eqns):
        if not data.isdisjoint(v for v in eqn.invars if not hasattr(v, "val")):
            data.update(eqn.outvars)
        elif index not in plan.frame.children:
            shared.append(sum(_bytes(v.aval) for v in eqn.outvars))
    return shared


def _sites_of(plan: Plan, leaf: int, names: Collection[str]) -> list[Site]:
    sites = [plan.uses.sites[use.place] for use in plan.uses.tapped.get(leaf, ())]
    return [site for site in sites if site.kind in names]


def _looks_up_several(plan: Plan, leaf: int) -> bool:
    """Whether equal rows have to be found, for which `_rows.distinct` needs an array as long as the table."""
    sites = _sites_of(plan, leaf, _sites.TABLES)
    index = [math.prod(site.lengths) * math.prod(site.carried[0].shape) if site.rule is None else 2 for site in sites]
    return sum(index) > 1


def _is_formed(plan: Plan, leaf: int) -> bool:
    if leaf not in plan.uses.tapped or _sites_of(plan, leaf, ["conv_general_dilated"]):
        return True
    dots = _sites_of(plan, leaf, ["dot_general", "mul"])
    return sum(_times(site) * math.prod(site.lengths) for site in dots) > 1


def _patch_bytes(eqn: Any) -> int:
    if eqn.primitive.name != "conv_general_dilated":
        return 0
    numbers = eqn.params["dimension_numbers"]
    out, weight = eqn.outvars[0].aval, eqn.invars[1].aval
    return (
        _bytes(out) // max(out.shape[numbers.out_spec[1]], 1) * math.prod(weight.shape[a] for a in numbers.rhs_spec[1:])
    )


def chunk_rows(plan: Plan, params: list[Any], batch_size: int, formed: Collection[int] = ()) -> int:
    """Rows to take at a time."""
    each = row_bytes(plan, params, formed)
    cached = _CACHE.get(jax.default_backend(), _CACHE_ELSEWHERE) / each
    amortised = _SUM_BYTES * sum(math.prod(p.shape) for p in params) / (_SUM_SHARE * each)
    rows = max(cached, amortised, _FEWEST)
    if _convolves_on_cpu(plan):
        rows = max(rows, -(-batch_size // _MOST_UNROLLED))
    return batch_size if rows >= batch_size else 1 << (int(rows).bit_length() - 1)


def _convolves_on_cpu(plan: Plan) -> bool:
    return jax.default_backend() == "cpu" and _has_convolution(plan.frame)


def unrolls(plan: Plan, chunks: int) -> bool:
    """A convolution inside a loop is slow on the CPU backend: write out the loop, unless that takes long to compile."""
    return chunks <= 2 * _MOST_UNROLLED and _convolves_on_cpu(plan)


def _has_convolution(frame: Frame) -> bool:
    own = any(eqn.primitive.name == "conv_general_dilated" for eqn in frame.jaxpr.eqns)
    return own or any(_has_convolution(child) for children in frame.children.values() for child in children)
