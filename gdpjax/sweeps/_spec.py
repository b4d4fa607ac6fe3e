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

    [hyperparameters]            # others have the task's defaults
    learning_rate = { min = 0.05, max = 1.0, log = true }    # in a grid "0.05:1:log4", or min, max, count
    l2_clip_norm = [0.5, 1.0, 2.0]
    epsilon = [1.0, 2.0, 4.0]    # a certified target; or noise_multiplier
    batch_size = 256
    epochs = 10
    seeds = 2                    # two trainings each with fresh keys; [0, 1] is reproducible, therefore not private

The structure is checked by msgspec, the numbers by `Hyperparameter`; a complaint names the line of the file.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Protocol

import msgspec
import numpy as np

from gdpjax._core.arguments import did_you_mean
from gdpjax._core.documents import DocumentError, convert_document
from gdpjax._core.grids import values_of
from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import LEARNING_RATE, ONLY_NUMBERS, STANDARD, Hyperparameter
from gdpjax.sweeps._task import Task

MOST_TRIALS = 100_000
SECTION = "hyperparameters"
ALTERNATIVES = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}
"""A target and a noise multiplier take each other's place."""
Field = tuple[str, ...]
"""The place of something in a spec, such as ("hyperparameters", "epochs")."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_TRIALS)]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1)]


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
    hyperparameters: dict[str, Any] = {}


class Range(msgspec.Struct, frozen=True):
    """``{ min = 0.1, max = 1.0, count = 3, log = true }``: ``count`` numbers in a grid, any in a random search."""

    min: Any
    max: Any
    count: Annotated[int, msgspec.Meta(ge=2, le=MOST_TRIALS)] | None = None
    log: bool = False


Choice = tuple[float, ...] | Range


class TaskFields(Protocol):
    """The fields with which a spec names its task, and the task that they name."""

    fields: tuple[str, ...]

    def task(self, reader: "Reader") -> Task:
        """Return the task; call ``reader.fail`` where a field is wrong."""
        ...


@dataclasses.dataclass
class GivenTask:
    """The task of a call in Python, for a spec without fields that name one."""

    given: Task
    fields: tuple[str, ...] = ()

    def task(self, reader: "Reader") -> Task:
        """Return the task."""
        return self.given


@dataclasses.dataclass(frozen=True)
class Spec:
    """A sweep that can be run. ``choices`` holds the values, or the range, of each hyperparameter it mentions."""

    source: "Source"
    task: Task
    content: Content
    delta: float
    choices: dict[str, Choice]
    seeds: int | tuple[int, ...]

    def fail(self, field: Field, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``."""
        self.source.fail(field, problem)

    def described(self) -> dict[str, Any]:
        """Return the content of the spec as JSON values, without comments, layout and the name of the file.

        The task's defaults are in it where the spec leaves them out: they decide what is trained, too.
        """
        content = dict(self.task.names) | msgspec.to_builtins(self.content)
        del content[SECTION], content["one_program"]
        # What a choice takes the place of has no part in the sweep.
        for name, value in self.task.defaults.items():
            if ALTERNATIVES.get(name) not in self.choices:
                content[name] = (np.asarray(value).item(),)
        content |= msgspec.to_builtins(self.choices)
        return json.loads(json.dumps(content | {"delta": self.delta, "seeds": self.seeds}))


