"""Packing makes one row of each unit of privacy, which is a function of that unit alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpjax
from experiments.language.packing import pack_public, pack_units, split_units
from experiments.language.targets import next_tokens, unit_loss
from experiments.language.tokenizer import TokenizedCorpus
from gdpjax.sweeps import UserError
from gdpjax.training import batch_source, private_training

KEY = jax.random.key(0)
ROOM = 8 * 29
"""Sequences of two tokens that hold the targets of eight documents of 30."""
PROPERTY = settings(deadline=None, max_examples=150)


def corpus_of(lengths, users=None, standing="private"):
    """Return documents of these lengths, whose tokens are all different: document d has 1000 d + 1, 1000 d + 2, ..."""
    documents = (1000 * number + np.arange(1, length + 1, dtype=np.int32) for number, length in enumerate(lengths))
    return TokenizedCorpus("made up", tuple(documents), None if users is None else tuple(users), standing)


@st.composite
def corpora(draw):
    """Draw up to eight documents of up to 30 tokens, and one of four users for each."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    num_documents = len(lengths)
    users = draw(st.lists(st.sampled_from("abcd"), min_size=num_documents, max_size=num_documents))
    return corpus_of(lengths, users)


def packings():
    """Draw arguments of pack_units."""
    return st.fixed_dictionaries(
        {
            "unit": st.sampled_from(["document", "user"]),
            "length": st.integers(2, 9),
            "sequences_per_unit": st.integers(1, 4),
        }
    )


def documents_by_unit(corpus, unit):
    """Return the numbers of the documents of each unit, in the order of their first ones."""
    if unit == "document":
        return [[number] for number in range(len(corpus.documents))]
    numbers_of_user = {}
    for number, user in enumerate(corpus.users):
        numbers_of_user.setdefault(user, []).append(number)
    return list(numbers_of_user.values())


def targets_of(units):
    """Return `next_tokens` of units with at most 9 tokens in a row; one shape for all, so that it is compiled once."""
    num_units, num_sequences, length = units.tokens.shape
    region = (slice(num_units), slice(num_sequences), slice(length))
    tokens = np.zeros((8, ROOM, 9), np.int32)
    tokens[region] = units.tokens
    segment_ids = np.zeros((8, ROOM, 9), np.int32)
    segment_ids[region] = units.segment_ids
    targets, is_target = next_tokens(tokens, segment_ids)
    return np.asarray(targets)[region], np.asarray(is_target)[region]


def without(corpus, removed):
    """Return the corpus without some of its documents."""
    kept = [number for number in range(len(corpus.documents)) if number not in removed]
    documents, users = (tuple(of[number] for number in kept) for of in (corpus.documents, corpus.users))
    return corpus._replace(documents=documents, users=users)


@given(corpora(), packings())
@PROPERTY
def test_a_row_holds_tokens_of_its_own_unit_only(corpus, packing):
    """A row has the planned shape, tokens of the unit's own documents, and zeros elsewhere."""
    units = pack_units(corpus, **packing)
    members = documents_by_unit(corpus, packing["unit"])
    shape = (len(members), packing["sequences_per_unit"], packing["length"])
    assert units.tokens.shape == units.segment_ids.shape == shape
    assert units.tokens.dtype == units.segment_ids.dtype == np.int32
    for row, own_documents in enumerate(members):
        is_token = units.segment_ids[row] > 0
        document_numbers = units.tokens[row][is_token] // 1000
        assert set(document_numbers) <= set(own_documents)
        assert not units.tokens[row][~is_token].any()


@given(corpora(), packings(), st.data())
@PROPERTY
def test_removing_a_unit_removes_its_row_and_changes_nothing_else(corpus, packing, data):
    """The rows of a corpus without one unit are those of the whole corpus, less one."""
    units = pack_units(corpus, **packing)
    members = documents_by_unit(corpus, packing["unit"])
    removed = data.draw(st.integers(0, len(members) - 1))
    neighbouring_corpus = without(corpus, members[removed])
    neighbour = pack_units(neighbouring_corpus, **packing)
    assert neighbour.identities == units.identities[:removed] + units.identities[removed + 1 :]
    for array, neighbouring in zip(units.arrays, neighbour.arrays, strict=True):
        np.testing.assert_array_equal(neighbouring, np.delete(array, removed, axis=0))


@given(corpora(), st.sampled_from(["document", "user"]), st.integers(2, 9))
@PROPERTY
def test_with_room_enough_every_token_but_the_first_is_predicted_once_and_in_order(corpus, unit, length):
    """Nothing is left out where a unit may have as many sequences as it needs."""
    units = pack_units(corpus, unit=unit, length=length, sequences_per_unit=ROOM)
    targets, is_target = targets_of(units)
    for row, own_documents in enumerate(documents_by_unit(corpus, unit)):
        predicted = targets[row][is_target[row]]
        expected = np.concatenate([corpus.documents[number][1:] for number in own_documents])
        np.testing.assert_array_equal(predicted, expected)


@given(corpora(), packings())
@PROPERTY
def test_targets_follow_in_the_same_document(corpus, packing):
    """A target is the next token of the same document, and segments count the documents of a sequence from one."""
    units = pack_units(corpus, **packing)
    targets, is_target = targets_of(units)

    # The tokens of a document are consecutive numbers, and 1000 apart from the next document's.
    np.testing.assert_array_equal(targets[is_target], units.tokens[is_target] + 1)
    assert not is_target[..., -1].any()
    for segment_ids in units.segment_ids.reshape(-1, packing["length"]):
        held = list(segment_ids[segment_ids > 0])
        assert list(dict.fromkeys(held)) == list(range(1, max(held, default=0) + 1))


