-- ROWS rows in memory, indexes over them, and answers that need both.
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, number INTEGER, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
INSERT INTO t SELECT i, 'name ' || (i * 7919 % ROWS), i * 2654435761 % 1000003, hex(i * 31) || substr('lorem ipsum dolor sit amet consectetur', 1, i % 38) FROM n;
CREATE INDEX by_name ON t(name);
CREATE INDEX by_number ON t(number, body);
DELETE FROM t WHERE id % 5 = 0;
UPDATE t SET body = body || name WHERE number % 11 = 0;
SELECT count(*), sum(number), sum(length(body)) FROM t;
SELECT name, number, body FROM t INDEXED BY by_number WHERE number BETWEEN 1000 AND 1200 ORDER BY number, body;
SELECT sum(a.number * b.id % 1000003) FROM t a JOIN t b ON a.name = 'name ' || b.id;
PRAGMA integrity_check;
