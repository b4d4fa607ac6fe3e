"""The cost model, held to what XLA says of programs that it compiled, and to what gdpjax says that it will do."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

import gdpjax
from experiments import cli
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.cost import largest_microbatch, step_cost
from experiments.language.finetuning import Finetuning
from experiments.language.lora import LoraConfig, init_adapters, joined
from experiments.language.model import param_shapes, sequence_loss
from gdpjax.sampling import TruncatedPoisson
from gdpjax.training import Data
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
        base = param_shapes(config)
        params = jax.eval_shape(functools.partial(init_adapters, base, lora), jax.random.key(0))
        shared = (jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), base),)
        options = {"shared_argnums": 2}

        def loss(params, tokens, base):
            return sequence_loss(config, joined(params, base), tokens, lora=lora)

    clipped = gdpjax.clipped_grad(loss, 1.0, strategy=strategy, microbatch_size=microbatch_size, **options)
    return clipped, (params, tokens, *shared)


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


def test_parameters_are_counted_once():
    for config in PRESETS.values():
        cost = step_cost(config, num_units=1, length=64)
        assert sum(part.num_params for part in cost.parts) == config.num_params
        assert sum(part.num_trained for part in cost.parts) == config.num_params

    config = PRESETS["1B"]
    lora = LoraConfig(rank=4, targets="query|head")
    cost = step_cost(config, num_units=1, length=64, lora=lora)
    adapters = jax.eval_shape(functools.partial(init_adapters, param_shapes(config), lora), jax.random.key(0))
    assert sum(part.num_trained for part in cost.parts) == sum(x.size for x in jax.tree.leaves(adapters))


@pytest.mark.parametrize("strategy", ["auto", "microbatch"])
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("name", ["124M", "1B"])
def test_the_largest_microbatch_fits_and_one_more_unit_does_not(name, lora, strategy):
    options = dict(num_units=1024, length=512, strategy=strategy, lora=lora)
    size = largest_microbatch(PRESETS[name], 40e9, **options)
    assert 1 <= size < 1024
    assert step_cost(PRESETS[name], microbatch_size=size, **options).peak_bytes <= 40e9
    assert step_cost(PRESETS[name], microbatch_size=size + 1, **options).peak_bytes > 40e9


def test_the_command_prints_what_the_model_of_the_costs_says(capsys):
    """The table in docs/language.md is checked by the tests of the documentation."""
    assert cli.main(["language-cost", "--preset", "7B", "--method", "full"]) == 0
    text = capsys.readouterr().out
    assert "predicted, not measured" in text
    (largest,) = [line for line in text.splitlines() if line.startswith("largest microbatch")]
    assert largest.split()[-2:] == ["none", "none"]
