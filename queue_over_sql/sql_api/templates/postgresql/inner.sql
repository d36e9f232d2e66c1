-- The shared functions behind the public ones. No client may execute them directly.
-- Every name is qualified and the search path is fixed, so that no caller's object is used.

-- The settings of a queue, or an error that says what to do. Temporary reply queues are refused,
-- because only their owners may take replies from them.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_settings(queue text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  found jsonb;
BEGIN
  SELECT q.settings::jsonb INTO found
    FROM <schema>.queue_over_sql_queues AS q
   WHERE q.table_prefix = '<prefix>' AND q.name = queue AND q.owner_id IS NULL;
  IF found IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS001', MESSAGE = format('There is no queue %L.', queue),
      HINT = 'Create it with queue-over-sql create, or look for its name with queue-over-sql list.';
  END IF;
  IF found ? 'adoption' THEN
    RAISE EXCEPTION USING ERRCODE = 'QS001',
      MESSAGE = format('The queue %L lives in a table of the user''s, which the SQL API does not serve.', queue),
      HINT = 'Set available_at of its rows to send them, and consume them with the library.';
  END IF;
  RETURN found;
END
$body$;
-----
-- The clock in the tables' unit, microseconds; the present time, not the statement's start.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_now() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
  SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)
$body$;
-----
-- Seconds as microseconds; NULL stays NULL.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_microseconds(what text, seconds double precision, zero boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
  IF seconds < 0 OR seconds > 31557600000 OR seconds = 'NaN'
    OR (round(seconds * 1000000) = 0 AND NOT zero) THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('%s must be %s to 1,000 years in seconds, not %s.', what,
                       CASE WHEN zero THEN 'zero' ELSE 'more than zero' END, seconds);
  END IF;
  RETURN CAST(round(seconds * 1000000) AS bigint);
END
$body$;
-----
-- The table of a queue, quoted.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_table(queue text, suffix text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
  SELECT format('%I.%I', <schema_text>, '<prefix>' || queue || suffix)
$body$;
-----
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_claim_lost(queue text, ids text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'QS002',
    MESSAGE = format('Queue %L: the claim on message %s is lost; nothing was changed.', queue, ids),
    DETAIL = 'Its lease expired, it was settled before, or somebody else has it now.',
    HINT = 'Do not repeat this call: get the next message.';
END
$body$;
-----
-- Parse a client's JSON; invalid JSON raises the API's error.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_json(what text, given text, code text) RETURNS json
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
  RETURN CAST(given AS json);
EXCEPTION WHEN invalid_text_representation THEN
  RAISE EXCEPTION USING ERRCODE = code, MESSAGE = format('%s is no JSON.', what);
END
$body$;
-----
-- The text of a client's JSON string; errors as above.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_text(given json) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
  RETURN given #>> '{}';
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
  RAISE EXCEPTION USING ERRCODE = 'QS004',
    MESSAGE = 'A payload holds NUL or half of a character, which this database cannot keep in text.';
END
$body$;
-----
-- Decode a client's base64; errors as above.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_bytes(given text) RETURNS bytea
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
  RETURN decode(given, 'base64');
EXCEPTION WHEN invalid_parameter_value THEN
  RAISE EXCEPTION USING ERRCODE = 'QS004',
    MESSAGE = 'The payload is no base64, as a queue of bytes takes it.';
END
$body$;
-----
-- Whether messages of a queue may expire. Only then its tables surely have the column.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_expiring(queue text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
  SELECT EXISTS (SELECT FROM <schema>.queue_over_sql_queues AS q
                  WHERE q.table_prefix = '<prefix>' AND q.name = queue AND q.expiring_since IS NOT NULL)
$body$;
-----
-- A duration for people, to the millisecond, as the library writes it: 1 h 30 min.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_duration(us bigint) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
  SELECT coalesce(string_agg(count || ' ' || unit, ' ' ORDER BY place), '0 s')
    FROM (SELECT CAST(round(us / 1000.0::float8) AS bigint) AS ms) AS given,
         LATERAL (VALUES (1, ms / 86400000, 'd'), (2, ms / 3600000 % 24, 'h'), (3, ms / 60000 % 60, 'min'),
                         (4, ms / 1000 % 60, 's'), (5, ms % 1000, 'ms')) AS parts (place, count, unit)
   WHERE count > 0
$body$;
-----
-- Publish one message; bytes payloads are base64.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_put(queue text, settings jsonb, payload text, allowed bigint, lease bigint, message_group text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  kind_of text := settings->>'payload';
  most bigint := CAST(settings->>'max_payload_bytes' AS bigint);
  size bigint;
  new_id bigint;
  -- The trace that the client is in, as OpenTelemetry writes it.
  traced text := current_setting('queue_over_sql.traceparent', true);
  expires bigint := CAST(settings->>'expires_us' AS bigint);
  now_us bigint := <schema>.queue_over_sql_now();
BEGIN
  IF payload IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS004', MESSAGE = 'The payload must not be NULL.',
      HINT = 'A queue of JSON takes the text null.';
  END IF;
  size := octet_length(CASE WHEN kind_of = 'bytes' THEN <schema>.queue_over_sql_bytes(payload)
                            ELSE convert_to(payload, 'UTF8') END);
  IF size > most THEN
    RAISE EXCEPTION USING ERRCODE = 'QS004',
      MESSAGE = format('The payload takes %s bytes; the limit of queue %L is %s.', size, queue, most),
      HINT = 'Keep large content elsewhere and put a reference.';
  END IF;
  IF kind_of = 'json' THEN
    PERFORM <schema>.queue_over_sql_json('The payload', payload, 'QS004');
  END IF;
  IF expires IS NOT NULL AND NOT <schema>.queue_over_sql_expiring(queue) THEN
    UPDATE <schema>.queue_over_sql_queues AS q SET expiring_since = now_us, schema_release = '<release_of_expiry>'
     WHERE q.table_prefix = '<prefix>' AND q.name = queue AND q.expiring_since IS NULL;
  END IF;
  IF settings->>'when_full' <> 'wait' THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003',
      MESSAGE = format('The SQL API cannot put messages into queue %L, because its when_full is not wait.', queue),
      HINT = 'Publish with the library, the command line or HTTP.';
  END IF;
  IF message_group IS NOT NULL AND settings->>'group_limit' IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003', MESSAGE = format('The queue %L has no groups.', queue),
      HINT = 'Turn them on with queue-over-sql create --group-limit 1, or give NULL.';
  ELSIF length(message_group) > <group_length> THEN
    RAISE EXCEPTION USING ERRCODE = 'QS003', MESSAGE = 'message_group must have at most <group_length> characters.';
  END IF;
  EXECUTE format(
    'INSERT INTO %s (payload, published_at, scheduled_at, available_at, max_attempts, lease_us, headers%s)'
    ' VALUES (%s, $2, $2, $2, $3, $4, $5%s) RETURNING id',
    <schema>.queue_over_sql_table(queue, ''), CASE WHEN expires IS NOT NULL THEN ', expires_at' ELSE '' END
      || CASE WHEN message_group IS NOT NULL THEN ', group_key' ELSE '' END,
    CASE kind_of WHEN 'json' THEN 'CAST($1 AS json)' WHEN 'text' THEN '$1' ELSE 'decode($1, ''base64'')' END,
    CASE WHEN expires IS NOT NULL THEN ', $2 + $6' ELSE '' END || CASE WHEN message_group IS NOT NULL THEN ', $7' ELSE '' END)
  INTO new_id USING payload, now_us, allowed, lease,
    CASE WHEN traced ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' THEN json_build_object('traceparent', traced) END, expires,
    message_group;
  RETURN new_id;
END
$body$;
-----
-- Finish a message under the fence: archive it, or count it if the queue does not keep it.
-- False if the claim is lost.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_finish(
  queue text, settings jsonb, id bigint, holder text, token bigint, outcome text, reason text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  live text := <schema>.queue_over_sql_table(queue, '');
  now_us bigint := <schema>.queue_over_sql_now();
  key text;
  touched int;
  own text;
BEGIN
  EXECUTE format('SELECT message_key FROM %s'
                 ' WHERE id = $1 AND consumer_id = $2 AND consumer_round = $3 FOR UPDATE', live)
    INTO key USING id, holder, token;
  GET DIAGNOSTICS touched = ROW_COUNT;
  IF touched = 0 THEN
    RETURN false;
  END IF;
  IF key IS NOT NULL AND settings->>'dedup_window_us' IS NOT NULL THEN
    EXECUTE format('INSERT INTO %s AS k (message_key, message_id, expires_at) VALUES ($1, $2, $3)'
                   ' ON CONFLICT (message_key) DO UPDATE'
                   ' SET message_id = excluded.message_id, expires_at = excluded.expires_at',
                   <schema>.queue_over_sql_table(queue, '_dedup_keys'))
      USING key, id, now_us + CAST(settings->>'dedup_window_us' AS bigint);
  END IF;
  IF settings->>'archive' = 'all' OR (settings->>'archive' = 'failed' AND outcome <> 'done') THEN
    SELECT coalesce(string_agg(', ' || quote_ident(name), ''), '') INTO own
      FROM jsonb_object_keys(settings->'columns') AS name;
    IF <schema>.queue_over_sql_expiring(queue) THEN
      own := own || ', expires_at';
    END IF;
    EXECUTE format(
      'WITH gone AS (DELETE FROM %1$s WHERE id = $1 RETURNING *)'
      ' INSERT INTO %2$s (<carried>, last_attempt_at, last_error, finished_at, outcome%3$s)'
      ' SELECT <carried>,'
      ' CASE WHEN $3 = ''done'' THEN last_attempt_at ELSE $2 END, CASE WHEN $3 = ''done'' THEN last_error ELSE $4 END, $2, $3%3$s'
      ' FROM gone', live, <schema>.queue_over_sql_table(queue, '_archive'), own)
      USING id, now_us, outcome, left(reason, 20000);
    RETURN true;
  END IF;
  EXECUTE format('DELETE FROM %s WHERE id = $1', live) USING id;
  IF outcome <> 'done' THEN
    UPDATE <schema>.queue_over_sql_queues AS q SET discarded_count = q.discarded_count + 1
     WHERE q.table_prefix = '<prefix>' AND q.name = queue;
  END IF;
  RETURN true;
END
$body$;
-----
-- Give back messages whose lease has expired, of all consumers; returns how many are ready again.
-- As the reaper: those of a consumer that died are suspects, and of several it gives each one attempt more.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_restore(queue text, settings jsonb) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  live text := <schema>.queue_over_sql_table(queue, '');
  now_us bigint := <schema>.queue_over_sql_now();
  restored int := 0;
  dead record;
  reason text;
  earlier text;
  again boolean;
  feeds boolean := settings->>'dead_letter_queue' IS NOT NULL;
  chosen text := '';
BEGIN
  -- Only the reaper publishes dead letters to another queue. So of messages without attempts this looks only
  -- at those that may get one more.
  IF feeds THEN
    chosen := format(
      ' AND (m.attempt_count < coalesce(m.max_attempts, $2) OR (coalesce(m.max_attempts, $2) > 1'
      ' AND NOT EXISTS (SELECT FROM %1$I.queue_over_sql_consumers AS c WHERE c.consumer_id = m.consumer_id'
      ' AND (c.durable <> 0 OR ($1 - c.heartbeat_at) * 2 <= c.expires_at - c.heartbeat_at))'
      ' AND (EXISTS (SELECT FROM %2$s AS o'
      ' WHERE o.consumer_id = m.consumer_id AND o.id <> m.id AND o.lease_expires_at <= $1)'
      ' OR EXISTS (SELECT FROM %1$I.queue_over_sql_consumers AS c'
      ' WHERE c.consumer_id = m.consumer_id AND c.expires_at < 0))))', <schema_text>, live);
  END IF;
  FOR dead IN EXECUTE format(
    'WITH dead AS MATERIALIZED ('
    ' SELECT id, consumer_id, consumer_round, attempt_count, coalesce(max_attempts, $2) AS allowed, last_error'
    ' FROM %1$s AS m WHERE lease_expires_at IS NOT NULL AND lease_expires_at <= $1%3$s'
    ' LIMIT 100 FOR UPDATE SKIP LOCKED)'
    ' SELECT d.*, count(*) OVER (PARTITION BY d.consumer_id) - 1 AS here,'
    ' greatest(count(*) OVER (PARTITION BY d.consumer_id) - 1, - c.expires_at) AS others, c.name, c.host, c.pid,'
    ' c.consumer_id IS NOT NULL AND c.durable <> 0 AS durable,'
    -- A consumer sends three heartbeats in its timeout.
    ' c.consumer_id IS NULL OR ($1 - c.heartbeat_at) * 2 > c.expires_at - c.heartbeat_at AS died'
    ' FROM dead AS d LEFT JOIN %2$I.queue_over_sql_consumers AS c ON c.consumer_id = d.consumer_id',
    live, <schema_text>, chosen)
    USING now_us, CAST(settings->>'max_attempts' AS int)
  LOOP
    reason := CASE WHEN NOT dead.died THEN '<expired>'
      WHEN dead.durable THEN format('<died> (%s)', dead.name)
      ELSE '<died>' || CASE dead.others WHEN 0 THEN '' WHEN 1 THEN ' and 1 other' ELSE format(' and %s others', dead.others) END
        || ': ' || CASE WHEN dead.name IS NULL THEN dead.consumer_id
                        ELSE format('%s, process %s on host %s', dead.name, dead.pid, dead.host) END END;
    -- Another of them may have killed it.
    again := dead.died AND NOT dead.durable AND dead.allowed > 1 AND (dead.here > 0
      OR (dead.others > 0 AND (dead.last_error IS NULL OR <schema>.queue_over_sql_together(dead.last_error) IS NULL)));
    earlier := dead.last_error;
    IF starts_with(earlier, '<died>') OR starts_with(earlier, '<expired>') THEN
      earlier := CASE WHEN strpos(earlier, '<before>') > 0
        THEN substr(earlier, strpos(earlier, '<before>') + <behind_before>) END;
    END IF;
    reason := left(reason || CASE WHEN earlier <> '' THEN '<before>' || earlier ELSE '' END, 20000);
    IF NOT again AND dead.attempt_count >= dead.allowed THEN
      CONTINUE WHEN feeds;
      PERFORM <schema>.queue_over_sql_finish(queue, settings, dead.id, dead.consumer_id,
        dead.consumer_round, 'failed', '<spent>' || reason);
    ELSE
      EXECUTE format('UPDATE %s SET consumer_id = NULL, consumer_round = NULL, claimed_at = NULL,'
                     ' lease_expires_at = NULL, last_attempt_at = $2, last_error = $3,'
                     ' max_attempts = CASE WHEN $4 THEN $5 + CAST($5 < 2147483647 AS int) ELSE max_attempts END'
                     ' WHERE id = $1', live) USING dead.id, now_us, reason, again, dead.allowed;
      restored := restored + 1;
    END IF;
  END LOOP;
  RETURN restored;
END
$body$;
-----
-- With how many suspects in all a message may be claimed, by its last error; NULL: it is not a suspect.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_together(last_error text) RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
  SELECT greatest(1, CAST(floor(sqrt(1 + coalesce(CAST(found[1] AS int), 0))) AS int) / 2)
    FROM regexp_match(last_error, '^<died>(?: and ([0-9]{1,9}) others?)?: ') AS found
   WHERE found IS NOT NULL
$body$;
-----
-- How long a message waits after a failed attempt, by the queue's retry policy; NULL: no retry.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_delay(queue text, settings jsonb, attempt int) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  policy text := settings->'retry'->>'policy';
  given jsonb := settings->'retry'->'arguments';
  base double precision := CAST(given->>'base' AS double precision);
  factor double precision := CAST(given->>'factor' AS double precision);
  longest double precision := CAST(given->>'maximum' AS double precision);
  steps int := greatest(attempt, 1) - 1;
  seconds double precision;
BEGIN
  CASE policy
    WHEN 'NoRetry' THEN RETURN NULL;
    WHEN 'FixedDelay' THEN seconds := given->>'delay';
    WHEN 'Delays' THEN
      seconds := given->'delays'->>least(steps, jsonb_array_length(given->'delays') - 1);
    WHEN 'ExponentialBackoff' THEN
      -- By logarithms first: a power may be too large for a number.
      seconds := CASE WHEN base <= 0 OR longest <= 0 THEN 0
                      WHEN ln(base) + steps * ln(factor) >= ln(longest) THEN longest
                      ELSE base * power(factor, steps) END;
      seconds := seconds * (1 - CAST(given->>'jitter' AS double precision) * random());
    ELSE
      RAISE EXCEPTION USING ERRCODE = 'QS003',
        MESSAGE = format('The retry policy %L of queue %L is written in Python.', policy, queue),
        HINT = 'Give delay_seconds.';
  END CASE;
  RETURN CAST(seconds * 1000000 AS bigint);
END
$body$;
-----
-- Note in this session that it made a claim, for delete_message_from_queue.
CREATE OR REPLACE FUNCTION <schema>.queue_over_sql_remember(claims text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $body$
  SELECT set_config('queue_over_sql.claims',
    left(claims || coalesce(nullif(current_setting('queue_over_sql.claims', true), ''), ' '), 30000), false)
$body$;
