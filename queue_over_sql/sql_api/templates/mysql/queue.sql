-- The routines of each queue, because stored functions cannot run dynamic SQL.
-- A function is one statement of its caller. So it is atomic under autocommit, and inside the caller's
-- transaction it neither begins nor commits one. Claims are procedures, because MySQL ignores SKIP
-- LOCKED in functions and waits.

-- Publish one message; bytes payloads are base64.
CREATE FUNCTION <routine put>(_payload LONGTEXT <text>, _allowed INT, _lease BIGINT, _group LONGTEXT <exact>) RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _settings LONGTEXT <text> DEFAULT queue_over_sql_settings('<queue>');
  DECLARE _now BIGINT DEFAULT queue_over_sql_now();
  DECLARE _content <content>;
  DECLARE _expires BIGINT DEFAULT <setting expires_us>;
  DECLARE _noted BIGINT;
  -- MySQL's answer to JSON of more than 100 levels.
  DECLARE EXIT HANDLER FOR 3157
    CALL queue_over_sql_refuse(31004, 'The payload is no JSON, or nested too deeply for this server.');
  BEGIN
    -- Of base64 that is none MariaDB makes an error in its strict mode, MySQL a NULL.
    DECLARE CONTINUE HANDLER FOR 1958 SET _content = NULL;
    SET _content = <decoded>;
  END;
  IF _payload IS NULL THEN
    CALL queue_over_sql_refuse(31004, 'The payload must not be NULL; a queue of JSON takes the text null.');
  ELSEIF _content IS NULL THEN
    CALL queue_over_sql_refuse(31004, 'The payload is no base64, as a queue of bytes takes it.');
  ELSEIF LENGTH(_content) > CAST(<setting max_payload_bytes> AS SIGNED) THEN
    CALL queue_over_sql_refuse(31004, CONCAT('The payload takes ', LENGTH(_content), ' bytes; the limit is ',
      <setting max_payload_bytes>, '.'));
  ELSEIF <malformed> THEN
    CALL queue_over_sql_refuse(31004, 'The payload is no JSON, or nested too deeply for this server.');
  END IF;
  IF <setting when_full> <> 'wait' THEN
    CALL queue_over_sql_refuse(31003, 'The SQL API cannot put into a queue whose when_full is not wait. Use the library, the command line or HTTP.');
  END IF;
  IF _group IS NOT NULL AND NOT <has_groups> THEN
    CALL queue_over_sql_refuse(31003, 'The queue has no groups. If you have turned them on, run: queue-over-sql sql-api install');
  ELSEIF CHAR_LENGTH(_group) > <group_length> THEN
    CALL queue_over_sql_refuse(31003, 'message_group must have at most <group_length> characters.');
  END IF;
  IF _expires IS NOT NULL THEN
    SELECT expiring_since INTO _noted FROM queue_over_sql_queues
     WHERE table_prefix = '<prefix>' AND name = '<queue>';
    IF _noted IS NULL THEN
      UPDATE queue_over_sql_queues SET expiring_since = _now, schema_release = '<release_of_expiry>'
       WHERE table_prefix = '<prefix>' AND name = '<queue>' AND expiring_since IS NULL;
    END IF;
  END IF;
  -- The trace that the client is in, as OpenTelemetry writes it.
  INSERT INTO <live> (payload, published_at, scheduled_at, available_at, max_attempts, lease_us, expires_at<group_column>, headers)
  VALUES (_content, _now, _now, _now, _allowed, _lease, _now + _expires<group_value>,
    IF(@queue_over_sql_traceparent REGEXP '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$',
       CONCAT('{"traceparent":"', @queue_over_sql_traceparent, '"}'), NULL));
  RETURN LAST_INSERT_ID();
