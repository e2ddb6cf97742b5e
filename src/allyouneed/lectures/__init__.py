"""The topics of the lectures, in the order of the notes: one small file each, one command, one page. `ayn lecture`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from allyouneed.errors import UserError, nearest, option_name
from allyouneed.lectures.shown import Shown

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from allyouneed.lectures.base import Lecture
    from allyouneed.run import Run

MIDTERM, CHAPTER, COMP, BASICS, ECE = "Midterm Review", "Chapter 08", "COMP7607", "Deep Learning Basics", "ECE 1786"


@dataclass(frozen=True)
class Topic:
    """`slides`: where it is in the notes. `minutes`: on two CPU cores, when nothing is trained yet. `runs`: which runs
    it can look into, each a task, or a task and a model. `asks`: what a text of the reader's own is."""

    about: str
    slides: str
    minutes: float
    runs: tuple[str, ...] = ()
    asks: str = ""

    @property
    def needs(self) -> str:
        """What the reader may want to know before it starts."""
        time = f"{self.minutes:g} min" if self.minutes >= 1 else "seconds"
        return f"{time}, or --run" if self.runs else time


TOPICS = {
    "by-hand": Topic(
        "attention by hand: q, k, v, scores, mask, softmax, sum, logits and argmax, all with numbers",
        f"{MIDTERM} 4-7; {CHAPTER} §6.1; {COMP} masks; {BASICS} Thinking Machines, logits; {ECE} self-attention",
        0.1, ("lm/gpt", "translate/transformer", "pretrain/bert"), "a sentence of 2 to 10 words",
    ),
    "decoding": Topic(
        "a translation word by word: greedy, with a beam, drawn at two temperatures; teacher forcing",
        f"{MIDTERM} 18-22; {CHAPTER} §3, 3.1; {BASICS} decoding", 3, ("translate",), "a sentence to translate",
    ),
    "bert": Topic(
        "BERT: what is hidden, what is likely, which passage follows, and what goes in and comes out",
        f"{MIDTERM} 24-27; {CHAPTER} §9", 2, ("pretrain",), "a sentence with [MASK] in it",
    ),
    "positions": Topic(
        "what is seen of the order of words: without positions, with sinusoids, and beyond the trained length",
        f"{MIDTERM} 16-17; {COMP} positional encoding; {BASICS} positional encoding", 2,
    ),
    "video": Topic(
        "clips whose frames are the tokens of a Transformer, with and without their order",
        f"{MIDTERM} 8", 0.3,
    ),
    "parts": Topic(
        "what norm, residual, feed-forward, heads and dropout are worth; an MLP, a CNN, an RNN and a GPT on one text",
        f"{MIDTERM} 9, 11-12, 14; {COMP} layer normalization, multi-head; {ECE} skip connections, MLP or CNN", 3,
    ),
    "patches": Topic(
        "which positions of a ViT are alike, what its filters look for, and what patches save",
        f"{MIDTERM} 29-31; {CHAPTER} §10", 1, ("recognize/vit",),
    ),
    "patch-positions": Topic(
        "how well a ViT learns with no positions, 1-D, learned and 2-D ones, three seeds each",
        f"{MIDTERM} 31", 3,
    ),
    "structure": Topic(
        "pictures of structure: the parts of a model with their shapes, heads, one block, a recurrent edge",
        f"{MIDTERM} 12-13; {CHAPTER} §1, §3.2, §6; {BASICS} recap; {ECE} global structure, kernels", 0.2,
        ("answer", "classify", "compress", "draw", "embed", "lm", "pretrain", "recognize", "tag", "translate",
         "wordvectors"),
    ),
    "sequences": Topic(
        "kinds of sequence models; texts that are whole, trimmed, with gaps, and in another order",
        f"{CHAPTER} §2; {BASICS} sequential model", 1,
    ),
    "wordmap": Topic(
        "word vectors on a map, and man + aunt - uncle as arrows",
        f"{CHAPTER} §3.2", 1, ("wordvectors",),
    ),
    "alignment": Topic(
        "which French word attends to which English word: attention over an RNN",
        f"{CHAPTER} §4", 1, ("translate",), "a sentence to translate",
    ),
    "lengths": Topic(
        "translation score by the length of the sentence, with and without attention",
        f"{CHAPTER} §4", 3,
    ),
    "gradients": Topic(
        "how the gradient shrinks with the distance: RNN, LSTM, Transformer",
        f"{COMP} vanishing gradient", 0.2,
    ),
    "paths": Topic(
        "path length, sequential steps and measured time by the length of a sentence",
        f"{COMP} sequential computation", 0.2,
    ),
    "banks": Topic(
        "the bank of a river, the bank with the money, and to bank on something, in ELMo, GPT and BERT",
        f"{ECE} contextual embeddings; {CHAPTER} §3.2", 2, ("lm/elmo", "lm/gpt", "pretrain/bert"),
    ),
    "assignment": Topic(
        "a language model prefix by prefix, and its body under a classifier that has few labels",
        f"{ECE} assignment 3", 2, ("lm/gpt", "pretrain/bert"), "a sentence whose next words are predicted",
    ),
}  # fmt: skip
ALL = "all"


