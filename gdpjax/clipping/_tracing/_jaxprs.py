"""Jaxprs: how to read them and to evaluate parts of them, and everything that differs between versions of JAX.

    frame = frame_of(jax.make_jaxpr(loss)(params, x))          # calls (jit) are inlined
    outputs = evaluate(frame.jaxpr, frame.consts, args)

A `Frame` is a jaxpr whose calls are inlined, together with the frames of the loops, branches and checkpoints in it.

This module uses `jax.extend.core` and nothing private. To evaluate equations it makes a jaxpr of them and calls that,
so that JAX itself handles the primitives with functions inside (custom_jvp, custom_vjp, scan).

The constants of a jaxpr are arrays of NumPy. A derivative rule is the user's code, and it may index a constant with a
traced value, which NumPy does not take. So constants and literals are made arrays of JAX wherever they are read.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "core_closed_call", "eval_jaxpr"})
"""Primitives that call a jaxpr, and do nothing else."""
REMAT = frozenset({"remat", "remat2", "checkpoint"})
"""Primitives that compute their jaxpr again in the backward pass."""
CUSTOM = frozenset({"custom_vjp_call", "custom_jvp_call"})
"""Primitives with a derivative rule that was written by hand."""


class Frame(NamedTuple):
    """A jaxpr whose calls are inlined.

    Attributes:
      jaxpr: the jaxpr.
      consts: the values of its constants.
      children: the frames of the bodies of each scan, cond and checkpoint, by the index of that equation.
    """

    jaxpr: Any
    consts: Sequence[Any]
    children: dict[int, tuple["Frame", ...]]


Place = tuple[int, ...]
"""The place of an equation in a frame.

