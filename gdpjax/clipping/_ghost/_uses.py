"""Where the trained parameters of a loss meet data, read off its jaxpr.

Every value in the loss of one example is followed from the parameters: as long as it is a linear image of parameters
alone it carries `Use`s, the steps that led to it. Where such a value meets data in an equation that `_sites` has a rule
for, that equation is a site. A parameter all of whose uses end in sites is *tapped*: its gradient is read off at the
sites and it need not be differentiated. Any other use (a nonlinear function of it, a loop that carries it, a custom
derivative whose rule `_custom` cannot read) makes it *dense*: JAX differentiates it, one example at a time, and the
reason is kept for `explain`.

Bodies of scan, cond and checkpoint are followed too. A parameter that enters a scan as a constant is used once for each
iteration, one that is scanned over gives each iteration its own block.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax.clipping._factors import Factor, Sparse
from gdpjax.clipping._ghost import _sites, _steps
from gdpjax.clipping._ghost._custom import Pull, Ruled, pull_of, ruled
from gdpjax.clipping._ghost._jaxpr import CUSTOM, REMAT, Frame, needed, scan_of

Place = tuple[int, ...]
"""Where an equation is: its index in the outermost frame, then alternately the child and the index in that; the operand
of a custom derivative is added as a last number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """An equation where a weight meets data."""

    eqn: Any
    operand: int
    lengths: tuple[int, ...]  # of the scans around it, outermost first
    rule: Ruled | None = None  # of a custom derivative

    @property
    def kind(self) -> str:
        """The primitive whose factors are kept."""
        return (self.eqn if self.rule is None else self.rule.base).primitive.name

    @property
    def carried(self) -> list[Any]:
        """Types of the values from which the factors are made: by default the data and the cotangent."""
        if self.rule is not None:
            return [v.aval for v in self.rule.atoms]
        return [self.eqn.invars[_sites.data_operand(self.eqn, self.operand)].aval, self.eqn.outvars[0].aval]

    def factor(self, values: Sequence[Any]) -> Factor:
        """The gradient of the weight in one evaluation."""
        if self.rule is not None:
            return self.rule.factor(values)
        return _sites.RULES[self.kind].factor(self.eqn, self.operand, *values)


class Step(NamedTuple):
    """A linear equation that passes a parameter on (see `_steps`)."""

    eqn: Any
    operand: int
    rule: Ruled | None = None  # of a custom derivative


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
_NO_GRADIENT = frozenset({"stop_gradient"})


