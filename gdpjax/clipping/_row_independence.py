"""The check that no example can reach the gradient of another.

    program = read_program(jaxpr, depends_on_rows)   # ValueError, or what the program is made of

The loss is traced for ONE example, and `jax.vmap` maps the traced program over the rows of a batch. Under vmap nearly
every primitive does to each row what it does to one example. A few see all rows at once: a callback with a vectorised
vmap method, a `custom_vmap` rule, a collective over the axis of a shard_map. Through these one row could move the
gradients of all others, and then clipping each gradient would bound nothing.

So the program is read equation by equation, with its calls, loops and branches. A primitive that is not known to act on
one example (`_known_primitives`) is refused by name. A derivative rule written by hand may call anything too, and shows
only in the gradient program. So `_loss` has the gradient program of such a loss read as well.

With the strategy "sequential" rows are computed one after the other, without `jax.vmap`: what is left to refuse are
side effects, and collectives.

The reader also follows which variables depend on the example's rows. Random numbers need this: with some
generators, vmap draws the bits of all rows from the key of row 0. That is harmless, unless the key was made from a row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex

from gdpjax.clipping._known_primitives import CALLBACKS, CLASS_PRIMITIVES, COLLECTIVES, ONE_EXAMPLE, OPAQUE, RANDOM
from gdpjax.clipping._tracing import CALLS, CUSTOM, REMAT, is_vouched_for, opened, scan_of

CONVOLUTION = "conv_general_dilated"
"""The primitive of every convolution."""

_GENERATORS_FOR_ALL_ROWS = {"key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""Dtypes of keys from which vmap draws the bits of all rows by the key of row 0, and the names of their generators."""


_PURE_CALLBACK = "pure_callback"
_WAY_OUT = 'compute rows one at a time (strategy="sequential")'


class Program(NamedTuple):
    """The contents of a traced loss, with those of the programs inside it.

    Attributes:
      primitives: the names of its primitives.
      constants: the arrays that it closes over.
    """

    primitives: set[str]
    constants: list[Any]


def read_program(
    closed: Any, depends_on_rows: Sequence[bool], where: str = "loss_fn", is_sequential: bool = False
) -> Program:
    """Read a traced program of one example and refuse primitives that could see several.

    Args:
      closed: the traced program.
      depends_on_rows: for each of its inputs, whether it comes from the example's rows.
      where: the name of the program in messages.
      is_sequential: whether rows are computed one by one, so that no primitive sees several.

    Raises:
      ValueError: at a primitive that is not known to act on one example alone.
    """
    reader = _Reader(where, is_sequential)
    reader.read(closed, list(depends_on_rows), frozenset())
    return reader.program


def inner_programs(eqn: Any) -> list[Any]:
    """Return every program among the parameters of an equation."""

    def is_program(value: Any) -> bool:
        return isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))

    values = jax.tree.leaves(list(eqn.params.values()), is_leaf=is_program)
    return [value for value in values if is_program(value)]


class _Reader:
    """Reads a program and the programs inside it, and follows which variables depend on the rows."""

    def __init__(self, where: str, is_sequential: bool) -> None:
        self.where = where
        self.is_sequential = is_sequential
        self.program = Program(set(), [])
        # What was read before, so that a program called twice with the same kinds of inputs is read once.
        self._already_read: dict[Any, list[bool]] = {}

    def read(self, closed: Any, depends_on_rows: list[bool], own_axes: frozenset[Any]) -> list[bool]:
        """Check every equation of a program.

        Args:
          closed: the program.
          depends_on_rows: for each input, whether it depends on the rows.
          own_axes: the axes of the shard_maps inside the loss that the program runs in.

        Returns:
          For each output, whether it depends on the rows.
        """
        jaxpr, constants = opened(closed)
        identity = (id(jaxpr), tuple(depends_on_rows), own_axes)
        if identity in self._already_read:
            return self._already_read[identity]
        self.program.constants.extend(constants)

        private = set()
        for variable, depends in zip(jaxpr.invars, depends_on_rows, strict=True):
            if depends:
                private.add(variable)

        def is_private(atom: Any) -> bool:
            return not isinstance(atom, jex.Literal) and atom in private

        for eqn in jaxpr.eqns:
            inputs = [is_private(atom) for atom in eqn.invars]
            _check_for_anyone(eqn, own_axes, self.where)
            if not self.is_sequential:
                _check_under_vmap(eqn, any(inputs), self.where)
            self.program.primitives.add(eqn.primitive.name)
            outputs = self._read_inside(eqn, inputs, own_axes)
            for variable, depends in zip(eqn.outvars, outputs, strict=True):
                if depends:
                    private.add(variable)

        result = [is_private(atom) for atom in jaxpr.outvars]
        self._already_read[identity] = result
        return result

    def _read_inside(self, eqn: Any, inputs: list[bool], own_axes: frozenset[Any]) -> list[bool]:
        """Read the programs inside an equation; return for each of its outputs whether it depends on the rows."""
        name = eqn.primitive.name
        anywhere = any(inputs)
        if name in OPAQUE:
            return [anywhere] * len(eqn.outvars)

        # For calls and scans it is known which of their inputs is which input of the program inside.
        bodies = inner_programs(eqn)
        if len(bodies) == 1:
            body = bodies[0]
            num_inputs = len(opened(body)[0].invars)
            if name in CALLS | REMAT | CUSTOM and num_inputs == len(inputs):
                return self.read(body, inputs, own_axes)
            scan = scan_of(eqn) if name == "scan" else None
            if scan is not None:
                # What is carried may depend on the rows after the first iteration.
                consts, carried, scanned = scan.split(inputs)
                return self.read(body, [*consts, *[anywhere] * len(carried), *scanned], own_axes)

        # Of other equations nothing is known, so every input may reach every output.
        axes = own_axes
        if name == "shard_map":
            axes = own_axes | _shard_map_axes(eqn)
        for body in bodies:
            num_inputs = len(opened(body)[0].invars)
            self.read(body, [anywhere] * num_inputs, axes)
        return [anywhere] * len(eqn.outvars)


