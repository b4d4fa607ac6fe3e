"""`gdpjax.nnx` gives the bits of modules that are split and merged by hand, and refuses what cannot be private."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import gdpjax
from gdpjax.training import adam_scale, resume_run, start_run
from tests.training.interrupted import committed, finished

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 2
KEY = jax.random.key(7)
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def make_plan(**changes):
    arguments = dict(
        clip=1.0,
        max_examples=40,
        expected_batch_size=8,
        num_steps=4,
        delta=1e-5,
        noise_multiplier=1.0,
    )
    return gdpjax.make_plan(**arguments | changes)


PLAN = make_plan()


class Network(nnx.Module):
    """A network of two layers, without biases, because noise for each parameter takes the compiler a while."""

    def __init__(self, rngs, middle=None, use_bias=False):
        self.first = nnx.Linear(3, 4, use_bias=use_bias, rngs=rngs)
        self.middle = middle
        self.last = nnx.Linear(4, 2, use_bias=use_bias, rngs=rngs)
        # Static attributes.
        self.activation = jnp.tanh
        self.name = "network"

    def __call__(self, x):
        hidden = self.activation(self.first(x))
        if self.middle is not None:
            hidden = self.middle(hidden)
        return self.last(hidden)


def loss_fn(model, x, y):
    return cross_entropy(model(x), y)


class Shared(nnx.Module):
    """A network that holds its layer twice, and a dropout, so that it is a graph and no tree."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 2, use_bias=False, rngs=rngs)
        self.again = self.layer
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.dropout(self.again(x))


def trained(training, model, num_steps=4):
    """Return the state after some steps, and the info of the last one."""
    state = training.init(model, KEY)
    data = training.place(X, Y)
    for _ in range(num_steps):
        state, info = training.step(state, data)
    return state, info


def assert_same_bits(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for first_leaf, second_leaf in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(first_leaf, second_leaf)


def test_clipped_grad_is_that_of_the_split_module():
    """The clipped gradient is that of the parameters, bit for bit, and goes into an optimizer of nnx."""
    model = Network(nnx.Rngs(0))
    structure, params = nnx.split(model, nnx.Param)

    def by_hand_loss(params, x, y):
        return loss_fn(nnx.merge(structure, params), x, y)

    by_hand = gdpjax.clipped_grad(by_hand_loss, 0.5, batch_argnums=(1, 2))
    grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 0.5, batch_argnums=(1, 2))
    is_padding = np.arange(40) > 30
    expected = jax.jit(by_hand)(params, X, Y, is_padding=is_padding)

    @nnx.jit
    def clipped_gradient(model):
        return grad_fn(model, X, Y, is_padding=is_padding)

    assert_same_bits(clipped_gradient(model), expected)

    # In the optimizer of nnx, with noise.
    batches = gdpjax.sampling.PoissonNumbers(0.2, expected_batch_size=8)
    tx = gdpjax.dpsgd(0.1, clip=grad_fn, noise_multiplier=1.0, batches=batches, key=KEY)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        gradient = grad_fn(model, X, Y, is_padding=is_padding)
        optimizer.update(model, gradient)

    before = np.array(model.first.kernel[...])
    step(model, optimizer)
    assert gdpjax.ledger_of(optimizer.opt_state).num_steps == 1
    assert (np.asarray(model.first.kernel[...]) != before).all()


def test_states_do_not_change_with_the_module():
    """The parameters of a state are its own, whatever is written into the module."""
    model = Network(nnx.Rngs(0))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    state = training.init(model, KEY)
    before = np.array(state.params["first"]["kernel"][...])
    model.first.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(state.params["first"]["kernel"][...], before)

    nnx.update(model, state.params)
    model.first.kernel[...] = jnp.zeros((3, 4))
    np.testing.assert_array_equal(state.params["first"]["kernel"][...], before)


class Writes(nnx.Module):
    """A layer that writes what it is told to in its forward pass."""

    def __init__(self, what):
        self.what = what
        self.calls = 0
        self.mean = nnx.Variable(jnp.zeros(4))
        self.cache = nnx.Cache(jnp.zeros(4))

    def __call__(self, x):
        if self.what == "variable":
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * x
        elif self.what == "cache":
            self.cache[...] = x
        elif self.what == "static":
            self.calls += 1
        return x


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("variable", r"writes \['middle'\]\['mean'\] \(Variable\)"),
        ("cache", r"writes \['middle'\]\['cache'\] \(Cache\)"),
        ("static", "static attribute"),
    ],
)
def test_what_the_forward_pass_writes_is_refused(what, message):
    """A variable that is written in the forward pass would carry one example into the gradient of another."""
    model = Network(nnx.Rngs(0), Writes(what))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    with pytest.raises(ValueError, match=message):
        trained(training, model)
    with pytest.raises(ValueError, match=message):
        gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))(model, X, Y)
    with pytest.raises(ValueError, match=message):
        gdpjax.nnx.explain(loss_fn, model, (X, Y), batch_argnums=(1, 2))