def check(name: str, run: str = "", text: str | None = None) -> None:
    """Raise a UserError if there is no topic of this name, or if it takes no run or no text; a text is not blank."""
    if name == ALL and (run or text):
        raise UserError(f"'all' shows every topic in models of its own: leave out {option_name('--run')} and the text")
    if name == ALL:
        return
    if name not in TOPICS:
        raise UserError(f"there is no topic '{name}'{nearest(name, [*TOPICS, ALL])}")
    topic = TOPICS[name]
    if run and not topic.runs:
        others = ", ".join(name for name, other in TOPICS.items() if other.runs)
        raise UserError(f"'{name}' makes its own models; {option_name('--run')} is for {others}")
    if text is not None and not text.strip():
        raise UserError("the text is empty: give a sentence, or leave it out")
    if text and not topic.asks:
        others = ", ".join(name for name, other in TOPICS.items() if other.asks)
        raise UserError(f"'{name}' takes no text of your own; these do: {others}")


def show(name: str, lecture: Lecture) -> Shown:
    """Show a topic: what it tells, its tables and its figures are said and kept."""
    check(name, lecture.run, lecture.text or None)
    topic, begin = TOPICS[name], monotonic()
    with lecture.topic(name, topic.runs):
        numbers = import_module(f"allyouneed.lectures.{name.replace('-', '_')}").show(lecture)
        seconds = round(monotonic() - begin, 1)
        return Shown(lecture.out, lecture.write(numbers, about=topic.about, slides=topic.slides, seconds=seconds))


def lecture(
    topic: str,
    text: str | None = None,
    *,
    run: Run | str | os.PathLike[str] = "",
    out: str | os.PathLike[str] = "runs/lectures",
    mirror: str | os.PathLike[str] = "",
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> Shown:
    """A topic of the lectures (`ayn lecture` lists them), about a `text` of your own or in a `run` of your own, for
    topics that take one. A notebook draws what it returns: texts, tables and figures; `numbers` are behind them.

    Models that it trains are kept in the folder `out` and shared. `say` gets everything as soon as it is there, also
    how a training goes; without it all trainings print one line.

    >>> lecture("alignment", "Je suis étudiant.").numbers["sentences"][0]["weights"]
    """
    if topic == ALL:
        raise UserError("a booklet of all topics is made by the command: ayn lecture all")
    check(topic, str(run), text)  # an unknown name is found before torch is imported
    from allyouneed.lectures.base import Lecture
    from allyouneed.run import Run

    used = str(run.folder.path if isinstance(run, Run) else run)
    quiet = say is None
    return show(topic, Lecture(Path(out), say or (lambda text: None), used, str(mirror), device, text or "", quiet))
