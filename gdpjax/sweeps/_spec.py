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
    learning_rate = { min = 0.05, max = 1.0, log = true }
    l2_clip_norm = [0.5, 1.0, 2.0]
    epsilon = [1.0, 2.0, 4.0]    # a certified target; or noise_multiplier
    batch_size = 256
    epochs = 10
    seeds = 2                    # two trainings each with fresh keys; [0, 1] is reproducible, therefore not private

The structure is checked by msgspec, the numbers by `Hyperparameter`; a complaint names the line of the file.
"""

import collections
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Protocol

import msgspec
import numpy as np

from gdpjax._core.arguments import check_path, did_you_mean
from gdpjax._core.documents import DocumentError, convert_document
from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import (
    LEARNING_RATE,
    NUM_STEPS,
    ONLY_NUMBERS,
    STANDARD,
    Hyperparameter,
    parameters_of,
)
from gdpjax.sweeps._lines import lines_of
from gdpjax.sweeps._task import Task

MOST_TRIALS = 100_000
SECTION = "hyperparameters"
Field = tuple[str, ...]
"""The place of something in a spec, such as ("hyperparameters", "epochs")."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_TRIALS)]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class SpecFields(msgspec.Struct):
    """The fields beside those that name the task."""

    delta: Fraction | None = None
    search: Literal["grid", "random"] = "grid"
    num_configurations: Count | None = None
    search_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    one_program: bool = False
    hold_out: Fraction | None = None
    score: str | None = None
    minimize: bool = False
    hyperparameters: dict[str, Any] = {}


class RangeFields(msgspec.Struct):
    """``{ min = 0.1, max = 1.0, count = 3, log = true }``."""

    min: Any
    max: Any
    count: Annotated[int, msgspec.Meta(ge=2, le=MOST_TRIALS)] | None = None
    log: bool = False


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``: ``count`` of them in a grid, any of them in a random search."""

    low: float
    high: float
    count: int | None
    log: bool


Choice = tuple[float, ...] | Range


class TaskFields(Protocol):
    """The fields with which a spec names its task, and the task that they name."""

    fields: tuple[str, ...]

    def task(self, reader: "Reader") -> Task:
        """Return the task; call ``reader.fail`` where a field is wrong."""
        ...


class GivenTask:
    """The task of a call in Python, for a spec without fields that name one."""

    fields: tuple[str, ...] = ()

    def __init__(self, task: Task) -> None:
        self._task = task

    def task(self, reader: "Reader") -> Task:
        """Return the task."""
        return self._task


@dataclasses.dataclass(frozen=True)
class Spec:
    """A sweep that can be run. ``choices`` holds the values, or the range, of each hyperparameter it mentions."""

    source: "Source"
    task: Task
    delta: float
    search: str
    num_configurations: int | None
    search_seed: int
    one_program: bool
    hold_out: float | None
    score: str | None
    minimize: bool
    choices: dict[str, Choice]
    seeds: int | tuple[int, ...]

    def fail(self, field: Field, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``."""
        self.source.fail(field, problem)

    def described(self) -> dict[str, Any]:
        """Return the content of the spec as JSON values, without comments, layout and the name of the file.

        The task's defaults are in it where the spec leaves them out: they decide what is trained, too.
        """
        content: dict[str, Any] = dict(self.task.names)
        for name in ("delta", "search", "num_configurations", "search_seed", "hold_out", "score", "minimize", "seeds"):
            content[name] = getattr(self, name)
        # What a choice takes the place of has no part in the sweep; nor has a target beside a noise multiplier.
        alternatives = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}
        for name, value in self.task.defaults.items():
            if name != "delta" and alternatives.get(name) not in self.choices:
                content[name] = (np.asarray(value).item(),)
        for name, choice in self.choices.items():
            content[name] = dataclasses.asdict(choice) if isinstance(choice, Range) else choice
        return json.loads(json.dumps(content))


@dataclasses.dataclass(frozen=True)
class Source:
    """The origin of a spec: a file, or a dictionary, which has no lines."""

    path: Path | None
    text: str
    lines: Mapping[Field, int]

    @property
    def name(self) -> str:
        """The name of the spec in messages."""
        if self.path is None:
            return "the spec"
        return str(self.path)

    def fail(self, field: Field, problem: str) -> NoReturn:
        """Raise UserError with the line of ``field``, or of the table that it is missing from."""
        for length in range(len(field), 0, -1):
            outer = field[:length]
            if outer in self.lines:
                raise UserError(f"{self.name}, line {self.lines[outer]}: {problem}")
        if self.path is None:
            raise UserError(problem)
        raise UserError(f"{self.name}: {problem}")


