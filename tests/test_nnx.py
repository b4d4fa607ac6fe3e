"""`gdpjax.nnx`: the same bits as modules that are split and merged by hand, and what is refused."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import gdpjax
from gdpjax.training import adam_scale, choose_microbatch, resume_run, start_run

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 2
KEY = jax.random.key(7)
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def make_plan(**changes):
    arguments = dict(clip=1.0, max_examples=40, expected_batch_size=8, num_steps=4, delta=1e-5, noise_multiplier=1.0)
    return gdpjax.make_plan(**{**arguments, **changes})


PLAN = make_plan()


class Network(nnx.Module):
    """Two layers; without biases, because noise for each parameter takes the compiler a while."""

    def __init__(self, rngs, middle=None, use_bias=False):
        self.first = nnx.Linear(3, 4, use_bias=use_bias, rngs=rngs)
        self.middle = middle
        self.last = nnx.Linear(4, 2, use_bias=use_bias, rngs=rngs)
        self.activation, self.name = jnp.tanh, "network"  # static attributes

    def __call__(self, x):
        hidden = self.activation(self.first(x))
        return self.last(hidden if self.middle is None else self.middle(hidden))


def loss_fn(model, x, y):
    return cross_entropy(model(x), y)


class Shared(nnx.Module):
    """A network that holds its layer twice, and a dropout, so that it is a graph and no tree."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 2, use_bias=False, rngs=rngs)
        self.again, self.dropout = self.layer, nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.dropout(self.again(x))


def trained(training, model, num_steps=4):
    state = training.init(model, KEY)
    return training.run_steps(state, training.place(X, Y), num_steps)


def assert_same_bits(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_same_bits_as_split_and_merged_by_hand():
    model = Network(nnx.Rngs(0))
    structure, params = nnx.split(model, nnx.Param)

    def by_hand_loss(params, x, y):
        return loss_fn(nnx.merge(structure, params), x, y)

    by_hand = gdpjax.training.private_training(PLAN, by_hand_loss, optax.adam(0.1))
    expected, expected_info = by_hand.run_steps(by_hand.init(params, KEY), by_hand.place(X, Y), 4)
    state, info = trained(gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.adam(0.1)), model)
    assert_same_bits(state.params, expected.params)
    assert_same_bits(info, expected_info)

    nnx.update(model, state.params)
    assert_same_bits(nnx.state(model), expected.params)


def test_clipped_grad_is_that_of_the_split_module():
    model = Network(nnx.Rngs(0))
    structure, params = nnx.split(model, nnx.Param)
    by_hand = gdpjax.clipped_grad(lambda p, x, y: loss_fn(nnx.merge(structure, p), x, y), 0.5, batch_argnums=(1, 2))
    grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 0.5, batch_argnums=(1, 2))
    is_padding = np.arange(40) > 30
    expected = jax.jit(by_hand)(params, X, Y, is_padding=is_padding)
    found = nnx.jit(lambda model: grad_fn(model, X, Y, is_padding=is_padding))(model)
    assert_same_bits(found, expected)

    # In the optimizer of nnx, with noise.
    tx = gdpjax.dpsgd(0.1, clipped_by=grad_fn, noise_multiplier=1.0, sampling_prob=0.2, expected_batch_size=8, key=KEY)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, grad_fn(model, X, Y, is_padding=is_padding))

    before = np.array(model.first.kernel[...])
    step(model, optimizer)
    assert gdpjax.ledger_of(optimizer.opt_state).num_steps == 1
    assert (np.asarray(model.first.kernel[...]) != before).all()


def test_states_do_not_change_with_the_module():
    model = Network(nnx.Rngs(0))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    state = training.init(model, KEY)
    before = np.array(state.params["first"]["kernel"][...])
    model.first.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(state.params["first"]["kernel"][...], before)

    nnx.update(model, state.params)
    model.first.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(state.params["first"]["kernel"][...], before)


@pytest.mark.parametrize("make", ["private_training", "clipped_grad"])
@pytest.mark.parametrize("sees_batch_axis", [False, True])
def test_batch_norm_is_refused(make, sees_batch_axis):
    model = Network(nnx.Rngs(0), nnx.BatchNorm(4, rngs=nnx.Rngs(1)))
    options = {"keep_batch_dim": sees_batch_axis}

    def loss(model, x, y):
        return cross_entropy(model(x), y).sum()

    def run():
        if make == "private_training":
            trained(gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.1), **options), model)
        else:
            gdpjax.nnx.clipped_grad(loss, 1.0, batch_argnums=(1, 2), **options)(model, X, Y)

    with pytest.raises(ValueError, match=r"BatchNorm"):
        run()


