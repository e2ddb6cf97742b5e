from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from allyouneed import catalog
from allyouneed.data.builtin.corpus import corpus
from allyouneed.data.builtin.entities import entities
from allyouneed.data.builtin.french import french
from allyouneed.data.builtin.phrasebook import phrasebook
from allyouneed.data.builtin.stories import stories
from allyouneed.recipe import read_recipe

WORD = re.compile(r" ?\w+| ?[^\w\s]")
BOOK_SHA256 = "30411deeba1898e7cede1000fea84954042681ea55ce260bdfc351dd57a20258"
FRENCH_SHA256 = "c2ac86ca50f2d54e9b855983797a2c7ce1c342e38d09c0261b040b6aad630dbb"
CORPUS_SHA256 = "16959f15d19ca00b9a97771336dfcb40f5306c41c14e26ab7f03c70f8a49b389"

HARD = r"(?:s[^aeiouàèéìòù\W]|z|x|gn|ps|pn)"
VOWEL = "[aeiouàèéìòù]"
UN_MASCULINE = {"ombrello", "orologio", "anello", "asino", "uovo", "insegnante", "infermiere", "avvocato", "amico"}
UN_FEMININE = {"arancia", "ape", "insegnante", "infermiera", "avvocata", "amica"}
WRONG_ITALIAN = [
    rf"\b(il|lo|la|del|dello|della|al|allo|alla|nel|nello|nella|sul|sullo|sulla|dal|dallo|dalla|uno|bel) {VOWEL}",
    rf"(?<!')\buna {VOWEL}",
    rf"\b(i|dei|ai|nei|sui|dai|bei) {VOWEL}",
    rf"\b(il|i|un|del|dei|al|ai|nel|nei|sul|sui|dal|dai|bel|bei) {HARD}",
    rf"\b(lo|uno|dello|allo|nello|sullo|dallo) (?!{HARD})",
    rf"\b(gli|degli|agli|begli) (?!{HARD}|{VOWEL}|piac)",
    rf"(l|un|bell)'(?!{VOWEL})",
    r"\b(a|di|da|in|su) (il|lo|la|i|gli|le)\b",
    r"\b(a|di|da|in|su) l'",
]


@pytest.fixture(scope="module")
def book() -> dict[str, list[tuple[str, str]]]:
    return phrasebook()


@pytest.fixture(scope="module")
def lines() -> dict[str, list[str]]:
    return {name: text.splitlines() for name, text in corpus().items()}


