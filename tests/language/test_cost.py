"""The cost model, held to what XLA says of programs that it compiled, and to what gdpjax says that it will do."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import gdpjax
from experiments.errors import UserError
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.cost import step_cost
from experiments.language.finetuning import Finetuning
from experiments.language.lora import LoraConfig, adapted_paths, joined, split_adapters
from experiments.language.model import param_shapes, sequence_loss
from gdpjax.sampling import TruncatedPoisson
from gdpjax.training import Data, private_training
from gdpjax.training._in_place import steps_in_place

CONFIG = ModelConfig(
    vocab_size=4096,
    num_layers=2,
    model_width=256,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    hidden_width=704,
    max_length=512,
    compute_dtype="float32",
)
LORA = LoraConfig(rank=8, targets="query|value")
TOLERANCE = 0.2


def clipped_sum(config, strategy, num_units, shape, microbatch_size, lora=None):
    """A clipped sum, and the shapes of its arguments."""
    tokens = jax.ShapeDtypeStruct((num_units, *shape), jnp.int32)
    if lora is None:
        params, shared, options = param_shapes(config), (), {}

        def loss(params, tokens):
            return sequence_loss(config, params, tokens)
    else:
        params, base = split_adapters(param_shapes(config, lora))
        shared = (jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), base),)
        options = {"shared_argnums": 2}

        def loss(params, tokens, base):
            return sequence_loss(config, joined(params, base), tokens, lora=lora)

    clipped = gdpjax.clipped_grad(loss, 1.0, strategy=strategy, microbatch_size=microbatch_size, **options)
    return clipped, (params, tokens, *shared)


def compiled(*args):
    """The program of a clipped sum; nothing is executed."""
    clipped, shapes = clipped_sum(*args)
    return jax.jit(lambda *args: clipped(*args)).lower(*shapes).compile()


def predicted(config, strategy, num_units, shape, microbatch_size, lora=None):
    """The cost of the same."""
    *num_sequences, length = shape
    return step_cost(
        config,
        num_units=num_units,
        length=length,
        num_sequences=num_sequences[0] if num_sequences else 1,
        microbatch_size=microbatch_size,
        strategy=strategy,
        lora=lora,
    )


def product_flops(jaxpr):
    """The operations of all matrix products of a program, with those in loops as often as they are done."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracted)
        inner = [product_flops(body) for body in jaxprs_in_params(eqn.params)]
        if eqn.primitive.name == "while":
            assert not any(inner)  # nobody knows how often
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(inner)
    return total


def held_bytes(program):
    memory = program.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes


CASES = {
    "formed by JAX": ("microbatch", 1, (256,), None),
    "formed of factors": ("auto", 1, (256,), None),
    "two units at a time": ("microbatch", 2, (256,), None),
    "sequences": ("microbatch", 1, (2, 128), None),
    "adapters": ("microbatch", 1, (256,), LORA),
}


TRACED = {
    "formed by JAX": (CONFIG, "microbatch", 2, (256,), None),
    "formed of factors": (CONFIG, "auto", 2, (256,), None),
    "sequences": (CONFIG, "auto", 1, (2, 128), None),
    "adapters": (CONFIG, "microbatch", 1, (256,), LORA),
    "a tied head": (PRESETS["124M"], "auto", 1, (64,), None),
}


