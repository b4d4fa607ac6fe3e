"""Fixtures of the tests of trainings: the programs of a training are described once."""

import weakref

import jax
import pytest

from gdpjax.training import _run


@pytest.fixture(scope="package", autouse=True)
def programs_are_described_once():
    """Keep the digest of a step's program, which every start and every resumption asks for.

    The text of a program takes a tenth of a second, and follows from the step and the types of what it is given.
    """
    describe = _run.program_digest
    known = weakref.WeakKeyDictionary()

    def described(step, *arguments):
        leaves, structure = jax.tree.flatten(arguments)
        kinds = structure, *((jax.typeof(leaf), leaf.sharding) for leaf in leaves)
        digests = known.setdefault(step, {})
        if kinds not in digests:
            digests[kinds] = describe(step, *arguments)
        return digests[kinds]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "program_digest", described)
        yield
