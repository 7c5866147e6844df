"""List the education, health and public-service domains, in the notation that `notation.parse_domains` reads."""

TEXT = """
== university
department/faculty/school 14
  name/department_name @academic; building/hall @hall; budget/funding int 90000 2000000
  founded_year/established year 1850 2010
  dean/head/chair @person; faculty_size/staff_count int 8 90; is_accredited bool
professor/lecturer/instructor 110 >department
  name/full_name @person; salary/pay/annual_salary int 45000 160000
  rank/title/position {assistant,associate,full,visiting,emeritus}
  hire_year/start_year year 1980 2022; publications/papers/paper_count int 0 180; office/room? @room; age int 28 74
  is_tenured bool
course/class_offering/subject 80 >professor
  title/course_title/course_name @course; credits/credit_hours int 1 8; enrollment/enrolled/student_count int 5 240
  level/course_level {introductory,intermediate,advanced,graduate}; semester/term {spring,summer,autumn,winter}
  capacity/max_students int 15 260; fee/course_fee? int 50 900; is_online/is_required bool
student/learner/undergraduate 500 >department
  name/student_name @person; gpa/grade_average/mean_grade real 1 4; birth_date/date_of_birth date 1994 2005
  admission_year/entry_year year 2012 2023; city/home_town/birthplace @city; credits_earned/total_credits int 0 180
  scholarship/grant_amount? int 500 12000; status/enrollment_status {enrolled,graduated,suspended,exchange}
== hospital
ward/unit/clinic 18
  name/ward_name @ward; floor/level int 1 10; beds/bed_count/capacity int 6 60; nurses/nurse_count int 3 40
  wing/section {north,south,east,west}; opened_year/opening_year year 1960 2019; has_ventilator/has_isolation bool
doctor/physician/surgeon 80 >ward
  name/doctor_name @person
  specialty/field/specialization {cardiology,oncology,pediatrics,surgery,neurology,radiology}
  salary/pay/yearly_salary int 70000 280000; experience/years_of_practice int 1 40; hired_on/hire_date date 1995 2023
  license_number/license_code? @code; shift/duty {day,night,evening,rotating}; is_certified bool
patient/sick_person/inpatient 420 >doctor
  name/patient_name @person; age/patient_age int 1 96; weight/body_weight real 8 130; height/body_height int 60 205
  admitted_on/admission_date/arrival_date date 2018 2023; blood_type/blood_group {A,B,AB,O}; city/home_city @city
  insurance/insurer? @company; diagnosis/condition/illness {asthma,fracture,influenza,diabetes,migraine,anemia}
  is_insured bool
treatment/procedure/therapy 600 >patient
  treatment_name/procedure_name/therapy_type {infusion,transfusion,dialysis,massage,vaccination,biopsy}
  cost/price/charge int 40 9000; treatment_date/performed_on date 2019 2023; duration/minutes int 5 400
  outcome/result? {improved,stable,worse,cured}; dose/dosage real 0.5 200
== school
teacher/educator/tutor 60
  name/teacher_name @person; subject/field/discipline {math,history,biology,music,art,geography,physics}
  salary/pay int 24000 70000
  hire_date/start_date date 1995 2023; age int 23 67; degree/qualification {bachelor,master,doctorate,diploma}
  phone? @phone
  is_fulltime bool
classroom/class_group/section 45 >teacher
  name/room_name/class_name @room; seats/capacity int 12 45; grade_level/grade int 1 12
  building/block {main,annex,tower,garden}
  floor int 0 4; has_projector/has_lab bool; noise_level real 20 80
pupil/student/schoolchild 600 >classroom
  name/pupil_name @person; age int 6 19; average_mark/mean_grade/score real 1 10; absences/missed_days int 0 45
  guardian/parent_name? @person; transport/travel_mode {bus,bicycle,car,walking,train}
  enrolled_on/enrollment_date date 2012 2023
  town/home_city @city; is_exempt bool
== library
author/writer/novelist 80
  name/author_name/pen_name @person; country/nationality @country; birth_year/year_of_birth year 1900 1990
  awards/prizes_won int 0 15
  genre/main_genre/style {fantasy,crime,poetry,history,romance,essay}; website? @website; is_alive bool
book/volume/publication 320 >author
  title/book_title @title; pages/page_count/length int 60 1100; published_year/publication_year year 1950 2023
  price/cover_price real 4 90; copies/copies_owned/stock int 1 30
  language/text_language {english,spanish,german,french,arabic,hindi}
  publisher/publishing_house @company; format/binding {hardcover,paperback,audio,digital}
  rating/reader_score? real 1 5
member/reader/patron 160
  name/member_name @person; joined_on/membership_date date 2010 2023; city/town @city; age int 8 88
  fines/unpaid_fines/penalty real 0 60
  membership/card_type {adult,child,student,senior}; email? @email; is_blocked bool
loan/checkout/borrowing 700 >book >member
  loan_date/borrowed_on/checkout_date date 2020 2023; due_date/return_by date 2020 2023
  days_overdue/days_late int 0 60
  renewals/renewal_count int 0 5; desk/counter {front,children,self,mobile}; returned_on? date 2020 2023
== city_transit
line/route/transit_line 24
  name/line_name/route_name @place; length_km/route_length/distance real 3 70; opened_year/opening_year year 1920 2022
  vehicle_type/mode/transport_type {bus,tram,metro,ferry,trolley}; stops_count/stop_count int 5 45
  fare/ticket_price real 1 9
  daily_riders/passengers_per_day int 500 90000; is_accessible/is_electric bool; color {red,green,blue,yellow,purple}
driver/operator/conductor 150 >line
  name/driver_name @person; age int 22 65; hourly_wage/pay_rate real 14 45; hired_on/hire_date date 1998 2023
  shift/work_shift {morning,evening,night,split}; license_class/license_type {standard,heavy,rail,special}
  accidents/accident_count int 0 6; phone? @phone
stop/station/halt 260 >line
  name/stop_name/station_name @street; zone/fare_zone int 1 6; district/neighborhood/quarter @district
  boardings/daily_boardings int 10 9000
  built_year/year_built year 1925 2022; has_shelter/has_elevator bool; platform_count/platforms int 1 6
  renovated_on? date 2005 2023
trip/ride/journey 500 >driver
  trip_date/ride_date/service_date date 2021 2023; passengers/rider_count int 1 160
  delay_minutes/delay/minutes_late int 0 50
  weather {sunny,rain,snow,fog,windy}; fuel_used/energy_used? real 2 90; revenue/fare_income real 10 900
== election
district/constituency/electoral_area 40
  name/district_name @district; population/inhabitants/residents int 9000 400000; area/land_area real 5 900
  region/zone {north,south,east,west}
  registered_voters/voters int 5000 300000; median_age real 25 55; polling_stations/stations int 4 120
  is_urban/is_coastal bool
party/political_party/movement 14
  name/party_name @partyname; founded_year/established year 1900 2018; members/member_count int 500 90000
  leader/chairperson @person
  leaning/orientation {left,right,center,green,liberal}; color/party_color {red,blue,green,orange,purple}
  funding/donations int 9000 5000000
candidate/contender/nominee 320 >district >party
  name/candidate_name @person; age int 21 82; votes/vote_count/ballots int 100 90000
  campaign_cost/spending/budget int 1000 300000
  profession/occupation {lawyer,teacher,farmer,doctor,journalist,engineer}; is_elected bool
  birth_place? @city
  registered_on/filing_date date 2019 2023
donation/contribution/gift 600 >candidate
  donor/donor_name/contributor @person; amount/donated_sum/value int 10 9000; donated_on/donation_date date 2019 2023
  method/payment_channel {check,card,cash,transfer}; is_anonymous bool; occasion? {dinner,rally,mail,website}
== police
precinct/police_station/district_office 20
  name/station_name @place; city @city; officers/officer_count int 8 200; patrol_cars/vehicle_count int 2 60
  founded_year/built_year year 1900 2015
  area/patrol_area real 2 300; budget/funding int 90000 3000000; has_jail/has_kennel bool
officer/policeman/detective 180 >precinct
  name/officer_name @person; badge/badge_number int 100 9999; rank/grade {cadet,sergeant,lieutenant,captain,patrol}
  salary/pay int 32000 120000
  joined_on/hire_date date 1994 2023; age int 21 63; arrests/arrest_count int 0 300; medals/commendations int 0 9
  is_armed bool
  partner/patrol_partner? @person
case_file/investigation/incident 520 >officer
  title/case_title @casetitle; crime/offense/crime_type {burglary,fraud,vandalism,assault,arson,smuggling}
  reported_on/opened_on/report_date date 2017 2023
  damage/loss_value/estimated_loss int 50 90000; witnesses/witness_count int 0 15
  status/case_status {open,solved,cold,appealed}
  district/neighborhood @district; suspect/main_suspect? @person; is_violent bool
  evidence_items/evidence_count int 0 40
== weather
region/climate_zone/province 16
  name/region_name @district; population/inhabitants int 20000 4000000; area/surface int 90 9000
  climate/climate_type {arid,humid,polar,mild,alpine}
  elevation/mean_elevation int 0 3200; coast_length/shoreline? int 1 900; is_inhabited bool
weather_station/station/observatory 90 >region
  name/station_name/site_name @place; altitude/height int 0 3900; installed_year/setup_year year 1950 2022
  operator/owner @company
  sensor_count/sensors int 2 30; station_type/kind {manual,automatic,marine,airport,mountain}
  battery/battery_level? int 5 100; is_active/is_online bool
measurement/reading/observation 900 >weather_station
  observed_on/reading_date/measured_on date 2020 2023; temperature/air_temperature/degrees real -25 42
  humidity/moisture int 5 100
  rainfall/precipitation/rain_amount real 0 120; wind_speed/wind real 0 130
  sky/cloud_cover/conditions {clear,cloudy,overcast,foggy,stormy}
  pressure/air_pressure? int 960 1045; visibility real 0.1 60; is_checked bool
"""
