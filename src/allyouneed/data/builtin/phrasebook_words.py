"""The words of the phrasebook, with the forms that English and Italian grammar ask for."""

from __future__ import annotations

from allyouneed.data.builtin.phrasebook_grammar import Adjective, Noun, Subject, Verb


def nouns(text: str) -> list[Noun]:
    return [Noun(*(cell.strip() for cell in row.split(","))) for row in text.strip().splitlines()]


def adjectives(text: str, before: bool = False) -> list[Adjective]:
    """Rows of "English, four Italian forms" and, if it is usual, the English comparative."""
    rows = ([*(cell.strip() for cell in row.split(",")), ""] for row in text.strip().splitlines())
    return [Adjective(row[0], row[1], row[2], before) for row in rows]


def verbs(text: str) -> dict[str, Verb]:
    rows = (Verb(*(cell.strip() for cell in row.split(","))) for row in text.strip().splitlines())
    return {verb.base: verb for verb in rows}


PRONOUNS = [
    Subject(en, it, person, gender)
    for en, it, person, gender in (
        ("I", "io", 0, "m"),
        ("you", "tu", 1, "m"),
        ("he", "lui", 2, "m"),
        ("she", "lei", 2, "f"),
        ("we", "noi", 3, "m"),
        ("you all", "voi", 4, "m"),
        ("they", "loro", 5, "m"),
    )
]
NAMES = [Subject(name, name, 2, "m") for name in ("Marco", "Luca", "Paolo")]
NAMES += [Subject(name, name, 2, "f") for name in ("Anna", "Giulia", "Sofia")]
COUPLES = [
    Subject(f"{a.en} and {b.en}", f"{a.it} e {b.it}", 5, "f" if a.gender == b.gender == "f" else "m")
    for a, b in ((NAMES[i], NAMES[j]) for i, j in ((0, 1), (2, 0), (0, 3), (4, 1), (2, 5), (3, 4), (5, 3), (4, 5)))
]
CLITICS = {"I": "mi", "you": "ti", "he": "gli", "she": "le", "we": "ci", "you all": "vi"}
NUMBERS = dict(
    zip(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        ["due", "tre", "quattro", "cinque", "sei", "sette", "otto", "nove", "dieci"],
    )
)
HOURS = {**NUMBERS, "eleven": "undici"}