def read_spec(path: Path, task_fields: TaskFields) -> Spec:
    """Return the sweep in a TOML file, or raise a UserError that names the line."""
    path = check_path("path", path)
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
    return Reader(Source(path, text, lines_of(text)), content, task_fields).spec()


def spec_of_mapping(content: Mapping[str, Any], task: Task) -> Spec:
    """Return the sweep that a dictionary describes."""
    try:
        plain = msgspec.to_builtins(dict(content), enc_hook=_plain_number)
        text = json.dumps(plain, indent=2) + "\n"
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise UserError(f"a spec has texts, numbers, lists and tables: {error}") from error
    return Reader(Source(None, text, {}), plain, GivenTask(task)).spec()


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
        self._refuse_unknown((), self.content, (*self.task_fields.fields, *SpecFields.__struct_fields__))
        # The task comes first, since it decides which hyperparameters there are.
        task = self.task_fields.task(self)

        fields: SpecFields = self._converted((), self.content, SpecFields)
        delta = fields.delta if fields.delta is not None else task.defaults.get("delta")
        if delta is None:
            self.fail((), "delta is missing: the delta of every epsilon, such as 1e-5, below 1 / number of examples")
        if fields.search == "random" and fields.num_configurations is None:
            self.fail(("search",), 'search = "random" needs num_configurations: how many are drawn')
        if fields.search == "grid" and fields.num_configurations is not None:
            problem = 'num_configurations is for search = "random"; a grid is all combinations'
            self.fail(("num_configurations",), problem)

        choices, seeds = self._hyperparameters(task, fields)
        if fields.one_program:
            self._keep_promise(task, choices)
        return Spec(
            source=self.source,
            task=task,
            delta=float(delta),
            search=fields.search,
            num_configurations=fields.num_configurations,
            search_seed=fields.search_seed,
            one_program=fields.one_program,
            hold_out=fields.hold_out,
            score=fields.score,
            minimize=fields.minimize,
            choices=choices,
            seeds=seeds,
        )

    def text(self, name: str) -> str:
        """Return the text of a top-level field, which must be there."""
        if name not in self.content:
            self.fail((), f"{name} is missing")
        value = self.content[name]
        if not isinstance(value, str):
            hint = f"; {ONLY_NUMBERS}" if isinstance(value, list) else ""
            self.fail((name,), f"{name} must be a text, got {value!r}{hint}")
        return value

    def one_of(self, name: str, known: tuple[str, ...], default: str | None = None) -> str:
        """Return a top-level field that is one of the ``known`` texts."""
        value = self.content.get(name, default)
        if value in known:
            return value
        hint = did_you_mean(value, known)
        self.fail((name,), f"{name} must be one of {', '.join(known)}, got {shown(value)}{hint}")

    def _converted(self, field: Field, value: Any, kind: type) -> Any:
        """Return ``value`` as a ``kind``; where it does not fit, fail with the field that msgspec names."""
        try:
            return convert_document(value, kind, "")
        except DocumentError as error:
            inside = [part for part in error.field.split(".") if part and "[" not in part]
            whole_field = (*field, *inside)
            problem = error.problem
            if whole_field and whole_field[-1]:
                problem = f"{whole_field[-1]}: {problem}"
            self.fail(whole_field, problem)

    def _refuse_unknown(self, field: Field, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Refuse a name that is not among the known ones, with a guess."""
        for name in content:
            if name in known:
                continue
            if not isinstance(name, str):
                self.fail(field, f"names in a spec must be texts, got {shown(name)}")
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
            if not field and (name in STANDARD or name in ("learning_rate", "seeds")):
                hint = "it belongs under [hyperparameters]"
            self.fail((*field, name), f"unknown field {name}: {hint}")

    def _refuse_parameters(self, task: Task, table: Mapping[str, Any]) -> None:
        """Refuse names that the user's functions know, but that are no hyperparameters, and the missing rate."""
        for name in table:
            if name in task.hyperparameters:
                continue
            if name == NUM_STEPS:
                self.fail((SECTION, name), "num_steps follows from batch_size and epochs: leave it out")
            if name in task.options:
                self.fail(
                    (SECTION, name),
                    f"{name} is a parameter of {task.options[name]}, but {ONLY_NUMBERS}, as in {name}=0",
                )
            if name == LEARNING_RATE:
                own = ", ".join(parameters_of(task.optimizer, "optimizer")) or "none"
                self.fail(
                    (SECTION, name),
                    f"optimizer has no parameter learning_rate; it has {own}: rename one, or give that one a value",
                )

    def _hyperparameters(self, task: Task, fields: SpecFields) -> tuple[dict[str, Choice], int | tuple[int, ...]]:
        """Return the choices of the hyperparameters that the spec mentions, and the seeds."""
        table = fields.hyperparameters
        known = task.hyperparameters
        self._refuse_parameters(task, table)
        self._refuse_unknown((SECTION,), table, (*known, "seeds"))
        if "epsilon" in table and "noise_multiplier" in table:
            self.fail((SECTION, "epsilon"), "give either epsilon, a target, or noise_multiplier, not both")

        choices = {}
        for name, kind in known.items():
            if name in table:
                choices[name] = self._choice((SECTION, name), table[name], kind, fields.search)
            elif kind.needed and name not in task.defaults:
                self.fail((SECTION,), f"{name} is missing under [hyperparameters]: give a number, a list or a range")
        given = {*table, *task.defaults}
        if "epsilon" not in given and "noise_multiplier" not in given:
            self.fail((SECTION,), "give epsilon, a target, or noise_multiplier under [hyperparameters]")
        return choices, self._seeds(table.get("seeds", 1))

    def _choice(self, field: Field, value: Any, kind: Hyperparameter, search: str) -> Choice:
        """Return the values, or the range, of one hyperparameter."""
        if isinstance(value, dict):
            return self._range(field, value, kind, search)
        values = value if isinstance(value, list) else [value]
        if not values:
            problem = f"{kind.name} = [] leaves nothing to search: give a value, or remove the field for the default"
            self.fail(field, problem)
        numbers = [self._number(field, each, kind) for each in values]
        return self._distinct(field, numbers)

    def _range(self, field: Field, value: dict[str, Any], kind: Hyperparameter, search: str) -> Range:
        name = kind.name
        self._refuse_unknown(field, value, RangeFields.__struct_fields__)
        if "min" not in value or "max" not in value:
            self.fail(field, f"a range of {name} is {{ min = ..., max = ..., count = ..., log = true or false }}")
        fields: RangeFields = self._converted(field, value, RangeFields)
        low = self._number(field, fields.min, kind)
        high = self._number(field, fields.max, kind)
        if not low < high:
            self.fail(field, f"the range of {name} is empty: min = {low:g} is not below max = {high:g}")
        if fields.log and low <= 0:
            self.fail(field, f"the range of {name} is logarithmic, so its min must be above 0, got {low:g}")
        if search == "grid" and fields.count is None:
            self.fail(field, f"the range of {name} needs its count in a grid")
        if search == "random" and fields.count is not None:
            self.fail(field, f"the range of {name} has no count in a random search: remove it")
        return Range(low, high, fields.count, fields.log)

    def _number(self, field: Field, value: Any, kind: Hyperparameter) -> float:
        try:
            return kind.checked(value)
        except UserError as error:
            self.fail(field, str(error))

    def _seeds(self, value: Any) -> int | tuple[int, ...]:
        field = (SECTION, "seeds")
        if not isinstance(value, list):
            return self._converted(field, value, Count)  # type: ignore[arg-type]
        if not value:
            self.fail(field, "seeds = [] leaves nothing to train: give a number, or a list of seeds")
        seeds = [self._converted(field, seed, Seed) for seed in value]  # type: ignore[arg-type]
        return self._distinct(field, seeds)

    def _distinct(self, field: Field, values: list[Any]) -> tuple[Any, ...]:
        """Return the values, each of which must be there once."""
        for value, times in collections.Counter(values).items():
            if times > 1:
                self.fail(field, f"{field[-1]} lists {value:g} {times} times; each is trained once, so list it once")
        return tuple(values)

    def _keep_promise(self, task: Task, choices: dict[str, Choice]) -> None:
        """Refuse choices that need a second program, where one is promised."""
        for name, choice in choices.items():
            varies = isinstance(choice, Range) or len(choice) > 1
            if task.hyperparameters[name].whole and varies:
                self.fail(
                    (SECTION, name),
                    f"one_program = true promises one compiled program, but each value of {name} needs its own: give "
                    "one value, or remove the promise",
                )