class Masks(nnx.Module):
    """A module that draws twice from a dropout, and once from another one."""

    def __init__(self, rngs):
        self.weight = nnx.Param(jnp.ones(64))
        self.first = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        ones = jnp.ones(64)
        return self.first(ones), self.first(ones), self.second(ones)


def words_loss(model, x, y):
    """Return a loss whose gradient is 2 (a + 10 b + 100 c) in each coordinate, with bits a, b, c of the three draws."""
    first, again, second = model(x)
    return model.weight[...] @ (first + 10 * again + 100 * second)


ALL_WORDS = {0, 1, 10, 11, 100, 101, 110, 111}


def test_dropout_differs_from_example_to_example_and_step_to_step():
    """Rows that are all the same have different losses, as each draws a dropout of its own in each step."""
    model = Masks(nnx.Rngs(0))
    training = gdpjax.nnx.private_training(PLAN, model, words_loss, optax.sgd(0.0))
    capacity = training.plan.capacity
    x = np.ones((capacity, 3), np.float32)
    y = np.zeros(capacity, int)
    is_padding = np.arange(capacity) >= 12
    state = training.init(model, KEY)
    losses = []
    for _ in range(2):
        state, info = training.step_on(state, x, y, is_padding=is_padding)
        losses.extend(np.asarray(info.losses)[~is_padding])
    assert len(losses) == 24
    assert len(np.unique(losses)) > 0.8 * len(losses)


def test_dropout_by_hand_takes_a_key():
    """Each example draws from the key that is given, and the streams of the module are left alone."""
    model = Masks(nnx.Rngs(0))
    equal_rows = np.ones_like(X)
    grad_fn = gdpjax.nnx.clipped_grad(words_loss, 1e6, batch_argnums=(1, 2))

    @jax.jit
    def gradient(is_padding):
        total = grad_fn(model, equal_rows[:2], Y[:2], key=KEY, is_padding=is_padding)
        return total["weight"][...]

    words = []
    for row in range(2):
        total = gradient(np.arange(2) != row)
        words.append(np.rint(np.asarray(total) / 2).astype(int))

    # Two examples have other bits, and so do two draws of a stream and two streams.
    assert (words[0] != words[1]).mean() > 0.5
    assert set(words[0].tolist()) == set(words[1].tolist()) == ALL_WORDS

    assert int(model.first.rngs.count[...]) == int(model.second.rngs.count[...]) == 0
    with pytest.raises(ValueError, match=r"nnx\.GRUCell hold one, too.* fresh, secret PRNG key"):
        grad_fn(model, equal_rows, Y)


class Tied(nnx.Module):
    """An autoencoder whose two matrices are one."""

    def __init__(self, rngs):
        self.encode = nnx.Param(jax.random.normal(rngs.params(), (3, 3)))
        self.decode = self.encode

    def __call__(self, x):
        hidden = jnp.tanh(x @ self.encode[...])
        return hidden @ self.decode[...].T


def test_a_tied_parameter_is_one():
    """The gradient of a tied parameter is the sum over its uses, clipped once, and it stays tied."""
    model = Tied(nnx.Rngs(0))

    def loss(model, x, y):
        return ((model(x) - x) ** 2).sum() + 0 * y

    def plain_loss(weight, x, y):
        reconstruction = jnp.tanh(x @ weight) @ weight.T
        return ((reconstruction - x) ** 2).sum() + 0 * y

    plain_gradient = jax.jit(gdpjax.clipped_grad(plain_loss, 0.5, batch_argnums=(1, 2)))
    gradient = nnx.jit(gdpjax.nnx.clipped_grad(loss, 0.5, batch_argnums=(1, 2)))
    expected = plain_gradient(model.encode[...], X, Y)
    (total,) = jax.tree.leaves(gradient(model, X, Y))
    np.testing.assert_array_equal(total, expected)

    # As parameters of a training, which `test_a_run_is_resumed_bit_for_bit` runs with a shared layer.
    training = gdpjax.nnx.private_training(PLAN, model, loss, optax.sgd(0.1))
    state = training.init(model, KEY)
    assert len(jax.tree.leaves(state.params)) == 1
    quarters = jax.tree.map(lambda leaf: np.full_like(leaf, 0.25), state.params)
    nnx.update(model, quarters)
    assert model.encode is model.decode
    np.testing.assert_array_equal(model.decode[...], np.full((3, 3), 0.25, np.float32))


