-- publish, replace (1 of 2)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload AS payload,
    queue_jobs.headers AS headers, queue_jobs.priority, queue_jobs.published_at,
    queue_jobs.scheduled_at,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS available_at,
    queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id,
    queue_jobs.consumer_round, queue_jobs.claimed_at, queue_jobs.lease_expires_at,
    queue_jobs.last_attempt_at, queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key
FROM queue_jobs
WHERE queue_jobs.message_key = :p_key
FOR UPDATE;

-- publish, replace (2 of 2)
UPDATE queue_jobs
SET kind=:p_kind,
    payload=:p_payload,
    headers=:p_headers,
    priority=:p_priority,
    scheduled_at=coalesce(:p_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :p_delay),
    available_at=coalesce(:p_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :p_delay),
    attempt_count=:attempt_count,
    max_attempts=:p_max_attempts,
    lease_us=:p_lease_us,
    consumer_id=:consumer_id,
    consumer_round=:consumer_round,
    claimed_at=:claimed_at,
    lease_expires_at=:lease_expires_at,
    last_attempt_at=:last_attempt_at,
    last_error=:last_error,
    last_traceback=:last_traceback,
    expires_at=(CASE
        WHEN (:p_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) THEN :p_at
        ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) END + :p_expires),
    group_key=:p_c0,
    parked_at=:parked_at
WHERE queue_jobs.id = :p_id_0;

-- claim (1 of 7)
SELECT queue_jobs_limits.interval_us, queue_jobs_limits.burst, queue_jobs_limits.tat_us,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot = 0
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
LIMIT :p_count;

-- claim (3 of 7)
SELECT queue_jobs_limits.slot, queue_jobs_limits.message_id, queue_jobs_limits.consumer_id,
    queue_jobs_limits.consumer_round
FROM queue_jobs_limits FORCE INDEX (PRIMARY)
WHERE queue_jobs_limits.slot = :p_slot_0
LIMIT :p_count
FOR UPDATE SKIP LOCKED;

-- claim (4 of 7)
SELECT queue_jobs_limits.slot, queue_jobs_limits.message_id, queue_jobs_limits.consumer_id,
    queue_jobs_limits.consumer_round, CASE
    WHEN (EXISTS (SELECT 1 FROM queue_jobs WHERE queue_jobs.id = queue_jobs_limits.message_id
    AND queue_jobs.consumer_id = queue_jobs_limits.consumer_id
    AND queue_jobs.consumer_round = queue_jobs_limits.consumer_round)) THEN 1 ELSE 0 END AS taken
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot < 0 OR queue_jobs_limits.slot = :p_slot_0;

-- claim (5 of 7)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload AS payload,
    queue_jobs.headers AS headers, queue_jobs.priority, queue_jobs.published_at,
    queue_jobs.scheduled_at, coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS due_at,
    queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id,
    queue_jobs.consumer_round, queue_jobs.claimed_at, queue_jobs.lease_expires_at,
    queue_jobs.last_attempt_at, queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key,
    queue_jobs.parked_at, queue_jobs.blocks,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM queue_jobs FORCE INDEX (queue_jobs_claim_ix)
WHERE (queue_jobs.consumer_id IS NULL OR queue_jobs.consumer_id < :consumer_id_1)
  AND queue_jobs.priority = :p_priority
  AND queue_jobs.available_at >= :p_low
  AND queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND (
    SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
        OR queue_over_sql_queues.groups_at IS NULL OR :p_edits >= :param_1
        AND queue_over_sql_queues.edit_count != :p_edits) THEN 1 END AS anon_1
    FROM queue_over_sql_queues
    WHERE queue_over_sql_queues.table_prefix = :table_prefix_1
      AND queue_over_sql_queues.name = :name_1
  ) IS NULL
ORDER BY queue_jobs.consumer_id, queue_jobs.available_at, queue_jobs.id
LIMIT :p_window
FOR UPDATE SKIP LOCKED;

