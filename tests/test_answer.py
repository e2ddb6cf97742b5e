"""The task answer: windows of long texts, both heads, answers as characters of the text, no answer, and scores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from allyouneed import Run, load, train
from allyouneed.data.batches.questions import NONE, AnswerWindows
from allyouneed.data.examples import Question
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.models.answerer import Answerer
from allyouneed.models.bert import BertBody, BertConfig
from allyouneed.tasks.questions import AnswerQuestions
from allyouneed.text.layout import Layout
from allyouneed.training.starting import choose
from commands import ayn
from conftest import RUNTIME

BERT = Layout((101,), (102,), (102,))
PLAIN = Layout(between=(9,))
TINY = [*RUNTIME, "model.width=16", "model.layers=1", "train.steps=4", "train.eval_every=4", "data.limit=200"]
CONTEXT = "Anna bought a red lamp in Oslo on Monday. Paul sold a blue chair in New York on Friday."


def windows(layout: Layout, answer: tuple[int, int], longest: int = 12, stride: int = 2) -> AnswerWindows:
    """A question of three tokens about a text of twenty: 50 to 69."""
    questions, texts = Ragged.of([[1, 2, 3]]), Ragged.of([range(50, 70)])
    return AnswerWindows(questions, texts, np.zeros(1, np.int64), [answer], layout, longest, stride)


@pytest.mark.parametrize("layout", [BERT, PLAIN])
@pytest.mark.parametrize("answer", [(0, 0), (3, 5), (18, 19), NONE])
def test_the_targets_are_the_answer_in_the_windows_that_hold_it_whole(layout, answer):
    made = windows(layout, answer)
    found = []
    for number in range(len(made.sizes)):
        tensors = made.collate(np.array([number])).tensors
        ids, (first, last) = tensors["ids"][0].tolist(), tensors["targets"][0].tolist()
        allowed = [id for id, may in zip(ids, tensors["allowed"][0].tolist()) if may]
        nothing = 101 if layout is BERT else 9
        shown = [id for id in ids if id >= 50 and id < 100]
        assert sorted(allowed) == sorted([nothing, *shown])
        if ids[first] == nothing:
            assert first == last
            assert answer == NONE or not {*range(50 + answer[0], 51 + answer[1])} <= {*shown}
        else:
            found.append(ids[first : last + 1])
            assert ids[first : last + 1] == list(range(50 + answer[0], 51 + answer[1]))
    assert bool(found) == (answer != NONE)
    assert {id for n in range(len(made.sizes)) for id in made.collate(np.array([n])).tensors["ids"][0].tolist()} >= {
        *range(50, 70)
    }


def test_a_batch_holds_what_its_windows_hold_alone():
    made = windows(BERT, (3, 5))
    both = made.collate(np.arange(len(made.sizes)))
    assert both.size.counts == {"answers": len(made.sizes)}
    for number, length in enumerate(made.sizes.tolist()):
        alone = made.collate(np.array([number])).tensors
        for name in ("ids", "segments", "allowed"):
            assert torch.equal(both.tensors[name][number, :length], alone[name][0])
            assert not both.tensors[name][number, length:].any()
        assert torch.equal(both.tensors["targets"][number], alone["targets"][0])


def test_a_long_question_is_cut_to_half_a_window():
    made = AnswerWindows(Ragged.of([range(40)]), Ragged.of([range(50, 60)]), np.zeros(1, np.int64), [NONE], BERT, 13, 0)
    assert made.question_lengths.tolist() == [5]
    assert made.sizes.max() <= 13


def model(kind: str) -> Answerer:
    torch.manual_seed(1)
    config = BertConfig(vocab=200, width=8, layers=1, heads=2, context=64, dropout=0.0, attention_dropout=0.0)
    return Answerer(BertBody(config), kind, 0.0)


@pytest.mark.parametrize("kind", ["span", "inside"])
def test_the_score_of_a_piece_is_its_log_probability_up_to_a_constant(kind):
    """By going through all pieces one by one."""
    answerer, size, longest = model(kind), 7, 3
    logits = torch.randn(size, 2 if kind == "span" else 1)
    table = answerer.spans(logits, longest)
    if kind == "span":
        start, end = logits.log_softmax(0).T
    differences = []
    for i in range(size):
        for n in range(longest):
            if i + n >= size:
                assert table[i, n] == -torch.inf
                continue
            if kind == "span":
                wanted = start[i] + end[i + n]
            else:
                inside = torch.zeros(size, dtype=torch.bool)
                inside[i : i + n + 1] = True
                p = logits[:, 0].sigmoid()
                wanted = torch.where(inside, p, 1 - p).log().sum()
            differences.append(float(table[i, n] - wanted))
    assert max(differences) - min(differences) < 1e-5


@pytest.mark.parametrize("kind", ["span", "inside"])
def test_the_loss_is_the_cross_entropy_and_padding_changes_nothing(kind):
    answerer, made = model(kind), windows(BERT, (3, 5))
    every = [made.collate(np.array([n])).tensors for n in range(len(made.sizes))]
    alone = torch.stack([answerer.loss(tensors) for tensors in every])
    together = answerer.loss(made.collate(np.arange(len(made.sizes))).tensors)
    assert together.item() == pytest.approx(alone.sum().item(), rel=1e-5)
    tensors = next(t for t in every if int(t["targets"][0, 0]) > 0)
    logits, (first, last) = answerer(tensors)[0], tensors["targets"][0].tolist()
    allowed = tensors["allowed"][0].nonzero()[:, 0].tolist()
    if kind == "span":
        wanted = sum(
            -float(logits.detach()[allowed, side].log_softmax(0)[allowed.index(at)])
            for side, at in enumerate((first, last))
        )
        wanted /= 2
    else:
        p = logits[:, 0].detach().sigmoid()
        wanted = -sum(float((p[i] if first <= i <= last else 1 - p[i]).log()) for i in allowed) / len(allowed)
    assert answerer.loss(tensors).item() == pytest.approx(wanted, rel=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("answer/bert", *TINY, out=tmp_path_factory.mktemp("answer") / "run", quiet=True)


def test_an_answer_is_a_piece_of_the_text_with_its_place(run):
    (answer,) = run.answers([f"Who sold the chair? ||| {CONTEXT}"], n_best=4)
    listed = answer.details["answers"]
    assert len(listed) == 4
    for one in listed:
        assert CONTEXT[one["start"] : one["end"]] == one["answer"]
    sure = [one["probability"] for one in listed[1:]]
    assert sure == sorted(sure, reverse=True)
    assert sum(sure) + listed[0]["probability"] <= 1 + 1e-5
    assert 0 < answer.details["no_answer"] < 1
    assert answer.details["windows"] == 1


def test_all_pieces_and_no_answer_sum_to_one(run):
    (answer,) = run.answers(["Who left? ||| Anna left Oslo."], n_best=1000)
    pieces = [one["probability"] for one in answer.details["answers"] if one["answer"]]
    assert sum(pieces) + answer.details["no_answer"] == pytest.approx(1, abs=1e-3)


def test_a_long_text_is_read_in_windows_and_so_it_is_told(run):
    long = " ".join([CONTEXT] * 20)
    (answer,) = run.answers([f"Who sold the chair? ||| {long}"])
    assert answer.details["windows"] > 2
    assert f"(read in {answer.details['windows']} windows)" in answer.shown
    assert long[answer.details["start"] : answer.details["end"]] == answer.details["answer"]


def test_answers_in_a_batch_are_those_of_single_questions(run):
    asked = [f"Who sold the chair? ||| {CONTEXT}", f"When did Anna buy the lamp? ||| {' '.join([CONTEXT] * 9)}"]
    together = [answer.details for answer in run.answers(asked)]
    alone = [run.answers([text])[0].details for text in asked]
    for one, other in zip(together, alone):
        assert one["answer"] == other["answer"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)


def test_the_prediction_file_has_the_scored_answers(run, tmp_path):
    scores = run.test(say=lambda line: None, out=tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    exact = 100 * sum(row["prediction"] in (row["reference"] or [""]) for row in rows) / len(rows)
    assert scores[0].name == "EM"
    assert scores[0].value == pytest.approx(exact, abs=1e-6)  # nothing in this data is told apart by its spelling
    assert [score.name for score in scores] == ["EM", "F1", "answerable EM", "answerable F1", "unanswerable EM"]


def test_the_margin_decides_between_no_answer_and_the_best(run):
    processor = run.processor
    texts = [f"Who sold the chair? ||| {CONTEXT}"]
    changed = processor.options
    try:
        for margin, silent in ((1e6, False), (-1e6, True)):
            processor.options = type(changed)(**{**vars(changed), "margin": margin})
            assert (run.answers(texts)[0].text == "") is silent
    finally:
        processor.options = changed


def test_a_run_without_unanswerable_questions_always_answers(tmp_path):
    data = write(tmp_path / "mine.jsonl")
    made = train("answer/bert", *TINY, "data.follow=false", data=data, out=tmp_path / "run", quiet=True)
    (answer,) = made.answers(["Who left 3? ||| Anna 3 left Oslo 3."])
    assert answer.text
    assert "no_answer" not in answer.details
    assert [score.name for score in made.test(say=lambda line: None)] == ["EM", "F1"]
    assert load(made.folder.path).predict("Who left 3? ||| Anna 3 left Oslo 3.") == answer.text


def write(path: Path, count: int = 60) -> Path:
    """Questions that all have an answer."""
    rows = [
        {"question": f"Who left {i}?", "context": f"Anna {i} left Oslo {i}.", "answer": f"Anna {i}"}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["rnn", "gpt", "convnet"])
def test_every_reader_of_tokens_can_answer(kind, tmp_path):
    recipe = tmp_path / "answer.toml"
    heads = "heads = 2\n" if kind == "gpt" else ""
    recipe.write_text(
        f'[task]\nkind = "answer"\n[model]\nkind = "{kind}"\nwidth = 16\nlayers = 1\n{heads}[text]\nkind = "word"\n'
        '[data]\nname = "questions"\nmax_length = 32\n[train]\nsteps = 2\nbatch_tokens = 512\n'
    )
    made = train(str(recipe), *RUNTIME, data=write(tmp_path / "mine.jsonl"), out=tmp_path / "run", quiet=True)
    (answer,) = made.answers([f"Who left 3? ||| {CONTEXT}"])
    assert answer.text
    assert answer.text in CONTEXT


def test_the_other_head_trains_and_answers(tmp_path):
    given = [*TINY, "task.head=inside", "data.follow=false"]
    made = train("answer/bert", *given, data=write(tmp_path / "mine.jsonl"), out=tmp_path / "run", quiet=True)
    (answer,) = made.answers([f"Who sold the chair? ||| {CONTEXT}"])
    assert answer.text
    assert answer.text in CONTEXT
    assert "|inside|" in made.scores()["test"][0].signature


BAD = {
    "no text": ("Who sold the chair?", "give a question and a text with ||| between them"),
    "empty text": ("Who? ||| ", "the text is empty"),
    "empty question": (" ||| Anna left.", "the question is empty"),
}


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD.keys())
def test_bad_questions(run, text, told):
    done = ayn("use", run.folder.path, text)
    assert done.code == 2
    assert told in done.err


def test_a_split_with_unanswerable_questions_that_train_does_not_have(tmp_path):
    train_file, test_file = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    row = {"question": "Who left?", "context": "Anna left.", "answer": "Anna"}
    train_file.write_text("".join(json.dumps({**row, "context": f"Anna left {i}."}) + "\n" for i in range(40)))
    test_file.write_text(json.dumps({**row, "answer": ""}) + "\n")
    with pytest.raises(UserError, match="1 questions without an answer, the training data has none"):
        train("answer/bert", *TINY, f"data.test_path={test_file}", data=train_file, out=tmp_path / "run", quiet=True)


def test_an_answer_inside_a_word_is_the_whole_tokens_around_it(run):
    question = Question("Who?", "Annabel left.", ((0, "Ann"),))
    _, made, texts = run.predictor.gather([run.predictor.read_question(question)])
    first, last = made.answers[0].tolist()
    spans = texts[0].spans
    assert spans[first][0] <= 0
    assert spans[last][1] >= 3


def test_table_and_attention(run):
    rows = run.table(f"Who sold the chair? ||| {CONTEXT}")
    for side in (0, 1):
        assert sum(row.likely[side][1] for row in rows) <= 1 + 1e-5
    assert all(found.weights.shape[-1] == len(found.source) for found in run.attention(f"Who? ||| {CONTEXT}").values())


def test_a_damaged_part_is_told(run, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.folder.path, copy)
    (copy / "answers.json").write_text("{}")
    done = ayn("use", copy, f"Who? ||| {CONTEXT}")
    assert done.code == 2
    assert "answers.json" in done.err
    assert Path(copy, "answers.json").exists()


def test_what_does_not_fit_is_told_with_its_count(tmp_path):
    long, short = " ".join(["Ada drinks tea in Oslo."] * 30), "Ada drinks tea."
    rows = [{"question": f"Who {i}?", "context": f"{long} {i}", "answer": long[:200]} for i in range(3)]
    rows += [
        {"question": f"Who drinks {'tea ' * 40}{i}?", "context": f"{short} {i}", "answer": "Ada"} for i in range(40)
    ]
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [*RUNTIME, "data.max_length=32", "data.valid_part=0", "data.test_part=0", "data.follow=false"]
    task = AnswerQuestions(choose("answer/bert", settings, data))
    said: list[str] = []
    task.prepare(said.append)
    assert "train: 3 texts over 32 tokens, read in windows" in said
    assert (
        "train: 3 answers that no window holds whole, learned as no answer (raise task.stride or data.max_length)"
        in said
    )
    assert "train: 40 questions cut to half a window" in said
    assert "train: 3 answers over 8 tokens, which are never found whole (task.longest)" in said


def test_a_piece_in_two_windows_counts_by_the_better_one_and_no_answer_by_the_worse(run):
    """Read window by window, and put together by hand."""
    model, text = run.model, " ".join([CONTEXT] * 9)
    asked = run.predictor.gather([run.predictor.read_question(Question("Who sold the chair?", text))])
    made = asked.windows
    reading = run.predictor.search(asked, np.arange(1), 1000)[0]
    best: dict[tuple[int, int], float] = {}
    nothing = []
    for number in range(len(made.rows)):
        tensors = made.collate(np.array([number])).tensors
        logits = model(tensors)[0].detach()
        nothing.append(float(logits[0].sum()))
        begin = int(made.begins(np.array([number]))[0])
        for i in range(int(made.ends[number] - made.starts[number])):
            for j in range(i, min(i + 8, int(made.ends[number] - made.starts[number]))):
                place = (int(made.starts[number]) + i, int(made.starts[number]) + j)
                score = float(logits[begin + i, 0] + logits[begin + j, 1])
                best[place] = max(best.get(place, -np.inf), score)
    assert len(nothing) == reading.windows > 2
    total = np.logaddexp.reduce([min(nothing), *best.values()])
    assert reading.nothing == pytest.approx(min(nothing) - total, abs=1e-4)
    wanted = sorted((score - total for score in best.values()), reverse=True)[:1000]
    assert [piece.logprob for piece in reading.pieces] == pytest.approx(wanted, abs=1e-4)


def test_what_is_never_unanswerable_gives_all_its_probability_to_pieces(tmp_path):
    made = train(
        "answer/bert", *TINY, "data.follow=false", data=write(tmp_path / "mine.jsonl"), out=tmp_path / "run", quiet=True
    )
    (answer,) = made.answers(["Who left 3? ||| Anna 3 left."], n_best=1000)
    assert sum(one["probability"] for one in answer.details["answers"]) == pytest.approx(1, abs=1e-3)


def long_answers(path: Path, count: int = 120) -> Path:
    """Questions whose answers have twenty words and a full stop."""
    rows = []
    for i in range(count):
        answer = f"{' '.join(f'w{i * j % 17}' for j in range(20))} ."
        context = f"On day {i} Ada said {answer} Then she left."
        rows.append({"question": f"What was said on day {i}?", "context": context, "answer": answer})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("start", ["fresh", "init"])
def test_the_longest_answer_follows_the_data(start, run, tmp_path, capsys):
    data = long_answers(tmp_path / "mine.jsonl")
    given = [*RUNTIME, "train.steps=2", *([f"train.init={run.folder.path}"] if start == "init" else ["model.width=16"])]
    made = train("answer/bert", *given, data=data, out=tmp_path / "run")
    said = capsys.readouterr().out
    most = made.task.most_tokens
    assert re.search(rf"answers of up to {most} tokens are found, because 99 % of the training answers have \d+", said)
    assert "never found whole (task.longest)" not in said
    assert most >= 21 > 8, "the recipe's own"
    (answer,) = load(tmp_path / "run").answers([f"What? ||| {' '.join('w3' for _ in range(100))}"], n_best=10**4)
    lengths = {len(made.task.tokenizer.tokenize(one["answer"]).ids) for one in answer.details["answers"]}
    assert max(lengths) == most


def test_a_few_exceptions_do_not_decide_the_longest_answer():
    def lengths(answers: list[tuple[int, int]], window: int = 300) -> tuple[int, int]:
        count = len(answers)
        return AnswerWindows(
            Ragged.of([[1]] * count), Ragged.of([range(200)]), np.zeros(count, np.int64), answers, BERT, window, 0
        ).answer_lengths()

    assert lengths([(5, 24)] * 99 + [(0, 190)]) == (20, 30)
    assert lengths([(5, 24)] * 98 + [(0, 190)] * 2) == (191, 287)
    assert lengths([(5, 24)] * 98 + [(0, 190)] * 2, window=64) == (191, 64), "no longer than a window"
    assert lengths([(5, 5)] * 9 + [NONE]) == (1, 8)
    assert lengths([NONE]) == (0, 8)


def test_the_pieces_of_many_texts_are_compared_in_groups(run, monkeypatch):
    texts = [f"Who sold the chair? ||| {' '.join([CONTEXT] * n)}" for n in (1, 5, 2, 1, 9)]
    together = [answer.details for answer in run.answers(texts)]
    monkeypatch.setattr("allyouneed.data.batches.questions.CELLS", 300)
    assert [answer.details for answer in run.answers(texts)] == together
    asked = run.predictor.gather([run.predictor.read(text, run.decode()) for text in texts])
    assert [group.tolist() for group in asked.windows.groups(np.arange(5), 8)] == [[0], [1], [2], [3], [4]]


def test_a_damaged_longest_answer_is_told(run, tmp_path):
    task = AnswerQuestions(choose("answer/bert", ["task.longest=0"], None))
    for value in (0, -3, 10**9, "x", None, [1], 1e400):
        part = json.dumps({"unanswerable": True, "longest": value}).encode()
        with pytest.raises(UserError, match=r"answers\.json is damaged"):
            task.read_parts({"answers.json": part})
    task.read_parts({"answers.json": b'{"unanswerable": true, "longest": 40}'})
    assert task.most_tokens == 40
    run.task.read_parts({"answers.json": b'{"unanswerable": true}'})  # of an earlier version
    assert run.task.most_tokens == 8
