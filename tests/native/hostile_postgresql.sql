-- Hostile texts for a server, one per line; tests/native/engines/test_read_only.py runs them.
INSERT INTO item VALUES (1)
UPDATE item SET id = 0
TRUNCATE item
DROP TABLE item CASCADE
CREATE TABLE x(a int)
CREATE TEMP TABLE x AS SELECT 1
COMMIT; DROP TABLE item
ROLLBACK; DELETE FROM item
SELECT 1; COMMIT; DELETE FROM item
WITH x AS (INSERT INTO item VALUES (9999) RETURNING 1) TABLE x
WITH x AS (UPDATE item SET id = 0 RETURNING 1) TABLE x
SELECT * INTO x FROM item
SELECT nextval('numbers')
SELECT setval('numbers', 5)
SELECT * FROM item FOR SHARE
LOCK TABLE item
CALL x()
DO $$ BEGIN DELETE FROM item; END $$
PREPARE p AS DELETE FROM item
EXECUTE p
SET transaction_read_only = off
SELECT set_config('transaction_read_only', 'off', true), pg_sleep(0)
SELECT set_config('default_transaction_read_only', 'off', false)
SELECT set_config('role', 'owner', false)
SELECT set_config('session_authorization', 'owner', false)
GRANT ALL ON item TO PUBLIC
ALTER ROLE reader SUPERUSER
CLOSE sqlexec
FETCH ALL FROM sqlexec
MOVE FORWARD 10 FROM sqlexec
SELECT 1 FROM item WHERE CURRENT OF sqlexec
SELECT pg_read_file('/etc/passwd')
SELECT pg_read_binary_file('/etc/passwd')
SELECT pg_ls_dir('/')
SELECT pg_stat_file('/etc/passwd')
COPY item TO '/tmp/sqlexec-hostile'
COPY item TO PROGRAM 'touch /tmp/sqlexec-hostile'
COPY item FROM PROGRAM 'id'
SELECT lo_import('/etc/passwd')
SELECT lo_export(1, '/tmp/sqlexec-hostile')
SELECT lo_create(7)
SELECT lo_from_bytea(0, 'x')
SELECT dblink('host=127.0.0.1', 'SELECT 1')
LOAD 'x'
CREATE EXTENSION dblink
CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x', 'y'
SELECT pg_reload_conf()
SELECT pg_rotate_logfile()
SELECT pg_switch_wal()
SELECT pg_create_restore_point('x')
SELECT query_to_xml('DELETE FROM item', true, true, '')
SELECT database_to_xml(true, true, '')
LISTEN x
NOTIFY x
SELECT pg_notify('x', repeat('y', 7000)) FROM generate_series(1, 100000)
SELECT pg_advisory_lock(1)
SELECT pg_advisory_lock(g) FROM generate_series(1, 100000) g
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename <> current_user
SELECT pg_cancel_backend(pg_backend_pid())
SELECT pg_terminate_backend(pg_backend_pid())
SELECT pg_sleep(3600)
SELECT count(pg_sleep(1)) FROM generate_series(1, 1000)
SELECT set_config('statement_timeout', '0', false), pg_sleep(3600)
SELECT count(*) FROM generate_series(1, 1e10::bigint)
SELECT * FROM generate_series(1, 1e10::bigint)
WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT 1 FROM r) TABLE r
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r
SELECT count(*) FROM item a, item b, item c, item d, item e
SELECT repeat('x', 1000000000)
SELECT repeat('x', 100000000) FROM item
SELECT array_agg(repeat('x', 1000)) FROM generate_series(1, 1000000)
SELECT string_agg(name, '') FROM item, generate_series(1, 1000000)
SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' ~ '^((a+)+)+$'
SELECT repeat('a', 50000) ~ '(x+x+)+y|(a?){400}a{400}'
SELECT regexp_replace(repeat('ab', 1000000), '(a|b)*c', 'd')
SELECT factorial(100000)
SELECT 10::numeric ^ 100000
SELECT power(9.9::numeric, 99999)
SELECT md5(repeat('x', 500000000))
SELECT jsonb_build_object('a', repeat('x', 300000000))
SELECT lpad('', 1000000000)
SELECT rpad('', 500000000) || 'x'
SELECT hashtext(string_agg(g::text, '')) FROM generate_series(1, 50000000) g
SELECT xmlelement(name a, repeat('<', 100000000))
SELECT * FROM item t0, item t1, item t2, item t3, item t4, item t5, item t6, item t7, item t8, item t9, item t10, item t11, item t12, item t13 LIMIT 1
SELECT E'\xff'
SELECT '\xff'::bytea
SELECT convert_from('\xff', 'UTF8')
SELECT chr(0)
SELECT U&'\D800'
\copy item to x
\! id
SELECT $$
SELECT /* /* nested */
