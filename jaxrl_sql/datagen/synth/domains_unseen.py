"""List the domains that only `dev_unseen` uses, in the notation that `notation.parse_domains` reads."""

TEXT = """
== brewery
brewery/taproom/beer_maker 30
  name/brewery_name @eatery; city/town @city; founded_year/established year 1790 2020
  yearly_output/production/barrels int 300 90000
  brewmaster/master_brewer @person; ownership/business_form {family,cooperative,corporate,monastery}
  has_tours/has_cellar bool; tanks/tank_count int 2 40
beer/brew/ale 260 >brewery
  name/beer_name/brew_name @product; style/beer_style/variety {stout,pilsner,porter,lambic,saison,bock}
  alcohol/alcohol_percent/strength real 0 13
  bitterness/bitterness_units int 5 110; price/bottle_price real 1 18; launched_on/release_date date 2005 2023
  hops/hop_variety? {cascade,saaz,citra,fuggle}
  is_seasonal/is_filtered bool; awards/medals int 0 9
tasting/sampling/beer_review 700 >beer
  taster/judge/reviewer @person; score/taste_score/mark real 1 10; tasted_on/tasting_date date 2018 2023
  aroma/smell {fruity,malty,smoky,floral}
  ounces/glass_size int 2 22; remark? {crisp,flat,balanced,sour}
== space
agency/space_agency/program 14
  name/agency_name @company; country/home_country @country; budget/yearly_funding int 90 9000
  founded_year/created year 1950 2015
  scientists/staff_count int 90 9000; launch_sites/site_count int 0 6; sector {public,private,joint}
mission/spaceflight/expedition 180 >agency
  name/mission_name @missionname; launch_date/launched_on/liftoff_date date 1985 2023
  cost/mission_cost/price int 9 3000
  target/destination/celestial_body {moon,mars,venus,asteroid,orbit,comet}
  duration_days/mission_days/length int 3 900
  outcome/result {success,failure,partial,ongoing}; payload/payload_mass real 10 9000; is_crewed/is_reusable bool
  landing_site? @place
astronaut/cosmonaut/crew_member 240 >mission
  name/astronaut_name @person; birth_year/year_of_birth year 1935 1995; flight_hours/hours_in_space int 10 9000
  spacewalks/walk_count int 0 12
  rank/crew_rank/duty {commander,pilot,engineer,scientist,medic}; nationality/citizenship @country
  selected_on/selection_date date 1980 2020
  university/alma_mater? @place
experiment/study/investigation 420 >mission
  title/experiment_title @talktitle; field/science_field/discipline {biology,physics,geology,medicine}
  mass/equipment_mass real 0.2 300
  power_use/watts int 2 900; started_on/begin_date date 1986 2023; publications? int 0 40; is_automated bool
== vineyard
vineyard/winery/wine_estate 34
  name/estate_name/winery_name @place; region/valley/appellation @district
  hectares/planted_area/acreage real 2 300; altitude/elevation int 10 1400
  founded_year/since year 1700 2015; winemaker/oenologist @person; slope_side/exposure {north,south,east,west}
  is_biodynamic/is_open bool
wine/bottle/vintage_wine 380 >vineyard
  name/wine_name/cuvee @title; grape/grape_variety/varietal {merlot,riesling,malbec,syrah,chardonnay,grenache}
  vintage/vintage_year year 1975 2022
  price/bottle_price/retail_price real 5 400; sugar/residual_sugar real 0 90
  bottles/bottle_count/quantity int 90 40000
  color/wine_color {red,white,rose}; points/critic_points? int 70 100; acidity real 3 9; is_sparkling bool
barrel/cask/oak_barrel 420 >vineyard
  label/barrel_code @code; volume/liters/capacity int 50 600; filled_on/fill_date date 2015 2023
  wood/oak_type {french,american,hungarian}
  toast/toast_level {light,medium,heavy}; cost/barrel_cost int 200 2500; emptied_on? date 2017 2023
  months_aged/aging_months int 1 60
== veterinary
veterinarian/vet/animal_doctor 40
  name/vet_name @person; clinic/practice @place; salary/wage int 40000 150000
  licensed_year/graduation_year year 1982 2022
  specialty/expertise {cats,dogs,horses,birds,reptiles}; surgeries/surgery_count int 0 900; phone? @phone
  is_licensed bool
pet/animal/companion 420 >veterinarian
  name/pet_name @petname; species/pet_type/animal_kind {cat,dog,rabbit,parrot,hamster,ferret}
  weight/body_weight real 0.1 70
  born_on/birth_date date 2006 2023; owner/owner_name @person; breed? {mixed,siamese,beagle,persian,collie}
  fur_color/coat {black,brown,white,spotted}
  is_neutered/is_chipped bool; visits/visit_count int 1 40
vaccination/vaccine_dose/injection 600 >pet
  vaccine/vaccine_name {rabies,distemper,parvo,influenza}; given_on/injection_date date 2017 2023
  price/dose_price/cost real 8 140
  dose/milliliters real 0.1 5; reaction/side_effect? {none,swelling,fever,sleepy}
  next_due/booster_date date 2018 2025
== theater
theater/playhouse/stage 28
  name/theater_name/playhouse_name @hall; city @city; seats/audience_capacity int 60 2800
  opened_year/inaugurated year 1750 2018
  subsidy/public_grant int 0 900000; ownership/operated_by {city,state,private,trust}; has_orchestra/has_balcony bool
play/drama/stage_work 200 >theater
  title/play_title @title; playwright/dramatist @person; premiere_date/opening_night date 2008 2023
  acts/act_count int 1 6
  genre/play_type {tragedy,comedy,farce,musical,satire}; ticket_price/seat_price real 5 180
  length_minutes/running_time int 45 240
  language? {english,russian,french,czech}; is_censored/is_sold_out bool; costume_budget/costume_cost int 200 90000
performance/show/staging 600 >play
  staged_on/show_date date 2015 2023; tickets_sold/spectators/audience int 5 2600
  revenue/box_office_income int 90 180000
  applause_minutes/applause real 0 15; conductor/stage_manager @person
  critic_verdict/press_verdict? {rave,mixed,panned}; evening/slot {matinee,evening,late}
== mining
mine/quarry/mining_site 34
  name/mine_name/pit_name @place; mineral/ore/resource {copper,iron,gold,lithium,zinc,coal}
  depth/shaft_depth int 20 3000; opened_year/started year 1880 2018
  country/host_country @country; reserves/estimated_reserves int 900 900000
  mining_method/extraction {surface,underground,placer,solution}
  is_operating/is_automated bool; closed_year? year 1990 2023
miner/digger/pit_worker 420 >mine
  name/miner_name @person; wage/daily_wage/pay int 40 400; age int 18 63; hired_on/hire_date date 1996 2023
  task/duty/trade {driller,blaster,hauler,surveyor,welder}
  injuries/injury_count int 0 7; helmet_code/helmet_number? @code; overtime/overtime_hours real 0 60
  is_unionized bool
excavation/blast/dig 600 >mine
  dug_on/excavation_date date 2018 2023; tonnage/tons_moved/rock_mass real 1 900; purity/ore_grade real 0.1 70
  machine/equipment {loader,dragline,drill,conveyor}
  explosives/charge_weight? real 0.5 300; crew_size/workers int 2 40; outcome {rich,poor,empty,flooded}
== bike_share
dock/bike_station/docking_point 60
  name/dock_name @street; slots/slot_count/racks int 6 50; district/quarter/borough @district
  installed_on/setup_date date 2012 2023
  slope/gradient real 0 12; surface/ground_type {asphalt,gravel,cobble,brick}; has_charger/has_camera bool
  daily_rentals/rentals int 2 900
bicycle/bike/cycle 260 >dock
  frame_code/serial_code @code; purchase_price/cost int 200 3000; bought_on/purchase_date date 2013 2023
  gears/gear_count int 1 24
  bike_type/design {cargo,city,tandem,folding,trekking}; kilometers/distance_ridden real 5 20000
  repairs/repair_count int 0 30; brake_type? {disc,rim,coaster}
  is_electric/is_retired bool
rider/cyclist/subscriber 180
  name/rider_name @person; birth_year/born year 1945 2006; subscription/plan_type {daily,monthly,yearly,guest}
  deposit/prepaid_amount real 0 120
  city/home_city @city; email? @email; penalty_points/penalties int 0 12
rental/bike_ride/hire 700 >bicycle >rider
  ride_date/rented_on date 2020 2023; minutes_used/ride_minutes int 2 300; charge/rental_fee real 0.5 45
  purpose/ride_purpose {commute,leisure,delivery,errand}
  helmet_used? {yes,no}; rain_level real 0 30; is_disputed bool
"""