END
-----
-- Publish several messages; returns the ids as a JSON array, in order.
CREATE FUNCTION <routine put_all>(_payloads LONGTEXT <text>) RETURNS LONGTEXT <text>
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _ids LONGTEXT <text> DEFAULT '';
  DECLARE _index INT DEFAULT 0;
  DECLARE _path VARCHAR(20) <text>;
  -- MySQL reads a text anew for each item.
  DECLARE _array JSON;
  IF NOT queue_over_sql_is_array(_payloads) THEN
    CALL queue_over_sql_refuse(31003, 'payloads_json must be a JSON array of at most 1,000 payloads.');
  ELSEIF queue_over_sql_rounds(_payloads) THEN
    CALL queue_over_sql_refuse(31004, 'MySQL would round a whole number of more than 64 bits in an array. Put it with put_message_in_queue.');
  END IF;
  SET _array = _payloads;
  WHILE _index < JSON_LENGTH(_array) DO
    SET _path = CONCAT('$[', _index, ']');
    IF <not_strings> THEN
      CALL queue_over_sql_refuse(31004, 'The payloads of this queue must be JSON strings.');
    END IF;
    SET _ids = CONCAT(_ids, ', ', <routine put>(<element>, NULL, NULL, NULL));
    SET _index = _index + 1;
  END WHILE;
  RETURN CONCAT('[', SUBSTR(_ids, 3), ']');
END
-----
-- Finish a locked message: archive it, or count it if the queue does not keep it.
CREATE FUNCTION <routine finish>(_settings LONGTEXT <text>, _id BIGINT, _outcome VARCHAR(20) <exact>, _reason LONGTEXT <text>) RETURNS BOOLEAN
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _now BIGINT DEFAULT queue_over_sql_now();
  DECLARE _window BIGINT DEFAULT <setting dedup_window_us>;
  DECLARE _keeps VARCHAR(10) <text> DEFAULT <setting archive>;
  DECLARE _key VARCHAR(200) <exact>;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  IF _window IS NOT NULL THEN
    SELECT message_key INTO _key FROM <live> WHERE id = _id FOR UPDATE;
    IF _key IS NOT NULL THEN
      DELETE FROM <keys> WHERE message_key = _key;
      INSERT INTO <keys> (message_key, message_id, expires_at) VALUES (_key, _id, _now + _window);
    END IF;
  END IF;
  IF _keeps = 'all' OR (_keeps = 'failed' AND _outcome <> 'done') THEN
    INSERT INTO <archive> (<carried>, last_attempt_at, last_error, finished_at, outcome)
    SELECT <carried>, IF(_outcome = 'done', last_attempt_at, _now),
           CASE WHEN _outcome = 'done' THEN last_error ELSE LEFT(_reason, 20000) END, _now, _outcome
      FROM <live> WHERE id = _id FOR UPDATE;
  ELSEIF _outcome <> 'done' THEN
    UPDATE queue_over_sql_queues SET discarded_count = discarded_count + 1
     WHERE table_prefix = '<prefix>' AND name = '<queue>';
  END IF;
  DELETE FROM <live> WHERE id = _id;
  RETURN TRUE;