-- claim (6 of 7)
SELECT queue_jobs_groups.group_key, queue_jobs_groups.own_limit, queue_jobs_groups.tat_us,
    queue_jobs_groups.own_rate_us, queue_jobs_groups.own_burst
FROM queue_jobs_groups FORCE INDEX (PRIMARY)
WHERE queue_jobs_groups.group_key = :p_group_0
  AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
FOR UPDATE SKIP LOCKED;

-- claim (7 of 7)
SELECT queue_jobs.group_key, queue_jobs.id, 0
FROM queue_jobs FORCE INDEX (queue_jobs_group_ix)
WHERE queue_jobs.group_key = :p_group_0
  AND queue_jobs.consumer_id IS NOT NULL
UNION ALL
SELECT queue_jobs.group_key, (
  SELECT other.id
  FROM queue_jobs AS other FORCE INDEX (queue_jobs_group_ix)
  WHERE other.group_key = queue_jobs.group_key
    AND other.consumer_id IS NULL
  ORDER BY other.id
  LIMIT 1
) AS anon_1, 1
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id = :p_id_0;

-- take (4 of 16)
SELECT queue_jobs.id, queue_jobs.group_key, queue_jobs.available_at,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs FORCE INDEX (queue_jobs_claim_ix)
WHERE (queue_jobs.consumer_id IS NULL OR queue_jobs.consumer_id < :consumer_id_1)
  AND queue_jobs.priority = :p_priority
  AND queue_jobs.available_at >= :p_low
  AND queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND (
    SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
        OR queue_over_sql_queues.groups_at IS NULL OR :p_edits >= :param_1
        AND queue_over_sql_queues.edit_count != :p_edits) THEN 1 END AS anon_1
    FROM queue_over_sql_queues
    WHERE queue_over_sql_queues.table_prefix = :table_prefix_1
      AND queue_over_sql_queues.name = :name_1
  ) IS NULL
ORDER BY queue_jobs.consumer_id, queue_jobs.available_at, queue_jobs.id
LIMIT :p_window;

-- take (5 of 16)
SELECT queue_jobs_groups.group_key, queue_jobs_groups.own_limit,
    queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL AS anon_1,
    queue_jobs_groups.tat_us, queue_jobs_groups.own_rate_us, queue_jobs_groups.own_burst,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs_groups FORCE INDEX (PRIMARY)
WHERE queue_jobs_groups.group_key = :p_group_0;

-- take (6 of 16)
SELECT queue_jobs.group_key, queue_jobs.id
FROM queue_jobs FORCE INDEX (queue_jobs_group_ix)
WHERE queue_jobs.group_key = :p_group_0
  AND queue_jobs.consumer_id IS NOT NULL;

-- take (7 of 16)
SELECT queue_jobs_groups.group_key, queue_jobs_groups.own_limit, 0, queue_jobs_groups.tat_us,
    queue_jobs_groups.own_rate_us, queue_jobs_groups.own_burst,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs_groups FORCE INDEX (PRIMARY)
WHERE queue_jobs_groups.group_key = :p_group_0
  AND NOT (queue_jobs_groups.paused_at IS NOT NULL OR queue_jobs_groups.blocked_by IS NOT NULL)
FOR UPDATE SKIP LOCKED;

-- take (8 of 16)
SELECT run_0.group_key, run_0.id
FROM (
  SELECT queue_jobs.group_key AS group_key, queue_jobs.id AS id
  FROM queue_jobs FORCE INDEX (queue_jobs_group_ix)
  WHERE queue_jobs.group_key = :p_group_0
    AND queue_jobs.consumer_id IS NULL
  ORDER BY queue_jobs.id
  LIMIT :p_first
) AS run_0;

