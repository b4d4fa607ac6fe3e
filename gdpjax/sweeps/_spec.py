"""Read a spec, which describes a sweep: a TOML file or a dictionary, checked before anything is computed.

    data = "my_module:load"      # or other fields that name the task
    model = "my_module:build"
    optimizer = "sgd"
    delta = 1e-5
    search = "random"            # or "grid", the default
    num_configurations = 50
    one_program = true           # a promise: only numbers vary that compiled code takes as arguments
    hold_out = 0.1               # score on a tenth of the training data, the same for every trial
    score = "rmse"               # what the report goes by; the first of the scores unless given
    minimize = true              # the smallest score is the best
    unit = "patient"             # what one row is, for the statement of a training and the report; an example
    tuned = "on public data"     # how these numbers were chosen, for that statement

    [hyperparameters]            # others have the task's defaults
    learning_rate = { min = 0.05, max = 1.0, log = true }    # in a grid "0.05:1:log4", or min, max, count
    l2_clip_norm = [0.5, 1.0, 2.0]
    epsilon = [1.0, 2.0, 4.0]    # a certified target; or noise_multiplier
    batch_size = 256
    epochs = 10
    seeds = 2                    # two trainings each with fresh keys; [0, 1] is reproducible, therefore not private

The structure is checked by msgspec, the numbers by `Hyperparameter`; a complaint names the line of the file. Modules
are looked for in the folder of the spec, in the current directory, and where Python looks anyway.
"""

import contextlib
import dataclasses
import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import numpy as np
import optax

from gdpjax._core.arguments import did_you_mean
from gdpjax._core.documents import DocumentError, convert_document
from gdpjax._core.figures import values_of
from gdpjax._core.shown import shown
from gdpjax.sweeps._examples import failure_of
from gdpjax.sweeps._task import Hyperparameter, Task
from gdpjax.sweeps.records import UserError

MOST_TRIALS = 100_000
SECTION = "hyperparameters"
FIELDS = ("data", "model", "optimizer")
"""The fields that name the task."""
ALTERNATIVES = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}
"""A target and a noise multiplier take each other's place."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_TRIALS)]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Seeds = Count | Annotated[tuple[Seed, ...], msgspec.Meta(min_length=1)]


class Content(msgspec.Struct, frozen=True):
    """The fields of a spec beside those that name the task."""

    delta: Fraction | None = None
    search: Literal["grid", "random"] = "grid"
    num_configurations: Count | None = None
    search_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    one_program: bool = False
    hold_out: Fraction | None = None
    score: str | None = None
    minimize: bool = False
    unit: str = "example"
    tuned: str = "not stated"
    hyperparameters: dict[str, Any] = {}


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{ min = 0.1, max = 1.0, count = 3, log = true }``: ``count`` numbers in a grid, any in a random search."""

    min: Any
    max: Any
    count: Annotated[int, msgspec.Meta(ge=2, le=MOST_TRIALS)] | None = None
    log: bool = False


