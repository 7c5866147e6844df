-- Texts that mean harm to DuckDB, its files, or who waits for it: one a line.
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd', sep=':')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT content FROM read_text('/etc/passwd')
SELECT content FROM read_blob('/etc/passwd')
SELECT * FROM read_json('/etc/passwd')
SELECT * FROM read_json_objects('/etc/passwd')
SELECT * FROM read_ndjson('/etc/passwd')
SELECT * FROM read_parquet('/etc/passwd')
SELECT * FROM parquet_metadata('/etc/passwd')
SELECT * FROM parquet_scan(['/etc/passwd'])
SELECT * FROM read_duckdb('/tmp/other.db', table_name='t')
SELECT * FROM '/etc/passwd'
FROM '/tmp/*.csv'
SELECT * FROM glob('/**')
SELECT * FROM glob('/proc/self/environ')
SELECT * FROM read_text('/proc/self/environ')
SELECT * FROM read_text('https://example.invalid/x')
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM read_csv('/dev/stdin')
SELECT * FROM read_csv('/dev/zero')
ATTACH '/tmp/sqlexec-hostile.db' AS harm
ATTACH ':memory:' AS harm
ATTACH 'dbname=postgres' AS harm (TYPE postgres)
DETACH shop
USE memory
COPY item TO '/tmp/sqlexec-hostile.csv'
COPY (SELECT 1) TO '/tmp/sqlexec-hostile.parquet' (FORMAT parquet)
COPY (SELECT 1) TO '/dev/stdout'
COPY item FROM '/etc/passwd'
COPY FROM DATABASE shop TO memory
EXPORT DATABASE '/tmp/sqlexec-hostile'
IMPORT DATABASE '/tmp/sqlexec-hostile'
INSTALL httpfs
INSTALL spatial FROM community
FORCE INSTALL httpfs FROM 'http://example.invalid'
LOAD httpfs
LOAD '/tmp/sqlexec-hostile.duckdb_extension'
UPDATE EXTENSIONS
SELECT * FROM duckdb_extensions()
PRAGMA enable_external_access=true
PRAGMA database_list
PRAGMA enable_profiling='json'
PRAGMA profiling_output='/tmp/sqlexec-hostile.json'
PRAGMA memory_limit='100GB'
PRAGMA threads=64
SET enable_external_access=true
SET GLOBAL lock_configuration=false
SET memory_limit='100GB'
SET temp_directory='/tmp/sqlexec-hostile'
SET VARIABLE harm = 1
RESET memory_limit
SET SESSION search_path='pg_catalog'
CALL enable_logging()
SELECT * FROM enable_logging()
SELECT * FROM enable_logging(storage='file', storage_config={'path': '/tmp/sqlexec-hostile'})
FROM enable_profiling(save_location='/tmp/sqlexec-hostile.json')
SELECT * FROM duckdb_logs()
SELECT * FROM enable_object_cache()
SELECT write_log('harm', level := 'fatal')
CALL pragma_version()
CALL force_checkpoint()
SELECT * FROM force_checkpoint()
CHECKPOINT
VACUUM
ANALYZE
EXPLAIN ANALYZE DELETE FROM item
CREATE TABLE harm(n INTEGER)
CREATE TEMP TABLE harm AS SELECT 1
CREATE OR REPLACE VIEW cheap AS SELECT 1
CREATE MACRO harm() AS 1
CREATE SECRET harm (TYPE s3, KEY_ID 'a', SECRET 'b')
CREATE PERSISTENT SECRET harm (TYPE http, BEARER_TOKEN 'a')
SELECT * FROM duckdb_secrets()
SELECT * FROM which_secret('s3://a', 's3')
INSERT INTO item VALUES (0, 'x', 0, false, NULL, 0)
UPDATE item SET name = 'x'
DELETE FROM item
TRUNCATE item
DROP TABLE item
ALTER TABLE item ADD COLUMN harm INTEGER
COMMENT ON TABLE item IS 'harm'
MERGE INTO item USING (SELECT 1 AS id) s ON item.id = s.id WHEN MATCHED THEN DELETE
WITH gone AS (DELETE FROM item RETURNING id) SELECT * FROM gone
WITH made AS (INSERT INTO item(id) VALUES (1000) RETURNING id) SELECT * FROM made
SELECT nextval('numbers')
SELECT 1; DROP TABLE item
COMMIT; DELETE FROM item
BEGIN TRANSACTION
ROLLBACK
PREPARE harm AS SELECT 1
EXECUTE harm
DEALLOCATE harm
FROM query('DELETE FROM item')
FROM query('SELECT 1; DROP TABLE item')
FROM query_table('/etc/passwd')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))
PIVOT item ON name USING sum(price)
SELECT getenv('HOME')
SELECT current_setting('secret_directory')
SELECT getvariable('harm')
SELECT * FROM duckdb_settings()
SUMMARIZE item
DESCRIBE item
SHOW ALL TABLES
SELECT sum(range) FROM range(1000000000000)
SELECT * FROM range(1000000000000)
SELECT * FROM generate_series(1, 9000000000000000000)
SELECT range(1000000000)
SELECT list(range) FROM range(1000000000)
SELECT count(*) FROM item a, item b, item c, item d
SELECT a.name || b.name || c.name AS x FROM item a, item b, item c ORDER BY x DESC
SELECT count(DISTINCT a.range * b.range) FROM range(100000) a, range(100000) b
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r
WITH RECURSIVE r(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM r) SELECT max(length(s)) FROM r
WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n * 2 % 1000000007 FROM r) SELECT count(*) FROM r
SELECT repeat('x', 1000000000)
SELECT repeat('x', 9000000000000000000)
SELECT length(repeat('x', 500000000))
SELECT lpad('x', 500000000, 'y')
SELECT string_agg(repeat('x', 10000), ',') FROM range(1000000)
SELECT repeat('x', 100000) FROM range(100000)
SELECT regexp_matches(repeat('a', 100000), '(a*)*(a*)*b')
SELECT regexp_replace(repeat('a', 1000000), '(a|aa)+$', '', 'g')
SELECT regexp_matches('x', repeat('(', 100000))
SELECT regexp_extract_all(repeat('ab', 1000000), '((a)(b))')
SELECT regexp_matches('a', '(((a{1,100}){1,100}){1,100})')
SELECT repeat('a', 20000) LIKE repeat('%a', 10000) || 'b'
SELECT levenshtein(repeat('a', 50000), repeat('b', 50000))
SELECT damerau_levenshtein(repeat('a', 20000), repeat('b', 20000))
SELECT jaro_winkler_similarity(repeat('ab', 200000), repeat('ba', 200000))
SELECT list_sort(range(30000000))
SELECT list_reduce(range(10000000), lambda a, b: a + b)
SELECT list_transform(range(30000000), lambda x: sin(x))
SELECT unnest(range(100000000))
SELECT md5(repeat('x', 900000000))
SELECT factorial(1000000)
SELECT 170141183460469231731687303715884105727::HUGEINT * 2
SELECT '\xFF\xFE'::BLOB::VARCHAR
SELECT decode('\xFF\xFE'::BLOB)
SELECT chr(0) || chr(55296)
SELECT json(repeat('[', 100000))
SELECT json_extract(repeat('[', 1000000), '$')
SELECT json_structure('{"a":' || repeat('{"a":', 5000) || '1' || repeat('}', 5001))
SELECT CAST(repeat('[', 10000) AS INTEGER[])
SELECT from_json('[1]', repeat('[', 10000))
SELECT format('{:1000000000}', 1)
SELECT printf('%1000000000d', 1)
SELECT bar(1, 0, 1, 1e9)
SELECT bitstring('1', 2000000000)
SELECT array_value(1, 2)::INTEGER[100000000]
SELECT sleep_ms(60000)
SELECT error('harm')
SELECT * FROM repeat('x', 10000000000)
SELECT * FROM item TABLESAMPLE reservoir(1000000000)
SELECT row_number() OVER (ORDER BY a.range, b.range) FROM range(100000) a, range(100000) b
SELECT quantile_cont(a.range, 0.5) FROM range(1000000000) a
SELECT * FROM item ORDER BY random(), (SELECT max(range) FROM range(100000000000))
SELECT * FROM pragma_table_info('/etc/passwd')
SELECT * FROM test_all_types()
SELECT * FROM seq_scan('item')
SELECT * FROM python_map_function()
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM pandas_scan(1)
SELECT * FROM sys
SELECT * FROM engine
SELECT * FROM summary(TABLE item)
SELECT * FROM repeat_row(1, 2, num_rows=100000000000)
SELECT in_search_path('a', 'b'), txid_current(), pg_typeof(1)
