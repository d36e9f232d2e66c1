-- publish, replace (1 of 2)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
    CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
    queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
    queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id,
    queue_jobs.consumer_round, queue_jobs.claimed_at, queue_jobs.lease_expires_at,
    queue_jobs.last_attempt_at, queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key
FROM queue_jobs
WHERE queue_jobs.message_key = :p_key::VARCHAR
FOR UPDATE;

-- publish, replace (2 of 2)
UPDATE queue_jobs
SET kind=:p_kind::VARCHAR,
    payload=:p_payload,
    headers=:p_headers,
    priority=:p_priority::SMALLINT,
    scheduled_at=coalesce(:p_at::BIGINT, CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + :p_delay::BIGINT),
    available_at=coalesce(:p_at::BIGINT, CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + :p_delay::BIGINT),
    attempt_count=:attempt_count::INTEGER,
    max_attempts=:p_max_attempts::INTEGER,
    lease_us=:p_lease_us::BIGINT,
    consumer_id=:consumer_id::VARCHAR,
    consumer_round=:consumer_round::BIGINT,
    claimed_at=:claimed_at::BIGINT,
    lease_expires_at=:lease_expires_at::BIGINT,
    last_attempt_at=:last_attempt_at::BIGINT,
    last_error=:last_error::VARCHAR,
    last_traceback=:last_traceback::VARCHAR,
    expires_at=(CASE
        WHEN (:p_at::BIGINT > CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)) THEN :p_at::BIGINT
        ELSE CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) END + :p_expires::BIGINT),
    group_key=:p_c0::VARCHAR,
    parked_at=:parked_at::BIGINT
WHERE queue_jobs.id = :p_id_0::BIGINT;

-- claim (1 of 7)
SELECT queue_jobs_limits.interval_us, queue_jobs_limits.burst, queue_jobs_limits.tat_us,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot = 0
  AND set_config('lock_timeout', '5000', true) != ''
FOR UPDATE;

-- claim (2 of 7)
SELECT queue_jobs_limits.slot
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot > 0
  AND NOT (EXISTS (
    SELECT 1
    FROM queue_jobs
    WHERE queue_jobs.id = queue_jobs_limits.message_id
      AND queue_jobs.consumer_id = queue_jobs_limits.consumer_id
      AND queue_jobs.consumer_round = queue_jobs_limits.consumer_round
  ))
ORDER BY queue_jobs_limits.slot
LIMIT :p_count::BIGINT;

-- claim (3 of 7)
SELECT queue_jobs_limits.slot, queue_jobs_limits.message_id, queue_jobs_limits.consumer_id,
    queue_jobs_limits.consumer_round
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot = :p_slot_0::BIGINT
LIMIT :p_count::BIGINT
FOR UPDATE SKIP LOCKED;

-- claim (4 of 7)
SELECT queue_jobs_limits.slot, queue_jobs_limits.message_id, queue_jobs_limits.consumer_id,
    queue_jobs_limits.consumer_round, CASE
    WHEN (EXISTS (SELECT 1 FROM queue_jobs WHERE queue_jobs.id = queue_jobs_limits.message_id
    AND queue_jobs.consumer_id = queue_jobs_limits.consumer_id
    AND queue_jobs.consumer_round = queue_jobs_limits.consumer_round)) THEN 1 ELSE 0 END AS taken
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot < 0 OR queue_jobs_limits.slot = :p_slot_0::BIGINT;

