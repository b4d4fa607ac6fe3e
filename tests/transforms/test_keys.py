"""Keys: each configuration's noise and batches are its own, and a key that several would share is refused."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

import gdpjax
from gdpjax._core.keys import bits, check_key, fold_in, split
from gdpjax.mechanisms import LaplaceMechanism, RandomizedResponse
from gdpjax.sampling import Poisson, PoissonNumbers, WithoutReplacement, poisson_sample
from gdpjax.training import make_plan, private_training

KEY = jax.random.key(0)
PARAMS = {"w": jnp.zeros(50)}
CLIP = gdpjax.Sensitivity(1.0)
BATCHES = PoissonNumbers(0.1, 1.0)
SHAPE = (4, 50)


def make(key=KEY, noise_multiplier=1.0):
    return gdpjax.privatize(CLIP, noise_multiplier, BATCHES, key)


def make_adaptive(key=KEY, noise_multiplier=1.0):
    return gdpjax.privatize_adaptive(
        initial_l2_clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        count_stddev=1.0,
        batches=BATCHES,
        key=key,
    )


def make_training(noise_multiplier=2.0):
    plan = make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5, noise_multiplier=2.0)
    plan = plan.replace(noise_multiplier=noise_multiplier)

    def loss(w, x, y):
        return jnp.dot(w, x) * y

    return private_training(plan, loss, optax.sgd(0.1))


def release(key, noise_multiplier=1.0):
    tx = make(key, noise_multiplier)
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[0]["w"]


compiled_release = jax.jit(release)


def release_adaptive(key):
    tx = make_adaptive(key)
    rows = {"w": jnp.ones((3, 50))}
    return tx.update(rows, tx.init(PARAMS), PARAMS)[0]["w"]


def release_accumulated(key):
    tx = gdpjax.accumulate_clipped(make(key), 1)
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[0]["w"]


def release_bare(key, params=PARAMS):
    tx = gdpjax.add_gaussian_noise(1.0, key)
    return tx.update(params, tx.init(params), params)[0]["w"]


def keys_of_a_run(key):
    state = make_training().init(jnp.zeros(3), key)
    return jax.random.key_data(state.sampling_key), state.opt_state[0].key_data


DRAWS = {
    "bits": lambda key: bits(key, SHAPE),
    "split": lambda key: jax.random.key_data(split(key, 3)),
    "fold_in": lambda key: jax.random.key_data(fold_in(key, 7)),
    "much noise": lambda key: release_bare(key, {"w": jnp.zeros(64 * 300)}),
    "privatize": release,
    "privatize_adaptive": release_adaptive,
    "accumulate_clipped": release_accumulated,
    "add_gaussian_noise": release_bare,
    "poisson_sample": lambda key: poisson_sample(key, 1000, 0.1, 160).indices,
    "without replacement": lambda key: WithoutReplacement(1000, 100, 2).sample(key, 0).indices,
    "init of a training": keys_of_a_run,
    "laplace": lambda key: LaplaceMechanism(1.0).sample(key, jnp.zeros(SHAPE), 1.0),
    "randomized response": lambda key: RandomizedResponse(1.0, 5).sample(key, jnp.zeros(SHAPE, int)),
    "coins": lambda key: gdpjax.auditing.flip_coins(key, 200),
    "gradient canaries": lambda key: gdpjax.auditing.gradient_canaries(key, 3, PARAMS, 1.0)["w"],
    "coordinate canaries": lambda key: gdpjax.auditing.gradient_canaries(key, 40, PARAMS, 1.0, coordinates=True)["w"],
    "labels": lambda key: gdpjax.auditing.mislabel(key, jnp.zeros(SHAPE, int), 10),
    "out of distribution": lambda key: gdpjax.auditing.out_of_distribution(key, 4, (50,)),
}


IMPLEMENTED_DRAWS = [
    *[(name, "rbg") for name in DRAWS],
    *[(name, "unsafe_rbg") for name in ("bits", "split", "fold_in", "much noise")],
    pytest.param("privatize", "unsafe_rbg", marks=pytest.mark.slow),  # it is made of the four before
]


@pytest.mark.parametrize(("name", "impl"), IMPLEMENTED_DRAWS)
def test_under_vmap_every_configuration_draws_what_its_key_draws_alone(name, impl):
    """JAX draws the bits of "rbg" keys under vmap from the first key: rows after a finished one repeat their noise."""
    draw = DRAWS[name]

    @jax.jit
    def in_both_ways(keys):
        return jax.vmap(draw)(keys), jax.lax.map(draw, keys)

    together, one_by_one = in_both_ways(jax.random.split(jax.random.key(1, impl=impl), 3))
    for of_all, of_each in zip(jax.tree.leaves(together), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(of_all, of_each, rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize("impl", ["rbg", pytest.param("unsafe_rbg", marks=pytest.mark.slow), "threefry2x32"])
def test_a_configuration_that_stands_still_does_not_stop_the_noise_of_the_others(impl):
    """With the first row's state unchanged, as a finished run's, step after step must still be new noise."""
    keys = jax.random.split(jax.random.key(1, impl=impl), 3)

    def steps(key, stands):
        tx = make(key)

        def step(state, _):
            update, after = tx.update(PARAMS, state, PARAMS)
            batch = poisson_sample(fold_in(key, jnp.where(stands, 0, state.count)), 500, 0.5, 400)
            after = jax.tree.map(lambda old, new: jnp.where(stands, old, new), state, after)
            return after, (update["w"], batch.count)

        return jax.lax.scan(step, tx.init(PARAMS), length=4)[1]

    noise, counts = jax.jit(jax.vmap(steps))(keys, jnp.array([True, False, False]))
    moving = np.asarray(noise[1:]).reshape(8, -1)
    assert np.abs(np.corrcoef(moving) - np.eye(8)).max() < 0.7  # 50 draws each: 5 standard deviations
    assert len(set(np.asarray(counts[1]).tolist())) > 1


def test_nested_vmap_and_raw_key_data_keep_the_implementation():
    keys = jax.random.split(jax.random.key(1, impl="rbg"), 4)
    data = jax.random.key_data(keys).reshape(2, 2, 4)

    def draw(words):
        return release(jax.random.wrap_key_data(words, impl="rbg"))

    @jax.jit
    def all_and_one(data):
        return jax.vmap(jax.vmap(draw))(data), draw(data[1, 0])

    together, alone = all_and_one(data)
    np.testing.assert_allclose(together[1, 0], alone, rtol=3e-5, atol=1e-6)
    with pytest.raises(ValueError, match="share one noise key"):
        jax.vmap(release, in_axes=(None, 0))(jax.random.key(0, impl="rbg"), jnp.ones(2))


_DRAWING = "bits bernoulli fold_in normal permutation randint split uniform"
_ELSEWHERE = {
    "clipping/_augmentation.py": "keys of the loss's own randomness",
    "clipping/_loss.py": "keys of the loss's own randomness",
    "auditing/_step.py": "keys of independent releases, eagerly",
    "auditing/_many_runs.py": "an order, on the host",
    "auditing/_one_run.py": "an order, on the host",
    "nnx.py": "keys of the loss's own randomness",
    "auditing/_installation.py": "keys of independent audits, on the host",
    "auditing/_step_checks.py": "keys of independent releases, eagerly",
    "auditing/_worst_cases.py": "keys of independent releases, eagerly",
    "sweeps/_plans.py": "keys of trainings, on the host",
    "sweeps/_program.py": "shapes of keys",
    "sweeps/template/my_task.py": "initial weights, in a module that users change",
    "training/_run.py": "a fresh key, on the host",
}


def _drawn_one_key_at_a_time(tree):
    """Ids of the nodes inside a call of `one_key_at_a_time`, and inside the functions that are given to it by name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    wrapping = [call for call in calls if getattr(call.func, "id", "") == "one_key_at_a_time"]
    names = {argument.id for call in wrapping for argument in call.args if isinstance(argument, ast.Name)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    return {id(node) for outer in (*wrapping, *functions) for node in ast.walk(outer)}


def test_nothing_else_draws_with_jax_random():
    """A new draw must go through `gdpjax._core.keys`, or stand in the list above with its reason.

    The command line makes its own keys, which are threefry keys.
    """
    root = pathlib.Path(gdpjax.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name, text = path.relative_to(root).as_posix(), path.read_text()
        if "jax.random" not in text:
            continue
        tree = ast.parse(text)
        wrapped = _drawn_one_key_at_a_time(tree)
        for node in ast.walk(tree):
            draws = isinstance(node, ast.Attribute) and node.attr in _DRAWING.split()
            if draws and ast.unparse(node.value) == "jax.random" and id(node) not in wrapped:
                found.add(name)
    found = {name for name in found if name != "_core/keys.py" and not name.startswith("cli/")}
    assert found <= set(_ELSEWHERE)


def mapped_in_a_loop(f):
    return jax.lax.map(lambda s: jax.vmap(lambda _: f(s))(jnp.arange(2)), jnp.ones(2))


def scanned(f):
    def body(carry, x):
        return carry, f(x)

    return jax.jit(lambda xs: jax.lax.scan(body, 0, xs))(jnp.ones(2))


def repeated_twice(f):
    return jax.lax.fori_loop(0, 2, lambda _, carry: carry + f(carry).sum(), 1.0)


def repeated_below_three(f):
    return jax.lax.while_loop(lambda carry: carry < 3, lambda carry: carry + f(carry).sum(), 1.0)


LOOPS = {
    "lax.map": lambda f: jax.lax.map(f, jnp.ones(2)),
    "jit in lax.map": lambda f: jax.lax.map(jax.jit(f), jnp.ones(2)),
    "vmap in lax.map": mapped_in_a_loop,
    "scan": scanned,
    "fori_loop": repeated_twice,
    "while_loop": repeated_below_three,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_one_key_for_the_configurations_of_a_loop_is_refused(loop):
    """Trap 38, where no vmap shows it: the key is a constant of the loop's body."""
    with pytest.raises(ValueError, match="constant of a compiled loop"):
        LOOPS[loop](lambda s: release(KEY, s))


STATE = make().init(PARAMS)
LEGACY = jax.random.PRNGKey(0)  # two words, of which a typed key is made in the loop
SHARED = {
    "noise": lambda s: release_bare(KEY),
    "adaptive": lambda s: release_adaptive(KEY),
    "state": lambda s: make().update({"w": PARAMS["w"] + s}, STATE, PARAMS)[0]["w"],
    "batch": lambda s: poisson_sample(KEY, 100, 0.1, 30).count,
    "uniform batch": lambda s: WithoutReplacement(100, 10, 2).sample(KEY, 0).indices,
    "laplace": lambda s: LaplaceMechanism(1.0).sample(KEY, s, 1.0),
    "training": lambda s: make_training(s).init(jnp.zeros(3), KEY).status,
    "legacy bits": lambda s: bits(LEGACY, SHAPE),
    "legacy split": lambda s: jax.random.key_data(split(LEGACY)),
    "legacy batch": lambda s: poisson_sample(LEGACY, 100, 0.1, 30).count,
    "legacy uniform batch": lambda s: WithoutReplacement(100, 10, 2).sample(LEGACY, 0).indices,
    "legacy laplace": lambda s: LaplaceMechanism(1.0).sample(LEGACY, s, 1.0),
    "legacy training": lambda s: make_training(s).init(jnp.zeros(3), LEGACY).status,
}


@pytest.mark.parametrize("name", SHARED)
def test_whatever_draws_refuses_a_key_that_is_a_constant_of_a_loop(name):
    with pytest.raises(ValueError, match="constant of a compiled loop"):
        jax.lax.map(SHARED[name], jnp.ones(2))


def test_a_constant_key_of_a_loop_in_a_jitted_sweep_is_refused():
    """The key is an argument of the outer program, and still a constant of the loop in it."""

    def loop(key, multipliers):
        return jax.lax.map(lambda one: release(key, one), multipliers)

    with pytest.raises(ValueError, match="constant of a compiled loop"):
        jax.jit(loop)(KEY, jnp.ones(2))
    with pytest.raises(ValueError, match="constant of a compiled loop"):
        jax.vmap(loop, in_axes=(0, None))(jax.random.split(KEY, 2), jnp.ones(2))


def test_loops_over_keys_are_accepted():
    multipliers, keys = np.float32([1.0, 2.0]), jax.random.split(KEY, 2)
    mapped = jax.jit(lambda pairs: jax.lax.map(lambda pair: release(*pair), pairs))((keys, multipliers))
    np.testing.assert_allclose(mapped[1], compiled_release(keys[1], multipliers[1]), rtol=1e-5)

    # What is refused is refused when it is traced.
    def release_of_step(step):
        return release(jax.random.fold_in(KEY, step))

    def release_of_two(key):
        return jax.vmap(release)(jax.random.split(key, 2))

    jax.eval_shape(lambda: jax.lax.map(release_of_step, jnp.arange(2)))
    jax.eval_shape(lambda: jax.lax.map(release_of_two, keys))
    jax.eval_shape(jax.jit(jax.vmap(release)), keys, multipliers)
    jax.eval_shape(jax.jit(release), KEY, 1.0)
    jax.eval_shape(jax.jit(lambda s: release(KEY, s)), 1.0)
    jax.eval_shape(jax.grad(lambda s: release(KEY, s).sum()), 1.0)


def sharded(function, *specs, check_vma=True):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("d"), check_vma=check_vma)


def test_configurations_over_a_mesh_that_share_a_key_are_refused():
    every, own = PartitionSpec(), PartitionSpec("d")
    multipliers, keys = jnp.ones(1), jax.random.split(KEY, 1)

    def one(key, s):
        return release(key, s[0])

    with pytest.raises(ValueError, match="share one noise key"):
        jax.jit(sharded(one, every, own))(KEY, multipliers)
    with pytest.raises(ValueError, match="share one noise key"):
        jax.jit(sharded(lambda s: one(KEY, s), own))(multipliers)

    def training(key, s):
        return make_training(s[0]).init(jnp.zeros(3), key).status[None]

    for unchecked in (one, training):
        with pytest.raises(ValueError, match="constant of a jax"):
            jax.jit(sharded(lambda s, f=unchecked: f(KEY, s), own, check_vma=False))(multipliers)
    found = jax.jit(sharded(lambda keys, s: one(keys[0], s), own, own))(keys, multipliers)
    np.testing.assert_allclose(found, compiled_release(keys[0], np.float32(1.0)), rtol=1e-5)


def test_gradients_that_are_added_up_over_a_mesh_before_the_noise_are_accepted():
    """Data parallel: the state and its key on every device, one noise."""
    every, own, tx = PartitionSpec(), PartitionSpec("d"), make()

    def step(total, state):
        total = jax.tree.map(lambda leaf: jax.lax.psum(leaf[0], "d"), total)
        return jax.lax.pcast(tx.update(total, state, PARAMS)[0]["w"], "d", to="varying")

    def step_without_sum(total, state):
        return tx.update({"w": total["w"][0]}, state, PARAMS)[0]["w"]

    total, state = {"w": PARAMS["w"][None]}, tx.init(PARAMS)
    found = jax.jit(sharded(step, own, every))(total, state)
    np.testing.assert_allclose(found, compiled_release(KEY, np.float32(1.0)), rtol=1e-5)
    with pytest.raises(ValueError, match="share one noise key"):
        jax.jit(sharded(step_without_sum, own, every))(total, state)


TRACED = {
    "jit": lambda f: jax.jit(f)(),
    "eval_shape": lambda f: jax.eval_shape(f),
    "jaxpr": lambda f: jax.make_jaxpr(f)(),
    "lax.map": lambda f: jax.lax.map(lambda _: f(), jnp.ones(2)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(lambda _: f()))(jnp.ones(2)),
}


@pytest.mark.parametrize("trace", TRACED)
def test_a_fresh_key_in_a_traced_function_is_refused(trace):
    """Trap 10: it would be a constant of the program, and every call would repeat its noise."""
    with pytest.raises(ValueError, match=r"fresh_key\(\) was called while a function is traced"):
        TRACED[trace](lambda: jax.random.key_data(gdpjax.fresh_key()))
    assert jax.grad(lambda x: x * jax.random.uniform(gdpjax.fresh_key()))(1.0) > 0  # not compiled: a new key each time


NO_KEYS = {
    "seed": 0,
    "array of keys": jax.random.split(KEY, 2),
    "array of legacy keys": np.zeros((3, 2), np.uint32),
    "raw data of an rbg key": jax.random.key_data(jax.random.key(0, impl="rbg")),
}


@pytest.mark.parametrize("name", NO_KEYS)
@pytest.mark.parametrize(
    "function",
    [
        lambda key: gdpjax.add_gaussian_noise(1.0, key),
        lambda key: poisson_sample(key, 10, 0.5, 10),
        lambda key: WithoutReplacement(10, 5, 2).sample(key, 0),
        lambda key: Poisson(10, 5, 2).on_host(key),
        lambda key: make_training().init(jnp.zeros(3), key),
        lambda key: LaplaceMechanism(1.0).sample(key, 0.0, 1.0),
        lambda key: gdpjax.auditing.flip_coins(key, 5),
    ],
    ids=["noise", "poisson", "uniform", "batches", "training", "laplace", "coins"],
)
def test_what_is_no_key_is_refused_wherever_something_is_drawn(function, name):
    with pytest.raises(ValueError, match="key must be"):
        function(NO_KEYS[name])


def test_a_legacy_pair_is_a_threefry_key_and_a_typed_key_keeps_its_implementation():
    data, impl = check_key(np.array([1, 2], np.uint32))
    assert (data.tolist(), impl) == ([1, 2], "threefry2x32")
    assert check_key(jax.random.key(0, impl="rbg"))[1] == "rbg"
    batches = WithoutReplacement(100, 10, 2)
    legacy, typed = (batches.sample(key, 1).indices for key in (jax.random.PRNGKey(3), jax.random.key(3)))
    np.testing.assert_array_equal(legacy, typed)
