"""Private training of flax nnx modules, without splitting and merging them by hand.

    training = gdpjax.nnx.private_training(plan, model, loss_fn, optax.adam(1e-3))   # loss_fn(model, x, y), ONE example
    state = training.init(model, gdpjax.fresh_key())
    state, info = training.run_steps(state, training.place(x, y), plan.num_steps)
    nnx.update(model, state.params)                                                  # trained weights back

The functions have the names and the arguments of those in `gdpjax` and `gdpjax.training`, with a module in the place of
the parameters. For each example the module is rebuilt from its variables, and three things are looked after:

- **Random streams** (`nnx.RngState`, dropout): every example draws from a key of its own. A stream from outside the
  module is refused by flax itself.
- **What the forward pass writes**: running averages of BatchNorm and other state would carry one example to others, and
  are refused. Variables that it only reads, such as the statistics of a public, frozen BatchNorm, are constants. Whole
  numbers, such as a count of calls, and what is sown are dropped with the module of that example.
- **What is not trained**: variables that ``wrt`` does not select stay out of the norm, get no noise, and are hidden
  from the optimizer, so that weight decay does not move them.

flax is imported with this module, and `import gdpjax` does not import it.
"""

import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Bool, PRNGKeyArray

from gdpjax._core.arguments import check_flag, check_keywords
from gdpjax._core.shown import shown
from gdpjax._core.statistics import refuse_statistics
from gdpjax._core.trees import leaf_name
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping import ClippedGrad
from gdpjax.clipping import clipped_grad as clipped_grad_of_tree
from gdpjax.clipping import explain as explain_tree
from gdpjax.training import Plan, Training
from gdpjax.training import private_training as private_training_of_tree

__all__ = ["clipped_grad", "explain", "private_training"]

Filter = Any
"""What `nnx.split` takes: a class of variables, a predicate of (path, variable), or a tuple of such."""


def private_training(
    plan: Plan,
    model: nnx.Pytree,
    loss_fn: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    wrt: Filter = nnx.Param,
    num_arrays: int = 2,
    example_key: bool = False,
    **options: Any,
) -> Training:
    """Return the private training loop of a plan, for an nnx module.

    Args:
      plan: what `gdpjax.make_plan` returned.
      model: the module. Its structure and its static attributes count as they are now: call ``model.train()`` before.
        Its random streams need no seed of their own, see below.
      loss_fn: scalar loss of ONE example, ``loss_fn(model, *example)``, or ``loss_fn(model, *example, key)`` with
        ``example_key``.
      optimizer: a plain optax optimizer, such as ``optax.adam(1e-3)``; it sees the trained variables only.
      wrt: which variables are trained, as in `nnx.Optimizer`: `nnx.Param`, `nnx.LoRAParam`, any filter. All others are
        frozen.
      num_arrays: how many arguments of the loss an example is, arrays or pytrees of arrays.
      example_key: the loss takes a PRNG key of its own for each example, beside those of the module's streams.
      options: the other options of `gdpjax.training.private_training` (strategy, microbatch_size, constant_work,
        keep_batch_dim, scale).

    Returns:
      The ordinary `gdpjax.training.Training`. Its ``init``, `start_run`, `resume_run` and `choose_microbatch` take the
      module in the place of parameters. ``state.params`` is an `nnx.State` of all variables but the random streams, and
      ``nnx.update(model, state.params)`` puts the trained weights into the module. The streams of a module are replaced
      by ones that start at a key of the example and the step, made from the key given to ``init``.

    Raises:
      ValueError: no module, nothing to train; batch statistics, or other variables and attributes that the forward pass
        writes; a module that was changed between this call and ``init``; as `gdpjax.training.private_training`.

    >>> import gdpjax
    >>> plan = gdpjax.make_plan(clip=1.0, max_examples=100, expected_batch_size=10, num_steps=3, delta=1e-5,
    ...                         noise_multiplier=2.0)
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> training = private_training(plan, model, lambda model, x, y: (model(x)[0] - y) ** 2, optax.sgd(0.1))
    >>> data = training.place(jnp.ones((90, 2)), jnp.zeros(90))
    >>> state, info = training.run_steps(training.init(model, jax.random.key(0)), data, 3)
    >>> nnx.update(model, state.params)
    >>> gdpjax.ledger_of(state.opt_state).num_steps
    3
    """
    example_key = check_flag("example_key", example_key)
    _check_options(private_training_of_tree, options)
    parts = _take_apart(model, wrt)
    trainable = _marks(parts)
    refuse_statistics(_joined(parts), jax.tree.leaves(trainable))
    has_streams = bool(jax.tree.leaves(parts.streams))

    def loss_of_variables(variables: nnx.State, *example: Any) -> Any:
        if not has_streams:
            return _evaluate(loss_fn, parts.structure, [variables], parts.streams, None, example)
        *arrays, key = example
        if example_key:
            key, own_key = jax.random.split(key)
            arrays.append(own_key)
        return _evaluate(loss_fn, parts.structure, [variables], parts.streams, key, arrays)

    # Weight decay and the like would move frozen variables, and their moments would take memory.
    if not all(jax.tree.leaves(trainable)):
        optimizer = optax.masked(optimizer, trainable)
    training = private_training_of_tree(
        plan,
        loss_of_variables,
        optimizer,
        num_arrays=num_arrays,
        example_key=example_key or has_streams,
        trainable=trainable,
        **options,
    )

    def params_of(given: Any) -> nnx.State:
        if isinstance(given, nnx.State):
            return given
        given_parts = _take_apart(given, wrt)
        if given_parts.structure != parts.structure:
            raise ValueError(
                "the module is not the one that private_training was given: its structure or a static attribute has "
                "changed since (model.eval() and model.train() change one). Build the training after such changes"
            )
        return _joined(given_parts)

    def init(params: Any, key: Array) -> Any:
        return training.init(params_of(params), key)

    return training._replace(init=init, params_of=params_of)