-- claim (5 of 7)
WITH picked AS MATERIALIZED (
  SELECT queue_jobs.id AS id, queue_jobs.group_key AS group_key,
      queue_jobs.available_at AS available_at,
      CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
  FROM queue_jobs
  WHERE queue_jobs.consumer_id IS NULL
    AND queue_jobs.priority = :p_priority::BIGINT
    AND queue_jobs.available_at >= :p_low::BIGINT
    AND queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    AND (
      SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
          OR queue_over_sql_queues.groups_at IS NULL OR :p_edits::BIGINT >= :param_1::BIGINT
          AND queue_over_sql_queues.edit_count != :p_edits::BIGINT) THEN 1 END AS anon_1
      FROM queue_over_sql_queues
      WHERE queue_over_sql_queues.table_prefix = :table_prefix_1::VARCHAR
        AND queue_over_sql_queues.name = :name_1::VARCHAR
    ) IS NULL
  ORDER BY queue_jobs.available_at, queue_jobs.id
  LIMIT :p_window::BIGINT
  FOR UPDATE SKIP LOCKED
), names AS MATERIALIZED (
  SELECT picked.group_key AS group_key, count(*) AS seen, min(picked.available_at) AS place,
      min(picked.id) AS least
  FROM picked
  WHERE picked.group_key IS NOT NULL
  GROUP BY picked.group_key
), wanted AS MATERIALIZED (
  SELECT names.group_key AS group_key, names.place AS place, names.seen AS seen, row.seq AS seq,
      CASE WHEN (row.most > :most_1::INTEGER) THEN row.most - in_hand.count END AS "left",
      row.most = :most_2::INTEGER AS single
  FROM names
  JOIN LATERAL (
    SELECT queue_jobs_groups.seq AS seq,
        coalesce(queue_jobs_groups.own_limit, :p_limit::BIGINT) AS most
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = names.group_key
      AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
    LIMIT 1
  ) AS row ON true
  JOIN LATERAL (
    SELECT count(*) AS count
    FROM LATERAL (
      SELECT 1 AS one
      FROM queue_jobs AS held
      JOIN generate_series(1, least(row.most, 1)) AS once ON true
      WHERE held.group_key >= names.group_key
        AND held.group_key <= names.group_key
        AND held.lease_expires_at IS NOT NULL
      ORDER BY held.group_key
      LIMIT row.most
    ) AS "some"
  ) AS in_hand ON true
  WHERE in_hand.count < row.most
  ORDER BY names.place, names.least
), free AS MATERIALIZED (
  SELECT wanted.group_key AS group_key, wanted.place AS place, wanted.seen AS seen,
      wanted."left" AS "left", wanted.single AS single
  FROM wanted
  JOIN LATERAL (
    SELECT queue_jobs_groups.seq AS seq
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = wanted.group_key
      AND queue_jobs_groups.seq = wanted.seq
    FOR UPDATE SKIP LOCKED
  ) AS locked_row ON true
  LIMIT :p_rows::BIGINT
), locked AS MATERIALIZED (
  SELECT free.group_key AS group_key, free.place AS place, free.single AS single,
      least(least(greatest(free.seen, CAST(ceil(CAST(:p_count::BIGINT AS FLOAT) / CAST((
    SELECT count(*) AS count_1
    FROM free AS "all"
  ) AS NUMERIC)) AS BIGINT)), :p_most::BIGINT), free."left") AS most
  FROM free
), chosen AS MATERIALIZED (
  SELECT "both".id AS id, "both".group_key AS group_key, "both".place AS place,
      "both".waits AS waits, "both".single AS single
  FROM (
    SELECT first.id AS id, locked.group_key AS group_key, locked.place AS place,
        first.waits AS waits, locked.single AS single
    FROM locked
    JOIN LATERAL (
      SELECT run.id AS id, run.waits AS waits, bool_and(run.due) OVER (ORDER BY run.id) AS due
      FROM (
        SELECT queue_jobs.id AS id,
            coalesce(coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT), false) AS due,
            queue_jobs.blocks IS NOT NULL OR queue_jobs.parked_at IS NOT NULL AS waits
        FROM queue_jobs
        WHERE queue_jobs.group_key >= locked.group_key
          AND queue_jobs.group_key <= locked.group_key
          AND queue_jobs.consumer_id IS NULL
        ORDER BY queue_jobs.group_key, queue_jobs.id
        LIMIT locked.most
      ) AS run
    ) AS first ON true
    WHERE first.due
    UNION ALL
    SELECT picked.id AS id, picked.group_key AS group_key, picked.available_at AS available_at,
        false AS anon_2, false AS anon__1
    FROM picked
    WHERE picked.group_key IS NULL
  ) AS "both"
  ORDER BY "both".place, "both".id
  LIMIT :p_rows::BIGINT
), sure AS MATERIALIZED (
  SELECT queue_jobs.id AS id
  FROM queue_jobs
  WHERE queue_jobs.id = ANY (array((
    SELECT chosen.id
    FROM chosen
  )))
    AND coalesce(queue_jobs.consumer_id IS NULL
        AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT), false)
  FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
  SELECT known.id AS id, known.group_key AS group_key, known.waits AS waits, known.single AS single
  FROM (
    SELECT chosen.id AS id, chosen.group_key AS group_key, chosen.place AS place,
        chosen.waits AS waits, chosen.single AS single, CASE
        WHEN (chosen.group_key IS NULL) THEN sure.id IS NOT NULL
        ELSE bool_and(sure.id IS NOT NULL) OVER (PARTITION BY chosen.group_key ORDER BY chosen.id) END AS keeps
    FROM chosen
    LEFT OUTER JOIN sure ON sure.id = chosen.id
  ) AS known
  WHERE known.keeps
  ORDER BY known.place, known.id
  LIMIT :p_count::BIGINT
), counted AS (
  UPDATE queue_jobs_groups
  SET seq=greatest(queue_jobs_groups.seq + :seq_1::BIGINT, CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT))
  FROM (
    SELECT DISTINCT kept.group_key AS group_key
    FROM kept
  ) AS taken
  WHERE queue_jobs_groups.group_key = taken.group_key
), flagged AS MATERIALIZED (
  SELECT waiting.id AS id
  FROM (
    SELECT kept.id AS id, kept.single AS single,
        max(kept.id) OVER (PARTITION BY kept.group_key) AS last,
        bool_or(kept.waits) OVER (PARTITION BY kept.group_key) AS waits
    FROM kept
    WHERE kept.group_key IS NOT NULL
  ) AS waiting
  WHERE waiting.waits
    AND (NOT waiting.single OR waiting.id = waiting.last)
), changed AS (
  UPDATE queue_jobs
  SET available_at=coalesce(queue_jobs.parked_at, queue_jobs.available_at),
      attempt_count=CASE
          WHEN (queue_jobs.attempt_count + :attempt_count_1::INTEGER >= 2147483647) THEN queue_jobs.attempt_count
          ELSE queue_jobs.attempt_count + :attempt_count_2::INTEGER END,
      consumer_id=:p_consumer::VARCHAR,
      consumer_round=:p_round::BIGINT,
      claimed_at=CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
      lease_expires_at=(CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + coalesce(:p_lease::BIGINT, CASE
          WHEN (queue_jobs.lease_us > 31557600000000000) THEN 31557600000000000
          ELSE queue_jobs.lease_us END, :p_queue_lease::BIGINT)),
      parked_at=:param_2::BIGINT,
      blocks=CASE
          WHEN (queue_jobs.id = ANY (array((SELECT flagged.id FROM flagged)))) THEN :param_3::INTEGER
          ELSE queue_jobs.blocks END
  WHERE queue_jobs.id = ANY (array((
    SELECT kept.id
    FROM kept
  )))
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
      CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
      queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
      queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
      queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.expires_at, queue_jobs.group_key
)
SELECT picked.id, picked.group_key, picked.available_at, picked.now, changed.id AS id_1,
    changed.message_key, changed.kind, changed.payload, changed.headers, changed.priority,
    changed.published_at, changed.scheduled_at, changed.available_at AS available_at_1,
    changed.attempt_count, changed.max_attempts, changed.lease_us, changed.consumer_id,
    changed.consumer_round, changed.claimed_at, changed.lease_expires_at, changed.last_attempt_at,
    changed.last_error, changed.expires_at, changed.group_key AS group_key_1
FROM picked FULL OUTER
JOIN changed ON picked.id = changed.id;

