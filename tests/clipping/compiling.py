"""How clipped sums are compiled where their optimisation is not what is tested."""

import jax


def fast(function):
    """Compile as a whole without optimisation: compiling is nearly all the time that these tests take."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