def clipped_grad(loss_fn: Callable[..., Any], clip: Any, *, wrt: Filter = nnx.Param, **options: Any) -> ClippedGrad:
    """Transform a loss of a module and one example into the sum of clipped per-example gradients of a batch.

    It goes where `gdpjax.clipped_grad` goes, and what it returns where an `nnx.Optimizer` wants gradients::

        grad_fn = gdpjax.nnx.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))
        optimizer = nnx.Optimizer(model, gdpjax.dpsgd(0.1, grad_fn, ...), wrt=nnx.Param)
        optimizer.update(model, grad_fn(model, x, y, is_padding=is_padding))      # in one nnx.jit

    Args:
      loss_fn: scalar loss of ONE example, ``loss_fn(model, x)``.
      clip: as in `gdpjax.clipped_grad`.
      wrt: which variables are differentiated, as in `nnx.grad`.
      options: the other options of `gdpjax.clipped_grad`, but for argnums, key_argnums and trainable.

    Returns:
      ``grad_fn(model, *args, key=None, is_padding=None)``: an `nnx.State` of the variables that ``wrt`` selects. Where
      the module has random streams (dropout) it needs a ``key``, fresh and secret at each step, from which each example
      gets its own; the streams of the module are left as they are.

    Raises:
      ValueError: as `private_training` and `gdpjax.clipped_grad`.

    >>> model = nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0))
    >>> grad_fn = clipped_grad(lambda model, x: model(x)[0], 1.0)
    >>> total = nnx.jit(grad_fn)(model, jnp.array([[3.0, 4.0], [0.0, 0.5]]))
    >>> [round(float(entry), 3) for entry in total["kernel"][...].ravel()]
    [0.6, 1.3]
    """
    _check_options(clipped_grad_of_tree, options, "argnums", "key_argnums", "shared_argnums")
    ordinary = clipped_grad_of_tree(loss_fn, clip, **options)
    return _ModuleClippedGrad(**vars(ordinary), wrt=wrt)


def explain(
    loss_fn: Callable[..., Any], model: nnx.Pytree, batch: Any, *args: Any, wrt: Filter = nnx.Param, **options: Any
) -> Any:
    """Return how `private_training` and `clipped_grad` would treat each variable of a module, and compute nothing.

    Args:
      loss_fn: scalar loss of ONE example, ``loss_fn(model, x)``.
      model: the module.
      batch: argument 1, or with several ``batch_argnums`` the tuple of them, as in `gdpjax.explain`.
      args: the remaining arguments of ``loss_fn``.
      wrt: which variables are trained.
      options: the other options of `gdpjax.explain`.

    Returns:
      What `gdpjax.explain` returns; print it for a table.

    Raises:
      ValueError: as `private_training`.

    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> explanation = explain(lambda model, x: model(x)[0], model, jnp.ones((8, 2)))
    >>> [leaf.name for leaf in explanation.leaves]
    ["['bias'].value", "['kernel'].value"]
    """
    _check_options(explain_tree, options)
    parts = _take_apart(model, wrt)

    def loss_of_variables(variables: nnx.State, *arguments: Any, **keywords: Any) -> Any:
        # The keys of the streams have no part in what is explained, so one does for all examples.
        key = jax.random.key(0)
        return _evaluate(loss_fn, parts.structure, [variables], parts.streams, key, arguments, keywords)

    return explain_tree(loss_of_variables, _joined(parts), batch, *args, trainable=_marks(parts), **options)