It is the index of the equation in the outermost frame. For an equation in the body of another one, the place of that
other one comes first, then the number of the body, and then the index in the body.
"""


def equations(frame: Frame, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Return all equations of a frame, and of the bodies inside it, with their places."""
    for index, eqn in enumerate(frame.jaxpr.eqns):
        yield (*place, index), eqn
        for number, body in enumerate(frame.children.get(index, ())):
            yield from equations(body, (*place, index, number))


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    in_place_of: Callable[[int, Any], Any] = lambda index, eqn: None,
) -> list[Any]:
    """Return the outputs of a jaxpr.

    Args:
      jaxpr: the jaxpr.
      consts: the values of its constants.
      args: the values of its inputs.
      in_place_of: from an equation and its index to a function from the values of its inputs to those of its outputs,
        or None: then it is evaluated as it is.
    """
    values = dict(zip(jaxpr.constvars, map(jnp.asarray, consts), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [jnp.asarray(atom.val) if is_literal(atom) else values[atom] for atom in atoms]

    for index, eqn in enumerate(jaxpr.eqns):
        function = in_place_of(index, eqn) or functools.partial(evaluate_equation, eqn)
        values.update(zip(eqn.outvars, function(read(eqn.invars)), strict=True))
    return read(jaxpr.outvars)


def is_literal(atom: Any) -> bool:
    """Return whether an input of an equation is a constant written into the jaxpr, and not a variable."""
    return isinstance(atom, jex.Literal)


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Return the inputs that are variables, without the literals."""
    return [atom for atom in atoms if not is_literal(atom)]


def shape_of(variable: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a variable, as JAX's tracing functions take them in place of a value."""
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def num_bytes(aval: Any) -> int:
    """Return the bytes of an array of this type."""
    size = math.prod(getattr(aval, "shape", ()))
    return size * getattr(aval.dtype, "itemsize", 8)


def is_precise(variable: Any) -> bool:
    """Return whether a variable is a floating number of at least 16 bits."""
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return (jaxpr, its constants) for a ClosedJaxpr, or for a Jaxpr that holds its constants (from JAX 0.11 on)."""
    consts = getattr(jaxpr, "consts", None) or ()
    return getattr(jaxpr, "jaxpr", jaxpr), consts


def dependencies(jaxpr: Any, targets: Sequence[Any], stop: frozenset[str] = frozenset()) -> set[Any]:
    """Return the variables on which the targets depend, and the targets themselves.

    Args:
      jaxpr: the jaxpr.
      targets: some of its variables; literals are left out.
      stop: names of primitives that are not followed back to their inputs.
    """
    # Go through the equations backwards: what a found variable is made of is found too.
    found = set(variables_of(targets))
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name not in stop and not found.isdisjoint(eqn.outvars):
            found.update(variables_of(eqn.invars))
    return found


def evaluate_equation(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Return the outputs of one equation.

    Args:
      eqn: the equation.
      values: one for each of ``eqn.invars``, literals included.
    """
    # A jaxpr has variables for inputs, so literals stay where they are, in the equation. But JAX would hand those of a
    # derivative rule to it as they are.
    given, atoms = {}, []
    for atom, value in zip(eqn.invars, values, strict=True):
        if is_literal(atom) and eqn.primitive.name in CUSTOM:
            atom = jex.Var(atom.aval)
        if not is_literal(atom):
            given[atom] = value
        atoms.append(atom)
    eqn = eqn.replace(invars=atoms)
    jaxpr = jex.Jaxpr((), list(given), list(eqn.outvars), [eqn], eqn.effects, _debug_info())
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*given.values())


@functools.cache
def _debug_info() -> Any:
    """Return the debug information of a trivial function: JAX wants some with every jaxpr."""
    jaxpr, _ = opened(jax.make_jaxpr(lambda: 0)())
    return jaxpr.debug_info


class Scan(NamedTuple):
    """The parts of a scan equation.

    Attributes:
      num_consts: how many inputs all iterations share.
      num_carry: how many inputs are carried from one iteration to the next.
      length: the number of iterations.
      reverse: whether the scan takes the last slice first.
      unroll: how many iterations JAX writes out in one.
    """

    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: Any

    def split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the inputs of the equation as (constants, carried, scanned over)."""
        num_before = self.num_consts + self.num_carry
        consts = list(inputs[: self.num_consts])
        carried = list(inputs[self.num_consts : num_before])
        return consts, carried, list(inputs[num_before:])

    def evaluate(self, body: Callable[..., list[Any]], carried: list[Any], scanned: Any) -> list[Any]:
        """Return the outputs of the equation, with ``body`` from (carried, slices) to the outputs of an iteration."""

        def step(carried: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            outputs = body(carried, slices)
            return outputs[: self.num_carry], outputs[self.num_carry :]

        carried, stacked = jax.lax.scan(
            step, carried, scanned, length=self.length, reverse=self.reverse, unroll=self.unroll
        )
        return [*carried, *stacked]


def scan_of(eqn: Any) -> Scan | None:
    """Return the parts of a scan, or None where this version of JAX has a form of it that is not known here."""
    params = eqn.params
    try:
        if "ft_in" in params:  # from JAX 0.11.2 on
            num_consts, num_carry = (len(group) for group in params["ft_in"].unpack()[:2])
        else:
            num_consts, num_carry = params["num_consts"], params["num_carry"]
        return Scan(num_consts, num_carry, params["length"], params["reverse"], params["unroll"])
    except (KeyError, AttributeError, TypeError, ValueError):
        return None


def frame_of(closed: Any, inlined: frozenset[str] = CALLS) -> Frame:
    """Return the frame of a (closed) jaxpr: calls inlined, with the bodies of loops, branches and checkpoints.

    Args:
      closed: the jaxpr.
      inlined: the primitives whose bodies are inlined.
    """
    jaxpr, consts = opened(closed)
    if any(eqn.primitive.name in inlined for eqn in jaxpr.eqns):
        jaxpr, consts = _inlined(jaxpr, consts, inlined)

    children = {}
    for index, eqn in enumerate(jaxpr.eqns):
        bodies = _bodies(eqn)
        if bodies:
            children[index] = tuple(frame_of(body, inlined) for body in bodies)
    return Frame(jaxpr, consts, children)


def _bodies(eqn: Any) -> Sequence[Any]:
    """Return the jaxprs inside a scan of some iterations, a cond or a checkpoint."""
    name = eqn.primitive.name
    if name == "scan" and scan_of(eqn) is not None and eqn.params["length"]:
        return [eqn.params["jaxpr"]]
    if name == "cond":
        return eqn.params.get("branches", ())
    if name in REMAT:
        return [eqn.params["jaxpr"]]
    return ()


def _inlined(jaxpr: Any, consts: Sequence[Any], names: frozenset[str]) -> tuple[Any, Sequence[Any]]:
    """Return the same jaxpr without calls of these names, and its constants."""

    def evaluate_inlined(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        def in_place_of(index: int, eqn: Any) -> Any:
            body = _call_body(eqn) if eqn.primitive.name in names else None
            return None if body is None else functools.partial(evaluate_inlined, *opened(body))

        return evaluate(jaxpr, consts, args, in_place_of)

    specs = [shape_of(variable) for variable in jaxpr.invars]
    return opened(jax.make_jaxpr(lambda *args: evaluate_inlined(jaxpr, consts, args))(*specs))


def _call_body(eqn: Any) -> Any:
    """Return the jaxpr that a call applies, or None."""
    return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
