"""A clipping rule of a user's own: one class, used everywhere, and held to the bound that it states."""

import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping import AbstractClipRule, Groups
from tests.clipping.compiling import fast

ADD = gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True, eq=False)
class Smooth(AbstractClipRule):
    """g C / sqrt(C^2 + ||g||^2)."""

    l2_clip_norm: Any

    def coefficient(self, norm, bound):
        return bound / jnp.hypot(norm, bound)


@dataclasses.dataclass(frozen=True, eq=False)
class Lying(Smooth):
    """Contributes whatever ``factor`` says, not what the bound says."""

    factor: Any = 1.0

    def coefficient(self, norm, bound):
        return self.factor * bound / norm


@dataclasses.dataclass(frozen=True, eq=False)
class Unchecked(Smooth):
    """Has checks of its own, and none of its bound."""

    def __post_init__(self):
        pass


@dataclasses.dataclass(frozen=True, eq=False)
class Written(Smooth):
    """Clipping, as one writes it down."""

    def coefficient(self, norm, bound):
        return jnp.minimum(1, bound / norm)


def loss(w, x):
    """Its gradient at example x is x itself."""
    return jnp.vdot(w["a"], x[:2]) + jnp.vdot(w["b"], x[2:])


PARAMS = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)], axis=-1)


@functools.cache
def compiled_sum(rule):
    """The clipped sum as a compiled function, which is compiled anew only for batches of another size."""
    return fast(functools.partial(gdpjax.clipped_grad(loss, rule), PARAMS))


def total_of(rule, rows):
    return flat(compiled_sum(rule)(rows))


def rows_of_all_sizes(count=12):
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(-4, 4, (count, 1))
    return (rng.normal(size=(count, 5)) * size).astype(np.float32)


def by_definition(bound, rows):
    """The sum of the rows that the rule Smooth has scaled, in NumPy."""
    exact = rows.astype(np.float64)
    factors = bound / np.sqrt(bound**2 + np.sum(exact**2, axis=1, keepdims=True))
    return np.sum(factors * exact, axis=0)


def test_a_rule_is_its_definition_in_both_clips():
    """In `clipped_grad` and in `clip_and_sum`, with the sensitivity that it states."""
    rows = rows_of_all_sizes()
    expected = by_definition(0.5, rows)
    np.testing.assert_allclose(total_of(Smooth(0.5), rows), expected, rtol=2e-5, atol=1e-6)

    clip = gdpjax.clip_and_sum(Smooth(0.5))
    grads = {"a": rows[:, :2], "b": rows[:, 2:]}
    summed, _ = fast(lambda grads: clip.update(grads, clip.init(PARAMS), PARAMS))(grads)
    np.testing.assert_allclose(flat(summed), expected, rtol=2e-5, atol=1e-6)
    assert clip.sensitivity(ADD) == gdpjax.clipped_grad(loss, Smooth(0.5)).sensitivity(ADD) == 0.5


@pytest.mark.parametrize("bound", [1e-30, 0.5, 1e30])
def test_a_factor_of_the_true_norm_and_bound_is_the_whole_rule(bound):
    """Trap 9: for norms from 0 to where their squares overflow, and for every bound, it is what `Flat` is."""
    for scale in [0.0, 1e-37, 5e-4, 0.3, 500.0, 1e25, 3e38]:
        row = np.full((1, 5), scale, np.float32)
        total = total_of(Written(bound), row)
        np.testing.assert_array_equal(total, total_of(gdpjax.Flat(bound), row), str(scale))
        np.testing.assert_allclose(np.linalg.norm(total), min(np.linalg.norm(np.float64(row)), bound), rtol=1e-4)


def test_no_row_beats_the_bound():
    """Brute force: a row of every size, with and against the others, added to the batch."""
    others = rows_of_all_sizes(6)
    grad_fn = gdpjax.clipped_grad(loss, Smooth(0.5))
    run = fast(lambda rows, is_padding: grad_fn(PARAMS, rows, is_padding=is_padding))
    for scale in [0.0, 1e-38, 1e-20, 1e-3, 0.3, 1.0, 1e5, 1e30, 3e38, np.inf, np.nan]:
        for direction in [np.ones(5), -others.sum(axis=0) / np.abs(others.sum(axis=0)).max()]:
            rows = np.concatenate([others, (scale * direction)[None]]).astype(np.float32)
            without, added = (flat(run(rows, np.arange(7) >= count)) for count in (6, 7))
            assert np.linalg.norm(added - without) <= 0.5, scale


