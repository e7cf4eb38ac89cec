"""What only the machine or the caller can say is filled in: the document cannot bound it."""

import os

import schemathesis

SCRATCH = os.environ["OVERMIND_SOAK_SCRATCH"]
AGENT = os.environ["OVERMIND_SOAK_AGENT"]


def fill(value):
    """Paths of the machine lead to the scratch directory, wherever they stand."""
    if isinstance(value, list):
        return [fill(item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {}
    for key, item in value.items():
        if key in ("workspace", "project", "cwd") and isinstance(item, str) and item.startswith("/"):
            item = SCRATCH
        filled[key] = fill(item)
    return filled


def harmless(server):
    """No program of this machine is started by chance, and no other machine is asked."""
    server, transport = dict(server), server.get("transport")
    if isinstance(server.get("command"), str):
        server["command"] = "true"
    if isinstance(transport, dict):
        transport = server["transport"] = dict(transport)
        if isinstance(transport.get("command"), str):
            transport["command"] = "true"
        if isinstance(transport.get("url"), str):
            transport["url"] = "http://127.0.0.1:9/"
    return server


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    if isinstance(case.query, dict):
        case.query = fill(case.query)
    body = case.body
    if not isinstance(body, dict):
        return
    if operation == "backup" and isinstance(body.get("path"), str):
        # Beneath the scratch directory, whatever the text is: the server would write there.
        body = {**body, "path": SCRATCH + "/" + body["path"].replace("/", "_").replace("\0", "")[:100]}
    # A key is no agent: only its callers must say for which one they speak.
    if operation in ("message_receive", "register") and body.get("agent_id", "") is None:
        body = {**body, "agent_id": AGENT}
    if operation == "spawn" and not body.get("agent") and not body.get("model"):
        body = {**body, "agent": AGENT}
    # What is too simple to be masked is judged by the server.
    if isinstance(body.get("value"), str) and len(set(body["value"])) < 4:
        body = {**body, "value": body["value"][:-4] + "aB3$"}
    if operation == "secret_import" and isinstance(body.get("secrets"), dict):
        simple = {k: v for k, v in body["secrets"].items() if isinstance(v, str) and 8 <= len(v) and len(set(v)) < 4}
        body = {**body, "secrets": {**body["secrets"], **{k: v[:-4] + "aB3$" for k, v in simple.items()}}}
    if operation == "mcp_put":
        body = harmless(body)
    case.body = fill(body)