-- claim (6 of 7)
UPDATE queue_jobs_limits
SET tat_us=(CASE
        WHEN (queue_jobs_limits.tat_us > CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)) THEN queue_jobs_limits.tat_us
        ELSE CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) END + :p_count::BIGINT * queue_jobs_limits.interval_us)
WHERE queue_jobs_limits.slot = 0;

-- claim (7 of 7)
UPDATE queue_jobs_limits
SET message_id=CASE WHEN (queue_jobs_limits.slot = :p_slot_0::BIGINT) THEN :p_id_0::BIGINT
        ELSE queue_jobs_limits.message_id END,
    consumer_id=:p_consumer::VARCHAR,
    consumer_round=:p_round::BIGINT
WHERE queue_jobs_limits.slot = :p_slot_0::BIGINT;

-- take (4 of 15)
SELECT queue_jobs.id, queue_jobs.group_key, queue_jobs.available_at,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs
WHERE queue_jobs.consumer_id IS NULL
  AND queue_jobs.priority = :p_priority::BIGINT
  AND queue_jobs.available_at >= :p_low::BIGINT
  AND queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
  AND (
    SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
        OR queue_over_sql_queues.groups_at IS NULL OR :p_edits::BIGINT >= :param_1::BIGINT
        AND queue_over_sql_queues.edit_count != :p_edits::BIGINT) THEN 1 END AS anon_1
    FROM queue_over_sql_queues
    WHERE queue_over_sql_queues.table_prefix = :table_prefix_1::VARCHAR
      AND queue_over_sql_queues.name = :name_1::VARCHAR
  ) IS NULL
ORDER BY queue_jobs.available_at, queue_jobs.id
LIMIT :p_window::BIGINT;

-- take (5 of 15)
SELECT queue_jobs_groups.group_key, queue_jobs_groups.own_limit,
    queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL AS anon_1,
    queue_jobs_groups.tat_us, queue_jobs_groups.own_rate_us, queue_jobs_groups.own_burst,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs_groups
WHERE queue_jobs_groups.group_key = :p_group_0::VARCHAR;

-- take (6 of 15)
SELECT queue_jobs.group_key, queue_jobs.id
FROM queue_jobs
WHERE queue_jobs.group_key = :p_group_0::VARCHAR
  AND queue_jobs.lease_expires_at IS NOT NULL;

-- take (7 of 15)
SELECT queue_jobs_groups.group_key, queue_jobs_groups.own_limit, 0, queue_jobs_groups.tat_us,
    queue_jobs_groups.own_rate_us, queue_jobs_groups.own_burst,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs_groups
WHERE queue_jobs_groups.group_key = :p_group_0::VARCHAR
  AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
FOR UPDATE SKIP LOCKED;

-- take (8 of 15)
SELECT run_0.group_key, run_0.id
FROM (
  SELECT queue_jobs.group_key AS group_key, queue_jobs.id AS id
  FROM queue_jobs
  WHERE queue_jobs.group_key = :p_group_0::VARCHAR
    AND queue_jobs.consumer_id IS NULL
  ORDER BY queue_jobs.group_key, queue_jobs.id
  LIMIT :p_first::BIGINT
) AS run_0;

-- take (9 of 15)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
    CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
    queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS due_at, queue_jobs.attempt_count,
    queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id, queue_jobs.consumer_round,
    queue_jobs.claimed_at, queue_jobs.lease_expires_at, queue_jobs.last_attempt_at,
    queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs
WHERE queue_jobs.id = :p_id_0::BIGINT
  AND queue_jobs.consumer_id IS NULL
  AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
FOR UPDATE SKIP LOCKED;

-- take (10 of 15)
UPDATE queue_jobs_groups
SET seq=(queue_jobs_groups.seq + 1),
    tat_us=CASE WHEN (queue_jobs_groups.group_key = :p_group_0::VARCHAR) THEN :p_tat_0::BIGINT END
WHERE queue_jobs_groups.group_key = :p_group_0::VARCHAR;

-- take, archive (12 of 16)
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at,
    scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round,
    claimed_at, lease_expires_at, last_attempt_at, last_error, expires_at, last_traceback,
    group_key, finished_at, outcome)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload,
    queue_jobs.headers, queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
    queue_jobs.available_at, queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
    queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
    queue_jobs.lease_expires_at,
    coalesce(:p_attempted::BIGINT, queue_jobs.last_attempt_at) AS coalesce_1, CASE
    WHEN (:p_outcome::VARCHAR = :param_1::VARCHAR) THEN queue_jobs.last_error
    ELSE :p_error::VARCHAR END AS anon_1, queue_jobs.expires_at, queue_jobs.last_traceback,
    queue_jobs.group_key, CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
    :p_outcome::VARCHAR AS anon_2
FROM queue_jobs
WHERE queue_jobs.id = :p_id_0::BIGINT;

-- ack (1 of 5)
DELETE FROM queue_jobs
WHERE queue_jobs.id = :p_id_0::BIGINT
  AND queue_jobs.consumer_id = :p_consumer::VARCHAR
  AND queue_jobs.consumer_round = :p_round::BIGINT
  AND queue_jobs.blocks IS NULL
RETURNING queue_jobs.id;

-- ack (2 of 5)
SELECT queue_jobs.id, queue_jobs.group_key, queue_jobs.blocks
FROM queue_jobs
WHERE queue_jobs.id = :p_id_0::BIGINT
  AND queue_jobs.consumer_id = :p_consumer::VARCHAR
  AND queue_jobs.consumer_round = :p_round::BIGINT
FOR UPDATE;

