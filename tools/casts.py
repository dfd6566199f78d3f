"""The people, places, drugs, dates and amounts that fill the sentences of the demo corpus.

A *cast* is three principals of one setting who are easily confused: same firm, same drug, same kind of dispute, other
figures. Casts are drawn with `random.Random`, whose sequence for a text seed is the same on every supported Python.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Slots = dict[str, str]

SHE = [
    "Marta", "Ines", "Hanne", "Zeynep", "Orla", "Chidinma", "Brigitte", "Salome", "Tamsin", "Yuki", "Farah",
    "Ottilie", "Nadia", "Pernille", "Rosalind", "Agnieszka", "Camila", "Delphine", "Eszter", "Fatou", "Greta",
    "Hedda", "Ilse", "Joana", "Katarzyna", "Linnea", "Mireille", "Noor", "Oona", "Priya", "Roisin", "Solveig",
    "Thandi", "Ursula", "Valentina", "Wiebke", "Ximena", "Yasmin", "Zofia", "Amara",
]  # fmt: skip
HE = [
    "Anton", "Bertil", "Cormac", "Dario", "Emeka", "Fergus", "Gustav", "Hamid", "Ivo", "Joaquim", "Kofi", "Lorcan",
    "Matteo", "Nikolai", "Oskar", "Piotr", "Quentin", "Rashid", "Stellan", "Tomasz", "Umberto", "Viktor", "Wenzel",
    "Yaw", "Zoltan", "Alasdair", "Benno", "Cheng", "Dafydd", "Elio", "Florin", "Goran", "Henrik", "Ismael", "Jussi",
    "Karel", "Laszlo", "Milo", "Nils", "Osman",
]  # fmt: skip
LAST = [
    "Abernathy", "Brandt", "Castellano", "Drummond", "Ekwueme", "Farrow", "Grzybek", "Halloran", "Ibsen",
    "Jankowski", "Kessler", "Lindqvist", "Moreau", "Nwosu", "Okafor", "Pellegrini", "Quist", "Rautio", "Szabo",
    "Thackeray", "Ueda", "Vandermeer", "Whitlock", "Yilmaz", "Zander", "Ashdown", "Baptiste", "Corrigan",
    "Dimitrov", "Elstob", "Fontaine", "Gallagher", "Hussain", "Ivarsson", "Joubert", "Kowalczyk", "Laurent",
    "Mbeki", "Nystrom", "Oyelaran", "Petrov", "Rasmussen", "Sandoval", "Tierney", "Ulrich", "Varga", "Wexford",
    "Yamada", "Zielinski", "Achterberg",
]  # fmt: skip
CITIES = [
    "Leeds", "Utrecht", "Cork", "Bergen", "Graz", "Porto", "Ghent", "Aarhus", "Turin", "Bristol", "Lyon", "Gdansk",
    "Tampere", "Leipzig", "Girona",
]  # fmt: skip
STREETS = [
    "Tanner Street", "Old Ferry Road", "Mill Lane", "Saint Vitus Row", "Harbour Steps", "Copper Street",
    "Larch Avenue", "Station Parade", "Weaver's Yard", "Chapel Hill", "Canal Side", "Quarry Road",
    "Plum Tree Walk", "Bishop's Gate", "Little Market", "Sandpit Lane", "Observatory Road", "Glassworks Street",
]  # fmt: skip
PLACES = ["swimming baths", "old brewery", "planetarium", "lock house", "town library", "ice rink", "corn exchange"]


def _pounds(amount: float) -> str:
    return f"£{amount:,.0f}"


class _People:
    """Names without repetition, so that nobody in a cast is taken for somebody else by accident."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._she, self._he, self._last = (rng.sample(pool, len(pool)) for pool in (SHE, HE, LAST))

    def first(self, woman: bool | None = None) -> str:
        """Return a first name; of either kind unless told."""
        if woman is None:
            woman = self._rng.random() < 0.5
        return self._she.pop() if woman else self._he.pop()

    def last(self) -> str:
        """Return a family name."""
        return self._last.pop()

    def full(self, woman: bool | None = None) -> str:
        """Return first name and family name."""
        return f"{self.first(woman)} {self.last()}"