@pytest.mark.parametrize("scale", [None, pytest.param(adam_scale(epsilon=0.1), marks=pytest.mark.slow)])
def test_a_filter_says_what_is_trained(scale):
    """The adapters move, and nothing else does, weight decay or not."""
    rngs = nnx.Rngs(0)
    model = Network(rngs)
    model.first = nnx.LoRA(3, 2, 4, base_module=model.first, rngs=rngs)
    before = jax.tree.map(np.array, nnx.state(model))
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optimizer, wrt=nnx.LoRAParam, scale=scale)
    state, _ = trained(training, model)
    nnx.update(model, state.params)

    adapters, rest = nnx.state(model, nnx.LoRAParam, ...)
    adapters_before, rest_before = nnx.split_state(before, nnx.LoRAParam, ...)
    assert_same_bits(rest, rest_before)
    leaves = jax.tree.leaves(adapters)
    leaves_before = jax.tree.leaves(adapters_before)
    assert len(leaves) == len(leaves_before) == 2
    for leaf, leaf_before in zip(leaves, leaves_before, strict=True):
        assert np.not_equal(leaf, leaf_before).all()

    # Moments are kept for the adapters only.
    num_numbers = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    assert num_numbers < 2 * 14 + 150

    grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2), wrt=nnx.LoRAParam)
    total = jax.eval_shape(lambda: grad_fn(model, X, Y))
    assert jax.tree.structure(total) == jax.tree.structure(adapters)


def test_a_module_that_was_changed_since_is_refused():
    """A training takes a module with other values, and refuses one whose layers are in another mode."""
    model = Network(nnx.Rngs(0), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.sgd(0.1))
    with_other_values = Network(nnx.Rngs(5), nnx.Dropout(0.5, rngs=nnx.Rngs(2)))
    training.init(with_other_values, KEY)
    model.eval()
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        training.init(model, KEY)


def test_groups_of_a_module_are_a_dict_by_its_attributes():
    """Each to its own norm, for one layer as a whole or for each of its variables."""
    model = Network(nnx.Rngs(0))
    for last in ("b", {"kernel": "b"}):
        rule = gdpjax.PerGroup({"first": "a", "last": last}, {"a": 3e-3, "b": 4e-3})
        total = nnx.jit(gdpjax.nnx.clipped_grad(loss_fn, rule, batch_argnums=(1, 2)))(model, X[:1], Y[:1])
        norms = [np.linalg.norm(total[name]["kernel"][...]) for name in ("first", "last")]
        np.testing.assert_allclose(norms, [3e-3, 4e-3], rtol=1e-5)
    with pytest.raises(ValueError, match=r"gives \['last'\]\['kernel'\].value no group, but \[\"\['first'\]\"\]"):
        gdpjax.nnx.clipped_grad(loss_fn, gdpjax.PerGroup({"first": "a"}, {"a": 1.0}), batch_argnums=(1, 2))(model, X, Y)


def test_bad_arguments():
    """A wrong module, filter or argument is refused by name."""
    model = Network(nnx.Rngs(0))
    refused = {
        "nnx module": ({"w": jnp.ones(2)}, {}),
        "selects no variable": (model, {"wrt": nnx.LoRAParam}),
        r"wrt=\.\.\.": (model, {"trainable": True}),
    }
    for message, (given, options) in refused.items():
        with pytest.raises(ValueError, match=message):
            gdpjax.nnx.private_training(PLAN, given, loss_fn, optax.sgd(0.1), **options)
    with pytest.raises(ValueError, match="this one has none"):
        gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))(model, X, Y, key=KEY)


def test_a_run_is_resumed_bit_for_bit(tmp_path):
    """A module that is made anew, as in another process, has the same program, and goes on with the same keys."""

    def make():
        model = Shared(nnx.Rngs(0))
        training = gdpjax.nnx.private_training(PLAN, model, loss_fn, optax.adam(0.1))
        return training, model, training.place(X, Y)

    arguments = make()
    whole = start_run(tmp_path / "whole", *arguments, key=KEY)
    finished(whole, 2)
    begun = committed(start_run(tmp_path / "run", *arguments, key=KEY))
    begun.advance(2)

    # Everything is made anew.
    resumed = resume_run(tmp_path / "run", *make())
    assert resumed.fingerprint == begun.fingerprint
    resumed_key = jax.random.key_data(resumed.state.sampling_key)
    begun_key = jax.random.key_data(begun.state.sampling_key)
    assert_same_bits(resumed_key, begun_key)
    assert_same_bits(resumed.state.params, begun.state.params)
    assert_same_bits(resumed.state.opt_state, begun.state.opt_state)

    # Since the program is the same, the one that is compiled already does.
    run = resume_run(tmp_path / "run", *arguments)
    finished(run, 2)
    assert_same_bits(run.state.params, whole.state.params)


def test_flax_is_imported_when_it_is_used():
    """Importing gdpjax does not import flax, and using `gdpjax.nnx` does."""
    program = "import sys, gdpjax; assert 'flax' not in sys.modules; gdpjax.nnx; assert 'flax' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