-- take (9 of 16)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload AS payload,
    queue_jobs.headers AS headers, queue_jobs.priority, queue_jobs.published_at,
    queue_jobs.scheduled_at, coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS due_at,
    queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id,
    queue_jobs.consumer_round, queue_jobs.claimed_at, queue_jobs.lease_expires_at,
    queue_jobs.last_attempt_at, queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id = :p_id_0
  AND queue_jobs.consumer_id IS NULL
  AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FOR UPDATE SKIP LOCKED;

-- take (10 of 16)
UPDATE queue_jobs_groups
SET seq=(queue_jobs_groups.seq + 1),
    tat_us=CASE WHEN (queue_jobs_groups.group_key = :p_group_0) THEN :p_tat_0 END
WHERE queue_jobs_groups.group_key = :p_group_0;

-- take (16 of 16)
UPDATE queue_jobs_limits
SET message_id=CASE WHEN (queue_jobs_limits.slot = :p_slot_0) THEN :p_id_0
        ELSE queue_jobs_limits.message_id END,
    consumer_id=:p_consumer,
    consumer_round=:p_round
WHERE queue_jobs_limits.slot = :p_slot_0;

-- take, archive (12 of 17)
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at,
    scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round,
    claimed_at, lease_expires_at, last_attempt_at, last_error, expires_at, last_traceback,
    group_key, finished_at, outcome)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload,
    queue_jobs.headers, queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
    queue_jobs.available_at, queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
    queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
    queue_jobs.lease_expires_at, coalesce(:p_attempted, queue_jobs.last_attempt_at) AS coalesce_1,
    CASE WHEN (:p_outcome = :param_1) THEN queue_jobs.last_error ELSE :p_error END AS anon_1,
    queue_jobs.expires_at, queue_jobs.last_traceback, queue_jobs.group_key,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :p_outcome AS anon_2
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id = :p_id_0;

-- ack (1 of 6)
DELETE FROM queue_jobs
WHERE queue_jobs.id = :p_id_0
  AND queue_jobs.consumer_id = :p_consumer
  AND queue_jobs.consumer_round = :p_round
  AND queue_jobs.blocks IS NULL
RETURNING queue_jobs.id;

-- ack (2 of 6)
SELECT queue_jobs.id, queue_jobs.group_key, queue_jobs.blocks
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id = :p_id_0
  AND queue_jobs.consumer_id = :p_consumer
  AND queue_jobs.consumer_round = :p_round
FOR UPDATE;

-- ack, archive (2 of 6)
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at,
    scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round,
    claimed_at, lease_expires_at, last_attempt_at, last_error, expires_at, last_traceback,
    group_key, finished_at, outcome)
SELECT queue_jobs.id, queue_jobs.message_key, queue_jobs.kind, queue_jobs.payload,
    queue_jobs.headers, queue_jobs.priority, queue_jobs.published_at, queue_jobs.scheduled_at,
    queue_jobs.available_at, queue_jobs.attempt_count, queue_jobs.max_attempts, queue_jobs.lease_us,
    queue_jobs.consumer_id, queue_jobs.consumer_round, queue_jobs.claimed_at,
    queue_jobs.lease_expires_at, coalesce(:p_attempted, queue_jobs.last_attempt_at) AS coalesce_1,
    CASE WHEN (:p_outcome = :param_1) THEN queue_jobs.last_error ELSE :p_error END AS anon_1,
    queue_jobs.expires_at, queue_jobs.last_traceback, queue_jobs.group_key,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :p_outcome AS anon_2
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id = :p_id_0
  AND queue_jobs.consumer_id = :p_consumer
  AND queue_jobs.consumer_round = :p_round;

