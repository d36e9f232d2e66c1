-- The public routines. A new queue does not change them, so their grants stay.

CREATE FUNCTION put_message_in_group(queue VARCHAR(64) <exact>, message_group LONGTEXT <exact>, payload LONGTEXT <text>, max_read_cnt BIGINT, invisibility_time DECIMAL(40, 6)) RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
  DECLARE _lease BIGINT DEFAULT queue_over_sql_microseconds('invisibility_time', invisibility_time, TRUE);
  IF max_read_cnt < 0 OR max_read_cnt > 2147483647 THEN
    CALL queue_over_sql_refuse(31003,
      CONCAT('max_read_cnt must be between 0 and 2147483647, not ', max_read_cnt, '.'));
  END IF;
  RETURN queue_over_sql_put(queue, payload, IF(max_read_cnt = 0, 2147483647, max_read_cnt), NULLIF(_lease, 0),
    message_group);
END
-----
CREATE FUNCTION put_message_in_queue(queue VARCHAR(64) <exact>, payload LONGTEXT <text>, max_read_cnt BIGINT, invisibility_time DECIMAL(40, 6)) RETURNS BIGINT
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY DEFINER
RETURN put_message_in_group(queue, NULL, payload, max_read_cnt, invisibility_time)
-----
CREATE FUNCTION put_messages_in_queue(queue VARCHAR(64) <exact>, payloads_json LONGTEXT <text>) RETURNS LONGTEXT <text>
NOT DETERMINISTIC MODIFIES SQL DATA SQL SECURITY DEFINER
RETURN queue_over_sql_put_all(queue, payloads_json)
-----
CREATE PROCEDURE get_message_from_queue(IN queue VARCHAR(64) <exact>)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_get(queue, 1)
-----
CREATE PROCEDURE get_messages_from_queue(IN queue VARCHAR(64) <exact>, IN how_many BIGINT)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_get(queue, how_many)
-----
CREATE PROCEDURE ack_message(IN queue VARCHAR(64) <exact>, IN id BIGINT, IN token BIGINT)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'ack', id, token, NULL, NULL)
-----
CREATE PROCEDURE ack_messages(IN queue VARCHAR(64) <exact>, IN claims_json LONGTEXT <text>)
MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
  DECLARE _fits BOOLEAN DEFAULT queue_over_sql_is_array(claims_json);
  IF _fits THEN
    SELECT COUNT(*) = JSON_LENGTH(claims_json) INTO _fits
      FROM JSON_TABLE(claims_json, '$[*]' COLUMNS (
        id VARCHAR(40) <text> PATH '$.id', token VARCHAR(40) <text> PATH '$.token')) AS c
     WHERE c.id REGEXP '^[0-9]{1,18}$' AND c.token REGEXP '^[0-9]{1,18}$';
  END IF;
  IF NOT _fits THEN
    CALL queue_over_sql_refuse(31003,
      'claims_json must be a JSON array of at most 1,000 objects with id and token, whole numbers.');
  END IF;
  CALL queue_over_sql_act(queue, 'ack_all', NULL, NULL, claims_json, NULL);
END
-----
CREATE PROCEDURE nack_message(IN queue VARCHAR(64) <exact>, IN id BIGINT, IN token BIGINT, IN error LONGTEXT <text>, IN delay_seconds DECIMAL(40, 6))
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'nack', id, token, error, queue_over_sql_microseconds('delay_seconds', delay_seconds, TRUE))
-----
CREATE PROCEDURE release_message(IN queue VARCHAR(64) <exact>, IN id BIGINT, IN token BIGINT)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'release', id, token, NULL, NULL)
-----
CREATE PROCEDURE reject_message(IN queue VARCHAR(64) <exact>, IN id BIGINT, IN token BIGINT, IN reason LONGTEXT <text>)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'reject', id, token, reason, NULL)
-----
CREATE PROCEDURE extend_message(IN queue VARCHAR(64) <exact>, IN id BIGINT, IN token BIGINT, IN seconds DECIMAL(40, 6))
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'extend', id, token, NULL, queue_over_sql_microseconds('seconds', seconds, FALSE))
-----
CREATE PROCEDURE delete_message_from_queue(IN queue VARCHAR(64) <exact>, IN id BIGINT)
MODIFIES SQL DATA SQL SECURITY DEFINER
CALL queue_over_sql_act(queue, 'delete', id, NULL, NULL, NULL)
