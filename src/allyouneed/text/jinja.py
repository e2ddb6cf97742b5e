"""Jinja templates, rendered within bounds.

A chat template comes with a model, and may come from anyone. The sandbox of jinja2 keeps it away from Python, but not
from a loop without end or a text of gigabytes. So a template has a number of steps, and pays with them for every turn
of a loop, every call of a macro, and every value, by its size, wherever the template uses it. `Payments` puts this into
the syntax tree before jinja2 compiles it; `Bounded` has the bounds: it checks the size of a value before it is made.
"""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from functools import lru_cache, partial
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context, utils
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

MOST_STEPS = 100_000  # a well-known template takes some thousands
MOST_SIZE = 5_000  # nodes of the syntax tree; a well-known template has some hundreds
MOST_TEXT = 1_000_000  # characters of a text, items of a list
MOST_NUMBER = 2**63
MOST_POWER = 64
MOST_DEPTH = 100  # of lists in lists
MOST_NESTED = 20  # loops and macros inside each other; Python compiles no more loops
MOST_DATE = 100  # characters of the format of a date
TEXT = 64  # characters that are copied, for one step
SEARCH = 1024  # characters that are compared, for one step

CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)
REFUSED_TAGS: dict[type[nodes.Node], str] = {
    nodes.Block: "block", nodes.Extends: "extends", nodes.Include: "include", nodes.Import: "import",
    nodes.FromImport: "import", nodes.ScopedEvalContextModifier: "autoescape",
}  # fmt: skip
REFUSED_METHODS = ("encode", "expandtabs", "format", "format_map", "maketrans", "translate")
PLAIN_FILTERS = ("capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length",
                 "list", "lower", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "title",
                 "unique", "upper")  # fmt: skip


def fill(template: str, values: Mapping[str, Any], room: int = 0) -> str:
    """The text of a template, which is not too long itself. `room` is how many characters the values have: a long text
    may take more steps. Raises a ValueError that says what is wrong."""
    try:
        environment = Bounded(room)
        made = Template.from_code(environment, _compile(template), environment.globals)
        return environment.pay("".join(made.root_render_func(made.new_context(dict(values)))))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except SyntaxError as error:  # of the Python code that jinja2 makes
        raise ValueError(error.msg) from None
    except Exception as error:  # whatever a template makes Python raise
        raise ValueError(str(error) or type(error).__name__) from None


@lru_cache(maxsize=8)
def _compile(template: str) -> CodeType:
    environment = Bounded(0)
    return environment.compile(Payments().visit(environment.parse(template)))