-- claim, known kinds (5 of 7)
SELECT STRAIGHT_JOIN queue_jobs.id, queue_jobs.message_key, queue_jobs.kind,
    queue_jobs.payload AS payload, queue_jobs.headers AS headers, queue_jobs.priority,
    queue_jobs.published_at, queue_jobs.scheduled_at,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS due_at, queue_jobs.attempt_count,
    queue_jobs.max_attempts, queue_jobs.lease_us, queue_jobs.consumer_id, queue_jobs.consumer_round,
    queue_jobs.claimed_at, queue_jobs.lease_expires_at, queue_jobs.last_attempt_at,
    queue_jobs.last_error, queue_jobs.expires_at, queue_jobs.group_key, queue_jobs.parked_at,
    queue_jobs.blocks, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (
  SELECT queue_jobs.id AS id
  FROM queue_jobs FORCE INDEX (queue_jobs_claim_ix)
  WHERE (queue_jobs.consumer_id IS NULL OR queue_jobs.consumer_id < :consumer_id_1)
    AND queue_jobs.priority = :p_priority
    AND queue_jobs.available_at >= :p_low
    AND queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    AND (queue_jobs.kind IS NULL OR queue_jobs.kind IN (:kind_1_1))
    AND (
      SELECT CASE WHEN (queue_over_sql_queues.paused_at IS NOT NULL
          OR queue_over_sql_queues.groups_at IS NULL OR :p_edits >= :param_1
          AND queue_over_sql_queues.edit_count != :p_edits) THEN 1 END AS anon_1
      FROM queue_over_sql_queues
      WHERE queue_over_sql_queues.table_prefix = :table_prefix_1
        AND queue_over_sql_queues.name = :name_1
    ) IS NULL
  ORDER BY queue_jobs.consumer_id, queue_jobs.available_at, queue_jobs.id
  LIMIT :p_look
) AS found
INNER JOIN queue_jobs ON queue_jobs.id = found.id
WHERE queue_jobs.consumer_id IS NULL
  AND queue_jobs.priority = :p_priority
  AND queue_jobs.available_at >= :p_low
  AND queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND (queue_jobs.kind IS NULL OR queue_jobs.kind IN (:kind_2_1))
LIMIT :p_window
FOR UPDATE SKIP LOCKED;

-- groups, park (3 of 5)
SELECT queue_jobs.group_key, (
  SELECT other.id
  FROM queue_jobs AS other FORCE INDEX (queue_jobs_group_ix)
  WHERE other.group_key = queue_jobs.group_key
    AND other.consumer_id IS NULL
  ORDER BY other.id
  LIMIT 1
) AS anon_1
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id IN (:p_id_0, :p_id_1);

-- groups, park (4 of 5)
SELECT queue_jobs.id, queue_jobs.group_key
FROM queue_jobs FORCE INDEX (PRIMARY)
WHERE queue_jobs.id IN (:p_id_0, :p_id_1)
  AND queue_jobs.consumer_id IS NULL
  AND NOT (queue_jobs.parked_at IS NOT NULL AND queue_jobs.available_at IS NULL)
FOR UPDATE SKIP LOCKED;

-- groups, create rows
SELECT queue_jobs_groups.group_key
FROM queue_jobs_groups FORCE INDEX (PRIMARY)
WHERE queue_jobs_groups.group_key IN (:p_group_0, :p_group_1);

-- groups, list (1 of 3)
SELECT found.name, found.waiting, found.claimed, found.due, found.head, found.since, found.next_at,
    queue_jobs_groups.own_limit, queue_jobs_groups.paused_at, queue_jobs_groups.blocked_by,
    queue_jobs_groups.weight, queue_jobs_groups.tat_us, queue_jobs_groups.own_rate_us,
    queue_jobs_groups.own_burst, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM (
  SELECT both_kinds.name AS name, sum(both_kinds.waiting) AS waiting,
      sum(both_kinds.claimed) AS claimed, sum(both_kinds.due) AS due, min(both_kinds.head) AS head,
      min(both_kinds.since) AS since, min(both_kinds.next_at) AS next_at
  FROM (
    SELECT queue_jobs.group_key AS name, count(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN 1 END) AS waiting, count(CASE
        WHEN (queue_jobs.consumer_id IS NOT NULL) THEN 1 END) AS claimed, count(CASE
        WHEN (queue_jobs.consumer_id IS NULL
        AND (queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        OR queue_jobs.parked_at IS NOT NULL)) THEN 1 END) AS due, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN queue_jobs.id END) AS head, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL) THEN queue_jobs.scheduled_at END) AS since, min(CASE
        WHEN (queue_jobs.consumer_id IS NULL
        AND coalesce(queue_jobs.parked_at, queue_jobs.available_at) > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) THEN coalesce(queue_jobs.parked_at, queue_jobs.available_at) END) AS next_at
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
LIMIT :p_count;

