"""The functions of a task with its real hyperparameters as arguments, as compiled programs call them.

They are traced once before anything runs, so that a model that does not fit its data is refused with its own line.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gdpjax._core.programs import program_digest
from gdpjax._core.shown import shown
from gdpjax.sweeps import records
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import RESERVED
from gdpjax.sweeps._task import Examples, Model, Settings, Task, shapes_of
from gdpjax.training import Data, Plan, State, Training, private_training

OF_THE_PLAN = ("l2_clip_norm", "noise_multiplier")
"""The real hyperparameters that go into the plan."""
Numbers = Mapping[str, Any]
"""The real hyperparameters of a trial by name, each ``float32[]``, or ``float32[width]`` of trials side by side."""


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """The description of the trainings that share a program.

    Attributes:
      task: what is trained.
      examples: its data.
      plan: of the trainings; clip norm and noise multiplier are arguments.
      settings: of one of them, of which the whole hyperparameters count.
    """

    task: Task
    examples: Examples
    plan: Plan
    settings: Settings

    @functools.cached_property
    def constants(self) -> dict[str, int]:
        """The user's own whole hyperparameters."""
        return self.task.own(self.settings, whole=True)

    @functools.cached_property
    def real(self) -> tuple[str, ...]:
        """The names of the hyperparameters that are arguments of the program."""
        return (*OF_THE_PLAN, *self.task.own(self.settings, whole=False))

    def shapes(self, *width: int) -> tuple[dict[str, Any], Any]:
        """Return the shapes of the numbers and of a key, for one trial or for ``width`` of them."""
        numbers = {name: jax.ShapeDtypeStruct(width, jnp.float32) for name in self.real}
        return numbers, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), width))

    def model(self, numbers: Numbers) -> Model:
        """Return the model; the numbers may be traced."""
        return self.task.model(self.examples.example, {**self.constants, **numbers})

    def optimizer(self, numbers: Numbers) -> optax.GradientTransformation:
        """Return the optimizer; the numbers may be traced."""
        return self.task.make_optimizer({**self.constants, **numbers}, self.plan.num_steps)

    def training(self, numbers: Numbers) -> Training:
        """Return the private training of the plan; the numbers may be traced."""
        plan = self.plan.replace(noise_multiplier=numbers["noise_multiplier"], clip=numbers["l2_clip_norm"])
        loss = self.model(numbers).loss
        return private_training(plan, loss, self.optimizer(numbers), num_arrays=len(self.examples.train))

    def scores(self, numbers: Numbers, params: Any, evaluation: Any) -> Mapping[str, Any]:
        """Return the scores of one trained model."""
        return self.model(numbers).scores(params, *evaluation)

    def loss(self, numbers: Numbers, key: Any, example: Any) -> Any:
        """Return the loss of one example by an untrained model."""
        model = self.model(numbers)
        return model.loss(model.init(key), *example)


def check_task(blueprint: Blueprint) -> tuple[str, ...]:
    """Trace the user's functions and one private step, without computing; returns the names of the scores.

    Raises:
      UserError: one of them fails, or returns something else than it should; the message names the line.
    """
    examples = blueprint.examples
    numbers, key = blueprint.shapes()

    def init(numbers: Numbers, key: Any) -> Any:
        return blueprint.model(numbers).init(key)

    def loss(numbers: Numbers, key: Any, example: Any) -> Any:
        try:
            return blueprint.loss(numbers, key, example)
        except Exception as error:
            shapes = ", ".join(f"{part.dtype}{list(part.shape)}" for part in example)
            error.add_note(f"loss is called with ONE example, here {shapes}: its arrays have no batch axis")
            raise

    def updates(numbers: Numbers, params: Any) -> Any:
        optimizer = blueprint.optimizer(numbers)
        return optimizer.update(params, optimizer.init(params), params)[0]

    def step(numbers: Numbers, params: Any, key: Any, data: Data) -> State:
        training = blueprint.training(numbers)
        state, _ = training.step(training.init(params, key), data)
        return state

    # What a program would refuse later, as the failure of its trials.
    params = shapes_of("build and init", init, numbers, key)
    records.named_arrays(params)
    shapes_of("loss", loss, numbers, key, examples.example)
    shapes_of("optimizer", updates, numbers, params)
    rows = [jax.ShapeDtypeStruct((examples.num_examples, *row.shape), row.dtype) for row in examples.example]
    data = Data(tuple(rows), jax.ShapeDtypeStruct((), jnp.int32))
    shapes_of("a private step", step, numbers, params, key, data)

    scores = shapes_of("scores", blueprint.scores, numbers, params, examples.evaluation_shapes)
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f'scores must return numbers by name, such as {{"accuracy": ...}}, got {shown(scores)}')
    for name, value in scores.items():
        kinds = (jnp.bool_, jnp.integer, jnp.floating)
        if getattr(value, "shape", None) != () or not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
            raise UserError(f"scores must return real numbers, got {shown(value)} for {name!r}")
        if not _can_name_score(blueprint.task, name):
            raise UserError(f"a score needs a name of its own (letters, digits, _), got {name!r}")
    return tuple(scores)


def _can_name_score(task: Task, name: Any) -> bool:
    """Return whether a name is a word that means nothing else in the results of a sweep or the records of a run."""
    if not isinstance(name, str) or re.fullmatch(r"[A-Za-z]\w*", name) is None:
        return False
    is_taken = name in task.hyperparameters or name in RESERVED or name in records.NOT_SCORES
    return not is_taken and not name.startswith(("epsilon_", "mu_"))


def digest_of_programs(blueprints: Iterable[Blueprint]) -> str:
    """Return a hash of what model and optimizer compute, of which another version of jax may give another one.

    It is a hash of the lowered programs, in which every constant stands with its bits.
    """
    digest = hashlib.sha256()
    for blueprint in blueprints:

        def everything(blueprint: Blueprint, numbers: Numbers, key: Any, example: Any, evaluation: Any) -> Any:
            model = blueprint.model(numbers)
            params = model.init(key)
            optimizer = blueprint.optimizer(numbers)
            updates = optimizer.update(params, optimizer.init(params), params)
            return params, model.loss(params, *example), model.scores(params, *evaluation), updates

        shapes = (*blueprint.shapes(), blueprint.examples.example, blueprint.examples.evaluation_shapes)
        digest.update(program_digest(jax.jit(functools.partial(everything, blueprint)), *shapes).encode())
    return digest.hexdigest()
