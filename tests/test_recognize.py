"""recognize: an image in, its class out; from files to a used model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from allyouneed.data.builtin.shapes import SIDE, Shape, draw, shapes
from allyouneed.errors import UserError
from allyouneed.predict.images import rollout
from allyouneed.run import Run, load, train
from allyouneed.storage.tensorfile import read_tensors
from commands import ayn, mistake
from conftest import RUNTIME
from test_images import folder

TINY = [
    *RUNTIME, "model.width=16", "model.heads=2", "model.layers=2", "model.patch=8", "train.steps=8",
    "train.eval_every=4", "train.batch_tokens=272", "train.warmup=2",
]  # fmt: skip
CHANGED = ["task.flip=0.5", "task.shift=0.1", "task.changes=2", "task.erase=0.3", "task.mix=0.5", "model.drop_path=0.2"]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Run:
    settings = [*TINY, *CHANGED, "data.limit=300", "train.ema=0.9"]
    return train("recognize/vit", *settings, out=tmp_path_factory.mktemp("recognize") / "run", quiet=True)


@pytest.fixture
def image(tmp_path) -> Path:
    path = tmp_path / "image.png"
    Image.fromarray(draw([Shape("ring", "blue", "large", 16, 16)])).resize((70, 50)).save(path)
    return path


@pytest.mark.slow
def test_it_is_scored_and_its_mistakes_are_shown(small):
    names = [score.name for score in small.test(say=lambda line: None)]
    assert names == ["accuracy", "macro-F1", "top-5"]
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(small.folder.path / name) as drawn:
            assert min(drawn.size) > 100
    labels = json.loads((small.folder.path / "labels.json").read_text())
    pixels = small.task.pixels("train") / 255
    assert labels["mean"] == pytest.approx(pixels.mean((0, 1, 2)).tolist(), abs=1e-5)
    assert labels["std"] == pytest.approx(pixels.std((0, 1, 2)).tolist(), abs=1e-5)


@pytest.mark.slow
def test_a_test_reads_images_as_the_training_does(small):
    """Normalised to mean 0 and standard deviation 1; without augmentation both are the same."""
    numbers = np.arange(len(small.task.pixels("train")))
    model = small.task.build_model()
    read = model.eval().preprocess(small.task.examples("train").collate(numbers).tensors)["pixels"]
    assert torch.allclose(read.mean((0, 2, 3)), torch.zeros(3), atol=1e-3)
    assert torch.allclose(read.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    plain = small.recipe.with_(task=type(small.recipe.task)())
    task = small.task.on(plain)
    learned = task.build_model().train().preprocess(task.examples("train").collate(numbers).tensors)["pixels"]
    assert torch.allclose(read, learned, atol=1e-6)


def test_paths_arrays_and_images_are_answered_alike(small, image):
    with Image.open(image) as opened:
        pixels = opened.convert("RGB")
    given = [str(image), image, pixels, np.asarray(pixels)]
    answers = [answer.details["probabilities"] for answer in small.answers(given)]
    assert all(answer == answers[0] for answer in answers)
    assert sum(answers[0].values()) == pytest.approx(1.0, abs=1e-4)
    assert small.predict(pixels) == small.predict(str(image)) == small.predict([image])[0]
    assert isinstance(small.predict(np.asarray(pixels)), str)
    assert small.predict(np.stack([pixels] * 2)) == [small.predict(image)] * 2
    for wrong in (3.5, {"a": 1}):
        with pytest.raises(UserError, match="an image is expected"):
            small.predict([wrong])


def test_a_batch_is_its_images(small):
    pixels = shapes()["test"][0][:5]
    together = [answer.details["probabilities"] for answer in small.answers(list(pixels))]
    for one, array in zip(together, pixels):
        (alone,) = small.answers([array])
        assert list(one.values()) == pytest.approx(list(alone.details["probabilities"].values()), abs=1e-5)


def test_the_command_answers_images(small, image, tmp_path):
    done = ayn("use", small.folder.path, image, image)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 2
    name, answer = lines[0].split(": ")
    assert name == str(image)
    assert answer.split()[0] in small.task.labels
    assert "%" in lines[0]
    found = json.loads(ayn("use", small.folder.path, image, "--json").out)
    assert found["input"] == str(image)
    assert set(found["probabilities"]) == set(small.task.labels)
    (tmp_path / "bad.png").write_text("no image")
    command = [sys.executable, "-m", "allyouneed", "use", str(small.folder.path)]
    lines = f"{image}\n{tmp_path}/bad.png\n{image}\n"
    streamed = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert streamed.returncode == 2
    assert [bool(line) for line in streamed.stdout.splitlines()] == [True, False, True]
    assert f"line 2: {tmp_path}/bad.png: it is no image" in streamed.stderr
    assert "likely labels of the image" in ayn("use", small.folder.path, image, "--table").out


def test_a_folder_is_answered_image_by_image(small, image, tmp_path):
    (tmp_path / "many").mkdir()
    for name in "ab":
        (tmp_path / "many" / f"{name}.png").write_bytes(image.read_bytes())
    (tmp_path / "many" / "notes.txt").write_text("x")
    done = ayn("use", small.folder.path, tmp_path / "many")
    assert done.code == 0, done.err
    *each, together = done.out.splitlines()
    assert [line.split(":")[0] for line in each] == [str(tmp_path / "many" / f"{n}.png") for n in "ab"]
    assert "(the mean of 2 images)" in together
    (tmp_path / "many" / "bad.png").write_text("x")
    (tmp_path / "many" / "._a.png").write_text("x")
    some = ayn("use", small.folder.path, tmp_path / "many")
    assert some.code == 2
    assert len(some.out.splitlines()) == 2  # the others are answered
    assert some.err.count("bad.png: it is no image") == 1
    assert "many: no answer for all together, since 1 cannot be read" in some.err
    (tmp_path / "none").mkdir()
    assert "has no image" in mistake("use", small.folder.path, tmp_path / "none")


def test_a_clip_is_the_mean_of_its_frames(small, tmp_path):
    frames = [draw([Shape(form, "red", "large", 16, 16)]) for form in ("ring", "cross", "square")]
    alone = [list(answer.details["probabilities"].values()) for answer in small.answers(frames)]
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(tmp_path / "clip.gif", save_all=True, append_images=images[1:])
    (tmp_path / "frames").mkdir()
    for number, image in enumerate(images):
        image.save(tmp_path / "frames" / f"{number}.png")
    clips = list(small.answers([frames, str(tmp_path / "frames"), str(tmp_path / "clip.gif")]))
    for clip, close in zip(clips, (1e-5, 1e-5, 0.1)):  # a GIF has fewer colours
        assert clip.details["frames"] == 3
        assert list(clip.details["probabilities"].values()) == pytest.approx(np.mean(alone, axis=0), abs=close)


@pytest.mark.slow
def test_data_in_memory(tmp_path):
    pixels, forms, _ = (part[:120] for part in shapes()["test"])
    settings = {"out": tmp_path / "run", "quiet": True, "overwrite": True}
    paths = [tmp_path / f"{i}.png" for i in range(120)]
    for path, array in zip(paths, pixels):
        Image.fromarray(array).save(path)
    numbers = np.arange(120)[:, None] % 3
    for data in (
        (pixels, forms),
        {"images": pixels, "labels": numbers},
        [*zip(map(Image.fromarray, pixels), forms)],
        pd.DataFrame({"path": paths, "label": forms}),
    ):
        run = train("recognize/vit", *TINY, data=data, **settings)
        assert sum(split.examples for split in run.task.data.splits.values()) == 120
    path = paths[0]
    for data, told in (
        ((pixels, forms[:5]), "different lengths"),
        ({"x": pixels}, "labels"),
        ([(pixels[0], "a"), (pixels[0, :5], "b")], "different sizes or channels"),
        ([pixels[0]], r"\(image, label\) is expected"),
        ((pixels, np.eye(6)[: 120 % 7]), "different lengths"),
        ((pixels[:6], np.eye(6)), "give one label for each image"),
        ([(path, "a"), (tmp_path / "nowhere.png", "b")], "there is no image"),
    ):
        with pytest.raises(UserError, match=told):
            train("recognize/vit", *TINY, data=data, **settings)


@pytest.mark.parametrize("place", ["", "body.stack.blocks.1.attention"])
def test_where_it_looks(place, small, image, tmp_path):
    found = small.attention(image)
    assert list(found) == ["body.stack.blocks.0.attention", "body.stack.blocks.1.attention"]
    weights = found["body.stack.blocks.0.attention"].weights
    assert weights.shape == (2, 17, 17)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 17), atol=1e-5)
    done = ayn(
        "use", small.folder.path, image, "--heads", tmp_path / "heads.png", *(["--place", place] if place else [])
    )
    assert done.code == 0, done.err
    assert (tmp_path / "heads.png").stat().st_size > 5000


def test_rollout_follows_the_attention_through_all_layers():
    identity, shift = torch.eye(3)[None], torch.eye(3).roll(1, 0)[None]
    assert torch.equal(rollout([identity, identity]), torch.eye(3))
    once = rollout([shift])
    assert torch.allclose(once, 0.5 * torch.eye(3) + 0.5 * shift[0])
    assert torch.allclose(rollout([shift, shift]), once @ once)
    assert torch.allclose(rollout([torch.rand(2, 4, 4).softmax(-1)] * 3).sum(-1), torch.ones(4))


def test_what_it_cannot_read(small, tmp_path):
    assert "it cannot be read: No such file" in mistake("use", small.folder.path, tmp_path / "nowhere.png")
    (tmp_path / "empty.png").write_bytes(b"")
    assert "it is empty" in mistake("use", small.folder.path, tmp_path / "empty.png")
    assert "it is no file" in mistake("use", small.folder.path, "/dev/null")
    assert "File name too long" in mistake("use", small.folder.path, "x" * 5000)
    with pytest.raises(UserError, match="it cannot be read"):
        small.predict("a\0b.png")
    with pytest.raises(UserError, match="give the path of an image, or several in a list; not int"):
        small.predict(3)
    with pytest.raises(UserError, match="a clip without frames"):
        small.predict([[]])
    assert "reads images, not texts" in mistake("use", small.folder.path, "a.png", "--embed")


def test_its_facts(small):
    found = ayn("info", small.folder.path)
    assert found.code == 0, found.err
    assert "patches" in found.out


@pytest.mark.slow
def test_resumed_is_as_never_stopped(tmp_path):
    given = [*TINY, *CHANGED, "data.limit=200", "train.schedule=constant"]
    whole = train("recognize/vit", *given, out=tmp_path / "whole", quiet=True)
    assert ayn("train", "recognize/vit", "--out", tmp_path / "part", *given, "train.steps=4").code == 0
    assert ayn("train", "recognize/vit", "--out", tmp_path / "part", "--resume", "train.steps=8").code == 0
    one, other = (
        read_tensors(path / "checkpoints/step-000008/model.safetensors")
        for path in (whole.folder.path, tmp_path / "part")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_micro_batches_give_the_same_steps(tmp_path):
    given = [*TINY, "task.mix=0.5", "task.changes=1", "data.limit=100", "train.steps=3", "train.eval_every=3"]
    given += ["train.optimizer=sgd", "train.lr=0.1"]
    runs = [
        train("recognize/vit", *given, f"train.accumulate={pieces}", out=tmp_path / str(pieces), quiet=True)
        for pieces in (1, 4)
    ]
    one, other = (run.model.state_dict() for run in runs)
    assert all(torch.allclose(one[name], other[name], atol=1e-4) for name in one)


def test_own_images_decide_their_settings(tmp_path):
    data = folder(tmp_path / "set", 60, ("red", "green", "blue"))
    done = ayn("train", "recognize/vit", "--data", data, "--out", tmp_path / "run", *RUNTIME, "train.steps=3")
    assert done.code == 0, done.err
    assert "images: model.image=28, because they are colour, 20 pixels on the shorter side" in done.out
    assert "each image is 28 x 28 pixels, 7 x 7 patches of 4 x 4" in done.out
    run = load(tmp_path / "run")
    assert run.recipe.model.image == 28
    assert set(run.task.labels) == {"red", "green", "blue"}
    assert ayn("test", tmp_path / "run", "--data", data).code == 0


@pytest.mark.slow
def test_it_starts_from_a_run_with_smaller_images(small, tmp_path):
    done = ayn(
        "train", "recognize/vit", "--init", small.folder.path, "--out", tmp_path / "run", *RUNTIME, "model.image=48",
        "train.steps=2", "train.eval_every=2", "data.limit=100",
    )  # fmt: skip
    assert done.code == 0, done.err
    run = load(tmp_path / "run")
    assert run.model.body.patches.positions.table.weight.shape == (1 + 36, 16)
    again = ["--init", tmp_path / "run", "--out", tmp_path / "same", *RUNTIME, "train.steps=1", "data.limit=100"]
    assert ayn("train", "recognize/vit", *again).code == 0
    assert load(tmp_path / "same").recipe.model.image == 48  # that of the run, if nothing else is asked for
    assert run.task.mean == small.task.mean


@pytest.mark.slow
def test_a_head_may_have_a_hidden_layer(tmp_path):
    settings = [*TINY, "data.limit=100", "model.head_hidden=12"]
    made = train("recognize/vit", *settings, out=tmp_path / "run", quiet=True)
    run = load(tmp_path / "run")
    assert run.model.head.into[0].weight.shape == (12, 16)
    assert run.model.head.out.in_features == 12
    pixels = np.zeros((2, 32, 32, 3), np.uint8)
    assert run.predict(list(pixels)) == made.predict(list(pixels))
    assert "vit with model.head_hidden = 12" in mistake("export", tmp_path / "run", tmp_path / "out", "--to", "hf")


def test_bad_settings_and_bad_data(tmp_path):
    given = ["train", "recognize/vit", "--out", tmp_path / "run", *RUNTIME]
    assert "model.patch = 5 does not divide model.image = 32" in mistake(*given, "model.patch=5")
    folder(tmp_path / "set" / "train")
    folder(tmp_path / "set" / "test", 3, ("red", "yellow"))
    said = mistake(*given, "--data", tmp_path / "set", "train.steps=1")
    assert "the test split has 1 label that the training data does not have, in 3 places: 'yellow' (3)" in said
    folder(tmp_path / "one", 40, ("red",))
    assert "all training images have the label 'red'" in mistake(*given, "--data", tmp_path / "one", "train.steps=1")
    bad = folder(tmp_path / "more", 60) / "red" / "0.png"
    bad.write_bytes(b"")
    said = mistake(*given, "--data", tmp_path / "more", "train.steps=1")
    assert "0.png: it is empty; remove it, or leave out such files with data.skip_bad=true" in said
    two = ["--data", tmp_path / "set", "--data", tmp_path / "one", "train.steps=1"]
    assert "images come from one folder or one file" in mistake(*given, *two)
    done = ayn(*given, "--data", tmp_path / "more", "train.steps=1", "data.skip_bad=true")
    assert done.code == 0, done.err
    assert "damaged images that are left out (data.skip_bad): 1 of" in done.out


def test_a_damaged_labels_file(small, tmp_path):
    shutil.copytree(small.folder.path, tmp_path / "run")
    labels = json.loads((tmp_path / "run" / "labels.json").read_text())
    (tmp_path / "run" / "labels.json").write_text(json.dumps({**labels, "mean": [0.1]}))
    assert "labels.json is damaged" in mistake("use", tmp_path / "run", "a.png")


@pytest.mark.slow
def test_the_recipe_learns_the_shapes(tmp_path):
    """A few of its steps are enough to see that it does; its head has the scores of all of them."""
    settings = ["train.steps=150", "train.eval_every=150", "train.test_limit=-1"]
    run = train("recognize/vit", *RUNTIME, *settings, out=tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert np.mean(losses[:3]) > 1.7  # log 6, as for guesses
    assert np.mean(losses[-3:]) < 1.6
    assert run.recipe.model.image == SIDE


def test_only_a_training_changes_what_the_model_sees(small):
    model, seen = small.task.build_model(), []
    tensors = small.task.examples("train").collate(np.arange(8), 3).tensors
    model.preprocess.register_forward_hook(
        lambda preprocess, given, out: seen.append((preprocess.training, out["pixels"]))
    )
    model.train().loss(tensors, tensors["targets"])
    model.eval().loss(tensors, tensors["targets"])
    model(tensors)
    assert [learning for learning, _ in seen] == [True, False, False]
    assert not torch.equal(seen[0][1], seen[1][1])
    assert torch.equal(seen[1][1], seen[2][1])
