CREATE TABLE invoices (number INTEGER NOT NULL PRIMARY KEY, name VARCHAR(50), status VARCHAR(20), headers TEXT, priority SMALLINT DEFAULT '0' NOT NULL, published_at BIGINT, scheduled_at BIGINT, available_at BIGINT, attempt_count INTEGER DEFAULT '0' NOT NULL, max_attempts INTEGER, lease_us BIGINT, consumer_id VARCHAR(36), consumer_round BIGINT, claimed_at BIGINT, lease_expires_at BIGINT, last_attempt_at BIGINT, last_error TEXT, finished_at BIGINT, outcome VARCHAR(20));
INSERT INTO "invoices" VALUES(1,'Ada','ERROR',NULL,0,1795441723460000,1795441723460000,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,1795441723494000,'no such customer',1795441723494000,'failed');
INSERT INTO "invoices" VALUES(2,'Grace','NOT_ATTEMPTED',NULL,0,1795441723460000,1795441723460000,1795441723460000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "invoices" VALUES(3,'Edsger','NOT_ATTEMPTED',NULL,0,1795441723460000,1795441723460000,1795441723460000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_blobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload BLOB NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_blobs_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_blobs" VALUES(1,NULL,NULL,X'',NULL,0,1795441723181000,1795441723181000,1795441723181000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_blobs" VALUES(2,NULL,NULL,X'00FF01',NULL,0,1795441723193000,1795441723193000,1795441723193000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_blobs" VALUES(3,NULL,NULL,X'273B2D2D',NULL,0,1795441723203000,1795441723203000,1795441723203000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_blobs_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload BLOB NOT NULL, 
	headers TEXT, 
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
CREATE TABLE queue_held (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_held_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_held" VALUES(1,NULL,NULL,'{"held":1}',NULL,0,1795441723631000,1795441723631000,1795441723631000,1,NULL,NULL,'4a0510e1-3838-4b58-b612-234b6f7ecf56',7,1795441723639000,1795445323639000,NULL,NULL);
CREATE TABLE queue_held_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
CREATE TABLE queue_jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_jobs_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_jobs" VALUES(4,NULL,'Job','{"n":1,"text":"Ünïcode 🐘, \"quotes\", it''s; back\\slash"}','{"trace":"abc","n":1}',0,1795441722832000,1795441722832000,1795441722832000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_jobs" VALUES(5,NULL,'Job','{"n":2,"nested":{"list":[1,2.5,null,true]}}','{"trace":"abc","n":1}',0,1795441722848000,1795441722848000,1795441722848000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_jobs" VALUES(6,'delayed',NULL,'{"delayed":1}',NULL,0,1795441722856000,4070908800000000,4070908800000000,0,7,77000000,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_jobs" VALUES(7,NULL,NULL,'{"order":1}','{"topic":"orders","routing_key":"order.created"}',0,1795441723516000,1795441723516000,1795441723516000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_jobs_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
INSERT INTO "queue_jobs_archive" VALUES(1,'ack',NULL,'{"done":1}',NULL,0,1795441722357000,1795441722357000,1795441722357000,1,NULL,NULL,'4a0510e1-3838-4b58-b612-234b6f7ecf56',1,1795441722725000,1795442022725000,NULL,NULL,1795441722776000,'done');
INSERT INTO "queue_jobs_archive" VALUES(2,'reject',NULL,'{"rejected":1}',NULL,0,1795441722786000,1795441722786000,1795441722786000,1,NULL,NULL,'4a0510e1-3838-4b58-b612-234b6f7ecf56',2,1795441722798000,1795442022798000,1795441722800000,'the reason of reject',1795441722811000,'rejected');
INSERT INTO "queue_jobs_archive" VALUES(3,'nack',NULL,'{"failed":1}',NULL,0,1795441722811000,1795441722811000,1795441722811000,1,NULL,NULL,'4a0510e1-3838-4b58-b612-234b6f7ecf56',3,1795441722821000,1795442022821000,1795441722830000,'the reason of nack',1795441722831000,'failed');
CREATE TABLE queue_jobs_dedup_keys (
	message_key VARCHAR(200) NOT NULL, 
	message_id BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	PRIMARY KEY (message_key)
);
INSERT INTO "queue_jobs_dedup_keys" VALUES('ack',1,2795441722752000);
INSERT INTO "queue_jobs_dedup_keys" VALUES('reject',2,2795441722811000);
INSERT INTO "queue_jobs_dedup_keys" VALUES('nack',3,2795441722831000);
CREATE TABLE queue_levels (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_levels_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_levels" VALUES(1,NULL,NULL,'"later"',NULL,2,1795441723241000,1795441723241000,1795441723241000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_levels" VALUES(2,NULL,NULL,'"urgent"',NULL,0,1795441723245000,1795441723245000,1795441723245000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_levels" VALUES(3,NULL,NULL,'"usual"',NULL,1,1795441723255000,1795441723255000,1795441723255000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_levels_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
CREATE TABLE queue_over_sql_commits (
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
CREATE TABLE queue_over_sql_consumer_rounds (
	consumer_id VARCHAR(36) NOT NULL, 
	consumer_round BIGINT NOT NULL, 
	message_limit BIGINT NOT NULL, 
	up_to_id BIGINT, 
	due_by BIGINT, 
	claimed_count BIGINT, 
	PRIMARY KEY (consumer_id, consumer_round)
);
CREATE TABLE queue_over_sql_consumers (
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
INSERT INTO "queue_over_sql_consumers" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','dumped','host',1,1795441722426000,1795441722426000,1795441752426000,0,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_over_sql_kinds (
	consumer_id VARCHAR(36) NOT NULL, 
	table_prefix VARCHAR(20) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	kind VARCHAR(100) NOT NULL, 
	PRIMARY KEY (consumer_id, table_prefix, queue, kind)
);
INSERT INTO "queue_over_sql_kinds" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','queue_','jobs','');
INSERT INTO "queue_over_sql_kinds" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','queue_','retried','');
INSERT INTO "queue_over_sql_kinds" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','queue_','paints','');
INSERT INTO "queue_over_sql_kinds" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','queue_','billing','');
INSERT INTO "queue_over_sql_kinds" VALUES('4a0510e1-3838-4b58-b612-234b6f7ecf56','queue_','held','');
CREATE TABLE queue_over_sql_queues (
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
INSERT INTO "queue_over_sql_queues" VALUES('queue_','jobs','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": 1000000000000000, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441722338000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','retried','{"lease_us": 300000000, "max_attempts": 9, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441722924000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','texts','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "text", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723080000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','blobs','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "bytes", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723178000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','levels','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 3, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723232000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','paints','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {"colour": {"sql": "VARCHAR(20)", "type": "String", "length": 20, "collation": null}, "size": {"sql": "INTEGER", "type": "Integer"}}}',NULL,0,0,NULL,1,1795441723287000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','billing','{"adoption": {"table": "invoices", "schema": null, "column_prefix": "", "primary_key": "number"}, "lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "NoRetry", "arguments": {}}, "payload": "json", "priorities": 1, "archive": "all", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723416000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','planned','{"lease_us": 300000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723571000);
INSERT INTO "queue_over_sql_queues" VALUES('queue_','held','{"lease_us": 3600000000, "max_attempts": 5, "retry": {"policy": "ExponentialBackoff", "arguments": {"base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}}, "payload": "json", "priorities": 1, "archive": "failed", "archive_ttl_us": null, "archive_limit": null, "dedup_window_us": null, "kind_timeout_us": 86400000000, "max_payload_bytes": 1048576, "columns": {}}',NULL,0,0,NULL,1,1795441723630000);
CREATE TABLE queue_over_sql_schedules (
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
INSERT INTO "queue_over_sql_schedules" VALUES('queue_','yearly','planned','{"cron": "30 6 1 1 *", "every_us": null, "start": 1795441723581000, "timezone": "UTC", "missed": "one", "payload": {"json": {"scheduled": 1}}, "options": {}}',1830321000000000,0,NULL,1795441723581000);
CREATE TABLE queue_over_sql_stages (
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
CREATE TABLE queue_over_sql_subscriptions (
	table_prefix VARCHAR(20) NOT NULL, 
	topic VARCHAR(40) NOT NULL, 
	queue VARCHAR(40) NOT NULL, 
	pattern VARCHAR(255) NOT NULL, 
	filter TEXT, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, topic, queue, pattern)
);
INSERT INTO "queue_over_sql_subscriptions" VALUES('queue_','orders','jobs','order.*',NULL,1795441723505000);
CREATE TABLE queue_over_sql_topics (
	table_prefix VARCHAR(20) NOT NULL, 
	name VARCHAR(40) NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (table_prefix, name)
);
INSERT INTO "queue_over_sql_topics" VALUES('queue_','orders',1795441723496000);
CREATE TABLE queue_paints (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_paints_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_paints" VALUES(2,NULL,NULL,'{}',NULL,0,1795441723301000,1795441723301000,1795441723301000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'red',NULL);
CREATE TABLE queue_paints_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
INSERT INTO "queue_paints_archive" VALUES(1,NULL,NULL,'{}',NULL,0,1795441723289000,1795441723289000,1795441723289000,1,NULL,NULL,'4a0510e1-3838-4b58-b612-234b6f7ecf56',5,1795441723347000,1795442023347000,NULL,NULL,1795441723371000,'done','blue',3);
CREATE TABLE queue_planned (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_planned_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_planned" VALUES(1,'schedule:yearly:2027-01-01T06:30:00+00:00',NULL,'{"scheduled":1}','{"schedule":"yearly"}',0,1795441723589000,1798785000000000,1798785000000000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_planned_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
CREATE TABLE queue_retried (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_retried_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_retried" VALUES(1,NULL,NULL,'{"retried":1}',NULL,0,1795441722942000,1795441722942000,1795441723025000,1,NULL,NULL,NULL,NULL,NULL,NULL,1795441723025000,'the first failure');
CREATE TABLE queue_retried_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
CREATE TABLE queue_texts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
	CONSTRAINT queue_texts_key_uq UNIQUE (message_key)
);
INSERT INTO "queue_texts" VALUES(1,NULL,NULL,'plain',NULL,0,1795441723091000,1795441723091000,1795441723091000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_texts" VALUES(2,NULL,NULL,'two
lines',NULL,0,1795441723107000,1795441723107000,1795441723107000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_texts" VALUES(3,NULL,NULL,'',NULL,0,1795441723114000,1795441723114000,1795441723114000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "queue_texts" VALUES(4,NULL,NULL,'percent % and colon :name',NULL,0,1795441723125000,1795441723125000,1795441723125000,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE queue_texts_archive (
	id INTEGER NOT NULL, 
	message_key VARCHAR(200), 
	kind VARCHAR(100), 
	payload TEXT NOT NULL, 
	headers TEXT, 
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
CREATE INDEX queue_over_sql_commits_ix ON queue_over_sql_commits (expires_at);
CREATE INDEX queue_jobs_claim_ix ON queue_jobs (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_jobs_lease_ix ON queue_jobs (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_jobs_archive_ix ON queue_jobs_archive (outcome, finished_at, id);
CREATE INDEX queue_jobs_dedup_keys_ix ON queue_jobs_dedup_keys (expires_at);
CREATE INDEX queue_retried_claim_ix ON queue_retried (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_retried_lease_ix ON queue_retried (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_retried_archive_ix ON queue_retried_archive (outcome, finished_at, id);
CREATE INDEX queue_texts_claim_ix ON queue_texts (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_texts_lease_ix ON queue_texts (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_texts_archive_ix ON queue_texts_archive (outcome, finished_at, id);
CREATE INDEX queue_blobs_claim_ix ON queue_blobs (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_blobs_lease_ix ON queue_blobs (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_blobs_archive_ix ON queue_blobs_archive (outcome, finished_at, id);
CREATE INDEX queue_levels_claim_ix ON queue_levels (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_levels_lease_ix ON queue_levels (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_levels_archive_ix ON queue_levels_archive (outcome, finished_at, id);
CREATE INDEX queue_paints_c0_ix ON queue_paints (colour);
CREATE INDEX queue_paints_claim_ix ON queue_paints (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_paints_lease_ix ON queue_paints (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_paints_archive_ix ON queue_paints_archive (outcome, finished_at, id);
CREATE INDEX queue_billing_claim_ix ON invoices (priority, available_at, number) WHERE consumer_id IS NULL AND available_at IS NOT NULL;
CREATE INDEX queue_billing_lease_ix ON invoices (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_planned_claim_ix ON queue_planned (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_planned_lease_ix ON queue_planned (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_planned_archive_ix ON queue_planned_archive (outcome, finished_at, id);
CREATE INDEX queue_held_claim_ix ON queue_held (priority, available_at, id) WHERE consumer_id IS NULL;
CREATE INDEX queue_held_lease_ix ON queue_held (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX queue_held_archive_ix ON queue_held_archive (outcome, finished_at, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('queue_jobs',7);
INSERT INTO "sqlite_sequence" VALUES('queue_retried',1);
INSERT INTO "sqlite_sequence" VALUES('queue_texts',4);
INSERT INTO "sqlite_sequence" VALUES('queue_blobs',3);
INSERT INTO "sqlite_sequence" VALUES('queue_levels',3);
INSERT INTO "sqlite_sequence" VALUES('queue_paints',2);
INSERT INTO "sqlite_sequence" VALUES('queue_planned',1);
INSERT INTO "sqlite_sequence" VALUES('queue_held',1);
