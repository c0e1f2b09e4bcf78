"""The openai client against phase 12's server: openai_client.py URL KEY [FINGERPRINT]

test_clients runs it. Ends with status 1 and a traceback when an answer is not what it must be.
FINGERPRINT is that of ./demo --prompt "What is the capital of France?".
"""
import sys

import openai

url, key, wanted = sys.argv[1:4]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)
question = [{"role": "user", "content": "What is the capital of France?"}]
answer = "The capital of France is Paris."


def chat(**fields):
    return client.chat.completions.create(
        **{"model": "data/model", "messages": question, "temperature": 0, **fields}
    )


def complete(**fields):
    return client.completions.create(
        **{"model": "data/model", "prompt": "Once upon a time", "max_tokens": 8, "seed": 3, **fields}
    )


def fingerprints(response):
    return [choice.samebits_fingerprint for choice in response.choices]


def must_fail(kind, call, param=None, **fields):
    try:
        call(**fields)
    except kind as err:
        assert err.body["message"], err.body
        assert err.body["param"] == param, err.body
        return err
    raise AssertionError(f"{fields}: no {kind.__name__}")


def check_models():
    (model,) = client.models.list().data
    assert model.id == "data/model" and model.object == "model"


def check_chat():
    r = chat()
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-"), r
    assert r._request_id and r.id == "chatcmpl-" + r._request_id, r._request_id
    assert r.system_fingerprint.startswith("samebits-")
    assert r.choices[0].message.content == answer and r.choices[0].message.role == "assistant"
    assert r.choices[0].finish_reason == "stop" and r.choices[0].logprobs is None
    assert fingerprints(r) == [wanted]
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.completion_tokens == 11
    parts = [{"type": "text", "text": "What is the capital of France?"}]
    assert fingerprints(chat(messages=[{"role": "user", "content": parts}])) == [wanted]
    named = chat(extra_headers={"X-Request-Id": "mine-1"})
    assert named.id == "chatcmpl-mine-1" and named._request_id == "mine-1"
    assert chat(max_completion_tokens=2).choices[0].finish_reason == "length"


def check_stream():
    events = list(chat(stream=True, stream_options={"include_usage": True}))
    assert len(events) == 12 and all(e.object == "chat.completion.chunk" for e in events)
    assert len({e.id for e in events}) == 1
    *tokens, last = events
    assert tokens[0].choices[0].delta.role == "assistant"
    assert all(e.usage is None for e in tokens) and not last.choices
    assert last.usage.completion_tokens == 11
    assert "".join(e.choices[0].delta.content for e in tokens) == answer
    assert [e.choices[0].finish_reason for e in tokens] == [None] * 10 + ["stop"]
    assert tokens[-1].choices[0].samebits_fingerprint == wanted
    text = "".join(e.choices[0].text for e in complete(stream=True))
    assert text == complete().choices[0].text
    with chat(stream=True) as stream:  # and goes away
        next(iter(stream))


def check_logprobs():
    content = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 11
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy: the likeliest
        assert bytes(entry.bytes).decode() == entry.token
    assert "".join(e.token for e in content[:-1]) == answer
    events = list(chat(logprobs=True, top_logprobs=3, stream=True))
    assert [e.choices[0].logprobs.content[0] for e in events] == content
    lists = complete(logprobs=2, temperature=0).choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == 8
    assert lists.text_offset[0] == 0
    for i, token in enumerate(lists.tokens[:-1]):
        assert lists.text_offset[i + 1] == lists.text_offset[i] + len(token)
    parts = list(complete(logprobs=2, temperature=0, stream=True))
    assert [o for p in parts for o in p.choices[0].logprobs.text_offset] == lists.text_offset


