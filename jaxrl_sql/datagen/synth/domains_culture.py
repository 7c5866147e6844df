"""List the sport, culture, travel and nature domains, in the notation that `notation.parse_domains` reads."""

TEXT = """
== airline
airline/air_carrier/operator 18
  name/airline_name @company; country/home_country @country; fleet_size/aircraft_count int 4 400
  founded_year/established year 1930 2015
  alliance/partnership? {alpha,orbit,global,pacific}; rating/customer_rating real 1 5; is_lowcost/is_national bool
airport/airfield/aerodrome 45
  name/airport_name @place; city/served_city @city; country @country; runways/runway_count int 1 6
  elevation/altitude int 0 3000
  yearly_passengers/passengers int 9000 900000; opened_year/opening_year year 1925 2012; has_hotel/has_railway bool
flight/air_service/connection 800 >airline >airport
  flight_code/flight_number @code; departure_date/flight_date/departs_on date 2021 2023
  price/ticket_price/fare real 30 1500
  distance/flight_distance/miles int 90 9000; duration/flight_minutes int 35 900
  seats_sold/passengers/booked_seats int 10 380
  status/flight_status {scheduled,landed,delayed,cancelled,diverted}; delay/delay_minutes? int 0 300
  aircraft/plane_type {turboprop,narrowbody,widebody,regional}; is_nonstop bool
== soccer
club/team/football_club 24
  name/club_name/team_name @club; city/home_city @city; stadium/home_ground @hall
  founded_year/established year 1880 1990
  budget/transfer_budget int 90000 9000000; titles/trophies/championships int 0 30
  coach/manager/head_coach @person; is_professional bool
player/footballer/athlete 420 >club
  name/player_name @person; age int 17 40; goals/goals_scored/goal_count int 0 60; position/playing_position/role
    {goalkeeper,defender,midfielder,forward,winger}; market_value/value/price int 50000 9000000
  nationality/country @country
  height/height_cm int 160 205; shirt_number/jersey_number int 1 99; foot/preferred_foot? {left,right,both}
  joined_on/contract_date/signed_on date 2014 2023; is_injured/is_suspended bool
game/fixture/encounter 300 >club
  opponent/opposing_team/visitor @club; game_date/played_on/kickoff_date date 2019 2023
  attendance/spectators/crowd int 200 80000
  goals_for/home_goals int 0 7; goals_against/away_goals int 0 6; referee/official @person
  competition/tournament {league,cup,friendly,playoff}
  weather? {sunny,rainy,snowy,windy}; ticket_income/gate_revenue int 900 900000
== music
artist/singer/musician 90
  name/stage_name/artist_name @person; country/home_country @country; birth_year/year_of_birth year 1940 2003
  genre/music_style/style {rock,jazz,folk,soul,techno,opera,blues}; followers/fan_count int 100 900000
  label/record_label? @company
  is_active/is_solo bool; grammy_count/awards int 0 12
album/record/release 220 >artist
  title/album_title/album_name @title; release_year/released year 1965 2023
  sales/copies_sold/units_sold int 100 900000
  price/retail_price real 4 45; rating/critic_score/review_score real 1 10; format/medium {vinyl,cassette,disc,stream}
  producer/produced_by @person; is_live bool
song/track/tune 700 >album
  title/song_title/track_name @title; duration/length_seconds/seconds int 60 600
  plays/play_count/streams int 10 900000
  track_number/position int 1 18; tempo/beats_per_minute int 60 190; mood/feeling {happy,sad,calm,angry,dreamy}
  lyricist/written_by? @person; is_explicit/is_instrumental bool
== film
director/filmmaker/movie_director 60
  name/director_name @person; nationality/country @country; birth_year/year_of_birth year 1930 1992
  oscars/awards/award_count int 0 9
  debut_year/first_film_year year 1955 2015; style {drama,comedy,thriller,horror,western}
  net_worth/wealth? int 90000 9000000
movie/film/picture 300 >director
  title/movie_title/film_title @title; release_year/premiere_year year 1960 2023
  runtime/length_minutes/duration int 70 210
  budget/production_cost int 90000 9000000; gross/box_office/earnings int 9000 9900000
  rating/score/viewer_rating real 1 10
  genre/category/film_type {drama,comedy,thriller,horror,western,animation}
  language {english,french,korean,italian,hindi}
  studio/production_company @company; is_dubbed bool; tagline? @title
actor/performer/cast_member 180
  name/actor_name @person; birth_date/born_on date 1940 2005; country/birth_country @country
  agent/agent_name? @person
  film_count/movies_made int 1 90; height/height_cm int 150 205; is_retired bool
role/casting/appearance 700 >movie >actor
  character_name/character/part @person; salary/pay/fee int 1000 900000; screen_minutes/screen_time int 1 160
  role_type/importance {lead,supporting,cameo,extra}; billing/billing_order int 1 20
  contract_date/signed_on date 2010 2023
== hotel
hotel/inn/resort 30
  name/hotel_name @eatery; city/location @city; stars/star_rating int 1 5; rooms_count/room_count int 8 400
  opened_year/built_year year 1900 2022
  chain/owner_company? @company; style/hotel_type {business,beach,mountain,budget,boutique}
  has_spa/has_pool/has_gym bool
room/suite/chamber 320 >hotel
  room_number/room_code/door_number @room; nightly_rate/price_per_night/rate real 30 700
  bed_type/bed {single,double,queen,bunk}
  floor/storey int 0 25; area/room_size real 9 90; max_guests/occupancy int 1 6
  room_view? {sea,city,garden,courtyard}; has_balcony/has_minibar bool
guest/visitor/traveler 200
  name/guest_name @person; country/nationality @country; age int 18 85; loyalty_points/points int 0 9000
  email? @email
  traveler_type/guest_type {tourist,business,family,group}
stay/reservation/booking 700 >room >guest
  check_in/arrival_date date 2019 2023; nights/night_count/length_of_stay int 1 21
  total_cost/bill/amount real 40 6000
  channel/booked_through/source {website,phone,agency,walkin}; status {confirmed,cancelled,finished,noshow}
  review_score/rating? int 1 10
== museum
museum/gallery/exhibition_hall 26
  name/museum_name @place; city @city; country @country; opened_year/founded year 1790 2015
  ticket_price/entry_fee/admission real 0 35
  visitors/yearly_visitors/visitor_count int 900 900000; museum_type/theme {art,history,science,maritime,design}
  has_cafe/has_shop bool
artist/painter/creator 90
  name/artist_name @person; birth_year/born year 1600 1980; death_year/died? year 1650 2022
  nationality/home_country @country
  movement/art_style/school {baroque,cubism,realism,gothic,surrealism}; works_count/output int 3 900
artwork/painting/exhibit 420 >museum >artist
  title/artwork_title @title; created_year/year_made year 1620 2020
  value/estimated_value/insured_value int 900 900000
  height/height_cm real 5 400; width/width_cm real 5 400; material/medium {oil,bronze,marble,wood,paper,glass}
  acquired_on/acquisition_date date 1990 2023; donor/donated_by? @person; is_displayed/is_restored bool
  weight real 0.2 900
== zoo
habitat/enclosure/compound 24
  name/habitat_name @place; area/size/surface int 40 9000
  climate/environment {tropical,desert,arctic,temperate,aquatic}
  built_year/opened_year year 1950 2022; capacity/max_animals int 2 60; cleaning_cost/upkeep real 20 900
  is_indoor/is_heated bool
keeper/caretaker/zookeeper 50
  name/keeper_name @person; age int 20 65; salary/wage int 19000 60000; hired_on/start_date date 1998 2023
  shift {morning,afternoon,night,weekend}; experience/years_of_service int 0 38; phone? @phone
animal/creature/beast 420 >habitat >keeper
  name/animal_name @petname; species/animal_type/kind {tiger,zebra,otter,penguin,lemur,falcon,tortoise,wolf}
  weight/body_weight real 0.5 900
  birth_date/born_on/arrival_date date 2004 2023; age/age_years int 0 40
  diet/food_type/feeding {meat,plants,fish,insects,mixed}
  sex/gender {male,female}; origin/origin_country? @country; is_endangered/is_vaccinated bool
feeding/meal/ration 600 >animal
  fed_on/feeding_date date 2022 2023; amount/food_amount/portion real 0.1 40
  food/food_name {hay,herring,chicken,carrots,pellets,mealworms}
  cost/food_cost real 0.2 60; minutes/duration int 1 60; remark? {hungry,calm,sick,playful}
== farm
farm/ranch/homestead 28
  name/farm_name @place; owner/farmer/owner_name @person; area/hectares/acreage real 4 900
  county/region/district @district
  founded_year/since_year year 1850 2018; workers/worker_count int 1 60; soil/soil_type {clay,sand,loam,peat,chalk}
  is_organic/is_irrigated bool
field/plot/parcel 220 >farm
  name/field_name/plot_code @code; size/field_size/surface real 0.3 60
  crop/planted_crop/plant {wheat,barley,corn,potato,rapeseed,oats,beans}
  sown_on/planting_date/planted_on date 2019 2023; slope int 0 30; moisture/soil_moisture? real 2 60
  is_fenced bool; acidity real 4 9
harvest/yield_record/crop_report 600 >field
  harvest_year/season_year year 2014 2023; tons/yield_tons/output real 0.4 90
  price_per_ton/market_price int 60 900; quality/quality_grade {prime,standard,feed,spoiled}
  labor_hours/work_hours int 4 400; fertilizer/fertilizer_used? real 5 400
  machine/harvester {combine,manual,baler,digger}
== gym
trainer/coach/fitness_instructor 36
  name/trainer_name @person; hourly_rate/session_fee/rate real 15 120
  specialty/discipline/focus {yoga,boxing,cycling,pilates,swimming,weights}
  hired_on/start_date date 2008 2023; age int 20 62; rating/client_rating real 1 5; certificate? @code
  is_fulltime bool
member/gym_member/subscriber 360 >trainer
  name/member_name @person; joined_on/membership_start date 2014 2023; monthly_fee/fee/dues real 15 120
  plan/membership_type {basic,premium,student,family}
  age int 14 82; weight/body_weight real 42 140; city/home_city @city
  goal/target? {strength,endurance,weight,mobility}; is_frozen bool
workout/session/training_session 800 >member
  session_date/workout_date/held_on date 2021 2023; minutes/duration/session_length int 10 150
  calories/calories_burned int 50 1400
  activity/exercise/workout_type {rowing,running,lifting,climbing,stretching,spinning}
  heart_rate/average_pulse int 80 190
  distance/distance_km? real 0.5 40; effort/intensity {easy,moderate,hard,extreme}
== conference
venue/conference_center/meeting_place 24
  name/venue_name @hall; city @city; country @country; capacity/max_attendance int 80 9000
  rent/daily_rent/rental_fee int 400 40000
  rooms/room_count int 2 60; has_parking/has_catering bool; built_year year 1930 2021
conference/event/congress 120 >venue
  name/conference_name/event_name @eventname; topic/theme/field {medicine,robotics,energy,finance,law,ecology}
  start_date/opening_date date 2015 2023
  attendees/participants/visitor_count int 40 8000; ticket_price/registration_fee/entry_fee real 0 900
  days/duration_days int 1 9
  organizer/organised_by @company; sponsor/main_sponsor? @company; is_virtual/is_annual bool
speaker/presenter/lecturer 240
  name/speaker_name @person; affiliation/employer/organization @company; country/home_country @country
  fee/honorarium int 0 9000
  books_written/publications int 0 60; expertise/specialty {medicine,robotics,energy,finance,law,ecology}
  email? @email; is_invited bool
talk/lecture/presentation 500 >conference >speaker
  title/talk_title/lecture_title @talktitle; minutes/talk_length/duration int 10 90
  audience/listeners/audience_size int 5 900
  rating/feedback_score real 1 5; language/spoken_language {english,german,spanish,chinese}
  slides/slide_count? int 5 120; is_recorded bool
"""
