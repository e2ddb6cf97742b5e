"""The topic on BERT: what is hidden, what is likely, what follows, and what goes in and comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed import lectures
from allyouneed.errors import UserError
from allyouneed.figures import token_table as drawing
from allyouneed.lectures import bert
from allyouneed.lectures.base import Lecture
from allyouneed.run import Run, load, train
from commands import ayn

PNG = b"\x89PNG"
SMALL = ("model.width=16", "train.steps=3", "train.eval_every=3", "train.warmup=1", "train.threads=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("pretrain/bert", *SMALL, out=tmp_path_factory.mktemp("bert") / "run", quiet=True)


def shown(tmp_path: Path, run: Run, text: str = "") -> tuple[dict[str, Any], str]:
    said: list[str] = []
    lectures.show("bert", Lecture(tmp_path, said.append, run=str(run.folder.path), text=text))
    return json.loads((tmp_path / "bert.json").read_text())["numbers"], "\n".join(said)


def test_what_is_hidden_is_what_the_training_hides(tmp_path, run, monkeypatch):
    drawn = {}
    monkeypatch.setattr(bert, "token_table", lambda rows, colours, out, title, **more: drawn.update({title: rows}))
    monkeypatch.setattr(bert, "share_bars", lambda *rest: None)
    numbers, _ = shown(tmp_path, run)
    shares = numbers["hiding"]
    assert shares[bert.HIDDEN] == pytest.approx(0.8, abs=0.02)
    assert shares[bert.OTHER] == pytest.approx(0.1, abs=0.015)
    assert shares[bert.KEPT] == pytest.approx(0.1, abs=0.015)
    original, *epochs = drawn["What is hidden of one text, epoch after epoch"]
    assert " ".join(map(str, original.cells)) == "[CLS] the man went to the store . he bought a gallon of milk . [SEP]"
    assert len(epochs) == bert.EPOCHS
    for row in epochs:
        assert (row.kinds[0], row.kinds[-1]) == ("", "")
        assert sum(map(bool, row.kinds)) == round(0.2 * 14) == shares["per epoch"]
        for before, after, kind in zip(original.cells, row.cells, row.kinds, strict=True):
            assert (after == before) == (kind in ("", bert.KEPT))
            assert (after == "[MASK]") == (kind == bert.HIDDEN)
    assert len({tuple(map(bool, row.kinds)) for row in epochs}) > bert.EPOCHS / 2  # other words in other epochs


def test_candidates_share_one_probability_and_the_pair_has_one(tmp_path, run):
    numbers, said = shown(tmp_path, run, "The [MASK] went to the [MASK].")
    asked = run.answers(["The [MASK] went to the [MASK]."])[0].details["masks"]
    assert numbers["candidates"] == [[pytest.approx(word) for word in words] for words in asked]
    for words in numbers["candidates"]:
        found = [word["probability"] for word in words]
        assert found == sorted(found, reverse=True)
        assert sum(found) < 1
    assert set(numbers["next"]) == set(bert.SECONDS)
    pair = run.answers([f"{bert.FIRST} ||| {bert.SECONDS[1]}"])[0].details["follows"]
    assert numbers["next"][bert.SECONDS[1]] == pytest.approx(pair)
    assert "[MASK] number 2" in said
    for part in ("masks", "candidates", "inputs", "outputs"):
        assert (tmp_path / f"bert-{part}.png").read_bytes().startswith(PNG)
        assert (tmp_path / f"bert-{part}.svg").is_file()


def test_token_segment_and_position_are_added_as_the_figure_says(tmp_path, run):
    numbers, _ = shown(tmp_path, run)
    text = f"{bert.FIRST} ||| {bert.SECONDS[0]}"
    laid, _ = run.read(text)
    body = run.model.body
    total = body.embedding.tokens.weight[laid.ids] + body.segments.weight[laid.segments]
    total = total + body.embedding.positions.table.weight[: len(laid.ids)]
    assert list(total.shape) == numbers["shapes"]["sum"]
    read = run.trace(text, "embeddings")["body.embeddings"].value
    torch.testing.assert_close(body.norm(total).detach(), read)
    vocab = len(run.processor.tokenizer)
    assert [numbers["shapes"][name] for name in ("token", "segment", "position")] == [[vocab, 16], [2, 16], [128, 16]]


def test_a_run_without_pairs_shows_the_rest(tmp_path, run):
    alone = train("pretrain/bert", *SMALL, "task.next=false", out=tmp_path / "run", quiet=True)
    numbers, said = shown(tmp_path, alone)
    assert "next" not in numbers
    assert "NotNext" not in said
    assert numbers["candidates"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("My dog is happy.", "write \\[MASK\\] for the word"), ("My 狗 is [MASK].", "has never seen '狗'")],
)
def test_a_sentence_that_it_cannot_use_is_said(tmp_path, run, text, message):
    with pytest.raises(UserError, match=message):
        shown(tmp_path, run, text)


def test_a_run_of_another_task_is_said(tmp_path, run):
    other = train("classify/bert", *SMALL, "data.limit=60", out=tmp_path / "run", quiet=True)
    done = ayn("lecture", "bert", "--run", other.folder.path, "--out", tmp_path)
    assert done.code == 2
    assert "'bert' needs one of pretrain" in done.err


def test_a_table_of_tokens_names_each_row_and_draws_each_box(tmp_path):
    row = drawing.Row("names", ["a", None, "c"], ["x", "", ""], note="on the right", sign="+")
    drawing.token_table([row, drawing.Row("wide", ["all of them"])], {"x": "#0072b2"}, tmp_path / "a.svg", "A title")
    svg = (tmp_path / "a.svg").read_text()
    assert all(f">{text}<" in svg for text in ("names", "on the right", "a", "c", "+", "all of them", "A title"))
    assert svg.count('<g id="patch_') >= 3


def test_the_end_of_a_sentence_changes_what_bert_says_of_its_beginning(run):
    """So there is no probability of a sentence from left to right."""
    said = [run.answers([f"The [MASK] went to the {place}."])[0].details["masks"] for place in ("zoo", "bank")]
    assert said[0] != said[1]


def test_segments_tell_a_from_b_and_not_where(run):
    """Without positions, a passage with its words in another order is the same passage, whatever the segments."""
    body = load(run.folder.path).model.body
    ids = torch.tensor([[2, 10, 11, 12, 3, 20, 21, 3]])
    segments, lengths = torch.tensor([[0] * 5 + [1] * 3]), torch.tensor([8])
    swap = [0, 3, 2, 1, 4, 5, 6, 7]
    with torch.inference_mode():
        assert not torch.allclose(body(ids, lengths, segments), body(ids[:, swap], lengths, segments)[:, swap])
        body.embedding.positions.table.weight.zero_()
        torch.testing.assert_close(body(ids, lengths, segments), body(ids[:, swap], lengths, segments)[:, swap])
        assert not torch.allclose(body(ids, lengths, segments), body(ids, lengths, 1 - segments))


@pytest.mark.slow
def test_the_milk_follows_and_the_penguins_do_not(tmp_path):
    said: list[str] = []
    lectures.show("bert", Lecture(tmp_path, said.append))
    numbers = json.loads((tmp_path / "bert.json").read_text())["numbers"]
    milk, penguins = (numbers["next"][second] for second in bert.SECONDS)
    assert milk > 0.5 > 0.2 > penguins
    (words,) = numbers["candidates"]
    assert {"happy", "running", "barking"} & {word["word"] for word in words}
