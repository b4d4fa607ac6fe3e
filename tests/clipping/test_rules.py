"""Clipping rules: their definitions, their sensitivity, and that no row beats it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping import AutoS, Flat, Normalize, PerGroup, PerLeaf

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


def rows(seed, count=6, scale=1.0):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-2, 2, count)
    return {k: (rng.normal(size=(count, *s)).T * size * scale).T.astype(np.float32) for k, s in SHAPES.items()}


def factors(rule, norms):
    """By leaf, what each row is multiplied by, from the norms of its leaves."""
    total = np.sqrt(sum(n**2 for n in norms.values()))
    match rule:
        case PerLeaf(l2_clip_norm=c):
            return {k: np.minimum(1, c / np.sqrt(3) / n) for k, n in norms.items()}
        case PerGroup():
            first = np.sqrt(norms["a"] ** 2 + norms["b"] ** 2)
            return {k: np.minimum(1, 0.4 / norms["c"] if k == "c" else 0.3 / first) for k in norms}
        case Normalize(l2_clip_norm=c):
            return dict.fromkeys(norms, c / total)
        case AutoS(l2_clip_norm=c, gamma=gamma):
            return dict.fromkeys(norms, c / (total + gamma))
        case _:
            return dict.fromkeys(norms, np.minimum(1, 0.5 / total))


def fast(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def dot_loss(w, x):
    return sum(jnp.vdot(w[k], x[k]) for k in SHAPES)


def clipped(rule, batch, is_padding=None, **options):
    grad_fn = gdpjax.clipped_grad(dot_loss, rule, **options)
    params = {k: jnp.zeros(s, batch[k].dtype) for k, s in SHAPES.items()}
    return fast(lambda b, p: grad_fn(params, b, is_padding=p))(batch, is_padding)


@pytest.mark.parametrize("strategy", ["vmap", "ghost"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_definition(name, strategy):
    batch = rows(1)
    norms = {k: np.linalg.norm(v.reshape(len(v), -1), axis=1) for k, v in batch.items()}
    expected = {k: np.tensordot(f, batch[k], 1) for k, f in factors(RULES[name], norms).items()}
    found = clipped(RULES[name], batch, strategy=strategy)
    for k in SHAPES:
        np.testing.assert_allclose(found[k], expected[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "dtype", [jnp.float32, jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)]
)  # fmt: skip
def test_no_row_beats_the_sensitivity(name, dtype):
    """Rows over the whole range of the dtype, aligned with and against what is there already."""
    rule = RULES[name]
    bound = gdpjax.clipped_grad(dot_loss, rule).sensitivity(ADD)
    base, largest = rows(2, 8), float(jnp.finfo(dtype).max)
    tried = []
    for scale in [0.0, 1e-30, 1e-6, 0.1, 1.0, 1e3, largest / 8, largest, np.inf, np.nan]:
        for sign in [1, -1]:
            tried.append({k: np.full((1, *s), sign * scale, np.float32) for k, s in SHAPES.items()})
    cast = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)  # noqa: E731
    grad_fn = gdpjax.clipped_grad(dot_loss, rule)
    params = cast({k: jnp.zeros(s) for k, s in SHAPES.items()})
    run = fast(lambda batch, padding: grad_fn(params, batch, is_padding=padding))
    for extra in tried:
        batch = cast({k: np.concatenate([base[k], extra[k]]) for k in SHAPES})
        without, added = (run(batch, jnp.arange(9) >= n) for n in (8, 9))
        change = np.sqrt(sum(np.sum((np.float64(added[k]) - np.float64(without[k])) ** 2) for k in SHAPES))
        assert change <= bound, (extra["b"], change)


def test_the_stated_bounds():
    relation = gdpjax.NeighboringRelation
    for name, rule in RULES.items():
        assert [float(gdpjax.clipped_grad(dot_loss, rule).sensitivity(r)) for r in relation] == [0.5, 1.0, 0.5], name
        assert float(gdpjax.clip_and_sum(rule).sensitivity(ADD)) == 0.5


@pytest.mark.parametrize("name", RULES)
def test_neighbours_of_every_relation_reach_the_sensitivity_and_no_more(name):
    """Trap 5: a row that comes or goes, one that takes the place of any other, one that turns into a null one."""
    relation, rule = gdpjax.NeighboringRelation, RULES[name]
    params, grad_fn = {k: jnp.zeros(s) for k, s in SHAPES.items()}, gdpjax.clipped_grad(dot_loss, rule)
    run = fast(lambda batch, padding: jnp.concatenate([
        v.ravel() for v in jax.tree.leaves(grad_fn(params, batch, is_padding=padding))]))  # fmt: skip
    base, sums = rows(2, 8), {}
    for key, value in {"up": 1e4, "down": -1e4, "small": 1e-3}.items():
        batch = {k: np.concatenate([base[k], np.full((1, *s), value, np.float32)]) for k, s in SHAPES.items()}
        sums[key] = np.asarray(run(batch, jnp.zeros(9, bool)), np.float64)
        sums["none"] = np.asarray(run(batch, jnp.arange(9) == 8), np.float64)
    distance = lambda a, b: np.linalg.norm(sums[a] - sums[b])  # noqa: E731
    largest = {
        relation.ADD_OR_REMOVE_ONE: max(distance(a, "none") for a in sums),
        relation.REPLACE_ONE: max(distance(a, b) for a in sums for b in sums),
        relation.REPLACE_SPECIAL: max(distance(a, "none") for a in sums),
    }
    for kind, moved in largest.items():
        assert 0.999 * grad_fn.sensitivity(kind) < moved <= grad_fn.sensitivity(kind), kind


def test_per_leaf_clips_each_trained_leaf():
    batch = rows(3, scale=100)
    grad_fn = gdpjax.clipped_grad(dot_loss, PerLeaf(1.0), trainable={"a": True, "b": False, "c": True})
    found = grad_fn({k: jnp.zeros(s) for k, s in SHAPES.items()}, {k: v[:1] for k, v in batch.items()})
    norms = [float(np.linalg.norm(found[k])) for k in SHAPES]
    np.testing.assert_allclose(norms, [np.sqrt(0.5), 0, np.sqrt(0.5)], rtol=1e-5)


def test_normalising_a_zero_gradient_gives_zero():
    batch = {k: np.zeros((2, *s), np.float32) for k, s in SHAPES.items()}
    for rule in [Normalize(1.0), AutoS(1.0, gamma=0.0), AutoS(1.0)]:
        assert not any(leaf.any() for leaf in jax.tree.leaves(clipped(rule, batch)))


@pytest.mark.parametrize("make", [Flat, PerLeaf, Normalize, AutoS, lambda c: AutoS(1.0, gamma=c), lambda c: PerGroup(
    "all", {"all": c})])  # fmt: skip
def test_traced_rules_give_the_same_and_nan_when_wrong(make):
    batch, traces = rows(4), []

    @fast
    def by(c):
        traces.append(1)
        return gdpjax.clipped_grad(dot_loss, make(c))({k: jnp.zeros(s) for k, s in SHAPES.items()}, batch)["b"]

    for c in [0.1, 3.0]:
        # Bounds of several groups are lowered by what their rounding may be, and traced ones by 2^-19.
        np.testing.assert_allclose(by(c), clipped(make(c), batch)["b"], rtol=5e-6)
    assert np.isnan(by(-1.0)).all()
    assert np.isnan(by(np.nan)).all()
    assert len(traces) == 1


def test_sensitivity_of_traced_bounds():
    by = jax.jit(lambda c: gdpjax.clipped_grad(dot_loss, PerGroup("x", {"x": c, "y": 2 * c})).sensitivity(ADD))
    for c in [1e-25, 1.0, 1e25]:
        np.testing.assert_allclose(by(c), c * np.sqrt(5), rtol=1e-6)
    for make in (Flat, PerLeaf, Normalize):
        of = jax.jit(lambda c, make=make: gdpjax.clipped_grad(dot_loss, make(c)).sensitivity(ADD))
        assert np.isnan(of(-1.0))
        assert np.isnan(of(0.0))


def test_rules_are_equal_if_they_are_saved_as_the_same():
    assert Flat(1.0) == Flat(np.float32(1.0))
    assert hash(Flat(1.0)) == hash(Flat(np.float32(1.0)))
    assert Flat(1.0) != Flat(2.0)
    assert Flat(1.0) != PerLeaf(1.0)
    assert PerGroup({"a": "x"}, {"x": 1.0}) == PerGroup({"a": "x"}, {"x": 1.0})

    def compare(c):
        rule = Flat(c)
        assert rule == rule
        assert rule != Flat(c)
        return c

    jax.jit(compare)(1.0)


def test_a_group_without_parameters_is_refused():
    with pytest.raises(ValueError, match=r"l2_clip_norms has \['typo'\]"):
        PerGroup("x", {"x": 1.0, "typo": 2.0}).groups({"b": True})


def test_rules_under_vmap_share_the_gradients():
    batch = rows(5)
    each = jax.vmap(lambda c: gdpjax.clipped_grad(dot_loss, PerLeaf(c))(
        {k: jnp.zeros(s) for k, s in SHAPES.items()}, batch)["a"])(jnp.array([0.1, 1.0]))  # fmt: skip
    np.testing.assert_allclose(each[1], clipped(PerLeaf(1.0), batch)["a"], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerLeaf(0.0), "l2_clip_norm must be"),
        (lambda: Normalize(-1.0), "l2_clip_norm must be"),
        (lambda: AutoS(1.0, gamma=-0.1), "gamma must be"),
        (lambda: AutoS(1.0, gamma=float("nan")), "gamma must be"),
        (lambda: PerGroup({"a": "x"}, {}), "must map group names"),
        (lambda: PerGroup({"a": "x"}, {"y": 1.0}), "group 'x' has no bound"),
        (lambda: PerGroup({"a": "x"}, {"x": 0.0}), r"l2_clip_norms\['x'\] must be"),
        (lambda: clipped(PerGroup({"a": "x"}, {"x": 1.0}), rows(1)), "prefix of the parameters"),
    ],
)  # fmt: skip
def test_wrong_rules_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