-- ack, archive (1 of 5)
WITH gone AS (
  DELETE FROM queue_jobs
  WHERE queue_jobs.id = :p_id_0::BIGINT
    AND queue_jobs.consumer_id = :p_held_by::VARCHAR
    AND queue_jobs.consumer_round = :p_held_round::BIGINT
    AND queue_jobs.blocks IS NULL
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload,
      queue_jobs.headers, queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      queue_jobs.available_at, queue_jobs.attempt_count, queue_jobs.max_attempts,
      queue_jobs.lease_us, queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.last_traceback, queue_jobs.expires_at, queue_jobs.group_key, queue_jobs.parked_at,
      queue_jobs.blocks
)
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at,
    scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round,
    claimed_at, lease_expires_at, last_attempt_at, last_error, expires_at, last_traceback,
    group_key, finished_at, outcome)
SELECT gone.id, gone.message_key, gone.kind, gone.payload, gone.headers, gone.priority,
    gone.published_at, gone.scheduled_at, gone.available_at, gone.attempt_count, gone.max_attempts,
    gone.lease_us, gone.consumer_id, gone.consumer_round, gone.claimed_at, gone.lease_expires_at,
    coalesce(:p_attempted::BIGINT, gone.last_attempt_at) AS coalesce_1, CASE
    WHEN (:p_outcome::VARCHAR = :param_1::VARCHAR) THEN gone.last_error
    ELSE :p_error::VARCHAR END AS anon_1, gone.expires_at, gone.last_traceback, gone.group_key,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
    :p_outcome::VARCHAR AS anon_2
FROM gone
RETURNING queue_jobs_archive.id;

-- ack, archive (3 of 5)
WITH gone AS (
  DELETE FROM queue_jobs
  WHERE queue_jobs.id = :p_id_0::BIGINT
    AND queue_jobs.consumer_id = :p_held_by::VARCHAR
    AND queue_jobs.consumer_round = :p_held_round::BIGINT
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload,
      queue_jobs.headers, queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      queue_jobs.available_at, queue_jobs.attempt_count, queue_jobs.max_attempts,
      queue_jobs.lease_us, queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.last_traceback, queue_jobs.expires_at, queue_jobs.group_key, queue_jobs.parked_at,
      queue_jobs.blocks
)
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at,
    scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round,
    claimed_at, lease_expires_at, last_attempt_at, last_error, expires_at, last_traceback,
    group_key, finished_at, outcome)
SELECT gone.id, gone.message_key, gone.kind, gone.payload, gone.headers, gone.priority,
    gone.published_at, gone.scheduled_at, gone.available_at, gone.attempt_count, gone.max_attempts,
    gone.lease_us, gone.consumer_id, gone.consumer_round, gone.claimed_at, gone.lease_expires_at,
    coalesce(:p_attempted::BIGINT, gone.last_attempt_at) AS coalesce_1, CASE
    WHEN (:p_outcome::VARCHAR = :param_1::VARCHAR) THEN gone.last_error
    ELSE :p_error::VARCHAR END AS anon_1, gone.expires_at, gone.last_traceback, gone.group_key,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
    :p_outcome::VARCHAR AS anon_2
FROM gone
RETURNING queue_jobs_archive.id;

