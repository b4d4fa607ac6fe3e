"""The file that describes a sweep: what is searched, and how.

    dataset = "adult"
    search = "random"            # or "grid", the default
    num_configurations = 50
    one_program = true           # a promise: only numbers that compiled code takes as arguments vary
    hold_out = 0.1               # test on a tenth of the training data, the same for every trial, not on the test data

    [hyperparameters]            # what is left out is as in ``train --dataset adult``
    learning_rate = { min = 0.05, max = 1.0, log = true }
    l2_clip_norm = [0.5, 1.0, 2.0]
    epsilon = [1.0, 2.0, 4.0]    # a certified target; or noise_multiplier
    seeds = 2                    # two trainings each with fresh keys; [0, 1] is reproducible, therefore not private

Everything is checked before anything is computed, and a complaint names the line.
"""

import collections
import dataclasses
import difflib
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

from experiments.config import PRESETS, DatasetName, ModelName, OptimizerName
from experiments.errors import UserError
from experiments.sweeps._lines import lines_of

HYPERPARAMETERS = ("learning_rate", "l2_clip_norm", "noise_multiplier", "epsilon", "batch_size", "epochs")
WHOLE = ("batch_size", "epochs")
"""Whole numbers; and they decide the shapes and the length of what is compiled, so that each value has its program."""
SEARCHES = ("grid", "random")
FIELDS = (
    "dataset", "model", "optimizer", "delta", "search", "num_configurations", "search_seed", "one_program",
    "hold_out", "hyperparameters",
)  # fmt: skip
_RANGE_FIELDS = ("min", "max", "count", "log")
MOST_TRIALS = 100_000


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``: ``count`` of them for a grid, any for a random search."""

    low: float
    high: float
    count: int | None
    log: bool


@dataclasses.dataclass(frozen=True)
class Spec:
    """A sweep that can be run. ``choices`` holds the values, or the range, of each hyperparameter that is searched."""

    path: Path
    text: str
    dataset: str
    model: str
    optimizer: str
    delta: float
    search: str
    num_configurations: int | None
    search_seed: int
    one_program: bool
    hold_out: float | None
    choices: dict[str, tuple[float, ...] | Range]
    seeds: int | tuple[int, ...]

    def fail(self, field: tuple[str, ...], problem: str) -> NoReturn:
        """UserError that names the field's line."""
        _fail(self.path, lines_of(self.text), field, problem)


def read_spec(path: Path) -> Spec:
    """The sweep in a TOML file, or a UserError that names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the sweep {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse_spec(path, text)


def parse_spec(path: Path, text: str) -> Spec:
    """As `read_spec`, of a text; ``path`` is for messages."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    return _Reader(path, text, content).spec()


def _fail(path: Path, lines: dict[tuple[str, ...], int], field: tuple[str, ...], problem: str) -> NoReturn:
    line = next((lines[field[:n]] for n in range(len(field), 0, -1) if field[:n] in lines), None)
    raise UserError(f"{path}{f', line {line}' if line else ''}: {problem}")


