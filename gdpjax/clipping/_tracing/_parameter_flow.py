"""Where the trained parameters of a loss meet data, read off its jaxpr.

Every value in the loss of one example is followed from the parameters. As long as it is a linear image of parameters
alone, it carries `Use`s: the linear maps that led to it. Where such a value meets data in an equation whose primitive
knows the gradient of a weight, that equation is a *site*. A parameter all of whose uses end in sites is *tapped*: its
gradient is read off at the sites, and it need not be differentiated. Any other use (a nonlinear function of it, a loop
that carries it, a derivative rule that cannot be read) makes it *formed*: JAX differentiates it, one example at a time,
and the reason is kept for `explain`.

Bodies of scan, cond and checkpoint are followed too. A parameter that enters a scan as a constant is used once for each
iteration; one that is scanned over gives each iteration a block of its own.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._custom_derivatives import DerivativeRule, RuleGradient, derivative_rule, rule_gradient
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, Outer, Sparse, Weighted
from gdpjax.clipping._tracing._jaxprs import CUSTOM, REMAT, Frame, needed, scan_of
from gdpjax.clipping._tracing.primitives import family_of

Place = tuple[int, ...]
"""Where an equation is: its index in the outermost frame, then alternately the child and the index in that; the operand
of a custom derivative is added as a last number."""


class AbstractSite(abc.ABC):
    """An equation where a weight meets data.

    Attributes:
      eqn: the equation.
      operand: which of its inputs is the weight.
      lengths: the lengths of the scans around it, outermost first.
    """

    eqn: Any
    operand: int
    lengths: tuple[int, ...]

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The primitive whose factors are kept."""

    @property
    def described(self) -> str:
        """The primitive, for `explain`."""
        return self.kind

    @property
    @abc.abstractmethod
    def carried(self) -> list[Any]:
        """Types of the values of which the factors are made."""

    @abc.abstractmethod
    def factor(self, values: Sequence[Any]) -> AbstractFactor:
        """Return the gradient of the weight in one evaluation, given the values of what is `carried`."""

    @property
    @abc.abstractmethod
    def num_products(self) -> int:
        """How many outer products are added up in one evaluation."""

    @property
    def num_positions(self) -> int:
        """How many outer products are added up for an example, in all iterations of the scans around the site."""
        return self.num_products * math.prod(self.lengths)

    @property
    @abc.abstractmethod
    def is_lookup(self) -> bool:
        """Whether the weight is a table of which rows are looked up."""

    @property
    @abc.abstractmethod
    def num_lookups(self) -> int:
        """How many rows are looked up for an example."""

    @property
    def factor_sizes(self) -> tuple[int, int] | None:
        """Numbers of entries of the two factors of an outer product, or None where the gradient is no sum of these."""
        if self.is_formed:
            return None
        values = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.carried]
        factor = jax.eval_shape(self.factor, values)
        if not isinstance(factor, Outer):
            return None
        left, right = jax.eval_shape(Outer.matrices, factor)
        return left.shape[-1], right.shape[-1]

    @property
    def is_formed(self) -> bool:
        """Whether the gradient is formed at the site."""
        return False

    @property
    def working_bytes(self) -> int:
        """Bytes that making the factors needs for one example, beside what is carried (patches of a convolution)."""
        return 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PrimitiveSite(AbstractSite):
    """A primitive applied to a weight and data."""

    eqn: Any
    operand: int
    lengths: tuple[int, ...]

    @property
    def kind(self) -> str:
        return self.eqn.primitive.name

    @property
    def carried(self) -> list[Any]:
        data = family_of(self.eqn).data_operand(self.eqn, self.operand)
        return [self.eqn.invars[data].aval, self.eqn.outvars[0].aval]

    def factor(self, values: Sequence[Any]) -> AbstractFactor:
        return family_of(self.eqn).factor(self.eqn, self.operand, *values)

    @property
    def num_products(self) -> int:
        return family_of(self.eqn).num_products(self.eqn, self.operand)

    @property
    def is_lookup(self) -> bool:
        return family_of(self.eqn).is_lookup

    @property
    def num_lookups(self) -> int:
        return math.prod(self.lengths) * math.prod(self.carried[0].shape) if self.is_lookup else 0

    @property
    def is_formed(self) -> bool:
        return family_of(self.eqn).is_formed(self.eqn, self.operand)

    @property
    def working_bytes(self) -> int:
        return family_of(self.eqn).working_bytes(self.eqn, self.operand)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RuleSite(AbstractSite):
    """A layer with a derivative rule of its own.

    Attributes:
      gradient: how the rule makes the gradient of the weight.
    """

    eqn: Any
    operand: int
    lengths: tuple[int, ...]
    gradient: RuleGradient

    @property
    def kind(self) -> str:
        return self.gradient.product.primitive.name

    @property
    def described(self) -> str:
        return f"{self.kind} in {self.eqn.primitive.name}"

    @property
    def carried(self) -> list[Any]:
        return [v.aval for v in self.gradient.variables]

    def factor(self, values: Sequence[Any]) -> AbstractFactor:
        return self.gradient.factor(values)

    @property
    def num_products(self) -> int:
        return self.gradient.abstract().num_products

    @property
    def is_lookup(self) -> bool:
        return family_of(self.gradient.product).is_lookup

    @property
    def num_lookups(self) -> int:
        return 2 if self.is_lookup else 0  # several, for all that is known


