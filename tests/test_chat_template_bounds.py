"""No chat template takes time or memory without end, or ends in a traceback."""

from __future__ import annotations

import random
import re
import resource
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.predict.inputs import MOST_TEMPLATE, fill_template
from allyouneed.text import Tokenizer
from test_chat_templates import theirs


def turn(text: str) -> list[dict[str, str]]:
    """The message of a user."""
    return [{"role": "user", "content": text}]


def grown(start: str, step: str, end: str = "''", turns: int = 99) -> str:
    """A template with a value that grows."""
    loop = f"{{% for i in range({turns}) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{{{{ {end} }}}}"


# A template -> a part of the sentence.
ENDLESS = {
    # time
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "too many steps",
    "{% set x = [1] * 1000 %}{% for a in x %}{% for b in x %}{{ b }}{% endfor %}{% endfor %}": "too many steps",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested too deep",
    "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n else '' }}{% endmacro %}{{ f(40) }}": "too many steps",
    "{{ [1] | slice(500000000) | list }}": "the filter slice",
    "{{ [1] | batch(500000000, 1) | list }}": "the filter batch",
    "{{ 5 | round(100000000, 'ceil') }}": "the filter round",
    "{{ [9] | map('round', 1000000000) | list }}": "the filter round",
    "{{ lipsum(n=100000000) }}": "'lipsum' is undefined",
    "{{ ('a' * 999999).rfind('b' + 'a' * 499999) }}": "too many steps",
    "{{ ('a' * 999999).strip('b' * 499999 + 'a') }}": "too many steps",
    "{{ 9 ** 9 ** 9 }}": "a number of more than 64 bits",
    "{{ 10 ** (10 ** 8) }}": "a number of more than 64 bits",
    "{{ 'x' in range(1000000000000) }}": "too many steps",
    grown("[1]", "[ns.x, ns.x]", "ns.x"): "too many steps",
    grown("[1]", "[ns.x, ns.x]", "ns.x == [ns.x]"): "too many steps",
    grown("[1]", "[ns.x, ns.x]", "ns.x | tojson"): "too many steps",
    grown("[1]", "[ns.x, ns.x]", "5[ns.x] + 1"): "too many steps",
    grown("[1]", "[ns.x, ns.x]", "[1].index(ns.x)"): "too many steps",
    grown("[1]", "[ns.x, ns.x]", "raise_exception(ns.x)"): "too many steps",
    grown("1", "dict[ns.x, ns.x]", "[ns.x, ns.x.a]"): "has no element",
    "{% set t = (1,) * 900 %}{% for i in range(20) %}{% set x = {"
    + "t: 1, " * 99
    + "} %}{% endfor %}": "too many steps",
    "{% set t = (1,) * 9000 %}{% for i in range(500) %}{{ {}[t] }}{% endfor %}": "too many steps",
    "{% set t = (1,) * 9000 %}{% for i in range(500) %}{{ t in {} }}{% endfor %}": "too many steps",
    "{% set t = [1] * 9000 %}{% for i in range(500) %}{{ t.count(2) }}{% endfor %}": "too many steps",
    "{% set t = [1] * 9000 %}{% for i in range(500) %}{{ t | first }}{% endfor %}": "too many steps",
    "{% set t = [1] * 9000 %}{% for i in range(500) %}{{ 'x' in (t | select) }}{% endfor %}": "too many steps",
    "{% set t = [1] * 9000 %}{% for i in range(500) %}{% for j in t if false %}{% endfor %}{% endfor %}": "many steps",
    "{{ ([1] * 9000) | select('in', [2] * 9000) | list }}": "too many steps",
    "{% set r = range(9000) %}{% for i in range(500) %}{{ 'x' in r }}{% endfor %}": "too many steps",
    "{% set v = {}.fromkeys(range(9000)).values() %}{% for i in range(500) %}{{ 'x' in v }}{% endfor %}": "many steps",
    "{% set t = 'a' * 999999 %}{% for i in range(500) %}{% if t[1:] %}{% endif %}{% endfor %}": "too many steps",
    "{{ 'x' in (('a' * 999999) | select) }}": "too many steps",
    "{{ ('a' * 999999) | trim('b' * 499999 + 'a') }}": "too many steps",
    "{{ (['a'] * 9000) | map(attribute='0' + '.0' * 99999) | list }}": "too many steps",
    "{{ (['a'] * 9000) | sort(attribute='0,' * 99999) }}": "too many steps",
    "{% for i in range(50000) %}{% for j in loop %}{{ loop.length }}{% endfor %}{% endfor %}": "too many steps",
    "{% for i in range(500) %}" + "{% if i %}{% endif %}" * 999 + "{% endfor %}": "too many steps",
    "{% macro f() %}"
    + "{% if 1 %}{% endif %}" * 99
    + "{% endmacro %}{% for i in range(2000) %}{{ f() }}{% endfor %}": "too many steps",
    "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 18
    + "{% endcall %}" * 18: "too many steps",
    "{% macro f(n) %}{{ f(n - 1, varargs, varargs) if n }}{% endmacro %}{{ f(90, 1) }}": "too many steps",
    # the steps themselves
    "{{ [-999999999] | map('spend') | list }}": "No filter named 'spend'",
    "{{ self.spend(-999999999) }}": "has no attribute 'spend'",
    "{{ environment.spend(-999999999) }}": "'environment' is undefined",
    "{{ range.__self__.spend(-999999999) }}": "has no attribute '__self__'",
    "{{ strftime_now.__self__.spend(-999999999) }}": "__self__ of a method",
    "{{ raise_exception.spend }}{{ raise_exception.__func__ }}": "__func__ of a method",
    # memory
    "{% set ns = namespace() %}{% set ns.a = 'a' * 99999 %}{{ [ns, ns] }}": "a text of a namespace",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}": "it makes a text or a list of",
    "{% macro f() %}" + "x" * 9000 + "{% endmacro %}{% for i in range(9999) %}{{ f() }}{% endfor %}": "too many steps",
    "{% set j = joiner('a' * 99999) %}{% for i in range(9999) %}{{ j() }}{% endfor %}": "too many steps",
    "{{ ('a' * 9999).replace('a', 'b' * 9999, 5000) }}": "a text or a list of 99,990,000",
    "{{ ('a' * 9999).translate({97: 'b' * 9999}) }}": "translate of a str",
    "{{ ('a' * 9999).encode('idna') }}": "encode of a str",
    "{{ (1).to_bytes(999999999, 'big') }}": "to_bytes of a int",
    "{{ '%*d' % (999999999, 1) }}": "it uses % on a str and a tuple",
    "{{ [[[[1]]]] | tojson(indent='x' * 99999) }}": "it makes a text or a list of",
    "{{ ([1] * 20000) | tojson(separators=('x' * 60000, ':')) }}": "too many steps",
    "{{ ('😀' * 499999) | tojson(ensure_ascii=true) }}": "it makes a text or a list of",
    "{{ ['\x00' * 499999] }}": "it makes a text or a list of",
    "{{ ('f' * 999999) | int(0, 16) }}": "a number of more than 64 bits",
    grown("'ab'", "ns.x ~ ns.x"): "it makes a text or a list of 1,048,576",
    grown("'ab'", "ns.x + ns.x"): "it makes a text or a list of",
    grown("'ab'", "[ns.x, ns.x] | join"): "too many steps",
    "{{ ([''] * 2000) | join('b' * 9999) }}": "a text or a list of 19,998,000",
    grown("'ab'", "ns.x.join([ns.x] * 9)"): "it makes a text or a list of",
    "{{ ('b' * 999999).join([''] * 2000) }}": "a text or a list of 1,999,998,000",
    grown("'ab'", "ns.x.replace('', ns.x)"): "it makes a text or a list of",
    grown("'ab'", "ns.x | replace('a', ns.x)"): "too many steps",
    grown("[1]", "ns.x + ns.x"): "too many steps",
    grown("1", "ns.x * 9"): "a number of more than 64 bits",
    grown("[]", "ns.x + ['a' * 99999 ~ i]", turns=9999): "too many steps",
    "{{ 'a' * 10000000000 }}": "a text or a list of 10,000,000,000",
    "{{ 10000000000 * 'a' }}": "a text or a list of 10,000,000,000",
    "{{ [1] * 10000000000 }}": "a text or a list of 10,000,000,000",
    "{{ '\t'.expandtabs(2000000000) }}": "expandtabs of a str",
    "{{ 'a'.ljust(2000000000) }}": "a text or a list of 2,000,000,000",
    "{{ 'a'.rjust(2000000000) }}": "a text or a list of 2,000,000,000",
    "{{ 'a'.zfill(2000000000) }}": "a text or a list of 2,000,000,000",
    "{{ 'a'.center(2000000000) }}": "a text or a list of 2,000,000,000",
    "{{ 'a' | center(300000000) }}": "the filter center",
    "{{ 'a\nb' | indent(2000000000) }}": "it makes a text or a list of",
    "{% filter indent(999) %}{{ 'a\n' * 9999 }}{% endfilter %}": "it makes a text or a list of",
    "{{ '{:1000000000}'.format(1) }}": "format of a str",
    "{{ '%300000000d' % 1 }}": "it uses % on a str and a int",
    "{{ '%300000000d' is even }}": "it uses % on a str and a int",
    "{{ '%300000000d' is divisibleby 5 }}": "it uses % on a str and a int",
    "{{ '%300000000d' | format(1) }}": "the filter format",
    "{{ [1] | tojson(indent=1000000000) }}": "it makes a text or a list of",
    "{{ 'a' | urlize }}": "the filter urlize",
    "{{ 'a' | wordwrap(1) }}": "the filter wordwrap",
    "{{ range(10000000000) | list }}": "too many steps",
    "{{ strftime_now('%999999999Y' * 99) }}": "a date of more than 100 characters",
    "{% for a in range(2000) %}" + "x" * 9000 + "{% endfor %}": "too many steps",
    # lists in lists: Python's own walks through them take a stack without bounds
    grown("()", "(ns.x,)", turns=9999): "lists into lists, 100 deep",
    grown("[]", "[ns.x]", turns=9999): "lists into lists, 100 deep",
    grown("{}", "{'a': ns.x}", turns=9999): "lists into lists, 100 deep",
    grown("{}", "dict(a=ns.x)", turns=9999): "lists into lists, 100 deep",
    grown("[[]]", "[[]] + [ns.x]", turns=9999): "lists into lists, 100 deep",
    "{% macro f() %}{{ f(varargs) }}{% endmacro %}{{ f() }}": "lists into lists, 100 deep",
    # Python
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "__class__ of a str",
    "{{ ()['__class__'] }}": "__class__ of a tuple",
    "{{ [1] | map(attribute='__class__') | list }}": "__class__ of a int",
    "{{ 1 | attr('__class__') }}": "the filter attr",
    "{{ '{0.__class__}'.format(1) }}": "format of a str",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}": "format_map of a str",
    "{{ 'x'['format'](1) }}": "format of a str",
    "{{ ['{:999999999}'] | map(attribute='format') | list }}": "format of a str",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}": "_func of a Macro",
    "{% for i in [1] %}{{ loop._iterator.gi_frame }}{% endfor %}": "_iterator of a LoopContext",
    "{{ ([1] | map('string')).gi_frame.f_globals }}": "gi_frame of a generator",
    "{{ namespace()._Namespace__attrs }}": "_Namespace__attrs of a Namespace",
    "{{ self._TemplateReference__context }}": "_TemplateReference__context of a TemplateReference",
    "{{ range.mro() }}": "mro of a type",
    "{% block a %}{{ self.a() }}{% endblock %}": "it uses block",
    "{% from 'os' import system %}": "it uses import",
    "{{ messages['append'] }}": "append of a list",
    "{{ messages.append(1) }}": "append of a list",
    "{{ messages[0].pop('role') }}": "pop of a dict",
    "{{ ''.join.__self__ }}": "__self__ of a builtin_function_or_method",
    "{{ [1] | map('__init__') | list }}": "No filter named '__init__'",
    "{{ namespace }}": "it makes a text of a type",
    "{% include 'x' %}": "it uses include",
    "{% import 'x' as y %}": "it uses import",
    "{% extends 'x' %}": "it uses extends",
    "{% autoescape true %}{% endautoescape %}": "it uses autoescape",
    # mistakes
    "{{ cycler() }}": "'cycler' is undefined",
    "{% break %}": "'break' outside loop",
    "{% macro f() %}{% continue %}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}": "'continue' not properly in",
    "{{ 'abc' | truncate(1) }}": "the filter truncate",
    "{{ 1e400 }}": "a number of more than 64 bits",
    "{{ '1e400' | float | int }}": "infinity",
    "{{ 1 // 0 }}": "by zero",
    "{{ " + "9" * 5000 + " }}": "digits",
    "{{ 0x" + "f" * 5000 + " }}": "a number of more than 64 bits",
    "{% for a, b in [1] %}{% endfor %}": "cannot unpack non-iterable int",
    "{% for a, b in ['xyz'] %}{% endfor %}": "too many values to unpack (expected 2)",
    "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}": "a recursive loop",
    "{{ raise_exception('no\nsystem message') }}": "it says 'no\\nsystem message'",
    "{{ raise_exception('') }}": "it says ''",
    "{{ nothing.there }}": "'nothing' is undefined",
    "{{ nothing() }}": "'nothing' is undefined",
    "{{ 'a' is brave }}": "No test named 'brave'",
    "{{ 'a' | brave }}": "No filter named 'brave'",
    "{% brave %}": "unknown tag 'brave'",
    "{% for a in": "end of template",
    "{% set x.y = 1 %}": "cannot assign attribute on non-namespace object",
    # the parser
    "{{ " + "(" * 10_000 + ")" * 10_000 + " }}": "nested too deep",
    "{{ " + "[" * 400 + "]" * 400 + " }}": "nested too deep",
    "{{ " + "not " * 5000 + "1 }}": "nested too deep",
    "{{ 1" + " + 1" * 20_000 + " }}": "nested too deep",
    "{{ messages" + ".a" * 40_000 + " }}": "nested too deep",
    "{% if 1 %}" * 4500 + "{% endif %}" * 4500: "nested too deep",
    "{% if 1 %}" * 120 + "{% endif %}" * 120: "too many levels of indentation",
    "{% for a in [1] %}" * 21 + "{% endfor %}" * 21: "nested too deep",
    "{% macro f() %}" * 200 + "{{ 1 }}" * 4000 + "{% endmacro %}" * 200: "nested too deep",
    "{{ 1 }}" * 14_000: "it is too long",
    "{{ [" + "1," * 49_000 + "] }}": "it is too long",
    "{%" + " " * 90_000: "tag name expected",
    "{% raw %}" + "{% " * 30_000: "end of raw",
    "{#" * 45_000: "end of comment",
    "{{ '" + "\\" * 90_000: "unexpected char",
}
BOUNDED = 3.0  # seconds of a processor, of a slow one
ROOM = 200 << 20  # bytes beside what the process has


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["abc"] * 3, TextConfig(kind="char"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(template: str, tokenizer: Tokenizer) -> tuple[str, str]:
    """What came of a template, a text or a sentence, and that."""
    began, found = time.process_time(), ("", "")
    try:
        found = "a text", fill_template(template, turn("hello"), tokenizer, {})
    except UserError as error:
        found = "a sentence", str(error)
    assert time.process_time() - began < BOUNDED, template[:500]
    if found[0] == "a sentence":
        assert "MemoryError" not in found[1], template[:500]
        assert re.fullmatch("the chat template of this run cannot be used: .{1,201}; try decode.chat=false", found[1])
    return found


@pytest.mark.parametrize("template", ENDLESS, ids=lambda template: re.sub(r"\W+", " ", template[:60]))
def test_a_template_without_bounds_is_refused(template: str, tokenizer: Tokenizer, little_memory: None) -> None:
    kind, text = outcome(template, tokenizer)
    assert kind == "a sentence"
    assert ENDLESS[template] in text


def test_a_template_without_an_end_is_refused(tokenizer: Tokenizer, little_memory: None) -> None:
    assert fill_template("a" * MOST_TEMPLATE, turn("hello"), tokenizer, {}) == "a" * MOST_TEMPLATE
    for template in ("a" * (MOST_TEMPLATE + 1), "{{ 1 }}" * 10**6):
        with pytest.raises(UserError, match=f"the chat template has {len(template):,} characters, and the most is"):
            fill_template(template, turn("hello"), tokenizer, {})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for a in [1] %}" * 20 + "x" + "{% endfor %}" * 20, "x"),
        ("{% if 1 %}" * 90 + "x" + "{% endif %}" * 90, "x"),
        ("{% for a in range(10000) %}{% endfor %}x", "x"),
        ("{% for a in [] %}{{ a | urlize }}{% endfor %}x", "x"),
        ("{% set t = ((1,), 2) %}{{ {t: 'x'}[t] }}", "x"),
        ("{{ 'a' * 20 }}{{ 'b'.ljust(3) }}|", "a" * 20 + "b  |"),
    ],
    ids=["loops", "conditions", "turns", "unused", "keys", "texts"],
)
def test_what_is_within_bounds_is_filled(template: str, text: str, tokenizer: Tokenizer) -> None:
    assert outcome(template, tokenizer) == ("a text", text)


