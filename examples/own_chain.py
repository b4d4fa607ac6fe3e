"""A private optax chain in a training loop of your own, with batches that a data loader reads from a file.

It shows `clipped_grad`, `privatize` before AdamW with a schedule, and `batches`, which draws the rows, fixes the shape
of a step and is accounted for: the loader reads the rows that it names, and does not shuffle by itself. It prints the
accuracy on public rows, and the statement of the ledger that the optimizer's state kept.

    python examples/own_chain.py
"""

import concurrent.futures
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gdpjax


def write_made_up_rows(path, num_rows):  # float32[num_rows, 21]: 20 features, then the label
    x = np.random.default_rng(0).normal(size=(num_rows, 20))
    y = x[:, :5].sum(axis=1) > 0
    np.save(path, np.column_stack([x, y]).astype(np.float32))


def loader(host_batches, rows):
    """Yield (x, y, is_padding) of each step, read in a thread while the step before it runs.

    ``host_batches[t]`` is (row numbers, is_padding) of step t. It can be pickled, so a loader with workers takes it as
    its source: grain.MapDataset.source(host_batches).map(read_rows).
    """
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        coming = thread.submit(host_batches.take, 0, rows)
        for t in range(len(host_batches)):
            batch, is_padding = coming.result()
            if t + 1 < len(host_batches):
                coming = thread.submit(host_batches.take, t + 1, rows)
            yield batch[:, :-1], batch[:, -1].astype(np.int32), is_padding


def loss_fn(params, x, y):  # ONE example
    hidden = jnp.tanh(x @ params["in"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], y)


def main(num_steps=300, delta=1e-6):
    path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    write_made_up_rows(path, num_rows=21_000)
    rows = np.load(path, mmap_mode="r")  # the file may be larger than memory
    private, public = rows[:20_000], rows[20_000:]

    # One key for the run; batches and noise have their own, both made from it.
    sample_key, noise_key, init_key = jax.random.split(gdpjax.fresh_key(), 3)
    batches = gdpjax.sampling.Poisson(num_examples=20_000, expected_batch_size=256, num_steps=num_steps)
    # The plan finds the noise for epsilon 1. Its capacity, and so the shape of a step, is that of the batches.
    plan = gdpjax.make_plan(batches, clip=1.0, delta=delta, epsilon=1.0)

    grad_fn = gdpjax.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, num_steps // 10, num_steps)
    tx = optax.chain(
        # announced: a batch above the capacity stops the loader with an error, and so the loop.
        gdpjax.privatize(
            grad_fn, noise_multiplier=plan.noise_multiplier, batches=batches, key=noise_key, announced=True
        ),
        optax.adamw(schedule),
    )

    @jax.jit
    def step(params, opt_state, x, y, is_padding):
        clipped_sum = grad_fn(params, x, y, is_padding=is_padding)  # of a batch padded to one static size
        updates, opt_state = tx.update(clipped_sum, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = {"in": jax.random.normal(init_key, (20, 32)) / 20**0.5, "out": jnp.zeros((32, 2))}
    opt_state = tx.init(params)
    for x, y, is_padding in loader(batches.on_host(sample_key), private):
        params, opt_state = step(params, opt_state, x, y, is_padding)

    logits = jnp.tanh(public[:, :-1] @ params["in"]) @ params["out"]
    accuracy = float(np.mean(logits.argmax(axis=1) == public[:, -1]))
    print(f"accuracy on {len(public)} public rows: {accuracy:.3f}\n")
    ledger = gdpjax.ledger_of(opt_state)
    print(ledger.statement(unit="row", delta=delta))
    return accuracy, ledger


if __name__ == "__main__":
    main()