Choice = tuple[float, ...] | Range
"""The values of a hyperparameter, or in a random search a range."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The origin of a spec, a file or a dictionary, which has no lines; ``content`` is what it holds, unchecked."""

    path: Path | None
    text: str
    content: dict[str, Any]

    def fail(self, *field: str, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``, or of the table that it is missing from."""
        if self.path is None:
            raise UserError(problem)
        for name in reversed(field):
            begins = re.compile(rf"\s*(\[\s*{re.escape(name)}\s*\]|([\w\s.]*\.\s*)?{re.escape(name)}\s*[.=])")
            for number, line in enumerate(self.text.splitlines(), start=1):
                if begins.match(line):
                    raise UserError(f"{self.path}, line {number}: {problem}")
        raise UserError(f"{self.path}: {problem}")

    @contextlib.contextmanager
    def at(self, *field: str) -> Iterator[None]:
        """Give the line of ``field`` to a ValueError that is raised inside."""
        try:
            yield
        except ValueError as error:
            self.fail(*field, problem=str(error))

    def converted(self, *field: str, value: Any, kind: Any) -> Any:
        """Return ``value`` as a ``kind``; where it does not fit, fail with the field that msgspec names."""
        try:
            return convert_document(value, kind, "")
        except DocumentError as error:
            place = (*field, *re.findall(r"[A-Za-z_]\w*", error.field))
            self.fail(*place, problem=f"{place[-1]}: {error.problem}")

    def refuse_unknown(
        self,
        *field: str,
        content: Mapping[str, Any],
        known: Iterable[str],
    ) -> None:
        """Refuse a name that is not among the known ones, with a guess."""
        known = tuple(known)
        for name in content:
            if name not in known:
                hint = did_you_mean(name, known) or f"; the fields are {', '.join(known)}"
                self.fail(*field, str(name), problem=f"unknown field {shown(name)}{hint}")


@dataclasses.dataclass(frozen=True)
class Spec:
    """A sweep that can be run. ``choices`` holds the values, or the range, of each hyperparameter it mentions."""

    source: Source
    task: Task
    content: Content
    delta: float
    choices: dict[str, Choice]
    seeds: int | tuple[int, ...]

    @property
    def fixed(self) -> dict[str, float]:
        """The task's defaults, without one that a chosen target or noise multiplier takes the place of."""
        defaults = self.task.defaults.items()
        return {name: value for name, value in defaults if ALTERNATIVES.get(name) not in self.choices}

    @property
    def words(self) -> dict[str, str]:
        """Texts for the statement of a plan."""
        return {"unit": self.content.unit, "tuned": self.content.tuned}

    def described(self) -> dict[str, Any]:
        """Return the content of the spec as JSON values, without comments, layout and the name of the file.

        The task's defaults are in it where the spec leaves them out: they decide what is trained, too.
        """
        content = dict(self.task.names) | msgspec.to_builtins(self.content)
        del content[SECTION], content["one_program"]
        for name, value in self.fixed.items():
            content[name] = (np.asarray(value).item(),)
        content |= msgspec.to_builtins(self.choices)
        return json.loads(json.dumps(content | {"delta": self.delta, "seeds": self.seeds}))


def read_spec(path: Path, fields: Iterable[str], task_of: Callable[[Source], Task]) -> Spec:
    """Return the sweep in a TOML file, or raise a UserError that names the line.

    ``fields`` are those that name the task, which ``task_of`` makes of them.
    """
    text = path.read_text(encoding="utf-8")
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    return _spec_of(Source(path, text, content), fields, task_of)


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy as those of Python; UserError for what a file could not hold either."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UserError(f"a spec has texts, numbers, lists and tables, got {shown(value)}")


def _spec_of(
    source: Source,
    fields: Iterable[str],
    task_of: Callable[[Source], Task],
) -> Spec:
    """Return the checked spec."""
    source.refuse_unknown(content=source.content, known=(*fields, *Content.__struct_fields__))
    # The task comes first, since it decides which hyperparameters there are.
    task = task_of(source)
    content: Content = source.converted(value=source.content, kind=Content)
    delta = content.delta if content.delta is not None else task.defaults.get("delta")
    if delta is None:
        source.fail(problem="delta is missing: the delta of every epsilon, such as 1e-5, below 1 / number of examples")
    if (content.search == "random") != (content.num_configurations is not None):
        field = "search" if "search" in source.content else "num_configurations"
        source.fail(field, problem='search = "random" needs num_configurations, how many are drawn; a grid has none')

    # The hyperparameters and the seeds.
    table = content.hyperparameters
    source.refuse_unknown(SECTION, content=table, known=(*task.hyperparameters, "seeds"))
    if "epsilon" in table and "noise_multiplier" in table:
        source.fail(SECTION, "epsilon", problem="give either epsilon, a target, or noise_multiplier, not both")
    given = {*table, *task.defaults}
    for name, kind in task.hyperparameters.items():
        if kind.needed and name not in given:
            problem = f"{name} is missing under [hyperparameters]: give a number, a list or a range"
            source.fail(SECTION, problem=problem)
    if not given & ALTERNATIVES.keys():
        source.fail(SECTION, problem="give epsilon, a target, or noise_multiplier under [hyperparameters]")
    choices = {}
    for name, kind in task.hyperparameters.items():
        if name in table:
            choices[name] = _choice(source, table[name], kind, content)
    seeds = source.converted(SECTION, "seeds", value=table.get("seeds", 1), kind=Seeds)
    return Spec(source, task, content, float(delta), choices, seeds)


def _choice(source: Source, value: Any, kind: Hyperparameter, content: Content) -> Choice:
    """Return the values of one hyperparameter, or its range in a random search."""
    field = SECTION, kind.name
    if isinstance(value, dict):
        value = _range(source, value, kind, content.search == "random")
    if isinstance(value, str):
        try:
            value = values_of(value, whole=kind.whole)
        except ValueError as error:
            source.fail(*field, problem=f"{kind.name}: {error}")
    if not isinstance(value, Range):
        values = value if isinstance(value, list) else [value]
        with source.at(*field):
            value = tuple(dict.fromkeys(map(kind.checked, values)))
        if not value:
            source.fail(*field, problem=f"{kind.name} = [] leaves nothing to train: give a value, or remove it")
    is_varied = isinstance(value, Range) or len(value) > 1
    if content.one_program and kind.whole and is_varied:
        problem = f"one_program = true promises one compiled program, but each value of {kind.name} needs its own"
        source.fail(*field, problem=problem)
    return value


def _range(
    source: Source,
    table: dict[str, Any],
    kind: Hyperparameter,
    is_random: bool,
) -> Range | str:
    """Return a range of a random search, or the text of a range in a grid."""
    field = SECTION, kind.name
    found: Range = source.converted(*field, value=table, kind=Range)
    with source.at(*field):
        low, high = kind.checked(found.min), kind.checked(found.max)
    if not low < high or (found.log and low <= 0):
        source.fail(*field, problem=f"the range of {kind.name} needs min < max, and 0 < min if it is logarithmic")
    if is_random != (found.count is None):
        problem = f"the range of {kind.name} needs its count in a grid, and has none in a random search"
        source.fail(*field, problem=problem)
    if is_random:
        return Range(low, high, None, found.log)
    return f"{low!r}:{high!r}:{'log' if found.log else ''}{found.count}"


def as_spec(task: Task | None, spec: Mapping[str, Any] | str | Path | Spec) -> Spec:
    """Return a checked spec from what a caller may give."""
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str | Path):
        path = Path(spec)
        if task is None:
            return read_spec(path, FIELDS, import_task)
        return read_spec(path, (), lambda source: task)
    if not isinstance(spec, Mapping) or not isinstance(task, Task):
        raise UserError("give a Task with a dictionary or a TOML file, or None with a TOML file that names the task")
    text = json.dumps(spec, indent=2, default=_plain)
    source = Source(None, text, json.loads(text))
    return _spec_of(source, (), lambda source: task)


