"""Define the values of text columns, and words that decorate the names of tables and columns.

A pool is a set of values for text columns, such as `city` or `company`; `text_value` returns a value of a pool. The
values of `SIMPLE` are single words, those of `TAILS` a word of `HEADS` (else a noun) and a second word, those of
`MAKERS` the results of functions. A pool of `MAKERS` may use words of the others. `DECORATION` and `AFFIX` are put
before and after names, and `ONSETS` and `RIMES` make invented syllables.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = """Ada Aiden Alma Amara Anders Anita Arjun Astrid Beatriz Bela Bruno Camille Carlos Chidi Clara Dalia
Daniel Daphne Diego Dmitri Edith Elena Elias Emeka Emma Enzo Esther Farah Felix Fiona Freya Gabriel Greta Gustav
Hana Hector Helena Hugo Ibrahim Ines Ingrid Isaac Ivan Jana Jasper Javier Jonas Julia Kaito Karim Katya Kofi
Lars Laura Leila Leo Lina Louis Lucia Magnus Mai Malik Marco Maria Mateo Maya Mila Milan Mona Nadia Nora Oleg
Olivia Omar Oscar Pablo Paula Pedro Petra Priya Quentin Rafael Rana Rosa Ruben Ruth Samir Sara Selma Simon Sofia
Sven Tamar Tara Theo Tomas Ursula Valeria Victor Wanda Wei Xenia Yara Yusuf Zara Zoe""".split()
LAST = """Abbott Acosta Adeyemi Almeida Andersen Arnaud Bakker Banerjee Barros Becker Bennett Berger Bianchi
Blake Borg Bose Carvalho Castillo Chang Chaudhry Cohen Costa Cruz Dahl Danso Delgado Dietrich Doyle Duarte
Eklund Elsayed Ericson Farouk Ferrari Fischer Fleming Fontaine Franco Fujita Gallo Garcia Gibson Gomez Grant
Haddad Hansen Hara Hassan Hayes Herrera Hoffman Horvat Hughes Ito Ivanov Jansen Jensen Johansson Kaplan Kaur
Keller Khan Kim Klein Kovacs Kumar Laine Larsen Lee Lehmann Lima Lopez Lund Maier Marin Martins Mensah Meyer
Mishra Moreau Mori Murphy Nakamura Ndiaye Nielsen Novak Okafor Olsen Ortega Osei Park Patel Pereira Petrov Pinto
Quinn Ramos Rao Reyes Ricci Rivera Rojas Romano Rossi Roux Russo Sato Schmidt Serrano Shah Silva Singh Sousa
Stone Suzuki Tanaka Torres Vargas Vega Vogel Walsh Weber Wong Yamada Yilmaz Young Zhang Zimmer""".split()
CITY = """Accra Adelaide Amman Antwerp Athens Austin Baku Basel Bergen Berlin Bilbao Bogota Boston Bristol Cairo
Calgary Casablanca Chicago Cologne Cork Dakar Dallas Delhi Denver Dublin Durban Florence Geneva Genoa Ghent
Glasgow Granada Graz Halifax Hamburg Hanoi Havana Helsinki Houston Istanbul Izmir Jakarta Kyoto Lagos Leeds Lima
Lisbon London Lyon Madrid Malmo Manila Marseille Melbourne Miami Milan Montreal Mumbai Munich Nairobi Naples
Nice Osaka Oslo Ottawa Paris Perth Porto Prague Quito Riga Rome Rotterdam Santiago Sapporo Seattle Seoul Seville
Singapore Sofia Split Stockholm Sydney Taipei Tallinn Toronto Toulouse Tunis Turin Utrecht Valencia Vienna
Vilnius Warsaw Zagreb Zurich""".split()
COUNTRY = """Argentina Australia Austria Belgium Brazil Bulgaria Canada Chile China Colombia Croatia Denmark
Ecuador Egypt Estonia Finland France Germany Ghana Greece Hungary Iceland India Indonesia Ireland Israel Italy
Jamaica Japan Kenya Latvia Malaysia Mexico Morocco Nepal Nigeria Norway Pakistan Peru Philippines Poland
Portugal Romania Senegal Serbia Spain Sweden Switzerland Thailand Tunisia Turkey Uruguay Vietnam Zambia""".split()
ADJECTIVE = """Amber Ancient Arctic Autumn Blue Brave Bright Broken Calm Clever Copper Crimson Crystal Distant
Eager Early Eastern Electric Emerald Endless Fading Fallen Final First Frozen Gentle Ghostly Golden Grand Green
Happy Hidden Hollow Humble Idle Iron Ivory Jolly Last Lonely Lost Lucky Marble Midnight Misty Modern Noble
Northern Old Orange Pale Perfect Polar Proud Purple Quiet Rapid Red Restless Royal Rusty Sacred Scarlet Secret
Shining Silent Silver Simple Sleepy Slow Solar Southern Spare Steady Stone Stormy Sunny Swift Tender Tiny Twin
Velvet Violet Warm Western White Wild Winter""".split()
NOUN = """Anchor Anvil Apple Arrow Badger Bay Beacon Bell Birch Bridge Brook Canyon Castle Cedar Cliff Clock
Cloud Comet Compass Coral Crane Creek Crown Dawn Desert Dream Eagle Echo Ember Engine Falcon Feather Field Fire
Flame Forest Forge Fountain Fox Garden Gate Harbor Harvest Hawk Heart Hill Horizon Horse Island Journey Kettle
Kingdom Lake Lamp Lantern Leaf Letter Lion Map Maple Meadow Memory Mill Mirror Moon Mountain Oak Ocean Orchard
Otter Owl Paper Path Pearl Pine Planet Poppy Promise Raven Reef Ridge River Road Rose Sail Shadow Shore Sky
Spring Square Star Stone Storm Summer Thorn Thunder Tiger Tower Trail Tree Valley Voyage Wave Wheel Willow Wind
Window Wolf""".split()
SIMPLE = {
    "department": """Accounting Marketing Logistics Research Legal Purchasing Sales Security Engineering Design
    Payroll Training Quality Audit Production Planning Facilities Strategy Compliance Analytics""".split(),
    "academic": """Physics Chemistry Biology History Philosophy Economics Linguistics Mathematics Geology
    Sociology Psychology Astronomy Statistics Anthropology Medicine Architecture Music Law Botany Classics""".split(),
    "ward": """Cardiology Maternity Oncology Pediatrics Surgery Neurology Emergency Orthopedics Dermatology
    Urology Radiology Geriatrics Psychiatry Recovery Hematology Endocrinology Rehabilitation Burns Trauma
    Infectious""".split(),
    "course": """Algebra Calculus Mechanics Optics Genetics Ethics Logic Rhetoric Finance Statistics Robotics
    Drawing Ecology Anatomy Grammar Programming Topology Acoustics Cartography Archaeology Thermodynamics
    Poetry""".split(),
    "petname": """Apollo Bandit Bella Biscuit Bruno Buddy Caramel Casper Charlie Chester Cleo Coco Cookie Daisy
    Dexter Domino Duke Ginger Gizmo Hazel Honey Hunter Jasper Juno Kiki Leo Lola Luna Maggie Mango Max Milo
    Misty Mocha Nala Nero Olive Oreo Panda Peanut Pepper Pippin Pixie Pumpkin Rex Rocky Romeo Rusty Sasha Scout
    Shadow Simba Smokey Socks Stella Tango Teddy Tigger Toby Waffles Willow Ziggy Zorro""".split(),
    "brandmodel": """Aero Astra Bolt Cobra Comet Corsa Delta Falcon Focus Fury Galaxy Jet Lynx Meteor Nomad Nova
    Orion Panther Pulse Ranger Rapid Raptor Rio Rover Sierra Sonata Spark Tempo Titan Vista Zephyr""".split(),
    "dishbase": """Curry Stew Soup Salad Pasta Risotto Pie Burger Taco Noodles Omelette Pancake Dumplings
    Casserole Sandwich Tart Pudding Roast Chowder Kebab""".split(),
    "flavor": """Lemon Ginger Garlic Mushroom Tomato Coconut Pumpkin Spinach Lentil Chicken Salmon Beef Almond
    Cherry Mango Pepper Onion Cheese Walnut Apple Honey Basil""".split(),
    "place": """Abbey Ashford Bayview Brookside Clearwater Cliffside Crossroads Eastgate Elmwood Fairview
    Glenmore Greenfield Hillcrest Kingsway Lakeside Lakeview Meadowbrook Millbrook Northgate Oakridge Parkside
    Pinewood Ridgeway Riverbend Riverside Rosewood Seaview Silverton Southgate Springfield Stonebridge Sunnyside
    Valleyview Westfield Whitestone Willowdale Windmere Woodland Hartwell Langley Thornbury Ravenswood""".split(),
}
TAILS = {
    "company": ("Group Works Partners Labs Systems Trading Industries Holdings Brothers Motors Foods Media".split()),
    "hall": "Hall House Arena Center Theatre Pavilion Court".split(),
    "street": "Street Avenue Lane Road Drive Square Way".split(),
    "district": "Heights District Quarter Park Village Valley Hills Point".split(),
    "eatery": "Table Kitchen Inn House Tavern Garden Corner Lodge".split(),
    "club": "United Rovers City Athletic Rangers Wanderers Albion".split(),
    "partyname": "Alliance Union Party Front Movement League Congress".split(),
    "eventname": "Summit Forum Congress Expo Symposium Days Meeting".split(),
    "talktitle": "Methods Models Futures Lessons Patterns Limits Systems Signals".split(),
    "product": "Chair Lamp Kettle Mug Bottle Tent Puzzle Desk Clock Basket Blanket Knife Shelf Backpack".split(),
    "casetitle": "Robbery Affair Mystery Heist File Theft".split(),
    "tickettitle": "Crash Timeout Leak Typo Warning Freeze Request Regression Delay Failure Glitch Outage".split(),
}
DECORATION = """harbor rated spare inner outer upper lower main prime extra basic central coastal summer winter
early late final draft gross net peak base raw fixed mobile local global public private annual weekly daily
monthly legal native foreign rural urban custom hidden visible linked paired double triple single broad narrow
steep shallow rough smooth solid liquid metal wooden plastic glass paper cotton silk stone copper silver golden
amber violet orange crimson olive signal anchor bridge canal castle cellar corner corridor desert dome engine
feather filter forest fountain garden gate glacier hammer hinge island jacket kettle ladder lagoon lantern
ledger lever magnet marble market meadow mirror mountain needle orchard panel pepper pillar pocket prairie
quartz rabbit ribbon river rocket saddle sail salmon shadow shelter socket spiral statue stove sugar tablet
temple thread thunder ticket timber tower tunnel turbine valley velvet vessel village walnut wagon willow window
yarn zinc alpha beta gamma delta sigma omega lunar solar polar tidal seismic thermal optic sonic nominal target
actual planned expected revised previous current initial adjusted relative absolute total partial shared joint
common special regular official unofficial internal external domestic overseas northern southern eastern western
former junior senior minor major direct indirect remote nearby temporary permanent seasonal digital manual
automatic electric hybrid organic chemical nuclear mineral botanic marine aerial ground deep surface quick slow
heavy light dense sparse fresh frozen dry wet hot cold mild sharp blunt round square oval flat curved hollow
twin linear cyclic random ranked sorted packed sealed open closed locked active passive idle busy quiet loud
bright dark pale vivid plain fancy""".split()
AFFIX = """code index level ratio mark grade label value figure factor note tag share class band unit measure
estimate total reading amount entry record flag group kind field slot""".split()


def _title(rng: random.Random) -> str:
    pattern = rng.randrange(4)
    if pattern == 0:
        return f"{rng.choice(NOUN)} of {rng.choice(NOUN)}"
    return f"The {_pair(rng)}" if pattern == 1 else _pair(rng)


def _pair(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVE)} {rng.choice(NOUN)}"


def _email(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)}.{rng.choice(LAST)}@mail.{rng.choice(('com', 'org', 'net'))}".lower()


def _talk(rng: random.Random) -> str:
    subject = f"{rng.choice(SIMPLE['course'])} {rng.choice(TAILS['talktitle'])}"
    return subject if rng.random() < 0.3 else f"{rng.choice(ADJECTIVE)} {subject}"


def _course(rng: random.Random) -> str:
    subject = rng.choice(SIMPLE["course"])
    return subject if rng.random() < 0.2 else f"{rng.choice(('Applied', 'Basic', 'Modern', 'Practical'))} {subject}"


def _pet(rng: random.Random) -> str:
    name = rng.choice(SIMPLE["petname"])
    return name if rng.random() < 0.2 else f"{rng.choice(ADJECTIVE)} {name}"


def _car(rng: random.Random) -> str:
    return f"{rng.choice(SIMPLE['brandmodel'])} {rng.choice(('', 'Sport ', 'Grand '))}{rng.randrange(1, 10)}"


ONSETS = "b c d f g h k l m n p qu r s t v w z br cl dr fl gr pl sh sl st tr ch th".split()
RIMES = "a e i o u ar el in or um an ix ast end ill ock urn ade ine ope".split()
CODE_LETTERS = "ABCDEFGHKLMNPRSTVXZ"
MAKERS: dict[str, Callable[[random.Random], str]] = {
    "person": lambda rng: f"{rng.choice(FIRST)} {rng.choice(LAST)}",
    "city": lambda rng: rng.choice(CITY),
    "country": lambda rng: rng.choice(COUNTRY),
    "title": _title,
    "missionname": _pair,
    "teamname": _pair,
    "email": _email,
    "website": lambda rng: f"www.{rng.choice(LAST)}{rng.choice(NOUN)}.com".lower(),
    "phone": lambda rng: f"{rng.randrange(200, 1000)}-{rng.randrange(1000, 10000)}",
    "code": lambda rng: f"{rng.choice(CODE_LETTERS)}{rng.randrange(100, 1000)}",
    "room": lambda rng: f"{rng.choice(CODE_LETTERS)}{rng.randrange(1, 60)}",
    "dish": lambda rng: f"{rng.choice(SIMPLE['flavor'])} {rng.choice(SIMPLE['dishbase'])}",
    "carmodel": _car,
    "talktitle": _talk,
    "course": _course,
    "petname": _pet,
}
HEADS = {"company": LAST, "club": CITY, "product": ADJECTIVE, "partyname": ADJECTIVE}


def text_value(rng: random.Random, pool: str) -> str:
    """Return a random value of a pool; raises KeyError for an unknown pool."""
    if pool in MAKERS:
        return MAKERS[pool](rng)
    if pool in TAILS:
        return f"{rng.choice(HEADS.get(pool, NOUN))} {rng.choice(TAILS[pool])}"
    return rng.choice(SIMPLE[pool])
