"""What a loss of one example may be made of, so that no example can reach another's gradient.

The loss is traced for ONE example, and `jax.vmap` maps the traced program over the rows of a batch. Nearly every
primitive then does to each row what it does to one example. A few see all rows at once: a callback with a vectorised
vmap method, a `custom_vmap` rule, a collective over the axis of a shard_map. One row would then move the gradients of
all others, and clipping each of them bounds nothing.

So the program is read, equation by equation: its calls, loops and branches, and the gradient program too wherever a
layer has a derivative rule of its own, as such a rule may call what it likes. A primitive that is not known to act on
one example is refused by name. Arrays that the loss closes over are constants of that program, which every example sees
whole; those that look like the batch are refused as well.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax.clipping._tracing import CALLS, CUSTOM, REMAT, Scan, opened, scan_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE = _names("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2
    expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic
    lt lt_to max min mul mulhi ne neg nextafter not one_minus_square or polygamma polynomial population_count pow real
    reciprocal reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
    """)
_ARRAYS = _names("""
    approx_top_k argmax argmin broadcast_in_dim broadcast_to concatenate conv_general_dilated cumlogsumexp cummax cummin
    cumprod cumsum dot_general dynamic_slice dynamic_update_slice empty empty2 expand_dims fft gather iota
    iota_2x32_shape pad ragged_dot_general reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    reduce_window reduce_window_max reduce_window_min reduce_window_sum reduce_xor reshape rev scaled_dot scatter
    scatter-add scatter-max scatter-min scatter-mul scatter-sub scatter_add scatter_max scatter_min scatter_mul
    select_and_gather_add select_and_scatter select_and_scatter_add slice sort split squeeze stack tile top_k transpose
    unstack zeros_like
    """)
_LINEAR_ALGEBRA = _names("""
    cholesky cholesky_update custom_linear_solve eig eigh geqp3 geqrf hessenberg householder_product lu
    lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve
    """)
_SPARSE = _names("""
    bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general
    bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense
    """)
_RANDOM = _names("""
    random_bits random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap
    philox2x32 philox4x32 rng_bit_generator threefry2x32 threefry4x32
    """)
# Where arrays are and how they are compiled; nothing is computed.
_PLACEMENT = _names("""
    device_put layout_constraint name optimization_barrier platform_index pvary relayout reshard sharding_constraint
    with_memory_space_constraint xla_metadata_value
    """)
# Mutable arrays made inside of the loss (JAX keeps them apart for each row); one from outside is a side effect.
_REFS = _names("accum_grad_in_ref addupdate empty_ref free_ref freeze get new_ref run_state swap")
# JAX's own kernels, whose batching is a grid or a batch axis of their own for each row.
_KERNELS = _names("""
    cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fwd
    dot_product_attention_fwd_wrapper pallas_call scaled_matmul scaled_matmul_wrapper
    """)
_PROGRAMS = (
    CALLS
    | REMAT
    | CUSTOM
    | _names("call composite cond custom_lin linear_call remat_opt scan shard_map while xla_metadata_call")
)
ONE_EXAMPLE = _ELEMENTWISE | _ARRAYS | _LINEAR_ALGEBRA | _SPARSE | _RANDOM | _PLACEMENT | _REFS | _KERNELS | _PROGRAMS
"""Names of the primitives that `jax.vmap` is known to apply to every row alone."""

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print", "outside_call"})
_COLLECTIVES = _names("""
    all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pbroadcast pbroadcast_dynamic pgather pmax
    pmin ppermute precv preduced psend pshuffle psum psum2 psum_invariant ragged_all_to_all reduce_scatter
    unreduced_pmax unreduced_pmin unreduced_psum unreduced_reduce_scatter
    """)
