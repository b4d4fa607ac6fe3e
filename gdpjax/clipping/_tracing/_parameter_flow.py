"""Follow the trained parameters of a loss through its jaxpr, to the equations where they meet data.

    flow = parameter_flow(frame, num_params, formed={})
    flow.tapped[0]      # the uses of parameter 0, whose gradient is read off where it meets data
    flow.formed         # {1: "tanh"}: JAX has to differentiate parameter 1, which goes through a tanh first

The words of this module:

* A *linear image* of a parameter is what linear equations make of it before it meets data: a transpose of it, or
  itself in another dtype. The equations on the way are *links*, and together they are the *path*.
* A *site* is an equation in which a linear image meets data, and whose primitive knows the gradient of a weight.
* A *use* of a parameter is a site and the path that leads there.
* A parameter is *tapped* if all of its uses end in sites. Its gradient is read off at the sites, so JAX need not
  differentiate it.
* Every other parameter is *formed*: JAX differentiates it, one example at a time. The reason is kept for `explain`: a
  nonlinear function of the parameter, a loop that carries it, a layer with a derivative rule of its own.

The bodies of scan, cond and checkpoint are followed too. A parameter that enters a scan as a constant is used once in
each iteration. One that is scanned over gives each iteration a slice of its own.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Full
from gdpjax.clipping._tracing._jaxprs import (
    REMAT,
    Frame,
    Place,
    dependencies,
    is_literal,
    is_precise,
    scan_of,
    shape_of,
)
from gdpjax.clipping._tracing.primitives import family_of

# Sites: where a weight meets data.


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
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
    def kind(self) -> str:
        """The name of the primitive that multiplies, or looks up, the weight."""
        return self.eqn.primitive.name

    @property
    def carried(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the values that a probe brings back: the data, and the cotangent of the output."""
        data = family_of(self.eqn).data_operand(self.eqn, self.operand)
        return [shape_of(self.eqn.invars[data]), shape_of(self.eqn.outvars[0])]

    def factor(self, values: Sequence[Any]) -> AbstractFactor:
        """Return the gradient of the weight in one evaluation of the site, given the values that it carries.

        Raises:
          ValueError: what the family of the primitive gives is no gradient of this weight.
        """
        x, cotangent = values
        factor = family_of(self.eqn).factor(self.eqn, self.operand, x, cotangent)
        shape = self.eqn.invars[self.operand].aval.shape
        if not isinstance(factor, AbstractFactor) or not factor.fits(shape):
            raise ValueError(
                f"expected the factor of {self.kind} to be a Full, Sparse or Outer for a weight {list(shape)}, got "
                f"{shown(factor)}: see the axes of its arrays"
            )
        return factor

    @property
    def working_bytes(self) -> int:
        """The bytes that `factor` needs for one example beside the values carried, as for patches of a convolution."""
        return family_of(self.eqn).working_bytes(self.eqn, self.operand)


# Links: the linear maps that a parameter passes on its way to a site.


class Link(NamedTuple):
    """One step on the path from a parameter to a site.

    Attributes:
      pull_back: from the gradient after this step to that before it.
      enters_scan: whether the step is into the body of a scan.
    """

    pull_back: Callable[[AbstractFactor], AbstractFactor]
    enters_scan: bool = False

    @classmethod
    def into_slices(cls, scanned: Any) -> "Link":
        """Return the step of a value that is scanned over: each iteration has the gradient of a slice."""
        _, *shape = scanned.aval.shape

        def stacked(factor: AbstractFactor) -> AbstractFactor:
            return Full(jax.vmap(lambda of_slice: of_slice.formed(tuple(shape)))(factor))

        return cls(stacked, enters_scan=True)


Path = tuple[Link, ...]
"""The links from a parameter to some value, in the order in which it passes them."""


class Use(NamedTuple):
    """A site, and how a parameter gets there.

    Attributes:
      place: the place of the site.
      path: the links from the parameter to the site.
    """

    place: Place
    path: Path


def pull_back_use(site: Site, use: Use, values: Sequence[Array]) -> AbstractFactor:
    """Return one example's gradient of a parameter through one use.

    Args:
      site: the site of the use.
      use: the use.
      values: the values that the site carries, with a leading axis for each scan around it.
    """

    def factor_of(*values: Array) -> AbstractFactor:
        return site.factor(values)

    # A site inside scans is evaluated in each iteration, so its factor is mapped over the iterations.
    depth = len(site.lengths)
    factor = _mapped(factor_of, depth)(*values)

    # Go back along the path. Before the step that enters a scan there is one axis of iterations less.
    for link in reversed(use.path):
        depth -= link.enters_scan
        factor = _mapped(link.pull_back, depth)(factor)
    return factor


