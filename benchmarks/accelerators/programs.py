"""What is compiled, by name: accounting, noise, clipped gradients, whole steps, several devices.

A program is built when it is compiled, as shapes: no array of a model is made. Names are ``family.case.contender``, and
the first contender of a case, without privacy or of plain JAX, is what the others are compared with.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import gdpjax
from benchmarks.accelerators.device_report import PLAIN
from benchmarks.accelerators.target import Target
from benchmarks.clipping import cases as clipping_cases
from benchmarks.clipping.contenders import CONTENDERS
from benchmarks.language import cases as language_cases
from benchmarks.language import steps as language
from experiments.language import sharding
from experiments.language.config import PRESETS
from experiments.language.lora import LoraConfig
from gdpjax import accounting, correlated, sampling, tradeoff
from gdpjax.training import Data, Plan, private_training

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, the shapes of its arguments, and settings of `jax.jit`."""

OURS = "gdpjax"
PEER = "jax_privacy"
PEER_32 = "jax_privacy, 32 rows at a time"

CASES = {case.name: case for case in clipping_cases.CPU}
Shape = jax.ShapeDtypeStruct
_MLP_SHAPES = ((784, 1024), (1024,), (1024, 1024), (1024,), (1024, 10), (10,))
_NUM_EXAMPLES = 60_000


class Program(NamedTuple):
    """One program.

    Attributes:
      name: family, case and contender.
      build: gives it for a target.
      checked: whether `make test-accelerators` compiles it.
    """

    name: str
    build: Callable[[Target], Built]
    checked: bool = False


def numbers(*shape: int) -> Shape:
    """Return the shape of an array of numbers."""
    return Shape(shape, jnp.float32)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


# Accounting, for 1,000 settings each.


def _accounting() -> Iterator[Program]:
    counts = {
        "gdp_delta": 2,
        "gdp_log_delta": 2,
        "gdp_epsilon": 2,
        "gdp_mu": 2,
        "clt_mu_poisson": 3,
        "clt_mu_uniform": 3,
        "clt_epsilon": 4,
        "moments_accountant_epsilon": 4,
    }
    functions: dict[str, tuple[Callable[..., Any], int]] = {
        **{name: (getattr(accounting, name), count) for name, count in counts.items()},
        "clt_epsilon_uniform": (functools.partial(accounting.clt_epsilon, sampling="uniform"), 4),
        "Gaussian": (lambda mu, alpha: tradeoff.Gaussian(mu)(alpha), 2),
        "subsample": (lambda mu, p, alpha: tradeoff.subsample(tradeoff.Gaussian(mu), p)(alpha), 3),
        "delta": (lambda mu, epsilon: tradeoff.delta(tradeoff.Gaussian(mu), epsilon), 2),
    }
    for name, (function, count) in functions.items():
        yield _elementwise(name, function, *[numbers(1000)] * count)

    def swept(sigma: Any) -> Any:
        return jax.value_and_grad(lambda s: accounting.clt_epsilon(s, 0.01, 2000.0, 1e-5))(sigma)

    yield _elementwise("gdp_compose", accounting.gdp_compose, numbers(1000, 8))
    yield _elementwise("sweep_and_slopes", jax.vmap(swept), numbers(100_000))


def _elementwise(name: str, function: Callable[..., Any], *arguments: Shape) -> Program:
    return Program(f"accounting.{name}", lambda target: (function, arguments, {}), checked=True)


# Noise.


