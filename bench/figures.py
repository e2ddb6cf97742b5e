"""Every figure of the documents, by the commands that make it.

python -m bench.figures              # the list: each figure and its commands
python -m bench.figures positions    # make it again, in docs/images; several names, or "all"

A run that is there already is not trained again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"
RUNS = Path("runs/figures")  # where the commands run
ASKED = '"a small red circle above a large blue square" --set n_best=16'
POSITIONS = """
from pathlib import Path
import torch
from allyouneed.figures import sinusoid as plot
from allyouneed.nn.positions import sinusoid
plot(sinusoid(torch.arange(100), 128), Path("positions.png"))
"""
RINGS = """
from PIL import Image
from allyouneed.data.builtin.shapes import Shape, draw
rings = [Shape("ring", "blue", "small", 10.0, 12.0), Shape("ring", "blue", "small", 22.0, 22.0)]
Image.fromarray(draw(rings)).save("rings.png")
"""


@dataclass(frozen=True)
class Figure:
    """What makes a figure: commands for a shell in RUNS. `needs`: what two CPU cores and no data do not do."""

    file: str
    commands: tuple[str, ...]
    needs: str = ""


def trained(recipe: str, out: str, *settings: str) -> str:
    """A training, unless the run is there."""
    return " ".join(["test -f", f"{out}/scores.json ||", "ayn train", recipe, "--overwrite --out", out, *settings])


def shown(topic: str, part: str = "") -> Figure:
    """A figure of a topic of the lectures, unless the topic was shown before."""
    file = f"lectures/{topic}{f'-{part}' * bool(part)}.png"
    return Figure(file, (f"test -f {file} || ayn lecture {topic} --out lectures",))


DEMO = "test -f demo/alignment.png || python -m allyouneed.demo demo"
CODES = trained("compress/shapes", "codes")
SHAPES = trained("draw/shapes", "shapes", "task.image_tokenizer=codes")


def looked(run: str, text: str, state: str, more: str = "") -> str:
    """A page of `ayn look`, as an image."""
    page = f"ayn look {run} {text} --no-open --out look.html"
    return f"{page} && python -m bench.screenshot look.html look.png {state} {more}"


# By topic, the part of each figure in its name; "": the figure has the name of the topic.
LECTURES = {
    "by-hand": [""],
    "decoding": ["steps", "beam", "drawn", "forcing-bleu"],
    "bert": ["masks", "candidates", "inputs", "outputs"],
    "positions": ["tables", "near", "rotation", "beyond"],
    "video": ["clips", ""],
    "parts": ["", "training", "models"],
    "patches": [""],
    "patch-positions": [""],
    "structure": ["base", "parts", "heads", "unrolled"],
    "sequences": ["kinds", ""],
    "wordmap": [""],
    "alignment": ["", "1"],
    "lengths": [""],
    "gradients": [""],
    "paths": [""],
    "banks": ["elmo", "gpt", "bert"],
    "assignment": ["prefixes", "accuracy"],
}
BROWSER = "playwright and Chromium"
GPT, ENGLISH = trained("lm/gpt", "gpt"), '"Are our sisters English?"'
FIGURES = {
    "alignment": Figure("demo/alignment.png", (DEMO,)),
    "loss": Figure("demo/loss.png", (DEMO,)),
    "positions": Figure("positions.png", (f"python -c {shlex.quote(POSITIONS)}",)),
    "vit-heads": Figure(
        "heads.png",
        (
            trained("recognize/vit", "vit"),
            f"python -c {shlex.quote(RINGS)}",
            "ayn use vit rings.png --heads heads.png",
        ),
    ),
    "drawings": Figure("shapes/drawings.png", (CODES, SHAPES)),
    "ranked": Figure("ranked.png", (CODES, SHAPES, f"ayn use shapes {ASKED} --out ranked.png")),
    "circle": Figure(
        "circle.png",
        (
            trained("compress/shapes-gpu", "codes-gpu"),
            trained("draw/shapes-gpu", "shapes-gpu", "task.image_tokenizer=codes-gpu"),
            f"ayn use shapes-gpu {ASKED} --out circle.png",
        ),
        "a GPU",
    ),
    "vit-patches": Figure(
        "lectures/patches.png",
        (trained("recognize/cifar10", "cifar10"), "ayn lecture patches --run cifar10 --out lectures"),
        "a GPU, and CIFAR-10",
    ),
    "look": Figure("look.png", (DEMO, looked("demo", ENGLISH, '"view=attention&token=2"')), BROWSER),
    "look-writing": Figure("look.png", (GPT, looked("gpt", '"The dog sees the"', '"view=writing"')), BROWSER),
    "look-beams": Figure("look.png", (DEMO, looked("demo", ENGLISH, '"view=writing"', "1000 beams")), BROWSER),
    "look-hand": Figure(
        "look.png", (GPT, looked("gpt", '"The dog sees the"', '"view=hand&token=2&layer=1&head=1"')), BROWSER
    ),
    "look-inside": Figure("look.png", (GPT, looked("gpt", '"The dog sees the"', '"view=inside"', "1000")), BROWSER),
    "look-image": Figure(
        "look.png",
        (trained("recognize/vit", "vit"), looked("vit", '"large red ring"', '"view=attention"', "1000")),
        BROWSER,
    ),
    "look-gates": Figure(
        "look.png", (trained("lm/lstm", "lstm"), looked("lstm", '"The king eats"', '"view=gates"', "1000")), BROWSER
    ),
    "look-vocabulary": Figure(
        "look.png",
        (trained("wordvectors/skipgram", "words"), looked("words", "king", '"view=vocabulary"', "1000 dark")),
        BROWSER,
    ),
    "look-architecture": Figure(
        "look.png", (DEMO, looked("demo", ENGLISH, '"view=architecture&module=body.decoder.blocks.0.cross"')), BROWSER
    ),
    "avocado": Figure(
        "avocado.png",
        (
            trained("compress/emoji", "codes-emoji"),
            trained("draw/emoji", "emoji", "task.image_tokenizer=codes-emoji"),
            'ayn use emoji "an armchair in the shape of an avocado" --set n_best=16 --out avocado.png',
        ),
        "a GPU, and the data set emoji, which has no public address",
    ),
}
FIGURES |= {f"lecture-{topic}{f'-{part}' * bool(part)}": shown(topic, part)
            for topic, parts in LECTURES.items() for part in parts}  # fmt: skip


def make(name: str) -> Path:
    """Run the commands of a figure and copy it to the documents."""
    RUNS.mkdir(parents=True, exist_ok=True)
    folder = str(Path(sys.executable).parent)
    home = str(Path(__file__).parent.parent)
    env = {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")]), "PYTHONPATH": home}
    for command in FIGURES[name].commands:
        subprocess.run(["bash", "-c", command], cwd=RUNS, env=env, check=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(RUNS / FIGURES[name].file, IMAGES / f"{name}.png"))


def main(names: list[str]) -> None:
    for name in FIGURES if names == ["all"] else names:
        if name not in FIGURES:
            raise SystemExit(f"there is no figure '{name}': {', '.join(FIGURES)}")
        print(make(name))
    if not names:
        for name, figure in FIGURES.items():
            print(f"{name}{f' (needs {figure.needs})' * bool(figure.needs)}")
            print("".join(f"    {command.strip()}\n" for command in figure.commands))


if __name__ == "__main__":
    main(sys.argv[1:])
