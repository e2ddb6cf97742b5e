"""allyouneed: every model of the Transformer lectures in one small, fast PyTorch library.

>>> from allyouneed import attention
>>> attention.attend(q, k, v)                       # softmax(QK^T / sqrt(d_k)) V
>>> import allyouneed as ayn
>>> run = ayn.train("translate/transformer")        # or ayn.load("runs/en-it")
>>> run.predict("I am Italian.")
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from allyouneed.version import __version__

if TYPE_CHECKING:
    from allyouneed.errors import UserError as UserError
    from allyouneed.lectures import lecture as lecture
    from allyouneed.models.gpt import GPT as GPT
    from allyouneed.models.transformer import Transformer as Transformer
    from allyouneed.nn import attention as attention
    from allyouneed.nn.masks import Mask as Mask
    from allyouneed.nn.trace import Trace as Trace
    from allyouneed.run import Run as Run
    from allyouneed.run import load as load
    from allyouneed.run import train as train

# Nothing is imported before it is asked for: `import allyouneed` costs milliseconds.
_PUBLIC = {
    "attention": "allyouneed.nn.attention",
    "GPT": "allyouneed.models.gpt:GPT",
    "Mask": "allyouneed.nn.masks:Mask",
    "Run": "allyouneed.run:Run",
    "Trace": "allyouneed.nn.trace:Trace",
    "Transformer": "allyouneed.models.transformer:Transformer",
    "UserError": "allyouneed.errors:UserError",
    "lecture": "allyouneed.lectures:lecture",
    "load": "allyouneed.run:load",
    "train": "allyouneed.run:train",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"allyouneed has no '{name}'; there is {', '.join(sorted(_PUBLIC))}")
    globals()[name] = value = resolve_name(_PUBLIC[name])
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