def _first(name: str) -> str:
    return name.split()[0]


def _phone(rng: Random) -> str:
    return f"0{rng.randint(20, 79)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}"


def _address(rng: Random) -> str:
    return f"{rng.randint(2, 148)} {rng.choice(STREETS)}"


WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]


def _oddments(rng: Random) -> Slots:
    """Draw small numbers, days and hours for the sentences that name nobody."""
    first, second = rng.sample(WEEKDAYS, 2)
    return {
        "wd1": first,
        "wd2": second,
        "n2": rng.choice(["two", "three", "four", "five"]),
        "n3": rng.choice(["six", "seven", "eight", "nine"]),
        "frac": rng.choice(["a third", "a quarter", "two fifths"]),
        "frac2": rng.choice(["just over half", "more than half", "two thirds", "three quarters"]),
        "hr": rng.choice(["seven", "half past seven", "eight", "half past eight", "nine"]),
        "hr2": rng.choice(["noon", "half past twelve", "ten past one"]),
        "place": rng.choice(PLACES),
        "sportname": rng.choice(["handball", "judo", "rowing", "netball", "gymnastics"]),
        "drugname": rng.choice(["Penicillin", "Latex", "Ibuprofen", "Aspirin", "Naproxen"]),
    }


TRADES = (
    ["{}'s Bakery", "{} and Daughters, Bakers", "The {} Bakehouse", "{} Loaves"],
    ["{} Dental", "{} and Partner, Dentists", "The {} Dental Practice", "{} Dental Rooms"],
    ["{} Joinery", "{} and Sons, Stairs", "{} Kitchens", "The {} Workshop"],
)
BANKS = ["Penmarsh Bank", "Calder Mutual", "Northern Savings", "Harbour Bank", "Tillman and Co", "Union Credit"]
SOFTWARE = ["Ledgerly", "Sumtime", "Tallow Books", "Abacus Nine", "Quillbook", "Crossfoot"]
SUPPLIERS = [
    "Pardoe Wholesale", "Greaves and Son", "Lowland Supplies", "Marchetti Trade", "Kiln Lane Stores",
    "Ostler Packaging", "Vance Materials", "Brook Street Trading", "Sturridge Fittings",
]  # fmt: skip
DEBTORS = ["the Grand Hotel", "Ashby Catering", "the rowing club", "Fennimore Events", "the council", "Peake Homes"]
VANS = ["a white Transit", "a blue Kangoo", "a grey Vito", "a green Caddy"]
PAYDAYS = ["19th", "20th", "22nd", "25th", "26th", "28th"]


def company(rng: Random) -> list[Slots]:
    """Draw three clients of one bookkeeping practice."""
    people = _People(rng)
    team = {role: people.full() for role in ("am", "am0", "clerk", "hr", "mk", "qa")}
    soft, banks = rng.sample(SOFTWARE, 4), rng.sample(BANKS, 4)
    return [{**team, **_oddments(rng), **_client(rng, people, place, soft, banks)} for place in range(3)]


