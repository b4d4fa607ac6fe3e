"""The model of the memory, held to what XLA says of compiled programs; products, to those that gdpjax computes."""

import functools

import jax
import jax.numpy as jnp
import pytest

import gdpjax
from experiments import cli
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.cost import largest_microbatch, step_memory
from experiments.language.cost_table import unit_flops
from experiments.language.finetuning import Finetuning
from experiments.language.lora import LoraConfig, init_adapters, joined
from experiments.language.model import param_shapes, sequence_loss
from gdpjax.clipping import product_flops
from gdpjax.sampling import TruncatedPoisson
from gdpjax.training import Data, choose_microbatch

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


def compiled(*args):
    """The program of a clipped sum; nothing is executed."""
    clipped, shapes = clipped_sum(*args)
    return jax.jit(lambda *args: clipped(*args)).lower(*shapes).compile()


def predicted(config, strategy, num_units, shape, microbatch_size, lora=None):
    """The memory of the same."""
    *num_sequences, length = shape
    return step_memory(
        config,
        num_units=num_units,
        length=length,
        num_sequences=num_sequences[0] if num_sequences else 1,
        microbatch_size=microbatch_size,
        strategy=strategy,
        lora=lora,
    )


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
    config, strategy, microbatch_size, shape, lora = TRACED[name]
    num_units = 2 * microbatch_size
    program, arguments = clipped_sum(config, strategy, num_units, shape, microbatch_size, lora)
    *num_sequences, length = shape
    expected = num_units * unit_flops(config, lora, *(num_sequences or [1]), length)
    assert product_flops(jax.make_jaxpr(program)(*arguments)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_memory_is_that_of_compiled_programs(name):
    strategy, microbatch_size, shape, lora = CASES[name]

    program = compiled(CONFIG, strategy, 3 * microbatch_size, shape, microbatch_size, lora)
    memory = predicted(CONFIG, strategy, 3 * microbatch_size, shape, microbatch_size, lora)
    arguments = memory.arguments["parameters"] + memory.arguments.get("frozen parameters", 0)
    assert held_bytes(program) == pytest.approx(arguments + sum(memory.gradients.values()), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_memory_of_a_step_of_a_run(lora):
    """The new state is written in place of the old one, and one is kept; a frozen base is there once."""
    batches = TruncatedPoisson(4, 2, num_steps=2, capacity=4)
    plan = gdpjax.make_plan(batches, clip=1.0, delta=1e-5, noise_multiplier=1.0)
    tuning = Finetuning(CONFIG, plan, lora=lora, strategy="microbatch", microbatch_size=1)
    training = tuning.training()
    initial = jax.eval_shape(tuning.initial, param_shapes(CONFIG), jax.random.key(0))
    data = Data(
        (jax.ShapeDtypeStruct((4, 1, 256), jnp.int32), jax.ShapeDtypeStruct((4, 1, 256), jnp.int32)),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    memory = step_memory(CONFIG, num_units=4, length=256, strategy="microbatch", lora=lora)
    _, held = choose_microbatch(lambda rows: training, initial, data, memory_bytes=1e12)
    assert held[1] == pytest.approx(memory.peak_bytes, rel=TOLERANCE)


def test_parameters_are_counted_once():
    for config in PRESETS.values():
        assert sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config))) == config.num_params

    config = PRESETS["1B"]
    lora = LoraConfig(rank=4, targets="query|head")
    memory = step_memory(config, num_units=1, length=64, lora=lora)
    adapters = jax.eval_shape(functools.partial(init_adapters, param_shapes(config), lora), jax.random.key(0))
    assert memory.num_trained == sum(x.size for x in jax.tree.leaves(adapters))


def test_operations_are_six_for_each_weight_and_token():
    """The well-known 6 N D, and up to 2 N D for what is computed again."""
    config = PRESETS["1B"]
    weights = config.num_params - config.vocab_size * config.model_width  # looking up takes no product
    assert 6 < unit_flops(config, None, 1, 64) / (weights * 64) < 8


@pytest.mark.parametrize("strategy", ["auto", "microbatch"])
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("name", ["124M", "1B"])
def test_the_largest_microbatch_fits_and_one_more_unit_does_not(name, lora, strategy):
    options = dict(num_units=1024, length=512, strategy=strategy, lora=lora)
    size = largest_microbatch(PRESETS[name], 60e9, **options)
    assert 1 <= size < 1024
    assert step_memory(PRESETS[name], microbatch_size=size, **options).peak_bytes <= 60e9
    assert step_memory(PRESETS[name], microbatch_size=size + 1, **options).peak_bytes > 60e9


def test_the_command_prints_what_the_model_of_the_costs_says(capsys):
    """The table in docs/language.md is checked by the tests of the documentation."""
    assert cli.main(["language-cost", "--preset", "7B", "--method", "full"]) == 0
    text = capsys.readouterr().out
    assert "predicted, not measured" in text
    (largest,) = [line for line in text.splitlines() if line.startswith("largest microbatch")]
    assert largest.split()[-2:] == ["none", "none"]