END
-----
-- Give back messages whose lease has expired, of all consumers; returns how many are ready again.
-- As the reaper: those of a consumer that died are suspects, and of several it gives each one attempt more.
CREATE PROCEDURE <routine restore>(IN _settings LONGTEXT <text>, OUT _restored INT)
MODIFIES SQL DATA SQL SECURITY INVOKER
give_back: BEGIN
  DECLARE _now BIGINT DEFAULT queue_over_sql_now();
  DECLARE _why, _earlier LONGTEXT <text>;
  DECLARE _holders LONGTEXT <exact> DEFAULT '';
  DECLARE _holder, _name, _host VARCHAR(255) <exact>;
  DECLARE _done, _ended, _again, _durable, _died BOOLEAN DEFAULT FALSE;
  DECLARE _id, _allowed, _attempts, _here, _others, _ends, _pid BIGINT;
  DECLARE _usual BIGINT DEFAULT <setting max_attempts>;
  DECLARE _feeds BOOLEAN DEFAULT COALESCE(JSON_TYPE(JSON_EXTRACT(_settings, '$.dead_letter_queue')) = 'STRING', FALSE);
  -- Only the reaper publishes dead letters to another queue. So of messages without attempts this looks only
  -- at those that may get one more.
  DECLARE _dead CURSOR FOR
    SELECT m.id, m.consumer_id FROM <live> AS m WHERE m.consumer_id IS NOT NULL AND m.lease_expires_at <= _now
       AND (NOT _feeds OR m.attempt_count < COALESCE(m.max_attempts, _usual)
            OR (COALESCE(m.max_attempts, _usual) > 1
                AND NOT EXISTS (SELECT 1 FROM queue_over_sql_consumers AS c WHERE c.consumer_id = m.consumer_id
                  AND (c.durable <> 0 OR (_now - c.heartbeat_at) * 2 <= c.expires_at - c.heartbeat_at))
                AND (EXISTS (SELECT 1 FROM <live> AS o
                       WHERE o.consumer_id = m.consumer_id AND o.id <> m.id AND o.lease_expires_at <= _now)
                     OR EXISTS (SELECT 1 FROM queue_over_sql_consumers AS c
                       WHERE c.consumer_id = m.consumer_id AND c.expires_at < 0))))
     LIMIT 100 FOR UPDATE SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
  SET _restored = 0;
  -- First without locks, which would be in the way of those who are settling what they hold.
  SELECT EXISTS (SELECT 1 FROM <live> WHERE consumer_id IS NOT NULL AND lease_expires_at <= _now)
    INTO _ended;
  IF NOT _ended THEN
    LEAVE give_back;
  END IF;
  -- Lock and count them.
  OPEN _dead;
  each_holder: LOOP
    FETCH _dead INTO _id, _holder;
    IF _done THEN
      LEAVE each_holder;
    END IF;
    SET _holders = CONCAT(_holders, '/', _holder, '/');
  END LOOP;
  CLOSE _dead;
  SET _done = FALSE;
  OPEN _dead;
  each_row: LOOP
    FETCH _dead INTO _id, _holder;
    IF _done THEN
      LEAVE each_row;
    END IF;
    SET _attempts = NULL;
    SELECT attempt_count, CAST(COALESCE(max_attempts, <setting max_attempts>) AS SIGNED), consumer_id, last_error
      INTO _attempts, _allowed, _holder, _earlier
      FROM <live> WHERE id = _id AND lease_expires_at <= _now FOR UPDATE;
    -- Without a lock, which would keep its heartbeats waiting. It sends three in its timeout.
    SET _name = NULL, _durable = FALSE, _died = TRUE, _ends = 1;
    SELECT name, host, pid, durable <> 0, (_now - heartbeat_at) * 2 > expires_at - heartbeat_at, expires_at
      INTO _name, _host, _pid, _durable, _died, _ends
      FROM queue_over_sql_consumers WHERE consumer_id = _holder;
    SET _done = FALSE;
    SET _here = (LENGTH(_holders) - LENGTH(REPLACE(_holders, CONCAT('/', _holder, '/'), '')))
                DIV (LENGTH(_holder) + 2) - 1;
    -- Below zero if nobody has written what it held in all queues.
    SET _others = GREATEST(_here, - _ends);
    SET _why = CASE WHEN NOT _died THEN '<expired>'
      WHEN _durable THEN CONCAT('<died> (', _name, ')')
      ELSE CONCAT('<died>', CASE WHEN _others < 1 THEN '' WHEN _others = 1 THEN ' and 1 other'
                                 ELSE CONCAT(' and ', _others, ' others') END, ': ',
                  COALESCE(CONCAT(_name, ', process ', _pid, ' on host ', _host), _holder)) END;
    -- Another of them may have killed it.
    SET _again = _died AND NOT _durable AND _allowed > 1 AND (_here > 0 OR (_others > 0 AND NOT (
      COALESCE(_earlier, '') LIKE '<died>: %'
      OR COALESCE(_earlier, '') REGEXP '^<died> and [0-9]{1,9} others?: ')));
    IF _earlier LIKE '<died>%' OR _earlier LIKE '<expired>%' THEN
      SET _earlier = IF(LOCATE('<before>', _earlier) > 0,
                        SUBSTR(_earlier, LOCATE('<before>', _earlier) + <behind_before>), NULL);
    END IF;
    SET _why = LEFT(IF(_earlier <> '', CONCAT(_why, '<before>', _earlier), _why), 20000);
    IF _attempts >= _allowed AND NOT _again THEN
      IF NOT _feeds THEN
        SET _ended = <routine finish>(_settings, _id, 'failed', CONCAT('<spent>', _why));
      END IF;
    ELSEIF _attempts IS NOT NULL THEN
      UPDATE <live> SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,
             lease_expires_at = NULL, last_attempt_at = _now, last_error = _why,
             max_attempts = IF(_again, LEAST(_allowed + 1, 2147483647), max_attempts)
       WHERE id = _id;
      SET _restored = _restored + 1;
    END IF;
  END LOOP;
  CLOSE _dead;