# A class with rules of its own for vmap: searchsorted and nonzero of newer versions of JAX, or anybody's.
_OF_CLASSES = frozenset({"call_hi_primitive", "call_hi_primitive_linearized"})
_OPAQUE = frozenset({"pallas_call"})  # a kernel's body is not a program over the rows
_MOST_COEFFICIENTS = 16
"""NumPy vectors of up to so many entries are coefficients in JAX's own functions (of polynomials, say)."""
_KEYS_TOGETHER = {"key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""Types of keys of which vmap draws the bits of all rows from the key of row 0, and their generators."""


class Program(NamedTuple):
    """What a traced loss consists of: the names of its primitives, and the arrays that it closes over."""

    primitives: set[str]
    constants: list[Any]

    @property
    def has_rules(self) -> bool:
        """Whether a derivative rule written by hand is used, which shows in the gradient only."""
        return not self.primitives.isdisjoint(CUSTOM)


def read_program(closed: Any, from_rows: Sequence[bool], where: str = "loss_fn") -> Program:
    """Read a traced program of one example; ValueError at a primitive that is not known to act on one example alone.

    Args:
      closed: the traced program.
      from_rows: for each of its inputs, whether it comes from the example's rows.
      where: what the program is, for the message.
    """
    program = Program(set(), [])
    _Reader(program, {}, where).read(closed, list(from_rows), frozenset())
    return program


class _Reader(NamedTuple):
    """Reads programs, the inner ones too, and follows what is made from the rows."""

    program: Program
    found: dict[Any, list[bool]]
    where: str

    def read(self, closed: Any, from_rows: list[bool], own_axes: frozenset[Any]) -> list[bool]:
        """Check every equation; whether each output depends on the rows."""
        jaxpr, consts = opened(closed)
        known = (id(jaxpr), tuple(from_rows), own_axes)
        if known in self.found:
            return self.found[known]
        self.program.constants.extend(consts)
        of_rows = {v for v, mark in zip(jaxpr.invars, from_rows, strict=True) if mark}
        is_private = lambda v: not isinstance(v, jex.Literal) and v in of_rows  # noqa: E731
        for eqn in jaxpr.eqns:
            marks = [is_private(v) for v in eqn.invars]
            _check_equation(eqn, any(marks), own_axes, self.where)
            self.program.primitives.add(eqn.primitive.name)
            outputs = self._inside(eqn, marks, own_axes)
            of_rows.update(v for v, mark in zip(eqn.outvars, outputs, strict=True) if mark)
        self.found[known] = [is_private(v) for v in jaxpr.outvars]
        return self.found[known]

    def _inside(self, eqn: Any, marks: list[bool], own_axes: frozenset[Any]) -> list[bool]:
        """Read the programs inside of an equation; whether each of its outputs depends on the rows."""
        name, bodies = eqn.primitive.name, _bodies(eqn)
        if name in _OPAQUE:
            return [any(marks)] * len(eqn.outvars)
        one = opened(bodies[0])[0] if len(bodies) == 1 else None
        if name in CALLS | REMAT | CUSTOM and one is not None and len(one.invars) == len(marks):
            return self.read(bodies[0], marks, own_axes)
        if name == "scan" and one is not None and (scan := scan_of(eqn)) is not None:
            return self._loop(bodies[0], scan, marks, own_axes)
        # What goes where is not known here: all that is inside depends on the rows, or nothing.
        axes = own_axes | _axes_of(eqn) if name == "shard_map" else own_axes
        for body in bodies:
            self.read(body, [any(marks)] * len(opened(body)[0].invars), axes)
        return [any(marks)] * len(eqn.outvars)

    def _loop(self, body: Any, scan: Scan, marks: list[bool], own_axes: frozenset[Any]) -> list[bool]:
        start, end = scan.num_consts, scan.num_consts + scan.num_carry
        while True:
            outputs = self.read(body, marks, own_axes)
            carried = [a or b for a, b in zip(marks[start:end], outputs[: scan.num_carry], strict=True)]
            if carried == marks[start:end]:
                return outputs
            marks = [*marks[:start], *carried, *marks[end:]]


def _bodies(eqn: Any) -> list[Any]:
    """Every program among the parameters of an equation."""
    is_program = lambda value: isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))  # noqa: E731
    return [value for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_program) if is_program(value)]


def _axes_of(eqn: Any) -> frozenset[Any]:
    """The mesh axes that a shard_map inside of the loss is over."""
    for name in ("newly_manual_axes", "manual_axes", "axis_names"):
        if name in eqn.params:
            return frozenset(eqn.params[name])
    return frozenset()


def _named_axes(eqn: Any) -> frozenset[Any]:
    """The axes that a collective names; a number is an axis of the array itself."""
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    named = named if isinstance(named, (tuple, list)) else (named,)
    return frozenset(axis for axis in named if not isinstance(axis, int))


