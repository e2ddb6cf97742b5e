"""An English-Italian phrasebook written by rules, with held-out combinations of words that training has seen.

One English sentence has one Italian translation. The conventions: a subject pronoun is always said ("Io non sono
italiano."), but a question with where, what or how many drops it unless it is lui or lei ("Dove vivi?", "Dove vive
lui?"), and it is never said; you is tu and you all is voi; whoever is not marked as feminine is masculine. "Not" is
written out, but for "didn't cross".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from allyouneed.data.builtin.grammar import (
    ITALIAN_VERBS,
    PLURAL,
    SINGULAR,
    VOWELS,
    Kinds,
    Phrase,
    WordFile,
    article,
    italian,
    pronouns,
    word_file,
)
from allyouneed.data.builtin.heldout import Columns, hold_out, thin_pairs
from allyouneed.data.examples import SentencePair

ALONE = ("sleep", "work", "study", "cook", "sing", "dance", "run", "read", "write", "eat")


def phrasebook() -> dict[str, list[SentencePair]]:
    """The splits "train", "valid" and "test", from English to Italian."""
    file = word_file("phrasebook")
    pairs = file.collect((kind, filter(_said, pairs)) for kind, pairs in Sentences().kinds())
    translations: dict[str, str] = {}
    for en, it in pairs:
        if translations.setdefault(en, it) != it:
            raise ValueError(f"two translations of '{en}': '{translations[en]}' and '{it}'")
    splits = hold_out(pairs, test=400, valid=300, train=file.rows("fixed"))
    return {split: [SentencePair(en, it) for en, it in found] for split, found in splits.items()}


def _said(pair: Columns) -> bool:
    """Nobody says "Am I tired?" or "I do not want some bread."."""
    return not pair[0].startswith(("Am I ", "Do I ", "Did I ")) and not ("not " in pair[0] and "some " in pair[0])


def _fits(who: Phrase, do: Verb) -> bool:
    """Nobody helps themselves."""
    return not do.object or do.object not in who.en


def _asked(who: Phrase) -> Phrase:
    """The subject of a question with where, what or how many, which a pronoun other than lui and lei leaves unsaid."""
    return who._replace(it="" if who.kind == "pronoun" and who.person != SINGULAR else f" {who.it}")


class Sentences:
    """The words of the phrasebook, and the sentences of each kind."""

    def __init__(self) -> None:
        self.file = file = word_file("phrasebook")
        self.write = file.write
        self.verbs = verbs(file, "verbs")
        self.people, self.kin, self.animals = (nouns(file, name) for name in ("people", "kin", "animals"))
        self.things, self.clothes = nouns(file, "things"), nouns(file, "clothes")
        self.foods, self.dishes, self.drinks = (nouns(file, name) for name in ("foods", "dishes", "drinks"))
        self.qualities, self.looks = adjectives(file, "qualities"), adjectives(file, "looks")
        self.mass, self.wares = [*self.dishes, *self.drinks], [*self.things, *self.clothes]
        self.small = [noun for noun in self.wares if "portable" in noun.suits]
        self.owned = [noun for noun in self.wares if noun.one.en not in ("door", "window")]
        self.single = [noun for noun in self.owned if noun.one.en != "shoe"]
        self.cat = next(noun for noun in self.animals if noun.one.en == "cat")
        self.pronouns = [
            Phrase(row[0], row[1], "f" if row[0] == "she" else "m", person, "pronoun")
            for row, person in zip(file.rows("pronouns"), (0, 1, 2, 2, 3, 4, 5))
        ]
        named = file.table("names")
        self.names = [Phrase(name, name, gender) for gender in named for name in named[gender]]
        self.couples = [
            Phrase(f"{a} and {b}", f"{a} e {b}", "f" if {a, b} <= set(named["f"]) else "m", PLURAL)
            for a, b in (line.split(", ") for line in file.sections["couples"])
        ]
        self.simple = [*self.pronouns, *self.names, *self.couples]
        self.many = [*self.simple, *determined("the", forms(self.people))]
        friend = forms(nouns(file, "friend"))
        self.friends = [
            form._replace(en=f"{name.en}'s {form.en}", it=f"{join('il', form)} di {name.it}")
            for name, form in product(self.names, friend)
        ]
        self.friends += determined("my your our her", friend)
        self.my_family = determined("my", forms(self.kin))
        self.family = determined("my your our their", forms(self.kin))
        self.locations = nouns(file, "places")
        self.goals = [*self._at("to"), ("to school", "a scuola"), ("home", "a casa")]
        self.deeds = self._deeds()

    def kinds(self) -> Kinds:
        yield "fixed", self.file.rows("fixed")
        present = self._people, self._things, self._comparisons, self._spots, self._owners, self._present
        for part in (*present, self._past, self._wishes, self._origins, self._times, self._questions, self._shopping):
            yield from part()
        yield from self._abstract()
        yield from self._reasons()

    def _acts(self, verbs: str, objects: Iterable[tuple[Any, ...]]) -> list[Verb]:
        return [self.verbs[verb].to(what) for verb in verbs.split(", ") for what in objects]

    def _deeds(self) -> list[Verb]:
        """What one can be doing, has done or wants to do: a verb and its object."""
        opened = [noun for noun in self.wares if "opening" in noun.suits]
        washed = [noun for noun in self.wares if "dirt" in noun.suits]
        written = [noun for noun in self.wares if noun.one.en in ("book", "letter")]
        people = [*determined("the", ones(self.people)), *self.names, *determined("my", ones(self.kin))]
        return [
            *self._acts("eat", determined("a", ones(self.foods))),
            *self._acts("eat", determined("some", [food for food in ones(self.dishes) if food.en != "sugar"])),
            *self._acts("drink", determined("some", ones(self.drinks))),
            *self._acts("write", determined("a", ones(written))),
            *(act for thing in determined("the", ones(opened)) for act in self._acts("open, close", [thing])),
            *self._acts("wash", determined("the", forms(washed))),
            *self._acts("draw", determined("a", ones(self.animals))),
            *self._acts("buy", determined("a", ones([*self.single, *self.foods]))),
            *self._acts("look for", determined("the", forms(self.small))),
            *(act for person in people for act in self._acts("help, call, wait for", [person])),
        ]

    def _at(self, preposition: str = "") -> list[tuple[str, ...]]:
        """Where one is, or goes to: "at the zoo", "allo zoo". Some places take a with the article, others a bare in."""
        return [
            (f"{preposition or en} the {place.en}", f"in {place.it}" if it == "in" else join("a", place))
            for (en, it), place in ((noun.suits, noun.one) for noun in self.locations)
        ]

    def _spots_of(self, noun: Noun) -> list[tuple[str, ...]]:
        """Where a small thing, an animal or food may lie: "in the bag", "nella borsa"."""
        return [
            (f"{en} the {spot.en}", join(it, spot) if it in ("su", "in") else f"{it} {join('il', spot)}")
            for (en, it), spot in ((spot.suits, spot.one) for spot in nouns(self.file, "spots"))
            if spot.en != noun.one.en and not (noun in self.foods and en in ("under", "behind"))
        ]

    def _suiting(self, noun: Noun) -> list[Adjective]:
        return [adjective for suit in noun.suits for adjective in self.looks if adjective.suits == suit]

    def _described(self, listed: list[Noun], plural: bool) -> list[Phrase]:
        """Each noun with the colours, sizes and merits one asks for: "a red car", "two beautiful mirrors"."""
        asked = ("colour", "size", "beauty", "age", "price")
        looks = ((noun.forms[plural], look) for noun in listed for look in self._suiting(noun) if look.suits in asked)
        return [describe(form, look) for form, look in looks]

    def _people(self) -> Kinds:
        how = [*self.qualities, *adjectives(self.file, "nationalities")]
        yield "pronouns are", self.write("being", who=self.pronouns, how=how)
        others = [*self.many[len(self.pronouns) :], *self.friends, *self.family]
        yield "people are", self.write("being", share=1 + len(others) // 40, who=others, how=how)
        yield "very", self.write("very", who=self.many, how=[quality for quality in self.qualities if quality.more])
        qualities = {"how": self.qualities, "also": self.qualities}
        differ = lambda who, how, also: how != also and {how.en, also.en} != {"happy", "sad"}
        yield "two qualities", self.write("two qualities", 7, differ, who=self.simple, **qualities)
        for gender, plural in product("mf", (False, True)):
            person = PLURAL if plural else SINGULAR
            roles = [Phrase(en, italian(it, gender, person), gender, person) for en, it in self.file.rows("roles")]
            roles = [role._replace(en=f"{role.en}s") if plural else determine("a", role) for role in roles]
            who = [who for who in self.simple if (who.gender, who.plural) == (gender, plural)]
            yield "roles", self.write("being", who=who, how=roles)
        yield "feelings", self.write("feeling", who=[*self.simple, *self.my_family], how=self.file.rows("feelings"))

    def _things(self) -> Kinds:
        things: dict[Adjective, list[Phrase]] = {look: [] for look in self.looks}
        words = ("the", "this", "my", "your", "their")
        for (noun, word), looks in thin_pairs(5, product(self.wares, words), self.looks):
            for look in looks:
                if look.suits in noun.suits:
                    things[look] += determined(word, noun.forms)
        for look, who in things.items():
            yield "things are", self.write("being", who=who, how=look)
        for noun in [*self.foods, *self.mass]:
            yield "food is", self.write("being", who=determined("the this", noun.forms), how=self._suiting(noun))
        objects = [*self._described(self.single, False), *ones([*self.animals, *self.single])]
        yield "having", self.write("doing", 11, who=self.simple, do=self._acts("have, want", determined("a", objects)))
        merits = [(noun, look) for noun in self.owned for look in self._suiting(noun) if look.before]
        one, many = ([describe(noun.forms[plural], look) for noun, look in merits] for plural in (False, True))
        yield "merits", self.write("this is", who=[*determined("a", one), *many, *determined("the", many)])
        plurals = [noun.many for noun in [*self.animals, *self.owned, *self.foods]]
        plurals += self._described(self.owned, True)
        do, numbers = [self.verbs[verb] for verb in ("have", "see", "buy")], self.file.rows("numbers")[:6]
        yield "counting", self.write("counting", 37, who=self.simple, do=do, number=numbers, thing=plurals)

    def _comparisons(self) -> Kinds:
        """Animals stand in the order of their size."""
        bigger, smaller = (look for look in self.looks if look.suits == "size")

        def compare(one: Noun, others: list[Noun], how: Adjective) -> tuple[str, Iterator[Columns]]:
            than = [(f"the {other.en}", join("di", other)) for other in ones(others)]
            return "comparisons", self.write("comparison", who=determine("the", one.one), how=how, other=than)

        for place, animal in enumerate(self.animals):
            yield compare(animal, self.animals[:place], bigger)
            yield compare(animal, self.animals[place + 1 :], smaller)
        for one, others in thin_pairs(3, self.wares, self.wares):
            for look in self._suiting(one):
                if look.more and look.suits != "size":
                    yield compare(one, [noun for noun in others if noun is not one and look.suits in noun.suits], look)
        differ = lambda who, other, how: how.more and who.en not in other[0]
        than = [(other.en, f"di {other.it}") for other in [*self.names, *self.couples]]
        yield "comparisons", self.write("comparison", 3, differ, who=self.names, other=than, how=self.qualities)

    def _spots(self) -> Kinds:
        numbers = self.file.rows("numbers")[:5]
        for noun in [*self.small, *self.foods, self.cat]:
            spots = self._spots_of(noun)
            yield "there is", self.write("there is", thing=determine("a", noun.one), place=spots)
            yield "there is", self.write("there are", share=3, place=spots, number=numbers, thing=noun.many)
            for form, some in thin_pairs(3, noun.forms, spots):
                yield "lying", self.write("being", who=determined("the my her", [form]), how=some)
        on = [spot for spot in self._spots_of(self.foods[0]) if spot[0].startswith("on ")]
        yield "there is", self.write("there is", thing=determined("some", ones(self.drinks)), place=on)
        locations = determined("the", ones(self.locations))
        found = determined("the", forms([*self.wares, *self.animals, *self.people]))
        found += [*locations, *self.friends, *self.family, *determined("my your our", forms(self.small))]
        yield "where is", self.write("where is", who=[who for who in found if not who.plural])
        yield "where is", self.write("where are", who=[who for who in found if who.plural])
        yield "where is", self.write("excuse me", who=locations)

    def _owners(self) -> Kinds:
        wares, words = forms(self.wares), "my your his her our their"
        things, relatives = determined(words, [*wares, *self.cat.forms]), determined(words, forms(self.kin))
        yield "mine", self.write("this is", who=things + relatives)
        yield "mine", self.write("is this", who=things)
        for who in self.pronouns[2:4]:  # he and she
            one = [person for person in relatives if person.gender == who.gender and not person.plural]
            yield "mine", self.write("being", who=who, how=one)
        owners = [(name.en, f"di {name.it}") for name in self.names]
        owners += [(f"the {person.en}", join("di", person)) for person in ones(self.people)]
        owners += [(person.en, f"di {person.it}") for person in determined("my", ones(self.kin))]
        own = [
            thing._replace(en=f"{en}'s {thing.en}", it=f"{join('il', thing)} {it}")
            for (en, it), thing in product(owners, wares)
        ]
        yield "belonging", self.write("this is", who=own)

    def _present(self) -> Kinds:
        eaten = [self.verbs["drink" if food in self.drinks else "eat"].to(food.one) for food in self.mass]
        yield "eating", self.write("doing", who=self.many, do=[do for do in eaten if do.object != "sugar"])
        wanted = self._acts("want", determined("some", ones(self.mass)))
        yield "eating", self.write("doing", who=self.simple, do=wanted)
        meals = self._acts("eat", determined("a", ones(self.foods))) + self._acts("drink", ones(self.drinks))
        who, habits = [*self.simple, *self.my_family], self.file.rows("habits")
        yield "habits", self.write("doing at a time", share=5, who=who, do=meals, time=habits)
        outings = self._acts("go", [goal for goal in self.goals if goal[0] not in ("to the kitchen", "to the garden")])
        yield "going", self.write("doing at a time", share=5, who=self.many, do=outings, time=habits)
        spots = [("at school", "a scuola"), ("at home", "a casa"), *self._at()]
        yield "staying", self.write("being", share=5, who=[*self.many, *self.friends, *self.family], how=spots)
        yield "now", self.write("doing now", 11, _fits, who=self.many, do=self.deeds)
        suits = lambda who, do: "skirt" not in do.object or who.gender == "f"
        clothes = self._described([noun for noun in self.clothes if noun in self.single], False)
        who, worn = [who for who in self.simple if not who.plural], self._acts("wear", determined("a", clothes))
        yield "now", self.write("doing now", 3, suits, who=who, do=worn)
        alone = [self.verbs[verb] for verb in ALONE]
        yield "now alone", self.write("doing now", 3, who=[*self.many, *self.friends, *self.my_family], do=alone)

    def _past(self) -> Kinds:
        yield "past", self.write("done", 11, _fits, who=self.many, do=self.deeds)
        for who, lost in thin_pairs(5, self.simple, list(product(("lose", "find"), forms(self.small)))):
            if who.en != "you all":
                his = pronouns(who.gender, who.person)["his"]
                do = [self.verbs[verb].to(determine(his, thing)) for verb, thing in lost]
                yield "past of one's own", self.write("done", who=who, do=do)
        moved = self._acts("go, return", self.goals)
        moved += self._acts("arrive, leave, return", self.file.rows("moments"))
        yield "past of moving", self.write("done", 5, who=[*self.many, *self.friends, *self.my_family], do=moved)

    def _wishes(self) -> Kinds:
        """want to, can and must with an infinitive; and piacere, which turns the sentence around."""
        acts = [*self.deeds, *(self.verbs[verb] for verb in ALONE), *self._acts("go", self.goals)]
        wanted = [self.verbs["want"].to((f"to {do.en}", do.infinitive))._replace(object=do.object) for do in acts]
        yield "wishes", self.write("doing", 17, _fits, who=self.simple, do=wanted)
        yield "wishes", self.write("wishing", 17, _fits, who=self.simple, do=acts)
        liked = [(food.en, f"piace {join('il', food)}") for food in ones(self.mass)]
        liked += [(noun.many.en, f"piacciono {join('il', noun.many)}") for noun in [*self.foods, *self.animals]]
        liked += [(f"to {verb}", f"piace {self.verbs[verb].infinitive}") for verb in ALONE]
        datives = {row[0]: row[2] for row in self.file.rows("pronouns") if len(row) > 2}
        for who in [*self.pronouns, *self.names]:
            section = "liking with mi" if who.en in datives else "liking with a"
            to = datives.get(who.en) or f"{'ad' if who.it[0] == 'A' else 'a'} {who.it}"
            yield "likes", self.write(section, who=who, to=to, what=liked)

    def _origins(self) -> Kinds:
        countries = ones(nouns(self.file, "countries"))
        do = self._acts("come", [(f"from {country.en}", join("da", country)) for country in countries])
        do += self._acts("live", [(f"in {country.en}", f"in {country.it}") for country in countries])
        do += self._acts("live", [(f"in {en}", f"a {it}") for en, it in self.file.rows("cities")])
        do += self._acts("speak", self.file.rows("languages"))
        yield "origins", self.write("doing", who=self.simple, do=do)
        known = [*determined("the", forms(self.people)), *self.names, *self.friends[:12]]
        for who in self.pronouns:
            kin = determined("your" if who.en in ("I", "we") else "my", forms(self.kin))
            yield "acquaintances", self.write("doing", who=who, do=self._acts("know", known + kin))

    def _times(self) -> Kinds:
        """The article of an hour merges with "a": "l'una" and "all'una", "le tre" and "alle tre"."""
        hours = [("one", "è l'", "all'", "una")]
        hours += [(en, "sono le ", "alle ", it) for en, it in self.file.rows("numbers")]
        clock = [
            (en.format(hour=hour), is_, at, it.format(hour=ora))
            for (hour, is_, at, ora), (en, it) in product(hours, self.file.rows("clock"))
        ]
        yield "hours", self.write("hour", hour=[(en, is_ + it) for en, is_, _, it in clock])
        times = [(f"at {en}", at + it) for en, _, at, it in clock]
        verbs = [self.verbs[verb] for verb in ("eat", "arrive", "leave", "return")]
        for who, do in thin_pairs(5, [*self.pronouns, *self.names, *self.my_family], verbs):
            yield "times", self.write("doing at a time", who=who, do=do, time=times)
        locations, do = determined("the", ones(self.locations[:13])), [self.verbs["open"], self.verbs["close"]]
        full = [time for time in times if time[0].endswith("o'clock")]
        yield "times", self.write("doing at a time", who=locations, do=do, time=full)

    def _questions(self) -> Kinds:
        where = [self.verbs[verb] for verb in ("live", "work", "study", "sleep", "eat")]
        what = [self.verbs[verb] for verb in ("eat", "drink", "read", "write", "draw", "look for", "buy")]
        who = [_asked(who) for who in [*self.many, *self.friends, *self.family]]
        yield "open questions", self.write("where", who=who, do=where)
        yield "open questions", self.write("where to", who=who, do=self.verbs["go"])
        yield "open questions", self.write("what", who=who, do=what)
        yield "who questions", self.write("who does it", do=self.deeds)
        counted = [noun.many for noun in [*self.animals, *self.owned, *self.kin[:7]]]
        how_many = [
            (f"how many {thing.en}", f"{italian('quanto/quanta/quanti/quante', thing.gender, thing.person)} {thing.it}")
            for thing in counted
        ]
        who = [_asked(who) for who in [*self.pronouns, *self.names]]
        yield "how many", self.write("how many", who=who, thing=how_many)

    def _shopping(self) -> Kinds:
        coloured = [noun for noun in self.owned if "colour" in noun.suits]
        yield "shopping", self.write("cost", who=determined("the this", forms([*self.owned, *self.foods])))
        yield "shopping", self.write("colour", who=determined("the this", forms(coloured)))
        wanted = [*determined("a", ones(self.foods)), *determined("some", ones(self.mass))]
        given = determined("the", ones([*self.foods, *self.mass]))
        yield "table manners", self.write("ordering", food=wanted)
        yield "table manners", self.write("thanks", food=given)
        yield "table manners", self.write("please", food=wanted + given)
        names = [*self.names, *self.couples]
        yield "table manners", self.write("greeting", greeting=self.file.rows("greetings"), name=names)
        yield "festivals", self.write("greeting", greeting=self.file.rows("festivals"), name=names)

    def _abstract(self) -> Kinds:
        abstract = nouns(self.file, "abstract")
        needed, useful = (
            [noun.one._replace(it=join("il", noun.one)) for noun in abstract if suit in noun.suits]
            for suit in ("needed", "useful")
        )
        needed += [food._replace(it=join("il", food)) for food in ones(self.drinks)]
        who = [_asked(who) for who in [*self.pronouns, *self.names] if who.en != "you all"]
        yield "all one needs", self.write("all one needs", who=who, thing=needed)
        yield "results", self.write("doing", who=useful, do=self._acts("get", self.file.rows("outcomes")))
        machines = determined("my your our their", forms(nouns(self.file, "machines")))
        yield "thinking", self.write("doing now", who=[*self.simple, *machines], do=self.verbs["think"])

    def _reasons(self) -> Kinds:
        """What "it" is, the animal or what it did not cross, shows in the Italian adjective, which agrees with it."""
        states, obstacles = adjectives(self.file, "states"), adjectives(self.file, "obstacles")
        animals = determined("the", ones(nouns(self.file, "crossing animals")))
        for animal, what in product(animals, nouns(self.file, "crossings")):
            reasons = [(state, animal) for state in states]
            reasons += [(obstacle, what.one) for obstacle in obstacles if obstacle.suits in what.suits]
            how = [(why.en, italian(why.it, it.gender, SINGULAR)) for why, it in reasons]
            yield "because", self.write("because", who=animal, what=determine("the", what.one), how=how)


class Noun(NamedTuple):
    """A noun in its numbers, one or two, and which adjectives suit it."""

    forms: list[Phrase]
    suits: list[str]

    @property
    def one(self) -> Phrase:
        return self.forms[0]

    @property
    def many(self) -> Phrase:
        return self.forms[1]


class Adjective(NamedTuple):
    """An adjective with its Italian forms, its English comparative, what it suits, and where it stands in Italian."""

    en: str
    it: str
    more: str
    suits: str
    before: bool


class Verb(NamedTuple):
    """A verb, perhaps with what follows it; `it` has the forms of the present."""

    en: str
    it: str
    ing: str
    past: str
    infinitive: str
    gerund: str
    participle: str
    auxiliary: str
    object: str = ""

    def to(self, what: tuple[Any, ...]) -> Verb:
        """The verb with its object, or with another phrase: "eat an apple"."""
        forms = (f"{form} {what[language]}" for form, language in zip(self, (0, 1, 0, 0, 1, 1, 1)))
        return Verb._make([*forms, self.auxiliary, what[0]])


def nouns(file: WordFile, section: str) -> list[Noun]:
    """Lines such as "egg, eggs = uovo, uova = m/f = taste, freshness"."""
    found = []
    for en, it, genders, *suits in file.rows(section):
        texts = zip(en.split(", "), it.split(", "), (genders[0], genders[-1]), (2, PLURAL))
        found.append(Noun([Phrase(*text, kind=section) for text in texts], suits[0].split(", ") if suits else []))
    return found


def adjectives(file: WordFile, section: str) -> list[Adjective]:
    """Lines such as "big, bigger = grande/grande/grandi/grandi = size, before"."""
    found = []
    for en, it, *rest in file.rows(section):
        (word, _, more), (suits, _, before) = en.partition(", "), (rest[0] if rest else "").partition(", ")
        found.append(Adjective(word, it, more, suits, bool(before)))
    return found


def verbs(file: WordFile, section: str) -> dict[str, Verb]:
    """Lines such as "eat, eating, ate = mangiare, mangiando, mangiato = mangio/mangi/mangia/mangiamo/…"."""
    found = {}
    for english_forms, italian_forms, present in file.rows(section):
        (base, ing, past), (infinitive, gerund, participle) = english_forms.split(", "), italian_forms.split(", ")
        auxiliary = ITALIAN_VERBS["essere" if "/" in participle else "avere"]
        found[base] = Verb(base, present, ing, past, infinitive, gerund, participle, auxiliary)
    return found


def join(word: str, noun: Phrase) -> str:
    """The noun after a word of the section "articles", in one: "nello zaino", "dell'acqua", "un'ape"."""
    forms, vowel = word_file("phrasebook").table("articles")[word], noun.it[0].lower() in VOWELS
    if noun.gender == "m":
        hard = re.match(rf"[zxy]|gn|ps|pn|s[^{VOWELS}]", noun.it.lower()) is not None
        form = forms[5 + (vowel or hard)] if noun.plural else forms[2 if vowel else hard]
    else:
        form = forms[7] if noun.plural else forms[3 + vowel]
    return form + noun.it if form.endswith("'") else f"{form} {noun.it}"


def determine(word: str, noun: Phrase) -> Phrase:
    """The noun with a, the, some, this or a possessive before it, each in its form."""
    forms = word_file("phrasebook").table("determiners").get(word)
    en = article(noun.en) if word == "a" else f"{'these' if word == 'this' and noun.plural else word} {noun.en}"
    if forms is None:
        return noun._replace(en=en, it=join({"a": "un", "the": "il", "some": "di"}[word], noun))
    it = f"{italian(forms[0], noun.gender, noun.person)} {noun.it}"
    if word != "this" and (noun.kind != "kin" or noun.plural or word == "their"):
        it = join("il", noun._replace(it=it))  # one relative takes no article: "mia sorella"
    return noun._replace(en=en, it=it)


def determined(words: str, nouns: Iterable[Phrase]) -> list[Phrase]:
    """Every noun with each of the words before it."""
    return [determine(word, noun) for word in words.split() for noun in nouns]


def ones(nouns: Iterable[Noun]) -> list[Phrase]:
    """The singular of each noun."""
    return [noun.one for noun in nouns]


def forms(nouns: Iterable[Noun]) -> list[Phrase]:
    """The singular and, if it has one, the plural of each noun."""
    return [form for noun in nouns for form in noun.forms]


def describe(noun: Phrase, adjective: Adjective) -> Phrase:
    """The noun with its adjective, which stands before it or behind it in Italian."""
    form = italian(adjective.it, noun.gender, noun.person)
    it = f"{form} {noun.it}" if adjective.before else f"{noun.it} {form}"
    if adjective.en == "beautiful":  # before its noun, bello follows the pattern of the articles
        it = join("bello", noun)
    return noun._replace(en=f"{adjective.en} {noun.en}", it=it)