class Generation(Extension):
    """{% generation %}: the transformers library marks with it what the model has written. It shows nothing."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Payments(NodeTransformer):
    """Puts payments into a syntax tree: calls of the methods of `Bounded`."""

    def __init__(self) -> None:
        self.size = 0  # nodes so far, and steps for their texts
        self.nested = 0  # loops and macros around this node

    def visit(self, node: nodes.Node) -> Any:
        if type(node) in REFUSED_TAGS:
            raise ValueError(f"it uses {REFUSED_TAGS[type(node)]}, which this library does not have")
        if isinstance(node, nodes.For) and node.recursive:
            raise ValueError("it uses a recursive loop, which this library does not have")
        before, nested = self.size, isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        self.size += 1 + (len(node.data) // TEXT if isinstance(node, nodes.TemplateData) else 0)
        self.nested += nested
        if self.size > MOST_SIZE:
            raise ValueError("it is too long")
        if self.nested > MOST_NESTED:
            raise ValueError("it is nested too deep")
        self.generic_visit(node)
        self.nested -= nested
        size = nodes.Const(self.size - before)
        match node:
            case nodes.For():
                node.iter = _call("walk", node.iter, size)
            case nodes.Macro() | nodes.CallBlock():
                node.body.insert(0, nodes.ExprStmt(_call("spend", size), lineno=node.lineno))
            case nodes.Const(value=int() | float() as number) if abs(number) > MOST_NUMBER:
                raise ValueError("it has a number of more than 64 bits")
            case nodes.Const() | nodes.TemplateData() | nodes.Slice() | nodes.NSRef():
                return node
            case nodes.Expr() if getattr(node, "ctx", "load") == "load":
                return _call("pay", node)
        match node:  # what jinja2 itself calls is not paid for
            case nodes.CallBlock():
                node.call = node.call.args[0]  # type: ignore[assignment]
            case nodes.FilterBlock() | nodes.AssignBlock(filter=nodes.Call()):
                node.filter = node.filter.args[0]  # type: ignore[assignment]
        return node


def _call(method: str, *args: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), [*args], [], None, None)


class Namespace(utils.Namespace):
    """Values that a template can change from inside a loop. It is not paid for by its size, so it gives no text."""

    def __repr__(self) -> str:
        raise ValueError("it makes a text of a namespace")


class Bounded(ImmutableSandboxedEnvironment):
    """The environment of one rendering, with the settings of the transformers library and the steps that are left."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, room: int) -> None:
        extensions = ("jinja2.ext.loopcontrols", Generation)
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        self.finalize = self.output
        self.left = MOST_STEPS + room
        self.longest = MOST_TEXT + 4 * room
        divisible = lambda value, by=2: self.call_binop(None, "%", value, by) == 0
        self.filters = {name: partial(self.refuse, name) for name in FILTERS}  # an error only if called
        self.filters |= {name: FILTERS[name] for name in PLAIN_FILTERS}
        self.filters |= {"join": self.join, "indent": self.indent, "tojson": self.tojson, "replace": self.replace}
        self.filters |= {"trim": self.trim, "string": self.text, "safe": self.text}
        self.tests = TESTS | {"divisibleby": divisible, "even": divisible, "odd": lambda value: not divisible(value)}
        self.tests |= {"in": lambda value, among: value in self.pay(among)}  # select('in', list) calls it many times
        self.globals = {"range": range, "namespace": Namespace, "joiner": utils.Joiner}
        self.globals |= {"dict": partial(dict)}  # `dict[x, x]` would be a type with x inside, which is not paid for
        self.globals |= {"raise_exception": self.raise_exception, "strftime_now": self.strftime_now}

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise ValueError("it takes too many steps")

    def check_size(self, size: int) -> None:
        """Call this before a value of this size is made."""
        if size > self.longest:
            raise ValueError(f"it makes a text or a list of {size:,}, and the most is {self.longest:,}")

    def pay(self, value: Any) -> Any:
        """The value, paid for by its size, with all that is inside, as often as it is there; what is made one by one is
        paid for as it is made."""
        if isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return self.walk(value)
        level = [value.__self__ if isinstance(value, BuiltinMethodType) else value]
        for _ in range(MOST_DEPTH):
            inside: list[Any] = []
            for item in level:
                self.spend(1)
                if isinstance(item, str):
                    self.check_size(len(item))
                    self.spend(len(item) // TEXT)
                elif isinstance(item, CONTAINERS):
                    self.spend(len(item))
                    inside += [*item, *item.values()] if isinstance(item, dict) else item
                elif isinstance(item, range):
                    self.spend(len(item))
                elif isinstance(item, int) and abs(item) > MOST_NUMBER:
                    raise ValueError("it makes a number of more than 64 bits")
            if not inside:
                return value
            level = inside
        raise ValueError(f"it puts lists into lists, {MOST_DEPTH} deep")

    def walk(self, items: Iterable[Any], cost: int = 1) -> Iterator[Any]:
        for item in items:
            self.spend(cost)
            yield self.pay(item)

    def text(self, value: Any) -> str:
        if callable(value) and not isinstance(value, Undefined):
            raise ValueError(f"it makes a text of a {type(value).__name__}")
        return self.pay(str(value))

    def refuse(self, name: str, *args: Any, **named: Any) -> Any:
        raise ValueError(f"it uses the filter {name}, which this library does not have")

    # Hooks of jinja2's sandbox: operators, attributes, calls

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        sides, sequences = (left, right), (str, list, tuple)
        lengths = [len(side) for side in sides if isinstance(side, sequences)]
        numbers = [side for side in sides if isinstance(side, int | float)]
        known = all(isinstance(side, (int, float, Undefined, *sequences)) for side in sides)
        if not known or (operator == "%" and isinstance(left, str)):
            raise ValueError(f"it uses {operator} on a {type(left).__name__} and a {type(right).__name__}")
        if operator == "**" and isinstance(right, int | float) and abs(right) > MOST_POWER:
            raise ValueError("it makes a number of more than 64 bits")
        self.check_size(lengths[0] * int(numbers[0]) if operator == "*" and lengths and numbers else sum(lengths))
        return self.binop_table[operator](left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        known = isinstance(obj, str | list | tuple | dict | Namespace | LoopContext)
        return known and attr not in REFUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise ValueError(f"it uses {attribute} of a {type(obj).__name__}, which this library does not have")

    def wrap_str_format(self, value: Any) -> None:
        """`format` is a method like the others, and refused."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.pay(argument))

    def call(self, context: Context, function: Any, /, *args: Any, _loop_vars: Any = None, **named: Any) -> Any:
        owner = function.__self__ if isinstance(function, BuiltinMethodType | MethodType) else None
        if owner is self:
            return function(*args, **named)
        if isinstance(owner, str):
            return self.method(owner, function.__name__, *args, **named)
        return super().call(context, function, *args, **named)

    def method(self, text: str, name: str, *args: Any, **named: Any) -> Any:
        """A method of a text. A search may compare each character with each."""
        patterns = [value for value in (*args, *named.values()) if isinstance(value, str)]
        self.spend(len(text) * sum(map(len, patterns)) // SEARCH)
        if name == "join":
            args = tuple(map(list, args))
            self.check_size(sum(len(item) + len(text) for items in args for item in items if isinstance(item, str)))
        elif name == "replace":
            self.check_size(len(text) + text.count(args[0]) * len(args[1]))
        elif name in ("center", "ljust", "rjust", "zfill"):
            self.check_size(args[0])
        return getattr(text, name)(*args, **named)

    # Output, filters, functions

    @pass_context  # so that jinja2 computes nothing while it compiles
    def output(self, context: Context, value: Any) -> str:
        return self.text(value)

    def join(self, value: Any, d: Any = "", attribute: Any = None) -> str:
        items = map(make_attrgetter(self, attribute), value) if attribute is not None else value
        texts, between = [self.text(item) for item in items], self.text(d)
        self.check_size(sum(map(len, texts)) + len(between) * len(texts))
        return self.pay(between.join(texts))

    def replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        return self.method(self.text(value), "replace", self.text(old), self.text(new), -1 if count is None else count)

    def trim(self, value: Any, chars: str | None = None) -> str:
        return self.method(self.text(value), "strip", chars)

    def indent(self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        rows = self.text(value).splitlines()
        self.check_size(len(value) + (1 + len(rows)) * (len(width) if isinstance(width, str) else width))
        return do_indent(value, width, first, blank)

    def tojson(
        self, value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
    ) -> str:
        width = len(indent) if isinstance(indent, str) else indent or 0
        self.check_size(MOST_DEPTH**2 * width)  # what the encoder writes before an item, at each depth
        coder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self.join(map(self.pay, coder.iterencode(self.pay(value))))

    def strftime_now(self, how: str) -> str:
        if len(how) > MOST_DATE:
            raise ValueError(f"it has a date of more than {MOST_DATE} characters")
        return datetime.now().strftime(how)

    def raise_exception(self, message: Any) -> None:
        raise ValueError(f"it says '{self.text(message)}'")