def _check_equation(eqn: Any, private: bool, own_axes: frozenset[Any], where: str) -> None:
    name = eqn.primitive.name
    if name in _CALLBACKS:
        raise ValueError(
            f"{where} has side effects ({name}): a callback would show private examples, and may be given all of them "
            "at once; remove prints and callbacks, write the computation in jax.numpy, and return what you need as aux"
        )
    if name == "custom_vmap_call":
        raise ValueError(
            f"{where} uses jax.custom_batching.custom_vmap ({name}), whose rule is given all examples at once, so that "
            "one could reach every gradient; write it for one example and leave the batching to JAX (jax.lax.map in "
            "place of sequential_vmap)"
        )
    if name == "ffi_call":
        method = eqn.params.get("vmap_method")
        if method not in ("sequential", "sequential_unrolled"):
            raise ValueError(
                f"{where} makes a foreign call ({name}) with vmap_method={method!r}, which gives it all examples at "
                'once, so that one could reach every gradient; use vmap_method="sequential"'
            )
        return
    if name in _COLLECTIVES:
        axes = _named_axes(eqn)
        if not axes <= own_axes:
            raise ValueError(
                f"{where} names an axis across examples ({name} over {sorted(map(str, axes - own_axes))}); it sees one "
                "example only, and what comes from another device is of other examples: sum over devices after "
                "clipping, and use GroupNorm or LayerNorm in place of BatchNorm"
            )
        return
    if name in _OF_CLASSES:
        kinds = [type(value) for value in eqn.params.values()]
        if all(kind.__module__.partition(".")[0] in ("jax", "builtins") for kind in kinds):
            return
        name = next(kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] not in ("jax", "builtins"))
    if name not in ONE_EXAMPLE:
        raise ValueError(
            f"{where} uses the primitive {name}, which is not known to act on one example alone under jax.vmap, so "
            "that one example could reach every gradient; write it in jax.numpy or jax.lax, or as a foreign call "
            'with vmap_method="sequential" (jax.ffi.ffi_call)'
        )
    if private and (kind := _generator(eqn)) is not None:
        raise ValueError(
            f"{where} makes a {kind} key from an example ({name}): jax.vmap draws the bits of all examples from the "
            "key of the first, which would reach every gradient; use a threefry key, or keys by key_argnums"
        )


def _generator(eqn: Any) -> str | None:
    """The generator, if the equation draws from a key of which vmap takes the first one for all rows."""
    if eqn.primitive.name not in _RANDOM or not eqn.invars:
        return None
    if eqn.primitive.name == "rng_bit_generator":
        return "rbg"
    return _KEYS_TOGETHER.get(str(getattr(eqn.invars[0].aval, "dtype", "")))


def refuse_rows(
    constants: Iterable[Any], shared: Iterable[Any], num_rows: int, rows: Iterable[Any], lengths: set[int]
) -> None:
    """ValueError if an array that the loss closes over looks like a batch.

    Such an array has the batch's length as its first axis, and either rows like those of a batched argument, or a
    length that nothing else of the model has: a bias of a layer that happens to be as wide as the batch is not refused.

    Args:
      constants: the arrays that the traced loss holds.
      shared: the parameters and the arguments that all examples share, which may be among them.
      num_rows: the length of the batch, or of the whole data set.
      rows: for each batched array, the shape and type of one row.
      lengths: the lengths of the axes of parameters, shared arguments and rows.
    """
    named = list(shared)
    # JAX copies what it is given as NumPy arrays, so that only their shapes can be compared.
    identities = {id(leaf) for leaf in named}
    copied = {np.shape(leaf) for leaf in named if not isinstance(leaf, jax.Array)}
    closed_over = {id(leaf): leaf for leaf in constants if id(leaf) not in identities and np.shape(leaf) not in copied}
    arrays = [leaf for leaf in closed_over.values() if np.ndim(leaf)]
    kinds = {(tuple(row.shape), _kind(row.dtype)) for row in rows if row.shape}
    for array in arrays:
        shape, kind = np.shape(array), _kind(array.dtype)
        if shape[0] != num_rows or _is_count(array):
            continue
        if len(shape) == 1 and num_rows <= _MOST_COEFFICIENTS and not isinstance(array, jax.Array):
            continue
        others = {length for leaf in arrays if leaf is not array for length in np.shape(leaf)}
        is_known_length = num_rows in lengths or num_rows in others or num_rows in shape[1:]
        if (shape[1:], kind) in kinds or not is_known_length:
            raise ValueError(
                f"loss_fn closes over an array {described(array)} whose first axis is as long as the data "
                f"({num_rows}): every example would see all of it. If it has a row for each example, pass it as an "
                "argument and name that in batch_argnums; if all examples share it, pass it as an argument and name "
                "that in shared_argnums"
            )


