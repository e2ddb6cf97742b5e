"""New tokenizers: texts, read once -> a vocabulary.

char, word, bpe and wordpiece cut a text into units that together are the whole text, spaces included, so that joining
them gives it back. `bert` drops white space; `terms`, which is for word vectors, drops all that is no word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from allyouneed.config import TextConfig
from allyouneed.errors import UserError

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHAR = r"[\s\S]"
WORD = r" ?\w+| ?[^\w\s]|\s"
# WordPiece takes quadratic time for a unit and refuses more than 100 characters: longer words are two units.
PIECE = r" ?\w{1,99}| ?[^\w\s]|\s"
TERMS, LINE = r"\w+|\n", "\n"
BYTES = 256
# Two code points that are no characters stand for a space and for the start of a unit while WordPiece learns.
SPACE, START = "\ufdd0", "\ufdd1"

LONG = 10_000
UNBROKEN = 1000  # characters of a text without blanks that are learned from together
_LONG = re.compile(rf"(?s:.{{{LONG},}}?)\S(?=[ \n])|(?s:.+)")


def cut(text: str) -> list[str]:
    """A long text in parts, cut before a space or newline that ends a word: no unit of any kind crosses such a place.

    One long text takes the library several times longer, and hundreds of bytes of memory per character.
    """
    return [text] if len(text) <= LONG else _LONG.findall(text)


def train(texts: Iterable[str], config: TextConfig) -> tokenizers.Tokenizer:
    """A tokenizer of `config.kind` for these texts; the same texts always give the same one."""
    builds = {"char": _units, "word": _units, "terms": _terms, "bpe": _bpe, "wordpiece": _wordpiece, "bert": _bert}
    tokenizer = builds[config.kind](_parts(texts), config)
    tokenizer.normalizer = _normalizer(config)
    tokenizer.add_special_tokens(list(BERT_SPECIALS if config.kind == "bert" else SPECIALS))
    return tokenizer


def check(config: TextConfig) -> None:
    """Raises a UserError for settings that are wrong for any text."""
    if config.kind == "bpe" and config.vocab < BYTES + len(SPECIALS):
        raise UserError(
            f"text.vocab = {config.vocab} is too small for bpe: {BYTES} bytes and {len(SPECIALS)} special tokens "
            f"make {BYTES + len(SPECIALS)} at least"
        )


def _parts(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        if text:
            empty = False
            for part in cut(text):
                # Without blanks, all of it may be one unit, for which BPE takes more than quadratic time to learn.
                size = UNBROKEN if len(part) > 2 * LONG else len(part)
                yield from (part[start : start + size] for start in range(0, len(part), size))
    if empty:
        raise UserError("there is no text to make a tokenizer from: the training data is empty")


def _units(
    parts: Iterator[str], config: TextConfig, units: Any = None, specials: tuple[str, ...] = SPECIALS
) -> tokenizers.Tokenizer:
    """One token per unit; the most frequent are the vocabulary."""
    pattern, least = (CHAR, 1) if config.kind == "char" else (WORD, config.min_count)
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = units or pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab, min_frequency=least, special_tokens=list(specials), show_progress=False
    )
    return _fit(tokenizer, parts, trainer, config)


def _terms(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    """Words, the most frequent first, and the end of a line; spaces and punctuation are dropped."""
    first, only = (*SPECIALS, LINE), pre_tokenizers.Split(Regex(TERMS), "removed", invert=True)
    ids = _units(parts, config, only, first).get_vocab()
    words = [word for word in sorted(ids, key=ids.__getitem__) if word not in first]
    if not words and config.min_count <= 1 and config.vocab > len(first):
        raise UserError("there is no word in the training text: spaces and punctuation are not words")
    if not words:
        raise UserError(
            f"no word is left: none occurs text.min_count = {config.min_count} times in the training text, or "
            f"text.vocab = {config.vocab} has no room for one; lower the first or raise the second"
        )
    vocabulary = {word: id for id, word in enumerate([*first, *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = only
    return tokenizer


def _bpe(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    """Bytes, and the most frequent pairs of tokens merged until the vocabulary is full."""
    check(config)
    if config.vocab == BYTES + len(SPECIALS):
        parts = islice(parts, 1)  # plain bytes: there is nothing to learn from the rest
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _fit(tokenizer, parts, trainer, config)


def _wordpiece(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    """Pieces of words: the longest piece that fits, then `##` pieces for the rest; a word has the space before it."""
    # The units are cut as they will be, but spaces are hidden from the learner, whose START would replace them.
    units = pre_tokenizers.Split(Regex(PIECE.replace(" ?", f"{SPACE}?")), "isolated")
    learned = _pieces(parts, config, units, [normalizers.Replace(" ", SPACE)])
    pieces = [piece.replace(SPACE, " ") for piece in learned]
    tokenizer = _piece_model(pieces, config, SPECIALS, "<unk>")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex(r"\A##"), ""), decoders.Fuse()])
    return tokenizer


def _bert(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    """BERT's WordPiece: words and marks without the spaces between them; the longest piece that fits, then `##`."""
    units = pre_tokenizers.BertPreTokenizer()
    tokenizer = _piece_model(_pieces(parts, config, units), config, BERT_SPECIALS, "[UNK]")
    tokenizer.pre_tokenizer = units
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def _pieces(parts: Iterator[str], config: TextConfig, units: Any, prepare: Iterable[Any] = ()) -> list[str]:
    """Pieces of the units, the earliest learned first; a piece that begins a unit begins with START.

    The library's own WordPiece trainer gives another vocabulary each time it is called. Its BPE trainer does not, so
    that one learns the pieces, from units that begin with START.
    """
    learner = tokenizers.Tokenizer(models.BPE())
    start = pre_tokenizers.Metaspace(replacement=START, prepend_scheme="always", split=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([units, start])
    trainer = trainers.BpeTrainer(vocab_size=config.vocab, min_frequency=2, show_progress=False)
    vocabulary = _fit(learner, parts, trainer, config, prepare).get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _piece_model(
    learned: list[str], config: TextConfig, specials: tuple[str, ...], unknown: str
) -> tokenizers.Tokenizer:
    """WordPiece of the special tokens, each character at the start of a unit and inside, and then longer pieces."""
    characters = [piece for piece in learned if len(piece) == 1 and piece != START]
    least = len(specials) + 2 * len(characters)
    if config.vocab < least:
        raise UserError(
            f"text.vocab = {config.vocab} is too small for {config.kind}: the {len(characters)} different characters "
            f'of these texts need {least} at least; raise it, or take text.kind = "bpe", which needs 260 for any text'
        )
    longer = (piece[1:] if piece[0] == START else f"##{piece}" for piece in learned if len(piece) > 1)
    pieces = [*specials, *characters, *(f"##{character}" for character in characters), *longer]
    ids = {piece: id for id, piece in enumerate(list(dict.fromkeys(pieces))[: config.vocab])}
    return tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=100))


def _normalizer(config: TextConfig) -> Any:
    """What is done to a text before it is cut into units; None: nothing."""
    if config.kind == "bert":
        return normalizers.BertNormalizer(lowercase=config.lowercase)  # accents go with the upper case
    return normalizers.Lowercase() if config.lowercase else None


def _fit(
    tokenizer: tokenizers.Tokenizer, parts: Iterator[str], trainer: Any, config: TextConfig, prepare: Iterable[Any] = ()
) -> tokenizers.Tokenizer:
    normalizer = _normalizer(config)
    tokenizer.normalizer = normalizers.Sequence([*([normalizer] if normalizer else []), *prepare])
    tokenizer.train_from_iterator(parts, trainer)
    return tokenizer