def _mapped(function: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """Return the function mapped over the first ``depth`` axes of its arguments."""
    for _ in range(depth):
        function = jax.vmap(function)
    return function


# Following the parameters through the frames.


class ParameterFlow(NamedTuple):
    """The parameters that are tapped, with their uses, and those that are formed.

    Attributes:
      tapped: the uses of each parameter that is tapped.
      formed: for each of the other parameters, why JAX differentiates it.
      sites: all sites, by their places.
    """

    tapped: dict[int, list[Use]]
    formed: dict[int, str]
    sites: dict[Place, Site]


def parameter_flow(frame: Frame, num_params: int, formed: dict[int, str]) -> ParameterFlow:
    """Follow the parameters through a loss.

    Args:
      frame: the loss. Its first ``num_params`` inputs are the parameters, and the others are data. Its first output is
        the loss, and the others are not differentiated.
      num_params: how many parameters there are.
      formed: parameters that JAX differentiates anyway, and why.
    """
    formed = dict(formed)
    num_data = len(frame.jaxpr.invars) - num_params
    while True:
        params = range(num_params)
        inputs = [_Value(is_trained=True) if leaf in formed else _Value(images=((leaf, ()),)) for leaf in params]
        inputs += [_DATA] * num_data

        walk = _Walk()
        outputs = walk.frame(frame, inputs, _Location())
        walk.give_up("added to the loss", outputs[:1])
        if not walk.formed:
            tapped = {leaf: walk.uses.get(leaf, []) for leaf in params if leaf not in formed}
            return ParameterFlow(tapped, formed, walk.sites)

        # A site gives its weight no gradient, so a weight that also depends on a formed parameter cannot be tapped:
        # follow the other parameters again.
        formed.update(walk.formed)


class _Value(NamedTuple):
    """All that the walk knows about a value of the loss.

    Attributes:
      images: the parameters of which it is a linear image, each with the path from the parameter to this value.
      is_data: whether it depends on data.
      is_trained: whether it depends on a parameter that JAX differentiates.
    """

    images: tuple[tuple[int, Path], ...] = ()
    is_data: bool = False
    is_trained: bool = False

    def through(self, link: Link) -> "_Value":
        """Return the value that one more link makes of this one."""
        return self._replace(images=tuple((leaf, (*path, link)) for leaf, path in self.images))


class _Location(NamedTuple):
    """The location of a frame or an equation.

    Attributes:
      place: the place, which is empty for the outermost frame.
      lengths: the lengths of the scans around it, outermost first.
    """

    place: Place = ()
    lengths: tuple[int, ...] = ()

    def at(self, index: int) -> "_Location":
        """Return the location of the equation of this index in this frame, or of this body of this equation."""
        return self._replace(place=(*self.place, index))

    def in_scan(self, length: int) -> "_Location":
        """Return the location of the body of this scan."""
        return _Location((*self.place, 0), (*self.lengths, length))


_CONSTANT = _Value()
_DATA = _Value(is_data=True)
_NO_GRADIENT = frozenset({"stop_gradient"})


def _combined(inputs: Sequence[_Value]) -> _Value:
    """Return the value of a function of these values that is not followed as a linear image."""
    is_data = any(value.is_data for value in inputs)
    is_trained = any(value.is_trained for value in inputs)
    return _Value(is_data=is_data, is_trained=is_trained)


def _linear_images(inputs: Sequence[_Value]) -> list[int]:
    """Return the operands that are linear images of parameters, by their numbers."""
    return [operand for operand, value in enumerate(inputs) if value.images]


class _Walk:
    """One pass over all frames, which follows the parameters that have not been given up yet.

    Attributes:
      uses: the uses found, for each parameter.
      formed: the parameters given up in this pass, and why.
      sites: the sites found, by their places.
    """

    def __init__(self) -> None:
        self.uses: dict[int, list[Use]] = {}
        self.formed: dict[int, str] = {}
        self.sites: dict[Place, Site] = {}

    def frame(self, frame: Frame, inputs: Sequence[_Value], location: _Location) -> list[_Value]:
        """Follow the inputs of a frame to its outputs."""
        jaxpr = frame.jaxpr
        values = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> _Value:
            return _CONSTANT if is_literal(atom) else values.get(atom, _CONSTANT)

        # Of the outermost frame only the first output, the loss, is differentiated.
        differentiated = jaxpr.outvars if location.place else jaxpr.outvars[:1]
        live = dependencies(jaxpr, differentiated, _NO_GRADIENT)
        for index, eqn in enumerate(jaxpr.eqns):
            operands = [read(atom) for atom in eqn.invars]
            if _linear_images(operands) and not live.isdisjoint(eqn.outvars):
                bodies = frame.children.get(index)
                outputs = self.equation(eqn, bodies, operands, location.at(index))
            else:
                outputs = [_combined(operands)] * len(eqn.outvars)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(
        self,
        eqn: Any,
        bodies: Sequence[Frame] | None,
        inputs: list[_Value],
        location: _Location,
    ) -> list[_Value]:
        """Follow linear images of parameters through one equation."""
        name = eqn.primitive.name
        has_gradient = any(jnp.issubdtype(variable.aval.dtype, jnp.inexact) for variable in eqn.outvars)
        if not has_gradient or name in _NO_GRADIENT:
            return [_combined(inputs)] * len(eqn.outvars)
        if bodies is not None and name == "scan":
            return self.scan(eqn, bodies[0], inputs, location)
        if bodies is not None and name == "cond":
            return self.cond(bodies, inputs, location)
        if bodies is not None and name in REMAT:
            return self.frame(bodies[0], inputs, location.at(0))
        return self.primitive(eqn, inputs, location)

    def primitive(self, eqn: Any, inputs: list[_Value], location: _Location) -> list[_Value]:
        """Follow linear images of parameters through an equation without a body."""
        name = eqn.primitive.name
        operands = _linear_images(inputs)
        # JAX rounds the gradient of a number of 8 bits to 8 bits, and promotes it to no other dtype.
        floating = [atom for atom in (*eqn.invars, *eqn.outvars) if jnp.issubdtype(atom.aval.dtype, jnp.floating)]
        if not all(map(is_precise, floating)):
            return self.give_up(f"{name} in 8 bits", inputs, len(eqn.outvars))
        others = _combined([value for operand, value in enumerate(inputs) if operand not in operands])

        # If a weight meets data, this is a site, and a use of each parameter of which the weight is an image.
        if len(operands) == 1 and others.is_data:
            (operand,) = operands
            weight = inputs[operand]
            if _is_site(eqn, operand, weight):
                self.sites[location.place] = Site(eqn, operand, location.lengths)
                for leaf, path in weight.images:
                    self.uses.setdefault(leaf, []).append(Use(location.place, path))
                return [_DATA] * len(eqn.outvars)

        # If no data is involved and the equation is linear, its output is a linear image.
        if not others.is_data and all(family_of(eqn).is_linear(eqn, operand) for operand in operands):
            images = []
            for operand in operands:
                link = Link(lambda factor, operand=operand: family_of(eqn).pull_back(factor, eqn, operand))
                images += inputs[operand].through(link).images
            return [_Value(tuple(images), is_trained=_combined(inputs).is_trained)]
        return self.give_up(name, inputs, len(eqn.outvars))

    def scan(self, eqn: Any, body: Frame, inputs: list[_Value], location: _Location) -> list[_Value]:
        """Follow linear images of parameters into the body of a scan."""
        scan = scan_of(eqn)
        assert scan is not None  # otherwise the frame has no child
        consts, carried, scanned = scan.split(inputs)
        self.give_up("carried by a scan", carried)

        # All iterations use the constants.
        into_scan = Link(lambda factor: factor.over_iterations(), enters_scan=True)
        inside = [value.through(into_scan) for value in consts]
        inside += [_DATA] * scan.num_carry  # what is carried may depend on data after the first iteration
        _, _, variables = scan.split(eqn.invars)
        inside += [value.through(Link.into_slices(of)) for value, of in zip(scanned, variables, strict=True)]

        outputs = self.frame(body, inside, location.in_scan(scan.length))
        self.give_up("passed on by a scan", outputs)
        return [_DATA] * len(eqn.outvars)

    def cond(self, branches: Sequence[Frame], inputs: list[_Value], location: _Location) -> list[_Value]:
        """Follow linear images of parameters into all branches."""
        for number, branch in enumerate(branches):
            self.give_up("passed on by a branch", self.frame(branch, inputs[1:], location.at(number)))
        return [_DATA] * len(branches[0].jaxpr.outvars)

    def give_up(self, reason: str, inputs: Sequence[_Value], num_outputs: int = 1) -> list[_Value]:
        """Let JAX differentiate all parameters of which these values are images.

        Args:
          reason: why, for `explain`.
          inputs: the inputs of the equation.
          num_outputs: how many outputs the equation has.

        Returns:
          The values of its outputs.
        """
        for value in inputs:
            for leaf, _ in value.images:
                self.formed.setdefault(leaf, reason)
        return [_combined(inputs)._replace(is_trained=True)] * num_outputs


def _is_site(eqn: Any, operand: int, weight: _Value) -> bool:
    """Return whether the gradient of a weight can be read off at an equation."""
    # The weight must not depend on a parameter that JAX differentiates: the site gives it no gradient.
    variables = (*eqn.invars, *eqn.outvars)
    is_empty = any(0 in variable.aval.shape for variable in variables)
    if is_empty or weight.is_trained:
        return False
    for variable in (eqn.invars[operand], *eqn.outvars):
        if not jnp.issubdtype(variable.aval.dtype, jnp.floating):
            return False

    return family_of(eqn).is_site(eqn, operand)
