-- Call the routines of a queue by its name.

CREATE PROCEDURE queue_over_sql_unknown(IN _queue VARCHAR(64) <exact>)
SQL SECURITY INVOKER
CALL queue_over_sql_refuse(31001, CONCAT('No queue ', COALESCE(QUOTE(_queue), 'NULL'),
  ' is known here. If it is new, run: queue-over-sql sql-api install'))
-----
-- Use READ COMMITTED, so that clients at the end of a queue take no gap locks that block each other
-- and publishers. Inside the caller's transaction the level does not change. Returns whether the next
-- statement is its own transaction, which may be repeated after a deadlock.
CREATE PROCEDURE queue_over_sql_prepare(OUT _alone BOOLEAN)
SQL SECURITY INVOKER
BEGIN
  -- Inside a transaction it is refused.
  DECLARE CONTINUE HANDLER FOR 1568 SET _alone = FALSE;
  SET _alone = @@autocommit;
  IF _alone THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
END
-----
CREATE FUNCTION queue_over_sql_put(_queue VARCHAR(64) <exact>, _payload LONGTEXT <text>, _allowed INT, _lease BIGINT, _group LONGTEXT <exact>) RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN RETURN <routine put>(_payload, _allowed, _lease, _group);</each>
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
CREATE PROCEDURE queue_over_sql_get(IN _queue VARCHAR(64) <exact>, IN _how_many BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _settings LONGTEXT <text>;
  DECLARE _paused_at BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Read here: with a binary log a function would lock what it reads.
  SELECT settings, paused_at INTO _settings, _paused_at FROM queue_over_sql_queues
   WHERE table_prefix = '<prefix>' AND name = _queue;
  IF _settings IS NULL THEN
    CALL queue_over_sql_unknown(_queue);
  END IF;
  IF <setting group_limit> IS NOT NULL THEN
    CALL queue_over_sql_refuse(31003, 'The SQL API cannot get from a queue with groups. Use the library, the command line or HTTP.');
  END IF;
  IF <setting queue_limit> IS NOT NULL THEN
    CALL queue_over_sql_refuse(31003, 'The SQL API cannot get from a queue with a queue_limit. Use the library, the command line or HTTP.');
  END IF;
  IF <setting queue_rate> IS NOT NULL THEN
    CALL queue_over_sql_refuse(31003, 'The SQL API cannot get from a queue with a queue_rate. Use the library, the command line or HTTP.');
  END IF;
  IF _paused_at IS NOT NULL THEN
    SET _settings = NULL;
  END IF;
  CASE _queue
    WHEN '' THEN CALL queue_over_sql_unknown(_queue);
    <each>WHEN '<queue>' THEN CALL <routine get>(_settings, _how_many);</each>
    ELSE CALL queue_over_sql_unknown(_queue);
  END CASE;
END
-----
CREATE PROCEDURE queue_over_sql_act(IN _queue VARCHAR(64) <exact>, IN _verb VARCHAR(10) <text>, IN _id BIGINT, IN _token BIGINT, IN _words LONGTEXT <text>, IN _length BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _settings LONGTEXT <text>;
  DECLARE _done INT;
  DECLARE _alone BOOLEAN DEFAULT FALSE;
  DECLARE _again BOOLEAN DEFAULT TRUE;
  DECLARE _tries INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  <deadlocks>
  SELECT settings INTO _settings FROM queue_over_sql_queues
   WHERE table_prefix = '<prefix>' AND name = _queue;
  IF _settings IS NULL THEN
    CALL queue_over_sql_unknown(_queue);
  END IF;
  WHILE _again DO
    SET _again = FALSE;
    CASE _queue
      WHEN '' THEN CALL queue_over_sql_unknown(_queue);
      <each>WHEN '<queue>' THEN
        CALL queue_over_sql_prepare(_alone);
        SELECT <routine act>(_settings, _verb, _id, _token, _words, _length) INTO _done;</each>
      ELSE CALL queue_over_sql_unknown(_queue);
    END CASE;
  END WHILE;
END