def described(array: Any) -> str:
    """Type and shape of an array, never its values."""
    return f"{getattr(array, 'dtype', None) or jnp.result_type(array)}{list(jnp.shape(array))}"


def _kind(dtype: Any) -> str:
    for kind in (jnp.integer, jnp.floating, jnp.complexfloating):
        if jnp.issubdtype(dtype, kind):
            return kind.__name__
    return str(dtype)


def _is_count(array: Any) -> bool:
    """Whether an array is 0, 1, 2, ..., as positions are."""
    known = not is_traced(array) and getattr(array, "is_fully_addressable", True)
    if not known or np.ndim(array) != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        return False
    return np.array_equal(np.asarray(array), np.arange(len(array)))


_SAME = _names("copy copy_p convert_element_type reshape squeeze expand_dims broadcast_in_dim")


class _Value(NamedTuple):
    """A variable as an image of another one that has the same entries."""

    source: Any
    is_mean: bool


def refuse_own_mean(closed: Any, keep_batch_dim: bool) -> None:
    """ValueError if the loss takes from a value its mean over no axis, or over the batch axis of length one.

    That is what a BatchNorm in training does with one example: what it returns is a constant, and all gradients before
    it are exactly zero.
    """
    jaxpr, _ = opened(closed)
    _own_mean(jaxpr, [_Value(v, False) for v in jaxpr.invars], keep_batch_dim)


def _own_mean(jaxpr: Any, inputs: list[_Value], keep_batch_dim: bool) -> list[_Value]:
    values = dict(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> _Value:
        return _Value(object(), False) if isinstance(atom, jex.Literal) else values.get(atom, _Value(atom, False))

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        first = value(eqn.invars[0]) if eqn.invars else None
        if first is not None and _keeps_entries(eqn):
            values[eqn.outvars[0]] = first
        elif first is not None and name == "reduce_sum" and _over_nothing(eqn, keep_batch_dim):
            values[eqn.outvars[0]] = _Value(first.source, True)
        elif name == "sub":
            second = value(eqn.invars[1])
            if first is not None and first.source is second.source and first.is_mean != second.is_mean:
                raise ValueError(
                    "loss_fn takes from a value its mean over the batch, which is the value itself, as it sees one "
                    "example: all gradients before that are exactly zero. This is a BatchNorm in training; use "
                    "GroupNorm or LayerNorm, or the statistics of a public data set (use_running_average=True)"
                )
        elif name in CALLS and (bodies := _bodies(eqn)):
            outputs = _own_mean(opened(bodies[0])[0], [value(v) for v in eqn.invars], keep_batch_dim)
            values.update(zip(eqn.outvars, outputs, strict=True))
        else:
            for body in _bodies(eqn) if name not in _OPAQUE else ():
                inner = opened(body)[0]
                _own_mean(inner, [_Value(v, False) for v in inner.invars], keep_batch_dim)
    return [value(v) for v in jaxpr.outvars]


def _keeps_entries(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in ("div", "mul"):
        return isinstance(eqn.invars[1], jex.Literal) and np.ndim(eqn.invars[1].val) == 0 and eqn.invars[1].val == 1
    return name in _SAME and np.prod(eqn.invars[0].aval.shape) == np.prod(eqn.outvars[0].aval.shape)


def _over_nothing(eqn: Any, keep_batch_dim: bool) -> bool:
    axes, shape = eqn.params["axes"], eqn.invars[0].aval.shape
    if not axes:
        return True
    return keep_batch_dim and 0 in axes and all(shape[axis] == 1 for axis in axes)
