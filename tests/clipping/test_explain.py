"""`explain`, and what the strategies choose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from tests.clipping import patterns_custom, patterns_derived  # noqa: F401 - their patterns
from tests.clipping.patterns import make, with_slow_ones


def methods(name, **options):
    loss, params, rows = make(name, jnp.float32)
    found = gdpjax.clipping.explain(
        loss,
        params,
        rows if len(rows) > 1 else rows[0],
        batch_argnums=tuple(range(1, 1 + len(rows))),
        **options,
    )
    return {plan.name.strip("[']"): (plan.method, plan.why) for plan in found.leaves}, found


EXPECTED = {
    "dense_layers": {"a": "outer product", "b": "formed", "c": "outer product"},
    "embedding": {"e": "table rows", "w": "outer product"},
    "embedding_of_one": {"user": "table rows", "item": "table rows"},
    "concatenated_kernels": {"i": "formed", "f": "formed", "b": "formed"},
    "merged_lora_transposed": {"a": "formed", "b": "formed", "w": "formed"},
    "branch_on_data": {"a": "formed", "c": "outer product"},
    "weight_norm_by_column": {"w": "formed", "b": "formed", "c": "outer product", "g": "formed"},
    "complex_on_the_way": {"w": "formed", "v": "formed"},
}


@pytest.mark.parametrize("name", with_slow_ones(EXPECTED))
def test_what_is_kept_in_factors(name):
    """The method of every leaf, as it is said beside the pattern."""
    found, _ = methods(name, strategy="ghost")
    assert {leaf: method for leaf, (method, _) in found.items()} == EXPECTED[name]


REASONS = {
    "weight_norm": ("v", "mul"),
    "l2_in_the_loss": ("a", "integer_pow"),
    "rules_that_are_left_to_jax": ("w", "custom_vjp_call"),
    "branch_on_parameters": ("s", "mul"),
    "carried_parameter": ("w", "carried by a scan"),
    "tied_embedding": ("e", "gather, dot_general"),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_fallback_is_named(name):
    """The primitive for which a gradient is formed is in the reason."""
    leaf, why = REASONS[name]
    method, reason = methods(name)[0][leaf]
    assert method == "formed"
    assert why in reason


def zeros(*shape):
    """An array as `explain` needs it: its shape and dtype."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_totals_and_padding():
    """The bytes of a row, of all rows at a time, and the operations."""

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["w"]) + p["b"])

    params = {"b": zeros(256), "w": zeros(512, 256)}
    whole = gdpjax.explain(loss, params, zeros(1024, 512))
    assert [(leaf.num_bytes, leaf.formed_bytes) for leaf in whole.leaves] == [(1024, 1024), (3072, 2**19)]
    lines = str(whole).splitlines()
    assert lines[-3].split() == ["all", "4", "KiB", "513", "KiB"]
    assert lines[-2] == "1024 of 1024 rows at a time, whose gradients take 4 MiB"
    assert lines[-1].startswith("524 thousand operations in products for each example, 1.00 times")

    # Batches with padding are cut into chunks that can be skipped.
    params = {"b": zeros(16), "w": zeros(16, 16)}
    batch = zeros(256, 50, 16)
    is_padding = np.zeros(256, bool)
    assert gdpjax.explain(loss, params, batch).chunk == 256
    assert gdpjax.explain(loss, params, batch, is_padding=is_padding).chunk < 256
    assert gdpjax.explain(loss, params, batch, is_padding=is_padding, constant_work=True).chunk == 256


def layers(params, x):
    """A product at each of the positions of x, in a scan over layers, and a head."""

    def layer(x, weights):
        return jnp.tanh(x @ weights), None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.sum(jnp.tanh(x @ params["head"]))


@pytest.mark.parametrize(
    "rows",
    [{}, {"microbatch_size": 3}, {"is_padding": np.zeros(8, bool), "microbatch_size": 2}],
)
def test_operations_by_hand(rows):
    """By hand: 5 layers of 20 x 20 at 7 positions, with the products for inputs and for weights; a head of
    20 x 3."""
    params = {"layers": zeros(5, 20, 20), "head": zeros(20, 3)}
    batch = zeros(8, 7, 20)
    one_pass = 2 * 7 * 20 * 20 * 5
    head = 2 * 7 * 20 * 3
    ordinary = 8 * (3 * one_pass + 3 * head)
    found = gdpjax.explain(layers, params, batch, strategy="microbatch", **rows)
    assert found.ordinary_flops == ordinary
    # The last chunk of three rows is filled up.
    computed = 9 if rows == {"microbatch_size": 3} else 8
    assert found.flops == computed * ordinary / 8
