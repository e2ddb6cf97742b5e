"""The documents: every file, name, test, link and command in them exists; where the lectures slip, numbers say so."""

from __future__ import annotations

import ast
import math
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch.nn.functional import cross_entropy

from allyouneed.cli import app
from allyouneed.data.batches.pairs import SentencePairs
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.lectures import TOPICS
from allyouneed.models.base import Writer
from allyouneed.models.gpt import GPT
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.models.word2vec import Word2Vec
from allyouneed.nn.attention import Attention, attend
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace
from allyouneed.recipe import read_recipe, recipe_names
from allyouneed.run import train
from test_images import folder

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from bench import figures  # noqa: E402

HOME = TOP / "src" / "allyouneed"
DOCS = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
each_document = pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)


def spans(text: str) -> list[str]:
    """What stands between backticks inside a line."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks: (language, content)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)


def names(path: Path) -> set[str]:
    """What a module defines: functions, classes, values, and "Class.member"."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


@each_document
def test_every_file_name_and_test_exists(path: Path) -> None:
    mentions = [span for span in spans(path.read_text(encoding="utf-8")) if re.search(r"\.py\b|^recipes/", span)]
    for mention in mentions:
        form = re.fullmatch(r"([\w/]+\.(?:py|toml))(?:(?:: |::)([\w., ]+))?", mention)
        assert form, f"'{mention}' is not of the form file, file: name or file::test"
        found = [top / form[1] for top in (TOP, HOME) if (top / form[1]).is_file()]
        assert found, f"there is no {form[1]}"
        for name in form[2].split(", ") if form[2] else []:
            assert name in names(found[0]), f"{form[1]} has no {name}"
    assert len(mentions) > 20 or path.name not in ("architecture.md", "lectures.md")


@each_document
def test_every_link_and_figure_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}
    for link in re.findall(r"\]\(([^)\s]+)", text):
        if link.startswith("#"):
            assert link[1:] in anchors, link
        elif not link.startswith("http"):
            assert (path.parent / link.partition("#")[0]).exists(), link