@pytest.mark.parametrize("name", list(TRACED))
def test_products_are_those_that_gdpjax_computes(name):
    """Also where compiled programs do not tell how often a loop goes around."""
    config, strategy, microbatch_size, shape, lora = TRACED[name]
    num_units = 2 * microbatch_size
    program, arguments = clipped_sum(config, strategy, num_units, shape, microbatch_size, lora)
    cost = predicted(config, strategy, num_units, shape, microbatch_size, lora)
    expected = 0.0
    for part in cost.parts:
        if part.name not in ("norms and others", "embedding"):
            expected += part.flops - part.clipping
    assert product_flops(jax.make_jaxpr(program)(*arguments).jaxpr) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_operations_and_memory_are_those_of_compiled_programs(name):
    strategy, microbatch_size, shape, lora = CASES[name]

    # XLA counts the body of a loop once, so operations are counted without loops: over layers and over chunks.
    unrolled = dataclasses.replace(CONFIG, unrolled=True)
    program = compiled(unrolled, strategy, microbatch_size, shape, microbatch_size, lora)
    cost = predicted(CONFIG, strategy, microbatch_size, shape, microbatch_size, lora)
    expected = cost.flops - cost.noise_flops - cost.optimizer_flops
    assert program.cost_analysis()["flops"] == pytest.approx(expected, rel=TOLERANCE)

    # Memory is that of loops.
    program = compiled(CONFIG, strategy, 3 * microbatch_size, shape, microbatch_size, lora)
    cost = predicted(CONFIG, strategy, 3 * microbatch_size, shape, microbatch_size, lora)
    arguments = cost.arguments["parameters"] + cost.arguments.get("frozen parameters", 0)
    assert held_bytes(program) == pytest.approx(arguments + cost.gradient_bytes, rel=TOLERANCE)