def test_users_who_are_not_known_are_refused():
    with pytest.raises(UserError, match="does not say whose its documents are"):
        pack_units(corpus_of([9, 3]), unit="user", length=4)


def test_units_with_nothing_to_predict_keep_their_row():
    """Documents of no token or one have a row without targets, and a corpus without documents has no row."""
    units = pack_units(corpus_of([0, 1, 2]), unit="document", length=4)
    assert units.tokens.shape == (3, 1, 4)
    assert not units.tokens[:2].any()
    nobody = pack_units(corpus_of([]), unit="document", length=4)
    assert nobody.tokens.shape == (0, 1, 4)


# Public text


def test_public_rows_are_dense_and_keep_documents_apart():
    """Rows of public text hold several documents, and all tokens but the first of each are predicted."""
    corpus = corpus_of([7, 0, 12, 2, 5], standing="public")
    tokens, segment_ids = pack_public(corpus, length=8)
    targets, is_target = next_tokens(tokens, segment_ids)
    predicted = np.asarray(targets)[np.asarray(is_target)]
    expected = np.concatenate([document[1:] for document in corpus.documents])
    np.testing.assert_array_equal(predicted, expected)

    # At most one place of a row is empty, but in the last row.
    assert len(tokens) == 4
    num_tokens = (segment_ids[:-1] > 0).sum(axis=1)
    assert num_tokens.min() >= 7


def test_rows_that_mix_documents_are_refused_for_text_that_is_not_public():
    """Private and held-out text is not packed as public text is."""
    for standing in ("private", "evaluation"):
        with pytest.raises(UserError, match="rows that mix documents are for public text"):
            pack_public(corpus_of([5], standing=standing), length=4)


# The split


@given(corpora(), st.data())
@PROPERTY
def test_a_unit_is_on_its_side_whoever_else_is_there(corpus, data):
    """Removing a user removes one unit from one side, and the others stay where they were."""
    arguments = {"unit": "user", "length": 5, "sequences_per_unit": 2}
    members = documents_by_unit(corpus, "user")
    removed = data.draw(st.integers(0, len(members) - 1))
    neighbouring_corpus = without(corpus, members[removed])
    train, held_out = split_units(pack_units(corpus, **arguments), 0.5, KEY)
    neighbours = split_units(pack_units(neighbouring_corpus, **arguments), 0.5, KEY)
    assert len(train) + len(held_out) == len(members)

    num_removed = []
    for part, neighbour in zip((train, held_out), neighbours, strict=True):
        num_removed.append(len(part) - len(neighbour))
        assert identities_of(neighbour) <= identities_of(part)
    assert sorted(num_removed) == [0, 1]


def identities_of(units):
    return set(units.identities)


def test_the_split_has_about_the_fraction():
    """A fifth of the units is held out, up to six standard deviations."""
    units = pack_units(corpus_of([3] * 2000), unit="document", length=4)
    train, held_out = split_units(units, 0.2, KEY)
    assert 320 < len(held_out) < 480
    assert not identities_of(train) & identities_of(held_out)


# The loss, and training


def test_the_loss_is_over_the_units_own_targets():
    """The loss of a unit is the mean over its targets, or their sum over a public divisor."""
    losses = jnp.array([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    is_target = jnp.array([[True, True, False], [True, False, False]])
    assert unit_loss(losses, is_target) == 3.0
    assert unit_loss(losses, is_target, divisor=6) == 1.5
    assert unit_loss(losses, jnp.zeros_like(is_target)) == 0.0


def bigram_loss(params, tokens, segment_ids):
    """Return the loss of ONE unit under a model that knows the last token only."""
    targets, is_target = next_tokens(tokens, segment_ids)
    logits = params["table"][tokens]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return unit_loss(losses, is_target)


def random_corpus():
    """Return 30 documents of nine users."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 12, length).astype(np.int32) for length in generator.integers(1, 40, 30)]
    users = [f"user {number}" for number in generator.integers(0, 9, 30)]
    return TokenizedCorpus("t", tuple(documents), tuple(users), "private")


def test_units_go_straight_into_private_training_and_are_clipped_as_wholes():
    """A plan per user trains on packed units, and all sequences of a user move the clipped sum by C at most."""
    units = pack_units(random_corpus(), unit="user", length=8, sequences_per_unit=3)
    plan = gdpjax.make_plan(
        clip=0.1,
        max_examples=12,
        expected_batch_size=6,
        num_steps=3,
        delta=1e-5,
        noise_multiplier=1.0,
        unit=units.unit,
    )
    assert plan.unit == "user"
    training = private_training(plan, bigram_loss, optax.sgd(0.1), num_arrays=2)
    params = {"table": jnp.zeros((12, 12))}
    data = training.place(*units.arrays)
    assert data.arrays[0].shape == (12, 3, 8)
    state = training.init(params, gdpjax.fresh_key())
    indices, is_padding = batch_source(plan, state, len(units))[0]
    state, _ = training.step(state, data)
    assert np.isfinite(state.params["table"]).all()
    for array in units.arrays:
        assert array[indices].shape == (len(is_padding), 3, 8)

    # One unit moves the clipped sum by the clip norm at most, however many sequences it has.
    clipped_sum = jax.jit(gdpjax.clipped_grad(bigram_loss, clip=0.1, batch_argnums=(1, 2)))
    assert (units.segment_ids[0] > 0).any(axis=1).sum() > 1
    is_kept = (np.arange(len(units)) > 0)[:, None, None]
    with_all = clipped_sum(params, units.tokens, units.segment_ids)
    without_first = clipped_sum(params, units.tokens * is_kept, units.segment_ids * is_kept)
    moved = with_all["table"] - without_first["table"]
    assert 0.099 < jnp.linalg.norm(moved) < 0.1 + 1e-6