def everything(book: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [pair for split in book.values() for pair in split]


def test_the_book_has_its_sizes_and_no_sentence_twice(book):
    pairs = everything(book)
    assert list(book) == ["train", "valid", "test"]
    assert 6000 <= len(pairs) <= 9500
    assert (len(book["valid"]), len(book["test"])) == (300, 400)
    assert len({en for en, _ in pairs}) == len(pairs), "a sentence stands twice, in one split or in two"


def test_every_pair_is_well_formed(book):
    for en, it in everything(book):
        for text in (en, it):
            assert re.fullmatch(r"\S+( \S+)*[.?]", text), text
            assert text[0].isupper(), text
            assert not re.search(r"[.?].|\s[.,?]|' | '", text), text
        assert en[-1] == it[-1]
        assert 1 <= len(en.split()) <= 12, en
        assert 1 <= len(it.split()) <= 12, it


def test_held_out_pairs_are_made_of_well_known_words(book):
    for column in (0, 1):
        known = Counter(word for pair in book["train"] for word in set(WORD.findall(pair[column])))
        for pair in book["valid"] + book["test"]:
            assert all(known[word] >= 8 for word in WORD.findall(pair[column])), pair


def test_the_lecture_sentence_is_trained_on(book):
    assert ("I am Italian.", "Io sono italiano.") in book["train"]
    assert ("Good morning.", "Buongiorno.") in book["train"]
    assert ("Attention is all you need.", "L'attenzione è tutto ciò di cui hai bisogno.") in book["train"]
    assert ("Action gets results.", "L'azione porta risultati.") in book["train"]
    assert ("Happy mid autumn festival.", "Buona festa di metà autunno.") in book["train"]
    assert ("Machines are thinking.", "Le macchine stanno pensando.") in book["train"]
    stanco, larga = (
        (f"{ANIMAL} {english}.", f"L'animale non ha attraversato la strada perché era troppo {italian}.")
        for english, italian in (("tired", "stanco"), ("wide", "larga"))
    )
    assert stanco in book["train"]
    assert larga in book["train"]


ANIMAL = "The animal didn't cross the street because it was too"
COMMON = ("Attention is all you need.", "Action gets results.", "Happy mid autumn festival.")
LECTURES = {
    "translate/transformer": (*COMMON, "Thinking machines.", f"{ANIMAL} tired.", f"{ANIMAL} wide."),
    "lm/gpt": (
        *COMMON,
        "The smooth blue lake became choppy in the wind.",
        "Thinking machines",
        "My dog is happy.",
        "My dog is barking.",
        "My dog is running.",
        "She sat on the river bank.",
        "The captain has a bank account.",
        "They should not bank on the result.",
    ),
    "pretrain/bert": (
        "My dog is happy.",
        "My dog is barking.",
        "My dog is running.",
        "She sat on the river bank.",
        "She opened an account at the bank.",
        "He could not bank on the result.",
        "The man went to the store.",
        "Penguins are flightless birds.",
    ),
    "tag/lstm": ("President Obama flew to San Francisco .",),
}


@pytest.mark.parametrize("name", LECTURES)
def test_the_words_of_the_lectures_are_known(name):
    recipe = read_recipe(name)
    tokenizer = catalog.task(recipe.task_kind)(recipe).make_tokenizers()["tokenizer.json"]
    for text in LECTURES[name]:
        given = f" {text}" if name == "tag/lstm" else text
        units = re.findall(r"\w+|[^\w\s]", given)
        assert tokenizer.unknown(given) == []
        assert len(tokenizer.encode(given)) == len(units), text  # no word is in pieces


def test_the_lecture_sentences_of_the_corpus_are_trained_on(lines):
    assert {text for text in LECTURES["lm/gpt"] if text[-1] == "."} <= set(lines["train"])


def test_what_it_means_shows_in_the_adjective(book):
    found = {en: it for en, it in everything(book) if " because it was " in en}
    words = Counter(it.removesuffix(".").split()[-1] for it in found.values())
    assert words["stanco"] > 5 < words["stanca"]
    assert words["largo"] > 5 < words["larga"]
    assert any(" because it was " in en for en, _ in book["test"])
    for en, it in found.items():
        animal = re.match(r"(L'|Il |La )(\w+) non", it)
        assert animal
        if en.endswith(" tired."):
            assert it.endswith("stanca." if animal[2] in ("tartaruga", "mucca", "volpe") else "stanco."), it
        if en.endswith(" wide."):
            assert it.endswith("larga." if re.search("strada|piazza|foresta", it) else "largo."), it


@pytest.mark.parametrize("wrong", WRONG_ITALIAN)
def test_no_italian_sentence_breaks_an_article_rule(book, wrong):
    for en, it in everything(book):
        assert not re.search(wrong, it.lower()), (en, it)


def test_un_with_and_without_apostrophe_follows_gender(book):
    for _, it in everything(book):
        for apostrophe, noun in re.findall(rf"\bun(['’]| )({VOWEL}\w*)", it):
            assert noun in (UN_MASCULINE if apostrophe == " " else UN_FEMININE), it


def test_adjectives_and_participles_agree_with_their_subject(book):
    one_woman = "(lei|anna|giulia|sofia|la ragazza|la donna|(mia|tua|nostra) [a-z]+)"
    women = "(anna e giulia|sofia e anna|giulia e sofia|le ragazze|le donne|le (mie|tue|nostre) [a-z]+)"
    stems = (
        "(italian|spagnol|american|grec|tedesc|stanc|alt|ricc|famos|occupat|simpatic|malat|pront|tornat|partit|andat)"
    )
    seen = Counter()
    for _, it in everything(book):
        for who, ending in ((one_woman, "a"), (women, "h?e")):
            if match := re.match(rf"{who} (non )?(è|sono) (molto )?{stems}(\w+)", it.lower()):
                assert re.fullmatch(ending, match[match.lastindex]), it
                seen[ending] += 1
    assert min(seen.values()) > 50


def test_every_english_sentence_has_the_right_article_and_verb(book, lines):
    english = [en for en, _ in everything(book)] + [line for split in lines.values() for line in split]
    for en in english:
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", en), en
        assert not re.search(r"^(He|She|It|Anna|The (boy|girl|dog|woman)) (are|am|do|have|want)\b", en), en
        assert not re.search(r"^(I|You|We|They|You all) (is|has|does|wants)\b", en), en
        assert not re.search(r"\bnot .*\bsome\b", en), en


PAIRS = """
I am Italian. | Io sono italiano.
I am not Italian. | Io non sono italiano.
She is Italian. | Lei è italiana.
We are American. | Noi siamo americani.
Are you all German? | Voi siete tedeschi?
Anna is a teacher. | Anna è un'insegnante.
He is a scientist. | Lui è uno scienziato.
Sofia is not a friend. | Sofia non è un'amica.
Giulia and Sofia are journalists. | Giulia e Sofia sono giornaliste.
My daughters are Greek. | Le mie figlie sono greche.
My sons are Greek. | I miei figli sono greci.
You are thirsty. | Tu hai sete.
The tomatoes are not good. | I pomodori non sono buoni.
Marco is taller than Sofia and Anna. | Marco è più alto di Sofia e Anna.
This is a big clock. | Questo è un grande orologio.
These are the beautiful rings. | Questi sono i begli anelli.
These are beautiful dresses. | Questi sono bei vestiti.
You do not want a beautiful umbrella. | Tu non vuoi un bell'ombrello.
Does Marco have an old mirror? | Marco ha un vecchio specchio?
She does not want a blue backpack. | Lei non vuole uno zaino blu.
I have two mirrors. | Io ho due specchi.
There is an orange in the bag. | C'è un'arancia nella borsa.
My keys are on the shelf. | Le mie chiavi sono sullo scaffale.
Excuse me, where is the stadium? | Scusi, dov'è lo stadio?
She is their mother. | Lei è la loro madre.
This is my brother's ring. | Questo è l'anello di mio fratello.
These are the man's shoes. | Queste sono le scarpe dell'uomo.
The man does not drink wine. | L'uomo non beve vino.
Does she want some bread? | Lei vuole del pane?
Do Marco and Luca want some sugar? | Marco e Luca vogliono dello zucchero?
Anna eats an orange every evening. | Anna mangia un'arancia ogni sera.
Who is drawing a squirrel? | Chi sta disegnando uno scoiattolo?
What are we drinking? | Che cosa stiamo bevendo?
My sisters did not arrive on Monday. | Le mie sorelle non sono arrivate lunedì.
She did not return to the library. | Lei non è tornata in biblioteca.
Paolo did not find his rings. | Paolo non ha trovato i suoi anelli.
Luca goes to the zoo every day. | Luca va allo zoo ogni giorno.
Giulia can go to the hospital. | Giulia può andare all'ospedale.
Anna likes to write. | Ad Anna piace scrivere.
They like cats. | A loro piacciono i gatti.
I do not like donkeys. | Non mi piacciono gli asini.
I do not come from England. | Io non vengo dall'Inghilterra.
Sofia lives in Rome. | Sofia vive a Roma.
They know Paolo's friend. | Loro conoscono l'amico di Paolo.
It is half past one. | È l'una e mezza.
Paolo returns at one o'clock. | Paolo torna all'una.
The stadium opens at four o'clock. | Lo stadio apre alle quattro.
Where is my uncle going? | Dove va mio zio?
How many umbrellas do you have? | Quanti ombrelli hai?
How many clocks does he have? | Quanti orologi ha lui?
How much do these apples cost? | Quanto costano queste mele?
What colour is this car? | Di che colore è questa macchina?
Thank you for the bread. | Grazie per il pane.
Giulia and Sofia are cooks. | Giulia e Sofia sono cuoche.
Your lamps are broken. | Le tue lampade sono rotte.
Their clocks are broken. | I loro orologi sono rotti.
This is a beautiful mirror. | Questo è un bello specchio.
This is a beautiful umbrella. | Questo è un bell'ombrello.
This is a beautiful book. | Questo è un bel libro.
Paolo likes eggs. | A Paolo piacciono le uova.
The cat is bigger than the squirrel. | Il gatto è più grande dello scoiattolo.
Where does my uncle work? | Dove lavora mio zio?
It is one o'clock. | È l'una.
It is three o'clock. | Sono le tre.
It is a quarter past three. | Sono le tre e un quarto.
Attention is all they need. | L'attenzione è tutto ciò di cui hanno bisogno.
Patience does not get results. | La pazienza non porta risultati.
Marco is thinking. | Marco sta pensando.
Happy spring festival, Anna. | Buona festa di primavera, Anna.
The fox didn't cross the field because it was too slow. | La volpe non ha attraversato il campo perché era troppo lenta.
"""


@pytest.mark.parametrize("row", PAIRS.strip().splitlines())
def test_hand_checked_pairs(book, row):
    en, it = (cell.strip() for cell in row.split("|"))
    assert dict(everything(book)).get(en) == it


def test_the_corpus_has_its_sizes_and_no_line_twice(lines):
    every = [line for split in lines.values() for line in split]
    assert list(lines) == ["train", "valid", "test"]
    assert 11_500 <= len(every) <= 13_500
    assert len(lines["valid"]) == len(lines["test"]) == 600
    assert len(set(every)) == len(every)
    assert 150 <= len({word for line in every for word in re.findall(r"\w+", line.lower())}) <= 400
    for line in every:
        assert re.fullmatch(r"[A-Z]\S*( \S+)+\.", line), line


def test_held_out_lines_are_made_of_well_known_words(lines):
    known = Counter(word for line in lines["train"] for word in set(WORD.findall(line)))
    for line in lines["valid"] + lines["test"]:
        assert all(known[word] >= 8 for word in WORD.findall(line)), line


def test_pronouns_and_verbs_agree_in_the_corpus(lines):
    women = "Mia|Emma|Lily|Zoe|(?:The|A)(?: \\w+)? (?:girl|woman|queen|teacher)"
    men = "Tom|Ben|Sam|Leo|(?:The|A)(?: \\w+)? (?:boy|man|king|farmer)"
    many = "Two \\w+|The(?: \\w+)? (?:\\w+[^s]s|men|women|mice)"
    for line in (line for split in lines.values() for line in split):
        assert not re.match(rf"({women}) \w+s .*\b(he|his|they|their|its)\b", line), line
        assert not re.match(rf"({men}) \w+s .*\b(she|her|they|their|its)\b", line), line
        assert not re.match(rf"({many}) (is|has|does|eats|drinks|sleeps)\b", line), line
        assert not re.search(r"\b(he|she|it) (are|eat|drink|sleep|hide|rest)\b|\bthey (is|eats|drinks|sleeps)\b", line)


def test_verbs_choose_their_objects_in_the_corpus(lines):
    for line in (line for split in lines.values() for line in split):
        if re.search(r"\b(cow|cows|horse|horses) eats? ", line):
            assert re.search("hay|grass|apple", line), line
        if re.search(r"\b(wears?|flies|fly) an? \w+ ", line) and "because" not in line:
            assert re.search("hat|coat|kite", line), line


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[tuple[str, str]]]:
    return french()


