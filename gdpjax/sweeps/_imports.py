"""The task of a spec in a file: three names, each of a function in a module; and files to begin with.

    data = "my_module:load"
    model = "my_module:build"
    optimizer = "my_module:optimizer"    # or sgd, adam, adamw

Modules are looked for in the folder of the spec, in the current directory, and where Python looks anyway.
"""

import importlib
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optax

from gdpjax._core.arguments import did_you_mean
from gdpjax._core.shown import shown
from gdpjax.sweeps._examples import failure_of
from gdpjax.sweeps._spec import Source, Spec, read_spec, spec_of_mapping
from gdpjax.sweeps._task import Task
from gdpjax.sweeps.records import UserError, make_folder

FIELDS = ("data", "model", "optimizer")
TEMPLATE = Path(__file__).with_name("template")
FILES = ("my_task.py", "train.toml", "sweep.toml", "README.md")


def as_spec(task: Task | None, spec: Mapping[str, Any] | str | Path | Spec) -> Spec:
    """Return a checked spec from what a caller may give."""
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str | Path):
        return read_spec(Path(spec), FIELDS, import_task) if task is None else read_spec(Path(spec), (), lambda _: task)
    if not isinstance(spec, Mapping) or not isinstance(task, Task):
        raise UserError("give a Task with a dictionary or a TOML file, or None with a TOML file that names the task")
    return spec_of_mapping(spec, task)


def sgd(learning_rate: float, momentum: float | None = None) -> optax.GradientTransformation:
    """Return the optimizer of DP-SGD: steps along the noisy gradient."""
    return optax.sgd(learning_rate, momentum)


OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": sgd, "adam": optax.adam, "adamw": optax.adamw}


def import_task(source: Source) -> Task:
    """Return the task of imported functions; a name that cannot be imported is refused with its line."""
    names = {field: source.content.get(field) for field in FIELDS}
    functions = []
    for field, name in names.items():
        with source.at(field):
            functions.append(_function(field, name, source.path))
    with source.at():
        return Task(*functions, names=names)


def _function(field: str, name: Any, spec: Path | None) -> Callable[..., Any]:
    """Return the function "module:function" of a field, or an optimizer by its name alone."""
    known = OPTIMIZERS if field == "optimizer" else {}
    if isinstance(name, str) and name in known:
        return known[name]
    module_name, _, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not module_name or not attribute or module_name.endswith(".py"):
        others = f", or one of {', '.join(known)}" if known else ""
        raise UserError(f'{field} must be "module:function"{others}, got {shown(name)}{did_you_mean(name, known)}')
    module = import_module(module_name, spec)
    function = getattr(module, attribute, None)
    if not callable(function):
        hint = did_you_mean(attribute, [known for known in vars(module) if not known.startswith("_")])
        raise UserError(f"{field}: the module {module_name} has no function {attribute}{hint}")
    return function


def import_module(name: str, spec: Path | None) -> Any:
    """Import a module that may lie beside the spec or here; these folders stay on the path for what it imports later.

    Raises:
      UserError: it is not there, it fails, or another one of that name is loaded.
    """
    here = Path.cwd().resolve()
    beside = here if spec is None else spec.resolve().parent
    folders = list(dict.fromkeys([str(beside), str(here)]))
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # Either this module is missing, or something fails in it.
        if isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]:
            raise UserError(f"there is no module {name} in {' or '.join(folders)}") from error
        raise failure_of(f"importing {name}", error) from error

    # Python keeps modules by name: one of another folder would be taken for this one.
    expected = (beside / f"{name}.py").resolve()
    loaded = getattr(module, "__file__", None)
    if expected.is_file() and (loaded is None or Path(loaded).resolve() != expected):
        raise UserError(f"{expected} has the name of another module, {loaded}; rename it")
    return module


def new_project(folder: str | Path) -> list[Path]:
    """Write the files of the template into a new or empty ``folder``, and return their paths.

    Raises:
      UserError: the folder holds files whose names do not begin with a dot; nothing is written then.
    """
    folder = Path(folder)
    others = sorted(path.name for path in folder.glob("[!.]*"))
    if others:
        raise UserError(f"{folder} holds other files, such as {others[0]}; choose a new folder or an empty one")
    make_folder(folder)
    return [Path(shutil.copyfile(TEMPLATE / name, folder / name)) for name in FILES]