@dataclasses.dataclass(frozen=True, eq=False)
class _ModuleClippedGrad(ClippedGrad):
    """A `ClippedGrad` whose first argument is a module.

    Its ``spec`` holds the loss of a module. For a call it is replaced by one of a loss whose first argument is the
    trained variables, and whose last ones are the rest of the module and a key.
    """

    wrt: Filter = nnx.Param

    def __call__(
        self,
        model: Any,
        *args: Any,
        key: PRNGKeyArray | None = None,
        is_padding: Bool[Array, " batch"] | None = None,
        **loss_kwargs: Any,
    ) -> Any:
        parts = _take_apart(model, self.wrt)
        has_streams = bool(jax.tree.leaves(parts.streams))
        if has_streams and key is None:
            raise ValueError(
                "the module has random streams (nnx.Rngs, for dropout; cells such as nnx.GRUCell hold one, too, if "
                "they draw from it or not): call grad_fn(model, ..., key=key) with a fresh, secret PRNG key at each "
                "step, from which each example gets its own"
            )
        if key is not None and not has_streams:
            raise ValueError("key is for the random streams of a module (nnx.Rngs, dropout), and this one has none")
        loss_fn, num_args = self.spec.loss_fn, len(args)

        def loss_of_variables(trained: nnx.State, *others: Any, **keywords: Any) -> Any:
            arguments, rest = others[:num_args], others[num_args:]
            stream_key = rest[1] if has_streams else None
            variables = [trained, rest[0]]
            return _evaluate(loss_fn, parts.structure, variables, parts.streams, stream_key, arguments, keywords)

        # Frozen variables are shared by all examples, whatever their lengths.
        spec = dataclasses.replace(
            self.spec,
            loss_fn=loss_of_variables,
            shared_argnums=(num_args + 1,),
            key_argnums=(num_args + 2,) if has_streams else (),
        )
        ordinary = {field.name: getattr(self, field.name) for field in dataclasses.fields(ClippedGrad)}
        grad_fn = ClippedGrad(**{**ordinary, "spec": spec})
        keys = (key,) if has_streams else ()
        return grad_fn(parts.trained, *args, parts.frozen, *keys, is_padding=is_padding, **loss_kwargs)


class _Parts(NamedTuple):
    """A module in parts.

    Attributes:
      structure: everything static: the `nnx.GraphDef`.
      streams: the keys and counts of its random streams.
      trained: the variables that are trained.
      frozen: all others.
    """

    structure: Any
    streams: nnx.State
    trained: nnx.State
    frozen: nnx.State


def _take_apart(model: Any, wrt: Filter) -> _Parts:
    """Split a module.

    Raises:
      ValueError: it is none, ``wrt`` is no filter or selects nothing.
    """
    nodes = jax.tree.leaves(model, is_leaf=_is_module)
    if not nodes or not all(map(_is_module, nodes)):
        raise ValueError(
            f"model must be an nnx module, or a tuple, list or dict of modules, got {shown(model)}; parameters go to "
            "gdpjax.training itself"
        )
    structure, *states = nnx.split(model, nnx.RngState, wrt, ...)
    streams, trained, frozen = map(_copied, states)
    if not jax.tree.leaves(trained):
        raise ValueError(f"wrt={shown(wrt)} selects no variable of {type(model).__name__}: there is nothing to train")
    return _Parts(structure, streams, trained, frozen)


def _is_module(node: Any) -> bool:
    return isinstance(node, nnx.Pytree)


def _copied(state: nnx.State) -> nnx.State:
    """Return new variables with the same arrays.

    `nnx.split` and `nnx.merge` pass on the variables that they are given, so that writing to a module would change the
    state. And only variables that are made while JAX traces a function can be written in it.
    """
    return jax.tree.map(lambda array: array, state)


