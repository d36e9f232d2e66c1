-- The shared routines behind the public ones. Calling them directly needs separate rights.

-- Refuse a call; an error's text can have 128 characters.
CREATE PROCEDURE queue_over_sql_refuse(IN _number INT, IN _text TEXT <text>)
SQL SECURITY INVOKER
BEGIN
  DECLARE _said VARCHAR(128) <text> DEFAULT LEFT(_text, 128);
  SIGNAL SQLSTATE '43100' SET MYSQL_ERRNO = _number, MESSAGE_TEXT = _said;
END
-----
-- The clock in the tables' unit, microseconds.
CREATE FUNCTION queue_over_sql_now() RETURNS BIGINT
NOT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
-----
-- A duration for people, to the millisecond, as the library writes it: 1 h 30 min.
CREATE FUNCTION queue_over_sql_duration(_us BIGINT) RETURNS VARCHAR(100) <text>
DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
  DECLARE _ms BIGINT DEFAULT ROUND(_us / 1e3);
  IF _ms = 0 THEN
    RETURN '0 s';
  END IF;
  -- CONCAT_WS leaves NULL out.
  RETURN CONCAT_WS(' ',
    CONCAT(NULLIF(_ms DIV 86400000, 0), ' d'), CONCAT(NULLIF(_ms DIV 3600000 % 24, 0), ' h'),
    CONCAT(NULLIF(_ms DIV 60000 % 60, 0), ' min'), CONCAT(NULLIF(_ms DIV 1000 % 60, 0), ' s'),
    CONCAT(NULLIF(_ms % 1000, 0), ' ms'));
END
-----
-- The settings of a queue.
CREATE FUNCTION queue_over_sql_settings(_queue VARCHAR(64) <exact>) RETURNS LONGTEXT <text>
NOT DETERMINISTIC READS SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _settings LONGTEXT <text>;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- SELECT … INTO, here and elsewhere: InnoDB locks what SET and IF read.
  SELECT settings INTO _settings FROM queue_over_sql_queues
   WHERE table_prefix = '<prefix>' AND name = _queue;
  IF _settings IS NULL THEN
    CALL queue_over_sql_refuse(31001, CONCAT('There is no queue ', QUOTE(_queue), ' any more.'));
  END IF;
  RETURN _settings;
END
-----
-- Whether a value is a JSON array of at most 1,000 items.
CREATE FUNCTION queue_over_sql_is_array(_given LONGTEXT <text>) RETURNS BOOLEAN
DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
  -- MySQL's answer to JSON of more than 100 levels.
  DECLARE EXIT HANDLER FOR 3157 RETURN FALSE;
  RETURN _given IS NOT NULL AND JSON_VALID(_given) AND JSON_TYPE(_given) = 'ARRAY'
    AND JSON_LENGTH(_given) <= 1000;
END
-----
-- Whether the server's JSON functions would round a whole number of a JSON array.
-- Without a regular expression, for which MySQL takes too little time. So numbers such as 1e20 seem
-- rounded, too, if the text has 19 digits in a row somewhere.
CREATE FUNCTION queue_over_sql_rounds(_given LONGTEXT <exact>) RETURNS BOOLEAN
DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
  DECLARE _digit INT DEFAULT 1;
  DECLARE _read LONGTEXT <exact>;
  IF NOT <rounds_json> THEN
    RETURN FALSE;
  END IF;
  SET _read = JSON_EXTRACT(_given, '$');
  WHILE _digit <= 9 DO
    SET _given = REPLACE(_given, _digit, '0'), _read = REPLACE(_read, _digit, '0');
    SET _digit = _digit + 1;
  END WHILE;
  SET _read = REPLACE(_read, '0e000', '0e00');
  RETURN LOCATE(REPEAT('0', 19), _given) > 0
    AND (LOCATE('0e00,', _read) > 0 OR LOCATE('0e00]', _read) > 0 OR LOCATE('0e00}', _read) > 0);
END
-----
-- Seconds as microseconds; NULL stays NULL.
CREATE FUNCTION queue_over_sql_microseconds(_what VARCHAR(40) <text>, _seconds DECIMAL(40, 6), _zero BOOLEAN) RETURNS BIGINT
NOT DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
  IF _seconds < 0 OR _seconds > 31557600000 OR (_seconds = 0 AND NOT _zero) THEN
    CALL queue_over_sql_refuse(31003, CONCAT(_what, ' must be ', IF(_zero, 'zero', 'more than zero'),
      ' to 1,000 years in seconds, not ', _seconds, '.'));
  END IF;
  RETURN CAST(_seconds * 1000000 AS SIGNED);
END
-----
-- A unique token for a claim: the AUTO_INCREMENT number of a row that is not kept.
CREATE FUNCTION queue_over_sql_token() RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _token BIGINT;
  INSERT INTO queue_over_sql_rounds VALUES ();
  SET _token = LAST_INSERT_ID();
  DELETE FROM queue_over_sql_rounds WHERE id = _token;
  RETURN _token;
END
-----
-- How long a message waits after a failed attempt, by the queue's retry policy; NULL: no retry.
CREATE FUNCTION queue_over_sql_delay(_settings LONGTEXT <text>, _attempt INT) RETURNS BIGINT
NOT DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
  DECLARE _policy TEXT <text> DEFAULT <setting retry.policy>;
  DECLARE _base DOUBLE DEFAULT <setting retry.arguments.base>;
  DECLARE _factor DOUBLE DEFAULT <setting retry.arguments.factor>;
  DECLARE _longest DOUBLE DEFAULT <setting retry.arguments.maximum>;
  DECLARE _steps INT DEFAULT GREATEST(_attempt, 1) - 1;
  DECLARE _seconds DOUBLE;
  CASE _policy
    WHEN 'NoRetry' THEN RETURN NULL;
    WHEN 'FixedDelay' THEN SET _seconds = <setting retry.arguments.delay>;
    WHEN 'Delays' THEN
      SET _seconds = JSON_EXTRACT(_settings, CONCAT('$.retry.arguments.delays[',
        LEAST(_steps, JSON_LENGTH(_settings, '$.retry.arguments.delays') - 1), ']'));
    WHEN 'ExponentialBackoff' THEN
      -- By logarithms first: a power may be too large for a number.
      IF _base <= 0 OR _longest <= 0 THEN
        SET _seconds = 0;
      ELSEIF LN(_base) + _steps * LN(_factor) >= LN(_longest) THEN
        SET _seconds = _longest;
      ELSE
        SET _seconds = _base * POW(_factor, _steps);
      END IF;
      SET _seconds = _seconds * (1 - <setting retry.arguments.jitter> * RAND());
    ELSE
      CALL queue_over_sql_refuse(31003, 'The retry policy of this queue is written in Python: give delay_seconds.');
  END CASE;
  RETURN CAST(_seconds * 1000000 AS SIGNED);
END