class AbstractLink(abc.ABC):
    """A part of the way from a parameter to a site.

    Attributes:
      num_scans: how many scans it leaves on the way back.
    """

    num_scans: int = 0

    @abc.abstractmethod
    def pull_back(self, factor: AbstractFactor, multiplier: Array | None) -> AbstractFactor:
        """Return the gradient before this part, given that after it."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap(AbstractLink):
    """A linear equation that passes a parameter on."""

    eqn: Any
    operand: int

    def pull_back(self, factor: AbstractFactor, multiplier: Array | None) -> AbstractFactor:
        return family_of(self.eqn).pull_back(factor, self.eqn, self.operand, multiplier)

    @property
    def values_needed(self) -> list[Any]:
        """The variables and literals whose values `pull_back` needs a multiplier of."""
        return family_of(self.eqn).values_needed(self.eqn, self.operand)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RuleMap(AbstractLink):
    """A layer whose derivative rule passes the gradient on, as a straight-through estimator does."""

    eqn: Any
    operand: int
    gradient: RuleGradient

    def pull_back(self, factor: AbstractFactor, multiplier: Array | None) -> AbstractFactor:
        if isinstance(factor, Weighted):
            factor = Full(factor.formed(self.eqn.outvars[0].aval.shape))
        return self.gradient.moved(factor)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class EnterScan(AbstractLink):
    """A parameter enters the body of a scan.

    Attributes:
      is_scanned: whether each iteration has a slice of it; otherwise all have the same value.
    """

    is_scanned: bool
    num_scans = 1

    def pull_back(self, factor: AbstractFactor, multiplier: Array | None) -> AbstractFactor:
        return factor.leave_scan(self.is_scanned)


class Use(NamedTuple):
    """A site, and how a parameter gets there."""

    place: Place
    path: tuple[AbstractLink, ...]

    @property
    def is_scaled(self) -> bool:
        """Whether the parameter is multiplied by more than a number: not all factors can follow."""
        maps = [link for link in self.path if isinstance(link, LinearMap)]
        scalings = [link for link in maps if family_of(link.eqn).is_scaling(link.eqn)]
        return any(all(v.aval.shape for v in link.eqn.invars) for link in scalings)


class ParameterFlow(NamedTuple):
    """How parameters reach data.

    Attributes:
      tapped: the uses of each parameter whose gradient is read off at sites.
      formed: for each of the other parameters, why JAX differentiates it.
      sites: all sites.
    """

    tapped: dict[int, list[Use]]
    formed: dict[int, str]
    sites: dict[Place, AbstractSite]


class _Value(NamedTuple):
    """What is known of a value.

    Attributes:
      links: the parameters that it is a linear image of, and by which maps.
      data: whether data went into it.
      trained: whether it depends on a parameter that JAX differentiates.
    """

    links: tuple[tuple[int, tuple[AbstractLink, ...]], ...] = ()
    data: bool = False
    trained: bool = False

    def through(self, link: AbstractLink) -> tuple[tuple[int, tuple[AbstractLink, ...]], ...]:
        """Return the links of an image of this value."""
        return tuple((leaf, (*path, link)) for leaf, path in self.links)


_NOTHING = _Value()
_DATA = _Value(data=True)
_NO_GRADIENT = frozenset({"stop_gradient"})


class _Walk:
    """One pass over the frames, for a given set of parameters that may be tapped."""

    def __init__(self, rules: dict[Place, DerivativeRule | None]) -> None:
        self.rules = rules
        self.uses: dict[int, list[Use]] = {}
        self.formed: dict[int, str] = {}
        self.sites: dict[Place, AbstractSite] = {}

    def frame(self, frame: Frame, args: Sequence[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        values: dict[Any, _Value] = dict(zip(frame.jaxpr.invars, args, strict=True))

        def read(atom: Any) -> _Value:
            return _NOTHING if isinstance(atom, jex.Literal) else values.get(atom, _NOTHING)

        live = needed(frame.jaxpr, frame.jaxpr.outvars if place else frame.jaxpr.outvars[:1], _NO_GRADIENT)
        for index, eqn in enumerate(frame.jaxpr.eqns):
            inputs = [read(atom) for atom in eqn.invars]
            if not any(value.links for value in inputs) or live.isdisjoint(eqn.outvars):
                outputs = [_combined(inputs)] * len(eqn.outvars)
            else:
                outputs = self.equation(frame, index, inputs, (*place, index), lengths)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in frame.jaxpr.outvars]

    def equation(
        self, frame: Frame, index: int, inputs: list[_Value], place: Place, lengths: tuple[int, ...]
    ) -> list[_Value]:
        eqn = frame.jaxpr.eqns[index]
        name = eqn.primitive.name
        children = frame.children.get(index)
        has_gradient = any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars)
        if not has_gradient or name in _NO_GRADIENT:
            return [_combined(inputs)] * len(eqn.outvars)
        if children is not None and name == "scan":
            return self.scan(eqn, children[0], inputs, place, lengths)
        if children is not None and name in REMAT:
            return self.frame(children[0], inputs, (*place, 0), lengths)
        if children is not None and name == "cond":
            return self.cond(children, inputs, place, lengths)
        if name in CUSTOM:
            return self.custom(eqn, inputs, place, lengths)
        return self.simple(eqn, inputs, place, lengths)

    def simple(self, eqn: Any, inputs: list[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        linked = [operand for operand, value in enumerate(inputs) if value.links]
        if len({eqn.invars[operand] for operand in linked}) < len(linked):
            return self.give_up(f"{eqn.primitive.name} of a value with itself", inputs, len(eqn.outvars))

        # A weight meets data.
        others = _combined([value for operand, value in enumerate(inputs) if operand not in linked])
        if len(linked) == 1 and others.data and _is_site(eqn, linked[0], inputs[linked[0]], lengths):
            self.add_site(place, PrimitiveSite(eqn, linked[0], lengths), inputs[linked[0]])
            return [_DATA] * len(eqn.outvars)

        # A linear map passes parameters on. The values of its other operands are known outside of loops only.
        maps = {operand: LinearMap(eqn, operand) for operand in linked}
        values_needed = [atom for link in maps.values() for atom in link.values_needed]
        is_outermost = not lengths and len(place) == 1
        is_known = is_outermost or all(isinstance(atom, jex.Literal) for atom in values_needed)
        if not others.data and is_known and all(family_of(eqn).is_linear(eqn, operand) for operand in linked):
            links = tuple(link for operand in linked for link in inputs[operand].through(maps[operand]))
            return [_Value(links, False, _combined(inputs).trained)]
        return self.give_up(eqn.primitive.name, inputs, len(eqn.outvars))

    def add_site(self, place: Place, site: AbstractSite, weight: _Value) -> None:
        self.sites[place] = site
        for leaf, path in weight.links:
            self.uses.setdefault(leaf, []).append(Use(place, path))

    def custom(self, eqn: Any, inputs: list[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        linked = [operand for operand, value in enumerate(inputs) if value.links]
        if place not in self.rules:
            self.rules[place] = derivative_rule(eqn)
        rule = self.rules[place]
        if rule is None or len({eqn.invars[operand] for operand in linked}) < len(linked) or not all(lengths):
            return self.give_up(eqn.primitive.name, inputs, len(eqn.outvars))

        gradients = {operand: rule_gradient(rule, operand) for operand in linked}
        combined = _combined(inputs)
        if len(linked) == 1 and not combined.data:
            gradient = gradients[linked[0]]
            if gradient is not None and gradient.product is None:
                link = RuleMap(eqn, linked[0], gradient)
                return [_Value(inputs[linked[0]].through(link), False, combined.trained)]

        for operand, gradient in gradients.items():
            if combined.data and gradient is not None and _is_rule_site(gradient, inputs[operand]):
                self.add_site((*place, operand), RuleSite(eqn, operand, lengths, gradient), inputs[operand])
            else:
                self.give_up(eqn.primitive.name, [inputs[operand]])
        return [combined._replace(trained=True)] * len(eqn.outvars)

    def give_up(self, reason: str, inputs: Sequence[_Value], num_outputs: int = 1) -> list[_Value]:
        for value in inputs:
            for leaf, _ in value.links:
                self.formed.setdefault(leaf, reason)
        return [_combined(inputs)._replace(trained=True)] * num_outputs

    def scan(self, eqn: Any, body: Frame, inputs: list[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        scan = scan_of(eqn)
        assert scan is not None  # otherwise the frame has no child
        num_before = scan.num_consts + scan.num_carry
        consts, carried, scanned = inputs[: scan.num_consts], inputs[scan.num_consts : num_before], inputs[num_before:]
        self.give_up("carried by a scan", carried)

        inside = [value._replace(links=value.through(EnterScan(is_scanned=False))) for value in consts]
        inside += [_DATA] * scan.num_carry  # may hold data after the first iteration
        inside += [value._replace(links=value.through(EnterScan(is_scanned=True))) for value in scanned]
        outputs = self.frame(body, inside, (*place, 0), (*lengths, scan.length))
        self.give_up("passed on by a scan", outputs)
        return [_DATA] * len(eqn.outvars)

    def cond(
        self, branches: Sequence[Frame], inputs: list[_Value], place: Place, lengths: tuple[int, ...]
    ) -> list[_Value]:
        num_outputs = 0
        for number, branch in enumerate(branches):
            outputs = self.frame(branch, inputs[1:], (*place, number), lengths)
            self.give_up("passed on by a branch", outputs)
            num_outputs = len(outputs)
        return [_DATA] * num_outputs


def _is_site(eqn: Any, operand: int, weight: _Value, lengths: tuple[int, ...]) -> bool:
    is_empty = not all(lengths) or any(0 in v.aval.shape for v in (*eqn.invars, *eqn.outvars))
    is_real = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (eqn.invars[operand], *eqn.outvars))
    family = family_of(eqn)
    if is_empty or not is_real or weight.trained or not family.is_site(eqn, operand):
        return False
    return not (family.is_lookup and _is_scanned(weight))


def _is_rule_site(gradient: RuleGradient, weight: _Value) -> bool:
    if gradient.product is None or weight.trained:
        return False
    return not (_is_scanned(weight) and isinstance(gradient.abstract(), Sparse))


def _is_scanned(weight: _Value) -> bool:
    return any(isinstance(link, EnterScan) and link.is_scanned for _, path in weight.links for link in path)


def _combined(inputs: Sequence[_Value]) -> _Value:
    return _Value((), any(value.data for value in inputs), any(value.trained for value in inputs))


def parameter_flow(frame: Frame, num_params: int, formed: dict[int, str]) -> ParameterFlow:
    """Follow the first ``num_params`` inputs of a frame but those that are ``formed`` anyway; the others are data.

    The first output is the loss; the others are not differentiated.
    """
    formed, rules = dict(formed), {}
    while True:
        walk = _Walk(rules)
        args = []
        for leaf in range(num_params):
            args.append(_Value(trained=True) if leaf in formed else _Value(links=((leaf, ()),)))
        args += [_DATA] * (len(frame.jaxpr.invars) - num_params)
        outputs = walk.frame(frame, args, (), ())
        walk.give_up("added to the loss", outputs[:1])
        if not walk.formed:
            tapped = {leaf: walk.uses.get(leaf, []) for leaf in range(num_params) if leaf not in formed}
            return ParameterFlow(tapped, formed, walk.sites)
        # A parameter that JAX differentiates changes what the others meet: follow them again.
        formed.update(walk.formed)


def mapped(function: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """Map a function over the axes of the scans that are still open."""
    for _ in range(depth):
        function = jax.vmap(function)
    return function


def pull_back_use(
    site: AbstractSite, use: Use, values: Sequence[Array], multipliers: dict[AbstractLink, Array]
) -> AbstractFactor:
    """Return one example's gradient of a parameter through one use.

    Args:
      site: the site of the use.
      use: the use.
      values: of what the site carries, with a leading axis for each scan around it.
      multipliers: what the linear maps on the way multiply by, where they need it.
    """
    depth = len(site.lengths)
    factor = mapped(lambda *values: site.factor(values), depth)(*values)
    for link in reversed(use.path):
        depth -= link.num_scans

        def pull_back(factor: AbstractFactor, link: AbstractLink = link) -> AbstractFactor:
            return link.pull_back(factor, multipliers.get(link))

        factor = mapped(pull_back, depth)(factor)
    return factor
