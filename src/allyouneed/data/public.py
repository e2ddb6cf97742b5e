"""Public sets of texts, with address, checksum, licence and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from allyouneed.data.fetch import File
from allyouneed.data.formats.pairs import PairTable, open_pairs
from allyouneed.data.formats.squad import open_questions
from allyouneed.data.formats.table import Table
from allyouneed.data.formats.textfile import TextFile

Row = Sequence[str]
# From the local paths of the files, in their order, and whether to swap the two sides: the rows of each part. The rows
# of running text are documents, each in pieces of UTF-8; those of pictures are splits.
Reader = Callable[[Sequence[Path], bool], Mapping[str, Any]]


@dataclass(frozen=True)
class PublicSet:
    """A public data set."""

    name: str
    shape: str
    what: str
    licence: str
    origin: str
    files: tuple[File, ...]
    read: Reader
    notes: tuple[str, ...]
    held: tuple[float, float] = (0.0, 0.0)  # of train, for valid and for test, by a hash of the first text
    bytes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of one document that each split has
    documents: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # that each split has


def _parallel(*names: str) -> Reader:
    """Each split has two files, one after the other."""

    def read(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Row]]:
        columns = (1, 0) if reverse else (0, 1)

        def rows(left: Path, right: Path) -> Iterator[Row]:
            yield from PairTable(Table((TextFile(left), TextFile(right)), "parallel", ("1", "2")), *columns).rows()

        return {name: rows(*both) for name, both in zip(names, zip(paths[::2], paths[1::2]))}

    return read


def _one_table(swapped: bool) -> Reader:
    """One TSV without splits."""

    def read(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Row]]:
        return {"train": open_pairs([TextFile(paths[0])], "1", "2", reverse != swapped, "false").rows()}

    return read


def _labelled(names: dict[str, str], rows: Callable[[Path], Iterable[tuple[str, str]]]) -> Reader:
    """Files of train, valid and test, or of train and test. `names`: better names for some labels."""

    def read(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Row]]:
        def named(path: Path) -> Iterator[Row]:
            return ((text, names.get(label, label)) for text, label in rows(path))

        parts = ("train", "valid", "test") if len(paths) == 3 else ("train", "test")
        return {part: named(path) for part, path in zip(parts, paths)}

    return read


def _table(path: Path) -> Iterator[tuple[str, str]]:
    """text<TAB>label; in reviews `<br />` is the end of a line."""
    rows = open_pairs([TextFile(path)], "1", "2", header="false").rows()
    return ((text.replace("<br />", "\n"), label) for text, label in rows)


def _trec(path: Path) -> Iterator[tuple[str, str]]:
    """LABEL:fine question, one per line, in Latin-1; the fine part of the label is left out."""
    for line in path.read_text(encoding="latin-1").removesuffix("\n").split("\n"):
        label, _, question = line.partition(" ")
        yield question, label.partition(":")[0]


def _tagged(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Row]]:
    """CoNLL files of train, valid and test."""
    from allyouneed.data.formats.conll import open_tags  # which imports numpy: names of data sets come without it

    return {name: open_tags(TextFile(path)).rows() for name, path in zip(("train", "valid", "test"), paths)}


def _asked(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Row]]:
    """SQuAD's JSON of train and test."""
    return {name: open_questions(TextFile(path)).rows() for name, path in zip(("train", "test"), paths)}


def _one_text(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Iterable[bytes]]]:
    return {"train": [TextFile(paths[0]).chunks()]}


def _reviews(paths: Sequence[Path], reverse: bool) -> Mapping[str, Iterable[Iterable[bytes]]]:
    """One document per line, in which `<br />` is the end of a line, without the label after a tab."""
    lines = chain.from_iterable(TextFile(path).lines() for path in paths)
    return {"train": ([line.partition("\t")[0].replace("<br />", "\n").encode()] for line in lines)}


MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr", "test_2017": "test_2017_flickr"}
MULTI30K_FILES = {
    "train.en": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.de": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.fr": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.en": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.de": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.fr": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    "test_2016_flickr.en": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.de": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.fr": (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
    "test_2017_flickr.en": (19138, "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074"),
    "test_2017_flickr.de": (21471, "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee"),
    "test_2017_flickr.fr": (20434, "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496"),
}
TATOEBA_FILES = {
    "eng-ita": (510396, "0d8abb3f13ce4b561fac2383f9e95f43c99598a011baee8867a6b8e9c09d6483"),
    "eng-fra": (2227344, "a7a11d8a0e1a379284e1b973722074baf44089d3ba9f5d635cc0e5f7078788f0"),
}

