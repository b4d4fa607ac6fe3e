"""Packing: a unit of privacy is one row, nobody else's row, and a function of that unit alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpjax
from experiments.errors import UserError
from experiments.language.packing import (
    pack_public,
    pack_units,
    split_units,
)
from experiments.language.targets import next_tokens, unit_loss
from experiments.language.tokenizer import TokenizedCorpus
from gdpjax.training import batch_source, private_training

KEY = jax.random.key(0)
FIELDS = ("tokens", "segment_ids", "num_targets", "num_targets_dropped", "num_sequences", "identities")
ROOM = 8 * 29
"""Sequences of two tokens that hold the targets of eight documents of 30."""
PROPERTY = settings(deadline=None, max_examples=150)


def corpus_of(lengths, users=None, standing="private"):
    """Documents of these lengths, whose tokens are all different: document d has d * 1000 + 1, + 2, ..."""
    documents = tuple(1000 * d + np.arange(1, n + 1, dtype=np.int32) for d, n in enumerate(lengths))
    return TokenizedCorpus("made up", documents, None if users is None else tuple(users), standing)


@st.composite
def corpora(draw):
    """Up to eight documents of up to 30 tokens, and one of four users for each."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    users = draw(st.lists(st.sampled_from("abcd"), min_size=len(lengths), max_size=len(lengths)))
    return corpus_of(lengths, users)


def packings():
    """Arguments of pack_units."""
    keys = {"cap": None, "sample": KEY}
    return st.builds(
        lambda unit, length, count, too_long: {
            "unit": unit,
            "length": length,
            "sequences_per_unit": count,
            "too_long": too_long,
            "key": keys[too_long],
        },
        st.sampled_from(["document", "user"]),
        st.integers(2, 9),
        st.integers(1, 4),
        st.sampled_from(["cap", "sample"]),
    )


def documents_by_unit(corpus, unit):
    """Numbers of the documents of each unit, in order of their first ones."""
    if unit == "document":
        return [[d] for d in range(len(corpus.documents))]
    return [[d for d, user in enumerate(corpus.users) if user == name] for name in dict.fromkeys(corpus.users)]


def targets_of(units):
    """What `next_tokens` gives for units of at most 9 tokens; in one shape for all, so that it is compiled once."""
    padded = [np.zeros((8, ROOM, 9), np.int32) for _ in range(2)]
    for wide, array in zip(padded, (units.tokens, units.segment_ids), strict=True):
        wide[: len(array), : array.shape[1], : units.tokens.shape[2]] = array
    rows = (slice(len(units)), slice(units.tokens.shape[1]), slice(units.tokens.shape[2]))
    return tuple(np.asarray(array)[rows] for array in next_tokens(*padded))


def without(corpus, removed):
    """The corpus without some of its documents."""
    kept = [d for d in range(len(corpus.documents)) if d not in removed]
    return dataclasses.replace(
        corpus,
        documents=tuple(corpus.documents[d] for d in kept),
        users=tuple(corpus.users[d] for d in kept),
    )


@given(corpora(), packings())
@PROPERTY
def test_a_row_holds_tokens_of_its_own_unit_only(corpus, packing):
    units = pack_units(corpus, **packing)
    members = documents_by_unit(corpus, packing["unit"])
    shape = (len(members), packing["sequences_per_unit"], packing["length"])
    assert units.tokens.shape == units.segment_ids.shape == shape
    assert units.tokens.dtype == units.segment_ids.dtype == np.int32
    for row, own in enumerate(members):
        held = units.tokens[row][units.segment_ids[row] > 0]
        assert set(held // 1000) <= set(own)
        assert not units.tokens[row][units.segment_ids[row] == 0].any()


@given(corpora(), packings(), st.data())
@PROPERTY
def test_removing_a_unit_removes_its_row_and_changes_nothing_else(corpus, packing, data):
    units = pack_units(corpus, **packing)
    members = documents_by_unit(corpus, packing["unit"])
    removed = data.draw(st.integers(0, len(members) - 1))
    neighbour = pack_units(without(corpus, members[removed]), **packing)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(neighbour, name), np.delete(getattr(units, name), removed, axis=0))


@given(corpora(), st.sampled_from(["document", "user"]), st.integers(2, 9))
@PROPERTY
def test_with_room_enough_every_token_but_the_first_is_predicted_once_and_in_order(corpus, unit, length):
    units = pack_units(corpus, unit=unit, length=length, sequences_per_unit=ROOM, too_long="refuse")
    targets, is_target = targets_of(units)
    for row, own in enumerate(documents_by_unit(corpus, unit)):
        predicted = targets[row][is_target[row]]
        expected = np.concatenate([corpus.documents[d][1:] for d in own])
        np.testing.assert_array_equal(predicted, expected)
        assert units.num_targets[row] == len(expected)
    assert not units.num_targets_dropped.any()