def test_a_sweep_over_a_traced_clip_norm_compiles_once():
    """A clip norm that is invalid makes its sum NaN."""
    rows = rows_of_all_sizes()
    traces = []

    @fast
    @jax.vmap
    def each(clip_norm):
        traces.append(1)
        return gdpjax.clipped_grad(loss, Smooth(clip_norm))(PARAMS, rows)

    norms = np.array([0.1, 2.0, np.nan, -1.0], np.float32)
    swept = flat(each(norms))
    each(norms + 1)
    assert len(traces) == 1
    for clip_norm, found in zip(norms[:2], swept[:2], strict=True):
        np.testing.assert_allclose(found, by_definition(clip_norm, rows), rtol=2e-5, atol=1e-6)
    assert np.isnan(swept[2:]).all()


def plan_with(rule):
    return gdpjax.make_plan(
        clip=rule,
        max_examples=1000,
        expected_batch_size=50,
        num_steps=10,
        delta=1e-5,
        noise_multiplier=1.0,
    )


def test_a_plan_is_saved_and_loaded_with_it():
    """Its fields are in the JSON, and its name in the statement."""
    plan = plan_with(Smooth(0.5))
    text = plan.to_json()
    assert json.loads(text)["clip"] == {"rule": "Smooth", "l2_clip_norm": 0.5}
    again = gdpjax.Plan.from_json(text)
    assert isinstance(again.clip, Smooth)
    assert again.to_json() == text
    assert "gradients scaled by the rule Smooth, to l2 norm at most 0.5, with" in plan.statement()
    with pytest.raises(ValueError, match=r"must be one of .*Flat.*Smooth.*, got 'Other'; import the module that defi"):
        gdpjax.Plan.from_json(text.replace("Smooth", "Other"))
    with pytest.raises(ValueError, match=r"Smooth.* unexpected keyword argument"):
        gdpjax.Plan.from_json(text.replace("l2_clip_norm", "l2"))


@pytest.mark.parametrize("factor", [1.001, pytest.param(1e30, marks=pytest.mark.slow), -7.0, np.inf])
def test_a_coefficient_that_is_too_large_is_limited(factor):
    """A rule that lies about its bound is held to it."""
    row = np.array([[3.0, 0.0, 0.0, 4.0, 0.0]], np.float32)
    rule = Lying(0.5, factor=factor)
    for rows in [row, 1e-30 * row, 1e37 * row, 0 * row]:
        assert np.linalg.norm(total_of(rule, rows.astype(np.float32))) <= 0.5


def test_a_coefficient_of_one_row_does_not_depend_on_the_others():
    """A coefficient sees the norm of one row alone."""

    class OfTheBatch(Smooth):
        def coefficient(self, norm, bound):
            assert norm.shape == ()
            return bound / jnp.max(norm)

    rows = rows_of_all_sizes(2)
    rule = OfTheBatch(0.5)
    alone = [total_of(rule, row[None]) for row in rows]
    np.testing.assert_allclose(total_of(rule, rows), sum(alone), rtol=1e-5)