def _noise() -> Iterator[Program]:
    def added(shape: tuple[int, ...], dtype: Any, draw: str, target: Target) -> Built:
        noise = gdpjax.add_gaussian_noise(1.0, key=jax.random.key(0))

        def plain(key: Any, leaf: Any) -> Any:
            return leaf + jax.random.normal(key, shape, jnp.float32)

        if draw == PLAIN:
            return plain, (_key(), Shape(shape, dtype)), {}
        state = jax.eval_shape(lambda: noise.init(jnp.zeros(shape, dtype)))
        return noise.update, (Shape(shape, dtype), state), {}

    small, large = (1856, 1000), (25_000, 40_000)
    for title, shape, dtype in (("2M", small, "float32"), ("1B", large, "float32"), ("1B", large, "bfloat16")):
        for draw in (PLAIN, OURS):
            build = functools.partial(added, shape, dtype, draw)
            yield Program(f"noise.{title} {dtype}.{draw}", build, checked=True)

    def of_tree(shapes: tuple[tuple[int, ...], ...], transform: Callable[[], Any], target: Target) -> Built:
        tree = {f"leaf{i}": numbers(*shape) for i, shape in enumerate(shapes)}
        tx = optax.chain(transform(), optax.adam(1e-3))
        state = jax.eval_shape(lambda: tx.init(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), tree)))

        def update(grads: Any, state: Any, params: Any) -> Any:
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return update, (tree, state, tree), {"donate_argnums": (1, 2)}

    key = jax.random.key(0)

    def correlated_by(strategy: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: gdpjax.privatize(
            gdpjax.Sensitivity(1.0),
            noise_multiplier=1.0,
            batches=sampling.Promised(256.0, 200, promise),
            key=key,
            noise=strategy(),
        )

    promise = correlated.FixedEpochs(num_epochs=4)
    strategies = {
        "bisr(4)": lambda: correlated.bisr(4),
        "lambda_cgd": lambda: correlated.lambda_cgd(0.9),
        "banded Toeplitz": lambda: correlated.optimize_banded_toeplitz(200, 8),
        "BLT": lambda: correlated.optimize_buffered_toeplitz(200, promise),
    }
    leaves = tuple((96 + i,) for i in range(96))
    transforms: dict[str, tuple[Any, Callable[[], Any]]] = {
        f"MLP's leaves and Adam.{PLAIN}": (_MLP_SHAPES, optax.identity),
        f"MLP's leaves and Adam.{OURS}": (_MLP_SHAPES, lambda: gdpjax.add_gaussian_noise(1.0, key=key)),
        f"96 small leaves and Adam.{PLAIN}": (leaves, optax.identity),
        f"96 small leaves and Adam.{OURS}": (leaves, lambda: gdpjax.add_gaussian_noise(1.0, key=key)),
    }
    for title, strategy in strategies.items():
        transforms[f"MLP's leaves and Adam, {title}.{OURS}"] = (_MLP_SHAPES, correlated_by(strategy))
    for name, (shapes, transform) in transforms.items():
        yield Program(f"noise.{name}", functools.partial(of_tree, shapes, transform), checked=True)


# Clipped gradients, without noise.


def _clipped() -> Iterator[Program]:
    for name in ("mlp", "cnn", "imdb", "resnet"):
        for contender in (PLAIN, OURS, PEER, PEER_32):
            build = functools.partial(_clipped_gradient, CASES[name], contender)
            checked = name in ("mlp", "cnn") and contender in (PLAIN, OURS)
            yield Program(f"clipped.{name}.{contender}", build, checked)


def _clipped_gradient(case: Any, contender: str, target: Target) -> Built:
    params = case.model.init(np.random.default_rng(0))
    batch = case.model.batch(np.random.default_rng(1), case.batch_size)
    name = {PLAIN: clipping_cases.NO_PRIVACY, OURS: clipping_cases.AUTO}.get(contender, PEER)
    build = next(each.build for each in CONTENDERS if each.name == name)
    function = build(case.model.loss, 1.0, 32 if contender == PEER_32 else None)
    return function, _shapes_of((params, *batch)), {}


def _shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: Shape(np.shape(leaf), leaf.dtype), tree)


# Whole steps, which take their batches from a data set.


def _steps() -> Iterator[Program]:
    for name in ("mlp", "cnn"):
        for contender in (PLAIN, OURS):
            build = functools.partial(_step, CASES[name], contender, "step")
            yield Program(f"step.{name}.{contender}", build, checked=True)
    mlp = CASES["mlp"]
    yield Program(f"step.mlp in a loop of 10.{OURS}", functools.partial(_step, mlp, OURS, "loop"), checked=True)
    yield Program(f"step.mlp, four trainings of 10.{OURS}", functools.partial(_step, mlp, OURS, "four"))