@given(corpora(), packings())
@PROPERTY
def test_targets_follow_in_the_same_document_and_are_counted(corpus, packing):
    units = pack_units(corpus, **packing)
    targets, is_target = targets_of(units)
    # The tokens of a document are consecutive numbers, and 1000 apart from the next document's.
    np.testing.assert_array_equal(targets[is_target], units.tokens[is_target] + 1)
    np.testing.assert_array_equal(is_target.sum((1, 2)), units.num_targets)
    assert not is_target[..., -1].any()
    members = documents_by_unit(corpus, packing["unit"])
    whole = [sum(max(0, len(corpus.documents[d]) - 1) for d in own) for own in members]
    np.testing.assert_array_equal(units.num_targets + units.num_targets_dropped, whole)


@given(corpora(), packings())
@PROPERTY
def test_segments_count_the_documents_of_a_sequence_from_one(corpus, packing):
    units = pack_units(corpus, **packing)
    for tokens, segments in zip(
        units.tokens.reshape(-1, packing["length"]), units.segment_ids.reshape(-1, packing["length"]), strict=True
    ):
        held = segments[segments > 0]
        assert (segments[: len(held)] > 0).all()  # padding comes last
        assert list(dict.fromkeys(held)) == list(range(1, len(set(held)) + 1))
        for segment in set(held):
            assert len(set(tokens[segments == segment] // 1000)) == 1


def test_a_sampled_unit_keeps_sequences_of_its_own_that_depend_on_the_key():
    corpus = corpus_of([200] * 40)
    arguments = {"unit": "document", "length": 5, "sequences_per_unit": 3, "too_long": "sample"}
    everything = pack_units(corpus, unit="document", length=5, sequences_per_unit=50)
    sampled = pack_units(corpus, **arguments, key=KEY)
    first_tokens = set()
    for own, kept in zip(everything.tokens, sampled.tokens, strict=True):
        places = [int(np.flatnonzero((own == sequence).all(1))[0]) for sequence in kept]
        assert places == sorted(set(places))
        first_tokens.add(places[0])
    assert len(first_tokens) > 5  # each unit has a choice of its own
    again = pack_units(corpus, **arguments, key=jax.random.key(1))
    assert (again.tokens != sampled.tokens).any()


def test_which_sequences_of_a_user_are_kept_does_not_depend_on_what_the_user_is_number():
    corpus = corpus_of([100] * 6, "abcdef")
    backwards = TokenizedCorpus("back", corpus.documents[::-1], corpus.users[::-1], "private")
    arguments = {"unit": "user", "length": 5, "sequences_per_unit": 2, "too_long": "sample", "key": KEY}
    np.testing.assert_array_equal(
        pack_units(corpus, **arguments).tokens, pack_units(backwards, **arguments).tokens[::-1]
    )


def test_units_with_nothing_to_predict_keep_their_row():
    units = pack_units(corpus_of([0, 1, 2]), unit="document", length=4)
    assert units.num_targets.tolist() == [0, 0, 1]
    assert units.tokens.shape == (3, 1, 4)
    assert not units.tokens[:2].any()
    nobody = pack_units(corpus_of([]), unit="document", length=4)
    assert nobody.tokens.shape == (0, 1, 4)
    assert str(nobody.report).startswith("PRIVATE, not for release")


def test_the_report_counts_what_was_left_out_and_is_marked_private():
    units = pack_units(corpus_of([9, 3]), unit="document", length=5)
    assert units.tokens[0].tolist() == [[1, 2, 3, 4, 5]]
    assert units.report == dataclasses.replace(
        units.report, num_units=2, num_units_cut=1, num_targets=6, num_targets_dropped=4, most_sequences=2, filled=0.8
    )
    assert str(units.report) == (
        "PRIVATE, not for release: 2 units, 1 of them cut; 40.0% of the tokens left out; the longest unit needs 2 "
        "sequences; 80.0% of the positions are filled"
    )


def test_wrong_arguments_are_refused():
    corpus = corpus_of([9, 3])
    good = {"unit": "document", "length": 4}
    for changed, message in [
        ({"unit": "sequence"}, "unit must be document or user"),
        ({"unit": "user"}, "does not say whose its documents are"),
        ({"length": 1}, "length must be a whole number of at least 2"),
        ({"length": 4.0}, "length must be a whole number"),
        ({"sequences_per_unit": 0}, "sequences_per_unit must be a whole number of at least 1"),
        ({"too_long": "split"}, "too_long must be cap, sample or refuse"),
        ({"too_long": "sample"}, "a key is needed"),
        ({"key": KEY}, "of no use without"),
        ({"too_long": "sample", "key": 3}, "key must be one key"),
        ({"too_long": "sample", "key": jax.random.split(KEY)}, "key must be one key"),
        ({"too_long": "refuse"}, "a document needs 3 sequences of 4 tokens, more than sequences_per_unit = 1"),
    ]:
        with pytest.raises(UserError, match=message):
            pack_units(corpus, **(good | changed))


# Public text


def test_public_rows_are_dense_and_keep_documents_apart():
    corpus = corpus_of([7, 0, 12, 2, 5], standing="public")
    rows = pack_public(corpus, length=8)
    targets, is_target = (np.asarray(array) for array in next_tokens(rows.tokens, rows.segment_ids))
    expected = np.concatenate([document[1:] for document in corpus.documents])
    np.testing.assert_array_equal(targets[is_target], expected)
    assert (rows.segment_ids[:-1] > 0).sum(1).min() >= 7  # at most one place is empty, but in the last row
    assert len(rows) == 4


def test_rows_that_mix_documents_are_refused_for_text_that_is_not_public():
    for standing in ("private", "evaluation"):
        with pytest.raises(UserError, match="rows that mix documents are for public text"):
            pack_public(corpus_of([5], standing=standing), length=4)
    with pytest.raises(UserError, match="no document of two tokens"):
        pack_public(corpus_of([1, 0], standing="public"), length=4)


# The split


@given(corpora(), st.data())
@PROPERTY
def test_a_unit_is_on_its_side_whoever_else_is_there(corpus, data):
    arguments = {"unit": "user", "length": 5, "sequences_per_unit": 2}
    members = documents_by_unit(corpus, "user")
    removed = data.draw(st.integers(0, len(members) - 1))
    train, held_out = split_units(pack_units(corpus, **arguments), 0.5, KEY)
    neighbours = split_units(pack_units(without(corpus, members[removed]), **arguments), 0.5, KEY)
    assert len(train) + len(held_out) == len(members)
    changed = [len(part) - len(neighbour) for part, neighbour in zip((train, held_out), neighbours, strict=True)]
    assert sorted(changed) == [0, 1]
    for part, neighbour in zip((train, held_out), neighbours, strict=True):
        assert set(neighbour.identities.tolist()) <= set(part.identities.tolist())


def test_the_split_has_about_the_fraction_and_follows_the_key():
    units = pack_units(corpus_of([3] * 2000), unit="document", length=4)
    train, held_out = split_units(units, 0.2, KEY)
    assert 320 < len(held_out) < 480  # six standard deviations about 400
    assert not set(train.identities.tolist()) & set(held_out.identities.tolist())
    assert held_out.report.num_units == len(held_out)
    other = split_units(units, 0.2, jax.random.key(1))[1]
    assert 40 < len(set(other.identities.tolist()) & set(held_out.identities.tolist())) < 130  # 80 by chance


def test_equal_documents_are_on_one_side():
    document = np.arange(5, dtype=np.int32)
    corpus = TokenizedCorpus("copies", (document,) * 30, None, "private")
    train, held_out = split_units(pack_units(corpus, unit="document", length=5), 0.5, KEY)
    assert sorted([len(train), len(held_out)]) == [0, 30]


def test_wrong_splits_are_refused():
    units = pack_units(corpus_of([3]), unit="document", length=4)
    for fraction in (0, 1, -0.1, float("nan")):
        with pytest.raises(UserError, match="fraction must be between 0 and 1"):
            split_units(units, fraction, KEY)
    with pytest.raises(UserError, match="key must be one key"):
        split_units(units, 0.5, 0)


# The loss, and training


def test_the_loss_is_over_the_units_own_targets():
    losses = jnp.array([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    is_target = jnp.array([[True, True, False], [True, False, False]])
    assert unit_loss(losses, is_target) == 3.0
    assert unit_loss(losses, is_target, divisor=6) == 1.5
    assert unit_loss(losses, jnp.zeros_like(is_target)) == 0.0


def bigram_loss(params, tokens, segment_ids):
    """ONE unit under a model that knows the last token only."""
    targets, is_target = next_tokens(tokens, segment_ids)
    logits = params["table"][tokens]
    return unit_loss(optax.softmax_cross_entropy_with_integer_labels(logits, targets), is_target)


def test_units_go_straight_into_private_training_and_are_clipped_as_wholes():
    rng = np.random.default_rng(0)
    documents = tuple(rng.integers(1, 12, n).astype(np.int32) for n in rng.integers(1, 40, 30))
    users = tuple(f"user {u}" for u in rng.integers(0, 9, 30))
    units = pack_units(TokenizedCorpus("t", documents, users, "private"), unit="user", length=8, sequences_per_unit=3)
    plan = gdpjax.make_plan(
        clip=0.1, max_examples=12, expected_batch_size=6, num_steps=3, delta=1e-5, noise_multiplier=1.0, unit=units.unit
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
    assert all(array[indices].shape == (len(is_padding), 3, 8) for array in units.arrays)

    # One unit moves the clipped sum by the clip norm at most, however many sequences it has.
    clipped_sum = jax.jit(gdpjax.clipped_grad(bigram_loss, clip=0.1, batch_argnums=(1, 2)))
    assert units.num_sequences[0] > 1
    is_other = (np.arange(len(units)) > 0)[:, None, None]
    whole, rest = (
        clipped_sum(params, units.tokens * kept, units.segment_ids * kept)["table"] for kept in (1, is_other)
    )
    assert 0.099 < jnp.linalg.norm(whole - rest) < 0.1 + 1e-6
