"""One private training over all devices that there are.

It shows how the rows of a batch are spread over a mesh, and a wide layer with its optimizer's state, too; the noise is
a function of its key alone, and is added once, however many devices there are. It prints where the weights lie, the
accuracy on public rows, and the privacy statement.

On GPUs or TPUs nothing is to be set. A CPU can be made to look like several devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/several_devices.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax

WIDTH = 256  # a multiple of the number of devices


def made_up_rows(num_rows, seed):
    """Return features [num_rows, 16] and labels [num_rows]."""
    x = np.random.default_rng(seed).normal(size=(num_rows, 16)).astype(np.float32)
    return x, (x[:, :4].sum(axis=1) > 0).astype(np.int32)


def predict(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


def loss_fn(params, x, y):  # ONE example
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x), y)


def main(epochs=10):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    on_each = NamedSharding(mesh, PartitionSpec())  # a copy on each device
    columns = NamedSharding(mesh, PartitionSpec(None, "data"))
    rows = NamedSharding(mesh, PartitionSpec("data"))

    plan = gdpjax.make_plan(
        clip=1.0,
        max_examples=5000,
        expected_batch_size=500,
        epochs=epochs,
        delta=1e-6,
        epsilon=4.0,
        tuned="nothing on these data",
    )
    training = gdpjax.training.private_training(plan, loss_fn, optax.adam(0.01))

    # Each device holds the data, and computes the gradients of its part of a batch.
    x, y = made_up_rows(4800, seed=0)
    data = training.place(x, y, sharding=on_each)

    # Weights may be copies, or spread over the devices; the state of the optimizer follows.
    first, second = jax.random.split(jax.random.key(0))  # public: of the initial weights only
    params = {
        "in": jax.device_put(jax.random.normal(first, (16, WIDTH)) / 4, columns),
        "out": jax.device_put(jax.random.normal(second, (WIDTH, 2)) / WIDTH**0.5, rows),
    }
    state = training.init(params, gdpjax.fresh_key())
    state, _ = training.run_steps(state, data, plan.num_steps)

    weights = state.params["in"]
    parts = sorted({str(shard.data.shape) for shard in weights.addressable_shards})
    print(f"{jax.device_count()} devices; of the weights {weights.shape} each holds {', '.join(parts)}")
    x_public, y_public = made_up_rows(1000, seed=1)
    accuracy = float(np.mean(predict(state.params, x_public).argmax(axis=1) == y_public))
    print(f"accuracy on {len(x_public)} public rows: {accuracy:.3f}\n")
    print(plan.statement())
    return accuracy, plan, state.params


if __name__ == "__main__":
    main()
