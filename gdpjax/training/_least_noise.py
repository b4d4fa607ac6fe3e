"""The least noise that meets a privacy target, for plans and for what is taken from a budget."""

from collections.abc import Callable

from gdpjax._core import roots

LEAST, MOST = 1e-2, 1e6
_NOISE = roots.Axis(MOST, LEAST)


def least_noise(upper: Callable[[float], float], target: float, name: str) -> roots.Edge:
    """Return the edge of "``upper`` of the noise multiplier is at most ``target``".

    Args:
      upper: an upper end that decreases in the noise multiplier.
      target: above 0.
      name: what the target is called in an error.

    Raises:
      ValueError: no noise meets the target, or the least one does.
    """
    if upper(MOST) > target:
        raise ValueError(f"the target {name} cannot be met: even noise_multiplier = {MOST:g} exceeds it")
    # From 1 on, so that the slow ends of the accountant's range are only visited if they must be.
    edge = roots.find_edge(_NOISE, upper, target)
    if edge.holds == LEAST:
        raise ValueError(f"the target {name} asks for nothing: even noise_multiplier = {LEAST} meets it")
    return edge
