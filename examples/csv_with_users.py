"""A table with several rows per user and with missing cells: a model that is private for each USER.

It shows how rows become users (`group_by_user`, a plan with unit="user"), and how missing cells are filled without
looking at the data: columns are scaled by public limits, a missing cell becomes 0, and a further column marks it. It
prints the accuracy on a table of other users, which is taken as public, and the privacy statement.

    python examples/csv_with_users.py                            # writes two made-up tables, and uses them
    python examples/csv_with_users.py private.csv public.csv     # columns: user, age, minutes, visits, stays
"""

import csv
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gdpjax

# What a column can be at all. A mean or a maximum of the private table would be a release of its own.
LIMITS = {"age": (0.0, 100.0), "minutes": (0.0, 240.0), "visits": (0.0, 30.0)}
MAX_PER_USER = 4  # rows used of one user; where there are more, a random choice


def write_made_up_table(path, num_users, seed):
    draw = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", *LIMITS, "stays"])
        for user in range(num_users):
            stays = int(draw.integers(2))
            for _ in range(draw.integers(1, 7)):
                cells = draw.normal([45, 80 + 60 * stays, 8 + 8 * stays], [15, 40, 4])
                writer.writerow([f"u{user}", *[f"{cell:.1f}" if draw.random() > 0.2 else "" for cell in cells], stays])


def read_table(path):
    """Return users [rows], features [rows, 6] and labels [rows]; each row is read by itself."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["stays"] != ""]
    cells = np.array([[float(row[name] or "nan") for name in LIMITS] for row in rows], np.float32)
    low, high = np.array(list(LIMITS.values()), np.float32).T
    scaled = np.clip(2 * (cells - low) / (high - low) - 1, -1, 1)
    x = np.concatenate([np.nan_to_num(scaled), np.isnan(cells)], axis=1, dtype=np.float32)
    return [row["user"] for row in rows], x, np.array([row["stays"] for row in rows], np.float32)


def loss_fn(params, x, y, is_padding):  # ONE user: x[MAX_PER_USER, 6]
    losses = optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"], y)
    return jnp.where(is_padding, 0, losses).sum() / jnp.maximum(1, (~is_padding).sum())


def main(private_csv=None, public_csv=None):
    if private_csv is None:
        folder = pathlib.Path(tempfile.mkdtemp())
        private_csv, public_csv = folder / "private.csv", folder / "public.csv"
        write_made_up_table(private_csv, num_users=900, seed=0)
        write_made_up_table(public_csv, num_users=200, seed=1)

    plan = gdpjax.make_plan(
        clip=1.0,
        max_examples=1000,  # of users: the largest number is public, the actual one is private
        expected_batch_size=100,
        epochs=10,
        delta=1e-5,
        epsilon=2.0,
        unit="user",
        tuned="nothing on these data",
    )
    users, x, y = read_table(private_csv)
    # Not secret, as nothing else is drawn from it; a constant, so that another start of a run keeps the same rows.
    key = jax.random.key(7)
    (x, y), is_padding = gdpjax.training.group_by_user(users, x, y, max_per_user=MAX_PER_USER, key=key)
    training = gdpjax.training.private_training(plan, loss_fn, optax.adam(0.05), num_arrays=3)
    state = training.init({"w": jnp.zeros(6), "b": jnp.zeros(())}, gdpjax.fresh_key())
    state, _ = training.run_steps(state, training.place(x, y, is_padding), plan.num_steps)

    _, x, y = read_table(public_csv)
    accuracy = float(np.mean((x @ state.params["w"] + state.params["b"] > 0) == y))
    print(f"accuracy on {len(y)} rows of the public table: {accuracy:.3f}\n")
    print(plan.statement())
    return accuracy, plan


if __name__ == "__main__":
    main(*sys.argv[1:])