# How a text $t, a number $n, a list $l, a dict $d, a condition $b, any value $x and statements $s may be written.
TAME = {
    "t": """
        'a'; ''; bos_token; 'a b\\n c'; 'é<|x|>'; ' a,b '; 'x\\ty'; messages[0].content; ($t + $t); ($t ~ $x); ($t * $n)
        $t[$n:$n]; $t[::-1]; $t[:-1]; ($t if $b else $t); ($t if $b) ~ ''; ($t or $t); ($t and $t) ~ ''; ($t | upper)
        ($t | lower); ($t | title); ($t | capitalize); ($t | trim); ($x | string); ($x | tojson); ($l | join($t))
        ($x | tojson(indent=$n)); ($t | replace($t, $t)); (nothing | default($t)); ($t | indent($n)); ($t | reverse)
        $t.strip(); $t.lstrip($t); $t.rstrip('a'); $t.replace($t, $t); $t.upper(); $t.title(); $t.ljust($n)
        $t.zfill($n); $t.removeprefix($t); $t.split('a')[0]; $t.rsplit(' ', 1)[-1]; $t.join([$t, $t]); f($x); $x ~ ''
        $d.get($t, $t) ~ ''; messages[0]['role']; messages[$n].role ~ ''; ($l | first) ~ ''; ($l | last) ~ ''
        $d['a'] ~ $x""",
    "n": """
        1; 0; 2; -1; 3; ($n + $n); ($n - $n); ($n * $n); ($n % 3); ($n // 2); ($x | string | length); ($l | count); -$n
        ($t | int); $t.count($t); $t.find($t); ($n if $b else $n); loop.index | default($n); ($t | float | int)
        $d | length
        ([$n, $n] | sort | first)""",
    "l": """
        [1]; []; messages; [$x, $x]; (1, $x) | list; $t.split(); $t.split(','); $t | list; $l | reverse | list
        ($l + $l)
        $l[$n:$n]; $l[::-1]; range($n) | list; $l | map('string') | list; $l | select | list
        $l | select('string') | list
        $l | reject('none') | list; messages | map(attribute='role') | list; $d | items | list; $d | dictsort; $l * 2
        $d.keys() | list; $d.values() | list; $l | map('string') | sort; $l | map('string') | unique | list
        $t.partition(' ') | list; $t.splitlines(); messages | selectattr('role', 'equalto', $t) | list
        ($l if $b else $l)
        messages | rejectattr('role') | list; $l | map('tojson') | list; $l | map('default', $t) | list""",
    "d": "{}; messages[0]; dict(a=1); {$t: $x}; {$t: $x, 'a': $n}; dict(a=$x); dict($d); ($d if $b else $d); {$n: $x}",
    "b": """
        true; false; 1; ($b and $b); ($b or $b); not $b; ($x == $x); ($x != $x); ($x in $l); ($x not in $l); ($t in $t)
        ($t in $d); ($n < $n); (0 <= $n < 3); ($t < $t); $x is string; $x is none; $x is defined; $x is mapping
        $x is iterable; $x is sequence; $n is odd; $n is even; $t is lower; $x is true; $x is not number
        nothing is defined; $t.startswith($t); $t.endswith(($t, $t)); $t.isdigit(); messages | selectattr('nothing')""",
    "x": "1; none; nothing; 1.5; v; $t; $n; $l; $d; $b",
    "s": """
        {{ $t | safe }}; {{ $n }}; {{ $x }}; {% for v in $l %}$s{% else %}e{% endfor %}
        {% for v in $t %}{{ loop.index }}{% endfor %}
        {% for v in messages if $b %}$s{%- continue -%} e{% endfor %}; {% with v = $x %}$s{% endwith %}
        {% set v = $x %}$s
        {% for v in $l %}$s{% if $b %}{% break %}{% endif %} $s{% endfor %}; {% set v, w = $t, $n %}{{ v ~ w }}$s
        {% for v in $l %}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.nextitem is defined }}$s{% endfor %}
        {% for k, v in $d.items() %}{{ k }}$s{% endfor %}; {% for v in range($n) %}{% set ns.x = $t %}$s{% endfor %}
        {{ ns.x }}$s; {% set ns.x = $t %}$s; {% set v %}$s{% endset %}{{ v }}
        {%- if $b %}$s{% elif $b -%} $s{% else %}$s{% endif %}; {% filter upper %}$s{% endfilter %}; <b>
        {% macro f(v, w=$t) %}$s{{ w }}{% endmacro %}{{ f($x) }}; {% generation %}$s{% endgeneration %}  ; $s $s
        {% macro g(v) %}$s{{ caller(v) }}{% endmacro %}{% call(u) g($x) %}{{ u }}$s{% endcall %}""",
}
WILD = {
    "t": """
        '%999999999d'; 'a' * 99999; '\\t' * 9999; $t.expandtabs($n); $t.center($n); $t.format($x); ($t % $x)
        $t.__class__ ~ ''
        ($t | center($n)); ($t | wordwrap($n)); ($t | truncate($n)); lipsum($n); ($t | urlize); ($t | format($x)); h($x)
        strftime_now($t); $t.translate($d); $t.encode() ~ ''; raise_exception($x); cycler($x) ~ ''; ($t | pprint)""",
    "n": """
        999999999; -999999999; 10**9; 1e400; 65536; 2**62; ($n ** $n); ($n | round($n)); ($l | sum); ($n / $n); $t
        $x""",
    "l": """
        $l * $n; $l | batch($n) | list; $l | slice($n) | list; $l | groupby('a') | list; [$l, $l, $l]; $x; range
        $l.append""",
    "d": "{$l: $x}; {($x, $x): $x}; $d.update($d); namespace(a=$x); loop; ns; $x; self",
    "b": "$x is divisibleby $n; $t is even; $x is $x; $x > $x; loop.changed($x); $x is sameas $x",
    "x": "loop; ns; f; range(99999)",
    "s": """
        {% macro h(v) %}$s{{ h($x) }}{{ h($x) }}{% endmacro %}; {% break %}; {% for v in range(99999) %}$s{% endfor %}
        {% for v in range($n) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}$s
        {% for v in $t %}{% set ns.x = [ns.x, v] %}{% endfor %}""",
}


