"""The primitives of JAX, sorted by what `jax.vmap` does with them.

`_row_independence` reads a traced loss and looks each primitive up here. When a new version of JAX brings a primitive
that acts on one example alone, add its name to the family that it belongs to.
"""

from gdpjax.clipping._tracing import CALLS, CUSTOM, REMAT


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Not regularized_incomplete_beta: its continued fraction goes on for all rows until the slowest one has converged, and
# changes the last bits of the others on the way.
_ELEMENTWISE = _names("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
    clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2
    expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic
    lt lt_to max min mul mulhi ne neg nextafter not one_minus_square or polygamma polynomial population_count pow real
    reciprocal reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic
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

RANDOM = _names("""
    random_bits random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap
    philox2x32 philox4x32 rng_bit_generator threefry2x32 threefry4x32
    """)
"""Random bits and keys. Some generators draw for all rows at once, which `_row_independence` refuses by their key."""

# These say where an array is or how it is compiled, and compute nothing.
_PLACEMENT = _names("""
    device_put layout_constraint name optimization_barrier platform_index pvary relayout reshard sharding_constraint
    with_memory_space_constraint xla_metadata_value
    """)

# Mutable arrays that the loss makes: JAX keeps one for each row. A mutable array from outside is a side effect.
_MUTABLE_ARRAYS = _names("accum_grad_in_ref addupdate empty_ref free_ref freeze get new_ref run_state swap")

# JAX's own kernels batch by a grid axis, or by a batch axis of their own, in which rows do not meet.
_KERNELS = _names("""
    cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fwd
    dot_product_attention_fwd_wrapper pallas_call scaled_matmul scaled_matmul_wrapper
    """)

# Primitives with a program inside, which is read as well.
_PROGRAMS = _names("call composite cond custom_lin linear_call remat_opt scan shard_map while xla_metadata_call")

ONE_EXAMPLE = (
    _ELEMENTWISE
    | _ARRAYS
    | _LINEAR_ALGEBRA
    | _SPARSE
    | RANDOM
    | _PLACEMENT
    | _MUTABLE_ARRAYS
    | _KERNELS
    | _PROGRAMS
    | CALLS
    | REMAT
    | CUSTOM
)
"""Names of the primitives that `jax.vmap` is known to apply to every row alone."""

CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print", "outside_call"})
"""Primitives that call Python on the host."""

COLLECTIVES = _names("""
    all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pbroadcast pbroadcast_dynamic pgather pmax
    pmin ppermute precv preduced psend pshuffle psum psum2 psum_invariant ragged_all_to_all reduce_scatter
    unreduced_pmax unreduced_pmin unreduced_psum unreduced_reduce_scatter
    """)
"""Primitives that communicate along a named axis."""

CLASS_PRIMITIVES = frozenset({"call_hi_primitive", "call_hi_primitive_linearized"})
"""One primitive for many operations, each a class with its own rule for vmap: newer versions of JAX define
searchsorted and nonzero so, and so may any library."""

OPAQUE = frozenset({"pallas_call"})
"""Primitives whose inner program is a kernel: its variables are not the inputs of the equation."""