-- groups, list (2 of 3)
SELECT queue_jobs.group_key, queue_jobs.consumer_id, min(queue_jobs.id) AS min_1,
    min(queue_jobs.claimed_at) AS min_2
FROM queue_jobs
WHERE queue_jobs.group_key IN (:p_group_0, :p_group_1)
  AND queue_jobs.consumer_id IS NOT NULL
GROUP BY queue_jobs.group_key, queue_jobs.consumer_id
ORDER BY queue_jobs.group_key, queue_jobs.consumer_id;

-- groups, list (3 of 3)
SELECT queue_jobs.id, CASE
    WHEN (queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    OR queue_jobs.parked_at IS NOT NULL) THEN 1 ELSE 0 END AS anon_1,
    coalesce(queue_jobs.parked_at, queue_jobs.available_at) AS coalesce_1
FROM queue_jobs
WHERE queue_jobs.id IN (:p_id_0, :p_id_1);

-- groups, count
SELECT count(CASE WHEN (queue_jobs_groups.blocked_by IS NOT NULL) THEN 1 END) AS blocked_groups,
    count(CASE WHEN (queue_jobs_groups.paused_at IS NOT NULL) THEN 1 END) AS paused_groups,
    count(CASE WHEN (queue_jobs_groups.blocked_by IS NULL AND queue_jobs_groups.paused_at IS NULL
    AND coalesce(queue_jobs_groups.own_rate_us, :param_1) > 0
    AND queue_jobs_groups.tat_us > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + (coalesce(queue_jobs_groups.own_burst, :param_2) - 1) * coalesce(queue_jobs_groups.own_rate_us, :param_1)
    AND (EXISTS (SELECT 1 FROM queue_jobs WHERE queue_jobs.group_key = queue_jobs_groups.group_key
    AND queue_jobs.consumer_id IS NULL
    AND (queue_jobs.available_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    OR queue_jobs.parked_at IS NOT NULL)))) THEN 1 END) AS throttled_groups
FROM queue_jobs_groups;

-- groups, change (1 of 7)
UPDATE queue_jobs_groups
SET seq=(queue_jobs_groups.seq + :seq_1),
    own_limit=:own_limit
WHERE queue_jobs_groups.group_key = :group_key_1;

-- groups, change (2 of 7)
SELECT queue_jobs_groups.own_limit, queue_jobs_groups.weight
FROM queue_jobs_groups
WHERE queue_jobs_groups.group_key = :group_key_1;

-- groups, change (5 of 7)
SELECT queue_jobs.id
FROM queue_jobs FORCE INDEX (queue_jobs_group_ix)
WHERE queue_jobs.group_key = :p_group_0
  AND queue_jobs.consumer_id IS NULL
  AND queue_jobs.parked_at IS NOT NULL
ORDER BY queue_jobs.id
LIMIT :p_count
FOR UPDATE;

-- groups, change (6 of 7)
UPDATE queue_jobs FORCE INDEX (PRIMARY)
SET available_at=TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    parked_at=:parked_at,
    blocks=1
WHERE queue_jobs.id IN (:p_id_0, :p_id_1, :p_id_2, :p_id_3)
  AND queue_jobs.parked_at IS NOT NULL;

-- rate, look for a token
SELECT queue_jobs_limits.interval_us, queue_jobs_limits.burst, queue_jobs_limits.tat_us,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now
FROM queue_jobs_limits
WHERE queue_jobs_limits.slot = 0;
