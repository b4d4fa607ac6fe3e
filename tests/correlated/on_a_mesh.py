"""Print, as JSON, where buffers lie on a mesh of eight devices and what a compiled step sends between them."""

import json
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax.correlated import BandedInverse, BandedToeplitz, BufferedToeplitz

STRATEGIES = {
    "banded_toeplitz": BandedToeplitz([0.8, 0.5, 0.3]),
    "banded_inverse": BandedInverse([1.0, -0.5, -0.2], memory="buffer"),
    "buffered": BufferedToeplitz([0.99, 0.5], [0.3, 0.2]),
}
COMMUNICATION = re.compile(r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(")


def main() -> None:
    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    params = jax.device_put(jnp.zeros((16, 3)), sharding)
    report = {}
    for name, strategy in STRATEGIES.items():
        state = strategy.init(params)

        def advance(step, drawn, state, strategy=strategy):
            return strategy.next(step, lambda _: drawn, state)

        program = jax.jit(advance).lower(1, params, state).compile()
        report[name] = {
            "spec": list(state.sharding.spec),
            "communication": COMMUNICATION.findall(program.as_text()),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
