"""Tokenizers from vocab.txt, vocab.json, merges.txt and SentencePiece files give the ids of the libraries that wrote
them."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from allyouneed.errors import UserError
from allyouneed.exchange.sentencepieces import read_pieces
from allyouneed.exchange.vocabularies import read_tokenizers
from allyouneed.text import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

ENGLISH = [
    *("the", "small", "house", "in", "forest", "nobody", "lived", "there", "Once", "upon", "a", "time", "was", "it"),
    *("12", "305", "and,", "or.", "isn't", "<b>", "café"),
]
GERMAN = [
    *("das", "kleine", "Haus", "im", "Wald", "niemand", "wohnte", "dort", "Es", "war", "einmal", "12", "305", "und,"),
    *("oder.", "größer", "Äpfel", "naïve", "中国", "我", "Привет"),
]
TEXTS = [
    *(
        "",
        " ",
        "   ",
        "\t",
        "\n",
        "a",
        "the small house",
        "  the  small   house  ",
        " the",
        "the ",
        "the\tsmall\nhouse",
    ),
    *("the\r\nsmall", "\n\nthe\n", "cafe\u0301", "café", "naïve gro\u0308ßer größer", "THE SMALL", "a\u0301\u0302"),
    *("中国 house 我们", "我", "中", "the 中 house", "the 中国 house", "中国", "我中", "👩\u200d👩\u200d👧 family"),
    *("שלום עולם", "مرحبا the", "the\x00house", "\x07bell\x7f", "\u200b\ufeffthe", "\u2028the\u00a0house"),
    *("ｔｈｅ ｈｏｕｓｅ １２", "～ ~", "\u3000the\u3000house", "½ ² ﬁ ™", "ﾊﾞﾅﾅ ｶﾞ", "각 \u1100\u1161\u11a8", "𝕥𝕙𝕖"),
    *("Q@#", "Q", "12 305 99", "the" * 200, "x" * 150, "ß", "ı İ", "<b>the</b>", "isn't it, or.", "▁the▁house"),
    *("Привет, the", "Ü U\u0308\u0304", "\U0010fffd \ue000中\ue001", "…", "é" * 30, "е", "हिन्दी"),
]
SOME = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = st.lists(st.sampled_from([*ENGLISH, *GERMAN, " ", "  ", "\n", "中", "é", "e\u0301", "Q"])).map(" ".join)
ANY = st.one_of(st.text(max_size=40), WORDS, st.text(st.sampled_from("thea s中国我éQ.\n,▁"), max_size=30))


def sentences(words: list[str], seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(words, k=8)) for _ in range(300)]


def pieces_of(words: list[str], **options: Any) -> bytes:
    """A new SentencePiece model."""
    out = io.BytesIO()
    settings = {"vocab_size": 120, "hard_vocab_limit": False, "character_coverage": 1.0, "num_threads": 1, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(words, 1)), model_writer=out, minloglevel=2, **settings
    )
    return out.getvalue()


def names_of(data: bytes) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [model.id_to_piece(id) for id in range(len(model))]


def marian_folder(folder: Path, **options: Any) -> Path:
    folder.mkdir()
    sides = {"source.spm": pieces_of(ENGLISH, **options), "target.spm": pieces_of(GERMAN, **options)}
    union = {name: None for data in sides.values() for name in names_of(data) if name not in ("<unk>", "<s>", "</s>")}
    shuffled = random.Random(3).sample(list(union), len(union))
    names = ["</s>", "<unk>", *shuffled, ">>de<<", ">>nds<<", "<pad>"]
    for name, data in sides.items():
        (folder / name).write_bytes(data)
    write(folder / "vocab.json", {name: id for id, name in enumerate(names)})
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def marian(root) -> Path:
    return marian_folder(root / "marian")


@pytest.fixture(scope="module")
def marian_bpe(root) -> Path:
    return marian_folder(root / "marian_bpe", model_type="bpe")


@pytest.fixture(scope="module")
def llama(root) -> Path:
    folder = root / "llama"
    folder.mkdir()
    options = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 420}
    data = pieces_of(ENGLISH + GERMAN, remove_extra_whitespaces=False, split_digits=True, **options)
    (folder / "tokenizer.model").write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def bytelevel(root) -> Path:
    """vocab.json and merges.txt with the special tokens of GPT-2 and of RoBERTa."""
    folder = root / "bytelevel"
    folder.mkdir()
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        sentences(ENGLISH + GERMAN, 2),
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    made.model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def wordpiece(root) -> Path:
    folder = root / "wordpiece"
    folder.mkdir()
    letters = sorted({letter for word in ENGLISH + GERMAN for letter in word + word.lower()})
    words = sorted({word for word in ENGLISH + GERMAN if word.isalpha()} | {"the", "cafe", "naive"})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(names)) + "\n", encoding="utf-8")
    return folder


def copy(folder: Path, to: Path, **extra: Any) -> Path:
    """The same files, and JSON files by their names without the ending."""
    to.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    for name, value in extra.items():
        write(to / f"{name}.json", value)
    return to


def with_template(ours: Tokenizer, *texts: str) -> list[int]:
    return tokenizers.Tokenizer.from_str(ours.to_json()).encode(*texts).ids


def same_as_transformers(folder: Path, kind: str, name: str) -> None:
    """Ids without and with the template, of one text and of two, and the text of the ids."""
    ours, theirs = read_tokenizers(folder, kind)["tokenizer.json"], getattr(transformers, name).from_pretrained(folder)

    def check(text: str) -> None:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids, text
        assert with_template(ours, text) == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text

    for text in TEXTS:
        check(text)
    assert with_template(ours, "the", "house") == theirs.encode("the", "house")
    SOME(given(ANY)(check))()


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}], ids=str
)
def test_a_vocab_txt_gives_the_ids_of_bert(wordpiece, tmp_path, kind, config):
    folder = copy(wordpiece, tmp_path / "bert", tokenizer_config=config)
    same_as_transformers(folder, kind, {"bert": "BertTokenizer", "distilbert": "DistilBertTokenizer"}[kind])


def test_bert_tokens_may_have_other_names(wordpiece, tmp_path):
    folder = copy(wordpiece, tmp_path / "bert")
    text = (folder / "vocab.txt").read_text(encoding="utf-8").replace("[CLS]", "<c>").replace("[UNK]", "<?>")
    (folder / "vocab.txt").write_text(text, encoding="utf-8")
    write(folder / "tokenizer_config.json", {"cls_token": {"content": "<c>"}, "unk_token": "<?>"})
    ours = read_tokenizers(folder, "bert")["tokenizer.json"]
    theirs = transformers.BertTokenizer.from_pretrained(folder, cls_token="<c>", unk_token="<?>")
    assert with_template(ours, "the Ω") == theirs.encode("the Ω")
    assert ours.unk == 1


@pytest.mark.parametrize("prefix", [False, True])
def test_vocab_and_merges_give_the_ids_of_gpt2(bytelevel, tmp_path, prefix):
    folder = copy(bytelevel, tmp_path / "gpt2", tokenizer_config={"add_prefix_space": prefix})
    same_as_transformers(folder, "gpt2", "GPT2Tokenizer")


@pytest.mark.parametrize("prefix", [False, True])
def test_vocab_and_merges_give_the_ids_of_roberta(bytelevel, tmp_path, prefix):
    folder = copy(bytelevel, tmp_path / "roberta", tokenizer_config={"add_prefix_space": prefix})
    same_as_transformers(folder, "roberta", "RobertaTokenizer")


def test_the_mask_of_roberta_takes_the_space_before_it(bytelevel):
    ours = read_tokenizers(bytelevel, "roberta")["tokenizer.json"]
    assert with_template(ours, "the <mask>") == [ours.bos, *ours.encode("the"), ours.mask, ours.eos]


def test_added_tokens_keep_their_ids(bytelevel, tmp_path):
    size = len(json.loads((bytelevel / "vocab.json").read_text(encoding="utf-8")))
    folder = copy(bytelevel, tmp_path / "gpt2", added_tokens={"<extra>": size, "<more>": size + 1})
    ours = read_tokenizers(folder, "gpt2")["tokenizer.json"]
    assert len(ours) == size + 2
    assert ours.encode("<more><extra>") == [size + 1, size]
    declared = {str(size): {"content": "<extra>", "special": True}}
    folder = copy(bytelevel, tmp_path / "other", tokenizer_config={"added_tokens_decoder": declared})
    ours = read_tokenizers(folder, "gpt2")["tokenizer.json"]
    assert with_template(ours, "<extra>") == [size]
    assert ours.encode("<extra>") != [size]


def test_gpt2_begins_with_bos_if_asked_to(bytelevel, tmp_path):
    folder = copy(bytelevel, tmp_path / "gpt2", tokenizer_config={"add_bos_token": True})
    ours = read_tokenizers(folder, "gpt2")["tokenizer.json"]
    theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    assert with_template(ours, "the") == theirs.encode("the") == [theirs.bos_token_id, *ours.encode("the")]
    assert with_template(ours, "the", "house") == theirs.encode("the", "house")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["tokenizer.json", "tokenizer.target.json"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model_type": "bpe"},
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"byte_fallback": True, "vocab_size": 400},
    ],
    ids=str,
)
def test_marian_gives_the_ids_of_transformers(root, options, side):
    folder = root / str(abs(hash(str(options))))
    if not folder.exists():
        marian_folder(folder, **options)
    ours, theirs = read_tokenizers(folder, "marian")[side], transformers.MarianTokenizer.from_pretrained(folder)

    def check(text: str) -> None:
        key = "text" if side == "tokenizer.json" else "text_target"
        assert ours.encode(text) == theirs(**{key: text}, add_special_tokens=False)["input_ids"], text
        assert with_template(ours, text) == theirs(**{key: text})["input_ids"], text

    for text in TEXTS:
        check(text)
    SOME(given(ANY)(check))()


def test_every_id_of_marian_is_decoded(marian):
    ours, theirs = read_tokenizers(marian, "marian"), transformers.MarianTokenizer.from_pretrained(marian)
    specials, size = set(theirs.all_special_ids), len(theirs)
    assert [len(side) for side in ours.values()] == [size, size]
    plain = [id for id in range(size) if id not in specials]
    drawn = random.Random(1)
    for ids in [*([id] for id in plain), *(drawn.choices(plain, k=12) for _ in range(200))]:
        wanted = theirs.decode(ids, clean_up_tokenization_spaces=False)
        assert {side.decode(ids) for side in ours.values()} == {wanted}, ids
        stream = ours["tokenizer.target.json"].stream()
        assert "".join([*map(stream.add, ids), stream.end()]) == wanted


def test_a_language_code_before_a_text_is_one_token(marian):
    ours, theirs = (
        read_tokenizers(marian, "marian")["tokenizer.json"],
        transformers.MarianTokenizer.from_pretrained(marian),
    )
    for text in (">>de<< the house", ">>nds<<the house", ">>de<<"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.token(ours.encode(text)[0]) == text[: text.index("<<") + 2]


def test_typed_special_tokens_of_marian_are_text(marian):
    for ours in read_tokenizers(marian, "marian").values():
        for text in ("</s>", "<pad>", "a</s>b"):
            assert not {ours.eos, ours.pad} & set(ours.encode(text))


def test_a_piece_that_vocab_json_lacks_is_never_used(marian, tmp_path):
    folder = copy(marian, tmp_path / "fewer")
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    names = [name for name in ids if name not in ("▁the", "t")]
    write(folder / "vocab.json", {name: id for id, name in enumerate(names)})
    ours = read_tokenizers(folder, "marian")["tokenizer.json"]
    assert len(ours) == len(names)
    assert ours.encode("house the") == [
        names.index("▁house"),
        names.index("▁"),
        ours.unk,
        names.index("h"),
        names.index("e"),
    ]


def test_marian_may_have_a_vocabulary_per_side(marian, tmp_path):
    folder = copy(marian, tmp_path / "two", tokenizer_config={"separate_vocabs": True})
    for vocabulary, pieces in (("vocab.json", "source.spm"), ("target_vocab.json", "target.spm")):
        names = ["</s>", "<unk>", *names_of((folder / pieces).read_bytes())[3:], "<pad>"]
        write(folder / vocabulary, {name: id for id, name in enumerate(names)})
    ours = read_tokenizers(folder, "marian")
    theirs = transformers.MarianTokenizer.from_pretrained(folder, target_vocab_file=str(folder / "target_vocab.json"))
    text = "das kleine house"
    assert with_template(ours["tokenizer.json"], text) == theirs(text)["input_ids"]
    assert with_template(ours["tokenizer.target.json"], text) == theirs(text_target=text)["input_ids"]
    (folder / "target_vocab.json").unlink()
    with pytest.raises(UserError, match=r"there is no file .*target_vocab\.json"):
        read_tokenizers(folder, "marian")


def test_llama_gives_the_ids_of_sentencepiece_and_of_transformers(llama, tmp_path):
    llama = copy(llama, tmp_path / "llama", tokenizer_config={"add_bos_token": True})
    ours, theirs = read_tokenizers(llama, "llama")["tokenizer.json"], transformers.LlamaTokenizer.from_pretrained(llama)
    real = sentencepiece.SentencePieceProcessor(model_file=str(llama / "tokenizer.model"))

    def check(text: str) -> None:
        ids = real.encode(text) if "\0" not in text else theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == real.decode(ids), text
        if not text.startswith((" ", "▁")):  # transformers drops a space at the beginning
            assert with_template(ours, text) == theirs.encode(text), text

    for text in [*TEXTS, "<0x41>"]:
        check(text)
    SOME(given(ANY)(check))()


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_llama_has_the_template_of_its_config(llama, tmp_path, start, end):
    folder = copy(llama, tmp_path / "llama", tokenizer_config={"add_bos_token": start, "add_eos_token": end})
    ours = read_tokenizers(folder, "llama")["tokenizer.json"]
    theirs = transformers.LlamaTokenizer.from_pretrained(folder)
    assert with_template(ours, "the") == theirs.encode("the")
    assert with_template(ours, "the", "house") == theirs.encode("the", "house")


def test_llama_begins_with_bos_by_default(llama):
    ours = read_tokenizers(llama, "llama")["tokenizer.json"]
    assert with_template(ours, "the") == [ours.bos, *ours.encode("the")]


def test_pairs_are_merged_in_the_order_of_their_scores(tmp_path):
    drawn = random.Random(4)
    words = ["".join(drawn.choices("abcdef", k=6)) for _ in range(60)]
    data = pieces_of(words, model_type="bpe", vocab_size=150)
    (tmp_path / "tokenizer.model").write_bytes(data)
    ours, real = read_tokenizers(tmp_path, "llama")["tokenizer.json"], sentencepiece.SentencePieceProcessor()
    real.LoadFromSerializedProto(data)
    for _ in range(300):
        text = "".join(drawn.choices("abcdef ", k=30))
        assert ours.encode(text) == real.encode(text), text


def test_llama_takes_any_sentencepiece_model(tmp_path):
    """Unigram with pieces of the user, and bpe without bytes."""
    for options in ({"user_defined_symbols": ["<sep>"]}, {"model_type": "bpe"}):
        data = pieces_of(ENGLISH, **options)
        (tmp_path / "tokenizer.model").write_bytes(data)
        ours, real = read_tokenizers(tmp_path, "llama")["tokenizer.json"], sentencepiece.SentencePieceProcessor()
        real.LoadFromSerializedProto(data)
        for text in ["the <sep> house", "<sep>the", *TEXTS]:
            if "\0" not in text:
                assert ours.encode(text) == real.encode(text), text


def test_bpe_pieces_of_the_user_are_never_cut(tmp_path):
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "vocab_size": 420}
    data = pieces_of(ENGLISH, model_type="bpe", byte_fallback=True, user_defined_symbols=["<sep>", "hou"], **options)
    (tmp_path / "tokenizer.model").write_bytes(data)
    ours = read_tokenizers(tmp_path, "llama")["tokenizer.json"]
    real = sentencepiece.SentencePieceProcessor(model_proto=data)
    for text in ("the <sep> house", "the<sep>  small", "the house", "a hou"):
        assert ours.encode(text) == real.encode(text), text


def test_a_piece_file_is_read_as_the_real_library_reads_it(marian, llama):
    for path in (marian / "source.spm", llama / "tokenizer.model"):
        model, real = read_pieces(path), sentencepiece.SentencePieceProcessor(model_file=str(path))
        assert [piece.text for piece in model.pieces] == names_of(path.read_bytes())
        assert [piece.score for piece in model.pieces] == [real.get_score(id) for id in range(len(real))]
        assert model.unk == real.unk_id()
    assert read_pieces(llama / "tokenizer.model").bpe
    assert not read_pieces(marian / "source.spm").bpe


def test_a_tokenizer_json_is_preferred(bytelevel, tmp_path):
    folder = copy(bytelevel, tmp_path / "both")
    made = tokenizers.Tokenizer(models.WordLevel({"the": 0, "<unk>": 1}, unk_token="<unk>"))
    made.save(str(folder / "tokenizer.json"))
    assert len(read_tokenizers(folder, "gpt2")["tokenizer.json"]) == 2
    assert len(read_tokenizers(folder, "something")["tokenizer.json"]) == 2


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("bert", ["vocab.txt"]),
        ("gpt2", ["vocab.json", "merges.txt"]),
        ("roberta", ["vocab.json", "merges.txt"]),
        ("llama", ["tokenizer.model"]),
        ("marian", ["source.spm", "target.spm", "vocab.json"]),
        ("unheard", ["tokenizer.json", "unheard"]),
    ],
)
def test_missing_files_are_named(tmp_path, kind, names):
    with pytest.raises(UserError) as caught:
        read_tokenizers(tmp_path, kind)
    assert all(name in str(caught.value) for name in ["tokenizer.json", *names])


@pytest.mark.parametrize(
    ("kind", "name", "content", "says"),
    [
        ("bert", "vocab.txt", b"\xff\xfe", "vocab.txt"),
        ("bert", "vocab.txt", b"the\nhouse\n", "[UNK]"),
        ("bert", "tokenizer_config.json", b"[]", "tokenizer_config.json"),
        ("bert", "tokenizer_config.json", b'{"do_lower_case": "yes"}', "do_lower_case"),
        ("bert", "tokenizer_config.json", b'{"cls_token": 7}', "cls_token"),
        ("gpt2", "vocab.json", b'["a", "b"]', "vocab.json"),
        ("gpt2", "vocab.json", b'{"a": 0, "b": 0}', "have the same id 0"),
        ("gpt2", "vocab.json", b'{"a": "x"}', "vocab.json"),
        ("gpt2", "vocab.json", b'{"a": -1}', "vocab.json"),
        ("gpt2", "vocab.json", b'{"a": 1e400}', "vocab.json"),
        ("gpt2", "vocab.json", b'{"a": 0', "vocab.json"),
        ("gpt2", "merges.txt", b"q nothere\n", "q nothere"),
        ("gpt2", "merges.txt", b"t h e\n", "t h e"),
        ("gpt2", "added_tokens.json", b'{"<x>": 3}', "<x>"),
        ("gpt2", "tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        ("roberta", "vocab.json", b'{"a": 0, "b": 1}', "vocab.json"),
        ("marian", "vocab.json", b'{"</s>": 0, "<unk>": 2}', "vocab.json"),
        ("marian", "vocab.json", b'{"</s>": 0, "x": 1}', "<unk>"),
        ("marian", "source.spm", b"", "source.spm"),
        ("marian", "target.spm", b"\x0a\xff\xff\xff\xff\x7fabc", "target.spm"),
        ("llama", "tokenizer.model", b"not a model", "tokenizer.model"),
    ],
)
def test_a_damaged_file_is_named(request, tmp_path, kind, name, content, says):
    given = {"bert": "wordpiece", "gpt2": "bytelevel", "roberta": "bytelevel"}.get(kind, kind)
    folder = copy(request.getfixturevalue(given), tmp_path / "damaged")
    (folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_tokenizers(folder, kind)
    assert says in str(caught.value)


def test_a_pipe_is_not_waited_for(marian, tmp_path):
    folder = copy(marian, tmp_path / "pipe")
    (folder / "source.spm").unlink()
    os.mkfifo(folder / "source.spm")
    with pytest.raises(UserError, match=r"source\.spm"):
        read_tokenizers(folder, "marian")


def tries(folder: Path, data: bytes) -> bool:
    """Whether a file is read; what is not is a UserError that names it."""
    path = folder / "tokenizer.model"
    path.write_bytes(data)
    try:
        read_tokenizers(folder, "llama")["tokenizer.json"].encode("the small hoüse 中")
    except UserError as error:
        assert "tokenizer.model" in str(error)  # noqa: PT017
        return False
    return True


def test_a_truncated_piece_file_is_refused(tmp_path):
    data = pieces_of(ENGLISH, normalization_rule_name="identity", vocab_size=40)
    assert tries(tmp_path, data)
    last = next(end for end in range(len(data), 0, -1) if not tries(tmp_path, data[: end - 1]))
    assert last > len(data) - 30  # what may be missing is the last, empty part
    assert not any(tries(tmp_path, data[:end]) for end in range(last))


@pytest.mark.parametrize("rules", ["identity", "nmt_nfkc"])
def test_a_piece_file_with_changed_bytes_is_read_or_refused(tmp_path, rules):
    data = pieces_of(ENGLISH, normalization_rule_name=rules, vocab_size=40)
    drawn = random.Random(7)
    for _ in range(200 if rules == "identity" else 15):
        changed = bytearray(data)
        for _ in range(drawn.choice([1, 1, 3])):
            near = len(data) if rules == "nmt_nfkc" else min(len(data), 900)
            changed[drawn.randrange(near)] = drawn.randrange(256)
        tries(tmp_path, bytes(changed))