def _joined(parts: _Parts) -> nnx.State:
    """Return the trained and the frozen variables of a module as one tree."""
    return nnx.merge_state(parts.trained, parts.frozen)


def _marks(parts: _Parts) -> PyTree:
    """Return for each variable whether it is trained, as a tree like `_joined`."""
    trained = jax.tree.map(lambda _: True, parts.trained)
    frozen = jax.tree.map(lambda _: False, parts.frozen)
    return nnx.merge_state(trained, frozen)


def _evaluate(
    loss_fn: Callable[..., Any],
    structure: Any,
    variables: list[nnx.State],
    streams: nnx.State,
    key: Array | None,
    args: Any,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Rebuild the module for one example and evaluate the loss.

    Args:
      loss_fn: the loss of a module.
      structure: the static part of the module.
      variables: its trained and frozen variables.
      streams: its random streams, of which only the shapes are used.
      key: the key of the example, or None if there are no streams.
      args, kwargs: the other arguments of the loss.

    Raises:
      ValueError: the forward pass wrote something that is no random stream.
    """
    if key is not None:
        streams = _streams_from(key, streams)
    model = nnx.merge(structure, *map(_copied, [*variables, streams]))
    before = _all_but_streams(model)
    loss = loss_fn(model, *args, **(kwargs or {}))
    _refuse_writes(before, _all_but_streams(model))
    return loss


def _streams_from(key: Array, streams: nnx.State) -> nnx.State:
    """Return random streams like the given ones that start at keys made from one key."""
    leaves, tree = jax.tree.flatten(streams)
    started = []
    for number, leaf in enumerate(leaves):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            started.append(jnp.zeros_like(leaf))  # how many draws there were
            continue
        own_key = jax.random.fold_in(key, number)
        # Layers that are stacked (nnx.vmap, nnx.scan) have an array of keys.
        started.append(own_key if leaf.shape == () else jax.random.split(own_key, leaf.shape))
    return jax.tree.unflatten(tree, started)


def _all_but_streams(model: Any) -> tuple[Any, dict[str, tuple[type, list[Any]]]]:
    """Return the static part of a module, and the class and arrays of every variable by its path; nothing sown."""

    def is_variable(node: Any) -> bool:
        return isinstance(node, nnx.Variable)

    nnx.pop(model, nnx.Intermediate)
    structure, _, state = nnx.split(model, nnx.RngState, ...)
    values = {}
    for path, node in jax.tree_util.tree_flatten_with_path(state, is_leaf=is_variable)[0]:
        values[leaf_name(path)] = (type(node), jax.tree.leaves(node))
    return structure, values


def _refuse_writes(before: tuple[Any, dict], after: tuple[Any, dict]) -> None:
    """Raise ValueError if the forward pass changed anything but parameters and random streams of its module.

    A layer may keep parameters that it has normalised (`nnx.WeightNorm`), or count its calls. In the copy of one
    example that is dropped.
    """
    written = []
    for name, (kind, arrays) in after[1].items():
        _, arrays_before = before[1].get(name, (kind, []))
        is_same = len(arrays) == len(arrays_before) and all(map(operator.is_, arrays, arrays_before))
        is_count = all(jnp.issubdtype(array.dtype, jnp.integer) for array in arrays)
        if not is_same and not is_count and not issubclass(kind, nnx.Param):
            written.append(f"{name} ({kind.__name__})")
    if written:
        raise ValueError(
            f"the forward pass writes {', '.join(written)}: what it writes depends on examples and is outside epsilon, "
            "and statistics of a batch let one example move the gradients of others. Use GroupNorm or LayerNorm in the "
            "place of BatchNorm (or a public, frozen one: use_running_average=True)"
        )
    if before[0] != after[0]:
        raise ValueError(
            "the forward pass changes the structure or a static attribute of the module. It sees a copy of the module, "
            "for one example, so this would be lost: return what you need from the loss instead"
        )


def _check_options(function: Callable[..., Any], options: dict[str, Any], *others: str) -> None:
    """Raise ValueError for a name that the function they are passed on to does not know, or that has no sense here."""
    refused = {"trainable", *others}.intersection(options)
    if refused:
        raise ValueError(
            f"{', '.join(sorted(refused))} cannot be given for a module: it is argument 0, wrt=... says what is "
            "trained (such as wrt=nnx.LoRAParam), and grad_fn(..., key=...) gives its random streams keys"
        )
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    check_keywords(function.__name__, options, known)