class Writer:
    """Random templates. The tame ones can be filled by jinja2 as well, in no time."""

    def __init__(self, chance: random.Random, wild: bool) -> None:
        self.chance = chance
        self.rules = {kind: self._rules(text) for kind, text in TAME.items()}
        if wild:
            self.rules = {kind: rules * 2 + self._rules(WILD[kind]) for kind, rules in self.rules.items()}

    def _rules(self, text: str) -> list[str]:
        return [rule.strip() for rule in re.split(";|\n", text) if rule.strip()]

    def write(self, kind: str, depth: int) -> str:
        """The first three rules of a kind need no others."""
        rule = self.chance.choice(self.rules[kind] if depth else self.rules[kind][:3])
        inside = lambda found: self.write(found[1], max(0, depth - 1))
        return re.sub(r"\$(\w)", inside, rule if depth or kind != "s" else "{{ v }}")

    def template(self) -> str:
        start = "{% set ns = namespace(x='ab') %}{% set v = 1 %}{% macro f(a) %}<{{ a }}>{% endmacro %}"
        return start + "".join(self.write("s", 4) for _ in range(self.chance.choice([1, 2, 3])))


@pytest.mark.slow
def test_wild_templates_end(tokenizer: Tokenizer, little_memory: None, capsys: pytest.CaptureFixture[str]) -> None:
    chance, counts, slowest = random.Random(5), Counter[str](), 0.0
    for _ in range(1000):
        began = time.process_time()
        counts[outcome(Writer(chance, wild=True).template(), tokenizer)[0]] += 1
        slowest = max(slowest, time.process_time() - began)
    with capsys.disabled():
        print(f"\n{counts.total()} wild templates: {dict(counts)}, the slowest in {slowest:.2f} s")
    assert min(counts["a text"], counts["a sentence"]) > 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of what jinja2 gives to Python
def test_tame_templates_give_the_text_of_jinja(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    chance, counts = random.Random(6), Counter[str]()
    chat = [{"role": "user", "content": "hello"}]
    for _ in range(500):
        template = Writer(chance, wild=False).template()
        kind, ours = outcome(template, tokenizer)
        try:
            wanted = theirs(template, chat, None, bos_token=tokenizer.token(tokenizer.bos or 0))
        except Exception:  # whatever a template makes Python raise
            counts["none" if kind == "a sentence" else "ours"] += 1
            continue
        counts["jinja2" if kind == "a sentence" else "both"] += 1
        assert kind == "a sentence" or ours == wanted, template
    with capsys.disabled():
        print(f"\n{counts.total()} tame templates, filled by {dict(counts)}")
    assert counts["both"] > 100
    assert not counts["jinja2"]