def check_prompts():
    """Lists of prompts, and what evaluation tools send: echo with logprobs."""
    texts = ["Once upon a time", "The capital of France is"]
    each = [complete(prompt=t, n=2, temperature=1) for t in texts]
    both = complete(prompt=texts, n=2, temperature=1)
    assert [c.index for c in both.choices] == [0, 1, 2, 3]
    assert fingerprints(both) == fingerprints(each[0]) + fingerprints(each[1])
    assert both.usage.prompt_tokens == sum(r.usage.prompt_tokens for r in each)
    ids = [client.post("/../tokenize", body={"prompt": t}, cast_to=object)["tokens"] for t in texts]
    assert fingerprints(complete(prompt=ids, n=2, temperature=1)) == fingerprints(both)
    streamed = {i: "" for i in range(4)}
    for event in complete(prompt=texts, n=2, temperature=1, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == {c.index: c.text for c in both.choices}
    for max_tokens in (0, 1):
        scored = complete(prompt=ids, max_tokens=max_tokens, temperature=0, logprobs=1, echo=True)
        assert scored.usage.completion_tokens == 2 * max_tokens
        for choice, text, prompt in zip(scored.choices, texts, ids):
            lists = choice.logprobs
            assert len(lists.tokens) == len(prompt) + max_tokens
            assert "".join(lists.tokens) == choice.text and choice.text.startswith(text)
            assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None
            assert all(p <= 0 for p in lists.token_logprobs[1:])
            for token, p, top in zip(lists.tokens[1:], lists.token_logprobs[1:],
                                     lists.top_logprobs[1:]):
                assert top[token] == p and len(top) <= 2 and max(top.values()) >= p
    events = list(complete(prompt=ids[0], temperature=0, logprobs=1, echo=True, stream=True))
    whole = complete(prompt=ids[0], temperature=0, logprobs=1, echo=True).choices[0]
    assert "".join(e.choices[0].text for e in events) == whole.text
    assert sum((e.choices[0].logprobs.tokens for e in events), []) == whole.logprobs.tokens


def check_sampling():
    several = complete(n=3, temperature=1)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert len(set(fingerprints(several))) == 3
    assert fingerprints(complete(n=3, temperature=1)) == fingerprints(several)
    assert fingerprints(complete(temperature=1)) == fingerprints(several)[:1]
    assert fingerprints(complete(temperature=1, seed=4)) != fingerprints(complete(temperature=1))
    streamed = {}
    for event in complete(n=3, temperature=1, stream=True):
        for choice in event.choices:
            if choice.finish_reason:
                streamed[choice.index] = choice.samebits_fingerprint
    assert [streamed[i] for i in range(3)] == fingerprints(several)
    greedy = complete(temperature=0, max_tokens=20)
    likeliest = complete(temperature=1, max_tokens=20, extra_body={"top_k": 1})
    assert likeliest.choices[0].text == greedy.choices[0].text
    longer = complete(max_tokens=300, temperature=0, extra_body={"ignore_eos": True})
    assert longer.usage.completion_tokens == 300


def check_stop():
    whole = complete(temperature=0, max_tokens=30).choices[0].text
    stop = whole[20:23]
    cut = complete(temperature=0, max_tokens=30, stop=stop)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    for i in range(0, len(whole) - 4, 3):  # some begin in one token and end in another
        stop = whole[i : i + 4]
        events = complete(temperature=0, max_tokens=30, stop=["\x01", stop], stream=True)
        assert "".join(e.choices[0].text for e in events) == whole[: whole.index(stop)]
    echoed = complete(temperature=0, max_tokens=30, echo=True).choices[0].text
    assert echoed == "Once upon a time" + whole
    ids = client.post("/../tokenize", body={"prompt": "Once upon a time"}, cast_to=object)["tokens"]
    same = complete(prompt=ids, temperature=0, max_tokens=30, echo=True).choices[0].text
    assert same == echoed
    text = client.post("/../detokenize", body={"tokens": ids}, cast_to=object)["prompt"]
    assert text == "Once upon a time"


def check_errors():
    must_fail(openai.BadRequestError, chat, param="temperature", temperature=3)
    must_fail(openai.BadRequestError, chat, param="n", n=0)
    must_fail(openai.BadRequestError, chat, param="max_tokens", max_tokens=0)
    must_fail(openai.BadRequestError, chat, param="messages", messages=[])
    must_fail(openai.BadRequestError, chat, param="top_logprobs", top_logprobs=2)
    must_fail(openai.BadRequestError, chat, param="logit_bias", logit_bias={"1": 5})
    must_fail(openai.BadRequestError, chat, param="what", extra_body={"what": 1})
    must_fail(openai.BadRequestError, complete, param="prompt", prompt="a " * 5000)
    must_fail(openai.BadRequestError, chat, param="continuous_usage_stats", stream=True,
              stream_options={"continuous_usage_stats": True})
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    must_fail(openai.BadRequestError, chat, param="tools", tools=[tool])
    chat(logit_bias={}, presence_penalty=0, frequency_penalty=0.0, user="me", tools=[],
         tool_choice="none", response_format={"type": "text"}, store=False, max_tokens=1)
    err = must_fail(openai.NotFoundError, chat, param="model", model="gpt-4")
    assert err.status_code == 404 and err.response.headers["x-request-id"]
    other = client.with_options(api_key="wrong")
    must_fail(openai.AuthenticationError, other.models.list)


for check in (check_models, check_chat, check_stream, check_logprobs, check_prompts,
              check_sampling, check_stop, check_errors):
    check()
    print(check.__name__, "ok", flush=True)
