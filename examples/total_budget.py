"""One total epsilon for a histogram, a count and a training on the same data.

It shows `gdpjax.Budget`: each release is charged before it is made, all of them compose in one computation, the
training gets the noise for what is left, and what does not fit is refused. It prints the releases and the statement of
the total.

    python examples/total_budget.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gdpjax
from gdpjax.mechanisms import LaplaceMechanism

AGE_GROUPS = 8  # of ten years each, public


def made_up_patients(num_patients, seed):
    """Return ages in [0, 80), features [patients, 4] and labels [patients]."""
    draw = np.random.default_rng(seed)
    ages = draw.uniform(0, 80, size=num_patients)
    x = draw.normal(size=(num_patients, 4)).astype(np.float32)
    x[:, 0] += (ages - 40) / 40
    return ages, x, (x.sum(axis=1) > 0).astype(np.float32)


def loss_fn(params, x, y):  # ONE patient
    return optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"], y)


def main(path=None):
    """Spend a budget; with ``path`` it is a file, which other processes and later runs share."""
    ages, x, y = made_up_patients(4500, seed=0)
    budget = gdpjax.Budget(epsilon=1.0, delta=1e-6, unit="patient", path=path)
    histogram_key, count_key, run_key = jax.random.split(gdpjax.fresh_key(), 3)

    # A patient is in one group, so adding one moves the histogram by 1 in the l2 norm.
    mechanism = budget.rest(0.2).gaussian()  # by itself it has epsilon 0.2
    budget.spend(mechanism)
    counts = np.bincount((ages // 10).astype(int), minlength=AGE_GROUPS)
    noisy_counts = mechanism.sample(histogram_key, counts, sensitivity=1.0)
    print("patients by age group:", *np.round(noisy_counts).astype(int))

    mechanism = LaplaceMechanism(0.05)  # its epsilon
    budget.spend(mechanism)
    num_ill = float(mechanism.sample(count_key, np.sum(y), sensitivity=1.0))
    print(f"ill patients: {num_ill:.0f}")

    # The least noise with which the training fits into what is left. Delta and unit are the budget's.
    plan = gdpjax.make_plan(
        clip=1.0,
        max_examples=5000,
        expected_batch_size=250,
        epochs=10,
        epsilon=budget.rest(),
        tuned="nothing on these data",
    )
    budget.spend(plan)
    training = gdpjax.training.private_training(plan, loss_fn, optax.adam(0.05))
    state = training.init({"w": jnp.zeros(4), "b": jnp.zeros(())}, run_key)
    state, _ = training.run_steps(state, training.place(x, y), plan.num_steps)

    _, x_public, y_public = made_up_patients(1000, seed=1)
    accuracy = float(np.mean((x_public @ state.params["w"] + state.params["b"] > 0) == y_public))
    print(f"accuracy on 1000 public patients: {accuracy:.3f}")
    print(f"epsilon of the training alone {plan.epsilon_bounds():.3f}, of all {budget.epsilon_bounds():.3f}")

    try:
        budget.spend(LaplaceMechanism(0.5))
    except ValueError as refusal:
        print(f"another count is refused: {refusal}")
    print()
    print(budget.statement())
    return accuracy, budget


if __name__ == "__main__":
    main()
