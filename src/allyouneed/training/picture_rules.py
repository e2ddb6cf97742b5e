"""Settings that follow the pictures: see `rules`."""

from __future__ import annotations

from collections.abc import Iterator

from allyouneed.training.choices import CODES, LEARN, Case, Choice, Values, careful_rate

PICTURES = ((28, 4), (32, 4), (64, 8), (96, 8), (128, 16), (224, 16))  # sides in pixels, and their patches


def picture_size(case: Case) -> Iterator[Choice]:
    """Small pictures as they are, larger ones scaled to what a machine can learn from; 49 to 196 patches."""
    side, channels = case.facts.side or 32, case.facts.channels
    known = PICTURES if case.gpu else PICTURES[:3]
    image, patch = next((row for row in known if side <= row[0]), known[-1])
    if not case.recipe.train.init:
        kind = "grey" if channels == 1 else "colour"
        values: Values = {
            "model.image": (image, f"{image} x {image} pixels"),
            "model.patch": (patch, f"patches of {patch} x {patch}"),
            "model.channels": (channels, kind),
        }
        yield Choice("pictures", f"they are {kind}, {side} pixels on the shorter side", values)
        if case.gpu:
            values = {"model.layers": (6, "6 layers"), "model.width": (256, "256 wide"), "train.lr": (1e-3, "")}
            yield Choice("model", "there is a GPU", values)


def picture_training(case: Case) -> Iterator[Choice]:
    """After the pictures have their size."""
    batch = 128 * case.recipe.model.tokens if case.gpu else 32 * case.recipe.model.tokens
    epochs = case.epochs(2, 60, LEARN[case.gpu] * 4, batch)
    yield Choice("training", f"there are {case.facts.examples:,} pictures", case.training(epochs, batch))
    if case.recipe.train.init:
        rate = careful_rate(case)
        yield Choice("rate", "it starts from a run that can see", {"train.lr": (rate, f"learning rate {rate:g}")})
    if epochs < 5:  # Fashion-MNIST seen twice: 79.7 % with the shift of the recipe, 85.5 % without
        yield Choice("augmentation", case.seen(epochs), {"task.shift": (0.0, "none")})
    else:
        flip = 0.5 if case.facts.channels == 3 else 0.0
        values = {
            "task.shift": (0.1, "shifted"),
            "task.flip": (flip, "flipped (task.flip=0 if left and right matter)" if flip else ""),
            "task.changes": (2, "changed in colour and shape"),
            "task.strength": (0.4, ""),
            "task.smoothing": (0.1, ""),
            "model.drop_path": (0.1, ""),
        }
        yield Choice("against overfitting", case.seen(epochs), values)


def drawing(case: Case) -> Iterator[Choice]:
    """Captions that people write are longer than generated ones."""
    caption = 32
    yield Choice("captions", "people write them", {"model.caption": (caption, f"up to {caption} tokens")})
    if case.gpu:
        values: Values = {"model.layers": (8, "8 layers"), "model.heads": (8, ""), "model.width": (384, "384 wide")}
        values["train.lr"] = (1e-3, "")
        yield Choice("model", "there is a GPU", values)
    batch = (128 if case.gpu else 32) * (1 + caption + CODES)
    epochs = case.epochs(2, 60, LEARN[case.gpu] * 4, batch)
    yield Choice("training", f"there are {case.facts.examples:,} pictures", case.training(epochs, batch))
    dropout = 0.0 if epochs < 5 else 0.1
    yield Choice("against overfitting", case.seen(epochs), {"model.dropout": (dropout, f"dropout {dropout:g}")})