@dataclasses.dataclass(frozen=True)
class Source:
    """The origin of a spec: a file, or a dictionary, which has no lines."""

    path: Path | None
    text: str

    def fail(self, field: Field, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``, or of the table that it is missing from."""
        if self.path is None:
            raise UserError(problem)
        for name in reversed(field):
            begins = re.compile(rf"\s*(\[\s*{re.escape(name)}\s*\]|([\w\s.]*\.\s*)?{re.escape(name)}\s*[.=])")
            for number, line in enumerate(self.text.splitlines(), start=1):
                if begins.match(line):
                    raise UserError(f"{self.path}, line {number}: {problem}")
        raise UserError(f"{self.path}: {problem}")


def read_spec(path: Path, task_fields: TaskFields) -> Spec:
    """Return the sweep in a TOML file, or raise a UserError that names the line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the sweep {path}: {reason}") from error
    return parse_spec(path, text, task_fields)


def parse_spec(path: Path, text: str, task_fields: TaskFields) -> Spec:
    """Return the sweep in a TOML text; ``path`` is for messages."""
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    return Reader(Source(path, text), content, task_fields).spec()


def spec_of_mapping(content: Mapping[str, Any], task: Task) -> Spec:
    """Return the sweep that a dictionary describes."""
    try:
        plain = msgspec.to_builtins(dict(content), enc_hook=_plain_number)
        text = json.dumps(plain, indent=2) + "\n"
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise UserError(f"a spec has texts, numbers, lists and tables: {error}") from error
    return Reader(Source(None, text), plain, GivenTask(task)).spec()


def _plain_number(value: Any) -> Any:
    """Return numbers and arrays of NumPy as those of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"got {type(value).__name__}")


class Reader:
    """The fields of one spec, each checked with its line."""

    def __init__(self, source: Source, content: dict[str, Any], task_fields: TaskFields) -> None:
        self.source = source
        self.content = content
        self.task_fields = task_fields

    def fail(self, field: Field, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``."""
        self.source.fail(field, problem)

    def spec(self) -> Spec:
        """Return the checked spec."""
        self._refuse_unknown((), self.content, (*self.task_fields.fields, *Content.__struct_fields__))
        # The task comes first, since it decides which hyperparameters there are.
        task = self.task_fields.task(self)

        content = self._converted((), self.content, Content)
        delta = content.delta if content.delta is not None else task.defaults.get("delta")
        if delta is None:
            self.fail((), "delta is missing: the delta of every epsilon, such as 1e-5, below 1 / number of examples")
        if (content.search == "random") != (content.num_configurations is not None):
            field = "search" if "search" in self.content else "num_configurations"
            self.fail((field,), 'search = "random" needs num_configurations, how many are drawn; a grid has none')
        choices, seeds = self._hyperparameters(task, content)
        return Spec(self.source, task, content, float(delta), choices, seeds)

    def text(self, name: str) -> str:
        """Return the text of a top-level field, which must be there."""
        if name not in self.content:
            self.fail((), f"{name} is missing")
        value = self.content[name]
        if not isinstance(value, str):
            self.fail((name,), f"{name} must be one text, got {shown(value)}; {ONLY_NUMBERS}")
        return value

    def one_of(self, name: str, known: tuple[str, ...], default: str | None = None) -> str:
        """Return a top-level field that is one of the ``known`` texts."""
        value = self.content.get(name, default)
        if value in known:
            return value
        hint = did_you_mean(value, known)
        self.fail((name,), f"{name} must be one of {', '.join(known)}, got {shown(value)}{hint}")

    def _converted(self, field: Field, value: Any, kind: Any) -> Any:
        """Return ``value`` as a ``kind``; where it does not fit, fail with the field that msgspec names."""
        try:
            return convert_document(value, kind, "")
        except DocumentError as error:
            inside = [part for part in error.field.split(".") if part and "[" not in part]
            whole_field = (*field, *inside)
            name = f"{whole_field[-1]}: " if whole_field else ""
            self.fail(whole_field, f"{name}{error.problem}")

    def _refuse_unknown(self, field: Field, content: Mapping[str, Any], known: Iterable[str]) -> None:
        """Refuse a name that is not among the known ones, with a guess."""
        known = tuple(known)
        for name in content:
            if name in known:
                continue
            hint = did_you_mean(name, known) or f"; the fields are {', '.join(known)}"
            if not field and name in (*STANDARD, LEARNING_RATE, "seeds"):
                hint = "; it belongs under [hyperparameters]"
            self.fail((*field, str(name)), f"unknown field {shown(name)}{hint}")

    def _hyperparameters(self, task: Task, content: Content) -> tuple[dict[str, Choice], int | tuple[int, ...]]:
        """Return the choices of the hyperparameters that the spec mentions, and the seeds."""
        table = content.hyperparameters
        for name in table:
            if name in task.options:
                problem = f"{name} is a parameter of {task.options[name]}, but {ONLY_NUMBERS}, as in {name}=0"
                self.fail((SECTION, name), problem)
        self._refuse_unknown((SECTION,), table, (*task.hyperparameters, "seeds"))
        given = {*table, *task.defaults}
        if "epsilon" in table and "noise_multiplier" in table:
            self.fail((SECTION, "epsilon"), "give either epsilon, a target, or noise_multiplier, not both")

        choices = {}
        for name, kind in task.hyperparameters.items():
            if name in table:
                choices[name] = self._choice((SECTION, name), table[name], kind, content)
            elif kind.needed and name not in given:
                self.fail((SECTION,), f"{name} is missing under [hyperparameters]: give a number, a list or a range")
        if not given & ALTERNATIVES.keys():
            self.fail((SECTION,), "give epsilon, a target, or noise_multiplier under [hyperparameters]")
        seeds = table.get("seeds", 1)
        field = (SECTION, "seeds")
        if isinstance(seeds, list):
            return choices, self._distinct(field, self._converted(field, seeds, list[Seed]))
        return choices, self._converted(field, seeds, Count)

    def _choice(self, field: Field, value: Any, kind: Hyperparameter, content: Content) -> Choice:
        """Return the values, or the range, of one hyperparameter."""
        if isinstance(value, dict):
            choice = self._range(field, value, kind, content.search)
        else:
            values = value if isinstance(value, list) else [value]
            if isinstance(value, str):
                values = self._grid(field, value, kind, content.search)
            choice = self._distinct(field, [self._number(field, each, kind) for each in values])
        if content.one_program and kind.whole and (isinstance(choice, Range) or len(choice) > 1):
            problem = f"one_program = true promises one compiled program, but each value of {kind.name} needs its own"
            self.fail(field, problem)
        return choice

    def _grid(self, field: Field, text: str, kind: Hyperparameter, search: str) -> list[float]:
        """Return the values of a text such as "0.5,1:100:log3", which `gdpjax sweep` reads in the same way."""
        if search == "random" and ":" in text:
            self.fail(field, f"a range of {kind.name} in a random search is {{ min = ..., max = ..., log = true }}")
        try:
            values = values_of(text, whole=kind.whole)
        except ValueError as error:
            self.fail(field, f"{kind.name}: {error}")
        return [int(value) if value.is_integer() and kind.whole else value for value in values]

    def _range(self, field: Field, value: dict[str, Any], kind: Hyperparameter, search: str) -> Range:
        self._refuse_unknown(field, value, Range.__struct_fields__)
        found: Range = self._converted(field, value, Range)
        low = self._number(field, found.min, kind)
        high = self._number(field, found.max, kind)
        if not low < high or (found.log and low <= 0):
            self.fail(field, f"the range of {kind.name} needs min < max, and 0 < min if it is logarithmic")
        if (search == "grid") != (found.count is not None):
            self.fail(field, f"the range of {kind.name} needs its count in a grid, and has none in a random search")
        return Range(low, high, found.count, found.log)

    def _number(self, field: Field, value: Any, kind: Hyperparameter) -> float:
        try:
            return kind.checked(value)
        except UserError as error:
            self.fail(field, str(error))

    def _distinct(self, field: Field, values: list[Any]) -> tuple[Any, ...]:
        """Return the values, each of which must be there once."""
        if not values:
            self.fail(field, f"{field[-1]} = [] leaves nothing to train: give a value, or remove the field")
        for value in values:
            if values.count(value) > 1:
                self.fail(field, f"{field[-1]} lists {value:g} twice; each is trained once, so list it once")
        return tuple(values)
