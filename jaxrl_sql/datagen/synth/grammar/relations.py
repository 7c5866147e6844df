"""Relations between the tables of the generator's domains, in words for both ends of a foreign key.

The child is the table with the foreign key, the parent the table that it references. A line is
`child > parent: words before the parent | words before the children`: *employees working in the department*,
*departments that employ the employees*. Names are the first names of the tables in `domains_*.py`.
"""

from __future__ import annotations

from jaxrl_sql.datagen.synth.spec import Relation

_TEXT = """
company
  employee > department: working in | that employ
  evaluation > employee: given to | who received
retail
  order > customer: placed by | who placed
  order > product: for | that were bought in
bank
  account_holder > branch: registered at | that look after
  loan > account_holder: taken out by | who took out
  deposit > account_holder: made by | who made
insurance
  policy > agent: sold by | who sold
  claim > policy: filed on | with
shipping
  shipment > warehouse: sent from | that sent
  shipment > carrier: carried by | that carried
real_estate
  property > realtor: handled by | who handle
  viewing > property: of | with
restaurant
  dish > restaurant: served at | that serve
  chef > restaurant: working at | that employ
  booking > restaurant: at | with
car_dealer
  car > manufacturer: made by | that make
  sale > car: of | with
  sale > buyer: made to | with
software
  developer > team: on | with
  ticket > developer: assigned to | with
university
  professor > department: working in | with
  course > professor: taught by | who teach
  student > department: studying in | with
hospital
  doctor > ward: working in | with
  patient > doctor: treated by | who treat
  treatment > patient: given to | who received
school
  classroom > teacher: led by | who lead
  pupil > classroom: in | with
library
  book > author: written by | who wrote
  loan > book: of | with
  loan > member: made by | with
city_transit
  driver > line: working on | with
  stop > line: on | with
  trip > driver: driven by | who made
election
  candidate > district: running in | with
  candidate > party: nominated by | that nominated
  donation > candidate: made to | who received
police
  officer > precinct: serving at | with
  case_file > officer: handled by | who handle
weather
  weather_station > region: in | with
  measurement > weather_station: taken at | with
airline
  flight > airline: operated by | that operate
  flight > airport: leaving from | with
soccer
  player > club: playing for | with
  game > club: played by | that played
music
  album > artist: released by | who released
  song > album: on | with
film
  movie > director: directed by | who directed
  role > movie: in | with
  role > actor: played by | who played
hotel
  room > hotel: in | with
  stay > room: in | with
  stay > guest: booked by | with
museum
  artwork > museum: kept in | with
  artwork > artist: created by | who created
zoo
  animal > habitat: living in | with
  animal > keeper: looked after by | who look after
  feeding > animal: of | with
farm
  field > farm: on | with
  harvest > field: from | with
gym
  member > trainer: coached by | who coach
  workout > member: done by | with
conference
  conference > venue: held at | that hosted
  talk > conference: given at | with
  talk > speaker: given by | who gave
brewery
  beer > brewery: made by | that make
  tasting > beer: of | with
space
  mission > agency: run by | that run
  astronaut > mission: assigned to | with
  experiment > mission: carried out on | with
vineyard
  wine > vineyard: made by | that make
  barrel > vineyard: kept at | with
veterinary
  pet > veterinarian: treated by | who treat
  vaccination > pet: given to | that received
theater
  play > theater: shown at | that show
  performance > play: of | with
mining
  miner > mine: working in | with
  excavation > mine: in | with
bike_share
  bicycle > dock: parked at | with
  rental > bicycle: of | with
  rental > rider: made by | who made
"""


def parse_relations(text: str) -> dict[tuple[str, str, str], Relation]:
    """Return the relations by (domain, child, parent); raises ValueError for an invalid line."""
    relations: dict[tuple[str, str, str], Relation] = {}
    domain = ""
    for line in filter(None, text.splitlines()):
        if not line.startswith(" "):
            domain = line.strip()
            continue
        ends, phrases = line.strip().split(": ")
        child, parent = ends.split(" > ")
        of_child, of_parent = phrases.split(" | ")
        relations[domain, child, parent] = Relation(of_child, of_parent)
    return relations


RELATIONS = parse_relations(_TEXT)
"""The relations by (domain, child, parent)."""