def test_statistics_that_are_only_read_are_constants():
    public = nnx.BatchNorm(4, use_running_average=True, rngs=nnx.Rngs(1))
    model = Network(nnx.Rngs(0), public)
    state, _ = trained(gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.adamw(0.1)), model)
    np.testing.assert_array_equal(state.params["middle"]["var"][...], 1)
    assert (np.asarray(state.params["middle"]["scale"][...]) != 1).all()
    with pytest.raises(ValueError, match="BatchStat"):
        gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1), wrt=(nnx.Param, nnx.BatchStat))


class Writes(nnx.Module):
    """Writes what it is told to in its forward pass."""

    def __init__(self, what):
        self.what, self.mean, self.calls = what, nnx.Variable(jnp.zeros(4)), 0
        self.cache = nnx.Cache(jnp.zeros(4))

    def __call__(self, x):
        if self.what == "variable":
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * x
        elif self.what == "cache":
            self.cache[...] = x
        elif self.what == "sow":
            self.sow(nnx.Intermediate, "seen", x)
        elif self.what == "static":
            self.calls += 1
        return x


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("variable", r"writes \['middle'\]\['mean'\] \(Variable\)"),
        ("cache", r"writes \['middle'\]\['cache'\] \(Cache\)"),
        ("sow", r"writes \['middle'\]\['seen'\] \(Intermediate\)"),
        ("static", "static attribute"),
    ],
)
def test_what_the_forward_pass_writes_is_refused(what, message):
    model = Network(nnx.Rngs(0), Writes(what))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    with pytest.raises(ValueError, match=message):
        trained(training, model)
    with pytest.raises(ValueError, match=message):
        gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))(model, X, Y)
    with pytest.raises(ValueError, match=message):
        gdpjax.nnx.explain(loss_fn, model, (X, Y), batch_argnums=(1, 2))


def test_a_layer_may_keep_the_parameters_that_it_normalised():
    rngs = nnx.Rngs(0)
    model = Network(rngs, nnx.WeightNorm(nnx.Linear(4, 4, rngs=rngs), rngs=rngs))
    grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))
    total = jax.jit(lambda x, y: grad_fn(model, x, y))(X, Y)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(total))

    # What is refused in a training is refused when its step is traced.
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    state, _ = jax.eval_shape(lambda: trained(training, model))
    assert set(state.params) == {"first", "middle", "last"}


class Masks(nnx.Module):
    """Draws twice from a dropout, and once from another one."""

    def __init__(self, rngs):
        self.weight = nnx.Param(jnp.ones(64))
        self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        ones = jnp.ones(64)
        return self.first(ones), self.first(ones), self.second(ones)


def words_loss(model, x, y):
    """A coordinate of the gradient is 2 (a + 10 b + 100 c), with bits a, b, c of the three draws."""
    first, again, second = model(x)
    return model.weight[...] @ (first + 10 * again + 100 * second)


ALL_WORDS = {0, 1, 10, 11, 100, 101, 110, 111}


def test_dropout_differs_from_example_to_example_and_step_to_step():
    model, same = Masks(nnx.Rngs(0)), np.ones_like(X)
    training = gdpjax.nnx.private_training(PLAN, model, words_loss, optax.sgd(0.0))
    _, info = training.run_steps(training.init(model, KEY), training.place(same, Y), 4)
    losses = np.asarray(info.losses)[~np.asarray(info.is_padding)]
    assert len(losses) > 16
    assert len(np.unique(losses)) > 0.8 * len(losses)


def test_dropout_by_hand_takes_a_key():
    model, same = Masks(nnx.Rngs(0)), np.ones_like(X)
    grad_fn = gdpjax.nnx.clipped_grad(words_loss, 1e6, batch_argnums=(1, 2))
    words = []
    for row in range(2):
        is_padding = jnp.arange(2) != row
        total = grad_fn(model, same[:2], Y[:2], key=KEY, is_padding=is_padding)["weight"][...]
        words.append(np.rint(np.asarray(total) / 2).astype(int))
    # Two examples have other bits, and so do two draws of a stream and two streams.
    assert (words[0] != words[1]).mean() > 0.5
    assert set(words[0].tolist()) == set(words[1].tolist()) == ALL_WORDS

    # The streams of the module are not drawn from.
    assert int(model.first.rngs.count[...]) == int(model.second.rngs.count[...]) == 0
    with pytest.raises(ValueError, match="fresh, secret PRNG key"):
        grad_fn(model, same, Y)


