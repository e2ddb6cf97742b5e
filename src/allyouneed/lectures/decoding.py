"""How a translation is written: step by step, what is read, looked at and likely; greedy, with a beam, by chance; and
what the decoder reads while it learns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from allyouneed.figures.bars import share_bars, spread_bars
from allyouneed.figures.curves import read_metrics
from allyouneed.figures.style import BLUE, ORANGE, WEIGHTS
from allyouneed.figures.token_table import Row, token_table
from allyouneed.figures.tree import search_tree
from allyouneed.lectures.base import Lecture, check_words
from allyouneed.predict.translate import TranslatePredictor
from allyouneed.run import Run

SENTENCE = "Je suis étudiant."
SETTINGS = ("data.name=french", "train.steps=160", "train.eval_every=80")
LIKELY, BEAM, DRAWS, TEMPERATURES = 3, 3, 100, (0.5, 1.0)
SHOWN = 5  # results of each temperature
FORCED, SEEDS = (0.0, 0.5, 1.0), (1, 2)
FORCING = ("data.name=french", "train.steps=120", "train.eval_every=120", "train.batch_tokens=512")


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS, forcing: Sequence[str] = FORCING) -> dict[str, Any]:
    """A small Transformer from French to English, unless a run is given."""
    run, text = lecture.trained("translate/transformer", *settings, name="french"), lecture.text or SENTENCE
    check_words(_predictor(run).processor.reader, text)
    numbers: dict[str, Any] = {"steps": write(lecture, run, text), "beam": search(lecture, run, text)}
    numbers["drawn"] = draw(lecture, run, text)
    if not lecture.run:
        numbers["teacher forcing"] = force(lecture, forcing)
    return numbers


def write(lecture: Lecture, run: Run, text: str) -> list[dict[str, Any]]:
    """Each step of the greedy translation: what the decoder has read, where it looks, and what is likely."""
    given, _ = run.read(text, method="greedy")
    answer = run.answers([text], method="greedy")[0]
    predictor, token = _predictor(run), run.processor.tokenizer.token
    begin, logits = predictor.processor.begin_id, predictor.steps(given, answer.whole)
    logp, found = logits.log_softmax(-1), run.align(text, method="greedy")
    steps, table = [], []
    rows = [Row("the decoder has read", [*found.source, None, *(f"likely {i + 1}" for i in range(LIKELY))])]
    for at, weights in enumerate(found.weights[: len(logits)].tolist()):
        read = [token(id).strip() for id in (begin, *answer.whole[:at])]
        best = logits[at].topk(LIKELY).indices.tolist()
        likely = [(token(id).strip(), float(logits[at, id]), float(logp[at, id])) for id in best]
        most = found.source[max(range(len(weights)), key=weights.__getitem__)]
        shares = [float(logp[at, id].exp()) for id in best]
        cells = [f"{word} {100 * p:.1f} %" for (word, _, _), p in zip(likely, shares)]
        shades = [str(round(8 * share)) for share in (*weights, 0.0, *shares)]
        rows.append(Row(f"{at + 1}:  {' '.join(read)}", [*(f"{w:.2f}" for w in weights), None, *cells], shades))
        for i, ((word, logit, value), p) in enumerate(zip(likely, shares)):
            where = ["", "", ""] if i else [at + 1, " ".join(read), most]
            table.append([*where, word, f"{logit:.2f}", f"{value:.3f}", f"{p:.4f}"])
        steps.append({"read": read, "attends": weights, "likely": likely})
    lecture.table(["step", "has read", "attends most to", "likely", "logit", "log p", "p"], table)
    total = answer.logprob
    lecture.tell(
        f""""{text}" becomes "{answer.text}" in {len(steps)} steps, the last of which ends it. Each step reads all words
        written so far, looks at the source ({found.shown or "one attention"}), and gives every word of the vocabulary a
        logit. The softmax makes probabilities of the logits; their logarithm is log p. The likeliest word is chosen and
        read in the next step. The log p of the chosen words add up to {total:.3f}: the translation has the probability
        {math.exp(total):.4f}."""
    )
    colours = {str(i): colour for i, colour in enumerate(WEIGHTS)}
    title = f"“{text}”: where each step looks, and what is likely"
    lecture.draw(lambda out: token_table(rows, colours, out, title, legend=False), title, "steps")
    return steps


def search(lecture: Lecture, run: Run, text: str) -> dict[str, Any]:
    """The hypotheses of a beam search; returns the tree."""
    tree: dict[str, Any] = run.view(text, method="beam", beam=BEAM, n_best=1).shown["beams"]
    nodes = tree["nodes"]

    def words(at: int) -> str:
        return (f"{words(nodes[at]['parent'])} " if nodes[at]["parent"] >= 0 else "") + nodes[at]["token"].strip()

    ends = sorted(
        (at for at, node in enumerate(nodes) if node["score"] is not None), key=lambda at: -nodes[at]["score"]
    )
    rows = [[words(at), f"{nodes[at]['logprob']:.3f}", f"{nodes[at]['score']:.3f}"] for at in ends[:BEAM]]
    lecture.tell(
        f"""A beam of {BEAM} keeps the {BEAM} likeliest beginnings at each step instead of one; {len(nodes)} are drawn.
        Those that have ended compete by their log p, divided by a penalty that grows with the length."""
    )
    lecture.table(["the best hypotheses", "log p", "score"], rows)
    title = f"Beam search for “{text}”, with log p"
    lecture.draw(lambda out: search_tree(nodes, tree["winner"], out, title), title, "beam")
    return {"nodes": nodes, "winner": tree["winner"], "best": words(tree["winner"])}


def draw(lecture: Lecture, run: Run, text: str) -> dict[str, list[list[Any]]]:
    """Translations drawn at each temperature: how often, and their probability at this temperature."""
    given, _ = run.read(text, method="sample")
    panels, rows, numbers = [], [], dict[str, list[list[Any]]]()
    for temperature in TEMPERATURES:
        first = run.answers([text], method="sample", temperature=temperature, top_k=0, top_p=1.0, n_best=DRAWS)[0]
        several = [first, *first.others]
        counts = Counter(answer.text for answer in several)
        bars = list[tuple[str, float, int]]()
        for result, count in counts.most_common(SHOWN):
            tokens = next(answer.whole for answer in several if answer.text == result)
            logp = (_predictor(run).steps(given, tokens) / temperature).log_softmax(-1)
            p = float(logp[range(len(tokens)), tokens].sum().exp())
            bars.append((result, p, count))
        bars.sort(key=lambda bar: -bar[1])
        rows += [[f"{temperature:g}", name, f"{count} of {DRAWS}", f"{100 * p:.2f} %"] for name, p, count in bars]
        numbers[f"{temperature:g}"] = [list(bar) for bar in bars]
        rest = max(0.0, 1 - sum(p for _, p, _ in bars))
        panels.append((f"temperature {temperature:g}", [*((name, p) for name, p, _ in bars), ("all others", rest)]))
    low, high = (max(p for _, p, _ in bars) for bars in numbers.values())
    lecture.tell(
        f"""Sampling draws each word by its probability, the softmax of logits / temperature. The likeliest result has
        {100 * low:.1f} % at temperature {TEMPERATURES[0]:g} and {100 * high:.1f} % at {TEMPERATURES[1]:g}: a higher
        temperature makes all words more alike. Greedy is temperature 0."""
    )
    lecture.table(["temperature", "drawn", "how often", "its probability"], rows)
    title = f"“{text}” drawn at two temperatures"
    lecture.draw(lambda out: share_bars(panels, out, title, "probability of the result", "all others"), title, "drawn")
    return numbers


def _predictor(run: Run) -> TranslatePredictor:
    return cast(TranslatePredictor, run.predictor)


def force(lecture: Lecture, settings: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Small recurrent translators that read the true word with probability p while they learn, else their own."""
    numbers: dict[str, dict[str, list[float]]] = {}
    for p in FORCED:
        bleu, loss = [], []
        for seed in SEEDS:
            own = (f"task.teacher_forcing={p}", f"train.seed={seed}")
            run = lecture.trained("translate/attention", *settings, *own, name=f"forcing-{p:g}-{seed}")
            bleu.append(next(score.value for score in run.scores()["test"] if score.name == "BLEU"))
            loss.append([row["loss"] for row in read_metrics(run.folder.metrics) if row["kind"] == "valid"][-1])
        numbers[f"p = {p:g}"] = {"BLEU": bleu, "validation loss": loss}
    rows = [
        [name, *(", ".join(f"{value:.{digits}f}" for value in found[key]) for key, digits in (("BLEU", 1),
         ("validation loss", 2)))] for name, found in numbers.items()
    ]  # fmt: skip
    means = {name: sum(found["BLEU"]) / len(SEEDS) for name, found in numbers.items()}
    best = max(means, key=means.__getitem__)
    lecture.tell(
        f"""Teacher forcing: in training, the decoder reads the true word with probability p, and otherwise the one that
        it would have written itself. After the same few steps, {best} is best, with a BLEU of {means[best]:.1f} in the
        mean of {len(SEEDS)} seeds; the others have
        {", ".join(f"{mean:.1f} ({name})" for name, mean in means.items() if name != best)}. The loss is measured with
        the true words for all of them."""
    )
    lecture.table(["true word read with", "BLEU of each seed", "validation loss of each seed"], rows)
    for key, colour in (("BLEU", BLUE), ("validation loss", ORANGE)):
        groups = {name: {key: found[key]} for name, found in numbers.items()}
        title = f"Teacher forcing with probability p: {key}"
        part = f"forcing-{key.split()[-1].lower()}"
        lecture.draw(
            lambda out, groups=groups, key=key, colour=colour, title=title: spread_bars(  # type: ignore[misc]
                groups, {key: colour}, out, title, key
            ),
            title, part,
        )  # fmt: skip
    return numbers
