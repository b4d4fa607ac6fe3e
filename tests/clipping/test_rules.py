"""Clipping rules: their definitions, their sensitivity, and that no row beats it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping import AutoS, Flat, Normalize, PerGroup, PerLeaf
from tests.clipping.compiling import fast
from tests.refused import refusals

ADD = gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE
SHAPES = {"a": (3, 2), "b": (2,), "c": (4,)}
GROUPS = PerGroup({"a": "first", "b": "first", "c": "second"}, {"first": 0.3, "second": 0.4})
RULES = {
    "flat": Flat(0.5),
    "per leaf": PerLeaf(0.5),
    "per group": GROUPS,
    "normalize": Normalize(0.5),
    "auto-s": AutoS(0.5, gamma=0.1),
}


SLOW = pytest.mark.slow
ROWS = 9
"""Nearly all tests have batches of this size, so that they share the compiled programs of `summed`."""


def rows(seed, count=ROWS, scale=1.0):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-2, 2, count) * scale
    batch = {}
    for name, shape in SHAPES.items():
        directions = rng.normal(size=(count, *shape))
        batch[name] = np.float32((directions.T * size).T)
    return batch


def constant_rows(value, count=1):
    return {name: np.full((count, *shape), value, np.float32) for name, shape in SHAPES.items()}


def and_one_more(batch, value):
    """The batch and, last, a row whose gradient has this number everywhere."""
    return {name: np.concatenate([batch[name], row]) for name, row in constant_rows(value).items()}


NONE_IS_PADDING = np.zeros(ROWS, bool)
LAST_IS_PADDING = np.arange(ROWS) == ROWS - 1


def factors(rule, norms):
    """By leaf, what each row is multiplied by, from the norms of its leaves."""
    total = np.sqrt(sum(n**2 for n in norms.values()))
    match rule:
        case PerLeaf(l2_clip_norm=c):
            return {k: np.minimum(1, c / np.sqrt(3) / n) for k, n in norms.items()}
        case PerGroup(l2_clip_norms={"all": c}) | Flat(l2_clip_norm=c):
            return dict.fromkeys(norms, np.minimum(1, c / total))
        case PerGroup():
            first = np.minimum(1, 0.3 / np.sqrt(norms["a"] ** 2 + norms["b"] ** 2))
            return {"a": first, "b": first, "c": np.minimum(1, 0.4 / norms["c"])}
        case Normalize(l2_clip_norm=c):
            return dict.fromkeys(norms, c / total)
        case AutoS(l2_clip_norm=c, gamma=gamma):
            return dict.fromkeys(norms, c / (total + gamma))


def by_definition(rule, batch):
    """The sum of the clipped rows, in NumPy."""
    norms = {name: np.linalg.norm(leaf.reshape(len(leaf), -1), axis=1) for name, leaf in batch.items()}
    return {name: np.tensordot(factor, batch[name], 1) for name, factor in factors(rule, norms).items()}


def dot_loss(w, x):
    return sum(jnp.vdot(w[k], x[k]) for k in SHAPES)


def zeros(dtype=np.float32):
    return {name: np.zeros(shape, dtype) for name, shape in SHAPES.items()}


def clipped(rule, batch, is_padding=None, **options):
    return gdpjax.clipped_grad(dot_loss, rule, **options)(zeros(), batch, is_padding=is_padding)


def summed(name, dtype=jnp.float32, strategy="auto"):
    """A function of a batch and its padding, compiled once for all tests: the clipped sum by one of the rules."""
    return compiled_sum(name, dtype, strategy)


@functools.cache
def compiled_sum(name, dtype, strategy):
    grad_fn = gdpjax.clipped_grad(dot_loss, RULES[name], strategy=strategy)
    compiled = fast(lambda batch, is_padding: grad_fn(zeros(dtype), batch, is_padding=is_padding))

    def run(batch, is_padding=NONE_IS_PADDING):
        cast = {leaf: values.astype(dtype) for leaf, values in batch.items()}
        return {leaf: np.float64(values) for leaf, values in compiled(cast, is_padding).items()}

    return run


def distance(one, other):
    return np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in SHAPES))


RULES_AND_STRATEGIES = [
    *[(name, "auto") for name in RULES],
    ("per group", "vmap"),
    ("auto-s", "vmap"),
    *[pytest.param(name, "vmap", marks=SLOW) for name in ("flat", "per leaf", "normalize")],
    *[pytest.param(name, "ghost", marks=SLOW) for name in RULES],
]


@pytest.mark.parametrize(("name", "strategy"), RULES_AND_STRATEGIES)
def test_a_rule_is_its_definition(name, strategy):
    """The sum of a batch is that of its scaled rows, in NumPy."""
    batch = rows(1)
    found = summed(name, strategy=strategy)(batch)
    expected = by_definition(RULES[name], batch)
    for leaf in SHAPES:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=2e-5, atol=1e-6)


HALF_PRECISION = [("flat", jnp.bfloat16), ("per group", jnp.bfloat16)]
MORE_IN_HALF_PRECISION = [
    *[(name, jnp.bfloat16) for name in ("per leaf", "normalize", "auto-s")],
    *[(name, jnp.float16) for name in RULES],
]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[(name, jnp.float32) for name in RULES],
        *HALF_PRECISION,
        *[pytest.param(*case, marks=SLOW) for case in MORE_IN_HALF_PRECISION],
    ],
)
def test_no_row_beats_the_sensitivity(name, dtype):
    """Rows over the whole range of the dtype, aligned with and against what is there already."""
    bound = gdpjax.clipped_grad(dot_loss, RULES[name]).sensitivity(ADD)
    run = summed(name, dtype)
    base = rows(2, ROWS - 1)
    largest = float(jnp.finfo(dtype).max)
    for scale in [0.0, 1e-30, 1e-6, 0.1, 1.0, 1e3, largest / 8, largest, np.inf, np.nan]:
        for value in [scale, -scale]:
            batch = and_one_more(base, value)
            change = distance(run(batch), run(batch, LAST_IS_PADDING))
            assert change <= bound, (value, change)


def test_the_stated_bounds():
    """Every rule states its whole bound under every relation."""
    relation = gdpjax.NeighboringRelation
    for name, rule in RULES.items():
        assert [float(gdpjax.clipped_grad(dot_loss, rule).sensitivity(r)) for r in relation] == [0.5, 1.0, 0.5], name
        assert [float(gdpjax.clip_and_sum(rule).sensitivity(r)) for r in relation] == [0.5, 1.0, 0.5], name


@pytest.mark.parametrize("name", RULES)
def test_neighbours_of_every_relation_reach_the_sensitivity_and_no_more(name):
    """Trap 5: a row that comes or goes, one that takes the place of any other, one that turns into a null one."""
    relation = gdpjax.NeighboringRelation
    rule = RULES[name]
    grad_fn = gdpjax.clipped_grad(dot_loss, rule)
    run = summed(name)
    base = rows(2, ROWS - 1)
    sums = {}
    for key, value in {"up": 1e4, "down": -1e4, "small": 1e-3}.items():
        batch = and_one_more(base, value)
        sums[key], sums["none"] = run(batch), run(batch, LAST_IS_PADDING)
    from_none = max(distance(some, sums["none"]) for some in sums.values())
    largest = {
        relation.ADD_OR_REMOVE_ONE: from_none,
        relation.REPLACE_ONE: max(distance(*pair) for pair in itertools.combinations(sums.values(), 2)),
        relation.REPLACE_SPECIAL: from_none,
    }
    for kind, moved in largest.items():
        assert 0.999 * grad_fn.sensitivity(kind) < moved <= grad_fn.sensitivity(kind), kind


def test_per_leaf_clips_each_trained_leaf():
    """The bound is shared by the leaves that are trained."""
    grad_fn = gdpjax.clipped_grad(dot_loss, PerLeaf(1.0), trainable={"a": True, "b": False, "c": True})
    found = fast(grad_fn)(zeros(), rows(3, count=1, scale=100))
    norms = [float(np.linalg.norm(found[k])) for k in SHAPES]
    np.testing.assert_allclose(norms, [np.sqrt(0.5), 0, np.sqrt(0.5)], rtol=1e-5)


def test_normalising_a_zero_gradient_gives_zero():
    """And not NaN."""
    batch = constant_rows(0.0, ROWS)
    without_gamma = fast(lambda batch: clipped(AutoS(1.0, gamma=0.0), batch))
    for run in [summed("normalize"), summed("auto-s"), without_gamma]:
        assert not any(np.any(leaf) for leaf in run(batch).values())


MAKERS = {
    "flat": Flat,
    "per leaf": PerLeaf,
    "normalize": Normalize,
    "auto-s": AutoS,
    "gamma of auto-s": lambda c: AutoS(1.0, gamma=c),
    "one group": lambda c: PerGroup("all", {"all": c}),
}


def test_traced_rules_give_the_same_and_nan_when_wrong():
    """Each rule of a traced bound, all in one program that is compiled once."""
    batch = rows(4)
    traces = []

    @fast
    def by_every_rule(c):
        traces.append(1)
        return {name: clipped(make(c), batch)["b"] for name, make in MAKERS.items()}

    for c in [0.1, 3.0]:
        found = by_every_rule(c)
        for name, make in MAKERS.items():
            # Bounds of several groups are lowered by what their rounding may be, and traced ones by 2^-19.
            expected = by_definition(make(c), batch)["b"]
            np.testing.assert_allclose(found[name], expected, rtol=2e-5, err_msg=name)
    for wrong in [-1.0, np.nan]:
        for name, found in by_every_rule(wrong).items():
            assert np.isnan(found).all(), name
    assert len(traces) == 1


def test_sensitivity_of_traced_bounds():
    """The root of the sum of squares, without overflow; NaN where a bound is invalid."""

    @jax.jit
    def by(c):
        rule = PerGroup("x", {"x": c, "y": 2 * c})
        return gdpjax.clipped_grad(dot_loss, rule).sensitivity(ADD)

    for c in [1e-25, 1.0, 1e25]:
        np.testing.assert_allclose(by(c), c * np.sqrt(5), rtol=1e-6)
    for make in (Flat, PerLeaf, Normalize):
        of = jax.jit(lambda c, make=make: gdpjax.clipped_grad(dot_loss, make(c)).sensitivity(ADD))
        assert np.isnan(of(-1.0))
        assert np.isnan(of(0.0))


test_wrong_rules_are_refused = refusals(
    (lambda: Normalize(-1.0), "l2_clip_norm must be"),
    (lambda: AutoS(1.0, gamma=-0.1), "gamma must be"),
    (lambda: PerGroup({"a": "x"}, {"y": 1.0}), "must be a text with a bound in l2_clip_norms.*got 'x'"),
    (lambda: clipped(PerGroup({"a": "x"}, {"x": 1.0}), rows(1)), "prefix of the parameters"),
)


LARGEST = PerGroup({"a": "first", "b": "first", "c": "second"}, {"first": 1e30, "second": 1.0})


@pytest.mark.parametrize("rule", [PerLeaf(1e-30), LARGEST], ids=["smallest", "largest"])
def test_groups_take_every_bound_that_a_rule_takes(rule):
    """The bound of one group is below the range of a whole bound, or the whole bound above it."""
    total = gdpjax.clipping.clip_rows(constant_rows(1.0), None, rule).total
    norm = np.sqrt(sum(np.square(leaf, dtype=np.float64).sum() for leaf in total.values()))
    assert 0 < norm <= rule.l2_norm_bound
