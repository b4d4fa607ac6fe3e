"""Jaxprs, and all that differs between versions of JAX about them, in one place.

Everything goes through `jax.extend.core`: an equation is evaluated by making a jaxpr of it and calling that, so that
primitives with functions inside (custom_jvp, custom_vjp, scan) are rebound by JAX itself. A `Frame` is a jaxpr whose
calls (jit) have been inlined, together with the frames of the loops, branches and checkpoints in it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex

from gdpjax._core.types import Array

CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "core_closed_call"})
REMAT = frozenset({"remat", "remat2", "checkpoint"})
CUSTOM = frozenset({"custom_vjp_call", "custom_jvp_call"})


class Frame(NamedTuple):
    """A jaxpr without calls: ``children`` maps the index of a scan, cond or checkpoint equation to its bodies."""

    jaxpr: Any
    consts: Sequence[Any]
    children: dict[int, tuple["Frame", ...]]


class Environment:
    """Values of variables while a jaxpr is evaluated."""

    def __init__(self, frame_jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]):
        self._values = dict(zip(frame_jaxpr.constvars, consts, strict=True))
        self._values.update(zip(frame_jaxpr.invars, args, strict=True))

    def read(self, atom: Any) -> Any:
        """The value of a variable or literal."""
        return atom.val if isinstance(atom, jex.Literal) else self._values[atom]

    def read_all(self, atoms: Sequence[Any]) -> list[Any]:
        """Values of several."""
        return [self.read(atom) for atom in atoms]

    def write(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the outputs of an equation."""
        self._values.update(
            (v, value) for v, value in zip(variables, values, strict=True) if not isinstance(v, jex.DropVar)
        )

    def run(self, eqns: list[Any]) -> None:
        """Evaluate a run of consecutive equations."""
        if not eqns:
            return
        made = {v for eqn in eqns for v in eqn.outvars}
        needed = dict.fromkeys(
            v for eqn in eqns for v in eqn.invars if not isinstance(v, jex.Literal) and v not in made
        )
        outputs = [v for eqn in eqns for v in eqn.outvars if not isinstance(v, jex.DropVar)]
        effects = frozenset().union(*(eqn.effects for eqn in eqns))
        jaxpr = jex.Jaxpr((), list(needed), outputs, list(eqns), effects, _debug_info())
        self.write(outputs, jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*self.read_all(list(needed))))


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, its constants), for a ClosedJaxpr (0.10) and for a Jaxpr that holds its constants (0.11 on)."""
    consts = getattr(jaxpr, "consts", None) or ()
    return getattr(jaxpr, "jaxpr", jaxpr), consts


@functools.cache
def _debug_info() -> Any:
    """JAX wants one with every jaxpr, and gives one with every trace."""
    return opened(jax.make_jaxpr(lambda: 0)())[0].debug_info


def needed(jaxpr: Any, wanted: Sequence[Any], stop: frozenset[str] = frozenset()) -> set[Any]:
    """The variables on which those in ``wanted`` depend, themselves included; not through primitives in ``stop``."""
    found = {v for v in wanted if not isinstance(v, jex.Literal)}
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name not in stop and not found.isdisjoint(eqn.outvars):
            found.update(v for v in eqn.invars if not isinstance(v, jex.Literal))
    return found


def leading_to(jaxpr: Any, wanted: Sequence[Any]) -> list[Any]:
    """The equations that these variables need."""
    variables = needed(jaxpr, wanted)
    return [eqn for eqn in jaxpr.eqns if not variables.isdisjoint(eqn.outvars)]


def evaluate(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """The outputs of one equation for these inputs (one for each of ``eqn.invars``, literals included)."""
    variables = [v for v in eqn.invars if not isinstance(v, jex.Literal)]
    given = [value for v, value in zip(eqn.invars, values, strict=True) if not isinstance(v, jex.Literal)]
    unique = dict(zip(variables, given, strict=True))
    jaxpr = jex.Jaxpr((), list(unique), list(eqn.outvars), [eqn], eqn.effects, _debug_info())
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*unique.values())


class Scan(NamedTuple):
    """The parts of a scan equation."""

    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: Any


def scan_of(eqn: Any) -> Scan | None:
    """The parts of a scan, or None where this version's form of it is not understood."""
    params = eqn.params
    try:
        if "ft_in" in params:  # 0.11.2 on
            num_consts, num_carry = (len(group) for group in params["ft_in"].unpack()[:2])
        else:
            num_consts, num_carry = params["num_consts"], params["num_carry"]
        return Scan(num_consts, num_carry, params["length"], params["reverse"], params["unroll"])
    except (KeyError, AttributeError, TypeError, ValueError):
        return None


def _bodies(eqn: Any) -> Sequence[Any]:
    name = eqn.primitive.name
    if name == "scan" and scan_of(eqn) is not None:
        return [eqn.params["jaxpr"]]
    if name == "cond":
        return eqn.params.get("branches", ())
    return [eqn.params["jaxpr"]] if name in REMAT else ()


def _call_body(eqn: Any) -> Any:
    if eqn.primitive.name not in CALLS:
        return None
    return next((eqn.params[name] for name in ("jaxpr", "call_jaxpr") if name in eqn.params), None)


def _evaluate_inlined(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    environment = Environment(jaxpr, consts, args)
    run: list[Any] = []
    for eqn in jaxpr.eqns:
        body = _call_body(eqn)
        if body is None:
            run.append(eqn)
            continue
        environment.run(run)
        run = []
        environment.write(eqn.outvars, _evaluate_inlined(*opened(body), environment.read_all(eqn.invars)))
    environment.run(run)
    return environment.read_all(jaxpr.outvars)


def frame_of(closed: Any) -> Frame:
    """The frame of a (closed) jaxpr: calls inlined, bodies of loops, branches and checkpoints beside it."""
    jaxpr, consts = opened(closed)
    if any(_call_body(eqn) is not None for eqn in jaxpr.eqns):
        specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        inlined: Callable[..., list[Array]] = lambda *args: _evaluate_inlined(jaxpr, consts, args)  # noqa: E731
        jaxpr, consts = opened(jax.make_jaxpr(inlined)(*specs))
    children = {
        index: tuple(frame_of(body) for body in bodies)
        for index, eqn in enumerate(jaxpr.eqns)
        if (bodies := _bodies(eqn))
    }
    return Frame(jaxpr, consts, children)
