"""What clients may send: every field with its type and its range; a field that is not here is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
Texts = Text | Annotated[list[Text], Field(min_length=1)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Id], Field(min_length=1)]
Setting = bool | int | float | str | list[str]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False


class Sampling(Body):
    """What /v1/completions and /v1/chat/completions share. Without a temperature, top_p, top_k or beam the run's own
    settings decide. top_k, beam, alpha and length_penalty are not OpenAI's."""

    model: Text = Field(description="the name of a run, see /v1/models")
    temperature: float | None = Field(None, ge=0, le=100, description="0: the likeliest token each time")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31)
    n: int = Field(1, ge=1, le=128, description="answers per prompt")
    seed: int | None = Field(None, ge=0, le=2**62, description="the same seed gives the same answer")
    stop: Text | list[Text] | None = Field(None, max_length=100, description="strings that end the answer")
    stream: bool = False
    stream_options: StreamOptions | None = None
    beam: int | None = Field(None, ge=1, le=1024, description="beam search with so many hypotheses")
    alpha: float | None = Field(None, ge=0, le=10)
    length_penalty: Literal["gnmt", "power"] | None = None
    user: str | None = Field(None, description="who asks; nothing is done with it")
    presence_penalty: Literal[0] | Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Literal[0] | Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None


class Completion(Sampling):
    """A text, or its tokens, to continue; for a translator, a sentence to translate."""

    prompt: Text | Annotated[list[Text], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)]
    max_tokens: int | None = Field(16, ge=0, description="0 with echo: only the prompt is scored")
    logprobs: int | None = Field(None, ge=0, le=20, description="so many likely tokens beside each one")
    echo: bool = Field(False, description="the prompt stands before the answer")
    best_of: Literal[1] | None = None


class Part(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Chat(Sampling):
    """The turns of a chat, of a run that has a chat template."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="the same as max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class Embeddings(Body):
    model: Text
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class Asking(Body):
    """What the endpoints of all tasks share."""

    model: Text | None = Field(None, description="the name of a run; it may be left out if only one has the task")


class Settings(Asking):
    decode: dict[str, Setting] = Field({}, description='settings of [decode], as --set of ayn use: {"beam": 5}')


class OneText(Settings):
    input: Texts = Field(description="a text, or several in a list")


class OnePair(Settings):
    input: Texts = Field(description="a text, or several in a list; of a pair, the first one")
    second: Texts | None = Field(None, description="the second text of each pair")


class Question(Settings):
    question: Text
    context: Text = Field(description="the text in which the answer stands")


class Image(Settings):
    image: Text | Annotated[list[Text], Field(min_length=1)] = Field(description="a file (PNG, JPEG, …) in base64")


class Vectors(Asking):
    input: Texts
    layers: str = Field("last", max_length=100, description="last, mix (the mean of all), or numbers: 0,1")
    pool: Literal["", "mean", "max", "first", "last"] = ""


class Nearest(Vectors):
    lines: list[str] = Field([], max_length=1000, description="the texts to search; a run of word vectors has its own")
    most: int = Field(5, ge=1, le=1000)


class Next(OnePair):
    most: int = Field(5, ge=1, le=100, description="likely words")


class Trace(Settings):
    input: Text
    kinds: list[Text] = Field([], max_length=20, description="kinds of values, such as weights; none: all")
