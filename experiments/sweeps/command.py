"""``sweep``: `gdpjax.sweeps` with the data sets, networks and optimizers of the experiments."""

from pathlib import Path

from rich.console import Console

from experiments.config import SweepConfig
from experiments.sweeps.named_task import FIELDS, named_task
from gdpjax.sweeps import Spec, read_spec, run_sweep


def read(path: Path) -> Spec:
    """Return the sweep in a TOML file."""
    return read_spec(path, FIELDS, named_task)


def run(config: SweepConfig) -> int:
    """Run or resume a sweep, then report; returns the exit code, 1 if a trial failed."""
    sweep = run_sweep(
        None,
        read(config.spec),
        config.out or Path("runs") / f"sweep-{config.spec.stem}",
        resume=config.resume,
        backend=config.backend,
        width=config.width,
        memory_gb=config.memory_gb,
        ray_address=config.ray_address,
        console=Console(),
    )
    return 1 if sweep.any_failed else 0
