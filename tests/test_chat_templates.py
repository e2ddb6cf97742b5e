"""Chat templates give the text that the transformers library gives."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from allyouneed.config import TextConfig
from allyouneed.predict.inputs import fill_template
from allyouneed.text import Tokenizer
from allyouneed.text.jinja import fill

# In the styles of well-known models: what their templates use, in our own words.
TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] +
'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "smollm2": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{
'<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' +
message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- endif %}""",
    "llama 2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message =
messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{%- for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{
raise_exception('Turns must alternate user/assistant!') }}{% endif %}{% if loop.index0 == 0 and system_message != false
%}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content =
message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() +
' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}""",
    "llama 3": """
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The first message may be the system's. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim +
            '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' ~ arg_val ~ '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- ', "id": "none"}' }}
            {%- else %}
                {{- ', "id": "' + tool_call.id + '"}' }}
            {%- endif %}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "qwen 3": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n') %}
                {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' +
                content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "phi 3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + (message['content'] or '') + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + (message['content'] or '') + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt ~
message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<｜Assistant｜>' +
content + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- if message['role'] == 'assistant' and
message['tool_calls'] is defined and message['tool_calls'] is not none %}{%- set ns.is_first = false %}
{%- for tool in message['tool_calls'] %}
{%- if not ns.is_first %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' + tool['type'] +
'<｜sep｜>' + tool['function']['name'] }}
{%- set ns.is_first = true -%}{%- else %}{{ '\\n' + tool['function']['name'] }}{%- endif %}{%- endfor %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{
'<｜tool▁outputs▁begin｜>' + message['content'] }}{%- set ns.is_output_first = false %}{%- else %}{{ '\\n' +
message['content'] }}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜>' }}{% endif %}""",
    "command r": """{{ bos_token }}
{%- set defs = {'string': 'str', 'integer': 'int', 'boolean': 'bool', 'number': 'float'} -%}
{%- macro as_python(kind, inner) -%}
    {%- if kind in defs -%}{{ defs[kind] }}
    {%- elif kind == 'array' -%}List[{{ as_python(inner.items.type, inner.items) if inner['items'] is mapping else
        'Any' }}]
    {%- else -%}{{ kind | capitalize }}
    {%- endif -%}
{%- endmacro -%}
{%- macro signature(tool) -%}
def {{ tool.function.name }}(
    {%- for name, about in tool.function.parameters.properties | dictsort -%}
        {{ name }}: {{ as_python(about.type, about) }}
        {%- if name not in tool.function.parameters.required %} = None{% endif %}
        {%- if not loop.last %}, {% endif %}
    {%- endfor -%}
) -> List[Dict]:
    \"\"\"{{ tool.function.description | default('nothing is said', true) | replace('\\n', ' ') }}\"\"\"
{%- endmacro -%}
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% endif %}
<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ system | default('Be kind.') }}
{% for tool in tools or [] %}
```python
{{ signature(tool) }}
```{{ '\\n\\n' if not loop.last }}
{% endfor %}
<|END_OF_TURN_TOKEN|>
{%- for message in messages if message.role != 'system' -%}
    <|START_OF_TURN_TOKEN|>{{ {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}.get(message.role,
    '<|SYSTEM_TOKEN|>') ~ loop.index ~ '/' ~ loop.length ~ ' ' }}
    {%- if message.content -%}{{ message.content.strip().replace('\\n\\n', '\\n') }}{%- endif -%}<|END_OF_TURN_TOKEN|>
{%- endfor -%}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}""",
    "granite": """
{%- set ns = namespace(found=0, roles=[], long=none) -%}
{%- set system %}
You are Granite.
{% if tools %}You have {{ tools | length }} tools.{% endif %}

{% endset -%}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% set system = message['content'] %}{% continue %}{% endif %}
    {%- set ns.roles = ns.roles + [message['role'] | upper] %}
    {%- if ns.found > 30 %}{% break %}{% endif %}
    {%- set ns.found = ns.found + 1 %}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %}{{ '(again)' }}{% endif %}
    {%- if loop.nextitem is not defined %}{{ '(last)' }}{% endif %}
<|start_of_role|>{{ message['role'] }}<|end_of_role|>{% generation %}{{ message['content'] or '' }}{% endgeneration %}
<|end_of_text|>
{% endfor %}
{{- system.splitlines() | map('trim') | reject('equalto', '') | join(' ') }}
{{ ns.roles | join(', ') }} {{ ns.roles | unique | list | tojson }} {{ messages | map(attribute='role') | list }}
{%- if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}
""",
    "everything": """
{%- macro field(name, value='none') -%}{{ name | title }}={{ value }}{{ caller('x') if caller }};{%- endmacro %}
{{ field('a b') }}{{ field('c', 1) }}{{ field(value=2, name='d') }}{% call(z) field('e') %}<{{ z }}>{% endcall %}
{% with a = 1, b = messages | length %}{{ a + b }} {{ a - b }} {{ a * b }} {{ b / 2 }} {{ b // 2 }} {{ b % 2 }}
 {{ 2 ** 3 }}{% endwith %}
{{ 1 < 2 < 3 }} {{ 1 in [1, 2] }} {{ 'a' not in 'abc' }} {{ not true }} {{ -3 }} {{ 1.5 }} {{ none }}
 {{ [1, 'a', {'b': (1,)}] }}
{{ messages[-1].content[:3] }}|{{ messages[0]['content'][::-1] }}|{{ messages[99] }}|{{ nothing }}
|{{ nothing | default('d') }}
{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{{ loop.cycle('x', 'y') }}{{ loop.revindex }}
{% else %}no{% endfor %}
{% for x in [] %}{% else %}nothing{% endfor %}{% for x in range(5) if x is odd %}{{ x }}{{ loop.index }}{% endfor %}
{% filter upper | trim %} shout {% endfilter %}{% set b | replace('a', 'o') %}banana{% endset %}{{ b }}
{{ [3, 1, 2] | sort | list }} {{ [1, 2] | last }} {{ [1, 2] | first }} {{ 'abc' | first }}
 {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }}
{{ '12' | int + 1 }} {{ 'x' | int }} {{ '1.5' | float }} {{ 5 | string + 'a' }}
 {{ 'a,b'.split(',') | join('-') }} {{ 'x' | safe }}
{{ {'a': none, 'b': [true, 'é"']} | tojson }} {{ {'b': 1, 'a': {}} | tojson(indent=2, sort_keys=true) }}
 {{ [1, 2] | tojson(separators=(',', ':')) }}
{{ 'a\\nb\\n\\nc' | indent(2) }}{{ 'a\\nb' | indent('> ', true) }} {{ ' ab '.strip() | length }}
 {{ 'aXb'.lower().upper().title() }}
{{ messages | selectattr('role', 'in', ['user']) | map(attribute='content') | first }}
 {{ messages | rejectattr('tool_calls') | list | count }}
{{ 'yes' if messages is sequence and messages is not mapping and messages[0] is mapping and 1 is number and
 true is boolean else 'no' }}
{{ 'one' if 1 is integer and 1.0 is float and field is callable and none is none and 'a' is lower and
 3 is divisibleby 3 }}{{ 'n' if false }}
{% set a, c = 'q', 'r' %}{{ a ~ c ~ 1 ~ none ~ true }} {{ dict(x=1) }} {{ namespace(y=2).y }} {% raw %}{{ raw }}
{% endraw %}
{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% set a = i %}{% endfor %}{{ ns.n }}
{{ a }}
{%- set sep = joiner('|') %}{% for i in 'xyz' %}{{ sep() }}{{ i }}{% endfor %} {{ 'a%' }}
 {{ 'tab\\tend'.partition('\\t') }}
{{- messages[0].content is defined }} {{ messages[0].nope is undefined }} {{ 'b' in {'b': 1} }}
 {{ 'ab'.startswith(('a', 'x')) }}
{%- if messages | selectattr('nope') %}true even if empty{% endif %} {{ (messages | map('length') | list)[0] }}
""",
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather\nof a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "Also": {"type": "object"},
                },
                "required": ["city"],
            },
            "return": {"type": "string"},
        },
    },
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}},
}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one message": [{"role": "user", "content": "  What is <b>2</b> & 2?\n\nTell\tme, 'please' — 東京 🙂 "}],
    "with a system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
    "turns": [
        {"role": "system", "content": " Be\n\nbrief. "},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi "},
        {"role": "user", "content": "and?"},
    ],
    "tools": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "warm"},
    ],
    "out of turn": [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "hello"}],
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