def test_an_example_key_is_apart_from_the_streams():
    model = Masks(nnx.Rngs(0))

    def loss(model, x, y, key):
        kept, _, _ = model(x)
        # What the stream would draw, had it the same key: it is the second leaf of the streams, behind its count.
        own = jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(key, 1), 0), shape=(64,))
        return model.weight[...] @ jnp.where(kept > 0, 1.0, own)

    training = gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.0), example_key=True)
    _, info = trained(training, model, 1)
    # Each coordinate is there with probability 3/4; with one key for both it were 1/2.
    losses = np.asarray(info.losses)[~np.asarray(info.is_padding)]
    assert 0.6 < losses.mean() / 64 < 0.9


def test_a_stream_from_outside_the_module_is_refused():
    rngs, model = nnx.Rngs(0), Network(nnx.Rngs(0), nnx.Dropout(0.5))

    def loss(model, x, y):
        return cross_entropy(model.last(model.middle(model.first(x), rngs=rngs)), y)

    with pytest.raises(Exception, match="different trace level"):
        trained(gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.1)), model)


def test_streams_of_stacked_layers():
    @nnx.vmap(in_axes=0)
    def make_layers(rngs):
        return nnx.Dropout(0.5, rngs=rngs)

    class Stacked(nnx.Module):
        def __init__(self, rngs):
            self.weight, self.layers = nnx.Param(jnp.ones(64)), make_layers(nnx.Rngs(dropout=rngs.dropout.split(3)))

        def __call__(self, x):
            return nnx.vmap(lambda layer, weight: layer(weight), in_axes=(0, None))(self.layers, self.weight[...])

    model = Stacked(nnx.Rngs(0))
    grad_fn = gdpjax.nnx.clipped_grad(lambda model, x: jnp.array([1, 10, 100]) @ model(x).sum(axis=1), 1e6)
    total = jax.jit(lambda x: grad_fn(model, x, key=KEY)["weight"][...])(X[:1])
    assert set(np.rint(np.asarray(total) / 2).astype(int).tolist()) == ALL_WORDS


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.encode = nnx.Param(jax.random.normal(rngs.params(), (3, 3)))
        self.decode = self.encode

    def __call__(self, x):
        return jnp.tanh(x @ self.encode[...]) @ self.decode[...].T


def test_a_tied_parameter_is_one():
    model = Tied(nnx.Rngs(0))

    def loss(model, x, y):
        return ((model(x) - x) ** 2).sum() + 0 * y

    def plain_loss(weight, x, y):
        return ((jnp.tanh(x @ weight) @ weight.T - x) ** 2).sum() + 0 * y

    plain = jax.jit(gdpjax.clipped_grad(plain_loss, 0.5, batch_argnums=(1, 2)))(model.encode[...], X, Y)
    total = nnx.jit(gdpjax.nnx.clipped_grad(loss, 0.5, batch_argnums=(1, 2)))(model, X, Y)
    np.testing.assert_array_equal(*jax.tree.leaves(total), plain)

    # As parameters of a training, which `test_a_run_is_resumed_bit_for_bit` runs with a shared layer.
    state = gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.1)).init(model, KEY)
    assert len(jax.tree.leaves(state.params)) == 1
    nnx.update(model, jax.tree.map(lambda leaf: np.full_like(leaf, 0.25), state.params))
    assert model.encode is model.decode
    np.testing.assert_array_equal(model.decode[...], np.full((3, 3), 0.25, np.float32))