FRIEND = Noun("friend", "friends", "amico", "amici", "m")
PEOPLE = nouns("""
    boy, boys, ragazzo, ragazzi, m
    girl, girls, ragazza, ragazze, f
    man, men, uomo, uomini, m
    woman, women, donna, donne, f
    child, children, bambino, bambini, m
    student, students, studente, studenti, m
    teacher, teachers, insegnante, insegnanti, m
    doctor, doctors, medico, medici, m
""")
KIN = nouns("""
    brother, brothers, fratello, fratelli, m
    sister, sisters, sorella, sorelle, f
    uncle, uncles, zio, zii, m
    aunt, aunts, zia, zie, f
    son, sons, figlio, figli, m
    daughter, daughters, figlia, figlie, f
    cousin, cousins, cugino, cugini, m
    mother, , madre, , f
    father, , padre, , m
    grandmother, , nonna, , f
    grandfather, , nonno, , m
""")
ROLES = [
    (Noun(en, f"{en}s", m, ms, "m"), Noun(en, f"{en}s", f, fs, "f"))
    for en, m, f, ms, fs in (
        row.split()
        for row in (
            "student studente studentessa studenti studentesse",
            "teacher insegnante insegnante insegnanti insegnanti",
            "cook cuoco cuoca cuochi cuoche",
            "nurse infermiere infermiera infermieri infermiere",
            "singer cantante cantante cantanti cantanti",
            "writer scrittore scrittrice scrittori scrittrici",
            "lawyer avvocato avvocata avvocati avvocate",
            "journalist giornalista giornalista giornalisti giornaliste",
            "scientist scienziato scienziata scienziati scienziate",
            "friend amico amica amici amiche",
        )
    )
]
ANIMALS = nouns("""
    bee, bees, ape, api, f
    squirrel, squirrels, scoiattolo, scoiattoli, m
    turtle, turtles, tartaruga, tartarughe, f
    cat, cats, gatto, gatti, m
    dog, dogs, cane, cani, m
    donkey, donkeys, asino, asini, m
    horse, horses, cavallo, cavalli, m
""")
THINGS = nouns("""
    book, books, libro, libri, m, csnbhv
    house, houses, casa, case, f, csnbe
    car, cars, macchina, macchine, f, csnbedx
    table, tables, tavolo, tavoli, m, csnbedh
    chair, chairs, sedia, sedie, f, csnbedx
    key, keys, chiave, chiavi, f, snv
    bag, bags, borsa, borse, f, csnbedhov
    umbrella, umbrellas, ombrello, ombrelli, m, csnbxov
    backpack, backpacks, zaino, zaini, m, csnedhov
    mirror, mirrors, specchio, specchi, m, snbedx
    clock, clocks, orologio, orologi, m, snbex
    window, windows, finestra, finestre, f, sdo
    door, doors, porta, porte, f, cdo
    letter, letters, lettera, lettere, f, nv
    bicycle, bicycles, bicicletta, biciclette, f, csnbedx
    phone, phones, telefono, telefoni, m, csnbexv
    box, boxes, scatola, scatole, f, csnhov
    lamp, lamps, lampada, lampade, f, csnbex
    cup, cups, tazza, tazze, f, csnbedxv
    ring, rings, anello, anelli, m, snbev
""")
CLOTHES = nouns("""
    hat, hats, cappello, cappelli, m, csnbedv
    shirt, shirts, camicia, camicie, f, csnbedv
    shoe, shoes, scarpa, scarpe, f, csnbed
    dress, dresses, vestito, vestiti, m, csnbed
    skirt, skirts, gonna, gonne, f, csnbed
    jacket, jackets, giacca, giacche, f, csnbed
""")
FOODS = nouns("""
    apple, apples, mela, mele, f, GFW
    orange, oranges, arancia, arance, f, GFW
    egg, eggs, uovo, uova, m, GF, f
    sandwich, sandwiches, panino, panini, m, GF
    ice cream, ice creams, gelato, gelati, m, GW
    tomato, tomatoes, pomodoro, pomodori, m, GF
    strawberry, strawberries, fragola, fragole, f, GFW
    pizza, pizzas, pizza, pizze, f, GHC
    cake, cakes, torta, torte, f, GW
""")
DISHES = nouns("""
    bread, , pane, , m, GF
    cheese, , formaggio, , m, GF
    meat, , carne, , f, GHC
    soup, , zuppa, , f, GHC
    salad, , insalata, , f, GF
    sugar, , zucchero, , m,
""")
DRINKS = nouns("""
    water, , acqua, , f, HC
    wine, , vino, , m, G
    milk, , latte, , m, GFHC
    coffee, , caffè, , m, GHC
    tea, , tè, , m, GHC
    orange juice, , succo d'arancia, , m, GFW
""")
PLACES = [
    (en, it, Noun(place, "", luogo, "", gender))
    for en, it, place, luogo, gender in (
        ("at", "a", "station", "stazione", "f"),
        ("at", "a", "market", "mercato", "m"),
        ("at", "a", "restaurant", "ristorante", "m"),
        ("at", "a", "museum", "museo", "m"),
        ("at", "a", "supermarket", "supermercato", "m"),
        ("at", "a", "airport", "aeroporto", "m"),
        ("at", "a", "hospital", "ospedale", "m"),
        ("at", "a", "stadium", "stadio", "m"),
        ("at", "a", "zoo", "zoo", "m"),
        ("in", "a", "park", "parco", "m"),
        ("in", "in", "library", "biblioteca", "f"),
        ("at", "in", "bank", "banca", "f"),
        ("in", "in", "church", "chiesa", "f"),
        ("at", "in", "office", "ufficio", "m"),
        ("in", "in", "garden", "giardino", "m"),
        ("in", "in", "kitchen", "cucina", "f"),
    )
]
SPOTS = [
    (en, preposition, Noun(noun, "", it, "", gender))
    for en, preposition, noun, it, gender in (
        ("on", "su", "table", "tavolo", "m"),
        ("on", "su", "chair", "sedia", "f"),
        ("on", "su", "bed", "letto", "m"),
        ("on", "su", "shelf", "scaffale", "m"),
        ("in", "in", "bag", "borsa", "f"),
        ("in", "in", "backpack", "zaino", "m"),
        ("in", "in", "drawer", "cassetto", "m"),
        ("in", "in", "wardrobe", "armadio", "m"),
        ("in", "in", "box", "scatola", "f"),
        ("under", "sotto", "table", "tavolo", "m"),
        ("under", "sotto", "bed", "letto", "m"),
        ("under", "sotto", "chair", "sedia", "f"),
        ("under", "sotto", "umbrella", "ombrello", "m"),
        ("behind", "dietro", "door", "porta", "f"),
        ("behind", "dietro", "mirror", "specchio", "m"),
        ("behind", "dietro", "wardrobe", "armadio", "m"),
    )
]
COUNTRIES = nouns("""
    Italy, , Italia, , f
    France, , Francia, , f
    Spain, , Spagna, , f
    Germany, , Germania, , f
    England, , Inghilterra, , f
    America, , America, , f
    Japan, , Giappone, , m
    Brazil, , Brasile, , m
""")
CITIES = {
    "Rome": "Roma",
    "Milan": "Milano",
    "Naples": "Napoli",
    "Florence": "Firenze",
    "Venice": "Venezia",
    "Turin": "Torino",
}
NATIONALITIES = adjectives("""
    Italian, italiano italiana italiani italiane
    French, francese francese francesi francesi
    Spanish, spagnolo spagnola spagnoli spagnole
    German, tedesco tedesca tedeschi tedesche
    English, inglese inglese inglesi inglesi
    American, americano americana americani americane
    Japanese, giapponese giapponese giapponesi giapponesi
    Brazilian, brasiliano brasiliana brasiliani brasiliane
    Greek, greco greca greci greche
""")
LANGUAGES = {a.en: a.it.split()[0] for a in NATIONALITIES if a.en not in ("American", "Brazilian")}
QUALITIES = adjectives("""
    tired, stanco stanca stanchi stanche, more tired
    happy, felice felice felici felici, happier
    sad, triste triste tristi tristi, sadder
    tall, alto alta alti alte, taller
    young, giovane giovane giovani giovani, younger
    rich, ricco ricca ricchi ricche, richer
    strong, forte forte forti forti, stronger
    kind, gentile gentile gentili gentili, kinder
    famous, famoso famosa famosi famose, more famous
    intelligent, intelligente intelligente intelligenti intelligenti, more intelligent
    busy, occupato occupata occupati occupate, busier
    nice, simpatico simpatica simpatici simpatiche, nicer
    sick, malato malata malati malate
    ready, pronto pronta pronti pronte
""")
SUITS = {
    "c": adjectives("""
        red, rosso rossa rossi rosse
        white, bianco bianca bianchi bianche
        black, nero nera neri nere
        green, verde verde verdi verdi
        yellow, giallo gialla gialli gialle
        blue, blu blu blu blu
    """),
    "s": adjectives(
        """
        big, grande grande grandi grandi, bigger
        small, piccolo piccola piccoli piccole, smaller
    """,
        before=True,
    ),
    "b": adjectives("beautiful, bello bella belli belle, more beautiful", before=True),
    "n": adjectives("new, nuovo nuova nuovi nuove, newer")
    + adjectives("old, vecchio vecchia vecchi vecchie, older", before=True),
    "e": adjectives("expensive, costoso costosa costosi costose, more expensive"),
    "d": adjectives("""
        clean, pulito pulita puliti pulite, cleaner
        dirty, sporco sporca sporchi sporche, dirtier
    """),
    "h": adjectives("heavy, pesante pesante pesanti pesanti, heavier"),
    "x": adjectives("broken, rotto rotta rotti rotte"),
    "o": adjectives("open, aperto aperta aperti aperte"),
    "G": adjectives("good, buono buona buoni buone"),
    "F": adjectives("fresh, fresco fresca freschi fresche"),
    "W": adjectives("sweet, dolce dolce dolci dolci"),
    "H": adjectives("hot, caldo calda caldi calde"),
    "C": adjectives("cold, freddo fredda freddi fredde"),
}
FEELINGS = {
    "hungry": "fame",
    "thirsty": "sete",
    "sleepy": "sonno",
    "afraid": "paura",
    "cold": "freddo",
    "right": "ragione",
}
MODALS = {
    "can": ["posso", "puoi", "può", "possiamo", "potete", "possono"],
    "must": ["devo", "devi", "deve", "dobbiamo", "dovete", "devono"],
}
VERBS = verbs("""
    have, has, having, had, avere, avendo, avuto, ho hai ha abbiamo avete hanno
    want, wants, wanting, wanted, volere, volendo, voluto, voglio vuoi vuole vogliamo volete vogliono
    eat, eats, eating, ate, mangiare, mangiando, mangiato, mangio mangi mangia mangiamo mangiate mangiano
    drink, drinks, drinking, drank, bere, bevendo, bevuto, bevo bevi beve beviamo bevete bevono
    buy, buys, buying, bought, comprare, comprando, comprato, compro compri compra compriamo comprate comprano
    see, sees, seeing, saw, vedere, vedendo, visto, vedo vedi vede vediamo vedete vedono
    read, reads, reading, read, leggere, leggendo, letto, leggo leggi legge leggiamo leggete leggono
    write, writes, writing, wrote, scrivere, scrivendo, scritto, scrivo scrivi scrive scriviamo scrivete scrivono
    open, opens, opening, opened, aprire, aprendo, aperto, apro apri apre apriamo aprite aprono
    close, closes, closing, closed, chiudere, chiudendo, chiuso, chiudo chiudi chiude chiudiamo chiudete chiudono
    wash, washes, washing, washed, lavare, lavando, lavato, lavo lavi lava laviamo lavate lavano
    draw, draws, drawing, drew, disegnare, disegnando, disegnato, disegno disegni disegna disegniamo disegnate disegnano
    wear, wears, wearing, wore, indossare, indossando, indossato, indosso indossi indossa indossiamo indossate indossano
    look for, looks for, looking for, looked for, cercare, cercando, cercato, \
        cerco cerchi cerca cerchiamo cercate cercano
    find, finds, finding, found, trovare, trovando, trovato, trovo trovi trova troviamo trovate trovano
    lose, loses, losing, lost, perdere, perdendo, perso, perdo perdi perde perdiamo perdete perdono
    know, knows, knowing, knew, conoscere, conoscendo, conosciuto, \
        conosco conosci conosce conosciamo conoscete conoscono
    help, helps, helping, helped, aiutare, aiutando, aiutato, aiuto aiuti aiuta aiutiamo aiutate aiutano
    call, calls, calling, called, chiamare, chiamando, chiamato, chiamo chiami chiama chiamiamo chiamate chiamano
    wait for, waits for, waiting for, waited for, aspettare, aspettando, aspettato, \
        aspetto aspetti aspetta aspettiamo aspettate aspettano
    speak, speaks, speaking, spoke, parlare, parlando, parlato, parlo parli parla parliamo parlate parlano
    live, lives, living, lived, vivere, vivendo, vissuto, vivo vivi vive viviamo vivete vivono
    come, comes, coming, came, venire, venendo, venuto, vengo vieni viene veniamo venite vengono
    go, goes, going, went, andare, andando, andato, vado vai va andiamo andate vanno
    arrive, arrives, arriving, arrived, arrivare, arrivando, arrivato, arrivo arrivi arriva arriviamo arrivate arrivano
    leave, leaves, leaving, left, partire, partendo, partito, parto parti parte partiamo partite partono
    return, returns, returning, returned, tornare, tornando, tornato, torno torni torna torniamo tornate tornano
    sleep, sleeps, sleeping, slept, dormire, dormendo, dormito, dormo dormi dorme dormiamo dormite dormono
    work, works, working, worked, lavorare, lavorando, lavorato, lavoro lavori lavora lavoriamo lavorate lavorano
    study, studies, studying, studied, studiare, studiando, studiato, studio studi studia studiamo studiate studiano
    cook, cooks, cooking, cooked, cucinare, cucinando, cucinato, cucino cucini cucina cuciniamo cucinate cucinano
    sing, sings, singing, sang, cantare, cantando, cantato, canto canti canta cantiamo cantate cantano
    dance, dances, dancing, danced, ballare, ballando, ballato, ballo balli balla balliamo ballate ballano
    run, runs, running, ran, correre, correndo, corso, corro corri corre corriamo correte corrono
""")
HABITS = {
    "every day": "ogni giorno",
    "every morning": "ogni mattina",
    "every evening": "ogni sera",
    "every week": "ogni settimana",
    "on Sundays": "la domenica",
    "on Saturdays": "il sabato",
}
MOMENTS = {
    "yesterday": "ieri",
    "this morning": "stamattina",
    "today": "oggi",
    "on Monday": "lunedì",
    "on Friday": "venerdì",
    "two days ago": "due giorni fa",
}
PARTS_OF_HOUR = {
    "{} o'clock": "{}",
    "half past {}": "{} e mezza",
    "a quarter past {}": "{} e un quarto",
    "ten past {}": "{} e dieci",
}
GREETINGS = {
    "good morning": "buongiorno",
    "good evening": "buonasera",
    "good night": "buonanotte",
    "thank you": "grazie",
    "goodbye": "arrivederci",
    "hello": "ciao",
}
