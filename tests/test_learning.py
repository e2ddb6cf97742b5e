"""Learning tests: what a working model learns in seconds, through the same commands as everything else."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from allyouneed.run import load, train
from conftest import RUNTIME, TINY
from notebooks import shown


@pytest.mark.slow
def test_sequences_are_reversed(tmp_path):
    chance = random.Random(0)
    rows = {tuple(chance.choices("abcdefgh", k=chance.randint(3, 6))) for _ in range(2000)}
    lines = [" ".join(row) + "\t" + " ".join(row[::-1]) for row in sorted(rows)]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(lines) + "\n")
    settings = [
        *TINY, "model.width=64", "model.heads=4", "model.hidden=128", "model.layers=2", "train.epochs=0",
        "train.steps=300", "train.batch_tokens=512", "train.lr=6e-3", "train.warmup=30", "train.eval_every=300",
    ]  # fmt: skip
    run = train(
        "translate/transformer", "data.follow=false", *settings, data=str(data), out=tmp_path / "run", quiet=True
    )
    exact = {score.name: score.value for score in run.test()}["exact match"]
    assert exact >= 98.0
    assert run.predict("a b c d") == "d c b a"


@pytest.mark.slow
def test_attention_reverses_what_one_context_vector_cannot_hold(tmp_path):
    chance = random.Random(0)
    rows = [chance.choices("abcdefghijklmnop", k=20) for _ in range(4000)]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(" ".join(row) + "\t" + " ".join(row[::-1]) for row in rows) + "\n")
    settings = [
        *RUNTIME, "model.width=64", "model.embedding=32", "train.steps=320", "train.batch_tokens=504", "train.lr=6e-3",
        "train.warmup=30", "train.eval_every=320", "train.seed=2", "data.follow=false",
    ]  # fmt: skip
    exact = {}
    for score in ("additive", "none"):
        out = tmp_path / score
        run = train("translate/attention", *settings, f"model.score={score}", data=str(data), out=out, quiet=True)
        exact[score] = {found.name: found.value for found in run.scores()["test"]}["exact match"]
    assert exact["additive"] >= 99.0
    assert exact["none"] < 20.0


@pytest.mark.slow
def test_the_alignment_shows_which_french_words_make_an_english_one(tmp_path_factory):
    run = load(shown("alignment", tmp_path_factory) / "models" / "french-attention", "cpu", precision="fp32")
    assert (run.recipe.data.name, run.recipe.text.kind) == ("french", "word")
    assert {score.name: score.value for score in run.test(say=lambda line: None)}["BLEU"] > 95

    def seen(text: str, word: str) -> Counter[str]:
        found = run.align(text)
        weights = found.weights[found.target.index(word)]
        return Counter({source: float(weight) for source, weight in zip(found.source, weights)})

    assert run.predict("Je suis étudiant.") == "I am a student."
    assert run.predict("L'accord a été signé en août.") == "The agreement was signed in August."
    assert run.predict("Il a acheté une voiture rouge hier.") == "He bought a red car yesterday."
    signed = seen("La lettre a été signée hier.", "signed")
    assert signed["a"] + signed["été"] + signed["signée"] > 0.5
    assert seen("Il a acheté une voiture rouge hier.", "red").most_common(1)[0][0] == "rouge"
    for french, english in (("il était trop fatigué", "tired"), ("elle était trop large", "wide")):
        said = run.predict(f"L'animal n'a pas traversé la rue parce qu'{french}.")
        assert said == f"The animal didn't cross the street because it was too {english}."


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tag/lstm", "tag/bert", "tag/elmo"])
def test_a_president_is_a_person_and_where_he_flew_to_is_a_place(recipe, tmp_path):
    """Half of the steps are enough."""
    run = train(recipe, *RUNTIME, "train.steps=250", out=tmp_path / "run", quiet=True)
    (answer,) = run.answers(["President Obama flew to San Francisco."])
    found = [(entity["text"], entity["type"]) for entity in answer.details["entities"]]
    assert found == [("Obama", "person"), ("San Francisco", "place")]
