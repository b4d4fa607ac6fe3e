"""Shapes in public signatures are those of real calls: `tests/shapes.py` makes them with every signature checked."""

import os
import subprocess
import sys
from pathlib import Path


def test_shapes_of_signatures_are_those_of_calls():
    script = Path(__file__).with_name("shapes.py")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-6000:]
