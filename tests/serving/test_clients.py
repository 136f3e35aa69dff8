"""How the client libraries openai, litellm and langchain-openai react to the server's errors, for those that
are installed.
"""

import openai
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    # Their warnings about each other.
    pytest.mark.filterwarnings("ignore"),
]
LONG = "hello world " * 400
CHAT = [{"role": "user", "content": LONG}]


def test_the_official_client(served):
    with openai.OpenAI(base_url=served.server.base_url, api_key=served.server.token, max_retries=0) as client:
        for ask in (
            lambda: client.completions.create(model="talks", prompt=LONG),
            lambda: list(client.completions.create(model="talks", prompt=LONG, stream=True)),
            lambda: client.chat.completions.create(model="talks", messages=CHAT, max_tokens=5),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                ask()
            assert error.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_litellm(served, stream):
    litellm = pytest.importorskip("litellm")
    where = {"api_base": served.server.base_url, "max_retries": 0, "stream": stream}

    def ask(model="talks", messages=CHAT, api_key=served.server.token):
        return list(litellm.completion(model=f"openai/{model}", messages=messages, api_key=api_key, **where))

    short = [{"role": "user", "content": "Hi"}]
    for how, kind in (
        ({}, litellm.ContextWindowExceededError),
        ({"messages": short, "api_key": "wrong"}, litellm.AuthenticationError),
        ({"messages": short, "model": "other"}, litellm.NotFoundError),
    ):
        with pytest.raises(kind):
            ask(**how)
    with pytest.raises(litellm.ContextWindowExceededError):
        name, token = "text-completion-openai/talks", served.server.token
        list(litellm.text_completion(model=name, prompt=LONG, max_tokens=5, api_key=token, **where))
    assert ask(messages=short)


@pytest.mark.parametrize("streaming", [False, True])
def test_langchain(served, streaming):
    langchain = pytest.importorskip("langchain_openai")
    from langchain_core import exceptions

    def chat(model="talks", api_key=served.server.token):
        return langchain.ChatOpenAI(
            model=model,
            api_key=api_key,
            base_url=served.server.base_url,
            max_retries=0,
            streaming=streaming,
        )

    for asked, text, kind in (
        (chat(), LONG, exceptions.ContextOverflowError),
        (chat(api_key="wrong"), "Hi", openai.AuthenticationError),
        (chat("other"), "Hi", openai.NotFoundError),
    ):
        with pytest.raises(kind):
            asked.invoke(text)
        with pytest.raises(kind):
            list(asked.stream(text))
    assert chat().invoke("Hi").content
