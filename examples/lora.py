"""A small transformer, trained on public text without noise, and a LoRA adapter trained on private text with noise.

It shows how a part of a module is trained privately (wrt=...): the base is frozen, stays out of the clip norm and gets
no noise. "Text" is made up here: the public one takes steps of 1 and 2 letters, the private one, a row per person, of 1
and 3. It prints the loss for a letter, before and after, on held-out text of the private kind that is taken as public,
the number of trained weights, whether the base is still the same, and the privacy statement.

    python examples/lora.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gdpjax

LETTERS, LENGTH, WIDTH = 16, 24, 32
ADAPTER = nnx.LoRAParam
BASE = nnx.All(nnx.Param, nnx.Not(ADAPTER))


class Transformer(nnx.Module):  # one block; its feed-forward layer has adapters of rank 4
    def __init__(self, rngs):
        self.letters = nnx.Embed(LETTERS, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.first_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.second_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.LoRALinear(WIDTH, 4 * WIDTH, lora_rank=4, rngs=rngs)
        self.down = nnx.LoRALinear(4 * WIDTH, WIDTH, lora_rank=4, rngs=rngs)
        self.last = nnx.Linear(WIDTH, LETTERS, rngs=rngs)

    def __call__(self, text):  # int[LENGTH]
        x = self.letters(text) + self.places(jnp.arange(len(text)))
        x += self.attention(self.first_norm(x), mask=nnx.make_causal_mask(text))
        x += self.down(nnx.relu(self.up(self.second_norm(x))))
        return self.last(x)


def loss_fn(model, text):  # ONE text
    return optax.softmax_cross_entropy_with_integer_labels(model(text)[:-1], text[1:]).mean()


@nnx.jit
def mean_loss(model, texts):
    return nnx.vmap(loss_fn, in_axes=(None, 0))(model, texts).mean()


def made_up_text(num_texts, steps, seed):  # int[num_texts, LENGTH]
    draw = np.random.default_rng(seed)
    start = draw.integers(LETTERS, size=(num_texts, 1))
    walk = draw.choice(steps, size=(num_texts, LENGTH - 1)).cumsum(axis=1)
    return (np.concatenate([start, start + walk], axis=1) % LETTERS).astype(np.int32)


@nnx.jit
def public_step(model, optimizer, texts):
    optimizer.update(model, nnx.grad(mean_loss, argnums=nnx.DiffState(0, BASE))(model, texts))


def main(public_steps=200, epochs=10):
    model = Transformer(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=BASE)
    for step in range(public_steps):
        public_step(model, optimizer, made_up_text(64, steps=[1, 2], seed=step))

    private_text = made_up_text(1800, steps=[1, 3], seed=1_000_001)
    held_out = made_up_text(200, steps=[1, 3], seed=1_000_002)
    before, base = float(mean_loss(model, held_out)), jax.tree.leaves(nnx.state(model, BASE))

    batches = gdpjax.sampling.Poisson(num_examples=2000, expected_batch_size=200, epochs=epochs)  # at most 2000 persons
    plan = gdpjax.make_plan(batches, clip=1.0, delta=1e-5, epsilon=3.0, unit="person", tuned="nothing in this run")
    training = gdpjax.nnx.private_training(plan, model, loss_fn, optax.adam(1e-2), wrt=ADAPTER, num_arrays=1)
    state = training.init(model, gdpjax.fresh_key())
    state, _ = training.run_steps(state, training.place(private_text), plan.num_steps)
    nnx.update(model, state.params)

    after = float(mean_loss(model, held_out))
    is_same = all(map(np.array_equal, base, jax.tree.leaves(nnx.state(model, BASE))))
    trained, frozen = (optax.tree.size(nnx.state(model, kind)) for kind in (ADAPTER, BASE))
    print(f"loss for a letter of held-out text, taken as public: {before:.3f} before, {after:.3f} after")
    print(f"trained weights: {trained}, frozen: {frozen}; the base is the same: {is_same}\n")
    print(plan.statement())
    return before, after, plan


if __name__ == "__main__":
    main()
