"""The pages of the site: the documents, each where it is in the repository, so that the links between them work, and a
reference page for each room. mkdocs calls `on_config` and `on_files`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

TOP = Path(__file__).parent.parent
HOME = TOP / "src" / "allyouneed"
SHOWN = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/images/*",
    "bench/*.md",
    "bench/results/*.md",
    "docs/site.css",
    "notebooks/*.ipynb",
)
# In the order of the architecture; "": the files that are in no room.
ROOMS = ("", "nn", "models", "decode", "text", "data", "metrics", "predict", "tasks", "training", "word2vec")
ROOMS += ("exchange", "engines", "storage", "figures", "look", "serve", "lectures", "exercises", "cli")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The reference is one entry of the navigation for each room."""
    pages = [{_title(room): f"reference/{room or 'allyouneed'}.md"} for room in ROOMS]
    config.nav = [{"Reference": pages} if "Reference" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All files, each where it is in the repository."""
    paths = [str(path.relative_to(TOP)) for pattern in SHOWN for path in sorted(TOP.glob(pattern))]
    own = [file for file in files if not (TOP / "docs" / file.src_uri).is_file()]  # those of the theme
    documents = [File(path, str(TOP), config.site_dir, config.use_directory_urls) for path in paths]
    return Files([*own, *documents, *(_reference(room, config) for room in ROOMS)])


class WithoutState(griffe.Extension):
    """What a class keeps for itself is not part of the reference, unless it is documented."""

    def on_class_members(self, *, cls: griffe.Class, **rest: Any) -> None:
        for name, member in list(cls.members.items()):
            if member.is_attribute and "instance-attribute" in member.labels and not member.docstring:
                del cls.members[name]


def _title(room: str) -> str:
    return f"allyouneed.{room}" if room else "allyouneed"


def _reference(room: str, config: MkDocsConfig) -> File:
    """A page with what each module of a room defines."""
    inside = (HOME / room).rglob("*.py") if room else HOME.glob("*.py")
    modules = sorted(_module(path) for path in inside if path.name not in ("__main__.py", "__init__.py"))
    content = "".join([f"# {_title(room)}\n\n", *(f"::: {module}\n\n" for module in modules)])
    return File.generated(config, f"reference/{room or 'allyouneed'}.md", content=content)


def _module(path: Path) -> str:
    return ".".join(["allyouneed", *path.relative_to(HOME).with_suffix("").parts])