-- claim, known kinds (5 of 7)
WITH picked AS MATERIALIZED (
  SELECT queue_jobs.id AS id, queue_jobs.group_key AS group_key,
      queue_jobs.available_at AS available_at,
      CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
  FROM queue_jobs
  WHERE queue_jobs.consumer_id IS NULL
    AND queue_jobs.priority = :p_priority::BIGINT
    AND queue_jobs.available_at >= :p_low::BIGINT
    AND queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    AND (queue_jobs.kind IS NULL OR queue_jobs.kind IN (:kind_1_1::VARCHAR))
    AND (
      SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
          OR queue_over_sql_queues.groups_at IS NULL OR :p_edits::BIGINT >= :param_1::BIGINT
          AND queue_over_sql_queues.edit_count != :p_edits::BIGINT) THEN 1 END AS anon_1
      FROM queue_over_sql_queues
      WHERE queue_over_sql_queues.table_prefix = :table_prefix_1::VARCHAR
        AND queue_over_sql_queues.name = :name_1::VARCHAR
    ) IS NULL
  ORDER BY queue_jobs.available_at, queue_jobs.id
  LIMIT :p_window::BIGINT
  FOR UPDATE SKIP LOCKED
), names AS MATERIALIZED (
  SELECT picked.group_key AS group_key, count(*) AS seen, min(picked.available_at) AS place,
      min(picked.id) AS least
  FROM picked
  WHERE picked.group_key IS NOT NULL
  GROUP BY picked.group_key
), wanted AS MATERIALIZED (
  SELECT names.group_key AS group_key, names.place AS place, names.seen AS seen, row.seq AS seq,
      CASE WHEN (row.most > :most_1::INTEGER) THEN row.most - in_hand.count END AS "left",
      row.most = :most_2::INTEGER AS single
  FROM names
  JOIN LATERAL (
    SELECT queue_jobs_groups.seq AS seq,
        coalesce(queue_jobs_groups.own_limit, :p_limit::BIGINT) AS most
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = names.group_key
      AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
    LIMIT 1
  ) AS row ON true
  JOIN LATERAL (
    SELECT count(*) AS count
    FROM LATERAL (
      SELECT 1 AS one
      FROM queue_jobs AS held
      JOIN generate_series(1, least(row.most, 1)) AS once ON true
      WHERE held.group_key >= names.group_key
        AND held.group_key <= names.group_key
        AND held.lease_expires_at IS NOT NULL
      ORDER BY held.group_key
      LIMIT row.most
    ) AS "some"
  ) AS in_hand ON true
  WHERE in_hand.count < row.most
  ORDER BY names.place, names.least
), free AS MATERIALIZED (
  SELECT wanted.group_key AS group_key, wanted.place AS place, wanted.seen AS seen,
      wanted."left" AS "left", wanted.single AS single
  FROM wanted
  JOIN LATERAL (
    SELECT queue_jobs_groups.seq AS seq
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = wanted.group_key
      AND queue_jobs_groups.seq = wanted.seq
    FOR UPDATE SKIP LOCKED
  ) AS locked_row ON true
  LIMIT :p_rows::BIGINT
), locked AS MATERIALIZED (
  SELECT free.group_key AS group_key, free.place AS place, free.single AS single,
      least(least(greatest(free.seen, CAST(ceil(CAST(:p_count::BIGINT AS FLOAT) / CAST((
    SELECT count(*) AS count_1
    FROM free AS "all"
  ) AS NUMERIC)) AS BIGINT)), :p_most::BIGINT), free."left") AS most
  FROM free
), chosen AS MATERIALIZED (
  SELECT "both".id AS id, "both".group_key AS group_key, "both".place AS place,
      "both".waits AS waits, "both".single AS single
  FROM (
    SELECT first.id AS id, locked.group_key AS group_key, locked.place AS place,
        first.waits AS waits, locked.single AS single
    FROM locked
    JOIN LATERAL (
      SELECT run.id AS id, run.waits AS waits, bool_and(run.due) OVER (ORDER BY run.id) AS due
      FROM (
        SELECT queue_jobs.id AS id,
            coalesce(coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
            AND (queue_jobs.kind IS NULL OR queue_jobs.kind IN (:kind_2_1::VARCHAR)), false) AS due,
            queue_jobs.blocks IS NOT NULL OR queue_jobs.parked_at IS NOT NULL AS waits
        FROM queue_jobs
        WHERE queue_jobs.group_key >= locked.group_key
          AND queue_jobs.group_key <= locked.group_key
          AND queue_jobs.consumer_id IS NULL
        ORDER BY queue_jobs.group_key, queue_jobs.id
        LIMIT locked.most
      ) AS run
    ) AS first ON true
    WHERE first.due
    UNION ALL
    SELECT picked.id AS id, picked.group_key AS group_key, picked.available_at AS available_at,
        false AS anon_2, false AS anon__1
    FROM picked
    WHERE picked.group_key IS NULL
  ) AS "both"
  ORDER BY "both".place, "both".id
  LIMIT :p_rows::BIGINT
), sure AS MATERIALIZED (
  SELECT queue_jobs.id AS id
  FROM queue_jobs
  WHERE queue_jobs.id = ANY (array((
    SELECT chosen.id
    FROM chosen
  )))
    AND coalesce(queue_jobs.consumer_id IS NULL
        AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
        AND (queue_jobs.kind IS NULL OR queue_jobs.kind IN (:kind_3_1::VARCHAR)), false)
  FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
  SELECT known.id AS id, known.group_key AS group_key, known.waits AS waits, known.single AS single
  FROM (
    SELECT chosen.id AS id, chosen.group_key AS group_key, chosen.place AS place,
        chosen.waits AS waits, chosen.single AS single, CASE
        WHEN (chosen.group_key IS NULL) THEN sure.id IS NOT NULL
        ELSE bool_and(sure.id IS NOT NULL) OVER (PARTITION BY chosen.group_key ORDER BY chosen.id) END AS keeps
    FROM chosen
    LEFT OUTER JOIN sure ON sure.id = chosen.id
  ) AS known
  WHERE known.keeps
  ORDER BY known.place, known.id
  LIMIT :p_count::BIGINT
), counted AS (
  UPDATE queue_jobs_groups
  SET seq=greatest(queue_jobs_groups.seq + :seq_1::BIGINT, CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT))
  FROM (
    SELECT DISTINCT kept.group_key AS group_key
    FROM kept
  ) AS taken
  WHERE queue_jobs_groups.group_key = taken.group_key
), flagged AS MATERIALIZED (
  SELECT waiting.id AS id
  FROM (
    SELECT kept.id AS id, kept.single AS single,
        max(kept.id) OVER (PARTITION BY kept.group_key) AS last,
        bool_or(kept.waits) OVER (PARTITION BY kept.group_key) AS waits
    FROM kept
    WHERE kept.group_key IS NOT NULL
  ) AS waiting
  WHERE waiting.waits
    AND (NOT waiting.single OR waiting.id = waiting.last)
), changed AS (
  UPDATE queue_jobs
  SET available_at=coalesce(queue_jobs.parked_at, queue_jobs.available_at),
      attempt_count=CASE
          WHEN (queue_jobs.attempt_count + :attempt_count_1::INTEGER >= 2147483647) THEN queue_jobs.attempt_count
          ELSE queue_jobs.attempt_count + :attempt_count_2::INTEGER END,
      consumer_id=:p_consumer::VARCHAR,
      consumer_round=:p_round::BIGINT,
      claimed_at=CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
      lease_expires_at=(CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + coalesce(:p_lease::BIGINT, CASE
          WHEN (queue_jobs.lease_us > 31557600000000000) THEN 31557600000000000
          ELSE queue_jobs.lease_us END, :p_queue_lease::BIGINT)),
      parked_at=:param_2::BIGINT,
      blocks=CASE
          WHEN (queue_jobs.id = ANY (array((SELECT flagged.id FROM flagged)))) THEN :param_3::INTEGER
          ELSE queue_jobs.blocks END
  WHERE queue_jobs.id = ANY (array((
    SELECT kept.id
    FROM kept
  )))
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
      CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
      queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
      queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
      queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.expires_at, queue_jobs.group_key
)
SELECT picked.id, picked.group_key, picked.available_at, picked.now, changed.id AS id_1,
    changed.message_key, changed.kind, changed.payload, changed.headers, changed.priority,
    changed.published_at, changed.scheduled_at, changed.available_at AS available_at_1,
    changed.attempt_count, changed.max_attempts, changed.lease_us, changed.consumer_id,
    changed.consumer_round, changed.claimed_at, changed.lease_expires_at, changed.last_attempt_at,
    changed.last_error, changed.expires_at, changed.group_key AS group_key_1
FROM picked FULL OUTER
JOIN changed ON picked.id = changed.id;