class _Reader:
    """The fields of one file, each checked with its line."""

    def __init__(self, path: Path, text: str, content: dict[str, Any]) -> None:
        self.path, self.text, self.content, self.lines = path, text, content, lines_of(text)

    def fail(self, field: tuple[str, ...], problem: str) -> NoReturn:
        _fail(self.path, self.lines, field, problem)

    def spec(self) -> Spec:
        self.refuse_unknown((), self.content, FIELDS)
        if "dataset" not in self.content:
            self.fail((), f"dataset is missing: one of {', '.join(PRESETS)}")
        dataset = self.one_of("dataset", get_args(DatasetName), None)
        preset = PRESETS[dataset]
        search = self.one_of("search", SEARCHES, "grid")
        one_program = self.content.get("one_program", False)
        if not isinstance(one_program, bool):
            self.fail(("one_program",), f"one_program must be true or false, got {one_program!r}")
        choices, seeds = self.hyperparameters(search)
        spec = Spec(
            self.path, self.text, dataset, self.one_of("model", get_args(ModelName), preset.model.model),
            self.one_of("optimizer", get_args(OptimizerName), preset.optimizer.optimizer),
            self.number(("delta",), self.content.get("delta", preset.privacy.delta), below=1.0), search,
            self.num_configurations(search), self.whole(("search_seed",), self.content.get("search_seed", 0), least=0),
            one_program, self.hold_out(), choices, seeds,
        )  # fmt: skip
        self.keep_promise(spec)
        return spec

    def refuse_unknown(self, section: tuple[str, ...], content: dict[str, Any], known: tuple[str, ...]) -> None:
        for name in content:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
                if not section and name in (*HYPERPARAMETERS, "seeds"):
                    hint = "it belongs under [hyperparameters]"
                self.fail((*section, name), f"unknown field {name}: {hint}")

    def one_of(self, name: str, known: tuple[str, ...], default: str | None) -> str:
        value = self.content.get(name, default)
        if value not in known:
            close = difflib.get_close_matches(str(value), known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self.fail((name,), f"{name} must be one of {', '.join(known)}, got {value!r}{hint}")
        return value

    def num_configurations(self, search: str) -> int | None:
        given = "num_configurations" in self.content
        if search == "random" and not given:
            self.fail(("search",), 'search = "random" needs num_configurations: how many are drawn')
        if search == "grid" and given:
            self.fail(
                ("num_configurations",), 'num_configurations is for search = "random"; a grid is all combinations'
            )
        if not given:
            return None
        return self.whole(("num_configurations",), self.content["num_configurations"], most=MOST_TRIALS)

    def hold_out(self) -> float | None:
        return self.number(("hold_out",), self.content["hold_out"], below=1.0) if "hold_out" in self.content else None

    def hyperparameters(self, search: str) -> tuple[dict[str, tuple[float, ...] | Range], int | tuple[int, ...]]:
        section = ("hyperparameters",)
        table = self.content.get("hyperparameters", {})
        if not isinstance(table, dict):
            self.fail(section, "hyperparameters must be a table: write [hyperparameters] and the fields below it")
        self.refuse_unknown(section, table, (*HYPERPARAMETERS, "seeds"))
        if "epsilon" in table and "noise_multiplier" in table:
            self.fail((*section, "epsilon"), "give either epsilon, a target, or noise_multiplier, not both")
        choices = {
            name: self.choice((*section, name), table[name], search) for name in HYPERPARAMETERS if name in table
        }
        return choices, self.seeds((*section, "seeds"), table.get("seeds", 1))

    def choice(self, field: tuple[str, ...], value: Any, search: str) -> tuple[float, ...] | Range:
        name = field[-1]
        one: Callable[[Any], float] = lambda v: self.whole(field, v) if name in WHOLE else self.number(field, v)  # noqa: E731
        if isinstance(value, dict):
            return self.range(field, value, search, one)
        values = value if isinstance(value, list) else [value]
        if not values:
            self.fail(field, f"{name} = [] leaves nothing to search: give a value, or remove the field for the default")
        return self.distinct(field, [one(v) for v in values])

    def range(self, field: tuple[str, ...], value: dict[str, Any], search: str, one: Callable[[Any], float]) -> Range:
        name, log = field[-1], value.get("log", False)
        self.refuse_unknown(field, value, _RANGE_FIELDS)
        if "min" not in value or "max" not in value or not isinstance(log, bool):
            self.fail(field, f"a range of {name} is {{ min = ..., max = ..., count = ..., log = true or false }}")
        low, high = one(value["min"]), one(value["max"])
        if not low < high:
            self.fail(field, f"the range of {name} is empty: min = {low:g} is not below max = {high:g}")
        if ("count" in value) != (search == "grid"):
            what = "needs its count in a grid" if search == "grid" else "has no count in a random search: remove it"
            self.fail(field, f"the range of {name} {what}")
        return Range(
            low,
            high,
            self.whole((*field, "count"), value["count"], least=2, most=MOST_TRIALS) if search == "grid" else None,
            log,
        )

    def seeds(self, field: tuple[str, ...], value: Any) -> int | tuple[int, ...]:
        if isinstance(value, list):
            if not value:
                self.fail(field, "seeds = [] leaves nothing to train: give a number, or a list of seeds")
            return self.distinct(field, [self.whole(field, seed, least=0, most=2**32 - 1) for seed in value])
        return self.whole(field, value, most=MOST_TRIALS)

    def distinct(self, field: tuple[str, ...], values: list[Any]) -> tuple[Any, ...]:
        for value, times in collections.Counter(values).items():
            if times > 1:
                self.fail(field, f"{field[-1]} lists {value:g} {times} times; each is trained once, so list it once")
        return tuple(values)

    def number(self, field: tuple[str, ...], value: Any, below: float = math.inf) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
            limit = "a finite number > 0" if below == math.inf else f"a number above 0 and below {below:g}"
            self.fail(field, f"{field[-1]} must be {limit}, got {value!r}")
        return float(value)

    def whole(self, field: tuple[str, ...], value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(field, f"{field[-1]} must be a whole number from {least} to {most}, got {value!r}")
        return value

    def keep_promise(self, spec: Spec) -> None:
        """What would need a second program is refused where one is promised."""
        for name in WHOLE if spec.one_program else ():
            choice = spec.choices.get(name, ())
            if isinstance(choice, Range) or len(choice) > 1:
                self.fail(
                    ("hyperparameters", name),
                    f"one_program = true promises one compiled program, but each value of {name} needs its own: give "
                    "one value, or remove the promise",
                )
