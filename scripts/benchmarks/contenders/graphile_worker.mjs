// Graphile Worker on PostgreSQL, with what its page on performance has for many jobs: a local queue
// of 500 jobs and completions in batches. Latency is measured without them, by its LISTEN/NOTIFY.

import { Handled, QUEUE, batches, require, serve, sleep, versionOf } from './serving.mjs';

const pg = require('pg');
const { Logger, makeWorkerUtils, run } = require('graphile-worker');

const MANY_JOBS = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
const SETTLING_MS = 1000;
const url = process.argv[2];
const logger = new Logger(() => (level, text) => {
  if (level === 'error') console.error(text);
});

let utils;
let asking;

const preset = (options) => ({
  worker: { connectionString: url, logger, ...options },
});

const counted = async (condition) => {
  const { rows } = await asking.query(
    `SELECT count(*)::int AS n FROM graphile_worker.jobs WHERE ${condition}`,
  );
  return rows[0].n;
};

// A running worker, and what its handler gets.
const worker = async (concurrentJobs, options = {}) => {
  const handled = new Handled();
  const maxPoolSize = Math.max(10, concurrentJobs + 2);
  const runner = await run({
    preset: preset({ concurrentJobs, maxPoolSize, ...options }),
    taskList: { [QUEUE]: (content) => handled.note(content) },
    noHandleSignals: true,
    parsedCronItems: [],
  });
  return { handled, runner };
};

await serve({
  name: 'graphile-worker',
  version: versionOf('graphile-worker'),
  durability: 'each commit reaches the disk',
  delivery: 'at least once',
  fence: false, // a job is completed by its id alone

  async prepare() {
    const preparing = await makeWorkerUtils({ preset: preset({}) });
    await preparing.migrate();
    await preparing.release();
  },

  async open() {
    utils = await makeWorkerUtils({ preset: preset({}) });
    asking = new pg.Client({ connectionString: url });
    await asking.connect();
    await counted('true');
  },

  async publish(contents, batch) {
    if (batch === 1) {
      for (const content of contents) await utils.addJob(QUEUE, content);
      return;
    }
    for (const part of batches(contents, batch)) {
      await utils.addJobs(part.map((payload) => ({ identifier: QUEUE, payload })));
    }
  },

  async work(threads, wanted) {
    const { handled, runner } = await worker(threads, MANY_JOBS);
    await handled.ended(wanted, () => counted('locked_at IS NULL'));
    await runner.stop();
    return handled;
  },

  async latency(wanted, waiting) {
    const { handled, runner } = await worker(1);
    await sleep(SETTLING_MS);
    waiting();
    await handled.came(wanted);
    await runner.stop();
    return handled;
  },

  async idle(seconds) {
    const { runner } = await worker(1);
    await sleep(seconds * 1000);
    await runner.stop();
  },

  remaining: () => counted('true'),

  async close() {
    await utils.release();
    await asking.end();
  },
});