class _Walk:
    """One pass over the frames, for a given set of parameters that may be tapped."""

    def __init__(self, pulls: dict[Place, Pull | None]) -> None:
        self.pulls = pulls
        self.uses: dict[int, list[Use]] = {}
        self.dense: dict[int, str] = {}
        self.sites: dict[Place, Site] = {}

    def frame(self, frame: Frame, args: Sequence[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        values: dict[Any, _Value] = dict(zip(frame.jaxpr.invars, args, strict=True))
        read = lambda atom: _NOTHING if isinstance(atom, jex.Literal) else values.get(atom, _NOTHING)  # noqa: E731
        live = needed(frame.jaxpr, frame.jaxpr.outvars if place else frame.jaxpr.outvars[:1], _NO_GRADIENT)
        for index, eqn in enumerate(frame.jaxpr.eqns):
            inputs = [read(atom) for atom in eqn.invars]
            if not any(value.links for value in inputs) or live.isdisjoint(eqn.outvars):
                outputs = [_mixed(inputs)] * len(eqn.outvars)
            else:
                outputs = self.equation(frame, index, inputs, (*place, index), lengths)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in frame.jaxpr.outvars]

    def equation(self, frame: Frame, index: int, inputs: list[_Value], place: Place, lengths: tuple[int, ...]):
        eqn = frame.jaxpr.eqns[index]
        name = eqn.primitive.name
        children = frame.children.get(index)
        if not any(_is_floating(v) for v in eqn.outvars) or name in _NO_GRADIENT:
            return [_mixed(inputs)] * len(eqn.outvars)
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
        linked = [i for i, value in enumerate(inputs) if value.links]
        if len({eqn.invars[i] for i in linked}) < len(linked):
            return self.give_up(f"{eqn.primitive.name} of a value with itself", inputs, len(eqn.outvars))
        others = _mixed([value for i, value in enumerate(inputs) if i not in linked])
        if len(linked) == 1 and others.data and _is_site(eqn, linked[0], inputs[linked[0]], lengths):
            self.site(place, Site(eqn, linked[0], lengths), inputs[linked[0]])
            return [_Value(data=True)] * len(eqn.outvars)
        # The value of an operand that is not a literal is known outside loops only.
        literal = all(isinstance(v, jex.Literal) for i in linked for v in _steps.wanted(eqn, i))
        known = (not lengths and len(place) == 1) or not _steps.needs_other(eqn) or literal
        if not others.data and known and all(_steps.passes(eqn, i) for i in linked):
            links = tuple((leaf, (*path, Step(eqn, i))) for i in linked for leaf, path in inputs[i].links)
            return [_Value(links, False, _mixed(inputs).trained)]
        return self.give_up(eqn.primitive.name, inputs, len(eqn.outvars))

    def site(self, place: Place, site: Site, weight: _Value) -> None:
        self.sites[place] = site
        for leaf, path in weight.links:
            self.uses.setdefault(leaf, []).append(Use(place, path))

    def custom(self, eqn: Any, inputs: list[_Value], place: Place, lengths: tuple[int, ...]) -> list[_Value]:
        linked = [i for i, value in enumerate(inputs) if value.links]
        if place not in self.pulls:
            self.pulls[place] = pull_of(eqn)
        pull = self.pulls[place]
        if pull is None or len({eqn.invars[i] for i in linked}) < len(linked) or not all(lengths):
            return self.give_up(eqn.primitive.name, inputs, len(eqn.outvars))
        rules, mixed = {i: ruled(pull, i) for i in linked}, _mixed(inputs)
        if len(linked) == 1 and not mixed.data and (rule := rules[linked[0]]) is not None and rule.base is None:
            step = Step(eqn, linked[0], rule)
            links = tuple((leaf, (*path, step)) for leaf, path in inputs[linked[0]].links)
            return [_Value(links, False, mixed.trained)]
        for i, rule in rules.items():
            if mixed.data and rule is not None and _is_ruled_site(rule, inputs[i]):
                self.site((*place, i), Site(eqn, i, lengths, rule), inputs[i])
            else:
                self.give_up(eqn.primitive.name, [inputs[i]])
        return [mixed._replace(trained=True)] * len(eqn.outvars)

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
    return not (_is_scanned(weight) and eqn.primitive.name in _sites.TABLES)


def _is_ruled_site(rule: Ruled, weight: _Value) -> bool:
    if rule.base is None or weight.trained:
        return False
    return not (_is_scanned(weight) and isinstance(rule.abstract(), Sparse))


def _is_scanned(weight: _Value) -> bool:
    return any(isinstance(item, Enter) and item.scanned for _, path in weight.links for item in path)


def _is_floating(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jnp.inexact)


def _mixed(inputs: Sequence[_Value]) -> _Value:
    return _Value((), any(value.data for value in inputs), any(value.trained for value in inputs))


def uses_of(frame: Frame, num_params: int, dense: dict[int, str]) -> Uses:
    """Follow the first ``num_params`` inputs but those that are ``dense`` anyway; the other inputs are data.

    The first output is the loss; the others are not differentiated.
    """
    dense, pulls = dict(dense), {}
    while True:
        walk = _Walk(pulls)
        args = [_Value(trained=True) if leaf in dense else _Value(links=((leaf, ()),)) for leaf in range(num_params)]
        args += [_Value(data=True)] * (len(frame.jaxpr.invars) - num_params)
        outputs = walk.frame(frame, args, (), ())
        walk.give_up("added to the loss", outputs[:1])
        if not walk.dense:
            tapped = {leaf: walk.uses.get(leaf, []) for leaf in range(num_params) if leaf not in dense}
            return Uses(tapped, dense, walk.sites)
        dense.update(walk.dense)