def _client(rng: Random, people: _People, place: int, soft: list[str], banks: list[str]) -> Slots:
    owner, fee, vat = people.full(), rng.randrange(340, 620, 5), rng.randrange(3100, 9400)
    salary, limit = rng.randrange(24_000, 33_000, 250), rng.choice([250, 400, 500, 750])
    debt, wip, day = rng.randrange(1900, 7800, 10), rng.randrange(14_000, 31_000, 100), rng.randrange(180, 420, 10)
    suppliers, pays = rng.sample(SUPPLIERS, 2), rng.sample(PAYDAYS, 2)
    return {
        "tenant": rng.choice(TRADES[place]).format(people.last()),
        "owner": owner,
        "owner_f": _first(owner),
        "ops": people.full(woman=True),
        "ops2": people.full(),
        "emp1": people.full(),
        "emp2": people.full(),
        "emp3": people.full(),
        "friend": people.full(woman=False),
        "kid": people.first(),
        "phone1": _phone(rng),
        "fee1": _pounds(fee),
        "fee2": _pounds(fee + rng.choice([35, 45, 60])),
        "fee3": _pounds(fee + rng.choice([95, 110, 140])),
        "floor": _pounds(fee - rng.choice([30, 45, 70])),
        "city": rng.choice(CITIES),
        "street": rng.choice(STREETS),
        "pay1": pays[0],
        "pay2": pays[1],
        "payx": rng.choice(["17th", "18th", "21st"]),
        "n1": rng.choice(["three", "four", "five"]),
        "sal1": _pounds(salary),
        "sal2": _pounds(salary + rng.randrange(1250, 3250, 250)),
        "bank1": banks[place],
        "bank2": banks[(place + 1) % 4],
        "acc1": str(rng.randint(1000, 9999)),
        "acc2": str(rng.randint(1000, 9999)),
        "vat1": _pounds(vat),
        "vat2": _pounds(vat + rng.randrange(260, 1400)),
        "vate": _pounds(round(vat * 1.3, -2)),
        "soft1": soft[place],
        "soft2": soft[place + 1],
        "lim1": _pounds(limit),
        "lim2": _pounds(limit + rng.choice([250, 500, 1000])),
        "supp1": suppliers[0],
        "supp2": suppliers[1],
        "debtor": rng.choice(DEBTORS),
        "debt1": _pounds(debt),
        "debt2": _pounds(rng.randrange(60, 240, 10)),
        "saved": _pounds(rng.randrange(2000, 9000, 500)),
        "pin": str(rng.randint(1000, 9999)),
        "rent": _pounds(rng.randrange(2400, 5200, 50)),
        "van": rng.choice(VANS),
        "lease": _pounds(rng.randrange(380, 960, 10)),
        "till": _pounds(rng.randrange(700, 1900, 20)),
        "polno": str(rng.randint(100, 999)),
        "loc1": _pounds(day),
        "loc2": _pounds(day + rng.choice([40, 50, 65])),
        "grant": _pounds(rng.randrange(2000, 6500, 250)),
        "wip1": _pounds(wip),
        "wip2": _pounds(wip - rng.randrange(2000, 9000, 100)),
    }


# Strengths are plausible ladders, nothing more: these patients do not exist and nothing here is advice.
LADDERS = {
    "carbamazepine": ("mg", [(100, 200, 400, 300), (200, 400, 800, 600), (200, 300, 600, 500)]),
    "lamotrigine": ("mg", [(25, 50, 100, 75), (50, 100, 200, 150), (25, 75, 150, 125)]),
    "levothyroxine": ("micrograms", [(25, 50, 100, 75), (50, 75, 125, 112), (50, 88, 125, 100)]),
    "phenytoin": ("mg", [(100, 200, 300, 250), (150, 200, 300, 275), (100, 150, 250, 200)]),
    "lithium carbonate": ("mg", [(200, 400, 800, 600), (400, 600, 1000, 800), (200, 300, 600, 400)]),
}
NIGHT = {"mirtazapine": (7.5, 15), "trazodone": (50, 100), "amitriptyline": (10, 25), "doxepin": (10, 25)}
PAINKILLERS = ["ibuprofen", "naproxen", "diclofenac", "ketoprofen"]
ALLERGENS = ["amoxicillin", "co-trimoxazole", "ciprofloxacin", "clindamycin", "cefuroxime", "doxycycline"]
STUDIES = ["LANTERN", "HEDGEROW", "NIGHTJAR", "TIDEMARK", "OXBOW", "SALTMARSH"]
TESTS = ["hepatitis B test", "tuberculosis test", "hepatitis C test", "genetic test"]
SECRETS = [
    "the accident on the lake road", "the brother nobody mentions", "the winter the shop failed",
    "the year in hospital as a child", "the letter that was never answered", "the fire in the bakery",
]  # fmt: skip
TEEN = [
    ("the June exams and what happens if they go wrong", "JUNE"),
    ("a friend who has stopped eating", "LUNCH"),
    ("smoking behind the boathouse", "BOATHOUSE"),
    ("having to change schools again", "AGAIN"),
]