def _shard_map_axes(eqn: Any) -> frozenset[Any]:
    """Return the mesh axes of a shard_map; versions of JAX name the parameter differently."""
    for name in ("newly_manual_axes", "manual_axes", "axis_names"):
        if name in eqn.params:
            return frozenset(eqn.params[name])
    return frozenset()


def _collective_axes(eqn: Any) -> frozenset[Any]:
    """Return the axes that a collective names; a number is an axis of the array itself and does not count."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    if not isinstance(axes, (tuple, list)):
        axes = (axes,)
    return frozenset(axis for axis in axes if not isinstance(axis, int))


def _check_for_anyone(eqn: Any, own_axes: frozenset[Any], where: str) -> None:
    """Refuse an equation with side effects, or one that reaches other devices.

    Args:
      eqn: the equation.
      own_axes: the axes that collectives may name.
      where: the name of the program in messages.
    """
    name = eqn.primitive.name
    if name in CALLBACKS - {_PURE_CALLBACK}:
        raise ValueError(
            f"{where} has side effects ({name}): a callback would show private examples, and may be given all of them "
            "at once; remove prints and callbacks, write the computation in jax.numpy, and return what you need as aux"
        )
    outside = _collective_axes(eqn) - own_axes if name in COLLECTIVES else frozenset()
    if outside:
        raise ValueError(
            f"{where} names an axis across examples ({name} over {sorted(map(str, outside))}); it sees one example "
            "only, and what comes from another device is of other examples: sum over devices after clipping, and use "
            "GroupNorm or LayerNorm in place of BatchNorm"
        )


def _check_under_vmap(eqn: Any, is_private: bool, where: str) -> None:
    """Refuse an equation whose primitive is not known to act on one example alone under `jax.vmap`.

    Args:
      eqn: the equation.
      is_private: whether one of its inputs depends on the rows.
      where: the name of the program in messages.
    """
    name = eqn.primitive.name
    if name in (_PURE_CALLBACK, "custom_vmap_call"):
        raise ValueError(
            f"{where} calls the host or a custom_vmap ({name}), which is given all examples at once, so that one could "
            f"reach every gradient; write it for one example in jax.numpy, or {_WAY_OUT}"
        )
    if name == "ffi_call":
        method = eqn.params.get("vmap_method")
        if method not in ("sequential", "sequential_unrolled"):
            raise ValueError(
                f"{where} makes a foreign call ({name}) with vmap_method={method!r}, which gives it all examples at "
                f'once, so that one could reach every gradient; use vmap_method="sequential", or {_WAY_OUT}'
            )
        return
    if name in COLLECTIVES:
        return

    # Of primitives that stand for a class of operations, those that JAX defines act on one example. Others are refused,
    # by the name of the class.
    if name in CLASS_PRIMITIVES:
        foreign = _foreign_classes(eqn)
        if not foreign:
            return
        name = foreign[0]

    if name not in ONE_EXAMPLE and not is_vouched_for(name):
        raise ValueError(
            f"{where} uses the primitive {name}, which is not known to act on one example alone under jax.vmap, so "
            "that one example could reach every gradient; write it in jax.numpy or jax.lax, or as a foreign call "
            f'with vmap_method="sequential" (jax.ffi.ffi_call), or {_WAY_OUT}'
        )
    if is_private:
        _check_generator(eqn, where)


def _foreign_classes(eqn: Any) -> list[str]:
    """Return the names of classes among the parameters that neither JAX nor Python defines."""
    names = []
    for value in eqn.params.values():
        package = type(value).__module__.partition(".")[0]
        if package not in ("jax", "builtins"):
            names.append(type(value).__name__)
    return names


def _check_generator(eqn: Any, where: str) -> None:
    """Refuse random bits whose key was made from a row, by a generator that draws for all rows at once."""
    name = eqn.primitive.name
    if name not in RANDOM or not eqn.invars:
        return
    generator = "rbg"
    if name != "rng_bit_generator":
        key_dtype = str(getattr(eqn.invars[0].aval, "dtype", ""))
        generator = _GENERATORS_FOR_ALL_ROWS.get(key_dtype)
    if generator is not None:
        raise ValueError(
            f"{where} makes a {generator} key from an example ({name}): jax.vmap draws the bits of all examples from "
            "the key of the first, which would reach every gradient; use a threefry key, keys by key_argnums, or "
            f"{_WAY_OUT}"
        )