def turn(text: str) -> list[dict[str, str]]:
    """The message of a user."""
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["abc"] * 3, TextConfig(kind="char"))


def theirs(template: str, chat: list[dict[str, Any]], tools: Any, **named: Any) -> str:
    """What the transformers library makes of it."""
    made, _ = render_jinja_template([chat], tools=tools, chat_template=template, add_generation_prompt=True, **named)
    return made[0]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives_the_text_of_transformers(name: str, chat: str) -> None:
    for tools in (None, TOOLS):
        values = {"messages": CHATS[chat], "tools": tools, "documents": None, "add_generation_prompt": True, **NAMED}
        try:
            wanted = theirs(TEMPLATES[name], CHATS[chat], tools, **NAMED)
        except TemplateError as error:
            with pytest.raises(ValueError, match=str(error)):
                fill(TEMPLATES[name], values)
        else:
            assert fill(TEMPLATES[name], values) == wanted


def test_turns_that_a_template_refuses_are_told() -> None:
    for name in ("llama 2", "mistral"):
        with pytest.raises(ValueError, match=r"it says '.*alternate"):
            fill(TEMPLATES[name], {"messages": CHATS["out of turn"], **NAMED})


def test_a_text_is_filled_in_as_the_turn_of_the_user(tokenizer: Tokenizer) -> None:
    text = CHATS["one message"][0]["content"]
    for name in ("llama 3", "qwen 3", "granite"):
        assert fill_template(TEMPLATES[name], turn(text), tokenizer, NAMED) == theirs(
            TEMPLATES[name], CHATS["one message"], None, **NAMED, pad_token=tokenizer.token(tokenizer.pad or 0)
        )


def test_a_long_text_is_filled_in(tokenizer: Tokenizer) -> None:
    text = "a long text with spaces, " * 40_000
    for name in ("qwen 3", "mistral", "gemma", "llama 3"):
        assert text.strip() in fill_template(TEMPLATES[name], turn(text), tokenizer, NAMED)


def test_templates_are_filled_in_threads(tokenizer: Tokenizer) -> None:
    found: list[str] = []

    def work(text: str) -> None:
        found.extend(fill_template(TEMPLATES["qwen 3"], turn(text), tokenizer, {}) for _ in range(50))

    threads = [threading.Thread(target=work, args=(text,)) for text in ("aa", "bb", "cc")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 150
    assert set(found) == {f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in ("aa", "bb", "cc")}


def test_a_template_knows_the_date(tokenizer: Tokenizer) -> None:
    assert fill_template("{{ strftime_now('%Y') }}", turn("a"), tokenizer, {}) in map(
        str, range(2024, datetime.now().year + 1)
    )
