"""Sentences about what people do, did, like and want, and when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from allyouneed.data.builtin import phrasebook_words as w
from allyouneed.data.builtin.heldout import thin
from allyouneed.data.builtin.phrasebook_grammar import (
    HAVE,
    STAY,
    Noun,
    Pair,
    Subject,
    Verb,
    a,
    acting,
    agree,
    be,
    being,
    do,
    doing,
    done,
    join,
    noun_subject,
    numbers_of,
    owned,
    phrase,
    present,
    sentence,
    some,
    the,
    this,
)
from allyouneed.data.builtin.phrasebook_things import (
    FAMILY,
    FRIENDS,
    MASS,
    MY_FAMILY,
    OWNED,
    PERSONS,
    SIMPLE,
    SINGLE,
    SMALL,
    WARES,
    described,
)

ALONE = ("sleep", "work", "study", "cook", "sing", "dance", "run", "read", "write", "eat")


def owner_of(subject: Subject) -> str:
    """The possessive that points back at the subject: "Anna … her"."""
    if subject in w.PRONOUNS:
        return {"I": "my", "you": "your", "we": "our", "they": "their", "he": "his", "she": "her"}.get(subject.en, "")
    return "their" if subject.plural else {"m": "his", "f": "her"}[subject.gender]


def inverted(subject: Subject, form: str) -> str:
    """The verb of a wh-question and its subject, which a pronoun other than lui and lei leaves unsaid."""
    return form if subject in w.PRONOUNS and subject.person != 2 else f"{form} {subject.it}"


def consuming() -> Iterator[Pair]:
    for who, food in product([*SIMPLE, *PERSONS], MASS):
        if food.en != "sugar":
            yield from doing(who, w.VERBS["drink" if food in w.DRINKS else "eat"], food.en, food.it)
    for who, food in product(SIMPLE, MASS):
        yield from doing(who, w.VERBS["want"], *some(phrase(food)))


def habits() -> Iterator[Pair]:
    eaten = [("eat", *a(phrase(food))) for food in w.FOODS] + [("drink", food.en, food.it) for food in w.DRINKS]
    for who, (verb, en, it), (when, quando) in thin(5, product([*SIMPLE, *MY_FAMILY], eaten, w.HABITS.items())):
        third, form = present(w.VERBS[verb], who)
        yield sentence(f"{who.en} {third} {en} {when}", f"{who.it} {form} {it} {quando}")


def deeds() -> list[tuple[str, Pair]]:
    """What one can be doing, has done or wants to do: a verb and its object."""
    people = [the(phrase(person)) for person in w.PEOPLE] + [(name.en, name.it) for name in w.NAMES]
    people += [owned("my", phrase(person), kin=True) for person in w.KIN]
    return [
        *(("eat", a(phrase(food))) for food in w.FOODS),
        *(("eat", some(phrase(food))) for food in w.DISHES if food.en != "sugar"),
        *(("drink", some(phrase(drink))) for drink in w.DRINKS),
        *(("write", a(phrase(noun))) for noun in WARES if noun.en in ("book", "letter")),
        *((verb, the(phrase(noun))) for noun in WARES if "o" in noun.tags for verb in ("open", "close")),
        *(("wash", the(thing)) for thing in numbers_of([noun for noun in WARES if "d" in noun.tags])),
        *(("draw", a(phrase(animal))) for animal in w.ANIMALS),
        *(("buy", a(phrase(noun))) for noun in [*SINGLE, *w.FOODS]),
        *(("look for", the(thing)) for thing in numbers_of(SMALL)),
        *((verb, person) for person in people for verb in ("help", "call", "wait for")),
    ]


def acts() -> Iterator[tuple[Subject, Verb, Pair]]:
    """Who does what to whom, never to themselves."""
    for who, (verb, pair) in thin(11, product([*SIMPLE, *PERSONS], deeds())):
        if pair[0] not in who.en:
            yield who, w.VERBS[verb], pair


def now() -> Iterator[Pair]:
    for who, verb, pair in acts():
        yield from acting(who, verb, *pair)
    alone = [who for who in SIMPLE if not who.plural]
    for who, clothes in thin(3, product(alone, described([noun for noun in w.CLOTHES if noun in SINGLE], False))):
        if "skirt" not in clothes.en or who.gender == "f":
            yield from acting(who, w.VERBS["wear"], *a(clothes))


def now_alone() -> Iterator[Pair]:
    for who, verb in thin(3, product([*SIMPLE, *PERSONS, *FRIENDS, *MY_FAMILY], ALONE)):
        yield from acting(who, w.VERBS[verb], "", "")


def past() -> Iterator[Pair]:
    for who, verb, pair in acts():
        yield from done(who, verb, *pair)


def past_possessions() -> Iterator[Pair]:
    for who, verb, thing in thin(5, product(SIMPLE, ("lose", "find"), numbers_of(SMALL))):
        if owner_of(who):
            yield from done(who, w.VERBS[verb], *owned(owner_of(who), thing))


def goals() -> list[Pair]:
    """Where one goes to: "to the zoo", "allo zoo"."""
    return [(f"to the {place.en}", towards(preposition, place)) for _, preposition, place in w.PLACES] + [
        ("to school", "a scuola"),
        ("home", "a casa"),
    ]


def towards(preposition: str, place: Noun) -> str:
    """Some places take a with the article, others a bare in: "al parco", "in biblioteca"."""
    return f"in {place.it}" if preposition == "in" else join("a", phrase(place))


def past_moving() -> Iterator[Pair]:
    for who, (verb, en, it) in thin(5, product([*SIMPLE, *PERSONS, *FRIENDS, *MY_FAMILY], moves())):
        yield from done(who, w.VERBS[verb], en, it, moving=True)


def moves() -> list[tuple[str, str, str]]:
    return [(verb, *goal) for verb in ("go", "return") for goal in goals()] + [
        (verb, *moment) for verb in ("arrive", "leave", "return") for moment in w.MOMENTS.items()
    ]


def going() -> Iterator[Pair]:
    outings = [goal for goal in goals() if goal[0] not in ("to the kitchen", "to the garden")]
    for who, (en, it), (when, quando) in thin(5, product([*SIMPLE, *PERSONS], outings, w.HABITS.items())):
        third, form = present(w.VERBS["go"], who)
        yield sentence(f"{who.en} {third} {en} {when}", f"{who.it} {form} {it} {quando}")


def staying() -> Iterator[Pair]:
    spots = [("at school", "a scuola"), ("at home", "a casa")]
    spots += [(f"{en} the {place.en}", towards(it, place)) for en, it, place in w.PLACES]
    for who, spot in thin(5, product([*SIMPLE, *PERSONS, *FRIENDS, *FAMILY], spots)):
        yield from being(who, *spot)


def wishes() -> Iterator[Pair]:
    """want to, can and must with an infinitive."""
    wished = [(f"{verb} {en}", f"{w.VERBS[verb].infinitive} {it}") for verb, (en, it) in deeds()]
    wished += [(verb, w.VERBS[verb].infinitive) for verb in ALONE]
    wished += [(f"go {en}", f"andare {it}") for en, it in goals()]
    for who, (en, it) in thin(17, product(SIMPLE, wished)):
        if any(name.en in who.en and en.endswith(name.en) for name in w.NAMES):
            continue
        yield from doing(who, w.VERBS["want"], f"to {en}", it)
        can, must = (f"{w.MODALS[modal][who.person]} {it}" for modal in ("can", "must"))
        yield sentence(f"{who.en} can {en}", f"{who.it} {can}")
        if "some " not in en:
            yield sentence(f"{who.en} cannot {en}", f"{who.it} non {can}")
        yield sentence(f"can {who.en} {en}", f"{who.it} {can}", "?")
        yield sentence(f"{who.en} must {en}", f"{who.it} {must}")


def likes() -> Iterator[Pair]:
    """piacere turns the sentence around: what is liked is its subject, and who likes it a dative."""
    liked = [(thing.en, join("", thing), thing.plural) for thing in map(phrase, MASS)]
    liked += [(thing.en, join("", thing), True) for thing in (phrase(n, True) for n in [*w.FOODS, *w.ANIMALS])]
    liked += [(f"to {verb}", w.VERBS[verb].infinitive, False) for verb in ALONE]
    for who, (en, it, plural) in product([*w.PRONOUNS, *w.NAMES], liked):
        verb = f"{'piacciono' if plural else 'piace'} {it}"
        if who.en in w.CLITICS:
            plain, negated = f"{w.CLITICS[who.en]} {verb}", f"non {w.CLITICS[who.en]} {verb}"
        else:
            to = f"{'ad' if who.it[0] == 'A' else 'a'} {who.it}"
            plain, negated = f"{to} {verb}", f"{to} non {verb}"
        yield sentence(f"{who.en} {'likes' if do(who) == 'does' else 'like'} {en}", plain)
        yield sentence(f"{who.en} {do(who)} not like {en}", negated)
        if who.en != "I":
            yield sentence(f"{do(who)} {who.en} like {en}", plain, "?")


def origins() -> Iterator[Pair]:
    for who in SIMPLE:
        for country in w.COUNTRIES:
            yield from doing(who, w.VERBS["come"], f"from {country.en}", join("da", phrase(country)))
            yield from doing(who, w.VERBS["live"], f"in {country.en}", f"in {country.it}")
        for city, città in w.CITIES.items():
            yield from doing(who, w.VERBS["live"], f"in {city}", f"a {città}")
        for language, lingua in w.LANGUAGES.items():
            yield from doing(who, w.VERBS["speak"], language, lingua)


def acquaintances() -> Iterator[Pair]:
    known = [the(person) for person in numbers_of(w.PEOPLE)] + [(name.en, name.it) for name in w.NAMES]
    theirs = {owner: [owned(owner, x, kin=True) for x in numbers_of(w.KIN)] for owner in ("my", "your")}
    for who in w.PRONOUNS:
        kin = theirs["your" if who.en in ("I", "we") else "my"]
        for whom in [*known, *kin, *((friend.en, friend.it) for friend in FRIENDS[:12])]:
            yield from doing(who, w.VERBS["know"], *whom)


def clock() -> list[tuple[str, str, str]]:
    """Times of day as (English, article, Italian), the article apart: it merges with "a", "alle tre", "all'una"."""
    times = [("one", "l'", "una"), *((en, "le ", it) for en, it in w.HOURS.items())]
    return [
        (pattern.format(hour), article, form.format(ora))
        for hour, article, ora in times
        for pattern, form in w.PARTS_OF_HOUR.items()
    ]


def hours() -> Iterator[Pair]:
    for en, article, it in clock():
        verb = "è" if article == "l'" else "sono"
        yield sentence(f"it is {en}", f"{verb} {article}{it}")


def times() -> Iterator[Pair]:
    for en, article, it in clock():
        at = "all'" if article == "l'" else "alle "
        for who, name in thin(5, product([*w.PRONOUNS, *w.NAMES, *MY_FAMILY], ("eat", "arrive", "leave", "return"))):
            third, form = present(w.VERBS[name], who)
            yield sentence(f"{who.en} {third} at {en}", f"{who.it} {form} {at}{it}")
        if en.endswith("o'clock"):
            for (_, _, place), name in product(w.PLACES[:13], ("open", "close")):
                there = noun_subject(the(phrase(place)), phrase(place))
                third, form = present(w.VERBS[name], there)
                yield sentence(f"{there.en} {third} at {en}", f"{there.it} {form} {at}{it}")


def open_questions() -> Iterator[Pair]:
    """where and what, of people."""
    for who in [*SIMPLE, *PERSONS, *FRIENDS, *FAMILY]:
        for verb in ("live", "work", "study", "sleep", "eat"):
            form = inverted(who, present(w.VERBS[verb], who)[1])
            yield sentence(f"where {do(who)} {who.en} {verb}", f"dove {form}", "?")
        yield sentence(f"where {be(who)} {who.en} going", f"dove {inverted(who, present(w.VERBS['go'], who)[1])}", "?")
        for verb in ("eat", "drink", "read", "write", "draw", "look for", "buy"):
            form = inverted(who, f"{STAY[who.person]} {w.VERBS[verb].gerund}")
            yield sentence(f"what {be(who)} {who.en} {w.VERBS[verb].ing}", f"che cosa {form}", "?")


def who_questions() -> Iterator[Pair]:
    for verb, (en, it) in deeds():
        yield sentence(f"who is {w.VERBS[verb].ing} {en}", f"chi sta {w.VERBS[verb].gerund} {it}", "?")


def how_many() -> Iterator[Pair]:
    for noun, who in product([*w.ANIMALS, *OWNED, *w.KIN[:7]], [*w.PRONOUNS, *w.NAMES]):
        thing = phrase(noun, plural=True)
        many = agree("quanto quanta quanti quante", thing.gender, True)
        form = inverted(who, HAVE[who.person])
        yield sentence(f"how many {thing.en} {do(who)} {who.en} have", f"{many} {thing.it} {form}", "?")


def shopping() -> Iterator[Pair]:
    for noun, choose in product([*OWNED, *w.FOODS], (the, this)):
        for thing in numbers_of([noun]):
            en, it = choose(thing)
            do_, cost = ("do", "costano") if thing.plural else ("does", "costa")
            yield sentence(f"how much {do_} {en} cost", f"quanto {cost} {it}", "?")
            if "c" in noun.tags:
                is_, be_ = ("are", "sono") if thing.plural else ("is", "è")
                yield sentence(f"what colour {is_} {en}", f"di che colore {be_} {it}", "?")


def table_manners() -> Iterator[Pair]:
    wanted = [a(phrase(food)) for food in w.FOODS] + [some(phrase(food)) for food in MASS]
    for en, it in wanted:
        yield sentence(f"I would like {en}, please", f"io vorrei {it}, per favore")
        yield sentence(f"{en}, please", f"{it}, per favore")
        yield sentence(f"can I have {en}, please", f"io posso avere {it}, per favore", "?")
    for en, it in [the(phrase(food)) for food in [*w.FOODS, *MASS]]:
        yield sentence(f"thank you for {en}", f"grazie per {it}")
        yield sentence(f"{en}, please", f"{it}, per favore")
    for (en, it), name in product(w.GREETINGS.items(), [*w.NAMES, *w.COUPLES]):
        yield sentence(f"{en}, {name.en}", f"{it}, {name.it}")