-- groups, claim first messages
WITH picked AS MATERIALIZED (
  SELECT queue_jobs.id AS id, queue_jobs.group_key AS group_key,
      queue_jobs.available_at AS available_at, queue_jobs.parked_at AS parked_at
  FROM queue_jobs
  WHERE queue_jobs.consumer_id IS NULL
    AND queue_jobs.priority = :p_priority::BIGINT
    AND queue_jobs.available_at >= :p_low::BIGINT
    AND queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    AND (
      SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
          OR queue_over_sql_queues.groups_at IS NULL OR :p_edits::BIGINT >= :param_1::BIGINT
          AND queue_over_sql_queues.edit_count != :p_edits::BIGINT) THEN 1 END AS anon_1
      FROM queue_over_sql_queues
      WHERE queue_over_sql_queues.table_prefix = :table_prefix_1::VARCHAR
        AND queue_over_sql_queues.name = :name_1::VARCHAR
    ) IS NULL
  ORDER BY queue_jobs.available_at, queue_jobs.id
  LIMIT :p_window::BIGINT
  FOR UPDATE SKIP LOCKED
), wanted AS MATERIALIZED (
  SELECT picked.id AS id, row.place AS place, row.seq AS seq
  FROM picked
  JOIN LATERAL (
    SELECT ctid AS place, queue_jobs_groups.seq AS seq,
        coalesce(queue_jobs_groups.own_limit, :p_limit::BIGINT) AS most
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = picked.group_key
      AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
    LIMIT 1
  ) AS row ON true
  WHERE (
    SELECT count(*) = :p_window::BIGINT
      AND count(picked.group_key) - count(DISTINCT picked.group_key) = :param_2::INTEGER AS anon_2
    FROM picked
  )
    AND picked.parked_at IS NULL
    AND picked.id = (
      SELECT other.id
      FROM queue_jobs AS other
      WHERE other.group_key >= picked.group_key
        AND other.group_key <= picked.group_key
        AND other.consumer_id IS NULL
      ORDER BY other.group_key, other.id
      LIMIT 1
    )
    AND (
      SELECT 1 AS one
      FROM queue_jobs AS held
      JOIN generate_series(1, least(row.most, 1)) AS once ON true
      WHERE held.group_key >= picked.group_key
        AND held.group_key <= picked.group_key
        AND held.lease_expires_at IS NOT NULL
      ORDER BY held.group_key
      LIMIT 1
      OFFSET row.most - 1
    ) IS NULL
), locked AS MATERIALIZED (
  SELECT wanted.id AS id, wanted.place AS place
  FROM wanted
  JOIN LATERAL (
    SELECT 1 AS one
    FROM queue_jobs_groups
    WHERE ctid = wanted.place
      AND queue_jobs_groups.seq = wanted.seq
    FOR UPDATE SKIP LOCKED
  ) AS newest ON true
), counted AS (
  UPDATE queue_jobs_groups
  SET seq=(queue_jobs_groups.seq + 1)
  WHERE ctid = ANY (array((
    SELECT locked.place
    FROM locked
  )))
), changed AS (
  UPDATE queue_jobs
  SET attempt_count=CASE
          WHEN (queue_jobs.attempt_count + :attempt_count_1::INTEGER >= 2147483647) THEN queue_jobs.attempt_count
          ELSE queue_jobs.attempt_count + :attempt_count_2::INTEGER END,
      consumer_id=:p_consumer::VARCHAR,
      consumer_round=:p_round::BIGINT,
      claimed_at=CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
      lease_expires_at=(CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + coalesce(:p_lease::BIGINT, CASE
          WHEN (queue_jobs.lease_us > 31557600000000000) THEN 31557600000000000
          ELSE queue_jobs.lease_us END, :p_queue_lease::BIGINT))
  WHERE queue_jobs.id = ANY (array((
    SELECT taken.id
    FROM (
      SELECT locked.id AS id
      FROM locked
      UNION ALL
      SELECT picked.id AS id
      FROM picked
      WHERE (
        SELECT count(*) = :p_window::BIGINT
          AND count(picked.group_key) - count(DISTINCT picked.group_key) = :param_2::INTEGER AS anon_2
        FROM picked
      )
        AND picked.parked_at IS NULL
        AND picked.group_key IS NULL
    ) AS taken
  )))
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
      CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
      queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
      queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
      queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.expires_at, queue_jobs.group_key
)
SELECT CASE WHEN (changed.id IS NULL) THEN picked.id END AS anon_3, CASE
    WHEN (changed.id IS NULL) THEN picked.group_key END AS anon_4, CASE
    WHEN (changed.id IS NULL) THEN picked.available_at END AS anon_5, changed.id,
    changed.message_key, changed.kind, changed.payload, changed.headers, changed.priority,
    changed.published_at, changed.scheduled_at, changed.available_at, changed.attempt_count,
    changed.max_attempts, changed.lease_us, changed.consumer_id, changed.consumer_round,
    changed.claimed_at, changed.lease_expires_at, changed.last_attempt_at, changed.last_error,
    changed.expires_at, changed.group_key
FROM picked
LEFT OUTER JOIN changed ON picked.id = changed.id;

