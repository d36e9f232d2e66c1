-- From the name of a queue to its routines.

CREATE PROCEDURE queue_over_sql_unknown(IN _queue VARCHAR(64) <exact>)
SQL SECURITY INVOKER
CALL queue_over_sql_refuse(50001, CONCAT('No queue ', COALESCE(QUOTE(_queue), 'NULL'),
  ' is known here. If it is new, run: queue-over-sql sql-api install'))
-----
-- READ COMMITTED, so that clients that look at the end of a queue lock no gaps against each other
-- and against publishers; inside a transaction of the caller's the level stays as it is.
CREATE PROCEDURE queue_over_sql_prepare()
SQL SECURITY INVOKER
BEGIN
  -- Inside a transaction it is refused.
  DECLARE CONTINUE HANDLER FOR 1568 BEGIN END;
  IF @@autocommit THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
END
-----
CREATE FUNCTION queue_over_sql_put(_queue VARCHAR(64) <exact>, _payload LONGTEXT <text>, _allowed INT, _lease BIGINT) RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN RETURN <routine put>(_payload, _allowed, _lease);</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
  RETURN NULL;
END
-----
CREATE FUNCTION queue_over_sql_put_all(_queue VARCHAR(64) <exact>, _payloads LONGTEXT <text>) RETURNS LONGTEXT <text>
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN RETURN <routine put_all>(_payloads);</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
  RETURN NULL;
END
-----
CREATE PROCEDURE queue_over_sql_get(IN _queue VARCHAR(64) <exact>, IN _how_many INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN CALL <routine get>(_how_many);</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
END
-----
CREATE PROCEDURE queue_over_sql_settle(IN _queue VARCHAR(64) <exact>, IN _verb VARCHAR(10) <text>, IN _id BIGINT, IN _token BIGINT, IN _reason LONGTEXT <text>, IN _length BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _settled BOOLEAN;
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN CALL queue_over_sql_prepare(); SELECT <routine settle>(_verb, _id, _token, _reason, _length) INTO _settled;</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
END
-----
CREATE PROCEDURE queue_over_sql_ack_all(IN _queue VARCHAR(64) <exact>, IN _claims LONGTEXT <text>)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _acked INT;
  IF _claims IS NULL OR NOT JSON_VALID(_claims) OR JSON_TYPE(_claims) <> 'ARRAY'
    OR JSON_LENGTH(_claims) > 1000 THEN
    CALL queue_over_sql_refuse(50003, 'claims_json must be a JSON array of at most 1,000 objects with id and token.');
  END IF;
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN CALL queue_over_sql_prepare(); SELECT <routine ack_all>(_claims) INTO _acked;</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
END
-----
CREATE PROCEDURE queue_over_sql_delete(IN _queue VARCHAR(64) <exact>, IN _id BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _deleted BOOLEAN;
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN CALL queue_over_sql_prepare(); SELECT <routine delete>(_id) INTO _deleted;</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
END
