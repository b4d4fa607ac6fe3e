"""From documents to the examples of private training: one row of the arrays for each unit of privacy.

    units = pack_units(tokenized, unit="user", length=128, sequences_per_unit=4)
    data = training.place(*units.arrays)

The unit is what one run of gdpjax protects: a *document*, or a *user* with all documents. Each unit becomes exactly one
row, ``[sequences_per_unit, length]`` tokens, and the loss of that row is one example's loss: gdpjax forms the gradient
of the whole row and clips it once. Whatever a unit wrote moves the clipped sum by at most the clip norm.

What makes this true:

* A sequence never holds tokens of two units. If it did, both units would touch that example, removing one would change
  the gradient of an example that is the other's too, and one unit could touch as many examples as there are sequences
  with its tokens.
* A long unit does not become many rows. With k rows it would be k examples, and epsilon would be for a k-th of it. What
  is over ``sequences_per_unit`` is left out.
* What a unit contributes is a function of that unit and of public numbers.

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
import numpy as np

from experiments.language.tokenizer import TokenizedCorpus
from gdpjax.sweeps import UserError

UnitKind = Literal["document", "user"]


@dataclasses.dataclass(frozen=True)
class Units:
    """One row for each unit of privacy.

    Attributes:
      unit: what a row is, "document" or "user": the ``unit=`` of `gdpjax.make_plan`.
      tokens: ``int32[num_units, sequences_per_unit, length]``.
      segment_ids: ``int32``, the same shape: 0 where there is padding, else the number of the document in its sequence.
      identities: for each unit, the user's name or the document, in bytes: random choices about a unit are functions of
        it.
    """

    unit: UnitKind
    tokens: np.ndarray
    segment_ids: np.ndarray
    identities: tuple[bytes, ...]

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the arrays that the loss takes of each unit; ``training.place(*units.arrays)`` pads them."""
        return self.tokens, self.segment_ids

    def __len__(self) -> int:
        return len(self.tokens)


def pack_units(corpus: TokenizedCorpus, *, unit: UnitKind, length: int, sequences_per_unit: int = 1) -> Units:
    """Return one row of ``sequences_per_unit`` sequences for each unit.

    A unit's documents follow each other in as many sequences as they need, of which the first ones are kept. A document
    that does not fit into a sequence goes on in the next one, whose first token is the last one of the former: so every
    token but a document's first is predicted once. Documents of fewer than two tokens have nothing to predict and are
    left out.

    Rows are in order of the documents, or of the users' first documents. To add or to remove a unit adds or removes its
    row and changes no other.

    Args:
      corpus: documents as tokens, of any standing.
      unit: what is protected.
      length: tokens in a sequence, at least 2. Public: choose it without looking at private text.
      sequences_per_unit: at least 1, and public as well.

    Raises:
      UserError: users asked for where they are not known.

    >>> corpus = TokenizedCorpus("two", (np.arange(1, 6), np.arange(11, 14)), None, "private")
    >>> units = pack_units(corpus, unit="document", length=4, sequences_per_unit=2)
    >>> units.tokens.tolist()
    [[[1, 2, 3, 4], [4, 5, 0, 0]], [[11, 12, 13, 0], [0, 0, 0, 0]]]
    >>> units.segment_ids.tolist()
    [[[1, 1, 1, 1], [1, 1, 0, 0]], [[1, 1, 1, 0], [0, 0, 0, 0]]]
    """
    if unit == "document":
        members = [[document] for document in corpus.documents]
        identities = []
        for document in corpus.documents:
            identities.append(np.asarray(document, "<i4").tobytes())
    elif corpus.users is None:
        raise UserError(f"{corpus.name} does not say whose its documents are: name users, or protect documents")
    else:
        by_user: dict[str, list[np.ndarray]] = {}
        for document, user in zip(corpus.documents, corpus.users, strict=True):
            by_user.setdefault(user, []).append(document)
        members = list(by_user.values())
        identities = [user.encode("utf-8", "surrogatepass") for user in by_user]
    shape = (len(members), sequences_per_unit, length)
    tokens = np.zeros(shape, np.int32)
    segment_ids = np.zeros(shape, np.int32)
    for row, documents in enumerate(members):
        own_tokens, own_segments = _fill(documents, length)
        num_kept = min(len(own_tokens), sequences_per_unit)
        tokens[row, :num_kept] = own_tokens[:num_kept]
        segment_ids[row, :num_kept] = own_segments[:num_kept]
    return Units(unit, tokens, segment_ids, tuple(identities))


def pack_public(corpus: TokenizedCorpus, *, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return dense rows of public text for training without noise: documents mix freely, told apart by segments.

    Args:
      corpus: public; anything else is refused, because a row of several documents is no unit of privacy.
      length: tokens in a row, at least 2.

    Returns:
      tokens and segment_ids, ``int32[num_rows, length]`` each.

    Raises:
      UserError: a corpus that is not public.
    """
    if corpus.standing != "public":
        raise UserError(f"rows that mix documents are for public text, but {corpus.name} is {corpus.standing}")
    return _fill(corpus.documents, length)


def split_units(units: Units, fraction: float, key: jax.Array) -> tuple[Units, Units]:
    """Return the units to train on, and about a ``fraction`` of them to measure with: whole units, never sequences.

    Each unit's side is drawn from the key and its own identity alone, so that adding or removing a unit moves no other
    one from side to side. A split by a permutation of all units would: one unit more, and the training data are
    different throughout. The sizes are therefore random, and private as the number of units is. Equal documents, and
    all data of a user, go to the same side.

    What is measured on the second part is a function of private units that epsilon does not cover: look at it, but do
    not release it, and choose nothing by it that is released.
    """
    key_bytes = np.asarray(jax.random.key_data(key)).tobytes()
    is_held_out = np.zeros(len(units), bool)
    for row, identity in enumerate(units.identities):
        drawn = hashlib.blake2b(identity, digest_size=8, key=key_bytes, person=b"split").digest()
        is_held_out[row] = int.from_bytes(drawn, "little") < fraction * 2**64
    return _select(units, ~is_held_out), _select(units, is_held_out)


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


def _select(units: Units, is_kept: np.ndarray) -> Units:
    """Return some of the units, in their order."""
    identities = tuple(units.identities[row] for row in np.flatnonzero(is_kept))
    return Units(units.unit, units.tokens[is_kept], units.segment_ids[is_kept], identities)