def medication(rng: Random) -> list[Slots]:
    """Draw three patients of one clinic who are on the same two drugs at different doses."""
    people = _People(rng)
    staff = {role: people.full() for role in ("nurse", "phar", "rs", "rec", "th", "qa", "doc")}
    drug, night, study = rng.choice(list(LADDERS)), rng.choice(list(NIGHT)), rng.choice(STUDIES)
    shared = {**staff, "drug": drug, "drug2": night, "study": study, "old": rng.choice(PAINKILLERS)}
    shared["doc"] = f"Dr {shared['doc']}"
    order = rng.sample(range(3), 3)
    return [
        {**shared, **_oddments(rng), **_patient(rng, people, place, drug, night, order[place])} for place in range(3)
    ]


def _patient(rng: Random, people: _People, place: int, drug: str, night: str, ladder: int) -> Slots:
    unit, steps = LADDERS[drug][0], LADDERS[drug][1][ladder]
    woman = place == 2 or rng.random() < 0.5
    first, last = people.first(woman), people.last()
    kin = [
        f"the {'daughter' if rng.random() < 0.5 else 'son'}",
        f"{people.first(woman=True)}, the mother",
        "the husband",
    ]
    weight = [rng.uniform(58, 91), rng.uniform(41, 60), rng.uniform(57, 84)][place]
    filtration = rng.randint(58, 74)
    worry, word = rng.choice(TEEN)
    upper = rng.randint(128, 152)
    return {
        "tenant": f"{first} {last}",
        "p": first,
        "pl": last,
        "age": str([rng.randint(71, 86), rng.randint(14, 16), rng.randint(28, 39)][place]),
        "he": "she" if woman else "he",
        "him": "her" if woman else "him",
        "rel": kin[place].split(",")[0],
        "Rel": kin[place].split(",")[0].replace("the ", "The "),
        "gp": f"Dr {people.full()}",
        "gp2": f"Dr {people.full()}",
        "street": rng.choice(STREETS),
        **{f"d{step}": f"{dose} {unit}" for step, dose in enumerate(steps, 1)},
        "dx": f"{steps[2] + steps[0]} {unit}",
        "e1": f"{NIGHT[night][0]:g} mg",
        "e2": f"{NIGHT[night][1]:g} mg",
        "o1": f"{rng.choice([200, 250, 400, 500])} mg",
        "allergen": rng.choice(ALLERGENS),
        "w1": f"{weight:.1f}",
        "w2": f"{weight + rng.choice([-2.6, -1.4, 1.2, 2.3]):.1f}",
        "bp1": f"{upper + rng.randint(6, 14)}/{rng.randint(82, 94)}",
        "bp2": f"{upper - rng.randint(4, 9)}/{rng.randint(70, 81)}",
        "egfr1": str(filtration),
        "egfr2": str(filtration - rng.randint(9, 15)),
        "egfrx": str(filtration - rng.randint(20, 27)),
        "topic1": rng.choice(SECRETS),
        "topic2": worry,
        "topic2short": word,
        "q1": str(rng.randint(3, 5)),
        "q2": str(rng.randint(6, 8)),
        "test": rng.choice(TESTS),
        "years": rng.choice(["four", "six", "nine", "eleven"]),
        "batch": f"{rng.choice('KLMR')}{rng.randint(1000, 9999)}",
        "inr1": f"{rng.uniform(3.3, 3.9):.1f}",
        "inr2": f"{rng.uniform(2.2, 2.8):.1f}",
        "baby": people.first(),
    }