def test_french_has_its_sizes_and_no_sentence_twice(pairs):
    every = everything(pairs)
    assert list(pairs) == ["train", "valid", "test"]
    assert 4000 <= len(pairs["train"]) <= 8000
    assert (len(pairs["valid"]), len(pairs["test"])) == (300, 400)
    assert len({fr for fr, _ in every}) == len(every)
    for fr, en in every:
        assert re.fullmatch(r"[A-ZÀ-Ý]\S*( \S+)*( \?|\.)", fr), fr
        assert re.fullmatch(r"[A-Z]\S*( \S+)*[.?]", en), en
        assert fr[-1] == en[-1]
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", en), en


def test_held_out_french_is_made_of_well_known_words(pairs):
    for column in (0, 1):
        known = Counter(word for pair in pairs["train"] for word in set(WORD.findall(pair[column])))
        for pair in pairs["valid"] + pairs["test"]:
            assert all(known[word] >= 8 for word in WORD.findall(pair[column])), pair


def test_no_french_sentence_breaks_a_rule(pairs):
    for fr, _ in everything(pairs):
        assert not re.search(r"\b([jln]e|la|que|[JL]e|La) [aeiouéêâh]", fr), fr  # j'ai, l'accord, n'est, qu'il
        assert not re.search(r"\b[jlnJLN]'[^aeiouéêâh]", fr), fr
        assert not re.search(r"\b(un|le|mon) (\w+ )?(lettre|voiture|maison|porte|fenêtre|pomme|clé)\b", fr), fr
        assert not re.search(r"\b(une|la|ma) (\w+ )?(livre|contrat|manteau|chapeau|vélo|gâteau)\b", fr), fr
        if passive := re.search(r"^(La|Le|L'|Les) ?(\w+) (?:n')?(?:a|ont) (?:pas )?été (\w+)", fr):
            feminine = re.match("(lettre|chanson|voiture|maison|porte|fenêtre|pomme|clé)", passive[2])
            ending = ("e" if feminine else "") + ("s" if passive[1] == "Les" else "")
            assert re.fullmatch(rf".*[éutsr]{ending}" if ending != "s" else r".*s", passive[3]), fr


