"""Sentences from templates: slots to fill, and words that agree with their subject, in English and in Italian.

    {who} [eat] {meal} because {he} [be] hungry.

A {slot} stands for a text, or for a tuple that begins with its text in each language; {verb.ing} is an attribute of it.
{he}, {him}, {his} and {himself} are the pronouns of {who}. What stands in [brackets] agrees with {who}, and "a(n)" is
"a" or "an". A template in two languages has " = " between them. One with an end mark gets a capital letter.

The templates and the words are in the files of words/, for people to read and to extend. A section begins with its name
in square brackets. A line that begins with a space belongs to the line before it, and a line that begins with # is a
comment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import resources
from itertools import chain, compress, product, repeat
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from allyouneed.data.builtin.heldout import Columns, rank, spread

Kinds = Iterable[tuple[str, Iterable[Columns]]]  # sentences of each kind; a kind may come several times
VOWELS = "aeiouàèéìòù"
SLOT = re.compile(r"\[[^]]*\]|(a\(n\) )?\{[^}]*\}")
SINGULAR, PLURAL = 2, 5  # of the persons I, you, he or she or it, we, you all, they
BE = ("am", "are", "is", "are", "are", "are")
ONE = {"have": "has", "do": "does", "go": "goes", "will": "will", "these": "this"}  # with a singular subject
PRONOUNS = (
    "I me my myself",
    "you you your yourself",
    {"m": "he him his himself", "f": "she her her herself", "n": "it it its itself"},
    "we us our ourselves",
    "you you your yourselves",
    "they them their themselves",
)
ITALIAN_VERBS = {
    "essere": "sono/sei/è/siamo/siete/sono",
    "avere": "ho/hai/ha/abbiamo/avete/hanno",
    "stare": "sto/stai/sta/stiamo/state/stanno",
    "potere": "posso/puoi/può/possiamo/potete/possono",
    "dovere": "devo/devi/deve/dobbiamo/dovete/devono",
    "costare": "costo/costi/costa/costiamo/costate/costano",
}


class Phrase(NamedTuple):
    """Words about a person or a thing, in each language, and what other words agree with."""

    en: str
    it: str = ""
    gender: str = "m"  # m, f or n
    person: int = SINGULAR
    kind: str = ""

    @property
    def plural(self) -> bool:
        return self.person > SINGULAR


def article(text: str) -> str:
    return f"an {text}" if text[0] in VOWELS else f"a {text}"


@cache
def pronouns(gender: str, person: int) -> dict[str, str]:
    """Of a subject, by those of a man: {"his": "her", "His": "Her"}."""
    forms = PRONOUNS[person]
    own = (forms if isinstance(forms, str) else forms[gender]).split()
    found = dict(zip(("he", "him", "his", "himself"), own))
    return found | {man.capitalize(): form.capitalize() for man, form in found.items()}


@cache
def english(text: str, gender: str, person: int) -> str:
    """A verb and what follows it: "wash {his} hand(s)" of her is "washes her hand"; of "sir/madam" the form for her."""
    if "/" in text:
        return text.split("/")[gender == "f"]
    text = text.format(**pronouns(gender, person)).replace("(s)", "s" if person > SINGULAR else "")
    verb, space, rest = text.partition(" ")
    if verb == "be":
        verb = BE[person]
    elif person == SINGULAR:
        verb = ONE.get(verb) or third_person(verb)
    return verb + space + rest


def third_person(verb: str) -> str:
    if verb[-1] == "y" and verb[-2] not in VOWELS:
        return f"{verb[:-1]}ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x")) else "s")


@cache
def italian(text: str, gender: str, person: int) -> str:
    """Each word with forms between slashes in its form: four by gender and number, or six by person."""

    def form(found: re.Match[str]) -> str:
        forms = found[0].split("/")
        return forms[person if len(forms) == 6 else 2 * (person > SINGULAR) + (gender == "f")]

    return re.sub(r"\S+/\S+", form, ITALIAN_VERBS.get(text, text))


class Template:
    """One sentence with slots, in each language."""

    def __init__(self, line: str) -> None:
        self.columns = line.split(" = ")
        self.slots = set(re.findall(r"\{(\w+)", line)) - pronouns("m", SINGULAR).keys()
        if re.search(r"\[|\{[Hh](e|im|is|imself)\}", line):
            self.slots.add("who")

    def write(self, options: Mapping[str, list[Any]], picked: Iterable[bool] | None = None) -> Iterator[Columns]:
        """One example for each combination of the options for its slots or, among the combinations of all options, for
        each one that is picked. {who} comes first; the options for a slot are texts, or tuples."""
        if "who" in list(options)[1:]:
            raise ValueError("give the options for {who} first: what is picked follows their order")
        used = {slot: options[slot] for slot in options if picked is not None or slot in self.slots}
        flags = repeat(True) if picked is None else iter(picked)
        subjects = used.pop("who", [Phrase("")])
        agreeing = cache(partial(self._agreeing, used))
        for who in subjects:
            columns, texts = agreeing(who.gender, who.person)
            form = "\t".join(map(_with_subject, columns, (who.en, who.it)))
            for chosen in compress(product(*texts), flags):
                yield tuple(form.format(*chosen).split("\t"))

    def _agreeing(
        self, options: Mapping[str, list[Any]], gender: str, person: int
    ) -> tuple[list[str], list[list[tuple[str, ...]]]]:
        """For the subjects of one gender and person: a format per language, and the texts of the options for each slot,
        as many as it has occurrences."""
        occurrences: dict[str, list[list[str]]] = {slot: [] for slot in options}

        def replace(column: int, line: str, found: re.Match[str]) -> str:
            language = (english, italian)[column]
            words = found[0].removeprefix("a(n) ").strip("[]")
            slot, _, attribute = words.strip("{}").partition(".")
            if words[0] != "{":
                return language(words, gender, person)
            if slot not in options:
                return pronouns(gender, person).get(slot, found[0])
            texts = options[slot]
            if texts and not isinstance(texts[0], str):
                texts = list(map(attrgetter(attribute) if attribute else itemgetter(column), texts))
            if found[0][0] == "[":
                texts = [language(text, gender, person) for text in texts]
            elif found[0][0] == "a":
                texts = list(map(article, texts))
            if found.start() == 0 and line[-1] in ".?":
                texts = list(map(capital, texts))
            occurrences[slot].append(texts)
            return f"{{{list(options).index(slot)}[{len(occurrences[slot]) - 1}]}}"

        columns = [SLOT.sub(partial(replace, *column), column[1]) for column in enumerate(self.columns)]
        return columns, [list(zip(*some)) or [()] * len(options[slot]) for slot, some in occurrences.items()]


def _with_subject(line: str, name: str) -> str:
    text = line.replace("a(n) {who}", article(name)) if "a(n) {who}" in line else line
    text = text.replace("{who}", name)
    return capital(text) if text[-1] in ".?" else text


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def expand(line: str) -> list[str]:
    """The line with every choice (one|of|these) made in every way."""
    parts = re.split(r"\(([^()]*\|[^()]*)\)", line)
    return ["".join(made) for made in product(*(part.split("|") if i % 2 else [part] for i, part in enumerate(parts)))]


class WordFile:
    """The sections of a file, and the sentences that its templates make."""

    def __init__(self, name: str) -> None:
        self.sections: dict[str, list[str]] = {}
        text = (resources.files("allyouneed") / "data" / "builtin" / "words" / f"{name}.txt").read_text("utf-8")
        section: list[str] = []
        for line in text.splitlines():
            if line.startswith("[") and line.endswith("]"):
                if line[1:-1] in self.sections:
                    raise ValueError(f"words/{name}.txt has two sections {line}")
                section = self.sections[line[1:-1]] = []
            elif line.startswith(" "):
                section[-1] += f" {line.strip()}"
            elif line and not line.startswith("#"):
                section.append(line)

    @cache  # noqa: B019
    def items(self, section: str) -> list[str]:
        """What stands between commas."""
        return [item for line in self.sections[section] for item in line.split(", ")]

    @cache  # noqa: B019
    def table(self, section: str) -> dict[str, list[str]]:
        """Lines such as "cow: hay, grass"."""
        rows = (line.split(": ", 1) for line in self.sections[section])
        return {name: items.split(", ") for name, items in rows}

    def rows(self, section: str) -> list[tuple[str, ...]]:
        """Lines such as "two = due"."""
        return [tuple(line.split(" = ")) for line in self.sections[section]]

    @cache  # noqa: B019
    def templates(self, section: str) -> list[Template]:
        return [Template(choice) for line in self.sections[section] for choice in expand(line)]

    def write(
        self, section: str, share: int = 1, when: Callable[..., bool] | None = None, **options: Any
    ) -> Iterator[Columns]:
        """Each template of the section with every combination of the options for its slots. An option is a list, or one
        value. `share` takes about one in so many combinations, and `when` says which are possible."""
        lists = {slot: values if isinstance(values, list) else [values] for slot, values in options.items()}
        picked = None
        if share > 1 or when:
            every = zip(spread(share), product(*lists.values()))
            picked = [taken and (when is None or when(*values)) for taken, values in every]
        for template in self.templates(section):
            yield from template.write(lists, picked)

    def collect(self, kinds: Kinds) -> list[Columns]:
        """The examples of all kinds, of each kind at most as many as the section "limits" says."""
        found: dict[str, set[Columns]] = defaultdict(set)
        for kind, examples in kinds:
            found[kind].update(examples)
        limits = {kind: int(limit) for kind, (limit,) in self.table("limits").items()}
        if unknown := limits.keys() - found.keys():
            raise ValueError(f"the limits name kinds that no rule writes: {', '.join(sorted(unknown))}")
        chosen = (
            sorted(examples, key=lambda example: rank(example, "choose"))[: limits.get(kind)]
            for kind, examples in found.items()
        )
        return list(dict.fromkeys(chain.from_iterable(chosen)))


@cache
def word_file(name: str) -> WordFile:
    return WordFile(name)