-- groups, exchange for first messages
WITH picked AS MATERIALIZED (
  SELECT queue_jobs.id AS id, queue_jobs.group_key AS group_key,
      queue_jobs.available_at AS available_at, queue_jobs.parked_at AS parked_at
  FROM queue_jobs
  WHERE queue_jobs.consumer_id IS NULL
    AND queue_jobs.priority = :p_priority::BIGINT
    AND queue_jobs.available_at >= :p_low::BIGINT
    AND queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    AND (
      SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
          OR queue_over_sql_queues.groups_at IS NULL OR :p_edits::BIGINT >= :param_1::BIGINT
          AND queue_over_sql_queues.edit_count != :p_edits::BIGINT) THEN 1 END AS anon_1
      FROM queue_over_sql_queues
      WHERE queue_over_sql_queues.table_prefix = :table_prefix_1::VARCHAR
        AND queue_over_sql_queues.name = :name_1::VARCHAR
    ) IS NULL
  ORDER BY queue_jobs.available_at, queue_jobs.id
  LIMIT :p_window::BIGINT
  FOR UPDATE SKIP LOCKED
), acked AS (
  DELETE FROM queue_jobs
  WHERE queue_jobs.id = ANY (:p_ids::BIGINT[])
    AND queue_jobs.consumer_id = :p_held_by::VARCHAR
    AND CASE
        WHEN ((queue_jobs.id, queue_jobs.consumer_round) IN (SELECT held.id, held.round FROM unnest(:p_ids::BIGINT[], :p_rounds::BIGINT[]) AS held(id, round))) THEN true END
    AND queue_jobs.blocks IS NULL
  RETURNING queue_jobs.id
), wanted AS MATERIALIZED (
  SELECT picked.id AS id, row.place AS place, row.seq AS seq
  FROM picked
  JOIN LATERAL (
    SELECT ctid AS place, queue_jobs_groups.seq AS seq,
        coalesce(queue_jobs_groups.own_limit, :p_limit::BIGINT) AS most
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.group_key = picked.group_key
      AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
    LIMIT 1
  ) AS row ON true
  WHERE (
    SELECT count(*) AS count_1
    FROM acked
  ) = :p_expected::BIGINT
    AND (
      SELECT count(*) = :p_window::BIGINT
        AND count(picked.group_key) - count(DISTINCT picked.group_key) = :param_2::INTEGER AS anon_2
      FROM picked
    )
    AND picked.parked_at IS NULL
    AND picked.id = (
      SELECT other.id
      FROM queue_jobs AS other
      WHERE other.group_key >= picked.group_key
        AND other.group_key <= picked.group_key
        AND other.consumer_id IS NULL
      ORDER BY other.group_key, other.id
      LIMIT 1
    )
    AND (
      SELECT 1 AS one
      FROM queue_jobs AS held
      JOIN generate_series(1, least(row.most, 1)) AS once ON true
      WHERE held.group_key >= picked.group_key
        AND held.group_key <= picked.group_key
        AND held.lease_expires_at IS NOT NULL
        AND held.id != ALL (array((
          SELECT acked.id
          FROM acked
        )))
      ORDER BY held.group_key
      LIMIT 1
      OFFSET row.most - 1
    ) IS NULL
), locked AS MATERIALIZED (
  SELECT wanted.id AS id, wanted.place AS place
  FROM wanted
  JOIN LATERAL (
    SELECT 1 AS one
    FROM queue_jobs_groups
    WHERE ctid = wanted.place
      AND queue_jobs_groups.seq = wanted.seq
    FOR UPDATE SKIP LOCKED
  ) AS newest ON true
), counted AS (
  UPDATE queue_jobs_groups
  SET seq=(queue_jobs_groups.seq + 1)
  WHERE ctid = ANY (array((
    SELECT locked.place
    FROM locked
  )))
), settled AS (
  SELECT count(*) AS acked, CASE
      WHEN (count(*) < :p_expected::BIGINT) THEN array_agg(acked.id) END AS ids
  FROM acked
), changed AS (
  UPDATE queue_jobs
  SET attempt_count=CASE
          WHEN (queue_jobs.attempt_count + :attempt_count_1::INTEGER >= 2147483647) THEN queue_jobs.attempt_count
          ELSE queue_jobs.attempt_count + :attempt_count_2::INTEGER END,
      consumer_id=:p_consumer::VARCHAR,
      consumer_round=:p_round::BIGINT,
      claimed_at=CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT),
      lease_expires_at=(CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + coalesce(:p_lease::BIGINT, CASE
          WHEN (queue_jobs.lease_us > 31557600000000000) THEN 31557600000000000
          ELSE queue_jobs.lease_us END, :p_queue_lease::BIGINT))
  WHERE queue_jobs.id = ANY (array((
    SELECT taken.id
    FROM (
      SELECT locked.id AS id
      FROM locked
      UNION ALL
      SELECT picked.id AS id
      FROM picked
      WHERE (
        SELECT count(*) AS count_1
        FROM acked
      ) = :p_expected::BIGINT
        AND (
          SELECT count(*) = :p_window::BIGINT
            AND count(picked.group_key) - count(DISTINCT picked.group_key) = :param_2::INTEGER AS anon_2
          FROM picked
        )
        AND picked.parked_at IS NULL
        AND picked.group_key IS NULL
    ) AS taken
  )))
  RETURNING queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
      CAST(queue_jobs.payload AS TEXT) AS payload, CAST(queue_jobs.headers AS TEXT) AS headers,
      queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
      coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
      queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
      queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
      queue_jobs.lease_expires_at, queue_jobs.last_attempt_at, queue_jobs.last_error,
      queue_jobs.expires_at, queue_jobs.group_key
)
SELECT settled.acked, settled.ids, CASE WHEN (changed.id IS NULL) THEN picked.id END AS anon_3, CASE
    WHEN (changed.id IS NULL) THEN picked.group_key END AS anon_4, CASE
    WHEN (changed.id IS NULL) THEN picked.available_at END AS anon_5, changed.id,
    changed.message_key, changed.kind, changed.payload, changed.headers, changed.priority,
    changed.published_at, changed.scheduled_at, changed.available_at, changed.attempt_count,
    changed.max_attempts, changed.lease_us, changed.consumer_id, changed.consumer_round,
    changed.claimed_at, changed.lease_expires_at, changed.last_attempt_at, changed.last_error,
    changed.expires_at, changed.group_key
FROM settled
LEFT OUTER JOIN (picked LEFT OUTER JOIN changed ON picked.id = changed.id) ON true;

-- groups, park (3 of 5)
SELECT queue_jobs.group_key, (
  SELECT other.id
  FROM queue_jobs AS other
  WHERE other.group_key >= queue_jobs.group_key
    AND other.group_key <= queue_jobs.group_key
    AND other.consumer_id IS NULL
  ORDER BY other.group_key, other.id
  LIMIT 1
) AS anon_1
FROM queue_jobs
WHERE queue_jobs.id IN (:p_id_0::BIGINT, :p_id_1::BIGINT);