def test_every_figure_has_commands_that_make_it(tmp_path, monkeypatch):
    assert {path.stem for path in (TOP / "docs" / "images").glob("*")} == set(figures.FIGURES)
    assert set(figures.LECTURES) == set(TOPICS)
    made_by = "\n".join(command for figure in figures.FIGURES.values() for command in figure.commands)
    assert len(commands(f"```\n{made_by}\n```\n")) > 10
    check_commands(f"```\n{made_by}\n```\n")
    monkeypatch.setattr(figures, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(figures, "IMAGES", tmp_path / "images")
    with Image.open(figures.make("positions")) as made, Image.open(TOP / "docs" / "images" / "positions.png") as shown:
        assert made.size == shown.size
        assert np.abs(np.asarray(made).astype(int) - np.asarray(shown)).mean() < 2


def commands(text: str) -> list[list[str]]:
    """The words after each `ayn`, up to the end of its command."""
    lines = spans(text) + [line for _, block in blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    found: list[list[str]] = []
    for line in lines:
        if not re.search(r"(^\s*(\$ )?|&& |\| )([A-Z_]+=\S+ )*(\S*/)?ayn\s", line):
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        inside = False
        for word in words:
            if re.fullmatch(r"[|&;<>()]+", word):
                inside = False
            elif inside:
                found[-1].append(word)
            elif Path(word).name == "ayn":
                found.append([])
                inside = True
    return [words for words in found if words]


@each_document
def test_every_command_parses(path: Path) -> None:
    check_commands(path.read_text(encoding="utf-8"))


def check_commands(text: str) -> None:
    known: Any = typer.main.get_command(app)
    for name, *words in commands(text):
        if name.startswith("-"):
            continue
        assert name in known.commands, f"there is no command ayn {name}"
        if not words or words == ["…"]:
            continue
        given = known.commands[name].make_context(name, list(words)).params
        settings = [word for word in given.get("overrides") or [] if word != "…"]
        settings += [f"decode.{item}" for item in given.get("set_") or []]
        recipe = given.get("recipe") or "RECIPE"
        if recipe.isupper() or recipe.endswith(".toml"):  # any
            assert any(takes(one, settings) for one in recipe_names()), f"no recipe takes {settings}"
        else:
            read_recipe(recipe, settings)
        assert name == "train" or all(word.startswith("decode.") for word in settings), words
        assert given.get("what", "data") in ("recipes", "data", "models", "settings"), given


@each_document
def test_every_setting_is_known_to_some_recipe(path: Path) -> None:
    for span in spans(path.read_text(encoding="utf-8")):
        if re.fullmatch(r"((task|model|text|data|train|decode)\.\w+=\S+ ?)+", span):
            assert any(takes(one, span.split()) for one in recipe_names()), f"no recipe takes {span}"


def takes(recipe: str, settings: list[str]) -> bool:
    try:
        return bool(read_recipe(recipe, settings))
    except UserError:
        return False


def test_the_plan_of_the_house_is_the_house() -> None:
    plan = next(block for _, block in blocks((TOP / "docs/architecture.md").read_text(encoding="utf-8")))
    here, top = [HOME], set()
    for branch, name in re.findall(r"^([│ ]*)[├└]── (\S+)", plan, re.M):
        depth = len(branch) // 4
        here[depth + 1 :] = [here[depth] / name]
        assert here[-1].exists(), name
        top |= {name.rstrip("/")} if not depth else set()
    rooms = {p.name for p in HOME.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert {name for name in rooms if not name.startswith("_")} == top
    families = HOME / "exchange" / "families"
    files = [p for p in HOME.rglob("[a-z]*.py") if p.parent != families]
    assert not [p for p in files if not re.search(rf"\b{p.name}\b", plan)]


def test_the_python_of_the_lectures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, block in blocks((TOP / "docs/lectures.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(block, {})
    assert (tmp_path / "positions.png").stat().st_size > 10_000


# Where the notes slip


@pytest.mark.parametrize("n", [3, 300])
def test_the_scale_is_the_root_of_the_head_width_whatever_the_sentence(n: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 200, 64), torch.randn(1, 1, n, 64), torch.randn(1, 1, n, 8)
    scores = q @ k.transpose(-1, -2)
    assert scores.std().item() == pytest.approx(8, abs=0.5)
    for out in (attend(q, k, v), attend(q, k, v, weights=True)[0]):
        torch.testing.assert_close(out, (scores / 8).softmax(-1) @ v)


def test_heads_divide_the_width_unless_told_otherwise() -> None:
    assert (Attention(48, 3).head_width, Attention(48, 3).out.weight.T.shape) == (16, (48, 48))
    wide = Attention(48, 3, head_width=48)
    assert (wide.head_width, wide.out.weight.T.shape) == (48, (144, 48))


def test_a_softmax_of_three_cosines_stays_below_four_fifths() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 3, 8)
    k[..., 0, :], k[..., 1:, :] = 5 * q[..., 0, :], -q  # as like and as unlike as can be
    _, weights = attend(q, k, k, score="cosine", weights=True)
    assert weights.max().item() == pytest.approx(0.787, abs=1e-3)
    assert attend(5 * q, k, k, weights=True)[1].max() > 0.93


def test_a_token_prefers_itself_only_before_the_matrices_come() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 10, 64)

    @torch.no_grad()
    def to_itself(layer: Attention) -> float:
        layer(x, trace=(trace := Trace("weights")))
        return float(trace["weights"].diagonal(dim1=-2, dim2=-1).mean())

    assert to_itself(Attention(64, 1, score="parameter_free")) > 0.99
    assert to_itself(Attention(64, 1)) == pytest.approx(1 / 10, abs=0.02)


def test_the_decoder_reads_the_true_target_one_step_late() -> None:
    source, target = (Ragged(np.array(ids), np.array([0, len(ids)])) for ids in ([8, 9], [5, 6, 7]))
    pairs = SentencePairs(source, target, source_eos=2, target_bos=1, target_eos=2, max_length=9)
    batch = pairs.collate(np.array([0])).tensors
    assert batch["source"].tolist() == [[8, 9, 2]]  # no target in the encoder
    assert batch["target"].tolist() == [[1, 5, 6, 7]]
    assert batch["targets"].tolist() == [[5, 6, 7, 2]]


def test_each_decoder_layer_makes_its_own_keys_of_the_encoders_output() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(vocab=20, target_vocab=20, width=16, heads=2, layers=2, dropout=0.0)
    model: Any = Transformer(config).eval()
    lengths = torch.tensor([6])
    output = model.body.encode(torch.randint(4, 20, (1, 6)), lengths)
    k = model.body.decoder.encode_source(output, lengths)["k"]
    for layer, block in enumerate(model.body.decoder.blocks):
        torch.testing.assert_close(k[:, layer], block.cross.keys_values(output)[0])
    assert not torch.allclose(k[:, 0], k[:, 1])


def test_word2vec_has_no_probability_of_a_sentence() -> None:
    assert issubclass(GPT, Writer)
    assert not issubclass(Word2Vec, Writer)
    assert Word2Vec.tasks == ("wordvectors",)


def test_without_the_mask_a_position_sees_the_word_that_it_predicts() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 5, 16, requires_grad=True)
    for mask, sees in ((Mask(causal=True), False), (Mask(), True)):
        (gradient,) = torch.autograd.grad(Attention(16, 2)(x, mask)[0, 2].sum(), x)
        assert bool(gradient[0, 3].abs().sum() > 0) == sees  # the input after position 2 is what it has to predict


def test_more_heads_need_no_more_parameters() -> None:
    counts = {sum(p.numel() for p in Attention(64, heads).parameters()) for heads in (1, 2, 8, 64)}
    assert counts == {4 * 64**2 + 4 * 64}


def test_the_weights_of_twice_as_many_tokens_are_four_times_as_many() -> None:
    sizes = [attend(*torch.randn(3, 1, 2, n, 4), weights=True)[1].numel() for n in (10, 20)]
    assert sizes == [2 * 100, 2 * 400]


def test_every_slide_can_be_seen() -> None:
    rows = re.findall(r"^\|.*\|$", (TOP / "docs/lectures.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) > 100
    assert not [row for row in rows if row.endswith("| — |")]


@pytest.mark.slow
def test_everything_in_the_readme_runs(tmp_path: Path, quick_command: Callable[..., Any]) -> None:
    """As a newcomer with files of these names would type it, with two steps of training."""
    chance = random.Random(0)
    words = "Once upon a time Ada went to London . A sentence to translate : the man , his aunt and his uncle"
    words += " . The king , the queen , a dog and a cat"
    lines = [" ".join(chance.choices(words.split(), k=9)) for _ in range(1000)]
    (tmp_path / "notes.txt").write_text("\n".join(lines))
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines))
    (tmp_path / "reviews.tsv").write_text("".join(f"{line}\t{'Ada' in line}\n" for line in lines))
    tags = {"Ada": "B-PER", "London": "B-LOC"}
    rows = ("".join(f"{word}\t{tags.get(word, 'O')}\n" for word in line.split()) for line in lines)
    (tmp_path / "names.conll").write_text("\n".join(rows))
    folder(tmp_path / "photos", 60)
    (tmp_path / "image.jpg").write_bytes((tmp_path / "photos" / "red" / "1.png").read_bytes())
    short = ["train.steps=2", "train.epochs=0", "train.eval_every=2", "train.threads=1"]
    program, ran = "import torch\nq, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))\n", 0
    for language, block in blocks((TOP / "README.md").read_text(encoding="utf-8")):
        if language == "python":
            program += block.replace('"train.steps=700"', ", ".join(f'"{setting}"' for setting in short))
        for one in commands(f"```\n{block}```\n") if not language else []:
            code, said = quick_command(*one, *(short if one[0] == "train" else []), cwd=tmp_path)
            assert code == 0, (one, said)
            ran += 1
    assert ran >= 10
    assert program.count("import allyouneed") == 1
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_sinusoidal_positions_beyond_the_window_are_worse_than_guessing(tmp_path):
    given = ("model.positions=sinusoidal", "train.device=cpu", "train.compile=off")
    run = train("lm/gpt", *given, out=tmp_path / "run", quiet=True)
    window, tokens = run.recipe.model.context, torch.from_numpy(run.task.stream("test").tokens.astype(np.int64))
    rows = (len(tokens) - 1) // (2 * window)
    ids, targets = (tokens[at : at + 2 * window * rows].view(rows, 2 * window) for at in (0, 1))
    with torch.inference_mode():
        losses = cross_entropy(run.model(ids).mT, targets, reduction="none").mean(0)
    guess = math.log(len(run.predictor.tokenizer))
    assert losses[:window].mean() < guess / 2
    assert losses[window:].mean() > guess
