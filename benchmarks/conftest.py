"""Without torch and Opacus the modules that need them hold no doctests to collect."""

import importlib.util

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("opacus") is None:
    collect_ignore_glob += ["*/torch_*.py"]
