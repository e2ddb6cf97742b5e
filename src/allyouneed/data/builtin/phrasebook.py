"""An English-Italian phrasebook written by rules, with held-out combinations of words that training has seen.

One English sentence has one Italian translation. The conventions: a subject pronoun is always said ("Io non sono
italiano."), but a question with where, what or how many drops it unless it is lui or lei ("Dove vivi?", "Dove vive
lui?"); you is tu and you all is voi; whoever is not marked as feminine is masculine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from allyouneed.data.builtin.bilingual import (
    Adjective,
    Noun,
    Pair,
    Verb,
    adjectives,
    describe,
    determine,
    join,
    nouns,
    verbs,
)
from allyouneed.data.builtin.grammar import PLURAL, SINGULAR, Phrase, italian, pronouns
from allyouneed.data.builtin.heldout import Columns, hold_out, thin_pairs
from allyouneed.data.builtin.wordfile import Kinds, word_file
from allyouneed.data.examples import SentencePair

ALONE = ("sleep", "work", "study", "cook", "sing", "dance", "run", "read", "write", "eat")


def phrasebook() -> dict[str, list[SentencePair]]:
    """The splits "train", "valid" and "test", from English to Italian."""
    file = word_file("phrasebook")
    pairs = file.collect((kind, filter(_said, pairs)) for kind, pairs in _Book().kinds())
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


class _Book:
    """The words of the phrasebook, and the sentences of each kind."""

    def __init__(self) -> None:
        self.file = file = word_file("phrasebook")
        self.write = file.write
        self.verbs = verbs(file, "verbs")
        self.pairs = {name: file.rows(name) for name in ("feelings", "numbers", "habits", "moments", "greetings")}
        self.pronouns = [
            Phrase(row[0], row[1], "f" if row[0] == "she" else "m", person, "pronoun")
            for row, person in zip(file.rows("pronouns"), (0, 1, 2, 2, 3, 4, 5))
        ]
        named = file.table("names")
        self.names = [Phrase(name, name, gender) for gender in named for name in named[gender]]
        self.couples = [
            Phrase(f"{a} and {b}", f"{a} e {b}", "f" if {a, b} <= set(named["f"]) else "m", PLURAL)
            for a, b in (line.split(", ") for line in file.lines("couples"))
        ]
        self.people, self.kin, self.animals = (nouns(file, name) for name in ("people", "kin", "animals"))
        self.things, self.clothes = nouns(file, "things"), nouns(file, "clothes")
        self.foods, self.dishes, self.drinks = (nouns(file, name) for name in ("foods", "dishes", "drinks"))
        self.mass = [*self.dishes, *self.drinks]
        self.qualities, self.looks = adjectives(file, "qualities"), adjectives(file, "looks")
        self.wares = [*self.things, *self.clothes]
        self.small = [noun for noun in self.wares if "portable" in noun.suits]
        self.owned = [noun for noun in self.wares if noun.one.en not in ("door", "window")]
        self.single = [noun for noun in self.owned if noun.one.en != "shoe"]
        self.cat = next(noun for noun in self.animals if noun.one.en == "cat")
        self.simple = [*self.pronouns, *self.names, *self.couples]
        self.persons = [determine("the", form) for noun in self.people for form in noun.forms]
        (friend,) = nouns(file, "friend")
        self.friends = [
            form._replace(en=f"{name.en}'s {form.en}", it=f"{join('', form)} di {name.it}")
            for name, form in product(self.names, friend.forms)
        ]
        self.friends += [determine(word, form) for word, form in product(("my", "your", "our", "her"), friend.forms)]
        kin = [form for noun in self.kin for form in noun.forms]
        self.family = [determine(word, form) for word, form in product(("my", "your", "our", "their"), kin)]
        self.my_family = self.family[: len(kin)]
        self.places = [
            (en.split(", "), it.split(", "), Phrase(en.split(", ")[1], it.split(", ")[1], gender))
            for en, it, gender in file.rows("places")
        ]
        self.deeds = self._deeds()

    def kinds(self) -> Kinds:
        yield "fixed", self.file.rows("fixed")
        for part in (self._people, self._things, self._places, self._owners, self._present, self._past, self._wishes):
            yield from part()
        for part in (self._origins, self._times, self._questions, self._shopping):
            yield from part()

    def _suiting(self, noun: Noun) -> list[Adjective]:
        return [adjective for suit in noun.suits for adjective in self.looks if adjective.suits == suit]

    def _described(self, listed: list[Noun], plural: bool) -> list[Phrase]:
        """Each noun with the colours, sizes and merits one asks for: "a red car", "two beautiful mirrors"."""
        asked = ("colour", "size", "beauty", "age", "price")
        return [
            describe(noun.forms[plural], adjective)
            for noun in listed
            for adjective in self._suiting(noun)
            if adjective.suits in asked
        ]

    def _people(self) -> Kinds:
        how = [*self.qualities, *adjectives(self.file, "nationalities")]
        others = [*self.names, *self.couples, *self.persons, *self.friends, *self.family]
        for kind, who in (("pronouns are", self.pronouns), ("people are", others)):
            yield kind, self.write("being", share=1 + len(who) // 40, who=who, how=how)
        compared = [quality for quality in self.qualities if quality.more]
        yield "very", self.write("very", who=[*self.simple, *self.persons], how=compared)
        yield "two qualities", self.write(
            "two qualities", share=7, who=self.simple, how=self.qualities, also=self.qualities,
            when=lambda who, how, also: how != also and {how.en, also.en} != {"happy", "sad"},
        )  # fmt: skip
        for gender, person in product("mf", (SINGULAR, PLURAL)):
            roles = [Phrase(en, italian(it, gender, person), gender, person) for en, it in self.file.rows("roles")]
            if person == SINGULAR:
                roles = [determine("a", role) for role in roles]
            else:
                roles = [role._replace(en=f"{role.en}s") for role in roles]
            who = [who for who in self.simple if (who.gender, who.plural) == (gender, person == PLURAL)]
            yield "roles", self.write("being", who=who, how=roles)
        yield "feelings", self.write("feeling", who=[*self.simple, *self.my_family], how=self.pairs["feelings"])

    def _things(self) -> Kinds:
        words = ("the", "this", "my", "your", "their")
        for (noun, word), looks in thin_pairs(5, product(self.wares, words), self.looks):
            suiting = [look for look in looks if look.suits in noun.suits]
            yield "things are", self.write("being", who=[determine(word, form) for form in noun.forms], how=suiting)
        for noun in [*self.foods, *self.mass]:
            who = [determine(word, form) for word in ("the", "this") for form in noun.forms]
            yield "food is", self.write("being", who=who, how=self._suiting(noun))
        yield from (("comparisons", pairs) for pairs in self._comparisons())
        objects = [*self._described(self.single, False), *(noun.one for noun in [*self.animals, *self.single])]
        having = [self.verbs[verb].to(determine("a", thing)) for verb in ("have", "want") for thing in objects]
        yield "having", self.write("doing", share=11, who=self.simple, do=having)
        for noun, look in product(self.owned, self.looks):  # adjectives before their noun change its article
            if look.before and look.suits in noun.suits:
                one, many = (describe(form, look) for form in noun.forms)
                yield "merits", self.write("this is", who=[determine("a", one), many, determine("the", many)])
        plurals = [noun.many for noun in [*self.animals, *self.owned, *self.foods]] + self._described(self.owned, True)
        do = [self.verbs[verb] for verb in ("have", "see", "buy")]
        yield (
            "counting",
            self.write("counting", share=37, who=self.simple, do=do, number=self.pairs["numbers"][:6], thing=plurals),
        )

    def _comparisons(self) -> Iterator[Iterator[Columns]]:
        """Animals stand in the order of their size."""
        bigger, smaller = (look for look in self.looks if look.suits == "size")

        def compare(one: Noun, others: list[Noun], how: list[Adjective]) -> Iterator[Columns]:
            than = [(f"the {other.one.en}", join("di", other.one)) for other in others]
            return self.write("comparison", who=determine("the", one.one), how=how, other=than)

        for place, animal in enumerate(self.animals):
            yield compare(animal, self.animals[:place], [bigger])
            yield compare(animal, self.animals[place + 1 :], [smaller])
        for one, others in thin_pairs(3, self.wares, self.wares):
            for look in self._suiting(one):
                if look.more and look.suits != "size":
                    fitting = [other for other in others if other is not one and look.suits in other.suits]
                    yield compare(one, fitting, [look])
        yield self.write(
            "comparison", share=3, who=self.names,
            other=[(other.en, f"di {other.it}") for other in [*self.names, *self.couples]], how=self.qualities,
            when=lambda who, other, how: how.more and who.en not in other[0],
        )  # fmt: skip

    def _spots(self, noun: Noun) -> list[Pair]:
        """Where a small thing, an animal or food may lie: "in the bag", "nella borsa"."""
        found = []
        for en, it, gender in self.file.rows("spots"):
            (where, spot), (preposition, luogo) = en.split(", "), it.split(", ")
            if spot != noun.one.en and not (noun in self.foods and where in ("under", "behind")):
                there = Phrase(spot, luogo, gender)
                merged = preposition in ("su", "in")
                it = join(preposition, there) if merged else f"{preposition} {join('', there)}"
                found.append((f"{where} the {spot}", it))
        return found

    def _places(self) -> Kinds:
        for noun in [*self.small, *self.foods, self.cat]:
            spots = self._spots(noun)
            yield "there is", self.write("there is", thing=determine("a", noun.one), place=spots)
            numbers = self.pairs["numbers"][:5]
            yield "there is", self.write("there are", share=3, place=spots, number=numbers, thing=noun.many)
            for form, some in thin_pairs(3, noun.forms, spots):
                yield (
                    "lying",
                    self.write("being", who=[determine(word, form) for word in ("the", "my", "her")], how=some),
                )
        drinks = [determine("some", drink.one) for drink in self.drinks]
        on = [spot for spot in self._spots(self.foods[0]) if spot[0].startswith("on ")]
        yield "there is", self.write("there is", thing=drinks, place=on)
        places = [determine("the", place) for _, _, place in self.places]
        forms = [form for noun in [*self.wares, *self.animals, *self.people] for form in noun.forms]
        small = [form for noun in self.small for form in noun.forms]
        found = [*(determine("the", form) for form in forms), *places, *self.friends, *self.family]
        found += [determine(word, form) for word, form in product(("my", "your", "our"), small)]
        yield "where is", self.write("where is", who=[who for who in found if not who.plural])
        yield "where is", self.write("where are", who=[who for who in found if who.plural])
        yield "where is", self.write("excuse me", who=places)

    def _owners(self) -> Kinds:
        wares = [form for noun in self.wares for form in noun.forms]
        kin = [form for noun in self.kin for form in noun.forms]
        _, _, he, she, *_ = self.pronouns
        for word in ("my", "your", "his", "her", "our", "their"):
            things = [determine(word, thing) for thing in [*wares, *self.cat.forms]]
            relatives = [determine(word, person) for person in kin]
            yield "mine", self.write("this is", who=things + relatives)
            yield "mine", self.write("is this", who=things)
            for who, gender in ((he, "m"), (she, "f")):
                one = [person for person in relatives if person.gender == gender and not person.plural]
                yield "mine", self.write("being", who=who, how=one)
        owners = [(f"{name.en}'s", f"di {name.it}") for name in self.names]
        owners += [(f"the {person.one.en}'s", join("di", person.one)) for person in self.people]
        owners += [(f"my {person.one.en}'s", f"di {determine('my', person.one).it}") for person in self.kin]
        belonging = [
            thing._replace(en=f"{en} {thing.en}", it=f"{join('', thing)} {it}")
            for (en, it), thing in product(owners, wares)
        ]
        yield "belonging", self.write("this is", who=belonging)

    def _deeds(self) -> list[Verb]:
        """What one can be doing, has done or wants to do: a verb and its object."""
        people = [determine("the", person.one) for person in self.people] + self.names
        people += [determine("my", person.one) for person in self.kin]
        dishes = [food.one for food in self.dishes if food.one.en != "sugar"]
        dirty = [form for noun in self.wares if "dirt" in noun.suits for form in noun.forms]
        small = [form for noun in self.small for form in noun.forms]
        acts = [
            *(("eat", determine("a", food.one)) for food in self.foods),
            *(("eat", determine("some", food)) for food in dishes),
            *(("drink", determine("some", drink.one)) for drink in self.drinks),
            *(("write", determine("a", noun.one)) for noun in self.wares if noun.one.en in ("book", "letter")),
            *(
                (verb, determine("the", noun.one))
                for noun in self.wares
                if "opening" in noun.suits
                for verb in ("open", "close")
            ),
            *(("wash", determine("the", form)) for form in dirty),
            *(("draw", determine("a", animal.one)) for animal in self.animals),
            *(("buy", determine("a", noun.one)) for noun in [*self.single, *self.foods]),
            *(("look for", determine("the", form)) for form in small),
            *((verb, person) for person in people for verb in ("help", "call", "wait for")),
        ]
        return [self.verbs[verb].to(what) for verb, what in acts]

    def _goals(self) -> list[tuple[str, ...]]:
        """Where one goes to: "to the zoo", "allo zoo"."""
        goals: list[tuple[str, ...]] = [
            (f"to the {place.en}", self._there(it, place)) for _, (it, _), place in self.places
        ]
        return [*goals, ("to school", "a scuola"), ("home", "a casa")]

    def _there(self, preposition: str, place: Phrase) -> str:
        """Some places take a with the article, others a bare in: "al parco", "in biblioteca"."""
        return f"in {place.it}" if preposition == "in" else join("a", place)

    def _present(self) -> Kinds:
        many = [*self.simple, *self.persons]
        eaten = [self.verbs["drink" if food in self.drinks else "eat"].to(food.one) for food in self.mass]
        yield "eating", self.write("doing", who=many, do=[do for do in eaten if do.object != "sugar"])
        wanted = [self.verbs["want"].to(determine("some", food.one)) for food in self.mass]
        yield "eating", self.write("doing", who=self.simple, do=wanted)
        meals = [self.verbs["eat"].to(determine("a", food.one)) for food in self.foods]
        meals += [self.verbs["drink"].to(drink.one) for drink in self.drinks]
        who, habits = [*self.simple, *self.my_family], self.pairs["habits"]
        yield "habits", self.write("doing at a time", share=5, who=who, do=meals, time=habits)
        yield "now", self.write("doing now", share=11, who=many, do=self.deeds, when=_fits)
        clothes = self._described([noun for noun in self.clothes if noun in self.single], False)
        yield "now", self.write(
            "doing now", share=3, who=[who for who in self.simple if not who.plural],
            do=[self.verbs["wear"].to(determine("a", noun)) for noun in clothes],
            when=lambda who, do: "skirt" not in do.object or who.gender == "f",
        )  # fmt: skip
        alone = [self.verbs[verb] for verb in ALONE]
        yield "now alone", self.write("doing now", share=3, who=[*many, *self.friends, *self.my_family], do=alone)
        outings = [goal for goal in self._goals() if goal[0] not in ("to the kitchen", "to the garden")]
        going = [self.verbs["go"].to(goal) for goal in outings]
        yield "going", self.write("doing at a time", share=5, who=many, do=going, time=habits)
        spots = [("at school", "a scuola"), ("at home", "a casa")]
        spots += [(f"{en} the {place.en}", self._there(it, place)) for (en, _), (it, _), place in self.places]
        yield "staying", self.write("being", share=5, who=[*many, *self.friends, *self.family], how=spots)

    def _past(self) -> Kinds:
        many = [*self.simple, *self.persons]
        yield "past", self.write("done", share=11, who=many, do=self.deeds, when=_fits)
        small = [form for noun in self.small for form in noun.forms]
        for who, lost in thin_pairs(5, self.simple, list(product(("lose", "find"), small))):
            if who.en != "you all":
                his = pronouns(who.gender, who.person)["his"]
                do = [self.verbs[verb].to(determine(his, thing)) for verb, thing in lost]
                yield "past of one's own", self.write("done", who=who, do=do)
        moves = [(verb, goal) for verb in ("go", "return") for goal in self._goals()]
        moves += [(verb, moment) for verb in ("arrive", "leave", "return") for moment in self.pairs["moments"]]
        moved = [self.verbs[verb].to(goal) for verb, goal in moves]
        people = [*many, *self.friends, *self.my_family]
        yield "past of moving", self.write("done", share=5, who=people, do=moved)

    def _wishes(self) -> Kinds:
        """want to, can and must with an infinitive; and piacere, which turns the sentence around."""
        acts = [
            *self.deeds,
            *(self.verbs[verb] for verb in ALONE),
            *(self.verbs["go"].to(goal) for goal in self._goals()),
        ]
        wanted = [self.verbs["want"].to((f"to {do.en}", do.infinitive))._replace(object=do.object) for do in acts]
        yield "wishes", self.write("doing", share=17, who=self.simple, do=wanted, when=_fits)
        yield "wishes", self.write("wishing", share=17, who=self.simple, do=acts, when=_fits)
        liked = [(food.one.en, f"piace {join('', food.one)}") for food in self.mass]
        liked += [(noun.many.en, f"piacciono {join('', noun.many)}") for noun in [*self.foods, *self.animals]]
        liked += [(f"to {verb}", f"piace {self.verbs[verb].infinitive}") for verb in ALONE]
        datives = {row[0]: row[2] for row in self.file.rows("pronouns") if len(row) > 2}
        for who in [*self.pronouns, *self.names]:
            section = "liking with mi" if who.en in datives else "liking with a"
            to = datives.get(who.en) or f"{'ad' if who.it[0] == 'A' else 'a'} {who.it}"
            yield "likes", self.write(section, who=who, to=to, what=liked)

    def _origins(self) -> Kinds:
        countries = [country.one for country in nouns(self.file, "countries")]
        come, live, speak, know = (self.verbs[verb] for verb in ("come", "live", "speak", "know"))
        do = [come.to((f"from {country.en}", join("da", country))) for country in countries]
        do += [live.to((f"in {country.en}", f"in {country.it}")) for country in countries]
        do += [live.to((f"in {en}", f"a {it}")) for en, it in self.file.rows("cities")]
        do += [speak.to(language) for language in self.file.rows("languages")]
        yield "origins", self.write("doing", who=self.simple, do=do)
        for who in self.pronouns:
            word = "your" if who.en in ("I", "we") else "my"
            kin = [determine(word, form) for noun in self.kin for form in noun.forms]
            known = [know.to(whom) for whom in [*self.persons, *self.names, *kin, *self.friends[:12]]]
            yield "acquaintances", self.write("doing", who=who, do=known)

    def _times(self) -> Kinds:
        """The article of an hour merges with "a": "l'una" and "all'una", "le tre" and "alle tre"."""
        hours = [("one", "è l'", "all'", "una"), *((en, "sono le ", "alle ", it) for en, it in self.pairs["numbers"])]
        who = [*self.pronouns, *self.names, *self.my_family]
        do = [self.verbs[verb] for verb in ("eat", "arrive", "leave", "return")]
        places = [determine("the", place) for _, _, place in self.places[:13]]
        for (hour, is_, at, ora), (en, it) in product(hours, self.file.rows("clock")):
            time, tempo = en.format(hour=hour), it.format(hour=ora)
            yield "hours", self.write("hour", hour=(time, is_ + tempo))
            when = f"at {time}", at + tempo
            yield "times", self.write("doing at a time", share=5, who=who, do=do, time=when)
            if en.endswith("o'clock"):
                opening = [self.verbs["open"], self.verbs["close"]]
                yield "times", self.write("doing at a time", who=places, do=opening, time=when)

    def _questions(self) -> Kinds:
        where = [self.verbs[verb] for verb in ("live", "work", "study", "sleep", "eat")]
        what = [self.verbs[verb] for verb in ("eat", "drink", "read", "write", "draw", "look for", "buy")]
        who = [_asked(who) for who in [*self.simple, *self.persons, *self.friends, *self.family]]
        yield "open questions", self.write("where", who=who, do=where)
        yield "open questions", self.write("where to", who=who, do=self.verbs["go"])
        yield "open questions", self.write("what", who=who, do=what)
        yield "who questions", self.write("who does it", do=self.deeds)
        counted = [noun.many for noun in [*self.animals, *self.owned, *self.kin[:7]]]
        many = [
            (f"how many {thing.en}", f"{italian('quanto/quanta/quanti/quante', thing.gender, PLURAL)} {thing.it}")
            for thing in counted
        ]
        who = [_asked(who) for who in [*self.pronouns, *self.names]]
        yield "how many", self.write("how many", who=who, thing=many)

    def _shopping(self) -> Kinds:
        for noun in [*self.owned, *self.foods]:
            who = [determine(word, form) for word in ("the", "this") for form in noun.forms]
            yield "shopping", self.write("cost", who=who)
            if "colour" in noun.suits:
                yield "shopping", self.write("colour", who=who)
        wanted = [determine("a", food.one) for food in self.foods] + [determine("some", food.one) for food in self.mass]
        given = [determine("the", food.one) for food in [*self.foods, *self.mass]]
        yield "table manners", self.write("ordering", food=wanted)
        yield "table manners", self.write("thanks", food=given)
        yield "table manners", self.write("please", food=wanted + given)
        greetings, names = self.pairs["greetings"], [*self.names, *self.couples]
        yield "table manners", self.write("greeting", greeting=greetings, name=names)
