// One flow with a client whose types are generated: make an agent, run it, wait, read its steps.
import createClient from "openapi-fetch";

import type { paths } from "./api.js";

const { OVERMIND_URL: baseUrl, OVERMIND_TOKEN: token } = process.env;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

function need<T>(what: string, answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(`${what}: ${JSON.stringify(answer.error)}`);
  return answer.data;
}

const agent = need(
  "creating an agent",
  await client.POST("/api/agents", { body: { name: "typescript", role: "remembers", model: "deterministic", tools_allowed: ["store_memory"] } }),
);
let run = need(
  "starting a run",
  await client.POST("/api/runs", { body: { agent_id: agent.id, task: "say hello" } }),
);
const path = { id: run.id };
for (let tries = 0; !["succeeded", "failed", "canceled"].includes(run.status); tries += 1) {
  if (tries === 600) throw new Error(`the run is still ${run.status}`);
  await new Promise((resolve) => setTimeout(resolve, 100));
  run = need("reading the run", await client.GET("/api/runs/{id}", { params: { path } }));
}
if (run.status !== "succeeded") throw new Error(`the run is ${run.status}`);
const steps = need("reading steps", await client.GET("/api/runs/{id}/steps", { params: { path } }));
if (steps.length === 0) throw new Error("a run that succeeded has no steps");
const none = await client.GET("/api/runs/{id}", { params: { path: { id: "no-such-run" } } });
if (none.error?.status !== 404) throw new Error(`not 404: ${JSON.stringify(none.error)}`);
console.log(`typescript: ${run.id} ${run.status} after ${steps.length} steps`);
