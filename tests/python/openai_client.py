"""The real `openai` client against a running deployment.

    GYM_BASE_URL=http://127.0.0.1:8000 GYM_API_KEY=... python tests/python/openai_client.py

Needs `openai`. Also runs under pytest. GYM_MODEL names the model; by default the first that
`/v1/models` lists. Exits non-zero, with the failed check's name, when anything is wrong.
"""

import concurrent.futures
import math
import os
import sys

import openai

BASE = os.environ["GYM_BASE_URL"].rstrip("/")
BASE = BASE if BASE.endswith("/v1") else BASE + "/v1"
KEY = os.environ.get("GYM_API_KEY", "none")
QUESTION = [{"role": "user", "content": "What is 2+2? Answer: N"}]


def client(key=KEY, **options):
    return openai.OpenAI(base_url=BASE, api_key=key, timeout=120, **options)


def model():
    return os.environ.get("GYM_MODEL") or client().models.list().data[0].id


def ask(**options):
    settings = {"model": model(), "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    return client().chat.completions.create(**{**settings, **options})


def said(message):
    """All the model wrote, reasoning included."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def test_models():
    listed = client().models.list().data
    assert listed and listed[0].object == "model", listed
    assert client().models.retrieve(listed[0].id).id == listed[0].id


def test_chat():
    answer = ask()
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length"), choice
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 16, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert said(ask().choices[0].message) == said(choice.message), "greedy answers repeat"


def test_seed_and_n():
    first = ask(temperature=1, seed=7, n=3)
    second = ask(temperature=1, seed=7, n=3)
    texts = [said(choice.message) for choice in first.choices]
    assert len(texts) == 3 and [choice.index for choice in first.choices] == [0, 1, 2]
    assert texts == [said(choice.message) for choice in second.choices]


def test_stream():
    whole = ask()
    content, reasoning, reason, usage = "", "", None, None
    for chunk in ask(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
    message = whole.choices[0].message
    assert content == (message.content or ""), (content, message)
    assert reasoning == (getattr(message, "reasoning_content", None) or "")
    assert reason == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_logprobs():
    answer = ask(logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert math.isfinite(entry.logprob) and entry.logprob <= 0
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert abs(tops[0] - entry.logprob) < 1e-3, "greedy takes the likeliest token"


def test_completions():
    answer = client().completions.create(model=model(), prompt="2 + 2 =", max_tokens=8, temperature=0, logprobs=2)
    choice = answer.choices[0]
    assert len(choice.logprobs.tokens) == answer.usage.completion_tokens
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens)
    chunks = client().completions.create(model=model(), prompt="2 + 2 =", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_stop():
    text = client().completions.create(model=model(), prompt="2 + 2 =", max_tokens=16, temperature=0).choices[0].text
    if len(text) < 3:
        return
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    answer = client().completions.create(model=model(), prompt="2 + 2 =", max_tokens=16, temperature=0, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == text[: text.index(stop)], (answer.choices[0].text, text, stop)


def test_wrong_key():
    if KEY == "none":
        return
    try:
        client(key="wrong").models.list()
    except openai.AuthenticationError as error:
        assert error.status_code == 401 and KEY not in str(error)
        return
    raise AssertionError("a wrong key was let in")


def test_bad_request():
    for options, named in [({"temperature": 3.5}, "temperature"), ({"n": 0}, "n"), ({"messages": []}, "messages")]:
        try:
            ask(**options)
        except openai.BadRequestError as error:
            assert error.status_code == 400 and named in str(error), error
            assert error.param == named, error
        else:
            raise AssertionError(f"{options} was accepted")
    try:
        ask(model="no-such-model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model was accepted")


def test_thirty_two_at_once():
    expected = said(ask().choices[0].message)
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: ask(), range(32)))
    assert len(answers) == 32
    lengths = {answer.usage.completion_tokens for answer in answers}
    assert all(0 < length <= 16 for length in lengths), lengths
    # Sums of a batch may differ in their last bits, so near-ties may fall either way: most agree.
    agreeing = sum(said(answer.choices[0].message) == expected for answer in answers)
    assert agreeing >= 24, f"{agreeing} of 32 agree with the answer given alone"


def main():
    checks = [(name, check) for name, check in sorted(globals().items()) if name.startswith("test_")]
    failed = 0
    for name, check in checks:
        try:
            check()
            print(f"openai client: {name} ok", flush=True)
        except Exception as error:  # each check is reported, none hides the next
            failed += 1
            print(f"openai client: {name} FAILED: {type(error).__name__}: {error}", flush=True)
    print(f"openai client: openai {openai.__version__}, {len(checks)} checks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
