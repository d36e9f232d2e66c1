// A worker in Node (18 or newer) without any package: it drains a queue over HTTP.
//
//   QUEUES_URL=http://127.0.0.1:8000/api/v1 QUEUES_TOKEN=qos_… node worker.mjs jobs
//
// It may be killed at any moment: what it held comes back when its lease ends. It goes on when the
// server comes back.

const { QUEUES_URL, QUEUES_TOKEN } = process.env;
const queue = process.argv[2];
const lease = Number(process.argv[3] ?? 30);

/** Your work. What it throws is the reason of a failure, and the message is retried later. */
async function handle(message) {
  if (message.payload === null) throw new Error("there is nothing to do");
}

/** Ask the API, again and again while the server or its database is away. */
async function ask(verb, body) {
  for (let pause = 100; ; pause = Math.min(2 * pause, 5_000)) {
    try {
      const answer = await fetch(`${QUEUES_URL}/queues/${queue}/${verb}`, {
        method: "POST",
        headers: { authorization: `Bearer ${QUEUES_TOKEN}`, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(60_000),
      });
      const said = await answer.json();
      if (answer.ok) return said;
      // The claim is lost, or an answer to the same question was: it is not ours any more.
      if (said.type === "/problems/claim-lost") return null;
      if (answer.status !== 503 && answer.status !== 429) throw new Error(JSON.stringify(said));
    } catch (error) {
      // Of the network, not of what we ask for.
      if (!(error instanceof TypeError) && error.name !== "TimeoutError") throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function work(message) {
  const claims = [message.claim];
  const renewal = setInterval(() => ask("extend", { claims }), (lease * 1000) / 3);
  try {
    await handle(message);
  } catch (error) {
    await ask("nack", { claims, error: String(error) });
    return;
  } finally {
    clearInterval(renewal);
  }
  if (await ask("ack", { claims })) console.log(message.id, JSON.stringify(message.payload));
}

// payload_encoding: "json" gives the payload as text, for numbers beyond 2**53.
for (;;) {
  const { messages } = await ask("claim", { count: 5, lease, wait: 20 });
  await Promise.all(messages.map(work));
}
