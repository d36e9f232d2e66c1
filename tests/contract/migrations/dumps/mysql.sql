CREATE TABLE IF NOT EXISTS queue_over_sql_queues (
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	name VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	settings TEXT NOT NULL, 
	paused_at BIGINT, 
	discarded_count BIGINT NOT NULL DEFAULT '0', 
	edit_count BIGINT NOT NULL DEFAULT '0', 
	owner_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
	schema_version INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_consumers (
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin NOT NULL, 
	name VARCHAR(200) COLLATE utf8mb4_0900_bin NOT NULL, 
	host VARCHAR(255) COLLATE utf8mb4_0900_bin NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	durable SMALLINT NOT NULL DEFAULT '0', 
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin, 
	epoch BIGINT, 
	claimed_round BIGINT, 
	acked_round BIGINT, 
	owner VARCHAR(255) COLLATE utf8mb4_0900_bin, 
	PRIMARY KEY (consumer_id)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_consumer_rounds (
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin NOT NULL, 
	consumer_round BIGINT NOT NULL, 
	message_limit BIGINT NOT NULL, 
	up_to_id BIGINT, 
	due_by BIGINT, 
	claimed_count BIGINT, 
	PRIMARY KEY (consumer_id, consumer_round)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_kinds (
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin NOT NULL, 
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin NOT NULL, 
	PRIMARY KEY (consumer_id, table_prefix, queue, kind)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_schedules (
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	name VARCHAR(200) COLLATE utf8mb4_0900_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	definition LONGTEXT NOT NULL, 
	next_at BIGINT, 
	revision BIGINT NOT NULL DEFAULT '0', 
	paused_at BIGINT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_topics (
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	name VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_subscriptions (
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	topic VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	pattern VARCHAR(255) COLLATE utf8mb4_0900_bin NOT NULL, 
	filter LONGTEXT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, topic, queue, pattern)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_stages (
	name VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	writer_id VARCHAR(100) COLLATE utf8mb4_0900_bin NOT NULL, 
	batch_id BIGINT NOT NULL, 
	message_count BIGINT, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (name)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE TABLE IF NOT EXISTS queue_over_sql_commits (
	table_prefix VARCHAR(20) COLLATE utf8mb4_0900_bin NOT NULL, 
	queue VARCHAR(40) COLLATE utf8mb4_0900_bin NOT NULL, 
	writer_id VARCHAR(100) COLLATE utf8mb4_0900_bin NOT NULL, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin NOT NULL, 
	message_id BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (message_key)
)ENGINE=InnoDB CHARSET=utf8mb4;
CREATE INDEX queue_jobs_dedup_keys_ix ON queue_jobs_dedup_keys (expires_at);
CREATE TABLE IF NOT EXISTS queue_retried (
	id BIGINT NOT NULL AUTO_INCREMENT, 
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGBLOB NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGBLOB NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
ALTER TABLE invoices ADD COLUMN consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin;
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
	message_key VARCHAR(200) COLLATE utf8mb4_0900_bin, 
	kind VARCHAR(100) COLLATE utf8mb4_0900_bin, 
	payload LONGTEXT NOT NULL, 
	headers LONGTEXT, 
	priority SMALLINT NOT NULL DEFAULT '0', 
	published_at BIGINT NOT NULL, 
	scheduled_at BIGINT NOT NULL, 
	available_at BIGINT, 
	attempt_count INTEGER NOT NULL DEFAULT '0', 
	max_attempts INTEGER, 
	lease_us BIGINT, 
	consumer_id VARCHAR(36) COLLATE utf8mb4_0900_bin, 
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
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'Ada', 'ERROR', NULL, 0, 1795441751389434, 1795441751389434, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441751404447, 'no such customer', 1795441751404447, 'failed');
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'Grace', 'NOT_ATTEMPTED', NULL, 0, 1795441751389434, 1795441751389434, 1795441751389434, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO invoices (number, name, status, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'Edsger', 'NOT_ATTEMPTED', NULL, 0, 1795441751389434, 1795441751389434, 1795441751389434, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, x'', NULL, 0, 1795441750914681, 1795441750914681, 1795441750914681, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, x'00ff01', NULL, 0, 1795441750915281, 1795441750915281, 1795441750915281, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_blobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, x'273b2d2d', NULL, 0, 1795441750916224, 1795441750916224, 1795441750916224, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_blobs AUTO_INCREMENT = 4;
INSERT INTO queue_held (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"held":1}', NULL, 0, 1795441751640795, 1795441751640795, 1795441751640795, 1, NULL, NULL, '8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 7, 1795441751645837, 1795445351645837, NULL, NULL);
ALTER TABLE queue_held AUTO_INCREMENT = 2;
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, 'Job', '{"n":1,"text":"Ünïcode 🐘, \\"quotes\\", it''s; back\\\\slash"}', '{"trace":"abc","n":1}', 0, 1795441750604415, 1795441750604415, 1795441750604415, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (5, NULL, 'Job', '{"n":2,"nested":{"list":[1,2.5,null,true]}}', '{"trace":"abc","n":1}', 0, 1795441750606680, 1795441750606680, 1795441750606680, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (6, 'delayed', NULL, '{"delayed":1}', NULL, 0, 1795441750608092, 4070908800000000, 4070908800000000, 0, 7, 77000000, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_jobs (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (7, NULL, NULL, '{"order":1}', '{"topic":"orders","routing_key":"order.created"}', 0, 1795441751418616, 1795441751418616, 1795441751418616, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_jobs AUTO_INCREMENT = 8;
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (1, 'ack', NULL, '{"done":1}', NULL, 0, 1795441750503945, 1795441750503945, 1795441750503945, 1, NULL, NULL, '8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 1, 1795441750557844, 1795442050557844, NULL, NULL, 1795441750576795, 'done');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (2, 'reject', NULL, '{"rejected":1}', NULL, 0, 1795441750583065, 1795441750583065, 1795441750583065, 1, NULL, NULL, '8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 2, 1795441750584532, 1795442050584532, 1795441750589501, 'the reason of reject', 1795441750591349, 'rejected');
INSERT INTO queue_jobs_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome) VALUES (3, 'nack', NULL, '{"failed":1}', NULL, 0, 1795441750594508, 1795441750594508, 1795441750594508, 1, NULL, NULL, '8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 3, 1795441750598634, 1795442050598634, 1795441750601111, 'the reason of nack', 1795441750602797, 'failed');
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('ack', 1, 2795441750570540);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('nack', 3, 2795441750601920);
INSERT INTO queue_jobs_dedup_keys (message_key, message_id, expires_at) VALUES ('reject', 2, 2795441750590568);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '"later"', NULL, 2, 1795441751026994, 1795441751026994, 1795441751026994, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, '"urgent"', NULL, 0, 1795441751027539, 1795441751027539, 1795441751027539, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_levels (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '"usual"', NULL, 1, 1795441751028570, 1795441751028570, 1795441751028570, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_levels AUTO_INCREMENT = 4;
INSERT INTO queue_over_sql_consumers (consumer_id, name, host, pid, started_at, heartbeat_at, expires_at, durable, table_prefix, queue, epoch, claimed_round, acked_round, owner) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'dumped', 'host', 1, 1795441750508951, 1795441750508951, 1795441780508951, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'queue_', 'billing', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'queue_', 'held', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'queue_', 'jobs', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'queue_', 'paints', '');
INSERT INTO queue_over_sql_kinds (consumer_id, table_prefix, queue, kind) VALUES ('8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 'queue_', 'retried', '');
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'billing', '{"adoption": {"table": "invoices", "schema": null, "column_prefix": "", "primary_key": "number"}, "lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441751200713);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'blobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "bytes", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441750911995);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'held', '{"lease_us": 3600000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441751635167);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'jobs', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": 1000000000000000, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441750500713);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'levels', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 3, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441751024538);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'paints', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {"colour": {"sql": "VARCHAR(20)", "type": "String", "length": 20, "collation": null}, "size": {"sql": "INTEGER", "type": "Integer"}}}', NULL, 0, 0, NULL, 1, 1795441751132179);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'planned', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441751503290);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'retried', '{"lease_us": 300000000, "max_attempts": 9, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441750714879);
INSERT INTO queue_over_sql_queues (table_prefix, name, settings, paused_at, discarded_count, edit_count, owner_id, schema_version, created_at) VALUES ('queue_', 'texts', '{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "text", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}', NULL, 0, 0, NULL, 1, 1795441750811634);
INSERT INTO queue_over_sql_schedules (table_prefix, name, queue, definition, next_at, revision, paused_at, created_at) VALUES ('queue_', 'yearly', 'planned', '{"cron": "30 6 1 1 *", "every_us": null, "start": 1795441751511303, "timezone": "UTC", "missed": "one", "payload": {"json": {"scheduled": 1}}, "options": {}}', 1830321000000000, 0, NULL, 1795441751511303);
INSERT INTO queue_over_sql_subscriptions (table_prefix, topic, queue, pattern, filter, created_at) VALUES ('queue_', 'orders', 'jobs', 'order.*', NULL, 1795441751412798);
INSERT INTO queue_over_sql_topics (table_prefix, name, created_at) VALUES ('queue_', 'orders', 1795441751406954);
INSERT INTO queue_paints (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, colour, size) VALUES (2, NULL, NULL, '{}', NULL, 0, 1795441751138136, 1795441751138136, 1795441751138136, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'red', NULL);
ALTER TABLE queue_paints AUTO_INCREMENT = 3;
INSERT INTO queue_paints_archive (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error, finished_at, outcome, colour, size) VALUES (1, NULL, NULL, '{}', NULL, 0, 1795441751136929, 1795441751136929, 1795441751136929, 1, NULL, NULL, '8c87bfa8-bcd2-4bc5-b8f1-0dd5d62fcc27', 5, 1795441751143439, 1795442051143439, NULL, NULL, 1795441751151737, 'done', 'blue', 3);
INSERT INTO queue_planned (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, 'schedule:yearly:2027-01-01T06:30:00+00:00', NULL, '{"scheduled":1}', '{"schedule":"yearly"}', 0, 1795441751514124, 1798785000000000, 1798785000000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_planned AUTO_INCREMENT = 2;
INSERT INTO queue_retried (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, '{"retried":1}', NULL, 0, 1795441750719940, 1795441750719940, 1795441750734132, 1, NULL, NULL, NULL, NULL, NULL, NULL, 1795441750734132, 'the first failure');
ALTER TABLE queue_retried AUTO_INCREMENT = 2;
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (1, NULL, NULL, 'plain', NULL, 0, 1795441750815095, 1795441750815095, 1795441750815095, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (2, NULL, NULL, 'two
lines', NULL, 0, 1795441750815732, 1795441750815732, 1795441750815732, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (3, NULL, NULL, '', NULL, 0, 1795441750817951, 1795441750817951, 1795441750817951, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO queue_texts (id, message_key, kind, payload, headers, priority, published_at, scheduled_at, available_at, attempt_count, max_attempts, lease_us, consumer_id, consumer_round, claimed_at, lease_expires_at, last_attempt_at, last_error) VALUES (4, NULL, NULL, 'percent % and colon :name', NULL, 0, 1795441750818528, 1795441750818528, 1795441750818528, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
ALTER TABLE queue_texts AUTO_INCREMENT = 5;
