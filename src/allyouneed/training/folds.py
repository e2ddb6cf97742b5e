"""train.folds: a small data set is scored by cross-validation, so that every example is in a test once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from allyouneed import catalog
from allyouneed.data.opening import read_data
from allyouneed.data.sources import Source
from allyouneed.errors import UserError
from allyouneed.metrics import Score, exact_score
from allyouneed.recipe import Recipe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_json
from allyouneed.tasks.scoring import score_rows
from allyouneed.terminal import Say

VALID = 0.1  # of the data, for the validation of each training
KEY = "folds"  # of the scores, in scores.json
OF_ONE = re.compile(r"\|(n|step|true|found|ci95):[^|]*")  # what a signature says of one fold

Fit = Callable[[Recipe, Path, bool, Source], RunFolder]  # a recipe, where its run goes, whether to print, its data


def fit_folds(recipe: Recipe, out: Path, fit: Fit, say: Say) -> RunFolder:
    """Train as often as there are folds, each time with another part of the data as the test, into folders beside
    `out`; then once with no test, into `out`, whose scores are those of the others."""
    folds, source = recipe.train.folds, _read(recipe)
    scores = []
    for fold in range(1, folds + 1):
        place = out.with_name(f"{out.name}-folds") / str(fold)
        done = fit(_part(recipe, place, fold, 1 / folds), place, False, source)
        scores.append([Score(**score) for score in done.read_scores().get("test", [])])
        say(f"fold {fold} of {folds}: {', '.join(score.short for score in scores[-1][:1])}; its run is in {place}")
    say("")
    run = fit(_part(recipe, out, 0, 0.0), out, True, source)
    pooled = pooled_scores(scores)
    write_json(run.scores, {**run.read_scores(), KEY: [vars(score) for score in pooled]})
    say(f"cross-validation: {folds} runs have scored every example once")
    for what, signature in score_rows(pooled):
        say(f"{what}  {signature}".rstrip())
    return run


def pooled_scores(folds: Sequence[Sequence[Score]]) -> list[Score]:
    """Each score over all folds: of a part of the examples, that part of all of them; otherwise the mean. The errors of
    the folds are independent, so that the interval of a mean is narrower by the square root of their number."""
    found = []
    for same in zip(*folds):
        name, many = same[0].name, len(same)
        sign = f"{many} folds|{OF_ONE.sub('', same[0].signature)}"
        counts = [re.search(r"\|n:(\d+).*\|ci95:exact", score.signature) for score in same]
        if all(counts):
            totals = [int(count[1]) for count in counts if count]
            right = sum(round(score.value * total / 100) for score, total in zip(same, totals))
            found.append(exact_score(name, right, sum(totals), f"{sign}|n:{sum(totals)}"))
            continue
        value = sum(score.value for score in same) / many
        halves = [(score.high - score.low) / 2 for score in same if score.low is not None and score.high is not None]
        half = math.sqrt(sum(half**2 for half in halves)) / many
        known = len(halves) == many
        bounds = (max(0.0, value - half), min(100.0, value + half)) if known else (None, None)
        found.append(Score(name, value, f"{sign}|mean{'|ci95:of folds' * known}", *bounds))
    return found


def _read(recipe: Recipe) -> Source:
    """The data, if it can be scored by folds."""
    if recipe.train.folds < 2:
        raise UserError(f"train.folds = {recipe.train.folds}: give 2 or more, 5 for example")
    shape = catalog.task(recipe.task_kind).shape
    if shape == "text":
        raise UserError("train.folds takes turns with examples, and a text has none: leave it out")
    if recipe.train.test_limit < 0:
        raise UserError("train.folds is for the test, and train.test_limit = -1 leaves it out: give one of them")
    source = read_data(recipe.data, shape)
    data = source.split(replace(recipe.data, valid_part=0.0, test_part=0.0))
    if "test" in data.splits:
        raise UserError(f"train.folds is for data without a test split, and {data.name} has one: leave it out")
    return source


def _part(recipe: Recipe, place: Path, fold: int, test_part: float) -> Recipe:
    """The recipe of one training; that of a run that has begun is its own."""
    folder, train, given = RunFolder(place), recipe.train, recipe.given
    if folder.begun():
        return folder.read_recipe()
    parts: dict[str, Any] = {"fold": fold, "test_part": test_part, "valid_part": VALID}
    if "data.valid_part" in (given or ()):
        parts["valid_part"] = recipe.data.valid_part
    own = replace(train, folds=0, minutes=train.minutes / (train.folds + 1))
    found = recipe.with_(data=replace(recipe.data, **parts), train=own)
    return replace(found, given=None if given is None else given | {f"data.{name}" for name in parts})
