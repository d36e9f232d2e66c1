// The protocol of serving.py for contenders on Node.js: commands as JSON lines on the standard
// input, an answer to each on the standard output, times as seconds of CLOCK_MONOTONIC.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

export { sleep };
// The packages lie in a folder of NODE_PATH, where `import` does not look.
export const require = createRequire(import.meta.url);

export const versionOf = (name) =>
  JSON.parse(readFileSync(join(require.resolve(name), '../../package.json'))).version;

export const QUEUE = 'bench';
export const GROUPS = 'groups';
// Seconds that a queue is empty before a consumer of several takes it for finished.
const PATIENCE = 0.5;
const TICK_MS = 20;

const write = process.stdout.write.bind(process.stdout);
// What a library prints must not be taken for an answer.
process.stdout.write = process.stderr.write.bind(process.stderr);

const answer = (content) => write(`${JSON.stringify(content)}\n`);

export const now = () => Number(process.hrtime.bigint()) / 1e9;

// The message `number` as an object whose JSON text has `size` bytes.
const message = (number, size) => {
  const empty = JSON.stringify({ n: number, fill: '' }).length;
  return { n: number, fill: 'x'.repeat(Math.max(0, size - empty)) };
};

const messages = (first, count, size) =>
  Array.from({ length: count }, (_, i) => message(first + i, size));

export function* batches(items, size) {
  for (let start = 0; start < items.length; start += size) yield items.slice(start, start + size);
}

// What the handler of a worker got, from now on.
export class Handled {
  numbers = [];
  moments = {};
  #begun = now();
  #last = this.#begun;
  #looked = this.#begun;

  note(content) {
    this.#last = now();
    this.numbers.push(content.n);
    this.moments[content.n] ??= this.#last;
  }

  get seconds() {
    return this.#last - this.#begun;
  }

  // Until `count` messages came, or none did for a while and `ready` counts none.
  async ended(count, ready) {
    while (this.numbers.length < count) {
      await sleep(TICK_MS);
      if (now() - Math.max(this.#last, this.#looked) < PATIENCE) continue;
      this.#looked = now();
      if ((await ready()) === 0) return;
    }
  }

  async came(count) {
    while (this.numbers.length < count) await sleep(TICK_MS);
  }
}

const acts = (contender) => ({
  describe: () => {
    const { name, version, durability, delivery, fence } = contender;
    const acts = ['publish', 'load', 'consume', 'take', 'work', 'latency', 'idle', 'consume_groups'];
    const can = acts.filter((act) => contender[act]);
    if (contender.publish) can.push('publish_many');
    if (contender.transactional) can.push('work_transactional');
    return { name, version, durability, delivery, fence, can };
  },
  prepare: () => contender.prepare(),
  open: () => contender.open(),
  publish: async ({ first, count, bytes, batch }) => {
    const contents = messages(first, count, bytes);
    const begun = now();
    await contender.publish(contents, batch);
    return { seconds: now() - begun };
  },
  publish_spaced: async ({ first, count, bytes, pause }) => {
    const sent = {};
    for (const content of messages(first, count, bytes)) {
      await contender.publish([content], 1);
      sent[content.n] = now();
      await sleep(pause * 1000);
    }
    return { sent };
  },
  consume: async ({ batch, count }) => {
    const begun = now();
    const numbers = await contender.consume(batch, count);
    return { seconds: now() - begun, numbers };
  },
  prepare_groups: () => contender.prepare_groups(),
  publish_groups: async ({ first, count, bytes, groups }) => {
    const contents = messages(first, count, bytes);
    const begun = now();
    await contender.publish_groups(contents, (content) => `g${content.n % groups}`);
    return { seconds: now() - begun };
  },
  consume_groups: async ({ batch, seconds }) => {
    const begun = now();
    const numbers = await contender.consume_groups(batch, begun + seconds);
    return { seconds: now() - begun, numbers };
  },
  work: async ({ threads, count, transactional }) => {
    const handled = await contender.work(threads, count, transactional);
    return { seconds: handled.seconds, numbers: handled.numbers };
  },
  latency: async ({ count }) => {
    const handled = await contender.latency(count, () => answer({ ready: true }));
    return { received: handled.moments };
  },
  // The server knows how many statements it was.
  idle: async ({ seconds }) => {
    await contender.idle(seconds);
    return { statements: null };
  },
  remaining: async () => ({ count: await contender.remaining() }),
  quit: () => contender.close(),
});

// Answers the commands until `quit` or the end of the input: a contender's main.
export async function serve(contender) {
  const known = acts(contender);
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      if (!known[command.do]) throw new Error(`no such command: ${command.do}`);
      answer((await known[command.do](command)) ?? {});
    } catch (error) {
      console.error(error);
      answer({ error: `${error.name}: ${error.message}` });
    }
    if (command.do === 'quit') break;
  }
  process.exit(0);
}
