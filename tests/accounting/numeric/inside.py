"""What the tests of the bracket take from inside `gdpjax._composition`: the one place that names its modules."""

# ruff: noqa: F401
from gdpjax._composition import (
    EPSILON,
    Family,
    _characteristic_function,
    _contour,
    _contour_choice,
    _directions,
    _likelihood_ratio,
    _moments,
    _questions,
    _rare_outcomes,
    _run_description,
    _without_contour,
    of_runs,
)

RunDescription = _run_description.RunDescription
SubsampledGaussian, side_by_side = _likelihood_ratio.SubsampledGaussian, _likelihood_ratio.side_by_side
