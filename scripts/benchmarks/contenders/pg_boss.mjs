// pg-boss on PostgreSQL. By default its worker fetches one job every two seconds; for many jobs it
// is given what its documentation has for them: batches, and no pause after a full one. Latency is
// measured with its LISTEN/NOTIFY, which a queue and an instance have to ask for.

import { GROUPS, Handled, QUEUE, batches, now, require, serve, sleep, versionOf } from './serving.mjs';

const pg = require('pg');
const { PgBoss } = require('pg-boss');

const BATCH = 100;
const SETTLING_MS = 2500;
const url = process.argv[2];

let boss;
let asking;

const started = async (options) => {
  const instance = new PgBoss({ connectionString: url, ...options });
  instance.on('error', console.error);
  return instance.start();
};

// An instance with all of its defaults, that is told of new jobs.
const listening = async () => {
  await boss.updateQueue(QUEUE, { notify: true });
  return started({ useListenNotify: true });
};

const count = async (states) => {
  const { rows } = await asking.query(
    'SELECT count(*)::int AS n FROM pgboss.job WHERE name = $1 AND state::text = ANY ($2)',
    [QUEUE, states],
  );
  return rows[0].n;
};

const ready = () => count(['created', 'retry']);

// A worker of `instance` that hands what it gets to a new Handled.
const worker = async (instance, options) => {
  const handled = new Handled();
  await instance.work(QUEUE, options, async (jobs) => jobs.forEach((job) => handled.note(job.data)));
  return handled;
};

await serve({
  name: 'pg-boss',
  version: versionOf('pg-boss'),
  durability: 'each commit reaches the disk',
  delivery: 'at least once',
  transactional: true, // a batch of jobs is completed in the transaction of its handler
  fence: true, // jobs are completed with their attempt; an attempt that is over is refused

  async prepare() {
    const instance = await started({});
    await instance.createQueue(QUEUE);
    await instance.stop();
  },

  async open() {
    // Publishers give no notice until they have read anew that the queue wants it.
    boss = await started({ supervise: false, schedule: false, queueCacheIntervalSeconds: 1 });
    asking = new pg.Client({ connectionString: url });
    await asking.connect();
    await boss.getQueue(QUEUE);
  },

  async publish(contents, batch) {
    if (batch === 1) {
      for (const content of contents) await boss.send(QUEUE, content);
      return;
    }
    for (const part of batches(contents, batch)) {
      await boss.insert(QUEUE, part.map((data) => ({ data })));
    }
  },

  async consume(batchSize, wanted) {
    const numbers = [];
    while (numbers.length < wanted) {
      const jobs = await boss.fetch(QUEUE, { batchSize });
      if (jobs.length === 0) break;
      await boss.complete(QUEUE, jobs);
      numbers.push(...jobs.map((job) => job.data.n));
    }
    return numbers;
  },

  // Its strictest policy: the next job of a key waits until the one before it is completed.
  async prepare_groups() {
    await boss.createQueue(GROUPS, { policy: 'key_strict_fifo' });
  },

  async publish_groups(contents, groupOf) {
    for (const part of batches(contents, 1000)) {
      await boss.insert(GROUPS, part.map((data) => ({ data, singletonKey: groupOf(data) })));
    }
  },

  async consume_groups(batchSize, end) {
    const numbers = [];
    while (now() < end) {
      const jobs = await boss.fetch(GROUPS, { batchSize });
      if (jobs.length === 0) await sleep(2);
      else await boss.complete(GROUPS, jobs);
      numbers.push(...jobs.map((job) => job.data.n));
    }
    return numbers;
  },

  async work(threads, wanted, transactional) {
    const options = {
      batchSize: BATCH,
      burstWhenBatchFull: true,
      localConcurrency: threads,
      pollingIntervalSeconds: 0.5,
      transactional: transactional === true,
    };
    const handled = await worker(boss, options);
    await handled.ended(wanted, ready);
    await boss.offWork(QUEUE, { wait: true });
    return handled;
  },

  async latency(wanted, waiting) {
    const instance = await listening();
    const handled = await worker(instance, {});
    await sleep(SETTLING_MS);
    waiting();
    await handled.came(wanted);
    await instance.stop();
    return handled;
  },

  async idle(seconds) {
    const instance = await listening();
    await worker(instance, {});
    await sleep(seconds * 1000);
    await instance.stop();
  },

  remaining: () => count(['created', 'retry', 'active']),

  async close() {
    await boss.stop();
    await asking.end();
  },
});
