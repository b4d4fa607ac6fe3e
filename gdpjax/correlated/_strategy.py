"""The one interface of all strategies of correlated noise, and what those with coefficients share.

A strategy is an invertible lower-triangular matrix C. The noise of step t is

    w_t = sum_{s <= t} Cinv[t, s] z_s,          z_s independent standard normal,

so that later steps take back noise of earlier ones. If one example changes g_t by at most Delta, a run that releases
g_t + sigma Delta sens(C) w_t is one Gaussian mechanism with mu = 1 / sigma (docs/theory/matrix_mechanism.md has the
proof). Use:

    strategy = bisr(num_bands=8)
    scale = sigma * clip_norm * strategy.sensitivity(num_steps, MinSep(4, 100))
    state = strategy.init(params)
    for step in range(num_steps):
        noise, state = strategy.next(step, draw, state)     # add scale * noise to the clipped sum of this step

``draw(step)`` is the caller's: it gives z_step, a pytree like ``params``, and gives the same numbers whenever it is
called for that step. With draws that are made again from a key, a strategy may keep nothing between steps.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gdpjax._core.arguments import check_array, check_choice, check_count
from gdpjax._core.checks import REAL, check, is_traced
from gdpjax._core.precision import narrow_on_host
from gdpjax._core.shown import shown
from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array, PyTree, Scalar, Whole
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._sensitivity import toeplitz_attained, toeplitz_sensitivity
from gdpjax.correlated._series import CertifiedSeries
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload

Draw = Callable[[Array], PyTree]
"""Maps a step s to its draw z_s, standard normal; the same s always gives the same draw, and s may be traced."""


class AbstractNoiseStrategy(abc.ABC):
    """A lower-triangular matrix C, as a pytree of its coefficients.

    The coefficients may be traced, so that a sweep over them is one vmapped program. `sensitivity` and `error` are then
    run on the host, from the coefficients as float32, when the program runs. They have no gradient.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or is_traced((self, other)):
            return self is other
        return self._content() == other._content()  # pyright: ignore[reportAttributeAccessIssue]

    def __hash__(self) -> int:
        return id(self) if is_traced(self) else hash(self._content())

    def _content(self) -> tuple[Any, ...]:
        """Return the class and the coefficients as numbers that can be compared."""
        leaves, structure = jax.tree.flatten(self)
        return type(self), structure, tuple(np.asarray(leaf, np.float64).tobytes() for leaf in leaves)

    @abc.abstractmethod
    def sensitivity(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return max |C x|_2 over x with rows |x_t| <= 1 on steps that the participation allows, and 0 elsewhere.

        Neighbouring data sets differ by one example that is added, removed, or replaced by a null one (the relations
        ADD_OR_REMOVE_ONE and REPLACE_SPECIAL). For REPLACE_ONE the sensitivity doubles.

        Args:
            num_steps: n, the number of steps of the run, or of a longer one that it is the beginning of.
            participation: in which steps an example may take part.

        Returns:
            A certified upper bound, a float rounded upwards; the class says where it is exact. For traced coefficients
            a float32, rounded upwards, and NaN where they are wrong.

        Raises:
            ValueError: wrong arguments, or coefficients that grow beyond float64.
        """

    @abc.abstractmethod
    def attained(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return |C x|_2 for an x that the participation allows: a lower bound on the sensitivity.

        Most strategies take the example that takes part as often and as early as it may, with ones for x. It is below
        the sensitivity by construction; where the two agree, the sensitivity is exact. Arguments and errors are those
        of `sensitivity`. It is right to about n 1e-16, or lower: differences of long sums are rounded downwards.
        """

    @abc.abstractmethod
    def error(
        self,
        num_steps: int,
        error: str = "mean",
        *,
        workload: AbstractWorkload = PREFIX_SUM,
    ) -> float:
        """Return the squared error of the workload's outputs for z of unit variance, per coordinate.

        Output t has the squared error sum_s (A C^-1)[t, s]^2. With noise multiplier sigma it is multiplied by
        (sigma clip_norm sens(C))^2, so strategies are compared by sensitivity^2 times error.

        Args:
            num_steps: n.
            error: "mean" or "max" over the n outputs.
            workload: A; the prefix sums unless it is given.

        Returns:
            A float whose rounding error is about n 1e-16 of it; a float32 for traced coefficients.

        Raises:
            ValueError: a number outside its range, or an error that is not "mean" or "max".
        """

    @abc.abstractmethod
    def init(self, like: PyTree) -> PyTree:
        """Return the state before step 0 for noise of the shapes in ``like``, arrays or ShapeDtypeStructs.

        A state that is not empty is secret: it holds past noise, which would uncover the sums it was added to. Keep
        it in no output, and in checkpoints only under the protection that the key has.
        """

    @abc.abstractmethod
    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return the noise w_step, float32 or wider, and the next state.

        Args:
            step: the number of the step from 0, traced or not; one more than in the call before.
            draw: gives z_s for any s from 0 to step, the same one every time.
            state: what `init` or the call before returned.
        """


class CoefficientStrategy(AbstractNoiseStrategy):
    """A strategy whose numbers NumPy computes from its coefficients.

    Traced coefficients are sent to the host when the program runs. A result is then a float32, rounded to the side that
    keeps its standing, and NaN where known coefficients would raise ValueError.
    """

    _classes: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "next" in vars(cls):
            cls._classes[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the class and the fields as JSON values.

        >>> from gdpjax.correlated import BandedToeplitz
        >>> BandedToeplitz([1.0, 0.5]).to_dict()
        {'type': 'BandedToeplitz', 'coefficients': [1.0, 0.5]}
        """
        document: dict[str, Any] = {"type": type(self).__name__}
        for name, value in vars(self).items():
            document[name] = np.asarray(value, np.float64).tolist() if hasattr(value, "dtype") else value
        return document

    @staticmethod
    def from_dict(saved: Any) -> "CoefficientStrategy":
        """Return the strategy that `to_dict` made ``saved`` of; ValueError or TypeError for anything else."""
        fields = dict(saved) if isinstance(saved, dict) else {}
        name, classes = fields.pop("type", None), CoefficientStrategy._classes
        if not isinstance(name, str) or name not in classes:
            raise ValueError(f"expected a dictionary whose type is one of {', '.join(classes)}, got {shown(saved)}")
        return classes[name](**fields)

    @abc.abstractmethod
    def _bound(self, num_steps: int, participation: AbstractParticipation) -> float:
        """Return an upper bound on the sensitivity."""

    @abc.abstractmethod
    def _attained(self, num_steps: int, participation: AbstractParticipation) -> float:
        """Return a lower bound on the sensitivity."""

    @abc.abstractmethod
    def _error(self, num_steps: int, error: str, workload: AbstractWorkload) -> float:
        """Return the mean or the largest squared error."""

    def sensitivity(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return a certified upper bound on the sensitivity; see `AbstractNoiseStrategy.sensitivity`."""
        num_steps = self._checked_steps(num_steps)
        check_participation(participation).limits(num_steps)
        return self._on_host(lambda strategy: strategy._bound(num_steps, participation), "up")

    def attained(self, num_steps: int, participation: AbstractParticipation) -> Scalar:
        """Return |C x| for an x of ones at allowed steps: a lower bound on the sensitivity."""
        num_steps = self._checked_steps(num_steps)
        check_participation(participation)
        return self._on_host(lambda strategy: strategy._attained(num_steps, participation), "down")

    def error(
        self,
        num_steps: int,
        error: str = "mean",
        *,
        workload: AbstractWorkload = PREFIX_SUM,
    ) -> Scalar:
        """Return the mean or largest squared error of the workload; see `AbstractNoiseStrategy.error`."""
        num_steps = self._checked_steps(num_steps)
        check_error(error)
        check_workload(workload)
        return self._on_host(lambda strategy: strategy._error(num_steps, error, workload), "nearest")

    def _checked_steps(self, num_steps: int) -> int:
        return check_count("num_steps", num_steps)

    def _on_host(self, compute: Callable[..., Any], rounding: str, *numbers: Any, shape: tuple[int, ...] = ()) -> Any:
        """Return compute(strategy, *numbers), of this shape, rounded "up", "down" or to the "nearest"."""
        if not is_traced(self):
            # Rebuild the strategy so that its checks run: they were skipped if it was made by vmap or tree functions.
            return compute(dataclasses.replace(self), *numbers)  # pyright: ignore[reportArgumentType]
        leaves, structure = jax.tree.flatten(self)

        # What is known stays as it is: sent through the program it would be rounded to float32, and its noise is not.
        traced = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]

        def on_host(numbers: tuple[Any, ...], *arrays: Any) -> np.ndarray:
            mixed = dict(enumerate(leaves)) | dict(zip(traced, arrays, strict=True))
            wide = [np.asarray(leaf, np.float64) for leaf in mixed.values()]
            unchecked = jax.tree.unflatten(structure, wide)
            try:
                with np.errstate(all="ignore"):
                    value = compute(dataclasses.replace(unchecked), *numbers)
            except ValueError:
                value = np.full(shape, math.nan)
            return narrow_on_host(np.asarray(value), rounding)

        result_type = jax.ShapeDtypeStruct(shape, jnp.float32)
        arrays = [leaves[i] for i in traced]
        return jax.pure_callback(on_host, result_type, numbers, *arrays, vmap_method="sequential")


class ToeplitzStrategy(CoefficientStrategy):
    """A strategy whose C is lower-triangular and Toeplitz.

    C is given by its first column c, and C^-1 is the Toeplitz matrix of the power series 1 / c(x). The sensitivity is
    exact, up to a relative 1e-9, if the coefficients of C do not increase and are not negative, if C has no more bands
    than participations are steps apart, and for a single participation.
    """

    @abc.abstractmethod
    def column(self, num_steps: int) -> CertifiedSeries:
        """Return the first column of C, each coefficient with a bound on its rounding error."""

    @abc.abstractmethod
    def inverse_column(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of C^-1, float64 of shape [num_steps]."""

    def _bound(self, num_steps: int, participation: AbstractParticipation) -> float:
        return toeplitz_sensitivity(self.column(num_steps), participation)

    def _attained(self, num_steps: int, participation: AbstractParticipation) -> float:
        return toeplitz_attained(self.column(num_steps), participation)

    def _error(self, num_steps: int, error: str, workload: AbstractWorkload) -> float:
        # With h the first column of A C^-1 the squared error of output t is h_0^2 + ... + h_t^2.
        squares = workload.apply(self.inverse_column(num_steps)) ** 2
        if error == "max":
            return float(squares.sum())
        # Coefficient s is in n - s of the n rows.
        num_rows = np.arange(num_steps, 0, -1)
        return float(squares @ num_rows) / num_steps


def check_error(error: Any) -> str:
    """Return ``error`` if it is "mean" or "max"."""
    return check_choice("error", error, ("mean", "max"))


def length_of(name: str, array: Any) -> int:
    """Return how many coefficients there are; ValueError for those of several strategies in one array."""
    if np.ndim(array) != 1:
        raise ValueError(f"{name} must have one axis; use several strategies at a time under jax.vmap")
    return len(array)


def checked_coefficients(name: str, value: Any) -> Any:
    """Return coefficients as float64, or float32 and wider if traced; the first one must be positive."""
    array = check_array(name, value, ndim=1)
    check(name, array, REAL)
    if is_traced(array):
        return array.astype(wide_dtype(array))
    array = np.array(array, np.float64)
    if not (array[:1] > 0).any():
        raise ValueError(f"{name} must begin with a number > 0, so that C can be inverted; got {array[:1]}")
    refuse_scale(name, array[0], array)
    array.setflags(write=False)
    return array


def refuse_scale(name: str, diagonal: Any, entries: np.ndarray) -> None:
    """ValueError for a matrix whose products would leave the range of float32; a multiple of it does as well.

    Args:
        name: the argument that the numbers come from.
        diagonal: the numbers on the diagonal of C, or of its inverse.
        entries: all of them.
    """
    if np.min(diagonal) < 1.0 / _LARGEST or np.max(np.abs(entries)) > _LARGEST:
        raise ValueError(
            f"{name} must have a diagonal of at least {1.0 / _LARGEST:g} and no number above {_LARGEST:g} in size: "
            "noise in float32 would lose digits. A multiple of C is the same mechanism: divide by the first number"
        )


_LARGEST = 1e15
"""Squares of these numbers, and of their reciprocals, are far inside of the range of float32."""