@pytest.mark.slow
def test_memory_of_a_whole_step():
    batches = TruncatedPoisson(1000, 2, num_steps=10, capacity=4)
    plan = gdpjax.make_plan(batches, clip=1.0, delta=1e-5, noise_multiplier=1.0)
    loss = functools.partial(sequence_loss, CONFIG)
    training = private_training(plan, loss, optax.adam(1e-3), num_arrays=1, strategy="microbatch", microbatch_size=1)
    state = jax.eval_shape(training.init, param_shapes(CONFIG), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((4, 256), jnp.int32)
    program = training.step_on.lower(state, tokens, is_padding=jax.ShapeDtypeStruct((4,), bool)).compile()
    cost = step_cost(CONFIG, num_units=4, length=256, strategy="microbatch")
    assert held_bytes(program) == pytest.approx(cost.peak_bytes, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_memory_of_a_step_of_a_run(lora):
    """The new state is written in place of the old one, and one is kept; a frozen base is there once."""
    batches = TruncatedPoisson(4, 2, num_steps=2, capacity=4)
    plan = gdpjax.make_plan(batches, clip=1.0, delta=1e-5, noise_multiplier=1.0)
    tuning = Finetuning(CONFIG, plan, lora=lora, strategy="microbatch", microbatch_size=1)
    training = tuning.training()
    initial = jax.eval_shape(tuning.initial, param_shapes(CONFIG), jax.random.key(0))
    state = jax.eval_shape(training.init, initial, jax.random.key(0))
    data = Data(
        (jax.ShapeDtypeStruct((4, 1, 256), jnp.int32), jax.ShapeDtypeStruct((4, 1, 256), jnp.int32)),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    cost = step_cost(CONFIG, num_units=4, length=256, strategy="microbatch", lora=lora, donated=True)
    held = steps_in_place(training.step, state, data).held_bytes(state, data)
    assert held == pytest.approx(cost.peak_bytes, rel=TOLERANCE)


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_the_new_state_is_what_a_step_returns(lora):
    """A frozen base, too: here nothing is donated, so that the program returns a copy of it."""
    plan = gdpjax.make_plan(
        clip=1.0, max_examples=100, expected_batch_size=4, num_steps=2, delta=1e-5, noise_multiplier=1.0
    )
    tuning = Finetuning(CONFIG, plan, lora=lora)
    training = tuning.training()
    initial = jax.eval_shape(tuning.initial, param_shapes(CONFIG), jax.random.key(0))
    state = jax.eval_shape(training.init, initial, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((plan.capacity, 1, 64), jnp.int32)
    is_padding = jax.ShapeDtypeStruct((plan.capacity,), bool)
    after, _ = jax.eval_shape(functools.partial(training.step_on, is_padding=is_padding), state, tokens, tokens)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((after.params, after.opt_state)))
    cost = step_cost(CONFIG, num_units=4, length=64, lora=lora)
    assert cost.update_memory["new state"] == pytest.approx(size, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("124M", 64),
        pytest.param("1B", 128, marks=pytest.mark.slow),
        ("1B", 1024),
        pytest.param("7B", 256, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_held_as_gdpjax_says(name, length):
    config = PRESETS[name]
    cost = step_cost(config, num_units=1, length=length)
    loss = functools.partial(sequence_loss, config)
    tokens = jax.ShapeDtypeStruct((2, length), jnp.int32)
    explanation = gdpjax.explain(loss, param_shapes(config), tokens, microbatch_size=1)
    methods = {}
    for leaf in explanation.leaves:
        path = "/".join(leaf.name.strip("[]'").split("']['"))
        methods[path.removeprefix("layers/").removesuffix("/kernel")] = leaf.method
    for part in cost.parts:
        if part.name == "head" and config.tied_head:
            method = methods["embedding/table"]
        elif part.name == "embedding":
            method = "table rows" if not config.tied_head else None
        else:
            method = methods.get(part.name)
        if method is not None:
            assert part.gradient == method, part.name


def test_parameters_are_counted_once():
    for config in PRESETS.values():
        cost = step_cost(config, num_units=1, length=64)
        assert sum(part.num_params for part in cost.parts) == config.num_params
        assert sum(part.num_trained for part in cost.parts) == config.num_params

    config = PRESETS["1B"]
    lora = LoraConfig(rank=4, targets="query|head")
    cost = step_cost(config, num_units=1, length=64, lora=lora)
    adapters, _ = split_adapters(param_shapes(config, lora))
    assert sum(part.num_trained for part in cost.parts) == sum(x.size for x in jax.tree.leaves(adapters))
    assert adapted_paths(param_shapes(config), lora) == ["head", "layers/attention/query"]


def test_operations_are_six_for_each_weight_and_token():
    """The well-known 6 N D, beside attention and all that is no matrix product."""
    config = PRESETS["1B"]
    cost = step_cost(config, num_units=4, length=128, strategy="microbatch")
    weights = config.num_params - config.vocab_size * config.model_width  # looking up takes no product
    assert cost.model_flops == pytest.approx(6 * weights * 4 * 128, rel=0.05)
    assert cost.flops_per_token * cost.num_tokens == pytest.approx(cost.flops)
    assert cost.mfu(seconds=cost.model_flops / 1e15, device_flops=2e15) == pytest.approx(0.5)
    assert cost.seconds(1e15) == pytest.approx(cost.flops / 1e15)


def test_costs_grow_as_they_should():
    config = PRESETS["124M"]
    cost = functools.partial(step_cost, config, length=256, strategy="microbatch")
    one, two = cost(num_units=1), cost(num_units=2)
    fixed = one.noise_flops + one.optimizer_flops
    np.testing.assert_allclose(two.flops - fixed, 2 * (one.flops - fixed))
    assert one.peak_bytes == two.peak_bytes
    assert cost(num_units=2, microbatch_size=2).gradient_bytes > two.gradient_bytes
    state_bytes = sum(two.arguments.values())
    assert cost(num_units=2, donated=True).peak_bytes < two.peak_bytes + state_bytes

    assert one.fits(one.peak_bytes)
    assert not one.fits(one.peak_bytes - 1)

    lora = cost(num_units=2, lora=LORA)
    assert lora.peak_bytes < two.peak_bytes / 2
    assert lora.noise_flops < two.noise_flops / 100


def test_the_table_has_all_parts():
    text = str(step_cost(PRESETS["124M"], num_units=8, length=256))
    for word in ("feed_forward/gate", "scores", "noise", "optimizer", "unit gradients", "peak"):
        assert word in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (dict(num_units=0), "num_units"),
        (dict(length=1.5), "length"),
        (dict(strategy="vmap"), "strategy"),
        (dict(frozen_dtype="int8"), "frozen_dtype"),
        (dict(optimizer_slots=-1), "optimizer_slots"),
    ],
)
def test_what_is_refused(change, expected):
    arguments = {"num_units": 1, "length": 8, **change}
    with pytest.raises(UserError, match=expected):
        step_cost(PRESETS["tiny"], **arguments)
    with pytest.raises(UserError, match="seconds"):
        step_cost(PRESETS["tiny"], num_units=1, length=8).mfu(0.0, 1.0)
