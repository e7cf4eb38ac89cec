"""One flow with a generated client: make an agent, run it, wait, read its steps."""

import os
import time

from overmind_client import AuthenticatedClient
from overmind_client.api.agents import agent_create
from overmind_client.api.runs import run_create, run_fetch, run_steps
from overmind_client.models import AgentCreate, Problem, RunCreate


def need(what, answer):
    if answer is None or isinstance(answer, Problem):
        raise SystemExit(f"{what}: {answer}")
    return answer


client = AuthenticatedClient(os.environ["OVERMIND_URL"], os.environ["OVERMIND_TOKEN"])
body = AgentCreate(name="python", role="remembers", model="deterministic", tools_allowed=["store_memory"])
agent = need("creating an agent", agent_create.sync(client=client, body=body))
body = RunCreate(agent_id=agent.id, task="say hello")
run = need("starting a run", run_create.sync(client=client, body=body))
for _ in range(600):
    if run.status in ("succeeded", "failed", "canceled"):
        break
    time.sleep(0.1)
    run = need("reading the run", run_fetch.sync(run.id, client=client))
if run.status != "succeeded":
    raise SystemExit(f"the run is {run.status}")
steps = need("reading steps", run_steps.sync(run.id, client=client))
if not steps:
    raise SystemExit("a run that succeeded has no steps")
missing = run_fetch.sync("no-such-run", client=client)
if not isinstance(missing, Problem) or missing.status != 404:
    raise SystemExit(f"not 404: {missing}")
print(f"python: {run.id} {run.status} after {len(steps)} steps")