MATTERS = (
    [
        ("{} Lifts", "the dismissal of its night-shift foreman"),
        ("{} Logistics", "the dismissal of a depot head"),
        ("{} Foods", "the dismissal of a shop steward"),
    ],
    [
        ("{} Latches", "a spring that both sides claim to have invented"),
        ("{} Tools", "the spring in a pruning saw"),
        ("{} Prams", "a folding spring and who drew it first"),
    ],
    [
        ("{} Seafood", "a cargo of prawns that arrived soft"),
        ("{} Cold Chain", "frozen prawns that were not frozen"),
        ("{} Provisions", "a thawed shipment of prawns"),
    ],
)
OPPONENTS: tuple[list[str], ...] = (
    [],
    ["{} Hardware", "{} Mechanisms", "{} Industrial", "{} Springs"],
    ["the {} Line", "{} Carriers", "{} Shipping", "{} Reefer"],
)


def legal(rng: Random) -> list[Slots]:
    """Draw three matters of one firm: a dismissal, a patent, a spoilt cargo."""
    people = _People(rng)
    team = {role: people.full() for role in ("part", "assoc", "assoc0", "para", "ins", "pr", "exp0", "exp")}
    team["judge"], team["city"] = people.last(), rng.choice(CITIES)
    return [{**team, **_oddments(rng), **_matter(rng, people, place)} for place in range(3)]


def _matter(rng: Random, people: _People, place: int) -> Slots:
    firm, subject = rng.choice(MATTERS[place])
    client = firm.format(people.last())
    employee, rate = people.full(woman=False), rng.randrange(290, 420, 10)
    damage, offer, odds = rng.randrange(410, 890, 5), rng.randrange(90, 180, 5), rng.randrange(55, 75, 5)
    costs, documents, rooms = rng.randrange(31, 58), rng.randint(640, 2900), rng.sample(range(2, 19), 2)
    return {
        "tenant": client,
        "client": client,
        "subject": subject,
        "opp": rng.choice(OPPONENTS[place]).format(people.last()) if place else employee,
        "emp": employee,
        "gc": people.full(),
        "staff": people.full(),
        "fileno": f"{rng.randint(20, 99)}/{rng.randint(100, 999)}",
        "r1": _pounds(rate),
        "r1a": _pounds(rate - rng.choice([110, 120, 130])),
        "r2": _pounds(rate + 30),
        "r2a": _pounds(rate - rng.choice([85, 90, 95])),
        "cap": _pounds(rng.randrange(60_000, 120_000, 5000)),
        "room1": str(rooms[0]),
        "room2": str(rooms[1]),
        "dam1": _pounds(damage * 1000),
        "dam2": _pounds(damage * 1000 - rng.randrange(90_000, 180_000, 1000)),
        "odds": str(odds),
        "odds2": str(odds - rng.choice([15, 20, 25])),
        "off1": _pounds(offer * 1000),
        "off2": _pounds(offer * 1000 + rng.randrange(25_000, 70_000, 5000)),
        "auth": _pounds(offer * 1000 + rng.randrange(80_000, 120_000, 5000)),
        "wit": people.full(),
        "waddr": _address(rng),
        "docs1": f"{documents:,}",
        "docs2": f"{documents + rng.randint(180, 700):,}",
        "privn": str(rng.randint(31, 94)),
        "oc0": f"{people.last()} and Partners",
        "oc": people.full(),
        "costs0": _pounds(costs * 1000 - rng.randrange(12_000, 22_000, 500)),
        "costs": _pounds(costs * 1000 + rng.randrange(8000, 19_000, 250)),
        "disb": _pounds(rng.randrange(9000, 21_000, 500)),
        "medi": people.full(woman=True),
        "kid": people.full(woman=False),
    }