END
-----
-- Claim messages in a transaction, oldest first; returns a JSON array of the token and the ids, or NULL.
-- Suspects, one of which may have killed its consumer, come apart, and nothing else with them: of such
-- a message _together says how many of them may be claimed.
CREATE PROCEDURE <routine claim>(IN _settings LONGTEXT <text>, IN _how_many BIGINT, OUT _claim LONGTEXT <text>)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _levels INT DEFAULT <setting priorities>;
  DECLARE _lease BIGINT DEFAULT <setting lease_us>;
  DECLARE _ids LONGTEXT <text> DEFAULT '';
  DECLARE _missing BIGINT DEFAULT _how_many;
  DECLARE _level, _look, _restored INT DEFAULT 0;
  DECLARE _done, _suspects, _late, _ended BOOLEAN DEFAULT FALSE;
  DECLARE _now, _id, _token, _together, _most, _expiry, _waited BIGINT;
  DECLARE _due CURSOR FOR
    SELECT id, CASE WHEN last_error LIKE '<died>: %' THEN 1
                    WHEN last_error REGEXP '^<died> and [0-9]{1,9} others?: '
                    THEN GREATEST(1, FLOOR(SQRT(1 + CAST(SUBSTRING_INDEX(SUBSTR(last_error, <behind_died>), ' ', 1) AS SIGNED))) DIV 2)
               END,
           IF(attempt_count = 0, expires_at, NULL), expires_at - published_at
      FROM <live> <claim_index>
     WHERE consumer_id IS NULL AND priority = _level AND available_at <= _now
     ORDER BY available_at, id LIMIT _missing FOR UPDATE SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
  IF _how_many IS NULL OR _how_many NOT BETWEEN 1 AND 1000 THEN
    CALL queue_over_sql_refuse(31003, 'how_many must be between 1 and 1000.');
  END IF;
  looks: LOOP
    IF _settings IS NULL THEN
      LEAVE looks;
    END IF;
    SET _level = 0;
    SET _now = queue_over_sql_now();
    WHILE _level < _levels AND _missing > 0 AND NOT _suspects DO
      SET _done = FALSE, _late = FALSE;
      OPEN _due;
      each_row: LOOP
        FETCH _due INTO _id, _together, _expiry, _waited;
        IF _done THEN
          LEAVE each_row;
        END IF;
        IF _expiry <= _now THEN
          SET _ended = <routine finish>(_settings, _id, 'expired',
            CONCAT('expired: not started within ', queue_over_sql_duration(_waited)));
          SET _late = TRUE;
          ITERATE each_row;
        END IF;
        IF _together IS NOT NULL THEN
          SET _most = LEAST(COALESCE(_most, _together), _together);
          IF (_ids <> '' AND NOT _suspects) OR _how_many - _missing >= _most THEN
            SET _suspects = TRUE;
            LEAVE each_row;
          END IF;
          SET _suspects = TRUE;
        ELSEIF _suspects THEN
          LEAVE each_row;
        END IF;
        IF _token IS NULL THEN
          SET _token = queue_over_sql_token();
        END IF;
        UPDATE <live> SET consumer_id = '<me>', consumer_round = _token, claimed_at = _now,
               lease_expires_at = _now + COALESCE(LEAST(lease_us, 31557600000000000), _lease),
               attempt_count = LEAST(attempt_count, 2147483646) + 1
         WHERE id = _id AND consumer_id IS NULL;
        IF ROW_COUNT() = 1 THEN
          SET _ids = CONCAT(_ids, ',', _id);
          SET _missing = _missing - 1;
          SET @queue_over_sql_claims = LEFT(
            CONCAT(' <queue>:', _id, ':', _token, COALESCE(@queue_over_sql_claims, ' ')), 30000);
        END IF;
      END LOOP;
      CLOSE _due;
      -- What had expired hides no others.
      IF NOT _late THEN
        SET _level = _level + 1;
      END IF;
    END WHILE;
    SET _look = _look + 1;
    IF _missing = 0 OR _suspects OR _look = 2 THEN
      LEAVE looks;
    END IF;
    CALL <routine restore>(_settings, _restored);
    IF _restored = 0 THEN
      LEAVE looks;
    END IF;
  END LOOP;
  SET _claim = CONCAT('[', _token, _ids, ']');
