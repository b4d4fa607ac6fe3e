"""A check in a process of its own with eight CPU devices, which pytest's own process does not have."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


def report_of(module: str, *flags: str) -> Any:
    """Return the JSON that ``python -m module`` prints, with further XLA flags."""
    eight = "--xla_force_host_platform_device_count=8"
    settings = {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), eight, *flags]), "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)
