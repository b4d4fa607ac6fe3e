"""Print what `tests.correlated.on_a_mesh` prints, of the strategies that it leaves out, and of runs."""

from tests.correlated.on_a_mesh import report

if __name__ == "__main__":
    report(
        ["independent", "banded_toeplitz", "buffered"],
        on_explicit_axes=["banded_inverse"],
        in_training=["banded_toeplitz", "drawn_again"],
    )