@pytest.mark.parametrize("scale", [None, pytest.param(adam_scale(epsilon=0.1), marks=pytest.mark.slow)])
def test_a_filter_says_what_is_trained(scale):
    rngs = nnx.Rngs(0)
    model = Network(rngs)
    model.first = nnx.LoRA(3, 2, 4, base_module=model.first, rngs=rngs)
    before = jax.tree.map(np.array, nnx.state(model))
    training = gdpjax.nnx.private_training(
        PLAN, model, loss_fn, optax.adamw(0.1, weight_decay=0.5), wrt=nnx.LoRAParam, scale=scale
    )
    state, _ = trained(training, model)
    nnx.update(model, state.params)
    adapters, rest = nnx.state(model, nnx.LoRAParam, ...)
    adapters_before, rest_before = nnx.split_state(before, nnx.LoRAParam, ...)
    assert_same_bits(rest, rest_before)
    moved = jax.tree.map(lambda now, then: bool((np.asarray(now) != then).all()), adapters, adapters_before)
    assert jax.tree.leaves(moved) == [True, True]
    # Moments are kept for what is trained.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) < 2 * 14 + 150

    grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2), wrt=nnx.LoRAParam)
    total = jax.eval_shape(lambda: grad_fn(model, X, Y))
    assert jax.tree.structure(total) == jax.tree.structure(adapters)


def test_a_module_that_was_changed_since_is_refused():
    model = Network(nnx.Rngs(0), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    training.init(Network(nnx.Rngs(5), nnx.Dropout(0.5, rngs=nnx.Rngs(2))), KEY)  # other values are no change
    model.eval()
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        training.init(model, KEY)


def test_bad_arguments():
    model = Network(nnx.Rngs(0))
    with pytest.raises(ValueError, match="nnx module"):
        gdpjax.nnx.private_training(PLAN, {"w": jnp.ones(2)}, loss_fn, optax.sgd(0.1))
    with pytest.raises(ValueError, match="selects no variable"):
        gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1), wrt=nnx.LoRAParam)
    with pytest.raises(ValueError, match="wrt must be a filter"):
        gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1), wrt=3)
    with pytest.raises(ValueError, match=r"wrt=\.\.\."):
        gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1), trainable=True)
    with pytest.raises(ValueError, match="private_training has no argument 'strategie'; did you mean 'strategy'"):
        gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1), strategie="auto")
    with pytest.raises(ValueError, match="argnums"):
        gdpjax.nnx.clipped_grad(loss_fn, 1.0, argnums=0)
    with pytest.raises(ValueError, match="this one has none"):
        gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))(model, X, Y, key=KEY)


def test_a_run_is_resumed_bit_for_bit(tmp_path):
    def make():
        model = Shared(nnx.Rngs(0))
        training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.adam(0.1))
        return training, model, training.place(X, Y)

    made = make()
    whole = start_run(tmp_path / "whole", *made, key=KEY)
    whole.advance(2)
    whole.advance(2)
    run = start_run(tmp_path / "run", *made, key=KEY)
    run.advance(2)
    del run
    run = resume_run(tmp_path / "run", *make())
    run.advance(2)
    assert run.finished
    assert_same_bits(run.state.params, whole.state.params)


def test_a_correlated_plan():
    model = Shared(nnx.Rngs(0))
    plan = make_plan(correlation=gdpjax.correlated.bisr(2), num_steps=5)
    state, _ = trained(gdpjax.nnx.private_training(plan, model, loss_fn, optax.sgd(0.1)), model, 5)
    assert gdpjax.ledger_of(state.opt_state).num_steps == 5


def test_a_choice_of_microbatch_takes_the_module():
    model = Shared(nnx.Rngs(0))

    def build(rows):
        return gdpjax.nnx.private_training(
            PLAN, model, loss_fn, optax.sgd(0.1), strategy="microbatch", microbatch_size=rows
        )

    with pytest.raises(ValueError, match="one row at a time needs"):
        choose_microbatch(build, model, build(1).place(X, Y), memory_bytes=1)


def test_explain_names_the_variables():
    model = Network(nnx.Rngs(0), nnx.Dropout(0.5, rngs=nnx.Rngs(1)), use_bias=True)
    explained = gdpjax.nnx.explain(loss_fn, model, (X, Y), batch_argnums=(1, 2), wrt=nnx.PathContains("first"))
    methods = {leaf.name: leaf.method for leaf in explained.leaves}
    assert methods == {
        "['first']['bias'].value": "formed",
        "['first']['kernel'].value": "outer product",
        "['last']['bias'].value": "not trained",
        "['last']['kernel'].value": "not trained",
    }


def test_flax_is_imported_when_it_is_used():
    program = "import sys, gdpjax; assert 'flax' not in sys.modules; gdpjax.nnx; assert 'flax' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "nnx" in gdpjax.__all__
