"""From documents to the examples of private training: one row of the arrays for each unit of privacy.

    units = pack_units(tokenized, unit="user", length=128, sequences_per_unit=4, too_long="sample", key=key)
    data = training.place(*units.arrays)

The unit is what one run of gdpjax protects: a *document*, or a *user* with all documents. Each unit becomes exactly one
row, ``[sequences_per_unit, length]`` tokens, and the loss of that row is one example's loss: gdpjax forms the gradient
of the whole row and clips it once. Whatever a unit wrote moves the clipped sum by at most the clip norm.

What makes this true:

* A sequence never holds tokens of two units. If it did, both units would touch that example, removing one would change
  the gradient of an example that is the other's too, and one unit could touch as many examples as there are sequences
  with its tokens.
* A long unit does not become many rows. With k rows it would be k examples, and epsilon would be for a k-th of it. What
  is over ``sequences_per_unit`` is left out ("cap"), left out at random ("sample"), or refused ("refuse").
* What a unit contributes is a function of that unit and of public numbers. The random choice takes a key and the unit's
  own identity, never a stream that the units before it have used.

Within a row, documents follow each other, told apart by ``segment_ids`` (0 is padding): a position sees only its own
segment, and the last token of a document does not predict the first one of the next.

Public text has no units: `pack_public` fills dense rows, for pre-training.

Mean or sum. `targets.unit_loss` divides either by the unit's own number of targets or by a constant:

* the mean (the default) weighs all units alike. The gradients of short and long units are then closer in size, so one
  clip norm fits more of them.
* a constant that was fixed beforehand, such as ``sequences_per_unit * length``, weighs all *tokens* alike, as
  perplexity does, until clipping cuts the long units.

Both are sound: each is a function of one unit, and the clip bounds it. To divide by the number of targets of the whole
*batch*, as language-model code commonly does, is not: each unit's gradient would then depend on who else was drawn.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from experiments.language.tokenizer import TokenizedCorpus

UnitKind = Literal["document", "user"]
TooLong = Literal["cap", "sample", "refuse"]
LEAST_LENGTH = 2
"""One token to read, and one to predict."""


@dataclasses.dataclass(frozen=True)
class PackingReport:
    """The losses of packing private text. All of it is counted in private text, and not for release.

    Attributes:
      num_units: rows.
      num_units_cut: units that were longer than a row, and lost something.
      num_targets: predicted tokens, over all units.
      num_targets_dropped: those that were left out.
      most_sequences: what the longest unit would have needed.
      filled: the share of the positions that hold a token.
    """

    num_units: int
    num_units_cut: int
    num_targets: int
    num_targets_dropped: int
    most_sequences: int
    filled: float

    def __str__(self) -> str:
        total = max(1, self.num_targets + self.num_targets_dropped)
        return (
            f"PRIVATE, not for release: {self.num_units} units, {self.num_units_cut} of them cut; "
            f"{self.num_targets_dropped / total:.1%} of the tokens left out; the longest unit needs "
            f"{self.most_sequences} sequences; {self.filled:.1%} of the positions are filled"
        )


@dataclasses.dataclass(frozen=True)
class Units:
    """One row for each unit of privacy.

    Attributes:
      unit: what a row is, "document" or "user": the ``unit=`` of `gdpjax.make_plan`.
      tokens: ``int32[num_units, sequences_per_unit, length]``.
      segment_ids: ``int32``, the same shape: 0 where there is padding, else the number of the document in its sequence.
      num_targets: ``int32[num_units]``, the tokens of each unit that are predicted.
      num_targets_dropped: ``int32[num_units]``, those that were left out.
      num_sequences: ``int32[num_units]``, how many sequences each unit would have needed.
      identities: ``uint64[num_units]``, a hash of the user's name, or of the document: random choices about a unit are
        functions of it.
    """

    unit: UnitKind
    tokens: np.ndarray
    segment_ids: np.ndarray
    num_targets: np.ndarray
    num_targets_dropped: np.ndarray
    num_sequences: np.ndarray
    identities: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the arrays that the loss takes of each unit; ``training.place(*units.arrays)`` pads them."""
        return self.tokens, self.segment_ids

    @property
    def report(self) -> PackingReport:
        """Return the report on the packing of these units; private."""
        return PackingReport(
            num_units=len(self),
            num_units_cut=int(np.sum(self.num_sequences > self.tokens.shape[1])),
            num_targets=int(self.num_targets.sum()),
            num_targets_dropped=int(self.num_targets_dropped.sum()),
            most_sequences=int(self.num_sequences.max(initial=0)),
            filled=float(np.mean(self.segment_ids > 0)) if self.segment_ids.size else 0.0,
        )

    def __len__(self) -> int:
        return len(self.tokens)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Dense sequences of public text: ``int32[num_rows, length]`` tokens and segment_ids, which belong to no unit."""

    tokens: np.ndarray
    segment_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


def pack_units(
    corpus: TokenizedCorpus,
    *,
    unit: UnitKind,
    length: int,
    sequences_per_unit: int = 1,
    too_long: TooLong = "cap",
    key: jax.Array | None = None,
) -> Units:
    """Return one row of ``sequences_per_unit`` sequences of ``length`` tokens for each document, or for each user.

    A unit's documents fill its sequences in their order. A document that does not fit goes on in the next sequence, and
    its last token is there again, as the first one, so that every token but a document's first is predicted once.
    Documents of fewer than two tokens have nothing to predict and are left out.

    Rows are in order of the documents, or of the users' first documents. To add or to remove a unit adds or removes its
    row and changes no other.

    Args:
      corpus: documents as tokens, of any standing.
      unit: what is protected.
      length: tokens in a sequence, at least 2. Public: choose it without looking at private text.
      sequences_per_unit: at least 1, and public as well.
      too_long: what becomes of a unit that needs more sequences: "cap" keeps the first ones; "sample" keeps some of
        them, drawn without replacement for each unit alone, in their order; "refuse" raises.
      key: one PRNG key, for "sample" only.

    Raises:
      UserError: users asked for where they are not known, a size or choice out of range, a key that is missing or of no
        use, a unit that is too long for "refuse". The last is a fact about private text.

    >>> corpus = TokenizedCorpus("two", (np.arange(1, 6), np.arange(11, 14)), None, "private")
    >>> units = pack_units(corpus, unit="document", length=4, sequences_per_unit=2)
    >>> units.tokens.tolist()
    [[[1, 2, 3, 4], [4, 5, 0, 0]], [[11, 12, 13, 0], [0, 0, 0, 0]]]
    >>> units.segment_ids.tolist()
    [[[1, 1, 1, 1], [1, 1, 0, 0]], [[1, 1, 1, 0], [0, 0, 0, 0]]]
    >>> units.num_targets.tolist()
    [4, 2]
    """
    length = _check_size("length", length, LEAST_LENGTH)
    sequences_per_unit = _check_size("sequences_per_unit", sequences_per_unit, 1)
    if too_long not in ("cap", "sample", "refuse"):
        raise UserError(f"too_long must be cap, sample or refuse, got {too_long!r}")
    if (too_long == "sample") != (key is not None):
        raise UserError(f'a key is needed with too_long="sample", and of no use without; got {too_long!r}')
    key_bytes = b"" if key is None else _key_bytes(key)
    members, identities = _members(corpus, unit)

    shape = (len(members), sequences_per_unit, length)
    tokens, segment_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    num_targets, num_dropped, num_sequences = np.zeros((3, len(members)), np.int32)
    for row, documents in enumerate(members):
        own_tokens, own_segments = _fill(documents, length)
        num_sequences[row] = len(own_tokens)
        if len(own_tokens) > sequences_per_unit:
            if too_long == "refuse":
                raise UserError(
                    f"a {unit} needs {len(own_tokens)} sequences of {length} tokens, more than sequences_per_unit = "
                    f'{sequences_per_unit}; use too_long="cap" or "sample", or a larger public limit'
                )
            chosen = np.arange(sequences_per_unit)
            if too_long == "sample":
                chosen = _own_choice(key_bytes, identities[row], len(own_tokens), sequences_per_unit)
            num_dropped[row] = _count_targets(own_segments) - _count_targets(own_segments[chosen])
            own_tokens, own_segments = own_tokens[chosen], own_segments[chosen]
        tokens[row, : len(own_tokens)] = own_tokens
        segment_ids[row, : len(own_tokens)] = own_segments
        num_targets[row] = _count_targets(own_segments)
    return Units(unit, tokens, segment_ids, num_targets, num_dropped, num_sequences, identities)


def pack_public(corpus: TokenizedCorpus, *, length: int) -> Rows:
    """Return dense rows of public text for training without noise: documents mix freely, told apart by segments.

    Args:
      corpus: public; anything else is refused, because a row of several documents is no unit of privacy.
      length: tokens in a row, at least 2.

    Raises:
      UserError: a corpus that is not public, a length out of range, nothing to predict.
    """
    if corpus.standing != "public":
        raise UserError(
            f"rows that mix documents are for public text, but {corpus.name} is {corpus.standing}: use pack_units, "
            "where no sequence holds two units"
        )
    tokens, segment_ids = _fill(corpus.documents, _check_size("length", length, LEAST_LENGTH))
    if not len(tokens):
        raise UserError(f"{corpus.name} holds no document of two tokens or more")
    return Rows(tokens, segment_ids)


def split_units(units: Units, fraction: float, key: jax.Array) -> tuple[Units, Units]:
    """Return the units to train on, and about a ``fraction`` of them to measure with: whole units, never sequences.

    Each unit's side is drawn from the key and its own identity alone, so that adding or removing a unit moves no other
    one from side to side. A split by a permutation of all units would: one unit more, and the training data are
    different throughout. The sizes are therefore random, and private as the number of units is. Equal documents, and
    all data of a user, go to the same side.

    What is measured on the second part is a function of private units that epsilon does not cover: look at it, but do
    not release it, and choose nothing by it that is released.

    Args:
      units: of `pack_units`.
      fraction: between 0 and 1.
      key: one PRNG key.

    Raises:
      UserError: a fraction out of range, what is no key.
    """
    if not 0 < fraction < 1:
        raise UserError(f"fraction must be between 0 and 1, got {fraction}")
    key_bytes = _key_bytes(key)
    drawn = [
        int.from_bytes(_own_bytes(key_bytes, identity, b"split"), "little") / 2**64 for identity in units.identities
    ]
    is_held_out = np.array(drawn, np.float64) < fraction
    return _select(units, ~is_held_out), _select(units, is_held_out)


def _members(corpus: TokenizedCorpus, unit: UnitKind) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """Return the documents of each unit, in order of their first one, and ``uint64[num_units]`` identities."""
    if unit == "document":
        contents = [np.asarray(document, "<i4").tobytes() for document in corpus.documents]
        members = [[document] for document in corpus.documents]
    elif unit == "user":
        if corpus.users is None:
            raise UserError(
                f"{corpus.name} does not say whose its documents are, so a statement about users cannot be made; "
                'use unit="document", or give a user for every document'
            )
        by_user: dict[str, list[np.ndarray]] = {}
        for document, user in zip(corpus.documents, corpus.users, strict=True):
            by_user.setdefault(user, []).append(document)
        contents = [user.encode("utf-8", "surrogatepass") for user in by_user]
        members = list(by_user.values())
    else:
        raise UserError(f"unit must be document or user, got {unit!r}")
    hashes = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    return members, np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)


def _fill(documents: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Write documents one after the other into as many sequences as they need.

    Returns tokens and segment_ids, ``int32[num_sequences, length]`` each.
    """
    sequences: list[tuple[np.ndarray, np.ndarray]] = []
    used = length  # of the sequence that is being filled; the first document opens one
    segment = 0
    for document in documents:
        start = 0
        while len(document) - start >= 2:  # a token that nothing follows predicts nothing
            if length - used < 2:
                sequences.append((np.zeros(length, np.int32), np.zeros(length, np.int32)))
                used, segment = 0, 0
            piece = document[start : start + length - used]
            segment += 1
            own_tokens, own_segments = sequences[-1]
            own_tokens[used : used + len(piece)] = piece
            own_segments[used : used + len(piece)] = segment
            used += len(piece)
            start += len(piece) - 1  # the last token of a piece begins the next one
    if not sequences:
        return np.zeros((0, length), np.int32), np.zeros((0, length), np.int32)
    return np.stack([tokens for tokens, _ in sequences]), np.stack([segments for _, segments in sequences])


