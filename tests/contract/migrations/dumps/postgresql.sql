CREATE TABLE IF NOT EXISTS queue_over_sql_queues (
	table_prefix VARCHAR(20) NOT NULL, 
	name VARCHAR(40) NOT NULL, 
	settings TEXT NOT NULL, 
	paused_at BIGINT, 
	discarded_count BIGINT DEFAULT '0' NOT NULL, 
	edit_count BIGINT DEFAULT '0' NOT NULL, 
	owner_id VARCHAR(36), 
	schema_version INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_consumers (
	consumer_id VARCHAR(36) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	durable SMALLINT DEFAULT '0' NOT NULL, 
	table_prefix VARCHAR(20), 
	queue VARCHAR(40), 
	epoch BIGINT, 
	claimed_round BIGINT, 
	acked_round BIGINT, 
	owner VARCHAR(255), 
	PRIMARY KEY (consumer_id)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_consumer_rounds (
	consumer_id VARCHAR(36) NOT NULL, 
	consumer_round BIGINT NOT NULL, 
	message_limit BIGINT NOT NULL, 
	up_to_id BIGINT, 
	due_by BIGINT, 
	claimed_count BIGINT, 
	PRIMARY KEY (consumer_id, consumer_round)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_kinds (
	consumer_id VARCHAR(36) NOT NULL, 
	table_prefix VARCHAR(20) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	kind VARCHAR(100) NOT NULL, 
	PRIMARY KEY (consumer_id, table_prefix, queue, kind)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_schedules (
	table_prefix VARCHAR(20) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	definition TEXT NOT NULL, 
	next_at BIGINT, 
	revision BIGINT DEFAULT '0' NOT NULL, 
	paused_at BIGINT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_topics (
	table_prefix VARCHAR(20) NOT NULL, 
	name VARCHAR(40) NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_subscriptions (
	table_prefix VARCHAR(20) NOT NULL, 
	topic VARCHAR(40) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	pattern VARCHAR(255) NOT NULL, 
	filter TEXT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, topic, queue, pattern)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_stages (
	name VARCHAR(40) NOT NULL, 
	table_prefix VARCHAR(20) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	writer_id VARCHAR(100) NOT NULL, 
	batch_id BIGINT NOT NULL, 
	message_count BIGINT, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE IF NOT EXISTS queue_over_sql_commits (
	table_prefix VARCHAR(20) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	writer_id VARCHAR(100) NOT NULL, 
	batch_id BIGINT NOT NULL, 
	part BIGINT NOT NULL, 
	message_count BIGINT NOT NULL, 
	committed_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	PRIMARY KEY (table_prefix, queue, writer_id, batch_id, part)
);
CREATE INDEX IF NOT EXISTS queue_over_sql_commits_ix ON queue_over_sql_commits (expires_at);
CREATE TABLE IF NOT EXISTS queue_jobs (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_jobs_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_jobs_claim_ix ON queue_jobs (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_jobs_lease_ix ON queue_jobs (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_jobs_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_jobs_archive_ix ON queue_jobs_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_jobs_dedup_keys (
	message_key VARCHAR(200) NOT NULL, 
	message_id BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (message_key)
);
CREATE INDEX IF NOT EXISTS queue_jobs_dedup_keys_ix ON queue_jobs_dedup_keys (expires_at);
CREATE TABLE IF NOT EXISTS queue_retried (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_retried_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_retried_claim_ix ON queue_retried (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_retried_lease_ix ON queue_retried (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_retried_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_retried_archive_ix ON queue_retried_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_texts (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_texts_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_texts_claim_ix ON queue_texts (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_texts_lease_ix ON queue_texts (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_texts_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_texts_archive_ix ON queue_texts_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_blobs (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload BYTEA NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_blobs_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_blobs_claim_ix ON queue_blobs (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_blobs_lease_ix ON queue_blobs (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_blobs_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload BYTEA NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_blobs_archive_ix ON queue_blobs_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_levels (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_levels_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_levels_claim_ix ON queue_levels (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_levels_lease_ix ON queue_levels (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_levels_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_levels_archive_ix ON queue_levels_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_paints (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	colour VARCHAR(20) NOT NULL, 
	size INTEGER, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_paints_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_paints_c0_ix ON queue_paints (colour);
CREATE INDEX IF NOT EXISTS queue_paints_claim_ix ON queue_paints (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_paints_lease_ix ON queue_paints (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_paints_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	colour VARCHAR(20), 
	size INTEGER, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_paints_archive_ix ON queue_paints_archive (outcome, finished_at, id);
CREATE TABLE invoices (number INTEGER NOT NULL PRIMARY KEY, name VARCHAR(50));
ALTER TABLE invoices ADD COLUMN status VARCHAR(20);
ALTER TABLE invoices ADD COLUMN headers JSON;
ALTER TABLE invoices ADD COLUMN priority SMALLINT DEFAULT '0' NOT NULL;
ALTER TABLE invoices ADD COLUMN published_at BIGINT;
ALTER TABLE invoices ADD COLUMN scheduled_at BIGINT;
ALTER TABLE invoices ADD COLUMN available_at BIGINT;
ALTER TABLE invoices ADD COLUMN attempt_count INTEGER DEFAULT '0' NOT NULL;
ALTER TABLE invoices ADD COLUMN max_attempts INTEGER;
ALTER TABLE invoices ADD COLUMN lease_us BIGINT;
ALTER TABLE invoices ADD COLUMN consumer_id VARCHAR(36);
ALTER TABLE invoices ADD COLUMN consumer_round BIGINT;
ALTER TABLE invoices ADD COLUMN claimed_at BIGINT;
ALTER TABLE invoices ADD COLUMN lease_expires_at BIGINT;
ALTER TABLE invoices ADD COLUMN last_attempt_at BIGINT;
ALTER TABLE invoices ADD COLUMN last_error TEXT;
ALTER TABLE invoices ADD COLUMN finished_at BIGINT;
ALTER TABLE invoices ADD COLUMN outcome VARCHAR(20);
CREATE INDEX IF NOT EXISTS queue_billing_claim_ix ON invoices (priority, available_at, number) WHERE consumer_id IS NULL AND available_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS queue_billing_lease_ix ON invoices (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_planned (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_planned_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_planned_claim_ix ON queue_planned (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_planned_lease_ix ON queue_planned (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_planned_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_planned_archive_ix ON queue_planned_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_held (
	id BIGSERIAL NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_held_key_uq UNIQUE (message_key)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS queue_held_claim_ix ON queue_held (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX IF NOT EXISTS queue_held_lease_ix ON queue_held (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS queue_held_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload JSON NOT NULL, 
	headers JSON, 
	priority SMALLINT DEFAULT '0' NOT NULL, 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER DEFAULT '0' NOT NULL, 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36), 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error TEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX IF NOT EXISTS queue_held_archive_ix ON queue_held_archive (outcome, finished_at, id);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'Grace', 'NOT_ATTEMPTED', NULL, 0, 1795441734629391, 1795441734629391, 1795441734629391, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'Edsger', 'NOT_ATTEMPTED', NULL, 0, 1795441734629391, 1795441734629391, 1795441734629391, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'Ada', 'ERROR', NULL, 0, 1795441734629391, 1795441734629391, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441734682792, 'no such customer', 1795441734682792, 'failed');
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '\x', NULL, 0, 1795441733984691, 1795441733984691, 1795441733984691, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, '\x00ff01', NULL, 0, 1795441733990579, 1795441733990579, 1795441733990579, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '\x273b2d2d', NULL, 0, 1795441733995474, 1795441733995474, 1795441733995474, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_blobs', 'id'), 3);
INSERT INTO queue_held (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"held":1}', NULL, 0, 1795441735068202, 1795441735068202, 1795441735068202, 1, NULL, NULL, 'eda86146-06c8-40b3-b8ef-c40c1ad763ce', 7, 1795441735106498, 1795445335106498, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_held', 'id'), 1);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, 'Job', '{"n":1,"text":"Ünïcode 🐘, \"quotes\", it''s; back\\slash"}', '{"trace":"abc","n":1}', 0, 1795441733458705, 1795441733458705, 1795441733458705, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (5, NULL, 'Job', '{"n":2,"nested":{"list":[1,2.5,null,true]}}', '{"trace":"abc","n":1}', 0, 1795441733466702, 1795441733466702, 1795441733466702, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (6, 'delayed', NULL, '{"delayed":1}', NULL, 0, 1795441733481532, 4070908800000000, 4070908800000000, 0, 7, 77000000, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (7, NULL, NULL, '{"order":1}', '{"topic":"orders","routing_key":"order.created"}', 0, 1795441734768574, 1795441734768574, 1795441734768574, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_jobs', 'id'), 7);
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'ack', NULL, '{"done":1}', NULL, 0, 1795441733129015, 1795441733129015, 1795441733129015, 1, NULL, NULL, 'eda86146-06c8-40b3-b8ef-c40c1ad763ce', 1, 1795441733297045, 1795442033297045, NULL, NULL, 1795441733351507, 'done');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'reject', NULL, '{"rejected":1}', NULL, 0, 1795441733364689, 1795441733364689, 1795441733364689, 1, NULL, NULL, 'eda86146-06c8-40b3-b8ef-c40c1ad763ce', 2, 1795441733376567, 1795442033376567, 1795441733390131, 'the reason of reject', 1795441733396832, 'rejected');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'nack', NULL, '{"failed":1}', NULL, 0, 1795441733406655, 1795441733406655, 1795441733406655, 1, NULL, NULL, 'eda86146-06c8-40b3-b8ef-c40c1ad763ce', 3, 1795441733420411, 1795442033420411, 1795441733432230, 'the reason of nack', 1795441733443869, 'failed');
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('ack', 1, 2795441733334652);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('reject', 2, 2795441733394716);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('nack', 3, 2795441733438634);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '"later"', NULL, 2, 1795441734106178, 1795441734106178, 1795441734106178, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, '"urgent"', NULL, 0, 1795441734111111, 1795441734111111, 1795441734111111, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '"usual"', NULL, 1, 1795441734113305, 1795441734113305, 1795441734113305, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_levels', 'id'), 3);
INSERT INTO queue_over_sql_consumers (consumer_id, name, host, pid, started_at, heartbeat_at, expires_at, durable, table_prefix, queue, epoch, claimed_round, acked_round, owner) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'dumped', 'host', 1, 1795441733140256, 1795441733140256, 1795441763140256, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'queue_', 'jobs', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'queue_', 'retried', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'queue_', 'paints', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'queue_', 'billing', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('eda86146-06c8-40b3-b8ef-c40c1ad763ce', 'queue_', 'held', '');
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'jobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": 1000000000000000, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441733122787);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'retried', '{"lease_us": 300000000, "max_attempts": 9, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441733594420);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'texts', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "text", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441733846864);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'blobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "bytes", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441733971916);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'levels', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 3, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441734098543);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'paints', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {"colour": {"sql": "VARCHAR(20)", "type": "String", "length": 20, "collation": null}, "size": {"sql": "INTEGER", "type": "Integer"}}}', NULL, 0, 0, NULL, 1, 1795441734190394);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'billing', '{"adoption": {"table": "invoices", "schema": null, "column_prefix": "", "primary_key": "number"}, "lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441734515089);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'planned', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441734878339);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'held', '{"lease_us": 3600000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441735058616);
INSERT INTO queue_over_sql_schedules (table_prefix, name, queue, definition, next_at, revision, paused_at, created_at) VALUES ('queue_', 'yearly', 'planned', '{"cron": "30 6 1 1 *", "every_us": null, "start": 1795441734917101, "timezone": "UTC", "missed": "one", "payload": {"json": {"scheduled": 1}}, "options": {}}', 1830321000000000, 0, NULL, 1795441734917101);
INSERT INTO queue_over_sql_subscriptions (table_prefix, topic, queue, pattern, filter, created_at) VALUES ('queue_', 'orders', 'jobs', 'order.*', NULL, 1795441734735501);
INSERT INTO queue_over_sql_topics (table_prefix, name, created_at) VALUES ('queue_', 'orders', 1795441734695719);
INSERT INTO queue_paints (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, colour, size) VALUES (2, NULL, NULL, '{}', NULL, 0, 1795441734207791, 1795441734207791, 1795441734207791, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'red', NULL);
SELECT setval(pg_get_serial_sequence('queue_paints', 'id'), 2);
INSERT INTO queue_paints_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome, colour, size) VALUES (1, NULL, NULL, '{}', NULL, 0, 1795441734193127, 1795441734193127, 1795441734193127, 1, NULL, NULL, 'eda86146-06c8-40b3-b8ef-c40c1ad763ce', 5, 1795441734252853, 1795442034252853, NULL, NULL, 1795441734285311, 'done', 'blue', 3);
INSERT INTO queue_planned (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, 'schedule:yearly:2027-01-01T06:30:00+00:00', NULL, '{"scheduled":1}', '{"schedule":"yearly"}', 0, 1795441734936492, 1798785000000000, 1798785000000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_planned', 'id'), 1);
INSERT INTO queue_retried (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"retried":1}', NULL, 0, 1795441733612256, 1795441733612256, 1795441733700254, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441733700254, 'the first failure');
SELECT setval(pg_get_serial_sequence('queue_retried', 'id'), 1);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, 'plain', NULL, 0, 1795441733865147, 1795441733865147, 1795441733865147, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, 'two
lines', NULL, 0, 1795441733870849, 1795441733870849, 1795441733870849, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '', NULL, 0, 1795441733874900, 1795441733874900, 1795441733874900, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, NULL, 'percent % and colon :name', NULL, 0, 1795441733885432, 1795441733885432, 1795441733885432, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('queue_texts', 'id'), 4);
