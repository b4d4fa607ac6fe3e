"""Import the task of a spec in a file: three names, each of a function in a module.

    data = "my_module:load"
    model = "my_module:build"
    optimizer = "my_module:optimizer"    # or sgd, adam, adamw

Modules are looked for in the folder of the spec, in the current directory, and where Python looks anyway.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax

from gdpjax._core.arguments import did_you_mean
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._spec import Reader
from gdpjax.sweeps._task import Task, failure_of


def sgd(learning_rate: float, momentum: float | None = None) -> optax.GradientTransformation:
    """Return the optimizer of DP-SGD: steps along the noisy gradient."""
    return optax.sgd(learning_rate, momentum)


def adam(learning_rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> optax.GradientTransformation:
    """Return the optimizer of DP-Adam."""
    return optax.adam(learning_rate, b1, b2, eps)


def adamw(learning_rate: float, weight_decay: float = 1e-4) -> optax.GradientTransformation:
    """Return the optimizer of DP-Adam with weight decay."""
    return optax.adamw(learning_rate, weight_decay=weight_decay)


OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": sgd, "adam": adam, "adamw": adamw}


class ImportedTask:
    """The fields ``data``, ``model`` and ``optimizer`` of a spec in a file."""

    fields: tuple[str, ...] = ("data", "model", "optimizer")

    def task(self, reader: Reader) -> Task:
        """Return the task of imported functions; a name that cannot be imported is refused with its line."""
        names = {field: reader.text(field) for field in self.fields}
        load, build, optimizer = (self._function(reader, field, name) for field, name in names.items())
        try:
            return Task(load, build, optimizer, names=names)
        except UserError as error:
            reader.fail((), str(error))

    def _function(self, reader: Reader, field: str, name: str) -> Callable[..., Any]:
        if field == "optimizer" and name in OPTIMIZERS:
            return OPTIMIZERS[name]
        module_name, _, attribute = name.partition(":")
        if module_name.endswith(".py"):
            meant = f"{Path(module_name).stem}:{attribute or field}"
            reader.fail((field,), f'{field} names a module, not its file: write "{meant}"')
        if not module_name or not attribute:
            known = f"one of {', '.join(OPTIMIZERS)}, or " if field == "optimizer" else ""
            hint = did_you_mean(name, OPTIMIZERS) if known else ""
            reader.fail((field,), f'{field} must be {known}"module:function", got {name!r}{hint}')
        try:
            module = import_module(module_name, reader.source.path)
        except UserError as error:
            reader.fail((field,), str(error))
        function = getattr(module, attribute, None)
        if not callable(function):
            hint = did_you_mean(attribute, [known for known in vars(module) if not known.startswith("_")])
            place = getattr(module, "__file__", None) or f"the module {module_name}"
            reader.fail((field,), f"{field}: {place} has no function {attribute}{hint}")
        return function


def import_module(name: str, spec: Path | None) -> Any:
    """Import a module that may lie beside the spec or here; these folders stay on the path for what it imports later.

    Raises:
      UserError: it is not there, it fails, or another one of that name is loaded.
    """
    here = Path.cwd().resolve()
    beside = here if spec is None else spec.resolve().parent
    folders = list(dict.fromkeys([beside, here]))
    for folder in reversed(folders):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # Either this module is missing, or something fails in it.
        if isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]:
            raise UserError(f"there is no module {name} in {' or '.join(map(str, folders))}") from error
        raise failure_of(f"importing {name}", error) from error

    # Python keeps modules by name: one of another folder would be taken for this one.
    expected = (beside / f"{name}.py").resolve()
    loaded = getattr(module, "__file__", None)
    if expected.is_file() and (loaded is None or Path(loaded).resolve() != expected):
        raise UserError(f"{expected} has the name of another module, {loaded}; rename it")
    return module
