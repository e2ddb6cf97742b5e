"""CoNLL files as people have them: the columns of the word and the tag, CoNLL-U, comments, and parts of speech."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from allyouneed.errors import UserError
from allyouneed.run import load, train
from commands import ayn
from conftest import RUNTIME
from test_label_data import complaint, dataset, put, whole

CONLL_U = """# sent_id = 1
# text = Vado al mare.
1\tVado\tandare\tVERB\tV\t_\t0\troot\t_\t_
2-3\tal\t_\t_\t_\t_\t_\t_\t_\t_
2\ta\ta\tADP\tE\t_\t4\tcase\t_\t_
3\til\til\tDET\tRD\t_\t4\tdet\t_\t_
4\tmare\tmare\tNOUN\tS\t_\t1\tobl\t_\tSpaceAfter=No
4.1\tvado\tandare\tVERB\tV\t_\t_\t_\t1:conj\t_
5\t.\t.\tPUNCT\tFS\t_\t1\tpunct\t_\t_

# text = Sì
1\tSì\tsì\tINTJ\tI\t_\t0\troot\t_\t_
"""


def test_conll_u(tmp_path: Path) -> None:
    path = put(tmp_path / "it.conllu", CONLL_U)
    data = dataset("tags", path)
    assert list(data.splits["train"]) == [
        (("Vado", "a", "il", "mare", "."), ("VERB", "ADP", "DET", "NOUN", "PUNCT")),
        (("Sì",), ("INTJ",)),
    ]
    assert (
        "CoNLL-U (columns between tabs), UTF-8; the word is column FORM, the tag column UPOS (choose others"
        in (data.understood[0])
    )
    assert "; 6 different tags, which mark no entities; the first sentence is" in data.understood[0]
    assert whole("tags", path, target="DEPREL")[0].tags == ("root", "case", "det", "obl", "punct")
    assert whole("tags", path, source="LEMMA", target="5")[0] == (
        ("andare", "a", "il", "mare", "."), ("V", "E", "RD", "S", "FS"),
    )  # fmt: skip
    assert "no column 'XPSO'; did you mean 'XPOS'?" in complaint("tags", path, target="XPSO")
    assert "no column 11; it has 10" in complaint("tags", path, source="11")
    assert "the word and the tag are both column FORM" in complaint("tags", path, target="FORM")


@pytest.mark.parametrize(
    ("lines", "options", "words", "tags"),
    [
        ("Ada NNP B-PER x1\nleft VBD O x2\n", {}, ("Ada", "left"), ("B-PER", "O")),  # the tag is not the last column
        ("Ada NNP B-PER\nleft VBD O\n", {"target": "2"}, ("Ada", "left"), ("NNP", "VBD")),
        ("x Ada O\ny left O\n", {"source": "2"}, ("Ada", "left"), ("O", "O")),
        (
            "#\thttp://x\n1\tAda\tB-PER\tO\n2\tleft\tO\tO\n",
            {"target": "3"},
            ("Ada", "left"),
            ("B-PER", "O"),
        ),  # GermEval
        ("# id 7 domain=en\nAda _ _ B-PER\n# _ _ O\n", {}, ("Ada", "#"), ("B-PER", "O")),
        ("# O\nAda B-PER\n", {}, ("#", "Ada"), ("O", "B-PER")),  # a word, and no comment
    ],
)
def test_the_columns_of_word_and_tag(
    tmp_path: Path, lines: str, options: dict[str, str], words: tuple[str, ...], tags: tuple[str, ...]
) -> None:
    assert whole("tags", put(tmp_path / "a.conll", lines), **options) == [(words, tags)]


def test_a_column_that_is_no_tag_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"word{i} x{i}\n" + "\n" * (i % 5 == 0) for i in range(60))
    assert "column 2 has 60 different values for 60 words: is this the tag?" in complaint(
        "tags", put(tmp_path / "a.conll", rows)
    )
    assert "'two words' is not the tag: column 2 must have one word" in complaint(
        "tags", put(tmp_path / "b.conll", "a\tNOUN\nb\ttwo words\n")
    )


def sentences(count: int) -> str:
    chance, made = random.Random(1), []
    for _ in range(count):
        noun, verb = chance.choice(["cat", "dog", "run"]), chance.choice(["runs", "run", "sleeps"])
        rows = [("the", "DET"), (noun, "NOUN"), (verb, "VERB"), (str(chance.randrange(900)), "NUM")]
        made.append("".join(f"{word} {tag}\n" for word, tag in rows))
    return "\n".join(made)


def test_parts_of_speech_are_learned_and_scored_by_word(tmp_path: Path) -> None:
    path = put(tmp_path / "pos.conll", sentences(200))
    settings = [*RUNTIME, "model.width=16", "train.steps=60", "train.eval_every=30", "train.batch_tokens=256"]
    run = train("tag/lstm", *settings, "train.lr=1e-2", "train.warmup=5", data=path, out=tmp_path / "run", quiet=True)
    scores = {score.name: score.value for score in run.test()}
    assert scores["accuracy"] > 95
    assert list(scores) == ["accuracy", "macro-F1"]
    again = load(tmp_path / "run")
    assert again.predict("the run runs 7") == "the/DET run/NOUN runs/VERB 7/NUM"
    done = ayn("use", tmp_path / "run", "the dog", "--json")
    assert json.loads(done.out)["tags"] == ["DET", "NOUN"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all("accuracy" in line for line in lines if line["kind"] == "valid")
    entities = put(tmp_path / "names.conll", "the O\nCat B-PER\n")
    with pytest.raises(UserError, match=r"2 tags that the training data does not have.*'B-PER' \(1\), 'O' \(1\)"):
        again.test(data=entities)


def test_one_tag_for_all_words_is_nothing_to_learn(tmp_path: Path) -> None:
    path = put(tmp_path / "a.conll", "".join(f"the _\ncat{i} _\n\n" for i in range(200)))
    with pytest.raises(UserError, match=r"all words have the tag '_': choose the column of the tags with data\.target"):
        train("tag/lstm", *RUNTIME, data=path, out=tmp_path / "run", quiet=True)