FIRMS = ["Hollis Maps", "the water board", "Trentham Print", "Ferrier Lenses", "the tram depot", "Amberley Clocks"]
SPORTS = ["Ringside", "the boathouse", "Studio Nine", "the climbing hall", "Ironbridge", "the tennis barn"]
POWER = ["Greenfell", "Volta Direct", "Hearth Energy", "Riverlight", "Ampere and Sons"]
FOODS = ["Purrfection Turkey", "Moor Farm Rabbit", "Old Tom Chicken", "Renal Blue", "Duchess Duck", "Cat's Choice"]
CATS = ["Biscuit", "Inspector", "Mildred", "Pepper", "Schmidt", "Tuesday", "Olive"]
GIFTS = ["a brass telescope", "a darkroom lamp", "a sourdough crock", "a folding kayak seat", "a second-hand banjo"]
SONGS = ["Blue Harbour", "The Last Tram", "Paper Boats", "Wait for October", "Sister Rain"]
WORDS = ["gooseberry", "lighthouse", "marzipan", "thimble", "periscope", "tarpaulin"]
TAXIS = ["one seat, eleven minutes", "fourteen minutes, cash", "night rate, nine minutes"]


def personal(rng: Random) -> list[Slots]:
    """Draw three people who share one assistant service and some of their habits."""
    pools = {
        "firm": rng.sample(FIRMS, 4),
        "sp": rng.sample(SPORTS, 4),
        "pow": rng.sample(POWER, 4),
        "tin": rng.sample(FOODS, 4),
        "gift": rng.sample(GIFTS, 4),
    }
    people = _People(rng)
    return [{**_oddments(rng), **_person(rng, people, place, pools)} for place in range(3)]


def _person(rng: Random, people: _People, place: int, pools: dict[str, list[str]]) -> Slots:
    full = rng.choice(["Alexandra", "Maximilian", "Bernadette", "Josephine", "Theodora", "Christopher", "Frederica"])
    short = {"Alexandra": "Alex", "Maximilian": "Max", "Bernadette": "Bernie", "Josephine": "Jo"}
    short |= {"Theodora": "Teddy", "Christopher": "Kit", "Frederica": "Freddie"}
    last, pay = people.last(), rng.randrange(2700, 4400, 50)
    birthday = rng.choice(["9th of November", "23rd of August", "2nd of October", "17th of September"])
    power = rng.randint(61, 95)
    return {
        "tenant": f"{full} {last}",
        "p": short[full],
        "plong": full,
        "pl": last,
        "partner": people.first(),
        "exf": people.first(),
        "friend": people.first(woman=True),
        "kid": people.first(),
        "sit": people.full(),
        "boss": people.full(),
        "neigh": f"{rng.choice(['Mrs', 'Mr'])} {people.last()}",
        "teach": people.last(),
        "addr1": _address(rng),
        "addr2": _address(rng),
        "addrx": _address(rng),
        "taxi": rng.choice(TAXIS),
        "ph1": _phone(rng),
        "ph2": _phone(rng),
        "code1": f"{rng.randint(1000, 9999)}",
        "code2": f"{rng.randint(1000, 9999)}",
        "word": rng.choice(WORDS),
        "sp1": pools["sp"][place],
        "sp2": pools["sp"][place + 1],
        "firm1": pools["firm"][place],
        "firm2": pools["firm"][place + 1],
        "sal2": f"{_pounds(pay)} a month",
        "debt": _pounds(rng.randrange(150, 900, 25)),
        "years": rng.choice(["four", "five", "seven", "eight"]),
        "song": rng.choice(SONGS),
        "gift0": pools["gift"][place],
        "gift": pools["gift"][place + 1],
        "city": rng.choice(CITIES),
        "street": rng.choice(STREETS),
        "bd": birthday,
        "pow1": pools["pow"][place],
        "pow2": pools["pow"][place + 1],
        "el1": _pounds(power),
        "el2": _pounds(power + rng.randint(7, 19)),
        "dent1": f"Dr {people.last()}",
        "dent2": f"Dr {people.last()}",
        "cat": rng.choice(CATS),
        "tin1": pools["tin"][place],
        "tin2": pools["tin"][place + 1],
        "cls": f"{rng.randint(2, 4)}{rng.choice('abc')}",
    }


CASTS: dict[str, Callable[[Random], list[Slots]]] = {
    "company": company,
    "medication": medication,
    "legal": legal,
    "personal": personal,
}
"""Setting -> function that draws three principals; the settings are the sources of the corpus."""
