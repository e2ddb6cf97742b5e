"""`make demo`: train the English-Italian translator, score it, translate, draw the attention, and look inside."""

from __future__ import annotations

import sys
from pathlib import Path

from allyouneed.errors import UserError
from allyouneed.figures import alignment
from allyouneed.run import train
from allyouneed.terminal import write
from allyouneed.training.interrupt import Interrupted

SENTENCES = ["I am Italian.", "Attention is all you need."]


def main(out: Path) -> None:
    """Train, translate and draw; then print where the files are and what to try next."""
    run = train("translate/transformer", out=out, overwrite=True)
    sources = [pair.source for pair in run.task.data.splits["test"]]
    held_out = sources[:: len(sources) // 5][:5]
    write("\ntranslations (the first two are from the lectures, the others are not in the training data):")
    for source, target in zip([*SENTENCES, *held_out], run.predict([*SENTENCES, *held_out])):
        write(f"  {source:<50} {target}")
    longest = max(sources, key=len)
    figure = out / "alignment.png"
    found = run.align(longest)
    alignment(found.weights.numpy(), found.source, found.target, figure, longest, found.shown)
    page = run.look(longest).save(out / "look.html")
    write(
        f"\nwhere everything is:\n"
        f"  the run            {out}/\n"
        f"  its scores         {out}/scores.json\n"
        f"  the loss curve     {out}/loss.png\n"
        f"  the attention      {figure}\n"
        f"  a look inside      {page}\n"
        f"\ntry next:\n"
        f'  .venv/bin/ayn use {out} "We are not tired."\n'
        f"  .venv/bin/ayn look {out}\n"
        f'  .venv/bin/ayn train lm/gpt && .venv/bin/ayn use runs/lm-gpt "The dog" --table\n'
        f"  .venv/bin/ayn train translate/transformer --data YOUR.tsv --out runs/mine"
    )


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    try:
        main(out)
    except UserError as error:
        write(f"demo: {error}", err=True)
        sys.exit(1)
    except (Interrupted, KeyboardInterrupt):
        again = f".venv/bin/ayn train translate/transformer --out {out} --resume"
        write(f"\nstopped; continue with\n  {again}\nor start again with make demo", err=True)
        sys.exit(130)
