"""Where the trained parameters of a loss meet data, read off its jaxpr.

Every value in the loss of one example is followed from the parameters: as long as it is a linear image of parameters
alone it carries `Use`s, the steps that led to it. Where such a value meets data in an equation that `_sites` has a rule
for, that equation is a site. A parameter all of whose uses end in sites is *tapped*: its gradient is read off at the
sites and it need not be differentiated. Any other use (a nonlinear function of it, a loop that carries it, a custom
derivative) makes it *dense*: JAX differentiates it, one example at a time, and the reason is kept for `explain`.

Bodies of scan, cond and checkpoint are followed too. A parameter that enters a scan as a constant is used once for each
iteration, one that is scanned over gives each iteration its own block.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax.clipping._ghost import _sites, _steps
from gdpjax.clipping._ghost._jaxpr import REMAT, Frame, scan_of

Place = tuple[int, ...]
"""Where an equation is: its index in the outermost frame, then alternately the child and the index in that."""


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """An equation where a weight meets data."""

    eqn: Any
    operand: int
    lengths: tuple[int, ...]  # of the scans around it, outermost first


class Step(NamedTuple):
    """A linear equation that passes a parameter on (see `_steps`)."""

    eqn: Any
    operand: int


class Enter(NamedTuple):
    """A parameter enters the body of a scan."""

    scanned: bool  # it has a slice for each iteration; else the same value in all of them


class Use(NamedTuple):
    """A site, and how a parameter gets there."""

    place: Place
    path: tuple[Step | Enter, ...]


class Uses(NamedTuple):
    """The outcome: for each tapped parameter its uses, for each dense one the reason, and all sites."""

    tapped: dict[int, list[Use]]
    dense: dict[int, str]
    sites: dict[Place, Site]


class _Value(NamedTuple):
    """What is known of a value: the parameters it is a linear image of, and what else went into it."""

    links: tuple[tuple[int, tuple[Step | Enter, ...]], ...] = ()
    data: bool = False
    trained: bool = False  # depends on a parameter that JAX differentiates


_NOTHING = _Value()


class _Walk:
    """One pass over the frames, for a given set of parameters that may be tapped."""

    def __init__(self) -> None:
        self.uses: dict[int, list[Use]] = {}
        self.dense: dict[int, str] = {}
        self.sites: dict[Place, Site] = {}
        self.owners: dict[Place, set[int]] = {}

    def frame(self, frame: Frame, args: Sequence[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        values: dict[Any, _Value] = dict(zip(frame.jaxpr.invars, args, strict=True))
        read = lambda atom: _NOTHING if isinstance(atom, jex.Literal) else values.get(atom, _NOTHING)  # noqa: E731
        for index, eqn in enumerate(frame.jaxpr.eqns):
            inputs = [read(atom) for atom in eqn.invars]
            if not any(value.links for value in inputs):
                outputs = [_mixed(inputs)] * len(eqn.outvars)
            else:
                outputs = self.equation(frame, index, inputs, (*place, index), lengths)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in frame.jaxpr.outvars]

    def equation(self, frame: Frame, index: int, inputs: list[_Value], place: Place, lengths: tuple[int, ...]):
        eqn = frame.jaxpr.eqns[index]
        name = eqn.primitive.name
        children = frame.children.get(index)
        if not any(_is_floating(v) for v in eqn.outvars) or name == "stop_gradient":
            return [_mixed(inputs)] * len(eqn.outvars)  # no gradient comes back through it
        if children is not None and name == "scan":
            return self.scan(eqn, children[0], inputs, place, lengths)
        if children is not None and name in REMAT:
            return self.frame(children[0], inputs, (*place, 0), lengths)
        if children is not None and name == "cond" and inputs[0].data:
            return self.cond(children, inputs, place, lengths)
        return self.simple(eqn, inputs, place, lengths)

    def simple(self, eqn: Any, inputs: list[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        linked = [i for i, value in enumerate(inputs) if value.links]
        if len({eqn.invars[i] for i in linked}) < len(linked):
            return self.give_up(f"{eqn.primitive.name} of a value with itself", inputs, len(eqn.outvars))
        others = _mixed([value for i, value in enumerate(inputs) if i not in linked])
        if len(linked) == 1 and others.data and _is_site(eqn, linked[0], inputs[linked[0]], lengths):
            self.sites[place] = Site(eqn, linked[0], lengths)
            for leaf, path in inputs[linked[0]].links:
                self.uses.setdefault(leaf, []).append(Use(place, path))
                self.owners.setdefault(place, set()).add(leaf)
            return [_Value(data=True)] * len(eqn.outvars)
        # The value of another operand is known outside loops only.
        known = (not lengths and len(place) == 1) or not _steps.needs_other(eqn)
        if not others.data and known and all(_steps.passes(eqn, i) for i in linked):
            links = tuple((leaf, (*path, Step(eqn, i))) for i in linked for leaf, path in inputs[i].links)
            return [_Value(links, False, _mixed(inputs).trained)]
        return self.give_up(eqn.primitive.name, inputs, len(eqn.outvars))

    def give_up(self, reason: str, inputs: Sequence[_Value], outputs: int = 1) -> list[_Value]:
        for value in inputs:
            for leaf, _ in value.links:
                self.dense.setdefault(leaf, reason)
        return [_mixed(inputs)._replace(trained=True)] * outputs

    def scan(self, eqn: Any, body: Frame, inputs: list[_Value], place: Place, lengths: tuple[int, ...]):
        scan = scan_of(eqn)
        assert scan is not None  # else the frame has no child
        carried = scan.num_consts + scan.num_carry
        self.give_up("carried by a scan", inputs[scan.num_consts : carried])
        enter = lambda value, scanned: value._replace(  # noqa: E731
            links=tuple((leaf, (*path, Enter(scanned))) for leaf, path in value.links)
        )
        inner = [enter(value, False) for value in inputs[: scan.num_consts]]
        inner += [_Value(data=True)] * scan.num_carry  # may hold data after the first iteration
        inner += [enter(value, True) for value in inputs[carried:]]
        outputs = self.frame(body, inner, (*place, 0), (*lengths, scan.length))
        self.give_up("passed on by a scan", outputs)
        return [_Value(data=True)] * len(eqn.outvars)

    def cond(self, branches: Sequence[Frame], inputs: list[_Value], place: Place, lengths: tuple[int, ...]):
        count = 0
        for number, branch in enumerate(branches):
            outputs = self.frame(branch, inputs[1:], (*place, number), lengths)
            self.give_up("passed on by a branch", outputs)
            count = len(outputs)
        return [_Value(data=True)] * count


def _is_site(eqn: Any, operand: int, weight: _Value, lengths: tuple[int, ...]) -> bool:
    if not all(lengths) or any(0 in v.aval.shape for v in (*eqn.invars, *eqn.outvars)):
        return False  # nothing ever meets the weight
    real = [jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (eqn.invars[operand], *eqn.outvars)]
    if weight.trained or not all(real) or not _sites.matches(eqn, operand):
        return False
    scanned = any(isinstance(item, Enter) and item.scanned for _, path in weight.links for item in path)
    return not (scanned and eqn.primitive.name in _sites.TABLES)


def _is_floating(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jnp.inexact)


def _mixed(inputs: Sequence[_Value]) -> _Value:
    return _Value((), any(value.data for value in inputs), any(value.trained for value in inputs))


def uses_of(frame: Frame, num_params: int, dense: dict[int, str]) -> Uses:
    """Follow the first ``num_params`` inputs but those that are ``dense`` anyway; the other inputs are data.

    The first output is the loss; the others are not differentiated.
    """
    dense = dict(dense)
    while True:
        walk = _Walk()
        args = [_Value(trained=True) if leaf in dense else _Value(links=((leaf, ()),)) for leaf in range(num_params)]
        args += [_Value(data=True)] * (len(frame.jaxpr.invars) - num_params)
        outputs = walk.frame(frame, args, (), ())
        walk.give_up("added to the loss", outputs[:1])
        if not walk.dense:
            tapped = {leaf: walk.uses.get(leaf, []) for leaf in range(num_params) if leaf not in dense}
            return Uses(tapped, dense, walk.sites)
        dense.update(walk.dense)