def _step(case: Any, contender: str, form: str, target: Target) -> Built:
    loss, optimizer = case.model.loss, optax.adam(1e-3)
    params = _shapes_of(case.model.init(np.random.default_rng(0)))
    x, y = case.model.batch(np.random.default_rng(1), 1)
    rows = (_rows(x, target), Shape((_NUM_EXAMPLES, *y.shape[1:]), y.dtype))
    batches = sampling.Poisson(_NUM_EXAMPLES, case.batch_size, num_steps=1000)
    plan = Plan(batches, clip=1.0, delta=1e-5, noise_multiplier=1.0)

    def plain(params: Any, state: Any, key: Any, *rows: Any) -> Any:
        places = jax.random.randint(key, (case.batch_size,), 0, _NUM_EXAMPLES)
        batch = [array[places] for array in rows]
        mean = jax.grad(lambda params: jax.vmap(loss, (None, 0, 0))(params, *batch).mean())(params)
        updates, state = optimizer.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    if contender == PLAIN:
        state = jax.eval_shape(optimizer.init, params)
        return plain, (params, state, _key(), *rows), {"donate_argnums": (0, 1)}

    training = private_training(plan, loss, optimizer)
    data = Data(rows, Shape((), jnp.int32))
    if form == "four":

        def one(sigma: Any, key: Any, params: Any, data: Data) -> Any:
            training = private_training(plan.replace(noise_multiplier=sigma), loss, optimizer)
            return training.run_steps(training.init(params, key), data, 10)

        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
        return jax.vmap(one, (0, 0, None, None)), (numbers(4), keys, params, data), {}
    state = jax.eval_shape(training.init, params, _key())
    if form == "loop":
        return lambda state, data: training.run_steps(state, data, 10), (state, data), {"donate_argnums": 0}
    return lambda state, data: training.step(state, data), (state, data), {"donate_argnums": 0}


def _rows(example: np.ndarray, target: Target) -> Any:
    """Return the shape of a data set, in the layout in which `training.place` puts a matrix on a TPU."""
    shape = (_NUM_EXAMPLES, *example.shape[1:])
    if len(shape) != 2 or target.name != "tpu":
        return Shape(shape, example.dtype)
    whole_rows = Format(Layout(major_to_minor=(0, 1)), SingleDeviceSharding(target.devices[0]))
    return Shape(shape, example.dtype, sharding=whole_rows)


# Language models, on one device and on eight.


def _language() -> Iterator[Program]:
    contenders = {PLAIN: language.NO_PRIVACY, OURS: language.AUTO, PEER: language.PEER}
    for preset, lora in (("124M", None), ("355M", None), ("1B", LoraConfig(rank=8))):
        name = preset if lora is None else f"{preset} adapters"
        for contender, theirs in contenders.items():
            build = functools.partial(_language_step, preset, lora, theirs, None)
            yield Program(f"language.{name}.{contender}", build)
    for preset in ("124M", "1B"):
        for mesh in ("fsdp", "data"):
            for contender in (PLAIN, OURS):
                build = functools.partial(_language_step, preset, None, contenders[contender], mesh)
                yield Program(f"eight devices.{preset} {mesh}.{contender}", build)


def _language_step(preset: str, lora: Any, contender: str, form: str | None, target: Target) -> Built:
    num_units = 8 if form else 4
    case = language_cases.Case(preset, preset, PRESETS[preset], lora, num_units, 1, 512, (1,))
    build = next(each.build for each in language.CONTENDERS if each.name == contender)
    made: list[Any] = []

    def arguments() -> Any:
        function, arguments = build(language.Task(case), num_units if form else 1)
        made.append(function)
        return arguments

    shapes = jax.eval_shape(arguments)
    settings: dict[str, Any] = {"donate_argnums": 0}
    if form is None:
        return made[0], shapes, settings

    mesh = Mesh(np.array(target.devices), (sharding.DATA,), axis_types=(AxisType.Auto,))
    return made[0], _on_mesh(shapes, mesh, form, num_units), settings


def _on_mesh(shapes: Any, mesh: Mesh, form: str, num_units: int) -> Any:
    """Return shapes on a mesh: weights, and what is kept for each, cut or whole; the rows of a batch are spread."""

    def placed(path: Any, leaf: Any) -> Any:
        spec = PartitionSpec()
        names = [str(getattr(entry, "key", getattr(entry, "name", ""))) for entry in path]
        if form == "fsdp" and leaf.ndim >= 2 and not jnp.issubdtype(leaf.dtype, jnp.integer):
            tree: Any = leaf
            for name in reversed(names):
                tree = {name: tree}
            (on_mesh,) = jax.tree.leaves(sharding.shardings(tree, mesh))
            spec = on_mesh.spec
        elif jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.shape[:1] == (num_units,):
            spec = PartitionSpec(sharding.DATA)
        return Shape(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(placed, shapes)


def programs() -> dict[str, Program]:
    """Return all programs, by name."""
    families = (_accounting(), _noise(), _clipped(), _steps(), _language())
    return {program.name: program for family in families for program in family}