def test_nan_for_some_rows_drops_them_and_a_wrong_number_is_seen():
    """A rule that is NaN for every row makes the sum NaN."""

    class Picky(Smooth):
        def coefficient(self, norm, bound):
            return jnp.where(norm > 100, jnp.nan, super().coefficient(norm, bound))

    rows = np.array([[1.0, 0, 0, 0, 0], [1000.0, 0, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(total_of(Picky(0.5), rows), total_of(Smooth(0.5), rows[:1]), rtol=1e-6)
    assert np.isnan(total_of(Lying(0.5, factor=np.nan), rows_of_all_sizes())).all()


def lying_groups(of_leaf, bounds):
    class LyingGroups(Smooth):
        rule_name = f"lying {of_leaf} {len(bounds)}"

        def groups(self, is_trained):
            return Groups(of_leaf, tuple(bound * self.l2_clip_norm for bound in bounds))

    return LyingGroups


@pytest.mark.parametrize(
    ("of_leaf", "bounds", "message"),
    [
        ((0, 1), (1.0, 0.1), "have bounds of 0.502494 together.*above its l2_norm_bound of 0.5"),
        ((0, 1), (1.0,), "each of the 2 parameters the number of one of its 1 bounds"),
    ],
)
def test_groups_that_do_not_fit_are_refused(of_leaf, bounds, message):
    """Their bounds together are to be within that of the rule, and every leaf has one."""
    with pytest.raises(ValueError, match=message):
        total_of(lying_groups(of_leaf, bounds)(0.5), rows_of_all_sizes(2))


def test_groups_with_traced_bounds_that_do_not_fit_give_nan():
    """Traced bounds that do not fit cannot be refused, and the sum is NaN."""
    run = fast(
        lambda clip_norm, second: gdpjax.clipped_grad(loss, lying_groups((0, 1), (0.6, second))(clip_norm))(
            PARAMS, rows_of_all_sizes(2)
        )
    )
    assert np.isnan(flat(run(0.5, 0.81))).all()
    assert np.isfinite(flat(run(0.5, 0.8))).all()


def test_bad_rules_are_refused():
    """Before anything is compiled."""
    with pytest.raises(ValueError, match="l2_clip_norm must be a number > 0, from 1e-30"):
        Smooth(-1.0)
    with pytest.raises(ValueError, match="l2_norm_bound of the clipping rule Unchecked must be a finite number > 0"):
        gdpjax.clipped_grad(loss, Unchecked(-1.0))
    vectors = gdpjax.clipped_grad(loss, Lying(0.5, factor=np.ones(2)))
    with pytest.raises(ValueError, match=r"coefficient of the clipping rule Lying must be one number .* shape"):
        jax.eval_shape(vectors, PARAMS, rows_of_all_sizes(2))
    with pytest.raises(ValueError, match="saved under the name 'Flat' already"):
        type("Flat", (Smooth,), {})


@dataclasses.dataclass(frozen=True, eq=False)
class Peeking(Smooth):
    """Looks at the other rows, by a batching rule of its own."""

    def coefficient(self, norm, bound):
        @jax.custom_batching.custom_vmap
        def largest(norm):
            return norm

        @largest.def_vmap
        def largest_of_all(axis_size, in_batched, norms):
            return jnp.full_like(norms, norms.max()), True

        return bound / jnp.maximum(largest(norm), 1e-20)


@dataclasses.dataclass(frozen=True, eq=False)
class Calling(Smooth):
    """Calls Python with the norms of all rows."""

    def coefficient(self, norm, bound):
        shape = jax.ShapeDtypeStruct((), norm.dtype)
        return bound * jax.pure_callback(np.ones_like, shape, norm, vmap_method="expand_dims")


@pytest.mark.parametrize("rule", [Peeking(1.0), Calling(1.0)], ids=lambda rule: rule.rule_name)
def test_a_coefficient_that_could_see_other_rows_is_refused(rule):
    """By a batching rule of its own, or by calling Python."""
    with pytest.raises(ValueError, match="the coefficient of the clipping rule"):
        jax.eval_shape(gdpjax.clipped_grad(loss, rule), PARAMS, jnp.ones((3, 5)))


@pytest.mark.parametrize("num_leaves", [7, pytest.param(11, marks=pytest.mark.slow)])
def test_bounds_of_groups_that_are_rounded_stay_within_the_whole_bound(num_leaves):
    """In float64, where the slack is smaller than what a float32 bound is rounded by."""
    with jax.enable_x64(True):
        params = [np.zeros(1) for _ in range(num_leaves)]
        rows = np.ones((1, num_leaves))
        for bound in (np.float32(1), 1.0):
            grad_fn = gdpjax.clipped_grad(lambda w, x: jnp.dot(jnp.concatenate(w), x), gdpjax.PerLeaf(bound))
            total = np.linalg.norm(flat(fast(grad_fn)(params, rows)))
            assert 1 - 1e-5 < total <= 1


def bounds_by_group():
    """A rule of two groups, and a function that makes its bounds ten times as large where the caller holds them."""
    bounds = {"a": 0.6, "b": 0.8}

    def change():
        bounds.update(a=6.0, b=8.0)

    return gdpjax.PerGroup({"w": "a", "v": "b"}, bounds), change


def array_of(make):
    """A rule made of an array of NumPy that holds 1, and a function that sets it to 10."""
    bound = np.array(1.0)

    def change():
        bound[()] = 10.0

    return make(bound), change


@pytest.mark.parametrize(
    "made",
    [
        bounds_by_group,
        lambda: array_of(lambda bound: bound),
        lambda: array_of(gdpjax.PerLeaf),
        lambda: array_of(Smooth),
        lambda: array_of(lambda bound: gdpjax.PerGroup({"w": "a", "v": "b"}, {"a": bound, "b": 1e-3})),
    ],
    ids=["dict", "number", "rule", "own rule", "number in a dict"],
)
def test_what_the_caller_changes_later_changes_no_bound(made):
    """The noise is scaled to the bound when the transform is made, and the sum is clipped when it is computed."""
    clip, change = made()
    grad_fn = gdpjax.clipped_grad(lambda params, x: x * (params["w"] + params["v"]).sum(), clip)
    before = grad_fn.sensitivity(ADD)
    change()
    total = grad_fn({"w": jnp.zeros(2), "v": jnp.zeros(2)}, jnp.full(1, 1e3))
    assert grad_fn.sensitivity(ADD) == before
    assert np.linalg.norm([total["w"], total["v"]]) <= before
