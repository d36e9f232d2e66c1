CREATE TABLE IF NOT EXISTS queue_over_sql_queues (
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	name VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	settings TEXT NOT NULL, 
	paused_at BIGINT, 
	discarded_count BIGINT NOT NULL DEFAULT '0', 
	edit_count BIGINT NOT NULL DEFAULT '0', 
	owner_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	schema_version INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_consumers (
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin NOT NULL, 
	name VARCHAR(200) COLLATE utf8mb4_nopad_bin NOT NULL, 
	host VARCHAR(255) COLLATE utf8mb4_nopad_bin NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	durable SMALLINT NOT NULL DEFAULT '0', 
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin, 
	epoch BIGINT, 
	claimed_round BIGINT, 
	acked_round BIGINT, 
	owner VARCHAR(255) COLLATE utf8mb4_nopad_bin, 
	PRIMARY KEY (consumer_id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_consumer_rounds (
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin NOT NULL, 
	consumer_round BIGINT NOT NULL, 
	message_limit BIGINT NOT NULL, 
	up_to_id BIGINT, 
	due_by BIGINT, 
	claimed_count BIGINT, 
	PRIMARY KEY (consumer_id, consumer_round)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_kinds (
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin NOT NULL, 
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin NOT NULL, 
	PRIMARY KEY (consumer_id, table_prefix, queue, kind)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_schedules (
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	name VARCHAR(200) COLLATE utf8mb4_nopad_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	definition LONGTEXT NOT NULL, 
	next_at BIGINT, 
	revision BIGINT NOT NULL DEFAULT '0', 
	paused_at BIGINT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_topics (
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	name VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_subscriptions (
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	topic VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	pattern VARCHAR(255) COLLATE utf8mb4_nopad_bin NOT NULL, 
	filter LONGTEXT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, topic, queue, pattern)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_stages (
	name VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	writer_id VARCHAR(100) COLLATE utf8mb4_nopad_bin NOT NULL, 
	batch_id BIGINT NOT NULL, 
	message_count BIGINT, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_commits (
	table_prefix VARCHAR(20) COLLATE utf8mb4_nopad_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_nopad_bin NOT NULL, 
	writer_id VARCHAR(100) COLLATE utf8mb4_nopad_bin NOT NULL, 
	batch_id BIGINT NOT NULL, 
	part BIGINT NOT NULL, 
	message_count BIGINT NOT NULL, 
	committed_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	PRIMARY KEY (table_prefix, queue, writer_id, batch_id, part)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_over_sql_commits_ix ON queue_over_sql_commits (expires_at);
CREATE TABLE IF NOT EXISTS queue_jobs (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_jobs_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_jobs_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_jobs_claim_ix ON queue_jobs (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_jobs_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_jobs_archive_ix ON queue_jobs_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_jobs_dedup_keys (
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin NOT NULL, 
	message_id BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_jobs_dedup_keys_ix ON queue_jobs_dedup_keys (expires_at);
CREATE TABLE IF NOT EXISTS queue_retried (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_retried_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_retried_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_retried_claim_ix ON queue_retried (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_retried_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_retried_archive_ix ON queue_retried_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_texts (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_texts_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_texts_claim_ix ON queue_texts (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_texts_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_texts_archive_ix ON queue_texts_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_blobs (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGBLOB NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_blobs_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_blobs_claim_ix ON queue_blobs (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_blobs_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGBLOB NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_blobs_archive_ix ON queue_blobs_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_levels (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_levels_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_levels_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_levels_claim_ix ON queue_levels (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_levels_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_levels_archive_ix ON queue_levels_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_paints (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	colour VARCHAR(20) NOT NULL, 
	size INTEGER, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_paints_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_paints_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_paints_c0_ix ON queue_paints (colour);
CREATE INDEX queue_paints_claim_ix ON queue_paints (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_paints_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	colour VARCHAR(20), 
	size INTEGER, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_paints_archive_ix ON queue_paints_archive (outcome, finished_at, id);
CREATE TABLE invoices (number INTEGER NOT NULL PRIMARY KEY, name VARCHAR(50));
ALTER TABLE invoices ADD COLUMN status VARCHAR(20);
ALTER TABLE invoices ADD COLUMN headers LONGTEXT;
ALTER TABLE invoices ADD COLUMN priority SMALLINT NOT NULL DEFAULT '0';
ALTER TABLE invoices ADD COLUMN published_at BIGINT;
ALTER TABLE invoices ADD COLUMN scheduled_at BIGINT;
ALTER TABLE invoices ADD COLUMN available_at BIGINT;
ALTER TABLE invoices ADD COLUMN attempt_count INTEGER NOT NULL DEFAULT '0';
ALTER TABLE invoices ADD COLUMN max_attempts INTEGER;
ALTER TABLE invoices ADD COLUMN lease_us BIGINT;
ALTER TABLE invoices ADD COLUMN consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin;
ALTER TABLE invoices ADD COLUMN consumer_round BIGINT;
ALTER TABLE invoices ADD COLUMN claimed_at BIGINT;
ALTER TABLE invoices ADD COLUMN lease_expires_at BIGINT;
ALTER TABLE invoices ADD COLUMN last_attempt_at BIGINT;
ALTER TABLE invoices ADD COLUMN last_error LONGTEXT;
ALTER TABLE invoices ADD COLUMN finished_at BIGINT;
ALTER TABLE invoices ADD COLUMN outcome VARCHAR(20);
CREATE INDEX queue_billing_claim_ix ON invoices (consumer_id, priority, available_at, number);
CREATE TABLE IF NOT EXISTS queue_planned (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_planned_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_planned_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_planned_claim_ix ON queue_planned (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_planned_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_planned_archive_ix ON queue_planned_archive (outcome, finished_at, id);
CREATE TABLE IF NOT EXISTS queue_held (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	PRIMARY KEY (id), 
	CONSTRAINT queue_held_json_ck CHECK (json_valid(payload)), 
	CONSTRAINT queue_held_key_uq UNIQUE (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_held_claim_ix ON queue_held (consumer_id, priority, available_at, id);
CREATE TABLE IF NOT EXISTS queue_held_archive (
	id BIGINT NOT NULL, 
	message_key VARCHAR(200) COLLATE utf8mb4_nopad_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_nopad_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_nopad_bin, 
	consumer_round BIGINT, 
	claimed_at BIGINT, 
	lease_expires_at BIGINT, 
	last_attempt_at BIGINT, 
	last_error LONGTEXT, 
	finished_at BIGINT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_held_archive_ix ON queue_held_archive (outcome, finished_at, id);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'Ada', 'ERROR', NULL, 0, 1795441760612082, 1795441760612082, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441760628283, 'no such customer', 1795441760628283, 'failed');
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'Grace', 'NOT_ATTEMPTED', NULL, 0, 1795441760612082, 1795441760612082, 1795441760612082, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'Edsger', 'NOT_ATTEMPTED', NULL, 0, 1795441760612082, 1795441760612082, 1795441760612082, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, x'', NULL, 0, 1795441759872525, 1795441759872525, 1795441759872525, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, x'00ff01', NULL, 0, 1795441759873335, 1795441759873335, 1795441759873335, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, x'273b2d2d', NULL, 0, 1795441759873973, 1795441759873973, 1795441759873973, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_blobs AUTO_INCREMENT = 4;
INSERT INTO queue_held (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"held":1}', NULL, 0, 1795441760880742, 1795441760880742, 1795441760880742, 1, NULL, NULL, '6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 7, 1795441760891603, 1795445360891603, NULL, NULL);
ALTER TABLE queue_held AUTO_INCREMENT = 2;
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, 'Job', '{"n":1,"text":"Ünïcode 🐘, \\"quotes\\", it''s; back\\\\slash"}', '{"trace":"abc","n":1}', 0, 1795441759605484, 1795441759605484, 1795441759605484, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (5, NULL, 'Job', '{"n":2,"nested":{"list":[1,2.5,null,true]}}', '{"trace":"abc","n":1}', 0, 1795441759606004, 1795441759606004, 1795441759606004, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (6, 'delayed', NULL, '{"delayed":1}', NULL, 0, 1795441759607763, 4070908800000000, 4070908800000000, 0, 7, 77000000, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (7, NULL, NULL, '{"order":1}', '{"topic":"orders","routing_key":"order.created"}', 0, 1795441760640467, 1795441760640467, 1795441760640467, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_jobs AUTO_INCREMENT = 8;
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'ack', NULL, '{"done":1}', NULL, 0, 1795441759524315, 1795441759524315, 1795441759524315, 1, NULL, NULL, '6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 1, 1795441759579155, 1795442059579155, NULL, NULL, 1795441759589107, 'done');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'reject', NULL, '{"rejected":1}', NULL, 0, 1795441759591358, 1795441759591358, 1795441759591358, 1, NULL, NULL, '6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 2, 1795441759592470, 1795442059592470, 1795441759594453, 'the reason of reject', 1795441759596281, 'rejected');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'nack', NULL, '{"failed":1}', NULL, 0, 1795441759598534, 1795441759598534, 1795441759598534, 1, NULL, NULL, '6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 3, 1795441759599531, 1795442059599531, 1795441759602502, 'the reason of nack', 1795441759603841, 'failed');
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('ack', 1, 2795441759585583);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('nack', 3, 2795441759603320);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('reject', 2, 2795441759595113);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '"later"', NULL, 2, 1795441759998967, 1795441759998967, 1795441759998967, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, '"urgent"', NULL, 0, 1795441759999786, 1795441759999786, 1795441759999786, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '"usual"', NULL, 1, 1795441760000331, 1795441760000331, 1795441760000331, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_levels AUTO_INCREMENT = 4;
INSERT INTO queue_over_sql_consumers (consumer_id, name, host, pid, started_at, heartbeat_at, expires_at, durable, table_prefix, queue, epoch, claimed_round, acked_round, owner) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'dumped', 'host', 1, 1795441759528627, 1795441759528627, 1795441789528627, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'queue_', 'billing', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'queue_', 'held', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'queue_', 'jobs', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'queue_', 'paints', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 'queue_', 'retried', '');
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'billing', '{"adoption": {"table": "invoices", "schema": null, "column_prefix": "", "primary_key": "number"}, "lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441760183328);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'blobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "bytes", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441759867250);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'held', '{"lease_us": 3600000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441760878581);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'jobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": 1000000000000000, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441759519983);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'levels', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 3, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441759995059);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'paints', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {"colour": {"sql": "VARCHAR(20)", "type": "String", "length": 20, "collation": null}, "size": {"sql": "INTEGER", "type": "Integer"}}}', NULL, 0, 0, NULL, 1, 1795441760128938);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'planned', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441760749215);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'retried', '{"lease_us": 300000000, "max_attempts": 9, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441759679200);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'texts', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "text", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441759758077);
INSERT INTO queue_over_sql_schedules (table_prefix, name, queue, definition, next_at, revision, paused_at, created_at) VALUES ('queue_', 'yearly', 'planned', '{"cron": "30 6 1 1 *", "every_us": null, "start": 1795441760756801, "timezone": "UTC", "missed": "one", "payload": {"json": {"scheduled": 1}}, "options": {}}', 1830321000000000, 0, NULL, 1795441760756801);
INSERT INTO queue_over_sql_subscriptions (table_prefix, topic, queue, pattern, filter, created_at) VALUES ('queue_', 'orders', 'jobs', 'order.*', NULL, 1795441760636779);
INSERT INTO queue_over_sql_topics (table_prefix, name, created_at) VALUES ('queue_', 'orders', 1795441760632219);
INSERT INTO queue_paints (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, colour, size) VALUES (2, NULL, NULL, '{}', NULL, 0, 1795441760133305, 1795441760133305, 1795441760133305, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'red', NULL);
ALTER TABLE queue_paints AUTO_INCREMENT = 3;
INSERT INTO queue_paints_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome, colour, size) VALUES (1, NULL, NULL, '{}', NULL, 0, 1795441760132016, 1795441760132016, 1795441760132016, 1, NULL, NULL, '6f0b118b-8305-4bcf-a228-e5b865b3ed5a', 5, 1795441760141522, 1795442060141522, NULL, NULL, 1795441760148594, 'done', 'blue', 3);
INSERT INTO queue_planned (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, 'schedule:yearly:2027-01-01T06:30:00+00:00', NULL, '{"scheduled":1}', '{"schedule":"yearly"}', 0, 1795441760762315, 1798785000000000, 1798785000000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_planned AUTO_INCREMENT = 2;
INSERT INTO queue_retried (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"retried":1}', NULL, 0, 1795441759683812, 1795441759683812, 1795441759700072, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441759700072, 'the first failure');
ALTER TABLE queue_retried AUTO_INCREMENT = 2;
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, 'plain', NULL, 0, 1795441759760306, 1795441759760306, 1795441759760306, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, 'two
lines', NULL, 0, 1795441759762801, 1795441759762801, 1795441759762801, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '', NULL, 0, 1795441759763273, 1795441759763273, 1795441759763273, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, NULL, 'percent % and colon :name', NULL, 0, 1795441759763620, 1795441759763620, 1795441759763620, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_texts AUTO_INCREMENT = 5;