END
-----
-- Claim and return messages; nothing without settings, which is how a paused queue looks here.
CREATE PROCEDURE <routine get>(IN _settings LONGTEXT <text>, IN _how_many BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _claim LONGTEXT <text>;
  DECLARE _token BIGINT;
  DECLARE _alone BOOLEAN DEFAULT FALSE;
  DECLARE _again BOOLEAN DEFAULT TRUE;
  DECLARE _tries INT DEFAULT 0;
  <deadlocks>
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    IF _alone THEN
      ROLLBACK;
    END IF;
    RESIGNAL;
  END;
  WHILE _again DO
    SET _again = FALSE;
    CALL queue_over_sql_prepare(_alone);
    -- Done as a whole before anything of it is shown.
    IF _alone THEN
      START TRANSACTION;
    END IF;
    CALL <routine claim>(_settings, _how_many, _claim);
    IF _alone THEN
      COMMIT;
    END IF;
  END WHILE;
  SET _token = JSON_UNQUOTE(JSON_EXTRACT(_claim, '$[0]'));
  SELECT m.id, m.consumer_round AS token, <shown> AS payload, m.kind, m.headers, m.message_key,
         m.priority, m.attempt_count AS read_cnt,
         CAST(COALESCE(m.max_attempts, <setting max_attempts>) AS SIGNED) AS max_read_cnt,
         TIMESTAMPADD(MICROSECOND, m.published_at, '1970-01-01') AS created_at,
         TIMESTAMPADD(MICROSECOND, m.lease_expires_at, '1970-01-01') AS next_read<own>
    FROM JSON_TABLE(COALESCE(_claim, '[]'), '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) AS c
    JOIN <live> AS m ON m.id = c.id
   WHERE c.n > 1 AND m.consumer_id = '<me>' AND m.consumer_round = _token
   ORDER BY c.n;
END
-----
-- Settle one message with its token; an error if the claim is lost.
CREATE FUNCTION <routine settle>(_settings LONGTEXT <text>, _verb VARCHAR(10) <text>, _id BIGINT, _token BIGINT, _reason LONGTEXT <text>, _length BIGINT) RETURNS BOOLEAN
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _now BIGINT DEFAULT queue_over_sql_now();
  DECLARE _delay BIGINT DEFAULT _length;
  DECLARE _attempts, _allowed INT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT attempt_count, CAST(COALESCE(max_attempts, <setting max_attempts>) AS SIGNED)
    INTO _attempts, _allowed
    FROM <live> WHERE id = _id AND consumer_id = '<me>' AND consumer_round = _token FOR UPDATE;
  IF _attempts IS NULL THEN
    CALL queue_over_sql_refuse(31002, CONCAT('The claim on message ', COALESCE(_id, 'NULL'),
      ' is lost; nothing was changed. Do not repeat this call: get the next message.'));
  END IF;
  CASE _verb
    WHEN 'ack' THEN RETURN <routine finish>(_settings, _id, 'done', NULL);
    WHEN 'reject' THEN RETURN <routine finish>(_settings, _id, 'rejected', _reason);
    WHEN 'release' THEN
      UPDATE <live> SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,
             lease_expires_at = NULL, attempt_count = attempt_count - 1
       WHERE id = _id;
    WHEN 'extend' THEN
      -- Without a length it is that of the queue or the message.
      UPDATE <live> SET lease_expires_at = _now + COALESCE(_length, LEAST(lease_us, 31557600000000000), <setting lease_us>)
       WHERE id = _id;
    WHEN 'nack' THEN
      IF _delay IS NULL AND _attempts < _allowed THEN
        SET _delay = queue_over_sql_delay(_settings, _attempts);
      END IF;
      IF _delay IS NULL OR _attempts >= _allowed THEN
        RETURN <routine finish>(_settings, _id, 'failed', _reason);
      END IF;
      UPDATE <live> SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,
             lease_expires_at = NULL, available_at = _now + _delay, last_attempt_at = _now,
             last_error = LEFT(_reason, 20000)
       WHERE id = _id;
  END CASE;
  RETURN TRUE;
END
-----
-- Acknowledge all of these, or none and return an error that names the lost ones.
CREATE FUNCTION <routine ack_all>(_settings LONGTEXT <text>, _claims LONGTEXT <text>) RETURNS INT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _lost LONGTEXT <text> DEFAULT '';
  DECLARE _acked INT DEFAULT 0;
  DECLARE _done, _ended BOOLEAN DEFAULT FALSE;
  DECLARE _id, _token, _held BIGINT;
  -- By id, as everybody locks rows.
  DECLARE _all CURSOR FOR
    SELECT c.id, c.token
      FROM JSON_TABLE(_claims, '$[*]' COLUMNS (id BIGINT PATH '$.id', token BIGINT PATH '$.token')) AS c
     ORDER BY c.id;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
  OPEN _all;
  each_row: LOOP
    FETCH _all INTO _id, _token;
    IF _done THEN
      LEAVE each_row;
    END IF;
    SET _held = NULL;
    SELECT id INTO _held FROM <live>
     WHERE id = _id AND consumer_id = '<me>' AND consumer_round = _token FOR UPDATE;
    SET _done = FALSE;
    IF _held IS NULL THEN
      SET _lost = CONCAT(_lost, ', ', COALESCE(_id, 'NULL'));
    ELSE
      SET _ended = <routine finish>(_settings, _id, 'done', NULL);
      SET _acked = _acked + 1;
    END IF;
  END LOOP;
  CLOSE _all;
  IF _lost <> '' THEN
    CALL queue_over_sql_refuse(31002, CONCAT('None was acknowledged, for the claim is lost on: ', SUBSTR(_lost, 3)));
  END IF;
  RETURN _acked;
END
-----
-- Acknowledge without a token, if it is clear who holds the message.
CREATE FUNCTION <routine delete>(_settings LONGTEXT <text>, _id BIGINT) RETURNS BOOLEAN
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE _attempts INT;
  DECLARE _token BIGINT;
  DECLARE _key VARCHAR(200) <exact>;
  DECLARE _now BIGINT DEFAULT queue_over_sql_now();
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT consumer_round, attempt_count, message_key INTO _token, _attempts, _key
    FROM <live> WHERE id = _id AND consumer_id = '<me>' AND lease_expires_at > _now FOR UPDATE;
  -- A message with a key may have been replaced, and then its attempts were counted anew.
  IF _token IS NOT NULL AND NOT (_attempts = 1 AND _key IS NULL)
    AND LOCATE(CONCAT(' <queue>:', _id, ':', _token, ' '), COALESCE(@queue_over_sql_claims, '')) = 0 THEN
    CALL queue_over_sql_refuse(31002, CONCAT('Message ', _id,
      ' was delivered before, or has a key: use ack_message with its token. Nothing was changed.'));
  END IF;
  RETURN <routine settle>(_settings, 'ack', _id, _token, NULL, NULL);
END
-----
-- All operations on claimed messages.
CREATE FUNCTION <routine act>(_settings LONGTEXT <text>, _verb VARCHAR(10) <text>, _id BIGINT, _token BIGINT, _words LONGTEXT <text>, _length BIGINT) RETURNS INT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  CASE _verb
    WHEN 'ack_all' THEN RETURN <routine ack_all>(_settings, _words);
    WHEN 'delete' THEN RETURN <routine delete>(_settings, _id);
    ELSE RETURN <routine settle>(_settings, _verb, _id, _token, _words, _length);
  END CASE;
END
