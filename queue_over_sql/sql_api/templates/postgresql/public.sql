-- The public functions.

CREATE OR REPLACE FUNCTION <schema>.put_message_in_group(queue text, message_group text, payload text, max_read_cnt bigint, invisibility_time double precision) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  lease bigint := <schema>.queue_over_sql_microseconds('invisibility_time', invisibility_time, true);
BEGIN
  IF max_read_cnt < 0 OR max_read_cnt > 2147483647 THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('max_read_cnt must be between 0 and 2147483647, not %s.', max_read_cnt);
  END IF;
  RETURN <schema>.queue_over_sql_put(queue, settings, payload,
    CASE max_read_cnt WHEN 0 THEN 2147483647 ELSE max_read_cnt END, nullif(lease, 0), message_group);
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.put_message_in_queue(queue text, payload text, max_read_cnt bigint, invisibility_time double precision) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
  SELECT <schema>.put_message_in_group(queue, NULL, payload, max_read_cnt, invisibility_time)
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.put_messages_in_queue(queue text, payloads_json text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  payloads json := <schema>.queue_over_sql_json('payloads_json', payloads_json, 'QS003');
  ids bigint[] := '{}';
  one json;
BEGIN
  IF payloads IS NULL OR json_typeof(payloads) <> 'array' OR json_array_length(payloads) > 1000 THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = 'payloads_json must be a JSON array of at most 1,000 payloads.';
  END IF;
  FOR one IN SELECT e.value FROM json_array_elements(payloads) WITH ORDINALITY AS e(value, n) ORDER BY e.n LOOP
    IF settings->>'payload' <> 'json' AND json_typeof(one) <> 'string' THEN
      RAISE EXCEPTION USING ERRCODE = 'QS004',
        MESSAGE = format('The payloads of queue %L must be JSON strings.', queue);
    END IF;
    ids := ids || <schema>.queue_over_sql_put(queue, settings,
      CASE settings->>'payload' WHEN 'json' THEN one::text ELSE <schema>.queue_over_sql_text(one) END, NULL, NULL, NULL);
  END LOOP;
  RETURN to_json(ids);
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.get_messages_from_queue(queue text, how_many bigint)
RETURNS TABLE (id bigint, token bigint, payload text, kind text, headers text, message_key text,
  priority int, read_cnt int, max_read_cnt int, created_at timestamptz, next_read timestamptz, own_columns json)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_variable
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  live text := <schema>.queue_over_sql_table(queue, '');
  stamp bigint;
  missing bigint := how_many;
  claims text := '';
  suspects boolean := false;
  own text;
  one record;
  late int;
  expiry text := CASE WHEN <schema>.queue_over_sql_expiring(queue) THEN 'expires_at' ELSE 'NULL::bigint' END;
BEGIN
  IF how_many IS NULL OR how_many NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003', MESSAGE = 'how_many must be between 1 and 1000.';
  END IF;
  IF settings->>'group_limit' IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('The SQL API cannot get messages of queue %L, because it has groups.', queue),
      HINT = 'Consume it with the library, the command line or HTTP.';
  END IF;
  IF settings->>'queue_limit' IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('The SQL API cannot get messages of queue %L, because it has a queue_limit.', queue),
      HINT = 'Consume it with the library, the command line or HTTP.';
  END IF;
  IF settings->>'queue_rate' IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('The SQL API cannot get messages of queue %L, because it has a queue_rate.', queue),
      HINT = 'Consume it with the library, the command line or HTTP.';
  END IF;
  IF EXISTS (SELECT FROM <schema>.queue_over_sql_queues AS q
              WHERE q.table_prefix = '<prefix>' AND q.name = queue AND q.paused_at IS NOT NULL) THEN
    RETURN;
  END IF;
  SELECT coalesce('(SELECT row_to_json(c) FROM (SELECT ' || string_agg(format('stamped.%I', name), ', ')
                  || ') AS c)', 'NULL::json')
    INTO own FROM jsonb_object_keys(settings->'columns') AS name;
  stamp := nextval(<rounds>);
  FOR look IN 1..2 LOOP
    FOR level IN 0..CAST(settings->>'priorities' AS int) - 1 LOOP
      EXIT WHEN missing = 0 OR suspects;
      -- What had expired hides no others.
      LOOP
        late := 0;
        -- Suspects, one of which may have killed its consumer, come apart, and nothing else with them.
        -- MATERIALIZED: a planner that ran the pick twice would exceed the limit.
        FOR one IN EXECUTE format(
          'WITH picked AS MATERIALIZED ('
          ' SELECT id, available_at,'
          ' CASE WHEN last_error IS NOT NULL THEN %4$I.queue_over_sql_together(last_error) END AS together'
          ' FROM %1$s WHERE consumer_id IS NULL AND priority = $1 AND available_at <= $2'
          ' ORDER BY available_at, id LIMIT $3 FOR UPDATE SKIP LOCKED),'
          ' seen AS ('
          ' SELECT id, row_number() OVER oldest AS place,'
          ' bool_and(together IS NULL) OVER oldest AS innocent, bool_or(together IS NULL) OVER oldest AS mixed,'
          ' min(together) OVER () AS together FROM picked WINDOW oldest AS (ORDER BY available_at, id)),'
          ' kept AS ('
          ' SELECT id FROM seen WHERE innocent OR (NOT mixed AND $6 AND place <= together)),'
          ' stamped AS ('
          ' UPDATE %1$s AS m SET consumer_id = ''<me>'', consumer_round = $4, claimed_at = $2,'
          ' lease_expires_at = $2 + coalesce(CASE WHEN m.lease_us > 31557600000000000 THEN 31557600000000000 ELSE m.lease_us END, $5),'
          ' attempt_count = CASE WHEN m.attempt_count < 2147483647 THEN m.attempt_count + 1 ELSE m.attempt_count END'
          ' FROM kept WHERE m.id = kept.id RETURNING m.*)'
          -- Of the same types for all queues: a session keeps the plans of what is done with them.
          ' SELECT id, %3$s AS payload, CAST(kind AS text) AS kind, CAST(headers AS text) AS headers,'
          ' CAST(message_key AS text) AS message_key, priority, attempt_count, max_attempts,'
          ' published_at, lease_expires_at, claimed_at, %5$s AS expires_at, %2$s AS own, met FROM stamped'
          ' RIGHT JOIN (SELECT count(together) > 0 AS met FROM picked) AS suspects ON true'
          ' ORDER BY available_at, id', live, own,
          CASE settings->>'payload' WHEN 'bytes' THEN 'translate(encode(payload, ''base64''), E''\n'', '''')'
                                    ELSE 'CAST(payload AS text)' END, <schema_text>, expiry)
          USING level, <schema>.queue_over_sql_now(), missing, stamp, CAST(settings->>'lease_us' AS bigint), missing = how_many
        LOOP
          suspects := one.met;
          EXIT WHEN one.id IS NULL;
          IF one.attempt_count = 1 AND one.expires_at <= one.claimed_at THEN
            PERFORM <schema>.queue_over_sql_finish(queue, settings, one.id, '<me>', stamp, 'expired',
              'expired: not started within ' || <schema>.queue_over_sql_duration(one.expires_at - one.published_at));
            late := late + 1;
            CONTINUE;
          END IF;
          id := one.id;
          token := stamp;
          payload := one.payload;
          kind := one.kind;
          headers := one.headers;
          message_key := one.message_key;
          priority := one.priority;
          read_cnt := one.attempt_count;
          max_read_cnt := coalesce(one.max_attempts, CAST(settings->>'max_attempts' AS int));
          created_at := to_timestamp(one.published_at / 1000000.0);
          next_read := to_timestamp(one.lease_expires_at / 1000000.0);
          own_columns := one.own;
          missing := missing - 1;
          claims := format(' %s:%s:%s', queue, id, stamp) || claims;
          RETURN NEXT;
        END LOOP;
        EXIT WHEN late = 0 OR missing = 0 OR suspects;
      END LOOP;
    END LOOP;
    EXIT WHEN missing = 0 OR suspects OR look = 2 OR <schema>.queue_over_sql_restore(queue, settings) = 0;
  END LOOP;
  IF claims <> '' THEN
    PERFORM <schema>.queue_over_sql_remember(claims);
  END IF;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.get_message_from_queue(queue text)
RETURNS TABLE (id bigint, token bigint, payload text, kind text, headers text, message_key text,
  priority int, read_cnt int, max_read_cnt int, created_at timestamptz, next_read timestamptz, own_columns json)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
  SELECT * FROM <schema>.get_messages_from_queue(queue, 1)
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.ack_message(queue text, id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
BEGIN
  IF NOT <schema>.queue_over_sql_finish(queue, settings, id, '<me>', token, 'done', NULL) THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.ack_messages(queue text, claims_json text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  claims jsonb;
  acked int := 0;
  lost text := '';
  one record;
BEGIN
  -- Numbers need no escape, and some escapes are none that jsonb can keep.
  IF strpos(claims_json, '\') = 0 THEN
    claims := <schema>.queue_over_sql_json('claims_json', claims_json, 'QS003');
  END IF;
  IF claims IS NULL OR jsonb_typeof(claims) <> 'array' OR jsonb_array_length(claims) > 1000
    OR EXISTS (SELECT FROM jsonb_array_elements(claims) AS e(value)
                WHERE coalesce(e.value->>'id', '') !~ '^[0-9]{1,18}$'
                   OR coalesce(e.value->>'token', '') !~ '^[0-9]{1,18}$') THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = 'claims_json must be a JSON array of at most 1,000 objects with id and token, whole numbers.';
  END IF;
  -- By id, as everybody locks rows.
  FOR one IN SELECT c.id, c.token FROM jsonb_to_recordset(claims) AS c(id bigint, token bigint) ORDER BY c.id LOOP
    IF <schema>.queue_over_sql_finish(queue, settings, one.id, '<me>', one.token, 'done', NULL) THEN
      acked := acked + 1;
    ELSE
      lost := lost || ', ' || one.id;
    END IF;
  END LOOP;
  IF lost <> '' THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, substr(lost, 3));
  END IF;
  RETURN acked;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.nack_message(queue text, id bigint, token bigint, error text, delay_seconds double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  live text := <schema>.queue_over_sql_table(queue, '');
  delay bigint := <schema>.queue_over_sql_microseconds('delay_seconds', delay_seconds, true);
  now_us bigint := <schema>.queue_over_sql_now();
  held record;
BEGIN
  EXECUTE format('SELECT attempt_count, coalesce(max_attempts, $3) AS allowed FROM %s'
                 ' WHERE id = $1 AND consumer_id = ''<me>'' AND consumer_round = $2 FOR UPDATE', live)
    INTO held USING id, token, CAST(settings->>'max_attempts' AS int);
  IF held.attempt_count IS NULL THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
  IF delay IS NULL AND held.attempt_count < held.allowed THEN
    delay := <schema>.queue_over_sql_delay(queue, settings, held.attempt_count);
  END IF;
  IF delay IS NULL OR held.attempt_count >= held.allowed THEN
    PERFORM <schema>.queue_over_sql_finish(queue, settings, id, '<me>', token, 'failed', error);
    RETURN;
  END IF;
  EXECUTE format('UPDATE %s SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,'
                 ' lease_expires_at = NULL, available_at = $2, last_attempt_at = $3, last_error = $4'
                 ' WHERE id = $1', live) USING id, now_us + delay, now_us, left(error, 20000);
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.release_message(queue text, id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  touched int;
BEGIN
  EXECUTE format('UPDATE %s SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,'
                 ' lease_expires_at = NULL, attempt_count = attempt_count - 1'
                 ' WHERE id = $1 AND consumer_id = ''<me>'' AND consumer_round = $2',
                 <schema>.queue_over_sql_table(queue, '')) USING id, token;
  GET DIAGNOSTICS touched = ROW_COUNT;
  IF touched = 0 THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.reject_message(queue text, id bigint, token bigint, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
BEGIN
  IF NOT <schema>.queue_over_sql_finish(queue, settings, id, '<me>', token, 'rejected', reason) THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.extend_message(queue text, id bigint, token bigint, seconds double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  lease bigint := <schema>.queue_over_sql_microseconds('seconds', seconds, false);
  touched int;
BEGIN
  -- Without a length it is that of the queue or the message.
  EXECUTE format('UPDATE %s SET lease_expires_at = $3 + coalesce($4, CASE WHEN lease_us > 31557600000000000 THEN 31557600000000000 ELSE lease_us END, $5)'
                 ' WHERE id = $1 AND consumer_id = ''<me>'' AND consumer_round = $2',
                 <schema>.queue_over_sql_table(queue, ''))
    USING id, token, <schema>.queue_over_sql_now(), lease, CAST(settings->>'lease_us' AS bigint);
  GET DIAGNOSTICS touched = ROW_COUNT;
  IF touched = 0 THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
END
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.delete_message_from_queue(queue text, id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  settings jsonb := <schema>.queue_over_sql_settings(queue);
  held record;
BEGIN
  EXECUTE format('SELECT consumer_round, attempt_count, message_key FROM %s'
                 ' WHERE id = $1 AND consumer_id = ''<me>'' AND lease_expires_at > $2 FOR UPDATE',
                 <schema>.queue_over_sql_table(queue, ''))
    INTO held USING id, <schema>.queue_over_sql_now();
  IF held.consumer_round IS NULL THEN
    PERFORM <schema>.queue_over_sql_claim_lost(queue, id::text);
  END IF;
  -- A message with a key may have been replaced, and then its attempts were counted anew.
  IF NOT (held.attempt_count = 1 AND held.message_key IS NULL)
    AND position(format(' %s:%s:%s ', queue, id, held.consumer_round)
                 IN coalesce(current_setting('queue_over_sql.claims', true), '')) = 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'QS002',
      MESSAGE = format('Queue %L: message %s was delivered more than once, and not to this session last; nothing was changed.', queue, id),
      HINT = 'Use ack_message with the token that get_message_from_queue gave.';
  END IF;
  PERFORM <schema>.queue_over_sql_finish(queue, settings, id, '<me>', held.consumer_round, 'done', NULL);
END
$body$;