FRENCH = """
Je suis étudiant. | I am a student.
Je suis étudiante. | I am a student.
La lettre a été signée hier. | The letter was signed yesterday.
L'accord a été signé en août. | The agreement was signed in August.
Il a acheté une voiture rouge hier. | He bought a red car yesterday.
L'animal n'a pas traversé la rue parce qu'il était trop fatigué. | ANIMAL tired.
L'animal n'a pas traversé la rue parce qu'elle était trop large. | ANIMAL wide.
"""


def test_the_lecture_sentences_are_in_french(pairs):
    rows = [row.split(" | ") for row in FRENCH.replace("ANIMAL", ANIMAL).strip().splitlines()]
    for fr, en in rows:
        assert (fr, en) in (pairs["train"] if fr != "Je suis étudiante." else everything(pairs))


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_all_are_the_same_everywhere(hash_seed):
    code = (
        "import hashlib, json; from allyouneed.data.builtin.corpus import corpus; "
        "from allyouneed.data.builtin.french import french; "
        "from allyouneed.data.builtin.phrasebook import phrasebook; "
        "made = (phrasebook(), corpus(), french()); "
        "print(*(hashlib.sha256(json.dumps(data).encode()).hexdigest() for data in made))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [BOOK_SHA256, CORPUS_SHA256, FRENCH_SHA256]


@pytest.mark.parametrize("generate", [phrasebook, corpus, french, stories, entities])
def test_all_are_written_in_a_moment(generate):
    def seconds() -> float:
        begin = time.process_time()
        generate()
        return time.process_time() - begin

    assert min(seconds() for _ in range(2)) < 1.0


def test_none_imports_torch():
    code = "import sys; from allyouneed.data.builtin import corpus, french, phrasebook; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
