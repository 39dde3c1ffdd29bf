-- A materialized view is computed anew with every update
CREATE MATERIALIZED VIEW reasons AS
SELECT error_code, count(*) AS records
FROM dead_letters
GROUP BY error_code
