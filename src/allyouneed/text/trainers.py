"""New tokenizers: texts, read once -> a vocabulary.

Each kind cuts text into units that together are the whole text, spaces included, so that joining them gives it back;
only `terms`, which is for word vectors, drops what is no word.
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
CHAR = r"[\s\S]"
WORD = r" ?\w+| ?[^\w\s]|\s"
# WordPiece searches a unit in quadratic time and refuses more than 100 characters: longer words are two units.
PIECE = r" ?\w{1,99}| ?[^\w\s]|\s"
TERMS, LINE = r"\w+|\n", "\n"
BYTES = 256
# Noncharacters, which stand for a space and for the start of a unit while WordPiece learns.
SPACE, START = "\ufdd0", "\ufdd1"

LONG = 10_000
_LONG = re.compile(rf"(?s:.{{{LONG},}}?)\S(?=[ \n])|(?s:.+)")


def cut(text: str) -> list[str]:
    """A long text in parts, cut before a space or newline that ends a word: no unit of any kind crosses such a place.

    The library takes several times longer, and hundreds of bytes a character, for one long text.
    """
    return [text] if len(text) <= LONG else _LONG.findall(text)


def train(texts: Iterable[str], config: TextConfig, spaced: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer of `config.kind` for these texts; the same texts always give the same one. `spaced`: a word is
    whatever stands between single spaces, and nothing else is a token."""
    build = {"char": _char, "word": _word, "terms": _terms, "bpe": _bpe, "wordpiece": _wordpiece}[config.kind]
    if spaced:
        build = _spaced
    tokenizer = build(_parts(texts), config)
    tokenizer.normalizer = normalizers.Lowercase() if config.lowercase else None
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def check(config: TextConfig) -> None:
    """Complains of what no text can make good."""
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
            yield from cut(text)
    if empty:
        raise UserError("there is no text to make a tokenizer from: the training data is empty")


def _char(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    return _level(parts, config, CHAR, 1)


def _word(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    return _level(parts, config, WORD, config.min_count)


def _spaced(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    tokenizer = _level(parts, config, " ", config.min_count, "removed")
    tokenizer.decoder = None  # which puts the spaces back
    return tokenizer


def _level(
    parts: Iterator[str], config: TextConfig, pattern: str, least: int, matches: str = "isolated"
) -> tokenizers.Tokenizer:
    """One token a unit; the most frequent units are the vocabulary. What the pattern matches is a unit, or removed."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), matches)
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab, min_frequency=least, special_tokens=list(SPECIALS), show_progress=False
    )
    return _fit(tokenizer, parts, trainer, config)


def _terms(parts: Iterator[str], config: TextConfig) -> tokenizers.Tokenizer:
    """Words alone, the most frequent first, and the end of a line; spaces and punctuation are dropped."""
    learner = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    only = pre_tokenizers.Split(Regex(TERMS), "removed", invert=True)
    learner.pre_tokenizer = only
    first = [*SPECIALS, LINE]
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab, min_frequency=config.min_count, special_tokens=first, show_progress=False
    )
    ids = _fit(learner, parts, trainer, config).get_vocab()
    words = [word for word in sorted(ids, key=ids.__getitem__) if word not in first]
    if not words and config.min_count <= 1 and config.vocab > len(first):
        raise UserError("there is no word in the training text: spaces and punctuation are none")
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
    """Pieces of words: the longest piece that fits, then `##` pieces for the rest.

    The library's own WordPiece trainer gives another vocabulary each time it is called. Its BPE trainer does not, so
    that one learns the pieces, from units that begin with a mark: a piece with the mark begins a word, one without
    continues it.
    """
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE.replace(" ?", f"{SPACE}?")), "isolated"),
            pre_tokenizers.Metaspace(replacement=START, prepend_scheme="always", split=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=config.vocab, min_frequency=2, show_progress=False)
    _fit(learner, parts, trainer, config, [normalizers.Replace(" ", SPACE)])
    vocabulary = learner.get_vocab()
    learned = [piece.replace(SPACE, " ") for piece in sorted(vocabulary, key=vocabulary.__getitem__)]

    characters = [piece for piece in learned if len(piece) == 1 and piece != START]
    least = len(SPECIALS) + 2 * len(characters)
    if config.vocab < least:
        raise UserError(
            f"text.vocab = {config.vocab} is too small for wordpiece: the {len(characters)} different characters of "
            f'these texts need {least} at least; raise it, or take text.kind = "bpe", which needs 260 for any text'
        )
    pieces = [*SPECIALS, *characters, *(f"##{character}" for character in characters)]
    longer = (piece[1:] if piece[0] == START else f"##{piece}" for piece in learned if len(piece) > 1)
    pieces = list(dict.fromkeys([*pieces, *longer]))[: config.vocab]

    ids = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="<unk>", max_input_chars_per_word=100))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex(r"\A##"), ""), decoders.Fuse()])
    return tokenizer


def _fit(
    tokenizer: tokenizers.Tokenizer, parts: Iterator[str], trainer: Any, config: TextConfig, prepare: Iterable[Any] = ()
) -> tokenizers.Tokenizer:
    lower = [normalizers.Lowercase()] if config.lowercase else []
    tokenizer.normalizer = normalizers.Sequence([*lower, *prepare])
    tokenizer.train_from_iterator(parts, trainer)
    return tokenizer
