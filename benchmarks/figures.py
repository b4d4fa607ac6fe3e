"""The one style of all pictures here, and what they share."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

OURS, PEERS = ("#0b6e4f", "#2fa57c", "#7cc7a8", "#a9dcc6"), ("#8a8a8a", "#b5482f", "#e0a458", "#4a5a8a", "#8fa3d6")
"""Our colours, from the darkest, and those of the others."""


@contextlib.contextmanager
def picture(path: pathlib.Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield matplotlib's (figure, axes) in the style of all pictures here, saved at the end; ImportError without it."""
    import matplotlib  # noqa: F401

    from gdpjax.plotting.style import figure

    with figure(*shape, path=path, **options) as parts:
        yield parts


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows; the first one is at the top."""
    num_rows = len(names)
    axes.set(yticks=range(num_rows), yticklabels=names, ylim=(num_rows - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