IMDB_TRAIN = File("imdb/train.tsv.xz", 9323188, "20396bff81d8589b9055034438df4081bfdf521b3b38be541aff537a684afbf9")
IMDB_UNLABELLED = File(
    "imdb/unlabelled.txt.xz", 18231856, "4f71981017cd2418b1b24aaadcb79ee39123eec51978ab19bff33f57682be916"
)

WNUT17 = "https://raw.githubusercontent.com/leondz/emerging_entities_17/master"
WNUT17_FILES = {
    "train": ("wnut17train.conll", 493781, "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
    "dev": ("emerging.dev.conll", 114749, "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
    "test": ("emerging.test.annotated", 192425, "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"),
}


def _imdb_text(name: str, what: str, files: tuple[File, ...], splits: dict[str, tuple[int, int]]) -> PublicSet:
    counts = ", ".join(f"{high - low:,} reviews are {split}" for split, (low, high) in splits.items())
    return PublicSet(
        name=name,
        shape="text",
        what=what,
        licence="research use",
        origin="ai.stanford.edu/~amaas/data/sentiment",
        files=files,
        read=_reviews,
        notes=(
            "a review is a document; `<br />` is read as the end of a line",
            f"in the order of the files: {counts}",
        ),
        documents=splits,
    )


def _multi30k(source: str, target: str) -> PublicSet:
    raw = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
    names = [f"{stem}.{side}" for stem in MULTI30K_SPLITS.values() for side in (source, target)]
    return PublicSet(
        name=f"multi30k-{source}-{target}",
        shape="pairs",
        what="image captions, 29,000 pairs",
        licence="non-commercial use",
        origin="github.com/multi30k/dataset",
        files=tuple(File(f"multi30k/{name}.gz", *MULTI30K_FILES[name], f"{raw}{name}.gz") for name in names),
        read=_parallel(*MULTI30K_SPLITS),
        notes=("official splits: train, valid = val, test = test_2016_flickr, and test_2017 = test_2017_flickr",),
    )


def _tatoeba(source: str, target: str) -> PublicSet:
    name = "-".join(sorted((source, target)))
    return PublicSet(
        name=f"tatoeba-{source}-{target}",
        shape="pairs",
        what={"eng-ita": "short sentences, 32,135 pairs", "eng-fra": "short sentences, 167,130 pairs"}[name],
        licence="CC BY 2.0 FR",
        origin="tatoeba.org",
        files=(File(f"tatoeba/{name}.tsv.xz", *TATOEBA_FILES[name]),),
        read=_one_table(swapped=source != "eng"),
        notes=(
            "split by a hash of the source, so that no source is in two splits: a fiftieth each for valid and test",
            "a source may have several translations, each a pair of its own",
        ),
        held=(1 / 50, 1 / 50),
    )


WORDS = PublicSet(
    name="words",
    shape="word tests",
    what="19,544 analogies, and 353 pairs of words with their similarity as people judge it; `ayn test` asks them",
    licence="Apache-2.0 / unclear",
    origin="github.com/tmikolov/word2vec",
    files=(
        File(
            "words/questions-words.txt",
            603955,
            "8c29b3332afc46f3fb8be04cb5297bf96f39aa7131272dff57869b4485b22a36",
            "https://raw.githubusercontent.com/tmikolov/word2vec/master/questions-words.txt",
        ),
        File(
            "words/wordsim353.tsv",
            7186,
            "f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d",
            "https://raw.githubusercontent.com/piskvorky/gensim/develop/gensim/test/test_data/wordsim353.tsv",
        ),
    ),
    read=lambda paths, reverse: {},  # no task trains on it
    notes=(),
)
TEXT_SETS = (
    WORDS,
    _multi30k("en", "de"),
    _multi30k("de", "en"),
    _multi30k("en", "fr"),
    _multi30k("fr", "en"),
    _tatoeba("eng", "ita"),
    _tatoeba("ita", "eng"),
    _tatoeba("eng", "fra"),
    _tatoeba("fra", "eng"),
    PublicSet(
        name="tinyshakespeare",
        shape="text",
        what="plays of Shakespeare, 1,115,394 characters",
        licence="public domain",
        origin="github.com/karpathy/char-rnn",
        files=(
            File(
                "tinyshakespeare/input.txt",
                1115394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            ),
        ),
        read=_one_text,
        notes=("the first 90 % of the characters are train, the rest is valid; test is the same text as valid",),
        bytes={"train": (0, 1003854), "valid": (1003854, 1115394), "test": (1003854, 1115394)},
    ),
    _imdb_text(
        "imdb-unlabelled",
        "film reviews without labels, 50,000 documents",
        (IMDB_UNLABELLED,),
        {"train": (0, 49_000), "valid": (49_000, 49_500), "test": (49_500, 50_000)},
    ),
    _imdb_text(
        "imdb-text",
        "the film reviews that are not in IMDB's test, without their labels, 75,000 documents",
        (IMDB_TRAIN, IMDB_UNLABELLED),
        {"train": (0, 74_000), "valid": (74_000, 74_500), "test": (74_500, 75_000)},
    ),
    PublicSet(
        name="sst2",
        shape="labels",
        what="sentences of film reviews, positive or negative, 9,613",
        licence="research use",
        origin="github.com/clairett/pytorch-sentiment-classification",
        files=(
            File("sst2/train.tsv", 720259, "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920"),
            File("sst2/dev.tsv", 92057, "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359"),
            File("sst2/test.tsv", 188749, "831169c7e2e429d6026e1bdbb542f33b636e3e596caad9602ebc953c205928b7"),
        ),
        read=_labelled({"0": "negative", "1": "positive"}, _table),
        notes=("official splits: train 6,920, valid 872, test 1,821; 0 is called negative, 1 positive",),
    ),
    PublicSet(
        name="trec",
        shape="labels",
        what="questions by what they ask for, 6 classes, 5,952",
        licence="research use",
        origin="cogcomp.seas.upenn.edu/Data/QA/QC",
        files=(
            File(
                "trec/train.txt",
                335858,
                "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
                "https://cogcomp.seas.upenn.edu/Data/QA/QC/train_5500.label",
            ),
            File(
                "trec/test.txt",
                23354,
                "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
                "https://cogcomp.seas.upenn.edu/Data/QA/QC/TREC_10.label",
            ),
        ),
        read=_labelled({}, _trec),
        notes=(
            "official test of 500 questions; a tenth of train is held out for valid by a hash of the text",
            "the coarse classes only: the part before the colon",
        ),
        held=(1 / 10, 0.0),
    ),
    PublicSet(
        name="imdb",
        shape="labels",
        what="film reviews, positive or negative, 50,000",
        licence="research use",
        origin="ai.stanford.edu/~amaas/data/sentiment",
        files=(
            IMDB_TRAIN,
            File("imdb/test.tsv.xz", 9083800, "0e7284d56fb74fd78b25d4da28042d4521f6572b819078d0a0eca09b38fd60f4"),
        ),
        read=_labelled({"0": "negative", "1": "positive"}, _table),
        notes=(
            "official test of 25,000 reviews; a twentieth of train is held out for valid by a hash of the text",
            "0 is called negative, 1 positive",
        ),
        held=(1 / 20, 0.0),
    ),
    PublicSet(
        name="wnut17",
        shape="tags",
        what="new and rare names in messages, 6 types, 5,690 sentences",
        licence="CC BY 4.0",
        origin="github.com/leondz/emerging_entities_17",
        files=tuple(
            File(f"wnut17/{name}.conll", size, sha256, f"{WNUT17}/{theirs}")
            for name, (theirs, size, sha256) in WNUT17_FILES.items()
        ),
        read=_tagged,
        notes=("official splits: train 3,394, valid 1,009, test 1,287 sentences",),
    ),
    PublicSet(
        name="squad",
        shape="questions",
        what="questions about Wikipedia's articles, 9,301",
        licence="CC BY-SA 4.0",
        origin="rajpurkar.github.io/SQuAD-explorer",
        files=(
            File("squad/train.json", 3795488, "b31baa975bb779db67974753bff4091c56fa08aa7ec6e8a5b78c7e0c869d780f"),
            File("squad/dev.json", 443773, "44da0b96e3fbac00868e6e4d5ced1a3a6a5500aaf86430fb1f1f8b5a053e50e2"),
        ),
        read=_asked,
        notes=(
            "the questions of SQuAD 1.1's dev file only, split by article: 36 articles with 8,378 questions for train "
            "and valid, 6 articles with 923 for the test; scores do not compare with those of the whole SQuAD",
            "a twentieth of train is held out for valid by a hash of the text, so that no text is in two splits",
        ),
        held=(1 / 20, 0.0),
    ),
    PublicSet(
        name="enwik8",
        shape="text",
        what="Wikipedia as XML, 100,000,000 bytes",
        licence="CC BY-SA",
        origin="mattmahoney.net/dc",
        files=(
            File(
                "enwik8/enwik8.gz",
                36548940,
                "d52ea2118b505f79007e084b2f49acef9fd0e45fb481f84b2cab0a7191a7ef60",
                "https://mattmahoney.net/dc/enwik8.zip",
                member="enwik8",
                content_sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            ),
        ),
        read=_one_text,
        notes=("the usual splits: 90, 5 and 5 million bytes",),
        bytes={"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 100_000_000)},
    ),
)
