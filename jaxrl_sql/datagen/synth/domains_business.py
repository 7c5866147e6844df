"""List the business domains, in the notation that `notation.parse_domains` reads."""

TEXT = """
== company
department/division/business_unit 12
  name @department; budget/annual_budget/funding int 50000 900000; city/location @city
  floor/floor_number int 1 14; founded_year/opened_year/start_year year 1960 2015; head_count/team_size int 4 90
  cost_center/category {operations,sales,research,support,finance}
employee/worker/staff_member 600 >department
  name/full_name/employee_name @person; salary/wage/annual_pay int 28000 140000
  hire_date/start_date/joined_on date 2005 2023
  job_title/position/role {engineer,analyst,clerk,manager,technician,designer,accountant}; age int 19 66
  email/work_email? @email; is_remote/is_supervising bool; rating/performance_score/review_score real 1 5
  home_city/residence? @city; vacation_days/leave_days int 10 35
evaluation/appraisal/review 500 >employee
  year_awarded/evaluation_year/review_year year 2012 2023; bonus/reward/extra_pay int 200 9000
  grade/outcome/result {excellent,good,fair,poor}; evaluator/reviewer @person; score/points int 10 100
== retail
customer/client/shopper 150
  name/customer_name/full_name @person; city/home_city/town @city; email/contact_email? @email
  loyalty_points/reward_points/bonus_points int 0 5000; signup_date/join_date/registered_on date 2015 2023
  segment/customer_type/tier {consumer,corporate,student,wholesale}; age int 18 80; is_subscribed bool
product/item/article 90
  name/product_name/title @product; price/unit_price/list_price real 2 400; category/product_type/department
    {furniture,kitchen,garden,toys,sports,lighting,office}; stock/quantity_in_stock/units_available int 0 900
  weight/package_weight real 0.1 40; color/colour? {red,blue,black,white,green,silver}
  brand/maker/manufacturer @company
order/purchase/sale 700 >customer >product
  order_date/purchase_date/sold_on date 2019 2023; quantity/units/amount_ordered int 1 20
  total/total_price/order_value real 5 900
  status/order_status/state {pending,shipped,delivered,returned,cancelled}; discount/rebate? real 0 30
  payment_method/apply_reward_function {card,cash,transfer,voucher}; is_refunded bool
== bank
branch/office/bank_branch 25
  name/branch_name @place; city/town @city; assets/total_assets/holdings int 900000 9000000
  opened_year/founded year 1950 2018
  employees_count/staff_count/headcount int 4 60; region/district/zone {north,south,east,west,central}
  has_atm/has_vault bool
account_holder/client/depositor 220 >branch
  name/holder_name/full_name @person; income/yearly_income/earnings int 15000 190000
  credit_score/credit_rating int 300 850
  birth_date/date_of_birth date 1945 2004
  occupation/profession/job {teacher,nurse,driver,lawyer,farmer,plumber,retired}
  phone/phone_number? @phone; city/home_city @city; is_verified/is_local bool
loan/credit/advance 420 >account_holder
  amount/principal/loan_amount int 1000 90000; interest_rate/rate real 1 15
  start_date/issued_on/approval_date date 2012 2023
  purpose/loan_type/reason {car,house,education,business,travel,medical}; term_months/duration/months int 6 240
  status/loan_status {active,paid,late,defaulted}; is_secured bool
deposit/savings_record 500 >account_holder
  amount/balance/sum_deposited int 50 20000; deposit_date/paid_on date 2016 2023; currency {dollar,euro,pound,yen}
  channel/method {branch,online,mobile,machine}; fee/charge real 0 15
== insurance
agent/broker/representative 35
  name/agent_name @person; commission/commission_rate/cut real 1 20; office_city/city @city
  hire_year/start_year year 1990 2022
  level/seniority {junior,senior,lead,trainee}; policies_target/target int 10 200; is_certified bool; phone? @phone
policy/contract/insurance_plan 400 >agent
  holder_name/policy_holder/insured_person @person; premium/monthly_premium/monthly_cost real 20 600
  coverage/coverage_amount/insured_sum int 5000 500000; policy_type/plan_type/kind {life,home,auto,travel,health,pet}
  start_date/effective_date date 2010 2023; duration_years/term int 1 30; status {active,expired,cancelled,pending}
  is_renewed bool
claim/damage_report/incident 500 >policy
  claim_date/filed_on/report_date date 2014 2023; claim_amount/damage/requested_amount int 100 60000
  paid_amount/settlement/payout? int 50 50000; cause/damage_type/reason {fire,flood,theft,collision,storm,illness}
  status/claim_status {open,approved,rejected,closed}; adjuster/handler @person
== shipping
warehouse/depot/storage_site 22
  name/site_name @place; city/location @city; capacity/max_capacity/volume int 500 20000; manager/supervisor @person
  built_year/construction_year year 1955 2020; temperature/average_temperature real -20 25
  security_level {low,medium,high,strict}
carrier/freight_company/hauler 18
  name/carrier_name/company_name @company; fleet_size/vehicles/truck_count int 3 300; country/home_country @country
  rating/service_rating/reliability real 1 5; founded_year/established year 1930 2015
  is_international/is_insured bool
shipment/parcel/consignment 800 >warehouse >carrier
  ship_date/dispatch_date/sent_on date 2018 2023; weight/gross_weight/load real 0.5 900
  destination/destination_city/delivery_city @city; cost/shipping_cost/freight_charge real 5 1500
  status/delivery_status {waiting,moving,delivered,lost,damaged}
  priority/urgency {standard,express,overnight,economy}
  distance/route_length int 10 4000; is_fragile/is_insured bool; delay_days/days_late? int 0 20
== real_estate
realtor/estate_agent/broker 40
  name/full_name @person; experience/years_of_experience int 1 35; agency/firm/company @company
  phone/contact_number? @phone
  commission/fee_percent real 1 8; license_year year 1985 2021; specialty {luxury,rental,commercial,rural}
  is_bilingual bool
property/house/listing 450 >realtor
  address/street_address @street; price/asking_price/list_price int 60000 950000; bedrooms/rooms int 1 8
  bathrooms/bath_count int 1 5; area/square_meters/floor_area int 30 600; listed_on/listing_date date 2018 2023
  property_type/building_type/kind {apartment,cottage,villa,duplex,studio,farmhouse}
  built_year/year_built year 1900 2022
  has_garage/has_garden/has_pool bool; city/town @city; condition? {new,renovated,old,damaged}
viewing/visit/showing 500 >property
  visitor/visitor_name/guest @person; viewing_date/visit_date date 2019 2023; offer/offered_price? int 50000 900000
  interest/interest_level {none,low,medium,high}; duration/minutes int 10 120; feedback_score/rating int 1 10
== restaurant
restaurant/eatery/diner 35
  name/restaurant_name @eatery; city/location @city
  cuisine/food_style/kitchen {italian,thai,mexican,french,indian,greek,vegan}
  rating/stars/review_score real 1 5; seats/seating_capacity/tables int 10 180
  opened_year/opening_year year 1970 2022
  has_terrace/has_bar bool; owner/owner_name @person
dish/menu_item/meal 260 >restaurant
  name/dish_name @dish; price/menu_price/cost real 3 60; calories/energy int 90 1500; course/dish_type/category
    {starter,main,dessert,side,drink}; is_vegetarian/is_spicy bool; preparation_time/minutes int 3 90
  added_on/menu_date date 2015 2023
  allergen? {nuts,gluten,milk,eggs,fish}
chef/cook/kitchen_worker 110 >restaurant
  name/chef_name @person; age int 18 68; salary/pay/monthly_wage int 1500 9000; hired_on/hire_date date 2004 2023
  rank/role/position {head,assistant,pastry,grill,trainee}; awards/prizes int 0 12; nationality/home_country? @country
booking/reservation 600 >restaurant
  guest/guest_name/customer @person; party_size/guests/people int 1 14; booking_date/reserved_for date 2020 2023
  bill/amount_paid/total_bill? real 10 700; status {confirmed,seated,cancelled,missed}; tip/gratuity real 0 80
== car_dealer
manufacturer/automaker/brand 20
  name/maker_name @company; country/origin @country; founded_year/established year 1890 2005
  revenue/yearly_revenue int 100 9000
  factories/plant_count int 1 40; employees_count/workforce int 500 90000; is_public bool
car/vehicle/automobile 320 >manufacturer
  model/model_name @carmodel; price/sticker_price/retail_price int 9000 120000; horsepower/engine_power int 60 600
  mileage/odometer/distance_driven int 0 180000; fuel/fuel_type/engine_type {petrol,diesel,electric,hybrid,gas}
  model_year/production_year year 1998 2023; color/paint {red,blue,black,white,silver,grey}
  weight/curb_weight int 800 3200
  doors/door_count int 2 5; is_used/is_automatic bool; warranty_months? int 6 84
buyer/purchaser/customer 180
  name/buyer_name @person; city/town @city; age int 18 84; income/annual_income int 18000 200000; phone? @phone
  credit_level/credit_class {poor,fair,good,excellent}
sale/deal/transaction_record 600 >car >buyer
  sale_date/sold_on/deal_date date 2016 2023; sale_price/final_price/amount int 8000 115000
  discount/price_cut? int 100 6000
  salesperson/seller @person; payment_type/financing {cash,lease,loan,trade}; is_delivered bool
== software
team/squad/crew 20
  name/team_name @teamname; size/member_count/team_size int 3 20; office/site/location @city
  budget/yearly_budget int 20000 800000
  focus/area/discipline {backend,frontend,mobile,data,security}; formed_year/start_year year 2005 2022
developer/programmer/coder 200 >team
  name/developer_name @person; salary/pay/compensation int 40000 180000; language/main_language/primary_skill
    {python,java,rust,kotlin,ruby,haskell,go}; commits/commit_count int 5 4000; joined_on/start_date date 2010 2023
  level/grade {junior,middle,senior,principal}; is_freelance/is_remote bool; years_coding/experience int 1 30
  email? @email
ticket/bug/issue_report 700 >developer
  title/summary/subject @tickettitle; severity/priority/importance {low,normal,high,critical}
  created_on/opened_on/report_date date 2019 2023
  hours_spent/effort/work_hours real 0.5 60; status/state/ticket_status {open,closed,blocked,duplicate,review}
  comments/comment_count int 0 40; closed_on/resolved_on? date 2020 2023; story_points/estimate int 1 13
  is_reproducible bool
"""