-- groups, park (4 of 5)
SELECT queue_jobs.id, queue_jobs.group_key
FROM queue_jobs
WHERE queue_jobs.id IN (:p_id_0::BIGINT, :p_id_1::BIGINT)
  AND queue_jobs.consumer_id IS NULL
  AND NOT (queue_jobs.parked_at IS NOT NULL AND queue_jobs.available_at IS NULL)
FOR UPDATE SKIP LOCKED;

-- groups, create rows
SELECT queue_jobs_groups.group_key
FROM queue_jobs_groups
WHERE queue_jobs_groups.group_key IN (:p_group_0::VARCHAR, :p_group_1::VARCHAR);

-- groups, list (1 of 3)
SELECT found.name, found.waiting, found.claimed, found.due, found.head, found.since, found.next_at,
    queue_jobs_groups.own_limit, queue_jobs_groups.paused_at, queue_jobs_groups.blocked_by,
    queue_jobs_groups.weight, queue_jobs_groups.tat_us, queue_jobs_groups.own_rate_us,
    queue_jobs_groups.own_burst,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM (
  SELECT both_kinds.name AS name, sum(both_kinds.waiting) AS waiting,
      sum(both_kinds.claimed) AS claimed, sum(both_kinds.due) AS due, min(both_kinds.head) AS head,
      min(both_kinds.since) AS since, min(both_kinds.next_at) AS next_at
  FROM (
    SELECT queue_jobs.group_key AS name, count(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN 1 END) AS waiting, count(CASE
        WHEN (queue_jobs.consumer_id IS NOT NULL) THEN 1 END) AS claimed, count(CASE
        WHEN (queue_jobs.consumer_id IS NULL
        AND (queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
        OR queue_jobs.parked_at IS NOT NULL)) THEN 1 END) AS due, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN queue_jobs.id END) AS head, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN queue_jobs.scheduled_at END) AS since, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL
        AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) > CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)) THEN coalesce(queue_jobs.parked_at, queue_jobs.available_at) END) AS next_at
    FROM queue_jobs
    WHERE queue_jobs.group_key IS NOT NULL
    GROUP BY queue_jobs.group_key
    UNION ALL
    SELECT queue_jobs_groups.group_key AS group_key, 0, 0, 0, NULL, NULL, NULL
    FROM queue_jobs_groups
    WHERE queue_jobs_groups.own_limit IS NOT NULL OR queue_jobs_groups.own_rate_us IS NOT NULL
        OR queue_jobs_groups.weight IS NOT NULL OR queue_jobs_groups.paused_at IS NOT NULL
        OR queue_jobs_groups.blocked_by IS NOT NULL
  ) AS both_kinds
  GROUP BY both_kinds.name
) AS found
LEFT OUTER JOIN queue_jobs_groups ON queue_jobs_groups.group_key = found.name
ORDER BY found.waiting DESC, CASE WHEN (found.since IS NULL) THEN 1 ELSE 0 END, found.since,
    found.name
LIMIT :p_count::BIGINT;

-- groups, list (2 of 3)
SELECT queue_jobs.group_key, queue_jobs.consumer_id, min(queue_jobs.id) AS min_1,
    min(queue_jobs.claimed_at) AS min_2
FROM queue_jobs
WHERE queue_jobs.group_key IN (:p_group_0::VARCHAR, :p_group_1::VARCHAR)
  AND queue_jobs.lease_expires_at IS NOT NULL
GROUP BY queue_jobs.group_key, queue_jobs.consumer_id
ORDER BY queue_jobs.group_key, queue_jobs.consumer_id;

-- groups, list (3 of 3)
SELECT queue_jobs.id, CASE
    WHEN (queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    OR queue_jobs.parked_at IS NOT NULL) THEN 1 ELSE 0 END AS anon_1,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS coalesce_1
FROM queue_jobs
WHERE queue_jobs.id IN (:p_id_0::BIGINT, :p_id_1::BIGINT);

-- groups, count
SELECT count(CASE WHEN (queue_jobs_groups.blocked_by IS NOT NULL) THEN 1 END) AS blocked_groups,
    count(CASE WHEN (queue_jobs_groups.paused_at IS NOT NULL) THEN 1 END) AS paused_groups,
    count(CASE WHEN (queue_jobs_groups.blocked_by IS NULL AND queue_jobs_groups.paused_at IS NULL
    AND coalesce(queue_jobs_groups.own_rate_us, :param_1::BIGINT) > 0
    AND queue_jobs_groups.tat_us > CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) + (coalesce(queue_jobs_groups.own_burst, :param_2::BIGINT) - 1) * coalesce(queue_jobs_groups.own_rate_us, :param_1::BIGINT)
    AND (EXISTS (SELECT 1 FROM queue_jobs WHERE queue_jobs.group_key = queue_jobs_groups.group_key
    AND queue_jobs.consumer_id IS NULL
    AND (queue_jobs.available_at <= CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)
    OR queue_jobs.parked_at IS NOT NULL)))) THEN 1 END) AS throttled_groups
FROM queue_jobs_groups;

-- groups, change (1 of 5)
UPDATE queue_jobs_groups
SET seq=(queue_jobs_groups.seq + :seq_1::BIGINT),
    own_limit=:own_limit::INTEGER
WHERE queue_jobs_groups.group_key = :group_key_1::VARCHAR;

-- groups, change (2 of 5)
SELECT queue_jobs_groups.own_limit, queue_jobs_groups.weight
FROM queue_jobs_groups
WHERE queue_jobs_groups.group_key = :group_key_1::VARCHAR;

-- rate, look for a token
SELECT queue_jobs_limits.interval_us, queue_jobs_limits.burst, queue_jobs_limits.tat_us,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) AS now
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot = 0;