def sgd(learning_rate: float, momentum: float | None = None) -> optax.GradientTransformation:
    """Return the optimizer of DP-SGD: steps along the noisy gradient."""
    return optax.sgd(learning_rate, momentum)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "adam": optax.adam,
    "adamw": optax.adamw,
}


def import_task(source: Source) -> Task:
    """Return the task of imported functions; a name that cannot be imported is refused with its line."""
    names = {}
    functions = []
    for field in FIELDS:
        names[field] = str(source.content.get(field))
        with source.at(field):
            functions.append(_function(field, names[field], source.path))
    with source.at():
        return Task(*functions, names=names)


def _function(field: str, name: str, spec: Path | None) -> Callable[..., Any]:
    """Return the function "module:function" of a field, or an optimizer by its name alone."""
    known = OPTIMIZERS if field == "optimizer" else {}
    if name in known:
        return known[name]
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute or module_name.endswith(".py"):
        others = f", or one of {', '.join(known)}" if known else ""
        raise UserError(f'{field} must be "module:function"{others}, got {name!r}{did_you_mean(name, known)}')
    module = import_module(module_name, Path.cwd() if spec is None else spec.parent)
    function = getattr(module, attribute, None)
    if not callable(function):
        hint = did_you_mean(attribute, vars(module))
        raise UserError(f"{field}: the module {module_name} has no function {attribute}{hint}")
    return function


def import_module(name: str, folder: Path) -> Any:
    """Import a module that may lie in ``folder`` or here; both stay on the path for what it imports later.

    Raises:
      UserError: it is not there, it fails, or another one of that name is loaded.
    """
    for place in (Path.cwd(), folder.resolve()):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise failure_of(f"importing {name}", error) from error

    # Python keeps modules by name: one of another folder would be taken for this one.
    expected = (folder / f"{name}.py").resolve()
    loaded = getattr(module, "__file__", None)
    if expected.is_file() and (loaded is None or Path(loaded).resolve() != expected):
        raise UserError(f"{expected} has the name of another module, {loaded}; rename it")
    return module
