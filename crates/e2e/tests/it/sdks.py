"""The official SDKs of OpenAI and Anthropic against a server of ours; argv: its URL and a token."""

import sys

import anthropic
import openai

url, token = sys.argv[1:3]
oai = openai.OpenAI(base_url=f"{url}/llm/openai/v1", api_key=token, max_retries=0)
ant = anthropic.Anthropic(base_url=f"{url}/llm/anthropic", api_key=token, max_retries=0)
user = [{"role": "user", "content": "hi"}]

# Every model of `with_tools` calls a tool, and every other one says hello.
schema = {"type": "object", "properties": {"path": {"type": "string"}}}
tool_openai = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
tool_anthropic = [{"name": "look", "input_schema": schema}]


def chat(model):
    done = oai.chat.completions.create(model=model, messages=user)
    assert done.choices[0].message.content == "hello there", done
    assert done.usage.prompt_tokens == 100 and done.usage.completion_tokens == 7, done.usage
    said = ""
    for chunk in oai.chat.completions.create(model=model, messages=user, stream=True):
        assert chunk.choices, chunk
        said += chunk.choices[0].delta.content or ""
    assert said == "hello there", said
    last = None
    options = {"include_usage": True}
    for last in oai.chat.completions.create(
        model=model, messages=user, stream=True, stream_options=options
    ):
        pass
    assert last.usage.prompt_tokens == 100, last


def chat_tools(model):
    done = oai.chat.completions.create(
        model=model, messages=user, tools=tool_openai, tool_choice="required"
    )
    call = done.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("look", '{"path":"a.txt"}'), call
    assert done.choices[0].finish_reason == "tool_calls"
    args = ""
    for chunk in oai.chat.completions.create(
        model=model, messages=user, tools=tool_openai, stream=True
    ):
        for call in chunk.choices[0].delta.tool_calls or []:
            args += call.function.arguments or ""
    assert args == '{"path":"a.txt"}', args


def messages(model):
    done = ant.messages.create(model=model, max_tokens=64, messages=user)
    assert done.content[0].text == "hello there", done
    assert done.usage.input_tokens == 100 and done.usage.output_tokens == 7, done.usage
    with ant.messages.stream(model=model, max_tokens=64, messages=user) as stream:
        assert "".join(stream.text_stream) == "hello there"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 7, final


def messages_tools(model):
    with ant.messages.stream(
        model=model, max_tokens=64, messages=user, tools=tool_anthropic
    ) as stream:
        final = stream.get_final_message()
    block = final.content[-1]
    assert (block.type, block.name, block.input) == ("tool_use", "look", {"path": "a.txt"}), final
    assert final.stop_reason == "tool_use", final
    again = user + [
        {"role": "assistant", "content": [b.model_dump() for b in final.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "fine"}],
        },
    ]
    done = ant.messages.create(
        model=model.replace("with_tools", "small"), max_tokens=64, messages=again
    )
    assert done.content[0].text == "hello there", done


def responses(model):
    done = oai.responses.create(model=model, input="hi")
    assert done.output_text == "hello there", done
    said, final = "", None
    for event in oai.responses.create(model=model, input="hi", stream=True):
        if event.type == "response.output_text.delta":
            said += event.delta
        final = event
    assert said == "hello there" and final.type == "response.completed", (said, final)
    assert final.response.usage.input_tokens == 100, final


chat("small")
chat("anthropic-messages:small")
chat_tools("with_tools")
chat_tools("anthropic-messages:with_tools")
messages("small")
messages("openai-chat:small")
messages_tools("with_tools")
messages_tools("openai-chat:with_tools")
responses("small")
responses("openai-chat:small")
responses("anthropic-messages:small")

vectors = oai.embeddings.create(model="small", input=["a", "b"], encoding_format="float")
assert [one.embedding for one in vectors.data] == [[0.5, 1.0], [0.25, 2.0]], vectors
assert oai.models.list() is not None
assert ant.models.list() is not None


def fails(kind, ask):
    try:
        ask()
    except kind as err:
        return err
    raise AssertionError(f"no {kind}")


# A provider's own error, and each of ours, as the SDKs' own classes.
slow = fails(
    openai.RateLimitError, lambda: oai.chat.completions.create(model="slow", messages=user)
)
assert slow.response.headers["retry-after"] == "7" and "slow down" in str(slow), slow
fails(
    anthropic.RateLimitError,
    lambda: ant.messages.create(model="slow", max_tokens=9, messages=user),
)
fails(
    openai.RateLimitError,
    lambda: oai.chat.completions.create(model="anthropic-messages:slow", messages=user),
)
fails(
    openai.AuthenticationError,
    lambda: oai.with_options(api_key="ovs_wrong").chat.completions.create(
        model="small", messages=user
    ),
)
fails(
    anthropic.AuthenticationError,
    lambda: ant.with_options(api_key="ovs_wrong").messages.create(
        model="small", max_tokens=9, messages=user
    ),
)
named = fails(
    openai.BadRequestError,
    lambda: oai.chat.completions.create(
        model="anthropic-messages:small", messages=user, presence_penalty=1.5
    ),
)
assert "presence_penalty" in str(named), named
print("all of it")
