// A typed client in TypeScript: it publishes a message, claims it, and settles it.
//
//   queue-over-sql openapi > openapi.json
//   npm install openapi-fetch && npx openapi-typescript openapi.json -o api.ts
//   QUEUES_URL=http://127.0.0.1:8080/api/v1 QUEUES_TOKEN=qos_… npx tsx client.ts jobs
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { env: Record<string, string>; argv: string[] };

const client = createClient<paths>({
  baseUrl: process.env.QUEUES_URL,
  headers: { Authorization: `Bearer ${process.env.QUEUES_TOKEN}` },
});
const params = { path: { queue: process.argv[2] } };

/** What was answered; a problem becomes an error. */
function answered<T>(answer: { data?: T; error?: { detail: string } }): T {
  if (answer.data === undefined) throw new Error(answer.error?.detail ?? "There is no answer.");
  return answer.data;
}

const published = answered(
  await client.POST("/queues/{queue}/messages", {
    params: { ...params, header: { "Idempotency-Key": `order-${Date.now()}` } },
    body: { payload: { order: 17 }, kind: "order" },
  }),
);
console.log(`published ${published.id}: ${published.outcome}`);

const { messages } = answered(
  await client.POST("/queues/{queue}/claim", { params, body: { count: 10, lease: 30, wait: 5 } }),
);
for (const message of messages) {
  console.log(`claimed ${message.id}, attempt ${message.attempt}: ${JSON.stringify(message.payload)}`);
}
const claims = messages.map((message) => message.claim);
const { settled } = answered(await client.POST("/queues/{queue}/ack", { params, body: { claims } }));
console.log(`settled ${settled}`);

// A second ack finds the claims lost: the problem says which.
const again = await client.POST("/queues/{queue}/ack", { params, body: { claims } });
console.log(`lost ${again.error?.lost?.length}`);