def _count_targets(segment_ids: np.ndarray) -> np.int64:
    """Number of positions whose next one is of the same document."""
    return np.sum((segment_ids[:, :-1] == segment_ids[:, 1:]) & (segment_ids[:, :-1] > 0))


def _own_choice(key_bytes: bytes, identity: np.uint64, num_sequences: int, num_kept: int) -> np.ndarray:
    """Return which sequences of one unit are kept: a function of the key and of the unit alone."""
    seed = int.from_bytes(_own_bytes(key_bytes, identity, b"sample"), "little")
    return np.sort(np.random.default_rng(seed).choice(num_sequences, num_kept, replace=False))


def _own_bytes(key_bytes: bytes, identity: np.uint64, purpose: bytes) -> bytes:
    """Eight pseudo-random bytes of one unit, for one purpose."""
    return hashlib.blake2b(int(identity).to_bytes(8, "little"), digest_size=8, key=key_bytes, person=purpose).digest()


def _key_bytes(key: jax.Array) -> bytes:
    """Return the words of one PRNG key."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape:
        raise UserError(f"key must be one key of jax.random.key, got {type(key).__name__}")
    return np.asarray(jax.random.key_data(key)).tobytes()


def _select(units: Units, is_kept: np.ndarray) -> Units:
    """Return some of the units, in their order."""
    fields = ("tokens", "segment_ids", "num_targets", "num_targets_dropped", "num_sequences", "identities")
    return dataclasses.replace(units, **{name: getattr(units, name)[is_kept] for name in fields})


def _check_size(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)
